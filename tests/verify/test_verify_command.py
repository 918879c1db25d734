"""`python -m pmapdp.verify` on a file of yours, and the code of docs/verify.md."""

import json
import re
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax import lax
from marks import quick
from steps import BATCH, W, loss_of

from pmapdp import cli
from pmapdp.verify import one_device, verify
from pmapdp.verify.__main__ import main

FILE = """
import jax, numpy as np
def reference(w, batch):
    loss, g = jax.value_and_grad(lambda w: ((batch["x"] @ w) ** 2).mean())(w)
    return w - 0.1 * g, loss
def device_step(w, batch):
    loss, g = jax.value_and_grad(lambda w: ((batch["x"] @ w) ** 2).mean())(w)
    return w - 0.1 * jax.lax.REDUCE(g, "data"), jax.lax.pmean(loss, "data")
def check():
    import os
    os.makedirs('sub', exist_ok=True)
    os.chdir('sub')
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    return dict(reference=reference, step=jax.pmap(device_step, "data"), state=np.ones(3, np.float32), batch={"x": x})
def broken():
    return check() | dict(reference=lambda w, batch: 1 / 0)
def misspelt():
    return check() | dict(layuot="stacked")
"""


@pytest.mark.parametrize(
    ("reduce", "target", "status", "said"),
    [
        ("psum", "step.py:check", 1, "use lax.pmean in place of lax.psum"),
        ("pmean", "step.py:broken", 1, "step.py:16 in <lambda>: ZeroDivisionError"),
        ("pmean", "step.py:misspelt", 1, "got an unexpected keyword argument 'layuot'"),
        ("pmean", "step.py:check --devices 0", 2, "0 devices cannot be simulated"),
        ("pmean", "step.py:check --json step.py", 2, "is a file of another kind, which would be lost"),
    ],
)
def test_the_command_verifies_a_file_and_writes_the_report(capsys, monkeypatch, tmp_path, reduce, target, status, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.py").write_text(FILE.replace("REDUCE", reduce))
    assert cli.run(main, ["--json", "report.json", *target.split()]) == status
    captured = capsys.readouterr()
    assert said in " ".join((captured.out + captured.err).split())
    if target == "step.py:check":
        assert json.loads((tmp_path / "report.json").read_text())["ok"] == (status == 0)
    assert "def check" in (tmp_path / "step.py").read_text()


PAGE = Path(__file__).parents[2] / "docs" / "verify.md"
FIRST, FAMILIES, _, TEST = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_first_program_of_the_page_and_its_test(monkeypatch, capsys):
    body = "    metrics, grads = jax.value_and_grad(lambda params: loss(params['w'], batch))(state.params)\n"
    assert FIRST.count("    ...\n") == 1
    state = TrainState.create(apply_fn=None, params={"w": jnp.asarray(W)}, tx=optax.sgd(0.1))
    page = {"state": state, "batch": BATCH, "loss": loss_of}
    exec(FIRST.replace("    ...\n", body), page)
    assert page["report"].ok
    assert str(page["report"]) in capsys.readouterr().out
    module = types.ModuleType("my_project.train")
    vars(module).update(state=state, batch=BATCH, step=page["step"])
    monkeypatch.setitem(sys.modules, "my_project", types.ModuleType("my_project"))
    monkeypatch.setitem(sys.modules, "my_project.train", module)
    test: dict = {}
    exec(TEST, test)
    test["test_the_step_equals_one_device"]()


def moved(w, opt, batch):
    """A step over "i" of parameters and moments, in the order of each family below."""
    loss, gradient = lax.pmean(jax.value_and_grad(loss_of)(w, batch), "i")
    return w - 0.1 * (0.9 * opt + gradient), 0.9 * opt + gradient, loss


def haiku(w, opt, rng, batch):
    return *moved(w, opt, batch)[:2], {"noise": jax.random.normal(rng)}


def loss_first(w, opt, x, y):
    w, opt, loss = moved(w, opt, {"x": x, "y": y})
    return loss, w, opt


def returns_a_key(state, rng, batch):
    rng, now = jax.random.split(rng)
    *state, loss = moved(*state, batch)
    return tuple(state), loss + jax.random.normal(now), rng


def counts(state, number, batch):
    *state, loss = moved(*state, batch)
    return tuple(state), loss * number


PAIR = (W, np.zeros(5, np.float32))
FAMILIES_GIVEN = [
    (haiku, {"state": PAIR, "key": jax.random.key}),
    (loss_first, {"state": PAIR, "batch": (BATCH["x"], BATCH["y"])}),
    (returns_a_key, {"state": (PAIR, np.zeros(2, np.uint32))}),
    (counts, {"state": (PAIR, np.float32(0))}),
]


@quick(0, ("update", "given"), FAMILIES_GIVEN)
def test_the_functions_around_the_families_of_steps(update, given):
    page = {"update": update, "eqx": None}
    exec(FAMILIES, page)
    step = page[update.__name__]
    report = verify(**{"batch": BATCH} | given, step=jax.pmap(step, "i"), reference=one_device(step, "i"))
    assert report.ok, str(report)

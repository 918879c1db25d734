"""`python -m pmapdp.verify` on a file of the user's, and the code of docs/verify.md."""

import json
import re
import subprocess
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
from launch import environment, python
from steps import BATCH, W, loss_of

from pmapdp import cli
from pmapdp.verify import old_program, one_device, verify
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
def listed():
    return [check()]
def misspelt():
    return check() | dict(layuot="stacked")
"""
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("reduce", "target", "status", "said"),
    [
        ("pmean", "step.py:check", 0, "checks passed"),
        ("psum", "step.py:check", 1, "use lax.pmean in place of lax.psum"),
        pytest.param("pmean", "step.py:broken", 1, "step.py:16 in <lambda>: ZeroDivisionError", marks=slow),
        pytest.param("pmean", "step.py:listed", 2, "the arguments of verify ('list' object", marks=slow),
        pytest.param("pmean", "step.py:misspelt", 2, "(got an unexpected keyword argument 'layuot')", marks=slow),
        pytest.param("pmean", "step.py:absent", 2, "has no 'absent'", marks=slow),
    ],
)
def test_the_command_verifies_a_file_and_writes_the_report(tmp_path, reduce, target, status, said):
    (tmp_path / "step.py").write_text(FILE.replace("REDUCE", reduce))
    command = [sys.executable, "-m", "pmapdp.verify", target, "--devices", "4", "--json", "report.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    if target == "step.py:check":
        assert json.loads((tmp_path / "report.json").read_text())["ok"] == (status == 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["step.py:check", "--devices", "0"], "0 devices cannot be simulated"),
        (["step.py:check", "--json", "step.py"], "is also a file that this command reads"),
    ],
)
def test_a_wrong_command_is_one_sentence(capsys, monkeypatch, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.py").write_text(FILE)
    assert cli.run(main, arguments) == 2
    assert said in capsys.readouterr().err
    assert (tmp_path / "step.py").read_text() == FILE


def test_importing_does_not_start_jax():
    code = "import pmapdp.verify, jax; assert not jax._src.xla_bridge._backends"
    assert python("-c", code, env=environment()).returncode == 0


PAGE = Path(__file__).parents[2] / "docs" / "verify.md"
FIRST, FAMILIES, OWN, TEST = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


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


def moved(params, opt, batch):
    loss, gradient = lax.pmean(jax.value_and_grad(lambda p: loss_of(p["w"], batch))(params), "i")
    updates, opt = optax.adam(0.1).update(gradient, opt)
    return optax.apply_updates(params, updates), opt, loss


def haiku(params, opt, rng, batch):
    return *moved(params, opt, batch)[:2], {"noise": jax.random.normal(rng)}


def loss_first(params, opt, x, y):
    params, opt, loss = moved(params, opt, {"x": x, "y": y})
    return loss, params, opt


def returns_a_key(state, rng, batch):
    rng, now = jax.random.split(rng)
    params, opt, loss = moved(*state, batch)
    return (params, opt), loss + jax.random.normal(now), rng


def counts(state, number, batch):
    params, opt, loss = moved(*state, batch)
    return (params, opt), loss * number


@pytest.mark.parametrize("update", [haiku, loss_first, returns_a_key, counts], ids=lambda update: update.__name__)
def test_the_functions_around_the_families_of_steps(update):
    page = {"update": update, "eqx": None}
    exec(FAMILIES, page)
    step, pair = page[update.__name__], ({"w": W}, optax.adam(0.1).init({"w": jnp.asarray(W)}))
    state = {
        "returns_a_key": (pair, jax.random.PRNGKey(0)), "counts": (pair, np.float32(0)),
    }.get(update.__name__, pair)  # fmt: skip
    given = {"state": state, "batch": BATCH if update is not loss_first else (BATCH["x"], BATCH["y"])}
    given |= {"key": jax.random.key} if update is haiku else {}
    report = verify(step=jax.pmap(step, "i"), reference=one_device(step, "i"), **given)
    assert report.ok, str(report)


@slow
def test_the_program_of_the_page_with_leaves_of_each_device():
    def step(state, batch):
        key, own = jax.random.split(state["dropout_rng"])
        keep = jax.random.bernoulli(own, 0.5, batch["y"].shape)
        gradient = lax.pmean(jax.grad(loss_of)(state["w"], batch, keep), "batch")
        statistics = 0.9 * state["batch_stats"] + 0.1 * batch["x"].mean(0)
        return {"w": state["w"] - 0.1 * gradient, "dropout_rng": key, "batch_stats": statistics}

    state = {"w": W, "dropout_rng": jax.random.split(jax.random.PRNGKey(3), 8), "batch_stats": np.zeros((8, 5), "f4")}
    names = {"verify": verify, "old_program": old_program, "step": step, "ported": jax.pmap(step, "batch")}
    exec(OWN.replace('layout="sharded"', 'layout="stacked"'), names | {"state": state, "batch": BATCH})

"""`python -m pmapdp.verify` on a file of yours, and the code of docs/verify.md."""

import json
import re
import sys
import types
from pathlib import Path

import entry
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax import lax
from marks import quick
from steps import BATCH, W, loss_of

from pmapdp.verify import one_device, verify

EXAMPLE = (Path(__file__).parents[2] / "examples" / "sum_of_means.py").read_text()
FILE = """
def broken():
    return dict(reference=lambda w, batch: 1 / 0, step=len, state=1.0, batch=[1.0])
def misspelt():
    return dict(layuot="stacked")
"""


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        ("example.py:check", 1, "use lax.pmean in place of lax.psum"),
        ("step.py:broken", 1, "step.py:3 in <lambda>: ZeroDivisionError"),
        (
            "step.py:misspelt",
            1,
            "step.py:misspelt fails: it raises an error, TypeError: missing",
        ),
        (
            "step.py:broken --json step.py",
            2,
            "is a file of another kind, which would be lost",
        ),
    ],
)
def test_the_command_verifies_a_file_and_writes_the_report(
    folder, target, status, said
):
    Path("step.py").write_text(FILE)
    Path("example.py").write_text(EXAMPLE)
    done = entry.run_command("verify", "--json", "report.json", *target.split())
    assert done.status == status
    assert said in " ".join((done.out + done.err).split())
    if target == "example.py:check":
        assert (
            json.loads(Path("report.json").read_text())["causes"][0] == "sum for mean"
        )
    assert Path("step.py").read_text() == FILE


PAGE = Path(__file__).parents[2] / "docs" / "verify.md"
FIRST, FAMILIES, _, TEST = re.findall(
    r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL
)


def test_the_first_program_of_the_page_and_its_test(monkeypatch, capsys):
    body = "    metrics, grads = jax.value_and_grad(lambda params: loss(params['w'], batch))(state.params)\n"
    assert FIRST.count("    ...\n") == 1
    state = TrainState.create(
        apply_fn=None, params={"w": jnp.asarray(W)}, tx=optax.sgd(0.1)
    )
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
    """A step over "i" of parameters and moments: the loss, and both."""
    loss, gradient = lax.pmean(jax.value_and_grad(loss_of)(w, batch), "i")
    return loss, w - 0.1 * (0.9 * opt + gradient), 0.9 * opt + gradient


PAIR, normal = (W, np.zeros(5, np.float32)), jax.random.normal
GIVEN = {
    "haiku": (
        lambda w, opt, rng, batch: (*moved(w, opt, batch)[1:], normal(rng)), {"state": PAIR, "key": jax.random.key}),
    "loss_first": (
        lambda w, opt, x, y: moved(w, opt, {"x": x, "y": y}), {"state": PAIR, "batch": (BATCH["x"], BATCH["y"])}),
    "returns_a_key": (
        lambda state, rng, batch: (moved(*state, batch)[1:], normal(rng), jax.random.split(rng)[0]),
        {"state": (PAIR, np.zeros(2, np.uint32))}),
    "counts": (
        lambda state, number, batch: (moved(*state, batch)[1:], number + 0.5), {"state": (PAIR, np.float32(0))}),
}  # fmt: skip


@quick(0, "name", GIVEN)
def test_the_functions_around_the_families_of_steps(name):
    page = {"update": GIVEN[name][0], "eqx": None}
    exec(FAMILIES, page)
    given = {
        "step": jax.pmap(page[name], "i"),
        "reference": one_device(page[name], "i"),
        "batch": BATCH,
    }
    report = verify(**given | GIVEN[name][1])
    assert report.ok, str(report)

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
import pytest
from jax import lax
from marks import quick
from steps import BATCH, W, loss_of

from pmapdp.verify import VerificationError, one_device, verify

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
        ("example.py:check", 1, "a change 8 times the reference's predicts"),
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
        assert json.loads(Path("report.json").read_text())["rows"] == ["sum for mean"]
    assert Path("step.py").read_text() == FILE


PAGE = (Path(__file__).parents[2] / "docs" / "verify.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
FIRST, FAMILIES, _, TEST = [code for language, code in BLOCKS if language == "python"]
(PRINTED,) = [text for language, text in BLOCKS if not language]


def test_the_first_program_of_the_page_prints_what_the_page_says(capsys):
    page: dict = {}
    exec(FIRST, page)
    assert f"{page['report']}\n" == PRINTED
    with pytest.raises(VerificationError):
        page["report"].require()
    corrected: dict = {}
    exec(FIRST.replace("lax.psum", "lax.pmean"), corrected)
    assert corrected["report"].ok
    assert str(corrected["report"]).endswith("All 3 checks passed.")
    assert "All 3 checks passed." in PAGE


def test_the_test_of_the_page_passes_with_a_correct_step(monkeypatch):
    module = types.ModuleType("my_project.train")
    state = {"w": jnp.asarray(W)}

    def step(state, batch):
        gradient = jax.grad(loss_of)(state["w"], batch)
        return {"w": state["w"] - 0.1 * lax.pmean(gradient, "batch")}

    vars(module).update(state=state, batch=BATCH, step=step)
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

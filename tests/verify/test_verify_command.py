"""`python -m pmapdp.verify` on a file of yours, and the code of docs/verify.md."""

import inspect
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
from jax import P, lax
from jax.sharding import Mesh
from marks import quick
from steps import BATCH, W, loss_of

from pmapdp.verify import VerificationError, old_program, one_device, verify
from pmapdp.verify.thresholds import NARROW_TOLERANCES, TOLERANCES

EXAMPLE = (Path(__file__).parents[2] / "examples" / "sum_of_means.py").read_text()
FILE = """
def broken():
    return dict(reference=lambda w, batch: 1 / 0, step=len, state=1.0, batch=[1.0])
def old_step(w, batch):
    return w
def misspelt():
    return dict(layuot="stacked")
def unknown():
    return dict(reference=len, step=len, state=1.0, layout="staked")
"""


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        ("example.py:check", 1, "the change is 8 times the reference's, on 8 devices"),
        ("step.py:broken", 1, "step.py:3 in <lambda>: ZeroDivisionError"),
        (
            "step.py:misspelt",
            1,
            "step.py:misspelt fails: it raises an error, TypeError: missing",
        ),
        (
            "step.py:old_step",
            2,
            "step.py:old_step takes w, batch: name a function without arguments",
        ),
        ("step.py:unknown", 2, "unknown layout 'staked': did you mean 'stacked'"),
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
        assert json.loads(Path("report.json").read_text())["mistakes"] == [
            "sum for mean"
        ]
    assert Path("step.py").read_text() == FILE


def test_the_help_names_every_argument_of_verify(folder):
    done = entry.run_command("verify", "--help")
    assert done.status == 0
    for name in inspect.signature(verify).parameters:
        assert f"`{name}`" in done.out


PAGE = (Path(__file__).parents[2] / "docs" / "verify.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
FIRST, KEYS, OLD, FAMILIES, TEST = [
    code for language, code in BLOCKS if language == "python"
]
(PRINTED,) = [text for language, text in BLOCKS if not language]


def test_the_tolerances_of_the_page_are_those_of_the_code():
    times, places = NARROW_TOLERANCES
    bfloat16 = (times, places * float(jnp.finfo(jnp.bfloat16).eps))
    rows = re.findall(r"^\| (b?float\d\d) \| (\d) \| ([\d.e-]+)", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for name, times, fraction in rows:
        used = TOLERANCES.get(jnp.dtype(name).itemsize, bfloat16)
        assert (int(times), float(fraction)) == pytest.approx(used, rel=0.05)


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


def drop(x, key):
    """Half of the numbers, chosen by the key, and the others 0."""
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)


def old_step(state, batch):
    """A step over "batch" with a dropout key and statistics of each device."""
    key, now = jax.random.split(state["dropout_rng"])
    inputs = {"x": drop(batch["x"], now), "y": batch["y"]}
    gradient = lax.pmean(jax.grad(loss_of)(state["w"], inputs), "batch")
    return {
        "w": state["w"] - 0.1 * gradient,
        "dropout_rng": key,
        "batch_stats": batch["x"].mean(0),
    }


@pytest.mark.parametrize("average", ["lax.pmean", "lax.psum"])
def test_the_comparison_of_a_port_with_the_old_program(average):
    """A port that adds up fails, although the old program is its reference."""

    def ported_device(state, batch):
        rows = {name: x if name == "w" else x[0] for name, x in state.items()}
        new = old_step(rows, batch)
        if average == "lax.psum":
            new["w"] = state["w"] + 8 * (new["w"] - state["w"])
        return {name: x if name == "w" else x[None] for name, x in new.items()}

    specs = {"w": P(), "dropout_rng": P("batch"), "batch_stats": P("batch")}
    mapped = jax.shard_map(
        ported_device,
        mesh=Mesh(np.array(jax.devices()), ("batch",)),
        in_specs=(specs, P("batch")),
        out_specs=specs,
        check_vma=False,
    )
    page = {"verify": verify, "old_program": old_program, "batch": BATCH}
    page |= {"step": old_step, "ported": jax.jit(mapped)}
    page["state"] = {
        "w": W,
        "dropout_rng": jax.random.split(jax.random.PRNGKey(0), 8),
        "batch_stats": np.zeros((8, 5), np.float32),
    }
    if average == "lax.pmean":
        exec(OLD, page)
    else:
        with pytest.raises(VerificationError, match="sum for mean"):
            exec(OLD, page)


@pytest.mark.parametrize("average", [lax.pmean, lax.psum])
def test_the_reference_with_a_key_for_each_device_tells_a_sum_from_a_mean(average):
    """It's exact under Adam, too."""

    def loss(params, batch, key):
        return loss_of(params["w"], {"x": drop(batch["x"], key), "y": batch["y"]})

    def step(state, batch, key):
        value, gradients = jax.value_and_grad(loss)(state.params, batch, key)
        gradients = average(gradients, "batch")
        return state.apply_gradients(grads=gradients), {
            "loss": lax.pmean(value, "batch")
        }

    state = TrainState.create(apply_fn=None, params={"w": W}, tx=optax.adam(0.1))
    page = {"verify": verify, "jax": jax, "jnp": jnp, "lax": lax, "step": step}
    page |= {"loss": loss, "state": state, "batch": BATCH}
    exec(KEYS, page)
    report = page["report"]
    assert report.ok == (average is lax.pmean), str(report)
    assert report.mistakes == ([] if report.ok else ["sum for mean"]), str(report)
    advance = [check for check in report.checks if check.name.startswith("random")]
    assert [check.status for check in advance] == ["passed"]


def moved(w, opt, batch):
    """A step over "i" of parameters and moments: the loss, and both."""
    loss, gradient = lax.pmean(jax.value_and_grad(loss_of)(w, batch), "i")
    return loss, w - 0.1 * (0.9 * opt + gradient), 0.9 * opt + gradient


PAIR = (W, np.zeros(5, np.float32))
normal = jax.random.normal
GIVEN = {
    "haiku": (
        lambda w, opt, rng, batch: (*moved(w, opt, batch)[1:], normal(rng)), {"state": PAIR, "key": jax.random.key}),
    "loss_first": (
        lambda w, opt, x, y: moved(w, opt, {"x": x, "y": y}), {"state": PAIR, "batch": (BATCH["x"], BATCH["y"])}),
    "counts": (
        lambda state, number, batch: (moved(*state, batch)[1:], number + 0.5), {"state": (PAIR, np.float32(0))}),
}  # fmt: skip


@quick(0, "name", GIVEN)
def test_the_functions_around_the_families_of_steps(name):
    page = {"update": GIVEN[name][0]}
    exec(FAMILIES, page)
    given = {
        "step": jax.pmap(page[name], "i"),
        "reference": one_device(page[name], "i"),
        "batch": BATCH,
    }
    report = verify(**given | GIVEN[name][1])
    assert report.ok, str(report)

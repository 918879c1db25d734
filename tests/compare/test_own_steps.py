"""`python -m pmapdp.compare old.py:program new.py:program`: steps of the reader's own side by side."""

import json

import pytest
from launch import python

from pmapdp.lessons.programs import port_example

# The same step, which adds up what it should average. It stands in a file of its own, as a reader's may.
WRONG = """
import jax
from jax import lax
from pmapdp.verify import one_device
from pmapdp.lessons.programs.port_example import loss, optimizer, start
import optax


def summed_step(state, batch):
    params, moments = state
    value, gradients = jax.value_and_grad(loss)(params, batch)  # of one device
    gradients = lax.psum(gradients, "batch")
    updates, moments = optimizer.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), {"loss": lax.pmean(value, "batch")}


def program():
    step = jax.pmap(summed_step, axis_name="batch", in_axes=(None, 0), out_axes=None)
    return start() | {"step": step, "reference": one_device(summed_step, "batch"), "layout": "replicated"}
"""


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "wrong.py").write_text(WRONG)
    programs = [f"{port_example.__file__}:old", f"{port_example.__file__}:new", folder / "wrong.py:program"]
    files = ["--json", folder / "report.json", "--html", folder / "page.html"]
    done = python("-m", "pmapdp.compare", *programs, "--devices", "2", *files)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "report.json").read_text()), (folder / "page.html").read_text()


def text_of(report, role, place):
    (row,) = [row for row in report["rows"] if row["role"] == role]
    return "\n".join("".join(piece for piece, _ in line) for line in row["cells"][report["columns"][place]])


def test_each_is_verified_and_set_beside_the_first(compared):
    out, report, page = compared
    old, new, wrong = report["runs"]
    assert (old["name"], new["name"], wrong["name"]) == (
        "port_example.py:old",
        "port_example.py:new",
        "wrong.py:program",
    )
    assert [run["verdict"] for run in report["runs"]] == ["passed", "passed", "failed"]
    assert wrong["causes"] == ["sum for mean"]
    assert old["largest_difference"] == 0
    assert new["largest_difference"] < 1e-6  # one update of Adam, in float32
    assert wrong["largest_difference"] > 1e-3  # its first moment is twice as large
    for text in (out, page):
        assert "pmapdp.verify finds wrong.py:program: sum for mean." in text
        assert "use lax.pmean in place of lax.psum" in " ".join(text.split())


def test_what_the_devices_hold_and_exchange(compared):
    _, report, _ = compared
    old, new, wrong = report["runs"]
    numbers = 20 * 32 + 32 * 3 + 1  # the gradients and the loss
    for run in report["runs"]:
        assert sum(each["bytes"] for each in run["collectives"]) == 4 * numbers
        assert run["memory"]["peak"] > 4 * numbers
        assert 0 < run["step_ms"]["low"] <= run["step_ms"]["median"]
    assert old["collectives"][0]["text"].startswith("value, gradients = lax.pmean(")
    assert "/wrong.py:" in wrong["collectives"][0]["source"]
    assert "dot_general" in new["collectives"][0]["operations"]
    assert [run["held"]["state"]["largest"]["shape"] for run in report["runs"]] == [[2, 20, 32], [20, 32], [20, 32]]
    assert [run["held"]["batch"]["largest"]["shape"] for run in report["runs"]] == [[2, 32, 20], [64, 20], [2, 32, 20]]
    assert [run["held"]["metric"]["largest"]["shape"] for run in report["runs"]] == [[2], [], []]


def test_rows_hold_what_lines_do(compared):
    _, report, _ = compared
    assert text_of(report, "the wrapper", 0) == 'step = jax.pmap(old_step, axis_name="batch", donate_argnums=0)'
    assert "jax.jit(new_step" in text_of(report, "the wrapper", 1)
    assert text_of(report, "the all-reduce", 0) == 'value, gradients = lax.pmean((value, gradients), "batch")'
    assert text_of(report, "the all-reduce", 1) == ""
    assert "NamedSharding(mesh, P())" in text_of(report, "place the state and the batch", 1)
    assert text_of(report, "the step", 2).startswith("def summed_step(state, batch):")
    assert "#" not in text_of(report, "the step", 2)
    assert "new_step" not in "".join(
        text_of(report, row["role"], 0) for row in report["rows"]
    )  # old needs nothing of it


@pytest.mark.slow
def test_an_error_of_a_program_is_one_sentence(tmp_path):
    (tmp_path / "a.py").write_text("def program():\n    return 1 / 0\n")
    done = python("-m", "pmapdp.compare", f"{tmp_path}/a.py:program", f"{port_example.__file__}:new", "--devices", "2")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"error: {tmp_path}/a.py:program fails, {tmp_path}/a.py:2 in program: ZeroDivisionError: division by zero\n"
    )


@pytest.mark.slow
def test_a_step_that_raises_is_one_sentence(tmp_path):
    (tmp_path / "a.py").write_text(
        WRONG.replace("step = jax.pmap", "step = lambda state, batch: 1 / 0\n    mapped = jax.pmap")
    )
    done = python("-m", "pmapdp.compare", f"{tmp_path}/a.py:program", f"{port_example.__file__}:new", "--devices", "2")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {tmp_path}/a.py:program cannot be compared: the step raised an error, ")
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.count("\n") == 1

"""The program that grows: each script runs alone, gives the result of one device, and differs little from the last.

pytest tests/lessons/test_program.py            # the lengths and differences of all scripts; runs the first five
pytest tests/lessons/test_program.py -m slow    # the other scripts, float64, other numbers of devices, a real kill
"""

import ast
import difflib
import functools
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import build
import numpy as np
import pytest
from launch import environment

OLD = "12 old"  # the pmap program that lesson 12 ports; it is no version of the others
PROGRAMS = {
    OLD if "old" in path.stem else path.stem[:2]: path for path in sorted((build.FOLDER / "program").glob("*.py"))
}
LIBRARIES = {"jax", "flax", "optax", "numpy"}
QUICK = ("01", "02", "03", "05", "09")  # plain `pytest` runs them, a process each
SAME_RESULT = (
    "09",
    "10",
    "11",
    "13",
    "14",
    "15",
    "16",
    "17",
)  # as 05: one network and data, other ways to split the work


def run_quick(numbers: Sequence[str]):
    return [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in numbers]


# Lines of the later script that the earlier one doesn't have, at most.
NEW_LINES = {
    ("03", "05"): 20,
    ("05", "07"): 40,
    ("05", "08"): 30,
    ("05", "09"): 12,
    ("05", "10"): 10,
    ("09", "11"): 12,
    (OLD, "12"): 20,
    ("09", "13"): 25,
    ("09", "14"): 25,
    ("09", "15"): 25,
    ("09", "16"): 25,
    ("09", "17"): 25,
}

# Stands before a script: nothing can be imported but the four libraries and what they need themselves.
ONLY_THE_LIBRARIES = """
import importlib.metadata, re, sys
wanted, found = ["jax", "flax", "optax", "numpy"], set()
while wanted:
    name = re.match(r"[\\w.-]+", wanted.pop()).group().lower().replace("_", "-")
    if name not in found:
        found.add(name)
        try:
            wanted += [each for each in importlib.metadata.requires(name) or [] if "extra ==" not in each]
        except importlib.metadata.PackageNotFoundError:
            pass
owners = importlib.metadata.packages_distributions()
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top == "pmapdp" or (top in owners and not found & {each.lower().replace("_", "-") for each in owners[top]}):
            raise ModuleNotFoundError(f"{name} is not one of the four libraries", name=name)
sys.meta_path.insert(0, Refuse())
"""
FLOAT64 = (
    ("np.float32", "np.float64"),
    ("rngs=rngs)", "rngs=rngs, param_dtype=np.float64)"),
    (":.4f}", ":.15f}"),
)


def start(number: str, folder: Path, *arguments: str, edits: Sequence[tuple[str, str]] = (), **variables: str):
    """Start a script, with its text edited, in `folder`."""
    text = PROGRAMS[number].read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = folder / PROGRAMS[number].name
    path.write_text(ONLY_THE_LIBRARIES + text)
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", path.name, *arguments]
    settings = environment({"PYTHONPATH": None} | variables)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=settings, **streams)


def output(process) -> str:
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return printed


def figures(printed: str) -> np.ndarray:
    """Training and test loss and accuracy by epoch `[epochs, 4]`, as a script prints them."""
    lines = [re.findall(r"(?:loss|accuracy) ([\d.]+)", line) for line in printed.splitlines()]
    return np.array([line for line in lines if line], float)


@functools.cache
def printed_by(number: str, folder: Path) -> str:
    """The output of a script as it is."""
    folder = folder / number
    folder.mkdir()
    if number != "17":
        return output(start(number, folder, *(["run"] if number == "14" else [])))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    both = [start("17", folder, ADDRESS=address, PROCESSES="2", NUMBER=number) for number in "01"]
    return "".join(output(each) for each in both)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("program")


def test_the_scripts():
    assert " ".join(PROGRAMS) == "01 02 03 05 07 08 09 10 11 12 old 12 13 14 15 16 17"


@pytest.mark.parametrize("number", PROGRAMS)
def test_script_is_short_and_imports_the_four_libraries(number):
    text = PROGRAMS[number].read_text()
    assert 60 <= sum(bool(line.strip()) for line in text.splitlines()) <= 110
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {
        name
        for node in nodes
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    orbax = {"orbax"} if number == "14" else set()
    assert {name.partition(".")[0] for name in modules} <= LIBRARIES | orbax | {"os", "sys", "typing"}


@pytest.mark.parametrize(("earlier", "later"), NEW_LINES)
def test_the_difference_is_small(earlier, later):
    old, new = (PROGRAMS[number].read_text().splitlines() for number in (earlier, later))
    added = [line for line in difflib.ndiff(old, new) if line.startswith("+ ") and line[2:].strip()]
    assert len(added) <= NEW_LINES[earlier, later], "\n".join(added)


def test_two_lines_of_the_training_step_differ_between_one_device_and_pmap():
    def step(number):
        (node,) = [
            node for node in ast.parse(PROGRAMS[number].read_text()).body if getattr(node, "name", "") == "train_step"
        ]
        return ast.unparse(node).splitlines()

    added = [line[2:].strip() for line in difflib.ndiff(step("03"), step("05")) if line.startswith("+ ")]
    assert len(added) == 2
    assert added[0] == "gradients, count = lax.pmean((gradients, sums['count']), 'data')"


@pytest.mark.parametrize("number", run_quick(PROGRAMS))
def test_script_runs_alone_and_learns(number, folder):
    found = figures(printed_by(number, folder))
    assert found.shape == (5, 2 if number[:2] == "12" else 4)
    assert found[-1, 0] < 0.5  # loss
    assert found[-1, -1] > 0.86  # accuracy on the test set


def test_jax_finds_the_gradients_that_numpy_has_by_hand(folder):
    np.testing.assert_allclose(*(figures(printed_by(number, folder)) for number in ("01", "02")), atol=2e-4)


@pytest.mark.parametrize("number", run_quick(["03", *SAME_RESULT]))
def test_all_ways_give_the_figures_of_pmap(number, folder):
    # The scripts print four decimals; rounding in float32 may change the last one.
    np.testing.assert_allclose(*(figures(printed_by(each, folder)) for each in (number, "05")), atol=2e-4)


@pytest.mark.slow
def test_the_port_prints_what_the_old_program_prints(folder):
    old, port = (figures(printed_by(number, folder)) for number in (OLD, "12"))
    np.testing.assert_allclose(port[:, 0], old[:, 0], atol=2e-4)  # losses
    np.testing.assert_allclose(port[:, 1], old[:, 1], atol=1.5 / 896)  # rounding may tip one of the 896 examples


@pytest.mark.slow
def test_one_device_and_pmap_agree_to_14_digits_in_float64(tmp_path):
    runs = [start(number, tmp_path, edits=FLOAT64, JAX_ENABLE_X64="1") for number in ("03", "05")]
    one, eight = (figures(output(run)) for run in runs)
    np.testing.assert_allclose(eight, one, rtol=2e-14)
    assert (eight != np.round(eight, 10)).any(), "the figures have 15 decimals"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "devices"), [("07", 1), ("08", 4)])
def test_the_number_of_devices_changes_nothing(number, devices, folder, tmp_path):
    count = [('"jax_num_cpu_devices", 8', f'"jax_num_cpu_devices", {devices}')]
    found = figures(output(start(number, tmp_path, edits=count)))
    np.testing.assert_allclose(found, figures(printed_by(number, folder)), atol=2e-4)


@pytest.mark.slow
def test_a_run_that_ended_early_resumes_and_ends_as_if_it_had_not(folder, tmp_path):
    output(start("14", tmp_path, "run", edits=[("EPOCHS = 128, 5", "EPOCHS = 128, 2")]))
    resumed = output(start("14", tmp_path, "run"))
    whole = printed_by("14", folder).splitlines()
    assert resumed.splitlines() == ["resumes after epoch 1", *whole[2:]]


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_as_if_it_had_not(folder, tmp_path):
    run = start("14", tmp_path, "run", PYTHONUNBUFFERED="1")
    while not run.stdout.readline().startswith("epoch 2"):
        assert run.poll() is None
    run.send_signal(signal.SIGKILL)
    run.communicate()
    resumed = output(start("14", tmp_path, "run")).splitlines()
    assert resumed[0].startswith("resumes after epoch")
    assert resumed[1:] == printed_by("14", folder).splitlines()[-len(resumed) + 1 :]
    assert output(start("14", tmp_path, "run")).strip() == "resumes after epoch 4"

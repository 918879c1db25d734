"""docs/custom.md and the README's example run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import entry
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from points import DATA

from pmapdp.custom.data import make_data_set
from pmapdp.data.batches import Batch
from pmapdp.data.dataset import DataSet
from pmapdp.layers import current_context
from pmapdp.loss import MetricSums

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "custom.md").read_text()
FILES, CODE = [], []
for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
    (FILES if block.startswith("# ") else CODE).append(block)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's two files, in the current folder and on the path of imports."""
    for block in FILES:
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    for module in ("net", "data"):  # of other tests
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("pmapdp.train.keep_compiled_programs", lambda: None)
    return tmp_path


def shortened(code: str) -> str:
    return re.sub(r"epochs=\d+", "epochs=2, devices=2", code)


def without_numbers(text: str) -> str:
    return re.sub(r"[0-9][0-9.e-]*", "N", text)


@pytest.mark.slow
def test_the_commands_print_what_the_page_shows(folder):
    """Line by line, but for the numbers, which depend on the machine, and what is cut off at the right."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for command, shown in re.findall(r"\$ (.*)\n((?:[^$].*\n)*)", block):
            if command.startswith("printf"):
                subprocess.run(command, shell=True, check=True)
                continue
            _, _, module, *arguments = command.replace(
                "--epochs 20", "--epochs 4"
            ).split()
            done = entry.run_command(module.removeprefix("pmapdp."), *arguments)
            assert done.status == 0, done.err
            printed = [without_numbers(line) for line in done.out.splitlines()]
            for line in shown.splitlines():
                assert line == "..." or any(
                    each.startswith(without_numbers(line)) for each in printed
                ), line


@pytest.mark.slow
def test_the_code_of_the_page_runs(folder):
    """Its model, given back, has the test loss that the run had, within rounding."""
    names = {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "optax": optax,
        "nnx": nnx,
        "MetricSums": MetricSums,
        "DataSet": DataSet,
        "current_context": current_context,
    }
    exec(shortened(CODE[0]), names)
    first, *_, last = names["result"].epochs
    assert last["test"]["loss"] < first["test"]["loss"]
    for code in CODE[1:]:
        exec(code, names)
    test = names["data"].make()["test"]
    assert names["metrics"]["loss"] == pytest.approx(last["test"]["loss"], rel=1e-5)
    outputs = names["model"](np.asarray(test[0], np.float32))
    assert np.square(outputs - test[1]).mean() == pytest.approx(
        last["test"]["loss"], rel=1e-4
    )
    losses = [epoch["train"]["loss"] for epoch in names["copied"].epochs]
    assert losses[1] < losses[0]
    model, rows = (
        lambda inputs: (inputs[:, :3], inputs[:, 0]),
        np.eye(4, dtype=np.float32),
    )
    labels = {"kind": np.zeros(4, int), "size": rows[:, 0] + 2}
    sums = names["two_losses"](
        model, Batch(rows, labels, np.arange(4), np.array([1, 1, 1, 0]))
    )
    assert sums.loss / sums.count == pytest.approx(
        4 + np.mean([np.log(1 + 2 * np.exp(-1))] + 2 * [np.log(2 + np.e)])
    )
    data = make_data_set(names["augmented"])
    assert data.train.take(np.array([7])).inputs.max() == 7
    image = np.arange(3)[None]
    found = {
        tuple(np.asarray(names["flip"](image, jax.random.key(seed)))[0].tolist())
        for seed in range(9)
    }
    assert found == {(0, 1, 2), (2, 1, 0)}


def test_the_example_of_the_readme_runs(monkeypatch):
    monkeypatch.setattr("pmapdp.train.keep_compiled_programs", lambda: None)
    code = re.search(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )[1]
    names = {"train_inputs": DATA.train.inputs, "train_labels": DATA.train.labels}
    names |= {"test_inputs": DATA.test.inputs, "test_labels": DATA.test.labels}
    exec(shortened(code), names)
    assert names["result"].epochs[-1]["test"]["examples"] == 40

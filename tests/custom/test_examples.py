"""The programs in examples/ reach what they say, on every strategy, and are short."""

import contextlib
import importlib
import io
from pathlib import Path

import pytest
from marks import quick

ROOT = Path(__file__).parents[2]
SETTINGS = {"devices": 2, "progress": False, "compile_cache": False}
STRATEGIES = ["pmap", "jit", "shard_map", "single"]


def program(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module(name)


def run(main, *arguments, strategy="jit", **settings):
    devices = {"devices": 1} if strategy == "single" else {}
    with contextlib.redirect_stdout(io.StringIO()):
        return main(*arguments, strategy=strategy, **SETTINGS | devices | settings).epochs[-1]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_a_program_has_at_most_60_lines(path):
    assert len(path.read_text().splitlines()) <= 60


@quick(0, "strategy", STRATEGIES[:1])
def test_images_in_folders(strategy, tmp_path, monkeypatch):
    last = run(program("images_in_folders", monkeypatch).main, tmp_path, strategy=strategy)
    assert (last["test"]["examples"], last["test"]["accuracy"] > 0.97) == (360, True)


@quick(0, "strategy", STRATEGIES[:1])
def test_next_token(strategy, monkeypatch):
    last = run(program("next_token", monkeypatch).main, ROOT / "LICENSE", strategy=strategy)
    assert last["test"]["loss"] < 2.65


@quick(0, "strategy", STRATEGIES[:1])
def test_weighted_table(strategy, tmp_path, monkeypatch):
    assert run(program("weighted_table", monkeypatch).main, tmp_path, strategy=strategy)["test"]["loss"] < 0.025


@pytest.mark.slow
def test_without_the_weights_the_table_is_learnt_worse(tmp_path, monkeypatch):
    assert run(program("weighted_table", monkeypatch).main, tmp_path, weighted=False)["test"]["loss"] > 0.035

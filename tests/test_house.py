"""The plan of the house: the core reads in its order and knows no room, the strategies differ in a few lines, and what
the pages import is there for people, type checkers and Python alike."""

import ast
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch import environment

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pmapdp"
BIN = Path(sys.executable).parent


def reading_list() -> list[Path]:
    """The files that the package's docstring names, in its order."""
    names = re.findall(r"^    (\S+\.py) ", (PACKAGE / "__init__.py").read_text(), re.MULTILINE)
    return [PACKAGE / name for name in names]


def test_every_file_of_the_reading_list_exists_and_those_at_the_top_are_on_it():
    assert len(reading_list()) >= 15
    assert [path for path in reading_list() if not path.is_file()] == []
    elsewhere = {
        "__init__.py",
        "cli.py",
        "errors.py",
        "files.py",
        "recipes.py",
        "registry.py",
    }  # DESIGN: what serves all rooms
    assert {path.name for path in PACKAGE.glob("*.py")} <= {path.name for path in reading_list()} | elsewhere


@pytest.mark.parametrize(("other", "most"), [("shard_map", 25), ("jit", 40)])
def test_the_strategies_differ_in_a_few_lines(other, most):
    """Lines that `diff pmap.py OTHER.py` shows, of both files together."""
    texts = [(PACKAGE / "steps" / f"{name}.py").read_text().splitlines() for name in ("pmap", other)]
    changed = [line for line in difflib.unified_diff(*texts, n=0) if re.match(r"[-+](?![-+]{2} )", line)]
    assert 0 < len(changed) <= most


def test_the_heart_says_pmean():
    assert "lax.pmean(" in (PACKAGE / "steps" / "pmap.py").read_text()


def test_the_training_loop_fits_on_a_screen():
    tree = ast.parse((PACKAGE / "train.py").read_text())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "train")
    body = function.body[1:]  # without the docstring
    assert body[-1].end_lineno - body[0].lineno + 1 <= 40


def test_the_core_imports_no_room():
    run = subprocess.run([BIN / "lint-imports"], cwd=ROOT, capture_output=True, text=True, env=environment())
    assert run.returncode == 0, run.stdout + run.stderr
    assert "KEPT" in run.stdout


def test_importing_the_package_starts_nothing():
    program = (
        "import sys, signal; hooks = sys.excepthook, signal.getsignal(2);"
        "import pmapdp; assert 'jax' not in sys.modules and hooks == (sys.excepthook, signal.getsignal(2));"
        "import pmapdp.train; assert callable(pmapdp.train.train) and hooks[1] == signal.getsignal(2)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, env=environment())


def imports_of_the_pages() -> list[str]:
    """The lines of README.md and docs/ that import from the package."""
    pages = "\n".join(page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))))
    return list(dict.fromkeys(re.findall(r"^(?:from|import) pmapdp\b.*", pages, re.MULTILINE)))


# A right line, and two that a type checker must reject because it knows what `train` and `Config` are.
USES = """
accuracy: float = train(Config(strategy="jit", epochs=5)).epochs[-1]["test_accuracy"]
train(Config(epochs="5"))
train("digits")
"""


@pytest.mark.parametrize(
    "checker",
    [
        pytest.param(
            [BIN / "mypy", "--strict", "--follow-imports=silent", "--ignore-missing-imports", "--cache-dir=cache"],
            marks=pytest.mark.slow,
            id="mypy",
        ),
        pytest.param([BIN / "pyright"], id="pyright"),
    ],
)
def test_type_checkers_follow_what_the_pages_import(checker, tmp_path):
    lines = imports_of_the_pages()
    assert "from pmapdp.train import train" in lines
    file = tmp_path / "program.py"
    file.write_text("\n".join(lines) + USES)
    wrong = [number for number, line in enumerate(file.read_text().splitlines(), 1) if line.startswith("train(")]
    paths = {"MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    run = subprocess.run([*checker, file], cwd=tmp_path, capture_output=True, text=True, env=environment(paths))
    errors = re.findall(r"program\.py:(\d+)(?::\d+)?(?: -|:) error", run.stdout)
    assert sorted({int(number) for number in errors}) == wrong, run.stdout + run.stderr

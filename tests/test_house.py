"""The plan of the repository: the core reads in its order and imports nothing outside
it, the strategies differ in a few lines, importing starts nothing, and a type checker
follows what the pages import."""

import ast
import difflib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from launch import environment, python

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pmapdp"
BIN = Path(sys.executable).parent


def test_the_files_of_the_reading_list_exist():
    names = re.findall(
        r"^    (\S+\.py) ", (PACKAGE / "__init__.py").read_text(), re.MULTILINE
    )
    assert len(names) >= 15
    assert [name for name in names if not (PACKAGE / name).is_file()] == []


@pytest.mark.parametrize(("other", "most"), [("shard_map", 25), ("jit", 40)])
def test_the_strategies_differ_in_a_few_lines(other, most):
    """Lines that `diff` shows, of both files together, with a line for each
    statement.
    """
    sources = [
        (PACKAGE / "steps" / f"{name}.py").read_text() for name in ("pmap", other)
    ]
    trees = [
        ast.parse(text.partition("\ndef accumulated_sums(")[0]) for text in sources
    ]
    texts = [ast.unparse(tree).splitlines() for tree in trees]
    lines = difflib.unified_diff(*texts, n=0)
    changed = [line for line in lines if re.match(r"[-+](?![-+]{2} )", line)]
    assert 0 < len(changed) <= most
    assert "lax.pmean(" in sources[0]


def test_the_contract_forbids_the_core_all_that_is_not_on_the_reading_list():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
        "importlinter"
    ]["contracts"]
    core = next(
        each
        for each in contracts
        if each["name"] == "The core imports nothing but the core"
    )
    paths = [
        path.relative_to(ROOT).with_suffix("")
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    ]
    named = re.findall(
        r"^    (\S+)\.py ", (PACKAGE / "__init__.py").read_text(), re.MULTILINE
    )
    reading_list = {f"pmapdp.{name.replace('/', '.')}" for name in named}
    for module in (".".join(path.parts) for path in paths):
        inside, outside = (
            any(f"{module}.".startswith(f"{each}.") for each in core[modules])
            for modules in ("source_modules", "forbidden_modules")
        )
        assert inside != outside, module
        assert inside == (module in reading_list - {"pmapdp.train"}), module


def test_the_core_imports_nothing_outside_it():
    run = subprocess.run(
        [BIN / "lint-imports"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "KEPT" in run.stdout


def test_importing_the_package_starts_and_sets_nothing():
    done = python(
        "-W",
        "error",
        "-c",
        "import os, sys, signal; before = dict(os.environ), sys.excepthook, signal.getsignal(2);"
        "import pmapdp; assert 'jax' not in sys.modules; import pmapdp.train, pmapdp.steps.pmap;"
        "assert before == (dict(os.environ), sys.excepthook, signal.getsignal(2));"
        "import jax; jax.config.update('jax_num_cpu_devices', 6); print(len(jax.devices()))",
    )
    assert done.stdout == "6\n", done.stderr


# A right line, and two that a type checker must reject because it knows what `train`
# and `Config` are.
USES = """
epochs: list[dict[str, object]] = train(Config(strategy="jit", epochs=5)).epochs
train(Config(epochs="5"))
train("digits")
"""


@pytest.mark.slow
def test_a_type_checker_follows_what_the_pages_import(tmp_path):
    """Pyright, as in editors; `.ci/run` has mypy check the package itself."""
    pages = "\n".join(
        page.read_text()
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    )
    lines = list(
        dict.fromkeys(re.findall(r"^(?:from|import) pmapdp\b.*", pages, re.MULTILINE))
    )
    assert "from pmapdp.train import train" in lines
    file = tmp_path / "program.py"
    file.write_text("\n".join(lines) + USES)
    wrong = [
        number
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if line.startswith("train(")
    ]
    paths = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    command = [BIN / "pyright", file]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment(paths)
    )
    errors = re.findall(r"program\.py:(\d+)(?::\d+)?(?: -|:) error", run.stdout)
    assert sorted({int(number) for number in errors}) == wrong, run.stdout + run.stderr

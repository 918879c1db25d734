"""The structure of the repository: the core reads in its order and imports nothing
outside it, the strategies differ in a few lines, importing starts nothing, and a type
checker follows what the pages import."""

import ast
import difflib
import os
import re
import subprocess
import sys
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


def test_the_package_names_each_of_its_modules():
    text = (PACKAGE / "__init__.py").read_text()
    for path in PACKAGE.iterdir():
        if path.suffix == ".py" and not path.stem.startswith("__"):
            assert re.search(rf"\b{path.stem}\b", text), path.name
        elif (path / "__init__.py").is_file():
            assert re.search(rf"\b{path.name}\b", text), path.name


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


def modules_on_the_reading_list():
    text = (PACKAGE / "__init__.py").read_text()
    paths = re.findall(r"^    (\S+)\.py ", text, re.MULTILINE)
    return {f"pmapdp.{path.replace('/', '.')}" for path in paths}


def imports_of_the_package(source):
    """The modules of pmapdp that a source text imports, except for a type checker."""
    tree = ast.parse(source)
    checks = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    for check in checks:
        if ast.unparse(check.test) == "TYPE_CHECKING":
            check.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {module_of(name) for name in names if name.startswith("pmapdp.")}


def module_of(name):
    """The module that has a name: `pmapdp.loss.MetricSums` is in `pmapdp.loss`."""
    path = ROOT / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").is_file():
        return name
    return name.rpartition(".")[0]


def test_the_core_imports_only_what_is_on_the_reading_list():
    """The list is in `pmapdp/__init__.py`. All parts meet in job.py and train.py."""
    core = modules_on_the_reading_list() - {"pmapdp.job", "pmapdp.train"}
    packages = {name.rpartition(".")[0] for name in core}
    wrong = []
    for module in sorted(core | packages - {"pmapdp"}):
        path = ROOT / module.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        outside = imports_of_the_package(file.read_text()) - core - packages
        wrong += [f"{module} imports {name}" for name in sorted(outside)]
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "import pmapdp.registry",
        "from pmapdp import registry",
        "def f():\n    from pmapdp.registry import MODELS",
    ],
)
def test_an_import_from_outside_the_core_is_found(line):
    assert imports_of_the_package(line) == {"pmapdp.registry"}


def test_the_layers_have_no_circles():
    run = subprocess.run(
        [BIN / "lint-imports"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "KEPT" in run.stdout


IMPORTS = """
import os, signal, sys
before = dict(os.environ), sys.excepthook, signal.getsignal(2)
import pmapdp
assert "jax" not in sys.modules
import pmapdp.train, pmapdp.steps.pmap
assert before == (dict(os.environ), sys.excepthook, signal.getsignal(2))
import jax
jax.config.update("jax_num_cpu_devices", 6)
print(len(jax.devices()))
"""


def test_importing_the_package_starts_and_sets_nothing():
    done = python("-W", "error", "-c", IMPORTS)
    assert done.stdout == "6\n", done.stderr


# A right line, and two that a type checker must reject because it knows what `train`
# and `Config` are.
CALLS = """
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
    file.write_text("\n".join(lines) + CALLS)
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

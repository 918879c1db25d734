"""The plan of the house: the core is small and plain, reads in its order, and knows no room."""

import ast
import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch import environment

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "pmapdp"
TOP_LEVEL = ("__init__", "config", "devices", "loss", "metrics", "optimizer", "state", "train")
TEXTS = {"imdb", "reviews", "tfidf", "tokens", "text_mlp", "transformer"}


def lines(*paths: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def reading_list() -> list[Path]:
    """The files that the package's docstring names, in its order."""
    names = re.findall(r"^    (\S+\.py) ", (PACKAGE / "__init__.py").read_text(), re.MULTILINE)
    return [PACKAGE / name for name in names]


def test_the_core_keeps_its_budget():
    folders = [path for name in ("data", "models", "steps") for path in (PACKAGE / name).glob("*.py")]
    core = [PACKAGE / f"{name}.py" for name in TOP_LEVEL] + [path for path in folders if path.stem not in TEXTS]
    assert lines(*core) <= 1900
    assert lines(*reading_list()) <= 1600
    assert len(reading_list()) >= 15


def test_every_file_of_the_reading_list_exists():
    assert [path for path in reading_list() if not path.is_file()] == []


def test_simulated_devices_cost_at_most_500_lines():
    assert lines(*(PACKAGE / "cpu").glob("*.py")) <= 500


def test_what_pmap_imports_is_under_1000_lines():
    program = (
        "import sys, pmapdp.steps.pmap;"
        "print(*(module.__file__ for name, module in sys.modules.items() if name.split('.')[0] == 'pmapdp'), sep='\\n')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment())
    files = [Path(line) for line in run.stdout.split()]
    assert PACKAGE / "steps" / "pmap.py" in files
    assert lines(*files) < 1000


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
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False, env=environment())
    assert run.returncode == 0, run.stdout + run.stderr
    assert "KEPT" in run.stdout


def test_importing_the_package_starts_nothing():
    program = (
        "import sys, signal; hooks = sys.excepthook, signal.getsignal(2);"
        "import pmapdp; assert 'jax' not in sys.modules and hooks == (sys.excepthook, signal.getsignal(2));"
        "import pmapdp.train; assert callable(pmapdp.train.train)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, env=environment())

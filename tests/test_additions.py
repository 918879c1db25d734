"""To add something, the steps in CONTRIBUTING.md are enough.

Each test adds one flag, model, data set, optimizer or strategy to a copy of the package
and runs the commands with it.
"""

import json
import shutil
from pathlib import Path

import pytest
from launch import python

PACKAGE = Path(__file__).parents[1] / "pmapdp"

SHORT = ("--model", "mlp", "--devices", "2", "--steps")

SHADES = '''"""Twelve grey images of two classes."""

import numpy as np

from pmapdp.data.dataset import DataSet, Split


def load() -> DataSet:
    """Make dark and bright images."""
    labels = np.arange(12, dtype=np.int32) % 2
    images = np.zeros((12, 28, 28, 1), np.uint8) + 200 * labels[:, None, None, None]
    split = Split(images.astype(np.uint8), labels)
    return DataSet(split, split)
'''


@pytest.fixture
def package(tmp_path):
    """A copy of the package, which a test may change."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(PACKAGE, tmp_path / "pmapdp", ignore=ignored))


def replace(path, old, new):
    """Replace a text that is in a file once."""
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def run(package, *arguments):
    """Run a module of the copied package, which must succeed."""
    done = python("-m", *arguments, env={"PYTHONPATH": str(package.parent)})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_a_strategy_takes_its_file_an_import_a_line_and_its_name(package, tmp_path):
    """It's pmap under another name, so it trains to the bits of pmap."""
    steps = package / "steps"
    shutil.copy(steps / "pmap.py", steps / "another.py")
    strategies = steps / "__init__.py"
    replace(strategies, "import jit, pmap,", "import another, jit, pmap,")
    line = '"pmap": pmap.make_strategy,'
    replace(strategies, line, f'"another": another.make_strategy, {line}')
    names = '"pmap", "shard_map", "jit", "single"]'
    replace(package / "config.py", names, f'"another", {names}')

    results = []
    for strategy in ("another", "pmap"):
        workdir = tmp_path / strategy
        train = ("pmapdp.train", "--strategy", strategy, "--workdir", workdir)
        run(package, *train, *SHORT, "3")
        shown = run(package, "pmapdp.evaluate", workdir, "--json")
        results.append(json.loads(shown))
    another, pmap = results
    assert another.pop("strategy") == "another"
    assert pmap.pop("strategy") == "pmap"
    assert another == pmap

    file, page = tmp_path / "compare.json", tmp_path / "page.html"
    run(package, "pmapdp.compare", "--json", file, "--html", page, *SHORT, "20")
    names = [row["name"] for row in json.loads(file.read_text())["runs"]]
    assert any(name.startswith("another") for name in names), names
    shown = page.read_text(encoding="utf-8")
    assert 'aria-label="The code of another"' in shown
    assert "The run above took" in shown.partition("The strategy another")[2]


def test_a_data_set_takes_its_file_an_import_and_a_line(package, tmp_path):
    (package / "data" / "shades.py").write_text(SHADES)
    registry = package / "registry.py"
    replace(registry, "import digits,", "import shades, digits,")
    line = '"reviews": lambda folder: reviews.load(),'
    replace(registry, line, f'"shades": lambda folder: shades.load(), {line}')

    metrics = tmp_path / "metrics.jsonl"
    flags = ("--dataset", "shades", "--model", "mlp", "--devices", "2", "--epochs", "2")
    shown = run(package, "pmapdp.train", *flags, "--metrics-file", metrics)
    assert "shades" in shown
    assert metrics.read_text()


DOT = '''"""A model of one layer."""

from flax import nnx


class Dot(nnx.Module):
    """Images to logits."""

    def __init__(self, *, rngs):
        self.logits = nnx.Linear(784, 10, rngs=rngs)

    def __call__(self, images):
        """Return the logits."""
        return self.logits(images.reshape(images.shape[0], 784) / 255)
'''


def test_a_model_takes_its_file_an_import_and_a_line(package):
    (package / "models" / "dot.py").write_text(DOT)
    registry = package / "registry.py"
    line = "from pmapdp.models.mlp import"
    replace(registry, line, f"from pmapdp.models import dot\n{line}")
    replace(registry, '"mlp": MLP,', '"mlp": MLP, "dot": dot.Dot,')

    flags = ("--model", "dot", "--strategy", "jit", "--devices", "2", "--steps", "3")
    assert "dot, 7,850 parameters" in run(package, "pmapdp.train", *flags)


def test_an_optimizer_takes_a_line(package):
    line = '"adam": lambda schedule, config: optax.adam(schedule),'
    lion = '"lion": lambda schedule, config: optax.lion(schedule),'
    replace(package / "optimizer.py", line, f"{line} {lion}")

    shown = run(package, "pmapdp.train", "--optimizer", "lion", *SHORT, "3")
    assert "lion, cosine" in shown


@pytest.mark.slow
def test_a_flag_takes_a_setting(package, tmp_path):
    """A run that began without it goes on with it."""
    workdir = tmp_path / "run"
    run(package, "pmapdp.train", "--workdir", workdir, *SHORT, "2")
    config = package / "config.py"
    line = "    draw_sharding: bool = setting("
    new = '    greeting: str = setting("output", "hello", "What to say first.")'
    replace(config, line, f"{new}\n{line}")

    assert "What to say first. (default: hello)" in run(
        package, "pmapdp.train", "--help"
    )
    greeting = ("--greeting", "good day")
    shown = run(package, "pmapdp.train", "--workdir", workdir, *greeting, *SHORT, "3")
    assert "restored from the checkpoint of step 2" in shown
    settings = json.loads((workdir / "config.json").read_text())
    assert "good day" in str(settings)

"""docs/api.md is made from today's docstrings, and its examples run.

The docstrings list what a caller needs.
"""

import dataclasses
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from launch import python
from PIL import Image

from pmapdp.compare.strategies import compare_strategies
from pmapdp.config import Config, flag

DOCS = Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("api", DOCS / "api.py")
api = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(api)


def test_the_page_is_in_step_with_the_docstrings():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert page == api.page(), "run: python docs/api.py > docs/api.md"


@pytest.mark.parametrize("path", api.public_names())
def test_a_docstring_lists_every_public_parameter(path):
    public = pkgutil.resolve_name(path)
    if inspect.isclass(public) and issubclass(public, Exception | KeyboardInterrupt):
        return  # nobody raises these
    described = set(re.findall(r"^    (\w+): ", inspect.getdoc(public), re.MULTILINE))
    parameters = set(inspect.signature(public).parameters)
    assert parameters <= described
    returned = inspect.signature(public).return_annotation
    if not inspect.isclass(public) and returned not in (None, "None"):
        lines = inspect.getdoc(public).splitlines()
        assert "Returns:" in lines or re.match("(Return|Read|Make) ", lines[0])


def test_the_page_has_fifteen_entries_with_short_examples():
    entries = [path for paths in api.SECTIONS.values() for path in paths]
    assert len(entries) == 15
    for path in entries:
        example = api.example_of(pkgutil.resolve_name(path))
        assert 1 <= len(re.findall(r"^.*\S", example, re.MULTILINE)) <= 6, path


@pytest.mark.slow
def test_the_examples_run(folder):
    """Each comes after the import of its name, and has the names of those before it."""
    picture = Image.new("RGB", (80, 64))
    for name in ("cats", "dogs"):
        (folder / "photos" / name).mkdir(parents=True)
        picture.save(folder / "photos" / name / "1.png")
    program = f"import os\nos.chdir({str(folder)!r})\n{api.SETUP}"
    examples = 0
    for path in api.public_names():
        module, _, name = path.rpartition(".")
        program += f"from {module} import {name}\n"
        example = api.example_of(pkgutil.resolve_name(path))
        if example and name != "compare_strategies":
            examples += 1
            program += f"{example}\n"
        if name == "MetricSums":  # its example makes a loss
            program += "train(Config(epochs=1), model=Net, data=data, loss=loss)\n"
        if name == "current_context":  # and its example a layer
            program += (
                "def noisy(rngs): return nnx.Sequential(Noise(), Net(rngs=rngs))\n"
            )
            program += "train(Config(epochs=1), model=noisy, data=data)\n"
    assert examples >= 17
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_the_example_of_compare_runs(folder):
    """It's a program of its own, because it starts processes."""
    imports = "from pmapdp.config import Config\n"
    imports += "from pmapdp.compare.strategies import compare_strategies\n"
    program = folder / "program.py"
    program.write_text(imports + api.example_of(compare_strategies))
    done = python(str(program))
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["single", "pmap", "jit"]


def test_every_field_of_config_is_on_the_page_of_flags():
    """Because this page names none."""
    flags = (DOCS / "flags.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(Config):
        name = flag(field.name)
        if field.name == "recipe":  # it has a table there
            continue
        assert re.search(rf"^\| `{name}[ `]", flags, re.MULTILINE), field.name


# These classes are what a function of the page returns, so nobody writes their names.
RETURNED = {"Context", "Prediction", "Report", "TrainState"}


def test_the_linked_pages_show_their_names():
    for path, page in api.MORE_NAMES.items():
        name = path.rpartition(".")[2]
        if page is not None and name not in RETURNED:
            text = (DOCS / page).read_text(encoding="utf-8")
            assert re.search(rf"\b{name}\b", text), path

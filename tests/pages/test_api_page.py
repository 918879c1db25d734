"""docs/api.md is made from today's docstrings, and its examples run.

The docstrings list what a caller needs.
"""

import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from launch import python

DOCS = Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("api", DOCS / "api.py")
api = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(api)

# Their parts are described in words.
WITHOUT_A_LIST = {
    "pmapdp.verify.one_device",
    "pmapdp.verify.old_program",
    "pmapdp.verify.Layout",
    "pmapdp.verify.Report",
}


def test_the_page_is_in_step_with_the_docstrings():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert page == api.page(), "run: python docs/api.py > docs/api.md"


@pytest.mark.parametrize("path", api.public_names())
def test_a_docstring_lists_every_public_parameter(path):
    public = pkgutil.resolve_name(path)
    if api.is_error(public):
        return
    described = set(re.findall(r"^    (\w+): ", inspect.getdoc(public), re.MULTILINE))
    parameters = set(inspect.signature(public).parameters)
    assert path in WITHOUT_A_LIST or parameters <= described


def test_the_examples_run(folder):
    """The last one is a program of its own; the others follow one another."""
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    *examples, last = re.findall(
        r"For example:\n\n```python\n(.*?)```", page, re.DOTALL
    )
    assert len(examples) == 4
    for program in ("".join(examples), last):
        there = f"import os\nos.chdir({str(folder)!r})\n"
        done = python("-c", there + program)
        assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["single", "pmap", "jit"]

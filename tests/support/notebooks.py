"""A lesson's source and its built notebook.

The libraries are imported where they are used: they take a second, and every process of pytest imports all test files.
"""

from pathlib import Path
from typing import Any


def source(lesson: Path) -> Any:
    """The notebook that `lessons/NN_name.py` makes, without outputs."""
    import build

    return build.read(lesson)


def built(lesson: Path) -> Any:
    """The notebook with outputs beside it, which is a valid one."""
    import nbformat

    notebook = nbformat.read(lesson.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(notebook)
    return notebook

"""A lesson's source and its built notebook.

The libraries are imported where they are used: they take a second, and every process of
pytest imports all test files.
"""

import ast
import functools
import re
from pathlib import Path
from typing import Any

import numpy as np


@functools.cache
def source(lesson: Path) -> Any:
    """The notebook that `lessons/NN_name.py` makes, without outputs."""
    import build

    return build.read(lesson)


@functools.cache
def built(lesson: Path) -> Any:
    """The notebook with outputs beside it, which is a valid one."""
    import nbformat

    notebook = nbformat.read(lesson.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(notebook)
    return notebook


def imports(text: str) -> set[str]:
    """Return the packages that a script imports."""
    nodes = list(ast.walk(ast.parse(text)))
    names = [
        alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def printed(cell: Any) -> str:
    """Return the printed text of a cell."""
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


def figures(text: str) -> np.ndarray:
    """Training and test loss and accuracy by epoch `[epochs, 4]`, as the lessons'
    scripts print them.
    """
    lines = [
        re.findall(r"(?:loss|accuracy) ([\d.]+)", line) for line in text.splitlines()
    ]
    return np.array([line for line in lines if line], float)

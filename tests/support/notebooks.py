"""A lesson's source and its built notebook.

The libraries are imported where they are used: they take a second, and every process of pytest imports all test files.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np


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


def printed(cell: Any) -> str:
    """Return the printed text of a cell."""
    return "".join(output.get("text", "") for output in cell.outputs)


def figures(text: str) -> np.ndarray:
    """Training and test loss and accuracy by epoch `[epochs, 4]`, as the lessons' scripts print them."""
    lines = [re.findall(r"(?:loss|accuracy) ([\d.]+)", line) for line in text.splitlines()]
    return np.array([line for line in lines if line], float)

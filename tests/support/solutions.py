"""The solutions of the lessons' exercises, whose files cannot be imported because their
names begin with a digit.
"""

import runpy
from collections.abc import Callable
from typing import Any

import build


def solutions(lesson: str) -> dict[str, Callable[..., Any]]:
    """The functions of `lessons/solutions/LESSON.py` by name, without what it
    imports.
    """
    names = runpy.run_path(
        str(build.FOLDER / "solutions" / f"{lesson}.py"), run_name="solutions"
    )
    return {
        name: value
        for name, value in names.items()
        if getattr(value, "__module__", None) == "solutions"
    }

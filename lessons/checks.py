"""Checks of the exercises: `check("04_map_over_devices", "dot_product", answer)` says whether an answer is right.

A check never stops the notebook. It tries the answer on random inputs and prints what it found; an exercise that is not
begun is reported as such. The checks of a lesson are the functions of `lesson_checks/<lesson>.py`.
"""

import importlib.util
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent


class Verdict(NamedTuple):
    """What a check found: `solved`, and the sentence that was printed."""

    solved: bool
    message: str


class NotYetError(Exception):
    """Raised by a check's function: the rule that an answer breaks, and a hint at what to look at."""


def load(folder: str, lesson: str) -> ModuleType:
    """The module `<folder>/<lesson>.py`; its name begins with a digit, so `import` cannot."""
    path = FOLDER / folder / f"{lesson}.py"
    spec = importlib.util.spec_from_file_location(f"{folder}_{lesson}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require(works: bool, message: str) -> None:
    """In a check: reject the answer with `message` unless `works`."""
    if not works:
        raise NotYetError(message)


def check(lesson: str, exercise: str, answer: Callable[..., Any]) -> Verdict:
    """Try `answer` with the check `exercise` of `lesson`; print and return the verdict.

    An answer whose body is still `...` returns None, which counts as not begun.
    """
    called = False
    began = False

    def watched(*arguments: Any, **options: Any) -> Any:
        nonlocal called, began
        result = answer(*arguments, **options)
        called, began = True, began or result is not None
        if result is None:
            raise NotYetError("your function returned nothing (None): end it with a return statement")
        return result

    try:
        getattr(load("lesson_checks", lesson), exercise)(watched)
        verdict = Verdict(True, f"{exercise}: right")
    except NotYetError as reason:
        if called and not began:
            message = "not solved yet; replace the `...` by your code and run the cell again"
            verdict = Verdict(False, f"{exercise}: {message}")
        else:
            verdict = Verdict(False, f"{exercise}: not yet: {reason}")
    except Exception as error:  # an answer may fail in any way; the notebook goes on
        where = traceback.extract_tb(error.__traceback__)[-1]
        first = str(error).strip().split("\n")[0]
        verdict = Verdict(False, f"{exercise}: your code raised {type(error).__name__} in line {where.lineno}: {first}")
    print(verdict.message)
    return verdict

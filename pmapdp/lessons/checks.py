"""Checks of the exercises: `check("04_map_over_devices", "dot_product", answer)` says whether an answer is right.

A check never stops the notebook. It tries the answer on random inputs and prints what
it found; an exercise that is not begun is reported as such. The checks of a lesson are
the functions of `lesson_checks/lesson_NN.py`.
"""

import importlib
import inspect
import linecache
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np


class Verdict(NamedTuple):
    """The result of a check: `solved`, and the sentence that was printed."""

    solved: bool
    message: str


class NotYetError(Exception):
    """Raised by a check's function: the rule that an answer breaks, and a hint at what to look at."""


def require(works: Any, message: str) -> None:
    """In a check: reject the answer with `message` unless `works`."""
    if not works:
        raise NotYetError(message)


def close(found: Any, expected: Any, *, rtol: float = 1e-3, atol: float = 1e-4) -> bool:
    """Return True if two arrays, or two pytrees of arrays, are equal up to float32's rounding."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return all(np.allclose(a, b, rtol=rtol, atol=atol) for a, b in pairs)


def refuse(found: Any, wrong: dict[str, Any], *, atol: float = 1e-4) -> None:
    """In a check: reject an answer that equals a known wrong one. `wrong` has the wrong values by their messages."""
    for message, value in wrong.items():
        require(not close(found, value, atol=atol), message)


def mesh_of(N: int = 4, axis: str = "data") -> jax.sharding.Mesh:
    """Return a mesh of the first N devices."""
    return jax.sharding.Mesh(np.array(jax.devices()[:N]), (axis,))


def on_devices(
    answer: Callable[..., Any],
    *arrays: Any,
    shape: tuple[int, ...],
    N: int = 4,
    in_axes: Any = 0,
) -> Any:
    """In a check: the results of N devices under pmap, `[N, *shape]`. Reject the answer if the shape is another."""
    found = np.asarray(
        jax.pmap(answer, axis_name="data", in_axes=in_axes, devices=jax.devices()[:N])(
            *arrays
        )
    )
    message = f"every device must return an array of shape {list(shape)}, yours has the shape {list(found.shape[1:])}"
    require(found.shape == (N, *shape), message)
    return found


def check(lesson: str, exercise: str, answer: Callable[..., Any]) -> Verdict:
    """Try `answer` with the check `exercise` of `lesson`; print and return the verdict."""
    returned: list[Any] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        result = answer(*arguments, **options)
        returned.append(result)
        if result is None:
            raise NotYetError(
                "your function returned nothing (None): end it with a return statement"
            )
        return result

    try:
        getattr(
            importlib.import_module(
                f"pmapdp.lessons.lesson_checks.lesson_{lesson[:2]}"
            ),
            exercise,
        )(watched)
        verdict = Verdict(True, f"{exercise}: right")
    except NotYetError as reason:
        if returned and returned[-1] is None and is_stub(answer):
            message = (
                "not solved yet; replace the `...` by your code and run the cell again"
            )
            verdict = Verdict(False, f"{exercise}: {message}")
        else:
            verdict = Verdict(False, f"{exercise}: not yet: {reason}")
    except Exception as error:  # an answer may fail in any way; the notebook goes on
        verdict = Verdict(False, f"{exercise}: {explain(error, answer, returned)}")
    print(verdict.message)
    return verdict


def is_stub(answer: Callable[..., Any]) -> bool:
    """Return True if the body of a function is still `...`, as in the notebook."""
    code = getattr(answer, "__code__", None)
    return code is not None and len(code.co_code) <= len(
        (lambda: None).__code__.co_code
    )


def explain(error: Exception, answer: Callable[..., Any], returned: list[Any]) -> str:
    """Say where an error happened: in a line of the reader's code, after the answer returned, or in the check itself."""
    first = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
    if line := own_line(error, answer):
        return f"your code raised {first}\n    in {line}"
    if returned:
        kind = type(returned[-1]).__name__
        return f"the check could not go on with what your function returned, a value of type {kind}: {first}"
    return f"the check itself failed, which is no mistake of yours: {first}"


def own_line(error: Exception, answer: Callable[..., Any]) -> str | None:
    """Return the traceback's deepest line in the reader's code: the file of `answer`, or another cell of the notebook."""
    code = getattr(inspect.unwrap(answer), "__code__", None)
    if code is None:
        return None
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        same_notebook = (
            "ipykernel" in file and Path(file).parent == Path(code.co_filename).parent
        )
        if same_notebook or file == code.co_filename:
            return f"line {number}: {linecache.getline(file, number).strip()}"
    return None

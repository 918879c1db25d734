"""Checks of the exercises.

`check("04_map_over_devices", "fixed_accuracy", answer)` says if an answer is right.

A check never stops the notebook. It tries the answer on fixed inputs and prints what
it found; an exercise that is not begun is reported as such. The checks of a lesson are
the functions of `lesson_checks/lesson_NN.py`. A check returns None, or a remark on an
answer that it accepts.
"""

import functools
import importlib
import inspect
import linecache
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np


class Verdict(NamedTuple):
    """The result of a check: `solved`, and the sentence that was printed."""

    solved: bool
    message: str


class NotYetError(Exception):
    """Raised by a check: the rule that an answer breaks, and what to look at."""


def require(works: Any, message: str) -> None:
    """In a check: reject the answer with `message` unless `works`."""
    if not works:
        raise NotYetError(message)


def close(found: Any, expected: Any, *, rtol: float = 1e-3, atol: float = 1e-4) -> bool:
    """Return True if two arrays, or two pytrees of arrays, are equal up to float32's rounding."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return all(np.allclose(a, b, rtol=rtol, atol=atol) for a, b in pairs)


def refuse(found: Any, wrong: dict[str, Any], *, atol: float = 1e-4) -> None:
    """In a check: reject an answer that equals a known wrong one.

    Args:
        wrong: {message: wrong value}.
    """
    for message, value in wrong.items():
        require(not close(found, value, atol=atol), message)


def mesh_of(N: int = 4, axis: str = "data") -> jax.sharding.Mesh:
    """Return a mesh of the first N devices."""
    return jax.sharding.Mesh(np.array(jax.devices()[:N]), (axis,))


def call_and_watch(answer: Callable[..., Any], *arguments: Any) -> tuple[Any, list]:
    """In a check: call the answer, and note what it places on devices.

    Returns:
        The answer's result, and all arrays that it gave to `jax.device_put`,
        `jnp.asarray`, `jnp.array`, `to_device` or a function that `jax.pmap` returned.
        Something that was computed before it was placed shows among them.
    """
    placed: list[Any] = []
    pmap = jax.pmap

    def watch(function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*values: Any, **named: Any) -> Any:
            for leaf in jax.tree.leaves((values, named)):
                is_array = isinstance(leaf, jax.Array | np.ndarray)
                if is_array and not isinstance(leaf, jax.core.Tracer):
                    placed.append(leaf)
            return function(*values, **named)

        return watched

    def watched_pmap(*values: Any, **named: Any) -> Any:
        return watch(pmap(*values, **named))

    array_type = type(jnp.zeros(1))
    with (
        mock.patch.object(jax, "pmap", watched_pmap),
        mock.patch.object(jax, "device_put", watch(jax.device_put)),
        mock.patch.object(jnp, "asarray", watch(jnp.asarray)),
        mock.patch.object(jnp, "array", watch(jnp.array)),
        mock.patch.object(array_type, "to_device", watch(array_type.to_device)),
    ):
        return answer(*arguments), placed


def on_devices(
    answer: Callable[..., Any],
    *arrays: Any,
    shape: tuple[int, ...],
    N: int = 4,
    in_axes: Any = 0,
) -> Any:
    """In a check: run the answer on N devices under pmap, with the axis "data".

    Reject the answer if a device's result has another shape.

    Returns:
        The devices' results, `[N, *shape]`.
    """
    devices = jax.devices()[:N]
    mapped = jax.pmap(answer, axis_name="data", in_axes=in_axes, devices=devices)
    jax.make_jaxpr(mapped)(*arrays)  # raises the errors of the learner's own lines
    try:
        result = np.asarray(mapped(*arrays))
    except (IndexError, ValueError) as error:
        # JAX looks at these pairs only when the learner's function has returned. For a
        # number without a device it raises an IndexError.
        require(
            "ppermute" not in str(error) and not isinstance(error, IndexError),
            f"the pairs that you gave to lax.ppermute don't fit the {N} devices on "
            "which this check runs: each may send once and receive once, and their "
            f"numbers go from 0 to {N - 1} ({error})",
        )
        raise
    require(
        result.shape == (N, *shape),
        f"every device must return an array of shape {list(shape)}, "
        f"yours has the shape {list(result.shape[1:])}",
    )
    return result


def check(lesson: str, exercise: str, answer: Callable[..., Any]) -> Verdict:
    """Try `answer` with the check `exercise` of `lesson`; print and return the verdict."""
    returned: list[Any] = []

    @functools.wraps(answer)
    def watched(*arguments: Any, **options: Any) -> Any:
        result = answer(*arguments, **options)
        returned.append(result)
        if result is None:
            raise NotYetError(
                "your function returned nothing (None): end it with a return statement"
            )
        return result

    try:
        module = f"pmapdp.lessons.lesson_checks.lesson_{lesson[:2]}"
        check_of_exercise = getattr(importlib.import_module(module), exercise)
        remark = check_of_exercise(watched)
        right = f"{exercise}: right"
        verdict = Verdict(True, f"{right}, but {remark}" if remark else right)
    except NotYetError as reason:
        message = f"not yet: {reason}"
        if returned and returned[-1] is None and is_stub(answer):
            message = (
                "not solved yet; replace the `...` by your code and run the cell again"
            )
        verdict = Verdict(False, f"{exercise}: {message}")
    except Exception as error:  # an answer may fail in any way; the notebook goes on
        verdict = Verdict(False, f"{exercise}: {explain(error, answer, returned)}")
    print(verdict.message)
    return verdict


def is_stub(answer: Callable[..., Any]) -> bool:
    """Return True if the body of a function is still `...`, as in the notebook."""
    code = getattr(answer, "__code__", None)
    if code is None:
        return False
    empty = (lambda: None).__code__.co_code
    return len(code.co_code) <= len(empty)


def explain(error: Exception, answer: Callable[..., Any], returned: list[Any]) -> str:
    """Say where an error happened.

    That is a line of the reader's code, a place after the answer returned, or the
    check itself.
    """
    lines = str(error).splitlines()
    lines = [line.strip() for line in lines if line.strip()] or ["no message"]
    message = lines[0]
    if message.endswith(":") and len(lines) > 1:  # the next line says what differs
        message = f"{message} {lines[1]}"
    first = f"{type(error).__name__}: {message}"
    line = own_line(error, answer)
    if line is not None:
        return f"your code raised {first}\n    in {line}"
    if returned:
        kind = type(returned[-1]).__name__
        return (
            "the check could not go on with what your function returned, "
            f"a value of type {kind}: {first}"
        )
    return f"the check itself failed, which is no mistake of yours: {first}"


def own_line(error: Exception, answer: Callable[..., Any]) -> str | None:
    """Return the deepest line of a traceback that is the reader's.

    It's in the file of `answer`, or in another cell of the notebook.
    """
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

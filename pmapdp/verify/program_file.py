"""Verify the program that a function in your file describes: `my_step.py:verification`."""

import inspect
import os
from collections.abc import Sequence
from typing import Any

import jax

from pmapdp.errors import FailedError, UserError
from pmapdp.files import load_from_file
from pmapdp.verify.report import Report
from pmapdp.verify.trial import blame
from pmapdp.verify.verification import verify


def full_path(target: str) -> str:
    """Give FILE.py:FUNCTION the file's whole path, because the program may change the current folder."""
    path, _, name = target.rpartition(":")
    return f"{os.path.realpath(path)}:{name}" if path else target


def verify_program(target: str, given: str, devices: Sequence[jax.Device]) -> tuple[dict[str, Any], Report]:
    """Verify the program of a file: return the arguments of `verify` with their defaults, and the report.

    `target` is FILE.py:FUNCTION with the file's whole path, and `given` is how the user wrote it.

    Raises:
        FailedError: the program raises an error.
        UserError: there is no such function, or it doesn't return the arguments of `verify`.
    """
    function = load_from_file(target, given)
    try:
        found = function()
        try:
            call = inspect.signature(verify).bind(**{"devices": devices, **found})
        except TypeError as error:
            raise UserError(
                f"{given} does not return the arguments of verify ({error}): return them in a dictionary, "
                "for example dict(reference=..., step=..., state=..., batch=...)"
            ) from None
        report = verify(**call.arguments)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise FailedError(f"{given} fails, {blame(error)}") from error
    call.apply_defaults()
    return call.arguments, report

"""What a user names in a Python file of their own: `my_file.py:Net`."""

import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pmapdp.errors import UserError, reason


class OwnFile(importlib.machinery.SourceFileLoader):
    """Runs a file of the user's, and marks its code by being its loader."""


def own_fault(error: BaseException) -> str | None:
    """The sentence about an error that arose in a file of the user's, or below it; None about any other."""
    frames = [each for each in traceback.walk_tb(error.__traceback__)]
    own = [each for each in frames if isinstance(each[0].f_globals.get("__loader__"), OwnFile)]
    if not own:
        return None
    frame, line = own[-1]
    why = "it ends Python" if isinstance(error, SystemExit) else f"{type(error).__name__}: {reason(error)}"
    return f"{frame.f_code.co_filename} fails at line {line} ({why}): fix that line"


def from_python_file(name: str, given: str) -> Callable[..., Any]:
    """The function or class that `FILE.py:NAME` names. The file is run, with its folder on the path of imports.

    Args:
        name: FILE.py:NAME.
        given: how it was given, for the sentence, for example `--model my_file.py:Net`.

    Raises:
        UserError: there is no such file or name in it, or the file is no Python; what its code raises comes as it is.
    """
    path, _, attribute = name.rpartition(":")
    if not path:
        raise UserError(f"{given or repr('')} does not say what to take from which file: try my_file.py:verification")
    if not path.endswith(".py") or not os.path.isfile(path):
        raise UserError(
            f"{given}: there is no file {path} of Python: name one, for example my_file.py:{attribute or 'Net'}"
        )
    loader = OwnFile(Path(path).stem, path)
    try:
        loader.get_code(loader.name)
    except Exception as error:  # of Python's parser, or because the file cannot be read
        line = getattr(error, "lineno", 1) or 1
        raise UserError(f"{given}: {path} cannot be read at line {line} ({reason(error)}): fix that line") from error
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(loader.name, module)  # dataclasses of the file look for their module here
    sys.path.insert(0, str(Path(path).resolve().parent))  # as `python FILE.py` does
    loader.exec_module(module)
    if not callable(found := getattr(module, attribute, None)):
        own = sorted(each for each, value in vars(module).items() if getattr(value, "__module__", "") == spec.name)
        raise UserError(f"{given}: {path} has no {attribute!r}: use one of {', '.join(own) or 'its names'}")
    return found

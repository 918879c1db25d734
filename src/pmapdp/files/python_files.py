"""What a user names in a Python file of their own: `my_file.py:Net`."""

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pmapdp.errors import UserError, reason


def from_python_file(name: str, given: str) -> Callable[..., Any]:
    """The function or class that `FILE.py:NAME` names. The file is run, with its folder on the path of imports.

    Args:
        name: FILE.py:NAME.
        given: how it was given, for the sentence, for example `--model my_file.py:Net`.

    Raises:
        UserError: there is no such file or name in it, or the file cannot be run.
    """
    path, _, attribute = name.rpartition(":")
    if not path:
        raise UserError(f"{given or repr('')} names no file and what to take from it: try my_file.py:verification")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise UserError(
            f"{given}: there is no file {path} of Python: name one, for example my_file.py:{attribute or 'Net'}"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)  # dataclasses of the file look for their module here
    sys.path.insert(0, str(Path(path).resolve().parent))  # as `python FILE.py` does
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == spec.origin]
        line = frames[-1].lineno if frames else getattr(error, "lineno", 1) or 1  # a SyntaxError may have its own
        why = "it ends Python" if isinstance(error, SystemExit) else reason(error)
        raise UserError(f"{given}: {path} fails at line {line} ({why}): fix that line") from error
    if not callable(found := getattr(module, attribute, None)):
        own = sorted(each for each, value in vars(module).items() if getattr(value, "__module__", "") == spec.name)
        raise UserError(f"{given}: {path} has no {attribute!r}: use one of {', '.join(own) or 'its names'}")
    return found

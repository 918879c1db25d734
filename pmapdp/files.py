"""Read and write regular files that you name. A file is written whole or not at all, and an error is one sentence."""

import contextlib
import importlib.util
import os
import re
import stat
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from pmapdp.errors import UserError, reason

READ_ADVICE = "name another file"
WRITE_ADVICE = "name a file in a folder that exists, is yours and has free space"

# First bytes of the files that we write. We append to LINES and replace the others. JSON is no config.json.
JSON, LINES, HTML, MODEL = rb'{(?!\s*"(format|event)")', rb'{"event": ', rb"<!doctype html>", rb"PK\x03\x04.{26}arrays/"


@contextlib.contextmanager
def file_errors(path: str | Path, action: str, advice: str) -> Iterator[None]:
    """Turn an error with a file into a `UserError`: it cannot be `action` ("read", "written"), and why."""
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also a name with a zero byte
        why = error.strerror if isinstance(error, OSError) and error.strerror else reason(error)
        raise UserError(f"{str(path) or repr('')} cannot be {action} ({why}): {advice}") from None


def open_regular(path: str | Path, flags: int) -> int:
    """Open a regular file and return its descriptor; anything else is a ValueError."""
    # Without O_NONBLOCK, opening a named pipe waits for somebody at its other end.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is a folder, a named pipe or a device")
    return descriptor


@contextlib.contextmanager
def open_file(path: str | Path, *, advice: str = READ_ADVICE) -> Iterator[BinaryIO]:
    """Open a regular file to read bytes. A `UserError` says that it, or its content, can't be read, and why."""
    with file_errors(path, "read", advice), open(open_regular(path, os.O_RDONLY), "rb") as file:
        yield file


def read_file(path: str | Path, *, advice: str = READ_ADVICE) -> bytes:
    """Read a regular file."""
    with open_file(path, advice=advice) as file:
        return file.read()


@contextlib.contextmanager
def open_arrays(path: str | Path, *, advice: str) -> Iterator[np.lib.npyio.NpzFile]:
    """Open a file of `numpy.savez`. Python objects in it, which are code, are not read."""
    with open_file(path, advice=advice) as opened:
        try:
            # NumPy warns of headers that Python 2 wrote.
            with warnings.catch_warnings(action="ignore"), np.lib.npyio.NpzFile(opened) as file:
                yield file
        except Exception as error:  # NumPy and zipfile have several errors for damaged bytes
            raise ValueError(reason(error)) from None


def write_file(path: str | Path, content: bytes | str, *, advice: str = WRITE_ADVICE) -> None:
    """Write a file whole and to the disk, or leave the one that is there as it is and raise a `UserError`."""
    with file_errors(path, "written", advice):
        target = find_writable(path)
        temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with open(temporary, "xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def find_writable(path: str | Path) -> Path:
    """Follow links to the file, and try to open it and to make another one in its folder."""
    target = Path(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):
        os.close(open_regular(target, os.O_RDWR))
    tempfile.TemporaryFile(dir=target.parent).close()
    return target


def check_output(name: str, path: str | None, kind: bytes) -> Path | None:
    """Return the full path of a file that a command will write, or None if it wasn't asked for.

    Call it before long work, and before the user's code, which may change the current folder. A `UserError` says that
    the file doesn't begin like our files of this `kind`, or can't be written.
    """
    if path is None:
        return None
    with file_errors(f"{name} {path or repr('')}", "written", WRITE_ADVICE):
        target = find_writable(path)
    if target.exists() and (start := read_file(target)[:100]) and not re.match(kind, start, re.IGNORECASE | re.DOTALL):
        raise UserError(f"{name} {path} is a file of another kind, which would be lost: name another file")
    return target


def from_first_user_frame(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from the first frame in a file of yours, or None if there is none."""
    frames = error.__traceback__
    while frames and "IS_YOURS" not in frames.tb_frame.f_globals:
        frames = frames.tb_next
    return frames


def load_from_file(name: str, given: str) -> Callable[..., Any]:
    """Run a Python file, and return the function or class in it that `name`, FILE.py:NAME, stands for.

    `given` is the same as in the command, for example `--model my_file.py:Net`. A `UserError` says that there is no
    such file or name in it, or that it's no Python. The file's own errors come as they are.
    """
    path, _, attribute = name.rpartition(":")
    if not path.endswith(".py") or not os.path.isfile(path):
        example = f"my_file.py:{attribute or 'Net'}"
        raise UserError(f"{given or repr('')}: there is no file {path} of Python: name one, for example {example}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["IS_YOURS"] = True  # for the frames of a traceback
    sys.modules.setdefault(spec.name, module)  # dataclasses of the file look for their module here
    sys.path.insert(0, str(Path(path).resolve().parent))  # as `python FILE.py` does
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"{error.filename} cannot be read at line {error.lineno} ({error.msg})"
        raise UserError(f"{given}: {where}: fix that line") from error
    if not callable(found := getattr(module, attribute, None)):
        names = sorted(each for each, value in vars(module).items() if getattr(value, "__module__", "") == spec.name)
        raise UserError(f"{given}: {path} has no {attribute!r}: use one of {', '.join(names) or 'its names'}")
    return found

"""Read files that come from outside: regular files only, as a pipe without a writer would hang."""

import contextlib
import json
import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pmapdp.errors import UserError, reason, shown

LARGEST = 2**31  # bytes
READ_ADVICE = "name another file"


def require_path(path: Any) -> None:
    """Refuse what is neither a text nor a `pathlib.Path`."""
    try:
        fits = all(isinstance(each, str) for each in (os.fspath(path), str(path), repr(path)))  # sentences show it
    except Exception:  # of a class of the user's own
        fits = False
    if not fits:
        raise UserError(f"{shown(path)} is no path: give a text or a pathlib.Path")


@contextlib.contextmanager
def saying(path: str | Path, action: str, advice: str) -> Iterator[None]:
    """Turn what goes wrong with a file into a `UserError` that it cannot be `action`, for example read or written."""
    require_path(path)
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also a name with a zero byte
        why = error.strerror if isinstance(error, OSError) and error.strerror else reason(error)
        raise UserError(f"{str(path) or repr('')} cannot be {action} ({why}): {advice}") from None


def open_regular(path: str | Path, flags: int) -> int:
    """The descriptor of a regular file; about any other an OSError or ValueError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is a folder, a named pipe or a device")
    return descriptor


@contextlib.contextmanager
def open_file(path: str | Path, *, advice: str = READ_ADVICE) -> Iterator[BinaryIO]:
    """A regular file to read bytes from; a `UserError` about any other, or what is wrong in it, ends in `advice`."""
    with saying(path, "read", advice), open(open_regular(path, os.O_RDONLY), "rb") as file:
        yield file


def read_file(path: str | Path, *, advice: str = READ_ADVICE) -> bytes:
    """The content of a regular file that is not very large; errors as of `open_file`."""
    with open_file(path, advice=advice) as file:
        if (size := os.fstat(file.fileno()).st_size) > LARGEST:
            raise ValueError(f"it has {size:,} bytes, more than {LARGEST:,}")
        return file.read()


@contextlib.contextmanager
def open_arrays(path: str | Path, *, advice: str) -> Iterator[np.lib.npyio.NpzFile]:
    """The arrays in a file of `numpy.savez`, by their names. Python objects, which are code, are not read; errors as of
    `open_file`."""
    with open_file(path, advice=advice) as opened:
        try:
            # NumPy warns of headers that Python 2 wrote.
            with warnings.catch_warnings(action="ignore"), np.lib.npyio.NpzFile(opened) as file:
                yield file
        except Exception as error:  # NumPy and zipfile have several errors for damaged bytes
            raise ValueError(reason(error)) from None


def read_json(path: str | Path, *, advice: str) -> Any:
    """The content of a JSON file, whatever its form; errors as of `open_file`."""
    with open_file(path, advice=advice) as file:
        return json.load(file)

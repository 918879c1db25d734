"""Files that come from outside or go there, in one place: every fault is a `UserError` of one sentence.

Only regular files are read and written: a pipe without a writer would hang, a device may have no end. A file is written
under a new name in the same folder and then renamed, so that it is there whole or not at all.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import stat
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pmapdp.errors import UserError, reason

LARGEST = 2**31  # bytes
READ_ADVICE = "name another file"
WRITE_ADVICE = "name a file in a folder that exists, is yours and has free space"


@contextlib.contextmanager
def saying(path: str | Path, deed: str, advice: str) -> Iterator[None]:
    """Turn what goes wrong with a file into a `UserError` that it cannot be `deed`, for example read or written."""
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also a name with a zero byte
        why = error.strerror if isinstance(error, OSError) and error.strerror else reason(error)
        raise UserError(f"{str(path) or repr('')} cannot be {deed} ({why}): {advice}") from None


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


def require_writable(path: str | Path, *, advice: str = WRITE_ADVICE) -> Path:
    """The file that `write_file` would write, links followed: to look at before long work. A `UserError` says that it
    is a folder, a device or a pipe, or that it or its folder is missing or cannot be written."""
    with saying(path, "written", advice):
        target = Path(os.path.realpath(path))
        with contextlib.suppress(FileNotFoundError):
            os.close(open_regular(target, os.O_RDWR))
        tempfile.TemporaryFile(dir=target.parent).close()  # as will be written, but without a name
        return target


def write_file(path: str | Path, content: bytes | str, *, advice: str = WRITE_ADVICE) -> None:
    """Write a file so that it is there whole or not at all, and on the disk when this returns.

    What is there, or what a link there points at, is replaced; or it is intact, and a `UserError` that ends in `advice`
    says why.
    """
    target = require_writable(path, advice=advice)
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    with saying(path, "written", advice):
        try:
            with open(temporary, "xb") as file:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copymode(target, temporary)
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def read_json(path: str | Path, *, advice: str) -> Any:
    """The content of a JSON file, whatever its form; errors as of `open_file`."""
    with saying(path, "read", advice):
        return json.loads(read_file(path, advice=advice))


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
        raise UserError(f"{given}: {path} fails at line {line} ({why}): mend that line") from error
    if not callable(found := getattr(module, attribute, None)):
        own = sorted(each for each, value in vars(module).items() if getattr(value, "__module__", "") == spec.name)
        raise UserError(f"{given}: {path} has no {attribute!r}: use one of {', '.join(own) or 'its names'}")
    return found

"""Files that come from outside or go there, in one place: every fault is a `UserError` of one sentence.

Only regular files are read and written: a pipe without a writer would hang, a device may have no end. A file is written
under a new name in the same folder and then renamed, so that it is there whole or not at all.
"""

import contextlib
import errno
import importlib.util
import inspect
import os
import stat
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pmapdp.errors import UserError, reason
from pmapdp.forms import parse_json

LARGEST = 2**31  # bytes
READ_ADVICE = "name another file"
WRITE_ADVICE = "name a file in a folder that exists, is yours and has free space"
KINDS = {stat.S_IFDIR: "Is a directory", stat.S_IFIFO: "it is a named pipe", stat.S_IFSOCK: "it is a socket"}
FAULTS = (OSError, ValueError)  # ValueError: a name with a zero byte, or that the system's encoding lacks


def refusal(path: str | Path, deed: str, why: BaseException | str, advice: str) -> UserError:
    """The error about a file that cannot be `deed` (read or written)."""
    if isinstance(why, BaseException):
        why = why.strerror if isinstance(why, OSError) and why.strerror else reason(why)
    return UserError(f"{str(path) or repr('')} cannot be {deed} ({why}): {advice}")


@contextlib.contextmanager
def saying(path: str | Path, deed: str, advice: str) -> Iterator[None]:
    """Turn what the system says of a file into a `refusal`."""
    try:
        yield
    except FAULTS as error:
        raise refusal(path, deed, error, advice) from None


def open_regular(path: str | Path, flags: int) -> int:
    """The descriptor of a regular file; about any other an OSError or ValueError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise ValueError(KINDS.get(stat.S_IFMT(mode), "it is a device"))
    return descriptor


@contextlib.contextmanager
def open_file(path: str | Path, *, advice: str = READ_ADVICE) -> Iterator[BinaryIO]:
    """A regular file to read bytes from; a `UserError` about any other, or a very large one, ends in `advice`."""
    with saying(path, "read", advice):
        file = open(open_regular(path, os.O_RDONLY), "rb")  # noqa: SIM115 (closed below)
    with file:
        if (size := os.fstat(file.fileno()).st_size) > LARGEST:
            raise refusal(path, "read", f"it has {size:,} bytes, more than {LARGEST:,}", advice)
        try:
            yield file
        except OSError as error:
            raise refusal(path, "read", error, advice) from None


def read_file(path: str | Path, *, advice: str = READ_ADVICE) -> bytes:
    """The content of a regular file; errors as of `open_file`."""
    with open_file(path, advice=advice) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1)  # asked for more, Python would take memory for more
    if len(content) != size:  # the files in /proc say that they have 0
        raise refusal(path, "read", f"it has another length than its {size:,} bytes", advice)
    return content


def require_writable(path: str | Path, *, advice: str = WRITE_ADVICE) -> Path:
    """The file that `write_file` would write, links followed: to look at before long work. A `UserError` says that it
    is a folder, a device or a pipe, or that it or its folder is missing or cannot be written."""
    with saying(path, "written", advice):
        if os.fspath(path) in ("", ".", "..") or os.fspath(path).endswith("/"):
            raise ValueError("it names no file")
        target = Path(os.path.realpath(path))
        try:
            os.close(open_regular(target, os.O_RDWR))
        except FileNotFoundError:
            os.close(os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY))  # says so if it is missing or no folder
            if not os.access(target.parent, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None
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
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with open(descriptor, "wb") as file:
                if target.exists():
                    os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def read_json(path: str | Path, form: Any, *, advice: str) -> Any:
    """The content of a JSON file; see `open_file` and `parse_json`."""
    return parse_json(read_file(path, advice=advice), form, path, advice=advice)


def from_python_file(name: str, given: str) -> Callable[..., Any]:
    """The function or class that `FILE.py:NAME` names. The file is run, with its folder on the path of imports.

    Args:
        name: FILE.py:NAME.
        given: how it was given, for the sentence, for example `--model my_file.py:Net`.

    Raises:
        UserError: there is no such file or name in it, or the file cannot be run.
    """
    path, _, attribute = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise UserError(
            f"{given}: there is no file {path or name} of Python: name one, for example my_file.py:{attribute or name}"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)  # dataclasses of the file look for their module here
    sys.path.insert(0, str(Path(path).resolve().parent))  # as `python FILE.py` does
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == spec.origin]
        line = frames[-1].lineno if frames else getattr(error, "lineno", 1)  # a SyntaxError has its own
        raise UserError(f"{given}: {path} fails at line {line} ({reason(error)}): mend that line") from error
    if not callable(found := getattr(module, attribute, None)):
        own = inspect.getmembers(module, lambda value: getattr(value, "__module__", "") == spec.name)
        names = [each for each, value in own if callable(value)]
        raise UserError(f"{given}: {path} has no {attribute!r}: use one of {', '.join(names) or 'its names'}")
    return found

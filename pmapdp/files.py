"""Files that come from outside or go there, in one place: every fault is a `UserError` of one sentence.

Only regular files are read and written: a pipe without a writer would hang, a device may have no end. A file is written
under a new name in the same folder and then renamed, so that it is there whole or not at all.
"""

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from pmapdp.errors import UserError, reason
from pmapdp.forms import parse_json

LARGEST = 2**31  # bytes
LARGEST_JSON = 2**26
READ_ADVICE = "name another file"
WRITE_ADVICE = "name a file in a folder that exists, is yours and has free space"
KINDS = {stat.S_IFDIR: "Is a directory", stat.S_IFIFO: "it is a named pipe", stat.S_IFSOCK: "it is a socket"}
FAULTS = (OSError, ValueError)  # ValueError: a name with a zero byte, or that the system's encoding lacks


def refusal(path: str | Path, deed: str, why: BaseException | str, advice: str) -> UserError:
    """The error about a file that cannot be `deed` (read or written)."""
    if isinstance(why, BaseException):
        why = why.strerror if isinstance(why, OSError) and why.strerror else reason(why)
    return UserError(f"{str(path) or repr('')} cannot be {deed} ({why}): {advice}")


def open_regular(path: str | Path, flags: int) -> int:
    """The descriptor of a regular file. Raises OSError or ValueError about any other."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise ValueError(KINDS.get(stat.S_IFMT(mode), "it is a device"))
    return descriptor


@contextlib.contextmanager
def open_file(path: str | Path, *, advice: str = READ_ADVICE, largest: int = LARGEST) -> Iterator[BinaryIO]:
    """A regular file of at most `largest` bytes, to read bytes from.

    Raises:
        UserError: it cannot be opened, or not be read to its end; `advice` says what to do instead.
    """
    try:
        file = open(open_regular(path, os.O_RDONLY), "rb")  # noqa: SIM115 (closed below)
    except FAULTS as error:
        raise refusal(path, "read", error, advice) from None
    with file:
        if (size := os.fstat(file.fileno()).st_size) > largest:
            raise refusal(path, "read", f"it has {size:,} bytes, more than {largest:,}", advice)
        try:
            yield file
        except OSError as error:
            raise refusal(path, "read", error, advice) from None


def read_file(path: str | Path, *, advice: str = READ_ADVICE, largest: int = LARGEST) -> bytes:
    """The content of a regular file; arguments and errors as of `open_file`."""
    with open_file(path, advice=advice, largest=largest) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1)  # asked for more, Python would take memory for more
    if len(content) != size:  # the files in /proc say that they have 0
        raise refusal(path, "read", f"it has another length than its {size:,} bytes", advice)
    return content


def open_to_append(path: str | Path, *, advice: str = WRITE_ADVICE) -> TextIO:
    """A regular file, made if it is missing, to which UTF-8 text is appended, a line at a time.

    Raises:
        UserError: it cannot be opened. Errors of `write` and `close` are the caller's.
    """
    try:
        return open(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8", buffering=1)
    except FAULTS as error:
        raise refusal(path, "written", error, advice) from None


def require_writable(path: str | Path, *, advice: str = WRITE_ADVICE) -> Path:
    """The file that `write_file` would write, links followed: to look at before long work.

    Raises:
        UserError: it is a folder, a device or a pipe, or it or its folder is missing or cannot be written.
    """
    try:
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
    except FAULTS as error:
        raise refusal(path, "written", error, advice) from None


def write_file(path: str | Path, content: bytes | str, *, advice: str = WRITE_ADVICE) -> None:
    """Write a file so that it is there whole or not at all, and on the disk when this returns.

    Args:
        path: replaced if it exists; what a link points at is replaced, and the link stays.
        content: bytes, or text that is written in UTF-8.
        advice: the end of the sentence about a file that cannot be written: what to do.

    Raises:
        UserError: it cannot be written; what was there before is intact.
    """
    target = require_writable(path, advice=advice)
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
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
    except FAULTS as error:
        raise refusal(path, "written", error, advice) from None


def read_json(path: str | Path, form: Any, *, advice: str, largest: int = LARGEST_JSON) -> Any:
    """The content of a JSON file; see `open_file` and `parse_json`."""
    return parse_json(read_file(path, advice=advice, largest=largest), form, path, advice=advice)

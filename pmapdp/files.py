"""Read and write files that you name, each whole or not at all, and load your code.

All of them are regular files: `open_regular` refuses a folder, a named pipe or a
device.
"""

import contextlib
import importlib.util
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pmapdp.errors import (
    UserError,
    YourCodeError,
    explain_errors,
    first_line,
    unknown_name,
)

ADVICE = "name a file in a folder that exists, is yours and has free space"

# Files that we write have one of these in their first bytes. We append to results, and
# replace the others.
REPORT_SIGNATURES = (b'{\n  "ok": ', b'{\n  "config": ')  # of verify and compare
RESULTS_SIGNATURES = (b'{"event": ',)
PAGE_SIGNATURES = (b"<!doctype html>",)
MODEL_SIGNATURES = (b"arrays/",)  # the name of the first file in the zip
BEGINNING = 100  # bytes in which a signature is looked for
# The folders of your files that were run. Python finds the modules beside them there.
FOLDERS: set[str] = set()


def open_regular(path: str | Path, mode: str, **options: Any) -> Any:
    """Open a regular file, as `open` does: to read or write, as bytes or text.

    A folder, a named pipe or a device raises a ValueError.
    """
    return open(path, mode, opener=open_descriptor, **options)


def open_descriptor(path: str, flags: int) -> int:
    """Open a regular file and return its descriptor."""
    # Without O_NONBLOCK, opening a named pipe waits for somebody at its other end.
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is a folder, a named pipe or a device")
    return descriptor


@contextlib.contextmanager
def open_file(path: str | Path, *, advice: str) -> Iterator[BinaryIO]:
    """Open a file to read bytes.

    A `UserError` says why it, or its content, can't be read.
    """
    with (
        explain_errors(f"{path} cannot be read", advice),
        open_regular(path, "rb") as file,
    ):
        yield file


def read_file(path: str | Path, *, advice: str) -> bytes:
    """Read a whole file."""
    with open_file(path, advice=advice) as file:
        return file.read()


def write_file(path: str | Path, content: bytes | str, *, advice: str = ADVICE) -> None:
    """Write a file whole and to the disk.

    If that fails, an older file stays as it is, and a `UserError` says why.
    """
    data = content.encode() if isinstance(content, str) else content
    with explain_errors(f"{path} cannot be written", advice):
        target = find_target(path)
        with (
            tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as folder,
            open(f"{folder}/new", "wb") as file,
        ):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, target)


def find_target(path: str | Path) -> Path:
    """Follow links to a file that can be written: a regular one, or none yet."""
    target = Path(os.path.realpath(path))
    if os.path.lexists(target):  # also a link to itself
        open_regular(target, "r+b").close()
    return target


def check_output(
    name: str, path: str | None, signatures: tuple[bytes, ...]
) -> Path | None:
    """Return the full path of a file that a command will write. None without one.

    Call it before long work, and before your code, which may change the current folder.

    Args:
        name: The flag that names the file, for the error message.
        path: The file.
        signatures: A file that has none of these in its first bytes isn't ours, so it
            isn't replaced.

    Raises:
        UserError: The file can't be written, or isn't ours.
    """
    if path is None:
        return None
    with explain_errors(f"{name} {path} cannot be written", ADVICE):
        target = find_target(path)
        tempfile.TemporaryFile(dir=target.parent).close()
        if target.exists():
            with open(target, "rb") as file:
                beginning = file.read(BEGINNING).lower()
            if beginning and not any(text in beginning for text in signatures):
                raise UserError(
                    f"{name} {path} is a file of another kind, which would be lost: "
                    "name another file"
                )
    return target


@contextlib.contextmanager
def find_modules_beside(path: str) -> Iterator[None]:
    """Let the file at `path` import the modules beside it.

    Python keeps one module of each name. If an earlier file of yours has imported a
    `model.py` from another folder, this file would get that one. So inside the `with`,
    modules with the name of a file beside `path` are hidden. If the file imports its
    own, a `UserError` says which to rename, because Python can't keep both.
    """
    hidden = {}
    for name, module in list(sys.modules.items()):
        loaded = Path(getattr(module, "__file__", None) or "")
        if loaded.name == "__init__.py":
            loaded = loaded.parent
        beside = Path(path).parent / loaded.name
        is_yours = str(loaded.parent) in FOLDERS
        if is_yours and beside not in (loaded, Path(path)) and beside.exists():
            hidden[name] = sys.modules.pop(name)
    try:
        yield
    finally:
        names = sorted(hidden.keys() & sys.modules.keys())
        sys.modules.update(hidden)
    if names:
        raise UserError(
            f"{path} imports {names[0]}, and so did a file beside "
            f"{hidden[names[0]].__file__}, but Python keeps one module of a name: "
            "rename one of them"
        )


def load_from_file(name: str) -> Callable[..., Any]:
    """Run a Python file, and return a function or class of it.

    `name` is FILE.py:NAME. A `UserError` says that there is no such file or name in it,
    or that the file fails.
    """
    path, colon, attribute = name.rpartition(":")
    if not colon:
        raise UserError(f"{name} is a file: name a function of it, as in {name}:step")
    advice = f"correct it, or name another, as in my_file.py:{attribute}"
    with open_file(path, advice=advice) as file:
        path = os.path.abspath(path)
        code = compile(file.read(), path, "exec")
    FOLDERS.add(os.path.dirname(path))
    module_name = Path(path).stem
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec
    module = importlib.util.module_from_spec(spec)
    # Dataclasses of the file look for their module there.
    sys.modules.setdefault(module_name, module)
    sys.path.insert(0, os.path.dirname(path))  # as `python FILE.py` does
    with find_modules_beside(path):
        try:
            # Not the spec's loader, which would write what it compiled beside the file.
            exec(code, vars(module))
        # A script that ends itself would look like a command that is done.
        except (Exception, SystemExit) as error:
            reason = first_line(error)
            raise YourCodeError(
                f"{path} fails ({type(error).__name__}: {reason}): "
                "correct it where the traceback ends",
                quote=reason,
            ) from error
    value = getattr(module, attribute, None)
    if not callable(value):
        names = [
            name
            for name, member in vars(module).items()
            if getattr(member, "__module__", "") == module_name
        ]
        raise unknown_name(f"name in {path}", attribute, names)
    return value

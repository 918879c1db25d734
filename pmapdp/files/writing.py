"""Write files under a new name in the same folder and then rename them, so that they are there whole or not at all."""

import contextlib
import os
import shutil
import tempfile
import uuid
from pathlib import Path

from pmapdp.files.reading import open_regular, saying

WRITE_ADVICE = "name a file in a folder that exists, is yours and has free space"


def require_writable(path: str | Path, *, advice: str = WRITE_ADVICE, named: str | None = None) -> Path:
    """The file that `write_file` would write, links followed: to look at before long work. A `UserError` says that it
    is a folder, a device or a pipe, or that it or its folder is missing or cannot be written; it calls it `named`
    (default: its path)."""
    with saying(named or path, "written", advice):
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

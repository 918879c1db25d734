"""Why a checkpoint cannot be read: its content is wrong, or something outside of it is."""

import errno
import os
from pathlib import Path

NUMBERS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
)
THREADS = ("can't start new thread", "cannot join thread before it is started")  # by Python, without a number
OUTSIDE = (*map(os.strerror, NUMBERS), *THREADS, "RESOURCE_EXHAUSTED", "PERMISSION_DENIED")


class DamagedError(ValueError):
    """The content of a checkpoint is provably not what was written."""


def known(error: BaseException | None) -> str | None:
    """What an error of Orbax, or one that led to it, says of the system below; None where they say something else."""
    while error is not None:
        if isinstance(error, MemoryError):
            return "no memory is left"
        if found := next((each for each in OUTSIDE if each in str(error)), None):
            return found
        error = error.__cause__ or error.__context__
    return None


def outside_cause(error: BaseException, folder: Path) -> str | None:
    """What kept the files in `folder` from being read, if not their content: rights, memory, file handles, the disk."""
    if found := known(error):
        return found
    try:
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                os.listdir(path)
                continue
            with open(path, "rb") as file:
                while file.read(2**20):
                    pass
    except OSError as failure:
        if not isinstance(failure, FileNotFoundError | NotADirectoryError):
            return failure.strerror
    return None

"""Whether the files of a checkpoint are what was written: their sizes and CRC-32 are in a list beside them.

Nothing else proves damage. What a library says of a checkpoint may be due to a path, a version or the machine.
"""

import json
import os
import zlib
from pathlib import Path

from pmapdp.files import open_regular, write_file

LIST = "files.json"
LATER = ("_CHECKPOINT_METADATA", "commit_success.txt")  # Orbax writes them after the list, and reads nothing from them


class DamagedError(ValueError):
    """The files of a checkpoint are not what was written."""


def write_list(folder: Path, step: int) -> None:
    """Put the list beside the files of the checkpoint of `step`, once the disk has them."""
    names = (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())
    files = {name: size_and_crc(folder / name, sync=True) for name in names if name not in (LIST, *LATER)}
    write_file(folder / LIST, json.dumps({"step": step, "files": files}))


def require_intact(folder: Path, step: int) -> None:
    """Compare the files of the checkpoint of `step` with the list; one of an earlier version has none.

    Raises:
        DamagedError: one is missing or another, or this is the checkpoint of another step.
        OSError: one cannot be read, which is no fault of its content.
    """
    if not (folder / LIST).exists():
        return
    try:
        content = json.loads((folder / LIST).read_bytes())
        found, files = content["step"], content["files"].items()
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise DamagedError(f"{LIST} is not what was written") from None
    if found != step:
        raise DamagedError(f"it is of step {found}")
    for name, written in files:
        try:
            intact = size_and_crc(folder / name) == written
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: it is a folder or a pipe
            intact = False
        if not intact:
            raise DamagedError(f"{name} is not what was written")


def size_and_crc(path: Path, *, sync: bool = False) -> list[int]:
    """The size of a file in bytes and the CRC-32 of its content, after the disk has it where `sync` is true."""
    size = crc = 0
    with open(open_regular(path, os.O_RDONLY), "rb", buffering=0) as file:
        if sync:
            os.fsync(file.fileno())
        while content := file.read(2**20):
            size, crc = size + len(content), zlib.crc32(content, crc)
    return [size, crc]

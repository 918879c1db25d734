"""Files in one zip that is there whole or not at all, and that shows when it was cut short or altered.

The member SHA256SUMS lists the SHA-256 of all others as the command `sha256sum` does: unpacked, they pass
`sha256sum --check SHA256SUMS`.
"""

import hashlib
import os
import struct
import zipfile
import zlib
from pathlib import Path

from pmapdp.errors import UserError

CHECKSUMS = "SHA256SUMS"
READABLE_BY_ALL = 0o644 << 16  # where a zip keeps the permissions of a file
# What zipfile raises on damaged bytes, depending on where they lie.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    RuntimeError,
    ValueError,
    LookupError,
    struct.error,
    OverflowError,
)


def write_archive(path: str | Path, files: dict[str, bytes]) -> None:
    """Write `files` (name to content) and their checksums; the same files make the same bytes.

    Raises:
        UserError: `path` cannot be written; what was there before is intact.
    """
    path = Path(path)
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items())
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            with open(temporary, "wb") as file:
                with zipfile.ZipFile(file, "w") as archive:
                    for name, content in (files | {CHECKSUMS: sums.encode()}).items():
                        member = zipfile.ZipInfo(name)  # dated 1980, so that equal models make equal files
                        member.external_attr = READABLE_BY_ALL
                        archive.writestr(member, content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): name a file in a folder that exists, is yours and has "
            "free space, for example model.zip"
        ) from None


def read_archive(path: str | Path, made_by: str) -> dict[str, bytes]:
    """The files (name to content) that `write_archive` wrote, after a look at their checksums.

    Args:
        path: the zip.
        made_by: what makes such files, for the sentences about those that are not.

    Raises:
        UserError: there is no such file, it cannot be read, is damaged, or was made by something else.
    """
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"PK":
                raise UserError(f"{path} is no zip: name a file made with {made_by}")
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
                if CHECKSUMS not in names:
                    raise UserError(f"{path} is a zip, but was not made with {made_by}")
                files = {name: archive.read(name) for name in names}
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): name a file made with {made_by}") from None
    except DAMAGE:
        raise damaged(path) from None
    sums = files.pop(CHECKSUMS).decode(errors="replace").splitlines()
    if sums != [f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in files.items()]:
        raise damaged(path)
    return files


def damaged(path: str | Path) -> UserError:
    """The error for a file that is not as it was written."""
    return UserError(f"{path} is damaged, it was cut short or altered: copy it again, or export the model again")

"""Zips and .npy files as bytes, for tests that look into them or forge them."""

import io
import zipfile
from pathlib import Path

import numpy as np


def unpack(path: str | Path) -> dict[str, bytes]:
    """The files (name to content) in a zip."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(files: dict[str, bytes]) -> bytes:
    """A zip of files (name to content), with checksums that fit."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    """The content of a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()

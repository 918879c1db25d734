"""Write and read the file of an exported model, a zip that docs/export.md explains.

Its programs are bytes here, and none is run.
"""

import io
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pmapdp.errors import explain_errors
from pmapdp.files import read_file, write_file

FORMAT = "pmapdp model 2"
METADATA = "metadata.json"
PROGRAM = "model.jax"
LOSS = "loss.jax"
FEATURIZER = "view.json"  # a featurizer was called a view when the format was made
ARRAYS = "arrays/"
# What an export needs to be read.
METADATA_TYPES = {
    "format": str,
    "jax": str,
    "dtype": str,
    "view": str,
    "step": int,
    "dataset": str,
    "labels": list,
    "arrays": list,
    "classifies": bool,
}


class ExportedFile(NamedTuple):
    """The contents of an exported file.

    Attributes:
        metadata: The values in `metadata.json`.
        arrays: Parameters and running statistics by name.
        files: The bytes of the other files in the zip by name.
    """

    metadata: dict[str, Any]
    arrays: dict[str, np.ndarray]
    files: dict[str, bytes]


def write_exported_file(exported: ExportedFile, path: str | Path) -> None:
    """Write an exported file. The same contents give the same bytes."""
    header = {"format": FORMAT, "arrays": [*exported.arrays]}
    metadata = json.dumps(header | exported.metadata, indent=2).encode()
    zipped = io.BytesIO()
    # The arrays come first: `files.MODEL_SIGNATURES` looks for them.
    arrays = {f"{ARRAYS}{name}": array for name, array in exported.arrays.items()}
    np.savez(zipped, **arrays)  # type: ignore[arg-type]
    with zipfile.ZipFile(zipped, "a") as archive:
        for name, content in {METADATA: metadata, **exported.files}.items():
            # A ZipInfo is dated 1980, like NumPy's.
            archive.writestr(zipfile.ZipInfo(name), content)
    write_file(path, zipped.getvalue())


def read_exported_file(path: str | Path, *, advice: str) -> ExportedFile:
    """Return the contents of an exported file.

    The checksums of the zip are looked at, so no damaged file reaches JAX.

    Raises:
        UserError: The file is damaged, or something else.
    """
    content = read_file(path, advice=advice)
    failure = f"{path} is damaged or is no exported model"
    with (
        explain_errors(failure, f"export it again, or {advice}"),
        zipfile.ZipFile(io.BytesIO(content)) as archive,
    ):
        members = archive.infolist()
        is_compressed = any(member.compress_type for member in members)
        unpacked_size = sum(member.file_size for member in members)
        # Only this much is read, so a few kilobytes can't unpack to gigabytes.
        if is_compressed or unpacked_size > len(content):
            raise ValueError("it is compressed, or not as long as it says")
        files = {member.filename: archive.read(member) for member in members}
        metadata = json.loads(files.pop(METADATA))
        check_metadata(metadata)
        arrays = {}
        # np.load refuses pickles, so nothing is run.
        for name in metadata["arrays"]:
            arrays[name] = np.load(io.BytesIO(files.pop(f"{ARRAYS}{name}.npy")))
            if arrays[name].dtype.kind not in "biuf":
                raise TypeError(f"{name} holds {arrays[name].dtype}")
    return ExportedFile(metadata, arrays, files)


def check_metadata(metadata: dict[str, Any]) -> None:
    """Check the format, and the types of what every exported file says of itself."""
    if metadata["format"] != FORMAT:
        raise ValueError(f"its format is {metadata['format']!r}, not {FORMAT!r}")
    for name, wanted in METADATA_TYPES.items():
        if not isinstance(metadata[name], wanted):
            raise TypeError(f"{name} is {metadata[name]!r:.100} in {METADATA}")

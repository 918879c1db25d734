"""MNIST: the format of its files, and files that are damaged or missing.

`test_real_data.py` reads the real ones.
"""

import gzip
import hashlib
import struct
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from pmapdp.data.mnist import FILES, read_idx
from pmapdp.errors import UserError
from pmapdp.registry import load_data

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


def write_idx(path, array: np.ndarray) -> str:
    """Write a gzipped IDX file; returns its MD5."""
    header = struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("array", [IMAGES, IMAGES[:, 0, 0]])
def test_images_and_labels_come_back_as_written(tmp_path, array):
    file = tmp_path / "file.gz"
    checksum = write_idx(file, array)
    np.testing.assert_array_equal(read_idx(file, checksum), array)
    with pytest.raises(UserError, match="is damaged: its MD5 is"):
        read_idx(file, "0" * 32)


NO_ROUTE = RuntimeError(
    "Error downloading train-images:\nTried https://a.example, got:\nno route to host"
)


@pytest.mark.parametrize(
    ("dataset", "error", "fragments"),
    [
        (
            "mnist",
            None,
            ["MNIST/raw: run pip install torchvision", 'or use dataset="digits"'],
        ),
        ("fashion-mnist", None, ["FashionMNIST/raw: run pip"]),
        (
            "mnist",
            NO_ROUTE,
            [
                "MNIST/raw and could not be downloaded",
                "no route to host",
                'dataset="digits"',
            ],
        ),
        (
            "mnist",
            PermissionError("no access"),
            ["could not be downloaded (no access)"],
        ),
    ],
)
def test_missing_files_are_one_sentence(
    tmp_path, monkeypatch, dataset, error, fragments
):
    """All of the files are missing, or one of four.

    There is no torchvision, or one that ends in an error.
    """
    datasets = SimpleNamespace(MNIST=Mock(side_effect=error))
    monkeypatch.setitem(
        sys.modules, "torchvision", error and SimpleNamespace(datasets=datasets)
    )
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for files in ([], FILES[:3]):
        for name in files:
            write_idx(raw / name, IMAGES)
        with pytest.raises(UserError) as error:
            load_data(dataset, str(tmp_path))
        assert all(fragment in str(error.value) for fragment in fragments)
        assert "\n" not in str(error.value)

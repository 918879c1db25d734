"""MNIST: the format of its files, and files that are damaged or missing. `test_real_data.py` reads the real ones."""

import gzip
import hashlib
import struct
import sys
from types import SimpleNamespace

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
    whole = file.read_bytes()
    for damaged in (whole[:-9], whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match="is damaged: its MD5 is"):
            read_idx(file, checksum)


def no_route(*_, **__):
    raise RuntimeError("Error downloading train-images:\nTried https://a.example, got:\nno route to host")


def read_only(*_, **__):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("dataset", "torchvision", "fragments"),
    [
        ("mnist", None, ["MNIST/raw: run pip install torchvision", "or use --dataset digits"]),
        ("fashion-mnist", None, ["FashionMNIST/raw: run pip"]),
        ("mnist", no_route, ["MNIST/raw and could not be downloaded", "no route to host", "--dataset digits"]),
        ("mnist", read_only, ["could not be downloaded ([Errno 13] Permission denied)"]),
    ],
)
def test_missing_files_are_one_sentence(tmp_path, monkeypatch, dataset, torchvision, fragments):
    """All of them, or one of four."""
    module = torchvision and SimpleNamespace(datasets=SimpleNamespace(MNIST=torchvision))
    monkeypatch.setitem(sys.modules, "torchvision", module)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for files in ([], FILES[:3]):
        for name in files:
            write_idx(raw / name, IMAGES)
        with pytest.raises(UserError) as error:
            load_data(dataset, str(tmp_path))
        assert all(fragment in str(error.value) for fragment in fragments)
        assert "\n" not in str(error.value)

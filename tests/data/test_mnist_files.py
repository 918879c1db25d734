"""Reading MNIST's files: the format, and files that are damaged, missing or cannot be had. Needs no real data."""

import gzip
import hashlib
import struct
import sys
import types

import numpy as np
import pytest

from pmapdp.data.mnist import CHECKSUMS, read_idx
from pmapdp.errors import UserError
from pmapdp.registry import load_data

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


def write_idx(path, array: np.ndarray, cut: int = 0) -> str:
    """Write a gzipped IDX file without its last `cut` bytes; its MD5."""
    header = struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape)
    packed = gzip.compress(header + array.tobytes())
    packed = packed[: len(packed) - cut]
    path.write_bytes(packed)
    return hashlib.md5(packed, usedforsecurity=False).hexdigest()


def one_sentence(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.fixture
def four_files(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in CHECKSUMS["MNIST"]:
        write_idx(raw / name, IMAGES)
    return tmp_path


@pytest.mark.parametrize("array", [IMAGES, IMAGES[:, 0, 0]])
def test_images_and_labels_come_back_as_written(tmp_path, array):
    checksum = write_idx(tmp_path / "file.gz", array)
    np.testing.assert_array_equal(read_idx(tmp_path / "file.gz", checksum), array)


def test_an_altered_file_is_refused_by_its_checksum(four_files):
    with pytest.raises(UserError) as error:
        load_data("mnist", str(four_files))
    assert "train-images-idx3-ubyte.gz is damaged" in one_sentence(error)
    assert CHECKSUMS["MNIST"]["train-images-idx3-ubyte.gz"] in str(error.value)
    assert "delete it" in str(error.value)


def test_one_flipped_bit_is_noticed(tmp_path):
    checksum = write_idx(tmp_path / "file.gz", IMAGES)
    content = bytearray((tmp_path / "file.gz").read_bytes())
    content[-3] ^= 1
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        read_idx(tmp_path / "file.gz", checksum)


def test_a_truncated_file_is_refused(tmp_path):
    checksum = write_idx(tmp_path / "file.gz", IMAGES)
    write_idx(tmp_path / "file.gz", IMAGES, cut=9)
    with pytest.raises(UserError, match="is damaged"):
        read_idx(tmp_path / "file.gz", checksum)


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(UserError) as error:
        read_idx(tmp_path, "")  # a folder cannot be read by anyone, root included
    assert f"{tmp_path} cannot be read" in one_sentence(error)


@pytest.mark.parametrize(("dataset", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_missing_files_without_torchvision_say_what_to_install(tmp_path, monkeypatch, dataset, folder):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UserError) as error:
        load_data(dataset, str(tmp_path))
    text = one_sentence(error)
    assert str(tmp_path / folder / "raw") in text
    assert 'pip install "pmapdp[torchvision]"' in text
    assert "--dataset digits" in text


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("Error downloading train-images-idx3-ubyte.gz:\nTried https://a.example, got:\nno route to host"),
        PermissionError(13, "Permission denied"),
        RuntimeError("File not found or corrupted."),
    ],
)
def test_a_failed_download_is_one_sentence(tmp_path, monkeypatch, failure):
    def download(root, train, download):
        raise failure

    torchvision = types.ModuleType("torchvision")
    torchvision.datasets = types.SimpleNamespace(MNIST=download)
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    with pytest.raises(UserError) as error:
        load_data("mnist", str(tmp_path))
    assert "could not be downloaded" in one_sentence(error)
    assert "--dataset digits" in str(error.value)


def test_a_folder_that_misses_one_file_is_not_taken_for_complete(four_files, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    (four_files / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match="torchvision"):
        load_data("mnist", str(four_files))

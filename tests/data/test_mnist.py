"""MNIST: the format of its files, files that are damaged or missing, and the known facts of the real ones.

The real ones are read if PMAPDP_DATA names a folder that holds MNIST/raw; with PMAPDP_REQUIRE_MNIST=1 nothing may skip.
"""

import gzip
import hashlib
import json
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from examples import parts
from launch import train
from marks import MNIST_REQUIRED

from pmapdp.custom.data import make_data_set
from pmapdp.data.batches import Batches
from pmapdp.data.mnist import CHECKSUMS, read_idx
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
        ("mnist", None, ["MNIST/raw: run pip", 'install "pmapdp[torchvision]"', "or use --dataset digits"]),
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
    for files in ([], [*CHECKSUMS["MNIST"]][:3]):
        for name in files:
            write_idx(raw / name, IMAGES)
        with pytest.raises(UserError) as error:
            load_data(dataset, str(tmp_path))
        assert all(fragment in str(error.value) for fragment in fragments)
        assert "\n" not in str(error.value)


def test_another_file_of_the_same_name_is_refused(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in CHECKSUMS["MNIST"]:
        write_idx(raw / name, IMAGES)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz is damaged: .*; delete it"):
        load_data("mnist", str(tmp_path))


@pytest.fixture(scope="module")
def mnist(mnist_folder):
    return load_data("mnist", str(mnist_folder))


@pytest.fixture(scope="module")
def torchvision_datasets():
    if MNIST_REQUIRED:
        from torchvision import datasets

        return datasets
    return pytest.importorskip("torchvision.datasets", reason="torchvision is not installed: its view is NOT TESTED")


@pytest.mark.mnist
def test_the_real_images(mnist):
    """Shapes, types, images per digit, mean and spread of the pixels."""
    for split, examples in ((mnist.train, 60_000), (mnist.test, 10_000)):
        assert (split.inputs.shape, split.inputs.dtype) == ((examples, 28, 28, 1), np.uint8)
        assert split.labels.dtype == np.int32
    counts = [np.bincount(split.labels).tolist() for split in parts(mnist)]
    assert counts[0] == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts[1] == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = mnist.train.inputs / np.float32(255)
    assert pixels.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert pixels.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)


@pytest.mark.mnist
@pytest.mark.slow
@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_checksums_are_torchvisions(torchvision_datasets, name):
    assert dict(getattr(torchvision_datasets, name).resources) == CHECKSUMS[name]


@pytest.fixture(scope="module")
def unpacked_folder(mnist_folder, tmp_path_factory):
    """MNIST as torchvision leaves it after a download."""
    folder = tmp_path_factory.mktemp("unpacked")
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in CHECKSUMS["MNIST"]:
        packed = (mnist_folder / "MNIST" / "raw" / name).read_bytes()
        (raw / name.removesuffix(".gz")).write_bytes(gzip.decompress(packed))
    return folder


@pytest.mark.mnist
def test_torchvisions_data_set_is_taken_with_its_transform(unpacked_folder, mnist, torchvision_datasets):
    from torchvision.transforms import ToTensor

    theirs = torchvision_datasets.MNIST(unpacked_folder, train=False, transform=ToTensor())
    data = make_data_set({"train": theirs})
    batch = next(Batches(data.train, 100, shuffle_seed=1).epoch(0))
    images = mnist.test.inputs[batch.indices].transpose(0, 3, 1, 2)  # theirs are [b, 1, H, W], from 0 to 1
    np.testing.assert_allclose(batch.inputs, images / np.float32(255), rtol=1e-6)
    np.testing.assert_array_equal(batch.labels, mnist.test.labels[batch.indices])
    assert data.classes == tuple(theirs.classes)


@pytest.mark.mnist
def test_files_that_torchvision_unpacked_are_read_too(mnist, unpacked_folder, torchvision_datasets):
    unpacked = load_data("mnist", str(unpacked_folder))
    for one, other in zip(parts(mnist), parts(unpacked), strict=True):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.labels, other.labels)


@pytest.mark.mnist
@pytest.mark.parametrize("strategy", ["pmap", "jit", "shard_map"])
def test_one_epoch_on_eight_devices(mnist_folder, tmp_path, strategy):
    metrics = tmp_path / "metrics.jsonl"
    done = train(
        *("--dataset", "mnist", "--data-dir", mnist_folder, "--model", "cnn", "--strategy", strategy),
        *("--devices", 8, "--per-device-batch-size", 64, "--epochs", 1, "--metrics-file", metrics),
    )
    assert done.returncode == 0, done.stderr
    epoch = json.loads(metrics.read_text().splitlines()[1])
    assert epoch["train"]["examples"] == 60_000
    assert epoch["test"]["examples"] == 10_000
    assert epoch["step"] == 118  # 117 batches of 512 and one of 96
    assert epoch["test"]["accuracy"] >= 0.96

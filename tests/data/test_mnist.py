"""The real MNIST: its known facts, torchvision's view of it, and one epoch with each strategy.

Run where PMAPDP_DATA names a folder that holds MNIST/raw; with PMAPDP_REQUIRE_MNIST=1 nothing here may skip.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from examples import parts
from launch import train
from marks import MNIST_REQUIRED

from pmapdp.custom.arrays import check_data
from pmapdp.custom.data_sets import as_data_set
from pmapdp.data.batches import Batches
from pmapdp.data.mnist import CHECKSUMS
from pmapdp.registry import load_data

pytestmark = pytest.mark.mnist

TRAIN_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture(scope="module")
def mnist(mnist_folder):
    return load_data("mnist", str(mnist_folder))


@pytest.fixture(scope="module")
def torchvision_datasets():
    if MNIST_REQUIRED:
        from torchvision import datasets

        return datasets
    return pytest.importorskip("torchvision.datasets", reason="torchvision is not installed: its view is NOT TESTED")


def test_shapes_and_types(mnist):
    for split, examples in ((mnist.train, 60_000), (mnist.test, 10_000)):
        assert split.inputs.shape == (examples, 28, 28, 1)
        assert split.inputs.dtype == np.uint8
        assert split.labels.dtype == np.int32


def test_images_per_digit(mnist):
    assert np.bincount(mnist.train.labels).tolist() == TRAIN_COUNTS
    assert np.bincount(mnist.test.labels).tolist() == TEST_COUNTS


def test_mean_and_spread_of_the_pixels(mnist):
    pixels = mnist.train.inputs / np.float32(255)
    assert pixels.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert pixels.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_checksums_are_those_of_torchvision(torchvision_datasets, name):
    assert dict(getattr(torchvision_datasets, name).resources) == CHECKSUMS[name]


@pytest.fixture(scope="module")
def unpacked_folder(mnist_folder, tmp_path_factory):
    """MNIST as torchvision leaves it after a download."""
    folder = tmp_path_factory.mktemp("unpacked")
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in CHECKSUMS["MNIST"]:
        packed = Path(mnist_folder, "MNIST", "raw", name).read_bytes()
        (raw / name.removesuffix(".gz")).write_bytes(gzip.decompress(packed))
    return folder


def test_the_data_set_of_torchvision_is_taken_with_its_transform(unpacked_folder, mnist, torchvision_datasets):
    from torchvision.transforms import ToTensor

    theirs = torchvision_datasets.MNIST(unpacked_folder, train=False, transform=ToTensor())
    data = check_data(as_data_set({"train": theirs}), classifies=True)
    batch = next(Batches(data.train, 100, shuffle_seed=1).epoch(0))
    images = mnist.test.inputs[batch.indices].transpose(0, 3, 1, 2)  # theirs are [b, 1, H, W], from 0 to 1
    np.testing.assert_allclose(batch.inputs, images / np.float32(255), rtol=1e-6)
    np.testing.assert_array_equal(batch.labels, mnist.test.labels[batch.indices])
    assert data.classes == tuple(theirs.classes)


def test_files_that_torchvision_unpacked_are_read_too(mnist, unpacked_folder):
    unpacked = load_data("mnist", str(unpacked_folder))
    for one, other in zip(parts(mnist), parts(unpacked), strict=True):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.labels, other.labels)


@pytest.mark.parametrize("strategy", ["pmap", "jit", "shard_map"])
def test_one_epoch_on_eight_devices(mnist_folder, tmp_path, strategy):
    metrics = tmp_path / "metrics.jsonl"
    done = train(
        *("--dataset", "mnist", "--data-dir", mnist_folder, "--model", "cnn", "--strategy", strategy),
        *("--devices", 8, "--per-device-batch-size", 64, "--epochs", 1, "--metrics-file", metrics),
    )
    assert done.returncode == 0, done.stderr
    epoch = json.loads(metrics.read_text().splitlines()[1])
    assert epoch["train_examples"] == 60_000
    assert epoch["test_examples"] == 10_000
    assert epoch["step"] == 118  # 117 batches of 512 and one of 96
    assert epoch["test_accuracy"] >= 0.96

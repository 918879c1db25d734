"""The known facts of the real MNIST and IMDB, and what is reached on them.

They are read if PMAPDP_DATA names a folder that holds them; with PMAPDP_REQUIRE_MNIST=1
and PMAPDP_REQUIRE_IMDB=1 nothing may skip.
"""

import gzip

import entry
import numpy as np
import pytest
from launch import train
from marks import MNIST_REQUIRED

from pmapdp.custom.data import make_data_set
from pmapdp.data.batches import Batches
from pmapdp.data.mnist import CHECKSUMS, FILES
from pmapdp.registry import load_data


@pytest.fixture(scope="module")
def mnist(mnist_folder):
    return load_data("mnist", str(mnist_folder))


@pytest.fixture(scope="module")
def torchvision_datasets():
    if MNIST_REQUIRED:
        from torchvision import datasets

        return datasets
    return pytest.importorskip(
        "torchvision.datasets",
        reason="torchvision is not installed: its view is NOT TESTED",
    )


@pytest.mark.mnist
def test_the_real_images(mnist):
    """Shapes, types, images per digit, mean and spread of the pixels."""
    for split, examples in ((mnist.train, 60_000), (mnist.test, 10_000)):
        assert (split.inputs.shape, split.inputs.dtype) == (
            (examples, 28, 28, 1),
            np.uint8,
        )
        assert split.labels.dtype == np.int32
    counts = [np.bincount(split.labels).tolist() for split in mnist.parts.values()]
    assert counts[0] == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts[1] == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = mnist.train.inputs / np.float32(255)
    assert pixels.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert pixels.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)


@pytest.mark.mnist
@pytest.mark.slow
@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_checksums_are_torchvisions(torchvision_datasets, name):
    assert getattr(torchvision_datasets, name).resources == [
        *zip(FILES, CHECKSUMS[name], strict=True)
    ]


@pytest.mark.mnist
def test_torchvisions_files_and_its_data_set_are_taken(
    mnist_folder, mnist, torchvision_datasets, tmp_path
):
    """The files unpacked, as it leaves them after a download.

    The data set with its transform.
    """
    from torchvision.transforms import ToTensor

    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in FILES:
        packed = (mnist_folder / "MNIST" / "raw" / name).read_bytes()
        (raw / name.removesuffix(".gz")).write_bytes(gzip.decompress(packed))
    unpacked = load_data("mnist", str(tmp_path))
    for part, unpacked_part in zip(
        mnist.parts.values(), unpacked.parts.values(), strict=True
    ):
        np.testing.assert_array_equal(part.inputs, unpacked_part.inputs)
        np.testing.assert_array_equal(part.labels, unpacked_part.labels)
    theirs = torchvision_datasets.MNIST(tmp_path, train=False, transform=ToTensor())
    data = make_data_set({"train": theirs})
    batch = next(Batches(data.train, 100, shuffle_seed=1).epoch(0))
    # Theirs are [b, 1, H, W], from 0 to 1.
    images = mnist.test.inputs[batch.indices].transpose(0, 3, 1, 2)
    np.testing.assert_allclose(batch.inputs, images / np.float32(255), rtol=1e-6)
    np.testing.assert_array_equal(batch.labels, mnist.test.labels[batch.indices])
    assert data.classes == tuple(theirs.classes)


@pytest.mark.imdb
def test_the_real_reviews(imdb_folder):
    for texts in load_data("imdb", str(imdb_folder)).parts.values():
        assert np.bincount(texts.labels).tolist() == [12_500, 12_500]
        assert max(len(text.split()) for text in texts.texts) <= 2470
        assert sum("<br />" in text for text in texts.texts) == pytest.approx(
            14_600, abs=200
        )


EIGHT = [
    "--dataset",
    "mnist",
    "--devices",
    8,
    "--per-device-batch-size",
    64,
    "--epochs",
    1,
]


@pytest.mark.parametrize(
    ("arguments", "accuracy"),
    [
        # Ten seeds gave 0.9926 in the mean, with a standard deviation of 0.0006.
        pytest.param(["speedrun"], 0.99, marks=pytest.mark.mnist),
        *(
            pytest.param([*EIGHT, "--strategy", name], 0.96, marks=pytest.mark.mnist)
            for name in ("pmap", "jit")
        ),
        # What logistic regression and this network reach on one device, rounded down.
        pytest.param(["dtensor-data"], 0.865, marks=pytest.mark.imdb),
    ],
)
def test_training_reaches_its_accuracy(request, tmp_path, arguments, accuracy):
    folder = request.getfixturevalue(
        "imdb_folder" if "dtensor-data" in arguments else "mnist_folder"
    )
    metrics = tmp_path / "metrics.jsonl"
    done = train(
        *arguments, "--data-dir", folder, "--metrics-file", metrics, timeout=600
    )
    assert done.returncode == 0, done.stderr
    epochs = entry.epochs_in(metrics)
    assert {epoch["test"]["examples"] for epoch in epochs} == {
        25_000 if "dtensor-data" in arguments else 10_000
    }
    assert max(epoch["test"]["accuracy"] for epoch in epochs) >= accuracy

"""Checks of lesson 10's exercises."""

import os
import tempfile
from pathlib import Path

import numpy as np
from checks import require

from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split


def where(answer):
    """Epoch and updates done in it, also right at the end of an epoch."""
    random = np.random.default_rng()
    for _ in range(5):
        per_epoch = int(random.integers(5, 50))
        epoch, done = int(random.integers(0, 9)), int(random.integers(1, per_epoch))
        found = tuple(answer(epoch * per_epoch + done, per_epoch))
        require(
            found != (epoch + 1, done),
            f"epochs count from 0: update {done} of {per_epoch} is in epoch 0, yours says one more",
        )
        require(found == (epoch, done), f"after {epoch} whole epochs and {done} updates the answer is {(epoch, done)}")
    found = tuple(answer(3 * per_epoch, per_epoch))
    require(
        found == (3, 0),
        f"at the end of epoch 2 the next one, epoch 3, begins with 0 updates done; yours says {found}",
    )


def next_examples(answer):
    """The same batches as `pmapdp.data.batches.Batches`, from the numbers alone."""
    random = np.random.default_rng()
    examples, batch_size, seed = int(random.integers(30, 60)), int(random.integers(7, 11)), int(random.integers(100))
    examples += examples % batch_size == 0  # a short last batch
    split = Split(np.zeros((examples, 1)), np.zeros(examples, np.int32))
    batches = Batches(split, batch_size, shuffle_seed=seed)
    expected = [batch.indices[batch.weights > 0] for epoch in range(3) for batch in batches.epoch(epoch)]
    found = [np.asarray(answer(seed, step, batch_size, examples)) for step in range(len(expected))]
    require(
        np.array_equal(found[0], expected[0]),
        "the first batch is wrong: take the first `batch_size` entries of default_rng([seed, 0]).permutation(examples)",
    )
    require(
        len(found[batches.steps - 1]) == len(expected[batches.steps - 1]),
        f"the last batch of an epoch holds the {len(expected[batches.steps - 1])} examples that are left: round the "
        "number of updates per epoch up, and drop nothing",
    )
    require(
        not np.array_equal(np.sort(found[batches.steps]), np.sort(found[0])),
        "epoch 1 repeats the order of epoch 0: the epoch belongs into the seed, [seed, epoch]",
    )
    for step, (ours, right) in enumerate(zip(found, expected, strict=True)):
        require(np.array_equal(ours, right), f"the batch of update {step} is wrong: which epoch is it in?")


def write_whole(answer):
    """The new content is there, nothing else is, and the old file was never opened for writing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text("old")
        keeps_old = Path(folder) / "reader"
        os.link(path, keeps_old)  # sees what happens to the old file itself
        returned = answer(path, "new" * 1000)
        require(returned == path, "return `path`")
        require(path.read_text() == "new" * 1000, "the file does not hold the new text")
        require(
            keeps_old.read_text() == "old",
            "the old file was overwritten in place: whoever reads it meanwhile sees half a file; "
            "write another one and rename it with os.replace",
        )
        left = sorted(each.name for each in Path(folder).iterdir())
        require(left == ["config.json", "reader"], f"other files were left behind: {left}")

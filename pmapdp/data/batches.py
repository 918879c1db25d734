"""The order of the examples as a pure function of (seed, epoch, step).

Nothing is dropped, and a run that resumes in the middle of an epoch gets the batches
that it would have had.
Lesson 08 teaches this file.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.data.dataset import Split


class Batch(NamedTuple):
    """A global batch, padded so that it can be split evenly, on the host or on devices.

    Its B = N K m rows are ordered as `[N, K, m]`: N devices, each with K micro-batches
    of m rows, so a device has b = K m of them. After `pmap.place_batch` the shapes
    begin with `[N, b]` in place of `[B]`.

    Attributes:
        inputs: `[B, ...]` examples, or a dictionary of arrays.
        labels: `[B]` int32 classes, or what your loss takes.
        indices: `[B]` int32 positions in the data set, from which dropout draws its
            masks.
        weights: `[B]` float32, or float64 in a float64 run: 0 for padding, and 1 or the
            data's weight for an example.
    """

    inputs: Any
    labels: Any
    indices: Any
    weights: Any


class Batches:
    """All batches of a data set, the same ones on any number of devices.

    A batch is laid out for N devices and K micro-batches, as `[N, K, m]` rows. The
    examples are cut into K micro-batches in their order, and each is padded to N m
    rows. All batches have the same padded size B = N K m, so that one compiled program
    serves all.

    Args:
        split: The examples, a `Split` or an object with its methods.
        batch_size: Examples in a batch. The last one of an epoch holds what is left.
        devices: N, over which a batch is split.
        local_shards: Which of the N this process reads. None: all.
        accumulate: K, micro-batches per device and update.
        shuffle_seed: None keeps the order of the data set, for evaluation.
    """

    def __init__(
        self,
        split: Split | Any,
        batch_size: int,
        *,
        devices: int = 1,
        local_shards: range | None = None,
        accumulate: int = 1,
        shuffle_seed: int | None = None,
    ):
        self.split = split
        self.batch_size = batch_size
        self.devices = devices
        self.local_shards = local_shards or range(devices)
        self.accumulate = accumulate
        self.shuffle_seed = shuffle_seed
        # float32, or float64 in a run of float64
        self.weight_dtype = jax.dtypes.canonicalize_dtype(np.float64)
        self.num_examples = split.num_examples
        # Then the accuracy is a weighted one, and is called so.
        self.is_weighted = split.weights is not None
        # The last batch of an epoch may be short.
        self.per_epoch = math.ceil(self.num_examples / batch_size)
        self.micro_batch = math.ceil(batch_size / accumulate)
        self.rows_per_device = math.ceil(self.micro_batch / devices)  # m

    def order(self, epoch: int) -> np.ndarray:
        """Return the indices `[n]` of the examples in the order of `epoch` (from 0)."""
        if self.shuffle_seed is None:
            return np.arange(self.num_examples)
        # A new generator for each epoch: a resumed run needs no state of an old one.
        random = np.random.default_rng([self.shuffle_seed, epoch])
        return random.permutation(self.num_examples)

    def split_and_pad(self, indices: np.ndarray) -> np.ndarray:
        """Split the examples of a batch over devices and micro-batches, and pad them.

        Returns:
            Indices `[local N * K * m]`, in which -1 stands for padding.
        """
        N = self.devices
        m = self.rows_per_device
        rows = np.full((N, self.accumulate, m), -1, np.int32)
        for k in range(self.accumulate):
            # All devices share each micro-batch. So batch norm takes its moments over
            # the same examples on any number of devices.
            part = indices[k * self.micro_batch : (k + 1) * self.micro_batch]
            padded = np.full(N * m, -1, np.int32)
            padded[: len(part)] = part
            rows[:, k] = padded.reshape(N, m)
        return rows[self.local_shards.start : self.local_shards.stop].reshape(-1)

    def read_batch(self, indices: np.ndarray) -> Batch:
        """Read the examples of `indices`, at most `batch_size`, as a batch.

        Padding is a copy of example 0 with weight 0.
        """
        rows = self.split_and_pad(indices)
        weights = (rows >= 0).astype(self.weight_dtype)
        # Padding is a real example. The loss of zeros might be NaN, and 0 times NaN is
        # NaN.
        rows = np.maximum(rows, 0)
        examples = self.split.select(rows)
        if examples.weights is not None:
            weights = weights * examples.weights
        return Batch(examples.inputs, examples.labels, rows, weights)

    def count_examples(self, step: int) -> int:
        """Count the examples in the batch of `step` (from 0), without padding."""
        # The step counts from the start of training, not of the epoch.
        first = step % self.per_epoch * self.batch_size
        return min(self.batch_size, self.num_examples - first)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of `epoch` from `first_step` on, both from 0."""
        order = self.order(epoch)
        for step in range(first_step, self.per_epoch):
            first = step * self.batch_size
            yield self.read_batch(order[first : first + self.batch_size])

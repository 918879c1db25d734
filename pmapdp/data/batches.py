"""The order of the examples as a pure function of (seed, epoch, step), with nothing dropped.

So a run that resumes in the middle of an epoch gets the batches that it would have had.
Lesson 08 teaches this file.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.data.dataset import Split


class Batch(NamedTuple):
    """A global batch, padded so that it can be split evenly. Its arrays are on the host or on devices."""

    inputs: Any  # [B, ...] examples, or a dictionary of arrays
    labels: Any  # [B] int32 classes, or what your loss takes
    indices: (
        Any  # [B] int32 positions in the data set, from which dropout draws its masks
    )
    weights: Any  # [B] float32 (float64 in a float64 run): 0 for padding, 1 or the data's weight for an example


class Batches:
    """All batches of a data set, the same ones on any number of devices.

    A batch is laid out for N devices and K accumulation steps. The examples are cut
    into K micro-batches in their order, and each is padded to a multiple of N. Device
    d's rows hold its share of the first micro-batch, then of the second, and so on. All
    batches have the same padded size, so that one compiled program serves all.
    """

    def __init__(
        self,
        split: Split | Any,  # or an object with its methods
        batch_size: int,  # B; the last batch of an epoch holds what is left
        *,
        devices: int = 1,  # N, over which a batch is split
        here: range
        | None = None,  # this process's devices: it reads only their rows; None: all
        accumulate: int = 1,  # K, micro-batches per device and update
        shuffle_seed: int
        | None = None,  # None keeps the order of the data set, for evaluation
    ):
        self.split, self.batch_size, self.shuffle_seed = split, batch_size, shuffle_seed
        self.devices, self.accumulate = devices, accumulate
        self.here = here or range(devices)
        self.weight_dtype = jax.dtypes.canonicalize_dtype(
            np.float64
        )  # float32, or float64 in a run of float64
        self.examples, self.is_weighted = split.examples, split.weights is not None
        self.per_epoch = math.ceil(self.examples / batch_size)
        self.micro_batch = math.ceil(batch_size / accumulate)
        self.share = math.ceil(
            self.micro_batch / devices
        )  # rows of one micro-batch on one device

    def order(self, epoch: int) -> np.ndarray:
        """Return the indices `[n]` of the examples in the order in which `epoch` (from 0) visits them."""
        if self.shuffle_seed is None:
            return np.arange(self.examples)
        return np.random.default_rng([self.shuffle_seed, epoch]).permutation(
            self.examples
        )

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Lay the examples of a batch out over the devices: indices `[local devices, rows on each]`, -1 for padding."""
        K, N = self.accumulate, self.devices
        rows = np.full((K, N * self.share), -1, np.int32)
        for k in range(K):
            part = indices[k * self.micro_batch : (k + 1) * self.micro_batch]
            rows[k, : len(part)] = part
        by_device = rows.reshape(K, N, self.share).swapaxes(0, 1)  # [N, K, share]
        here = by_device[self.here.start : self.here.stop]
        return here.reshape(len(self.here), K * self.share)

    def take(self, indices: np.ndarray) -> Batch:
        """Read the examples of these indices, at most B, and pad them with copies of example 0 at weight 0."""
        order = self.rows(indices).reshape(-1)
        weights = (order >= 0).astype(self.weight_dtype)
        order = np.maximum(order, 0)
        examples = self.split.take(order)
        weights = weights if examples.weights is None else weights * examples.weights
        return Batch(examples.inputs, examples.labels, order, weights)

    def examples_in(self, step: int) -> int:
        """Count the examples in the batch of `step` (from 0) of the run, over all devices and without padding."""
        first = step % self.per_epoch * self.batch_size
        return min(self.batch_size, self.examples - first)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of `epoch` (from 0), from its step `first_step` (from 0) on."""
        order, B = self.order(epoch), self.batch_size
        for step in range(first_step, self.per_epoch):
            yield self.take(order[step * B : (step + 1) * B])

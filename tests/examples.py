"""Small random data for tests of the training step; what the images show does not matter there."""

import numpy as np

from pmapdp.data.batches import Batch
from pmapdp.data.dataset import Split


def random_split(examples: int, seed: int = 0) -> Split:
    """`examples` images `[n, 28, 28, 1]` uint8 of noise with labels."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (examples, 28, 28, 1), np.uint8)
    return Split(images, generator.integers(0, 10, examples, np.int32))


def whole_batch(split: Split, indices: np.ndarray) -> Batch:
    """The batch of exactly these examples, without padding."""
    indices = indices.astype(np.int32)
    return Batch(split.inputs[indices], split.labels[indices], indices, np.ones(len(indices), np.float32))

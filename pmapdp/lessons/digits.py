"""The data of lessons 01 to 08: 1,797 scans of handwritten digits, which come with the package."""

from typing import NamedTuple

import numpy as np

from pmapdp.data.digits import FILE

VALIDATION = 237  # of the 1,437 training examples


class Digits(NamedTuple):
    """Three parts, each a pair: images `[n, 64]` float32 from 0 to 1, a scan of 8 x 8 pixels a row; labels `[n]` int32.

    Attributes:
        train: 1,200 examples to learn from.
        validation: 237 examples to choose by: the network, the learning rate, when to stop.
        test: 360 examples to measure with, once, at the end.
    """

    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def load() -> Digits:
    """The digits of `pmapdp.data.digits`, which names their source, as rows of 64 numbers."""
    with np.load(FILE) as arrays:
        images = {part: arrays[f"{part}_scans"].reshape(-1, 64).astype(np.float32) / 16 for part in ("train", "test")}
        labels = {part: arrays[f"{part}_labels"].astype(np.int32) for part in ("train", "test")}
    train, validation = slice(None, -VALIDATION), slice(-VALIDATION, None)
    return Digits(
        (images["train"][train], labels["train"][train]),
        (images["train"][validation], labels["train"][validation]),
        (images["test"], labels["test"]),
    )

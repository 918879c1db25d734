"""The data of lesson 01: 1,797 scans of handwritten digits, which come with the package."""

from typing import NamedTuple

import numpy as np

from pmapdp.data.digits import FILE


class Digits(NamedTuple):
    """Three parts, each a pair: images `[n, 64]` float32 from 0 to 1, a scan of 8 x 8 pixels a row; labels `[n]` int32."""

    train: tuple[np.ndarray, np.ndarray]  # 1,200 examples
    validation: tuple[np.ndarray, np.ndarray]  # 237
    test: tuple[np.ndarray, np.ndarray]  # 360


def load() -> Digits:
    """The digits of `pmapdp.data.digits`, which names their source, as rows of 64 numbers."""
    with np.load(FILE) as arrays:
        images = {
            part: arrays[f"{part}_scans"].reshape(-1, 64).astype(np.float32) / 16
            for part in ("train", "test")
        }
        labels = {
            part: arrays[f"{part}_labels"].astype(np.int32)
            for part in ("train", "test")
        }
    train, validation = (
        (images["train"][rows], labels["train"][rows])
        for rows in (slice(1200), slice(1200, None))
    )
    return Digits(train, validation, (images["test"], labels["test"]))

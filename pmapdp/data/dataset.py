"""What every source of data gives: arrays on the host."""

from typing import NamedTuple

import numpy as np


class Split(NamedTuple):
    """The n examples of one part of a data set.

    Attributes:
        inputs: `[n, 28, 28, 1]` uint8 images; they stay uint8 until they are on the device.
        labels: `[n]` int32 classes.
    """

    inputs: np.ndarray
    labels: np.ndarray


class DataSet(NamedTuple):
    """A training and a test set."""

    train: Split
    test: Split

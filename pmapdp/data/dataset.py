"""What every source of data gives: arrays on the host, or texts that a view turns into arrays."""

from typing import NamedTuple

import numpy as np


class Split(NamedTuple):
    """The n examples of one part of a data set, as the model takes them.

    Attributes:
        inputs: `[n, ...]`, of a type that stays as it is until it is on the device: `[n, 28, 28, 1]` uint8 images,
            `[n, 1200]` float32 tf-idf weights or `[n, 128]` int32 token ids.
        labels: `[n]` int32 classes.
    """

    inputs: np.ndarray
    labels: np.ndarray


class DataSet(NamedTuple):
    """A training and a test set."""

    train: Split
    test: Split


class Texts(NamedTuple):
    """The n texts of one part of a corpus.

    Attributes:
        texts: n strings.
        labels: `[n]` int32 classes.
    """

    texts: list[str]
    labels: np.ndarray


class Corpus(NamedTuple):
    """A training and a test set of texts."""

    train: Texts
    test: Texts

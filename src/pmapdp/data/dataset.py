"""What every source of data gives: arrays on the host, or texts that a view turns into arrays. Lesson 03 uses it."""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

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


class Texts(NamedTuple):
    """The n texts of one part of a data set.

    Attributes:
        texts: n strings.
        labels: `[n]` int32 classes.
    """

    texts: list[str]
    labels: np.ndarray


@dataclass(frozen=True)
class DataSet:
    """A training and a test set.

    Attributes:
        train: to learn from.
        test: to measure with.
        classes: names of the classes, in the order of their numbers.
    """

    train: Any  # a `Split`, or `Texts` before a view has made arrays of them
    test: Any
    classes: tuple[str, ...] = ()


HASHED = 2**30  # bytes of one array, at most; SHA-256 takes a second for each GB


def fingerprint(data: DataSet) -> str:
    """What tells the content of data sets apart: 16 digits of the SHA-256 of all texts, inputs and labels.

    Of an array of more than 1 GiB every k-th example is taken, and the largest k is named.
    """
    content, most = hashlib.sha256(), 1
    for each in (*data.train, *data.test):
        if isinstance(each, list):
            content.update(json.dumps(each).encode())
        else:
            every = math.ceil(each.nbytes / HASHED)
            content.update(f"{each.dtype} {each.shape} ".encode())
            content.update(np.ascontiguousarray(each[::every]).data)
            most = max(most, every)
    return content.hexdigest()[:16] + (f", from one in {most} examples" if most > 1 else "")

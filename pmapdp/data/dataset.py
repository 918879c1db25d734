"""A data set: arrays on the host, or texts that a featurizer turns into arrays. Lesson 03 uses it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np


class Split(NamedTuple):
    """The n examples of one part of a data set, as the model takes them.

    Inputs keep their dtype until they reach the device: `[n, 28, 28, 1]` uint8 images,
    `[n, 1200]` float32 tf-idf weights, `[n, 128]` int32 token ids, or a dictionary of
    arrays.
    """

    inputs: Any
    labels: Any  # [n] int32 classes, or what your loss takes: an array, or a dictionary of arrays
    weights: Any = (
        None  # [n], how much each example counts, more than 0; None if each counts 1
    )

    @property
    def examples(self) -> int:
        """Return n."""
        return len(jax.tree.leaves(self.labels)[0])

    def take(self, order: np.ndarray) -> Any:
        """Return the examples of these indices, in this order."""
        return jax.tree.map(lambda array: array[order], self)


class Texts(NamedTuple):
    """The n texts of one part of a data set."""

    texts: list[str]
    labels: np.ndarray  # [n] int32 classes


@dataclass(frozen=True)
class DataSet:
    """A training set, and the sets on which the model is evaluated.

    Each part is a `Split`, `Texts`, or an object with the methods of a `Split`.
    """

    train: Any
    test: Any = None
    classes: tuple[str, ...] = ()  # their names, in the order of their numbers
    validation: Any = None  # evaluated after each epoch instead of the test set, which waits for `pmapdp.evaluate`
    augment: Callable[[Any, jax.Array], Any] | None = (
        None  # in training: (an example's inputs, a key) -> new inputs
    )

    @property
    def parts(self) -> dict[str, Any]:
        """Return the parts that there are, by name."""
        named = {"train": self.train, "test": self.test, "validation": self.validation}
        return {name: part for name, part in named.items() if part is not None}

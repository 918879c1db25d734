"""A data set: arrays on the host, or texts that a featurizer turns into arrays.

Lesson 03 uses it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np


class Split(NamedTuple):
    """A split is one part of a data set: n examples, as the model takes them.

    Attributes:
        inputs: An array or a dictionary of arrays, which keep their dtype until they
            reach the device: `[n, 28, 28, 1]` uint8 images, `[n, 1200]` float32 tf-idf
            weights, or `[n, 128]` int32 token ids.
        labels: `[n]` int32 classes, or what your loss takes: an array, or a dictionary
            of arrays.
        weights: How much each example counts, above 0: an array `[n]`, or a dictionary
            `{class: weight}`. None: each counts 1.

    Example:
        counts_twice = np.where(labels == 0, 2.0, 1.0)
        rare_class = Split(inputs, labels, counts_twice)
    """

    inputs: Any
    labels: Any
    weights: Any = None

    @property
    def num_examples(self) -> int:
        """Return n."""
        return len(jax.tree.leaves(self.labels)[0])

    def select(self, indices: np.ndarray) -> Any:
        """Return the examples of these indices, in this order."""
        return jax.tree.map(lambda array: array[indices], self)


class Texts(NamedTuple):
    """Texts hold n texts of a data set, and their classes.

    Attributes:
        texts: The texts.
        labels: `[n]` classes, as numbers or names.

    Example:
        reviews = DataSet(train=Texts(["good", "bad"] * 32, ["like", "dislike"] * 32))
    """

    texts: list[str]
    labels: np.ndarray


@dataclass(frozen=True)
class DataSet:
    """A data set holds the training set, and the sets that evaluate the model.

    Each part is a `Split`, `Texts` or a map-style data set, which is an object with
    `len(data)` and `data[i]`, such as PyTorch's.

    Attributes:
        train: The training set.
        test: The test set. It's evaluated after each epoch if there is no validation
            set.
        classes: The names of the classes, in the order of their numbers.
        validation: The validation set. It's evaluated after each epoch instead of the
            test set, which then waits for `pmapdp.evaluate`.
        augment: A function that changes an example in training. It takes the inputs of
            one example and a random key, and returns the new inputs.

    Example:
        data = DataSet(
            train=Split(inputs[:192], labels[:192]),
            test=Split(inputs[192:], labels[192:]),
            classes=("first", "second", "third"),
        )
    """

    train: Any
    test: Any = None
    classes: tuple[str, ...] = ()
    validation: Any = None
    augment: Callable[[Any, jax.Array], Any] | None = None

    @property
    def parts(self) -> dict[str, Any]:
        """Return the parts that aren't None, by name."""
        parts = {"train": self.train, "test": self.test, "validation": self.validation}
        return {name: part for name, part in parts.items() if part is not None}

"""Read the examples of map-style data sets one by one, while the devices compute.

A map-style data set has `len(source)` and `source[i]`, as torchvision's, PyTorch's,
Hugging Face's and Grain's data sets have, or a list. Each batch is the same as from
arrays, also after a run is resumed. docs/custom_reference.md says what an example is.
"""

import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from pmapdp.custom.arrays import convert_split, describe_shapes
from pmapdp.data.dataset import Split
from pmapdp.errors import UserError, YourCodeError, explain_errors, name_or_repr

# Before training, the first examples are read several times. A random transform would
# most likely change one of them.
FIRST_EXAMPLES = 4
TRIALS = 4
# Threads that read a thread-safe data set. There are more than cores, because reading
# waits for disks.
THREADS = min(16, 2 * (os.cpu_count() or 1))


class MapStyleSplit:
    """The examples of a map-style data set, with the methods of a `Split`.

    Attributes:
        num_examples: The number of examples.
        weights: The first example's weight `[1]`, or None if each example counts 1.
        number_of_logits: The number of classes that the model knows, or None if it
            isn't a classifier. Labels are checked against it as they are read.
    """

    def __init__(self, source: Any, name: str, classes: tuple[str, ...]):
        self.source = source
        self.name = name  # in messages
        self.classes = classes
        self.number_of_logits: int | None = None
        self.num_examples = len(source)
        # Two threads that read from one open file would get wrong examples, so the
        # class has to say that it's safe.
        self.threads = 1
        if getattr(type(source), "thread_safe", False) is True:
            self.threads = THREADS
        # The checksum of each example that was read, and 0 for the others.
        self.checksums = np.zeros(self.num_examples, np.uint32)
        self.shapes = describe_shapes(self.read(0))
        for _ in range(TRIALS):
            for index in range(min(FIRST_EXAMPLES, self.num_examples)):
                self.read(index)
        self.weights = self.select(np.arange(1)).weights

    def read(self, index: int) -> Split:
        """Read one example, and refuse it if it changed since it was read before."""
        failure = f"example {index} of {self.name} data cannot be read"
        with explain_errors(failure, "correct or remove it", YourCodeError):
            # Pillow may read an image only now, as it becomes an array.
            example = jax.tree.map(
                to_array, split_example(self.source[index]), is_leaf=is_one_array
            )
        # Four bytes an example, so that all of them fit in memory.
        content = b"".join(leaf.tobytes() for leaf in jax.tree.leaves(example))
        checksum = zlib.crc32(content) | 1  # never 0, which means "not read yet"
        if self.checksums[index] not in (0, checksum):
            raise UserError(
                f"example {index} of {self.name} data changes every time it is read, "
                "so a run could not be resumed: leave random transforms out, and give "
                "DataSet(..., augment=...), a function of one example's inputs and a "
                "random key"
            )
        self.checksums[index] = checksum
        return example

    def select(self, order: np.ndarray) -> Split:
        """Return the examples of these indices, in this order. Each is read once."""
        # Padding repeats an example, which is read only once.
        indices, positions = np.unique(order, return_inverse=True)
        with ThreadPoolExecutor(self.threads) as pool:
            examples = list(pool.map(self.read, indices.tolist()))
        for index, example in zip(indices, examples, strict=True):
            shapes = describe_shapes(example)
            if shapes != self.shapes:
                raise UserError(
                    f"example {index} of {self.name} data has {shapes}, and example 0 "
                    f"{self.shapes}: give all of them one shape and type"
                )
        rows = jax.tree.map(
            lambda *leaves: np.stack(leaves),
            *(examples[position] for position in positions),
        )
        try:
            split = convert_split(self.name, rows, self.classes)
        except UserError:
            # The message names a row of this batch. Convert one example after the
            # other, so that it names the example.
            for index, example in zip(indices, examples, strict=True):
                row = jax.tree.map(lambda leaf: leaf[None], example)
                convert_split(f"example {index} of {self.name}", row, self.classes)
            raise
        if self.number_of_logits:
            check_labels(self.name, split, self.number_of_logits)
        return split


def check_labels(name: str, part: Any, number_of_logits: int) -> None:
    """Refuse labels that aren't classes of a model with so many logits.

    The labels of a `MapStyleSplit` are checked later, as each batch is read.
    """
    if isinstance(part, MapStyleSplit):
        part.number_of_logits = number_of_logits
        return
    labels = part.labels[:]
    lowest = labels.min()
    highest = labels.max()
    if lowest < 0 or highest >= number_of_logits:
        raise UserError(
            f"{name} labels are from {lowest} to {highest}, and the model has "
            f"{number_of_logits} logits: use 0 to {number_of_logits - 1}, "
            "numpy.unique(labels, return_inverse=True)[1], or a model of more logits"
        )


def split_example(example: Any) -> Split:
    """Return inputs, label and weight of an example, from a tuple or a dictionary."""
    if isinstance(example, Mapping):  # as Hugging Face's data sets have them
        inputs = dict(example)
        weight = inputs.pop("weight", None)
        label = inputs.pop("label", None)
        if label is None:
            label = inputs.pop("labels", None)
        if label is not None and inputs:
            if len(inputs) == 1:
                (inputs,) = inputs.values()
            return Split(inputs, label, weight)
    elif isinstance(example, tuple | list) and len(example) in (2, 3):
        return Split(*example)
    raise UserError(
        f"an example of the data is {name_or_repr(example)}: give a pair (inputs, "
        "label), or a dictionary with a 'label'; without labels give the inputs twice"
    )


def is_one_array(node: Any) -> bool:
    """Return False if a node holds several arrays. A list of numbers is one array."""
    return not isinstance(node, Split | dict | None)


def to_array(value: Any) -> np.ndarray:
    """Make an array of a value, and give a grey image of Pillow an axis of channels."""
    array = np.asarray(value)
    if hasattr(value, "getbands") and array.ndim == 2:
        array = array[..., None]
    return array

"""A map-style data set, `len(source)` and `source[i]`: read example by example, while the devices compute.

torchvision's, PyTorch's, Hugging Face's and Grain's data sets are of this style, and so is a list of pairs. An example
is a pair (inputs, label), a triple (inputs, label, weight), or a dictionary with a `label`. Threads read
the examples of a batch, so each batch is what it would be from arrays, also after a run is resumed.
"""

import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from pmapdp.custom.arrays import as_array, check_split
from pmapdp.custom.labels import are_names, numbers_of
from pmapdp.data.dataset import Split
from pmapdp.errors import UserError, explained, shown

TRIED = 4  # examples that are read before training, and how often: most random transforms show there
THREADS = min(16, 2 * (os.cpu_count() or 1))  # decoders wait for disks, and most let other threads run


class Examples:
    """The examples of one part of a data set; it has the methods of a `Split`.

    Args:
        source: the map-style data set.
        name: of the part, for sentences, for example "the training".
        classes: the names of the classes, where labels are names.

    Attributes:
        examples: n.
        classifies: whether labels are classes, so that `[1]` and one-hot labels become numbers.
        logits: C, where labels must be from 0 to C - 1.
    """

    def __init__(self, source: Any, name: str, classes: tuple[str, ...] = ()):
        self.source, self.name, self.classes, self.classifies = source, name, classes, False
        self.logits: int | None = None
        with explained(f"{name} data={shown(source)} have no length", "give what has len(data) and data[i]"):
            self.examples = len(source)
        if self.examples == 0:
            raise UserError(f"{name} data have no examples: give at least one")
        self.sums = np.zeros(self.examples, np.uint32)  # checksum of each example that was read, 0 for the others
        self.first = self.read(0)
        for index in TRIED * list(range(min(TRIED, self.examples))):
            self.read(index)

    def of(self, classifies: bool) -> "Examples":
        """These examples, for a model that `classifies` or does not."""
        self.classifies = classifies
        return self

    def read(self, index: int) -> Split:
        """One example, without an axis of examples; refused where it is not what it was when it was read before."""
        with explained(f"example {index} of {self.name} data cannot be read", "correct it, or leave it out"):
            inputs, label, weight = parts_of(self.source[index])
        if are_names(label):
            label = numbers_of(f"{self.name} labels", label, self.classes)
        inputs, label = arrays_of(self.name, inputs), arrays_of(self.name, label)
        example = Split(inputs, label, None if weight is None else arrays_of(self.name, weight))
        checksum = zlib.crc32(b"".join(leaf.tobytes() for leaf in jax.tree.leaves(example))) | 1
        if self.sums[index] not in (0, checksum):
            raise UserError(
                f"example {index} of {self.name} data is another one each time it is read, so a run could not be "
                "resumed: leave random transforms out, and give DataSet(..., augment=...), a function of one "
                "example's inputs and a random key"
            )
        self.sums[index] = checksum
        return example

    def take(self, order: np.ndarray) -> Split:
        """The examples of these numbers, in this order, each read once."""
        each = list(dict.fromkeys(order.tolist()))
        with ThreadPoolExecutor(THREADS) as pool:
            read = dict(zip(each, pool.map(self.read, each), strict=True))
        for index, example in read.items():
            if form(example) != form(self.first):
                raise UserError(
                    f"example {index} of {self.name} data has {', '.join(form(example))}, and example 0 "
                    f"{', '.join(form(self.first))}: give all of them one shape and type"
                )
        rows: Split = jax.tree.map(lambda *rows: np.stack(rows), *(read[index] for index in order.tolist()))
        split = check_split(self.name, rows, classifies=self.classifies)
        if self.logits and not ((split.labels >= 0) & (split.labels < self.logits)).all():
            raise UserError(
                f"{self.name} labels have {split.labels.min()} and {split.labels.max()}, and the model has "
                f"{self.logits} logits: use 0 to {self.logits - 1}"
            )
        return split


def parts_of(example: Any) -> tuple[Any, Any, Any]:
    """Inputs, label and weight (or None) of an example in one of the forms above."""
    if isinstance(example, Mapping):
        inputs, labels = dict(example), [name for name in ("label", "labels") if name in example]
        weight = inputs.pop("weight", None)
        if len(labels) == 1 and len(inputs) > 1:
            label = inputs.pop(labels[0])
            return inputs.popitem()[1] if len(inputs) == 1 else inputs, label, weight
    elif isinstance(example, tuple | list) and len(example) in (2, 3):
        return example[0], example[1], example[2] if len(example) == 3 else None
    raise UserError(
        f"an example of the data is {shown(example)}: give a pair (inputs, label), or a dictionary with a 'label'"
    )


def arrays_of(name: str, values: Any) -> Any:
    """One example's values as arrays. An image of Pillow in grey gets an axis of channels."""
    if isinstance(values, Mapping):
        return {key: arrays_of(name, each) for key, each in values.items()}
    array = as_array(f"{name} examples", values)
    return array[..., None] if hasattr(values, "getbands") and array.ndim == 2 else array


def form(example: Any) -> list[str]:
    """Type and shape of each array of an example."""
    return [f"{leaf.dtype} {list(leaf.shape)}" for leaf in jax.tree.leaves(example)]

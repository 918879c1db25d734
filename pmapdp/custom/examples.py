"""A map-style data set, `len(source)` and `source[i]`, read example by example while the devices compute.

torchvision's, PyTorch's, Hugging Face's and Grain's data sets are of this style, and so is a list of pairs. An example
is a pair (inputs, label), a triple (inputs, label, weight), or a dictionary with a `label`. Threads read the examples
of a batch, so each batch is the same as from arrays, also after a run is resumed.
"""

import os
import sys
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from pmapdp.data.dataset import Split
from pmapdp.errors import UserError, shown, user_code_errors

TRIALS = 4  # examples that are read before training, and how often: most random transforms show there
THREADS = min(16, 2 * (os.cpu_count() or 1))  # decoders wait for disks, and most let other threads run


class Examples:
    """The examples of one part of a data set, with the methods of a `Split`.

    Args:
        source: the map-style data set.
        name: what sentences call the part, for example "the training".
        check: checks rows `[b, ...]` and converts them to JAX's types.

    Attributes:
        examples: n.
        classes: C if labels must be from 0 to C - 1, else None.
    """

    def __init__(self, source: Any, name: str, check: Callable[[Split], Split]):
        self.source, self.name, self.check, self.classes = source, name, check, None
        with user_code_errors(
            f"{name} data={shown(source)} have no length", "give an object with len(data) and data[i]"
        ):
            self.examples = len(source)
        if self.examples == 0:
            raise UserError(f"{name} data have no examples: give at least one")
        if self.examples == sys.maxsize:  # Grain's
            raise UserError(f"{name} data repeat without an end: leave .repeat() out, because --epochs repeats them")
        self.checksums = np.zeros(self.examples, np.uint32)  # of each example that was read, 0 for the others
        self.first = self.read(0)
        for index in TRIALS * list(range(min(TRIALS, self.examples))):
            self.read(index)

    def read(self, index: int) -> Split:
        """Read one example, without an axis of examples. Refuse one that changed since it was read before."""
        with user_code_errors(f"example {index} of {self.name} data cannot be read", "correct it, or leave it out"):
            example = Split(*map(to_arrays, split_example(self.source[index])))
        checksum = zlib.crc32(b"".join(leaf.tobytes() for leaf in jax.tree.leaves(example))) | 1
        if self.checksums[index] not in (0, checksum):
            raise UserError(
                f"example {index} of {self.name} data is another one each time it is read, so a run could not be "
                "resumed: leave random transforms out, and give DataSet(..., augment=...), a function of one "
                "example's inputs and a random key"
            )
        self.checksums[index] = checksum
        return example

    def take(self, order: np.ndarray) -> Split:
        """Read the examples of these indices, in this order, each once."""
        indices = list(dict.fromkeys(order.tolist()))
        with ThreadPoolExecutor(THREADS) as pool:
            read = dict(zip(indices, pool.map(self.read, indices), strict=True))
        for index, example in read.items():
            if describe(example) != describe(self.first):
                raise UserError(
                    f"example {index} of {self.name} data has {describe(example)}, and example 0 "
                    f"{describe(self.first)}: give all of them one shape and type"
                )
        split = self.check(jax.tree.map(lambda *rows: np.stack(rows), *(read[index] for index in order.tolist())))
        if self.classes and not ((split.labels >= 0) & (split.labels < self.classes)).all():
            raise UserError(
                f"{self.name} labels have {split.labels.min()} and {split.labels.max()}, and the model has "
                f"{self.classes} logits: use 0 to {self.classes - 1}"
            )
        return split


def split_example(example: Any) -> tuple[Any, Any, Any]:
    """Split an example, in one of the forms above, into inputs, label and weight (or None)."""
    if isinstance(example, Mapping):
        inputs, names = dict(example), [name for name in ("label", "labels") if name in example]
        weight = inputs.pop("weight", None)
        if len(names) == 1 and len(inputs) > 1:
            label = inputs.pop(names[0])
            return inputs.popitem()[1] if len(inputs) == 1 else inputs, label, weight
    elif isinstance(example, tuple | list) and len(example) in (2, 3):
        return example[0], example[1], example[2] if len(example) == 3 else None
    raise UserError(
        f"an example of the data is {shown(example)}: give a pair (inputs, label), or a dictionary with a 'label'; "
        "without labels give the inputs twice"
    )


def to_arrays(values: Any) -> Any:
    """Turn one example's values into arrays. A grey image of Pillow gets an axis of channels."""
    if values is None:
        return None
    if isinstance(values, Mapping):
        return {key: to_arrays(each) for key, each in values.items()}
    array = np.asarray(values)
    return array[..., None] if hasattr(values, "getbands") and array.ndim == 2 else array


def describe(tree: Any) -> str:
    """Describe type and shape of each array in a tree. Texts may differ in length."""
    return ", ".join(
        f"{'text' if np.issubdtype(leaf.dtype, np.str_) else leaf.dtype} {list(leaf.shape)}"
        for leaf in jax.tree.leaves(tree)
    )

"""Your data, as arrays, as a map-style data set or in an .npz file, become a `DataSet` that the devices can take.

A map-style data set has `len(source)` and `source[i]`: torchvision's, PyTorch's,
Hugging Face's and Grain's, or a list. A thread reads the examples of a batch while the
devices compute, or several, if the class says `thread_safe = True`. Each batch is the
same as from arrays, also after a run is resumed. docs/custom.md has the forms of
examples and files.
"""

import hashlib
import math
import os
import sys
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import RLock
from typing import Any

import jax
import numpy as np

from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError, explain_errors, shown
from pmapdp.files import open_file

PARTS = {
    "train": "the training",
    "test": "the test",
    "validation": "the validation",
}  # as sentences call them
LARGE, SAMPLE = (
    2**30,
    2**26,
)  # bytes; of a larger array only a sample is looked at, so that it may stay in its file
TRIALS = 4  # examples that are read before training, and how often: most random transforms show there
THREADS = min(
    16, 2 * (os.cpu_count() or 1)
)  # decoders wait for disks, and most let other threads run
ONE_THREAD = RLock()  # for all data sets, because two may read from one open file; one may read through another


def make_data_set(data: Any) -> DataSet:
    """Make a data set with arrays of JAX's types, from a `DataSet` or a dictionary of `train`, `test`, `validation`.

    A part is a `Split` or a tuple of arrays (inputs, labels, perhaps weights), `Texts`,
    or a map-style data set. Labels that are strings become numbers of `classes`, by
    default the strings of the training set in alphabetical order.
    """
    if isinstance(data, Mapping) and {"train"} <= set(data) <= set(PARTS):
        data = DataSet(**data)
    if not isinstance(data, DataSet) or data.train is None:
        raise UserError(
            f"data={shown(data)} is no data set: give pmapdp.data.dataset.DataSet(Split(inputs, labels), "
            "Split(test_inputs, test_labels))"
        )
    classes = tuple(map(str, data.classes)) or classes_of(data.train)
    if twice := {name for name in classes if classes.count(name) > 1}:
        raise UserError(
            f"two classes have the name {shown(min(twice))}: give each its own"
        )
    parts: dict[str, Any] = {
        name: make_part(PARTS[name], part, classes) for name, part in data.parts.items()
    }
    first = {
        name: part.take(np.arange(1))[:2]
        for name, part in parts.items()
        if not isinstance(part, Texts)
    }
    shapes = jax.tree.map(lambda x: list(x.shape[1:]), first)
    for name, shape in shapes.items():
        if shape != shapes["train"]:
            raise UserError(
                f"an example of the training data has inputs and label of shapes {shapes['train']}, and one of "
                f"{PARTS[name]} data {shape}: only n may differ"
            )
    return DataSet(**parts, classes=classes, augment=data.augment)


def classes_of(train: Any) -> tuple[str, ...]:
    """Return the names of the classes: a map-style data set's own, else the strings among the labels, else ()."""
    if names := getattr(train, "classes", ()):
        return tuple(map(str, names))  # as torchvision's data sets have them
    labels = train[1] if isinstance(train, tuple) and len(train) > 1 else ()
    is_list = hasattr(labels, "__len__") and not isinstance(labels, Mapping)
    is_text = is_list and isinstance(next(iter(labels), None), str)
    return (
        tuple(sorted({name for name in labels if isinstance(name, str)}))
        if is_text
        else ()
    )


def make_part(name: str, part: Any, classes: tuple[str, ...] = ()) -> Any:
    """Make a part that sentences call `name`: a checked `Split`, `Texts`, or `Examples`, which check themselves."""
    if type(part) is tuple and len(part) in (2, 3):
        part = Split(*part)
    if isinstance(part, Texts):
        return Texts(part.texts, convert(f"{name} labels", part.labels, classes))
    if isinstance(part, Split):
        return check_split(name, part, classes)
    if (
        hasattr(part, "__len__")
        and hasattr(part, "__getitem__")
        and not isinstance(part, Mapping | str | bytes)
    ):
        return Examples(part, name, classes)
    raise UserError(
        f"{name} data={shown(part)} are no examples: give Split(inputs, labels), or an object with len(data) and "
        "data[i], a pair (inputs, label); of a loader give its data set, because batches are made here"
    )


class Examples:
    """The examples of a map-style data set, with the methods of a `Split`. Sentences call it `name`."""

    def __init__(self, source: Any, name: str, classes: tuple[str, ...]):
        self.source, self.name, self.classes = source, name, classes
        self.turn = (
            nullcontext()
            if getattr(type(source), "thread_safe", False) is True
            else ONE_THREAD
        )
        self.logits: int | None = None  # of the model, if labels are numbers of classes
        self.examples = len(source)
        if self.examples == 0:
            raise UserError(f"{name} data have no examples: give at least one")
        if self.examples == sys.maxsize:  # Grain's
            raise UserError(
                f"{name} data repeat without an end: leave .repeat() out, because --epochs repeats them"
            )
        self.checksums = np.zeros(
            self.examples, np.uint32
        )  # of each example that was read, 0 for the others
        self.shapes = describe(self.read(0))
        for index in TRIALS * list(range(min(TRIALS, self.examples))):
            self.read(index)
        self.weights = self.take(np.arange(1)).weights

    def read(self, index: int) -> Split:
        """Read one example. Refuse one that changed since it was read before."""
        with (
            self.turn,
            explain_errors(
                f"example {index} of {self.name} data cannot be read",
                "correct or remove it",
            ),
        ):
            example = Split(
                *map(to_arrays, split_example(self.source[index]))
            )  # some of Pillow's images are read here
        checksum = (
            zlib.crc32(b"".join(leaf.tobytes() for leaf in jax.tree.leaves(example)))
            | 1
        )
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
        indices, places = np.unique(order, return_inverse=True)
        with ThreadPoolExecutor(THREADS) as pool:
            examples = list(pool.map(self.read, indices.tolist()))
        for index, example in zip(indices, examples, strict=True):
            if (shapes := describe(example)) != self.shapes:
                found = f"{shapes}, and example 0 {self.shapes}"
                raise UserError(
                    f"example {index} of {self.name} data has {found}: give all of them one shape and type"
                )
        rows = jax.tree.map(
            lambda *leaves: np.stack(leaves), *(examples[place] for place in places)
        )
        try:
            split = check_split(self.name, rows, self.classes)
        except UserError:
            for index, example in zip(
                indices, examples, strict=True
            ):  # which one it is
                row = jax.tree.map(lambda leaf: leaf[None], example)
                check_split(f"example {index} of {self.name}", row, self.classes)
            raise
        if self.logits:
            check_labels(self.name, split, self.logits)
        return split


def check_labels(name: str, part: Any, logits: int) -> None:
    """Refuse labels that are no classes of a model with so many logits, of `Examples` as they are read."""
    if isinstance(part, Examples):
        part.logits = logits
    elif (labels := part.labels).min() < 0 or labels.max() >= logits:
        raise UserError(
            f"{name} labels are from {labels.min()} to {labels.max()}, and the model has {logits} logits: use 0 to "
            f"{logits - 1}, numpy.unique(labels, return_inverse=True)[1], or a model of more logits"
        )


def split_example(example: Any) -> tuple[Any, Any, Any]:
    """Split an example, in one of the forms above, into inputs, label and weight (or None)."""
    if isinstance(example, Mapping):
        inputs = dict(example)
        label, weight = (
            inputs.pop("label" if "label" in inputs else "labels", None),
            inputs.pop("weight", None),
        )
        if label is not None and inputs:
            return inputs.popitem()[1] if len(inputs) == 1 else inputs, label, weight
    elif isinstance(example, tuple | list) and len(example) in (2, 3):
        return example[0], example[1], example[2] if len(example) == 3 else None
    raise UserError(
        f"an example of the data is {shown(example)}: give a pair (inputs, label), or a dictionary with a 'label'; "
        "without labels give the inputs twice"
    )


def to_arrays(values: Any) -> Any:
    """Turn one example's values into arrays. A grey image of Pillow gets an axis of channels."""

    def to_array(value: Any) -> np.ndarray:
        array = np.asarray(value)
        return (
            array[..., None]
            if hasattr(value, "getbands") and array.ndim == 2
            else array
        )

    return jax.tree.map(
        to_array, values, is_leaf=lambda value: not isinstance(value, dict | None)
    )


def describe(tree: Any) -> str:
    """Describe type and shape of each array in a tree. Texts may differ in length."""
    return ", ".join(
        f"{'text' if leaf.dtype.kind == 'U' else leaf.dtype} {list(leaf.shape)}"
        for leaf in jax.tree.leaves(tree)
    )


def check_split(name: str, split: Split, classes: tuple[str, ...] = ()) -> Split:
    """Check the arrays of a part, called `name`, and convert them to JAX's types."""
    inputs, labels = (
        convert(f"{name} inputs", split.inputs),
        convert(f"{name} labels", split.labels, classes),
    )
    weights = split.weights
    if weights is not None:
        real = jax.dtypes.canonicalize_dtype(
            np.float64
        )  # float32, or float64 in a run of float64
        weights = convert(f"{name} weights", weights).astype(real)
        if weights.ndim != 1 or not (weights > 0).all():
            raise UserError(
                f"{name} weights have shape {list(weights.shape)}, or are not all above 0: give one above 0 for each "
                "example, and leave out those that should not count, inputs[weights > 0]"
            )
    shapes = [list(each.shape) for each in jax.tree.leaves((inputs, labels, weights))]
    if not shapes or not all(
        shape[:1] == shapes[0][:1] and math.prod(shape[:1]) for shape in shapes
    ):
        advice = "give one row per example, at least one"
        raise UserError(
            f"{name} inputs, labels and weights have shapes {shapes}: {advice}"
        )
    return Split(inputs, labels, weights)


def convert(what: str, values: Any, classes: tuple[str, ...] | None = None) -> Any:
    """Convert an array, called `what`, or each in a dictionary, to the type that JAX has for it.

    With `classes` they are labels: whole numbers and names of classes become int32
    numbers. A `UserError` says that it is no array of finite numbers, or that JAX's
    type can't hold them.
    """
    if isinstance(values, Mapping) and values:
        return {
            key: convert(f"{what} {key!r}", each, classes)
            for key, each in values.items()
        }
    with explain_errors(
        f"{what} are no array", "give a NumPy array"
    ):  # for example lists of different lengths
        array = np.atleast_1d(np.asarray(values))
    if classes is not None and array.size and isinstance(array.flat[0], str):
        numbers = {name: number for number, name in enumerate(classes)}
        if unknown := {str(name) for name in array.flat if name not in numbers}:
            raise UserError(
                f"{what} have {shown(min(unknown))}, which is none of the {len(classes)} classes: leave such examples "
                "out, or name all classes in their order, DataSet(..., classes=(...))"
            )
        array = np.vectorize(numbers.get)(array)
    if array.dtype.kind not in "biuf" or np.ma.is_masked(values):
        kind = "masked in part" if np.ma.is_masked(values) else f"of type {array.dtype}"
        raise UserError(
            f"{what} are {kind}: give whole numbers, real numbers or truth values, and all of them"
        )
    dtype = jax.dtypes.canonicalize_dtype(array.dtype.newbyteorder("="))
    if classes is not None and dtype.kind != "f":
        dtype = np.dtype(np.int32)
    with np.errstate(all="ignore"):
        result = array.astype(dtype, copy=False)
    every = sample_every(array) if result is array else 1
    fits = (
        np.isfinite(result[::every])
        if dtype.kind == "f"
        else result[::every] == array[::every]
    )
    if not fits.all():
        where = f"first in row {every * np.argwhere(~fits)[0][0]}"
        raise UserError(
            f"{what} ({array.dtype}) are not all finite numbers in {dtype}, {where}: replace or scale them"
        )
    return result


def sample_every(array: np.ndarray) -> int:
    """Return 1, or for a large array the k of the sample that is every k-th row."""
    return math.ceil(array.nbytes / SAMPLE) if array.nbytes > LARGE else 1


def load_npz(path: Path) -> DataSet:
    """Read the data set in an .npz file. A `UserError` says that it can't be read, or which array it lacks."""
    advice = "write it with numpy.savez(file, train_inputs=..., train_labels=..., test_inputs=..., test_labels=...)"
    with open_file(path, advice=advice) as opened, np.lib.npyio.NpzFile(opened) as file:
        arrays = {name: file[name] for name in file}
        parts: dict[str, Any] = {}
        for name in PARTS:
            if name == "train" or any(each.startswith(f"{name}_") for each in arrays):
                inputs, labels = arrays[f"{name}_inputs"], arrays[f"{name}_labels"]
                parts[name] = Split(inputs, labels, arrays.get(f"{name}_weights"))
    return make_data_set(
        DataSet(**parts, classes=tuple(np.atleast_1d(arrays.get("classes", ()))))
    )


def fingerprint(data: DataSet) -> str:
    """Return 16 digits that tell the content of data sets apart, so that a run isn't resumed with other data.

    Of an array above 1 GiB they take every k-th row, of a map-style data set 64
    examples. Then the largest k follows.
    """
    content, largest = hashlib.blake2b(digest_size=8), 1
    for part in data.parts.values():
        if isinstance(part, Examples):
            largest = max(largest, every := math.ceil(part.examples / 64))
            content.update(f"{part.examples} ".encode())
            part = part.take(np.arange(0, part.examples, every))
        for leaf in map(np.atleast_1d, jax.tree.leaves(part)):  # a text has no axis
            largest = max(largest, every := sample_every(leaf))
            content.update(f"{leaf.dtype} {leaf.shape} ".encode())
            content.update(np.ascontiguousarray(leaf[::every]).data)
    return content.hexdigest() + (
        f", from one in {largest} examples" if largest > 1 else ""
    )

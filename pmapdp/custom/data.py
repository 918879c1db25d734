"""Your data, from Python or from an .npz file, as a `DataSet` that the devices can take.

An .npz file for `--dataset my_data.npz` holds `train_inputs` and `train_labels`. It may hold `train_weights`, the same
three of `test` and of `validation`, and `classes`, the names of the classes.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapdp.custom.examples import Examples
from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError, reason, shown
from pmapdp.files import open_arrays

PARTS = {"train": "the training", "test": "the test", "validation": "the validation"}  # as sentences call them
LARGE, SAMPLE = 2**30, 2**26  # bytes; of a larger array only a sample is looked at, so that it may stay in its file


def make_data_set(data: Any) -> DataSet:
    """Make a data set of what `train` takes as `data`, with arrays of JAX's types.

    Args:
        data: a `DataSet`, or a dictionary of `train`, `test` and `validation`. A part is a `Split` or a tuple of
            arrays (inputs, labels, perhaps weights), `Texts`, or a map-style data set. Labels that are strings become
            numbers of `classes`, by default the strings of the training set in alphabetical order.

    Raises:
        UserError: it is none of these, or its arrays don't fit together.
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
        raise UserError(f"two classes have the name {shown(min(twice))}: give each its own")
    parts: dict[str, Any] = {name: make_part(PARTS[name], part, classes) for name, part in data.parts.items()}
    shapes = {name: shape_of_example(part) for name, part in parts.items() if not isinstance(part, Texts)}
    for name, shape in shapes.items():
        if shape != shapes["train"]:
            raise UserError(
                f"an example of the training data has inputs and label of shapes {shapes['train']}, and one of "
                f"{PARTS[name]} data {shape}: only n may differ"
            )
    return DataSet(**parts, classes=classes, augment=data.augment)


def classes_of(train: Any) -> tuple[str, ...]:
    """Return the names that a map-style data set gives its classes, or those among the labels; () if there are none."""
    if names := getattr(train, "classes", ()):
        return tuple(map(str, names))  # as torchvision's data sets have them
    labels = train[1] if isinstance(train, tuple) and len(train) > 1 else ()
    if isinstance(labels, Mapping) or not hasattr(labels, "__len__") or not isinstance(next(iter(labels), None), str):
        return ()
    return tuple(sorted({name for name in labels if isinstance(name, str)}))


def make_part(name: str, part: Any, classes: tuple[str, ...] = ()) -> Any:
    """Make a part of a data set, called `name`: a checked `Split` or `Texts`, or `Examples`, which check themselves."""
    if type(part) is tuple and len(part) in (2, 3):
        part = Split(*part)
    if isinstance(part, Texts):
        return Texts(part.texts, convert(f"{name} labels", part.labels, classes))
    if isinstance(part, Split):
        return check_split(name, part, classes)
    if hasattr(part, "__len__") and hasattr(part, "__getitem__") and not isinstance(part, Mapping | str | bytes):
        return Examples(part, name, lambda rows: check_split(name, rows, classes))
    raise UserError(
        f"{name} data={shown(part)} are no examples: give Split(inputs, labels), or an object with len(data) and "
        "data[i], a pair (inputs, label); of a loader give its data set, because batches are made here"
    )


def check_split(name: str, split: Split, classes: tuple[str, ...] = ()) -> Split:
    """Check the arrays of a part, called `name`, and convert them to JAX's types."""
    inputs, labels = convert(f"{name} inputs", split.inputs), convert(f"{name} labels", split.labels, classes)
    weights = split.weights
    if weights is not None:
        real = jax.dtypes.canonicalize_dtype(np.float64)  # float32, or float64 in a run of float64
        weights = convert(f"{name} weights", weights).astype(real)
        if weights.ndim != 1 or not (weights > 0).all():
            raise UserError(
                f"{name} weights have shape {list(weights.shape)}, or are not all above 0: give one above 0 for each "
                "example, and leave out those that should not count, inputs[weights > 0]"
            )
    shapes = [list(each.shape) for each in jax.tree.leaves((inputs, labels, weights))]
    if not shapes or not all(shape[:1] == shapes[0][:1] and math.prod(shape[:1]) for shape in shapes):
        raise UserError(
            f"{name} inputs, labels and weights have shapes {shapes}: give one row per example, at least one"
        )
    return Split(inputs, labels, weights)


def convert(what: str, values: Any, classes: tuple[str, ...] | None = None) -> Any:
    """Convert an array, or each in a dictionary, to the type that JAX has for it.

    Args:
        what: the name of the array, for sentences.
        classes: given for labels. Whole numbers and names of classes become int32 numbers.

    Raises:
        UserError: it is no array of finite numbers, or JAX's type can't hold them.
    """
    if isinstance(values, Mapping) and values:
        return {key: convert(f"{what} {key!r}", each, classes) for key, each in values.items()}
    try:
        array = np.asarray(values)
    except Exception as error:  # lists of different lengths, or an object whose conversion fails
        raise UserError(f"{what} are no array ({reason(error)}): give a NumPy array") from error
    if classes is not None and array.size and isinstance(array.flat[0], str):
        array = number_classes(what, array, classes)
    if array.dtype.kind not in "biuf" or np.ma.is_masked(values):
        kind = "masked in part" if np.ma.is_masked(values) else f"of type {array.dtype}"
        raise UserError(f"{what} are {kind}: give whole numbers, real numbers or truth values, and all of them")
    dtype = jax.dtypes.canonicalize_dtype(array.dtype.newbyteorder("="))
    if classes is not None and dtype.kind != "f":
        dtype = np.dtype(np.int32)
    with np.errstate(all="ignore"):
        result = array.astype(dtype, copy=False)
    rows = every_kth(result)[0] if result is array else result
    if dtype.kind == "f" and not np.isfinite(rows).all():
        raise UserError(
            f"{what} ({array.dtype}) are not all finite numbers in {dtype}, first in row "
            f"{np.argwhere(~np.isfinite(rows))[0][:1]}: replace or scale them"
        )
    if dtype.kind != "f" and result is not array and not np.array_equal(result, array):
        raise UserError(
            f"{what} ({array.dtype}) are from {array.min()} to {array.max()}, which do not fit in {dtype}: give "
            "smaller ones"
        )
    return result


def number_classes(what: str, names: np.ndarray, classes: tuple[str, ...]) -> np.ndarray:
    """Turn names of classes into their numbers."""
    numbers = {name: number for number, name in enumerate(classes)}
    if unknown := {name for name in names.flat if name not in numbers}:
        raise UserError(
            f"{what} have {shown(str(min(map(str, unknown))))}, which is none of the {len(classes)} classes: leave "
            "such examples out, or name all classes in their order, DataSet(..., classes=(...))"
        )
    return np.array([numbers[name] for name in names.flat], np.int32).reshape(names.shape)


def every_kth(array: np.ndarray) -> tuple[np.ndarray, int]:
    """Return an array and 1; of a large one every k-th row, and k."""
    every = math.ceil(array.nbytes / SAMPLE) if array.nbytes > LARGE else 1
    return array[::every], every


def shape_of_example(part: Any) -> Any:
    """Return the shapes of the inputs and of the label of one example."""
    return jax.tree.map(lambda x: list(x.shape[1:]), part.take(np.arange(1))[:2])


def load_npz(path: Path) -> DataSet:
    """Read the data set in an .npz file. A `UserError` says that it can't be read, or which array it lacks."""
    advice = "write it with numpy.savez(file, train_inputs=..., train_labels=..., test_inputs=..., test_labels=...)"
    with open_arrays(path, advice=advice) as file:
        arrays = {name: file[name] for name in file}
        parts: dict[str, Any] = {}
        for name in PARTS:
            inputs, labels, weights = (f"{name}_{each}" for each in ("inputs", "labels", "weights"))
            if name == "train" or inputs in arrays or labels in arrays:
                parts[name] = Split(arrays[inputs], arrays[labels], arrays.get(weights))
    return make_data_set(DataSet(**parts, classes=tuple(np.atleast_1d(arrays.get("classes", ())))))


def fingerprint(data: DataSet) -> str:
    """Return 16 digits that tell the content of data sets apart, so that a run isn't resumed with other data.

    They are of all texts, inputs, labels and weights, but of every k-th row of an array above 1 GiB, and of 64 examples
    of a map-style data set. Then the largest k follows, and the name of the augmentation.
    """
    content, largest = hashlib.blake2b(digest_size=8), 1
    for part in data.parts.values():
        if isinstance(part, Examples):
            every = math.ceil(part.examples / 64)
            largest = max(largest, every)
            content.update(f"{part.examples} ".encode())
            part = part.take(np.arange(0, part.examples, every))
        for leaf in jax.tree.leaves(part):
            if isinstance(leaf, str):
                content.update(json.dumps(leaf).encode())
                continue
            rows, every = every_kth(leaf)
            largest = max(largest, every)
            content.update(f"{leaf.dtype} {leaf.shape} ".encode())
            content.update(np.ascontiguousarray(rows).data)
    sample = f", from one in {largest} examples" if largest > 1 else ""
    augmented = f", augmented by {getattr(data.augment, '__name__', 'a function')}" if data.augment else ""
    return content.hexdigest() + sample + augmented

"""Check your arrays once, and convert them to the types that JAX has."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from pmapdp.data.dataset import Split
from pmapdp.errors import UserError, explain_errors

LARGE_BYTES = 2**30  # of a larger array only a sample is read, so it stays in its file
SAMPLE_BYTES = 2**26  # the size of that sample
TEXTS_ADVICE = (
    "give numbers, or pmapdp.data.dataset.Texts(texts, labels) and a model with an "
    'attribute featurizer, "tokens" or "tfidf"'
)


class LazyArray:
    """A large array, whose rows are converted to another type as they are read.

    A converted copy of the whole array would fill the memory, although a memory-mapped
    array stays in its file.
    """

    def __init__(self, array: np.ndarray, dtype: np.dtype[Any]):
        self.array = array
        self.dtype = dtype
        self.shape = array.shape
        self.nbytes = array.nbytes

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self.array[rows].astype(self.dtype, copy=False)


def convert_split(name: str, split: Split, classes: tuple[str, ...]) -> Split:
    """Check and convert the arrays of a part. Messages call the part `name`."""
    inputs = convert(f"{name} inputs", split.inputs)
    labels = convert(f"{name} labels", split.labels, classes)
    weights = split.weights
    if weights is not None:
        weights = convert_weights(name, weights, labels, classes)
    leaves = jax.tree.leaves((inputs, labels, weights))
    shapes = [list(leaf.shape) for leaf in leaves]
    lengths = {len(leaf) for leaf in leaves}
    if len(lengths) != 1 or 0 in lengths:
        raise UserError(
            f"{name} inputs, labels and weights have shapes {shapes}: "
            "give one row per example, at least one"
        )
    return Split(inputs, labels, weights)


def convert_weights(
    name: str, weights: Any, labels: Any, classes: tuple[str, ...]
) -> np.ndarray:
    """Return the weights of the examples, `[n]`, from an array or {class: weight}."""
    advice = (
        "give one number above 0 for each example, or {class: weight}, and leave out "
        "examples that should not count"
    )
    real = jax.dtypes.canonicalize_dtype(np.float64)  # float32, unless x64 is on
    with explain_errors(f"{name} weights cannot be used", advice):
        if isinstance(weights, Mapping):  # as Keras's class_weight
            # The classes may be named, as the labels may be.
            numbers = convert(f"{name} weights", list(weights), classes).tolist()
            by_class = dict(zip(numbers, weights.values(), strict=True))
            weights = [by_class[label] for label in labels.tolist()]
        weights = np.asarray(weights, real)
        if weights.ndim != 1 or not (np.isfinite(weights) & (weights > 0)).all():
            raise ValueError(
                f"their shape is {[*weights.shape]}, or some are not above 0"
            )
    return weights


def convert(name: str, values: Any, classes: tuple[str, ...] | None = None) -> Any:
    """Convert an array, or each in a dictionary, to the type that JAX has for it.

    Args:
        name: What messages call the array.
        values: Anything that NumPy makes an array of, or a dictionary.
        classes: For labels. Whole numbers and names of classes become int32 numbers.

    Returns:
        The array, a dictionary of arrays, or a `LazyArray` of a large one.

    Raises:
        UserError: It isn't an array of numbers, or JAX's type can't hold them.
    """
    if isinstance(values, Mapping) and values:
        return {
            key: convert(f"{name} {key!r}", value, classes)
            for key, value in values.items()
        }
    array = make_array(name, values)
    if classes is not None and is_text(array):
        array = number_classes(name, array, classes)
    dtype = choose_dtype(name, array, are_labels=classes is not None)
    stride = sample_stride(array)
    converted = convert_sample(name, array, dtype, stride)
    if stride > 1:
        return LazyArray(array, dtype)
    return converted


def convert_sample(
    name: str, array: np.ndarray, dtype: np.dtype[Any], stride: int
) -> np.ndarray:
    """Convert every `stride`-th row of an array, and refuse numbers that don't fit."""
    sample = array[::stride]
    with np.errstate(all="ignore"):  # the error below names the first row
        converted = sample.astype(dtype, copy=False)
    # A class of 2**32 would become class 0, so whole numbers must stay as they are.
    fits = converted == sample
    if dtype.kind == "f":
        fits = np.isfinite(converted)  # rounding is fine
    if not fits.all():
        row = stride * np.argwhere(~fits)[0][0]
        raise UserError(
            f"{name} ({array.dtype}) are not all finite numbers in {dtype}, "
            f"first in row {row}: replace or scale them"
        )
    return converted


def choose_dtype(name: str, array: np.ndarray, *, are_labels: bool) -> np.dtype[Any]:
    """Return JAX's type for the numbers of an array. Classes are int32."""
    if is_text(array):
        raise UserError(f"{name} are texts, of type {array.dtype}: {TEXTS_ADVICE}")
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"{name} are of type {array.dtype}: give whole numbers, real numbers or "
            "truth values, and all of them"
        )
    if are_labels and array.dtype.kind != "f":
        return np.dtype(np.int32)
    # JAX has only this machine's byte order, and 64 bits only if they're switched on.
    return jax.dtypes.canonicalize_dtype(array.dtype.newbyteorder("="))


def make_array(name: str, values: Any) -> np.ndarray:
    """Make an array with at least one axis. A frame's columns may differ in type."""
    if np.ma.is_masked(values):
        raise UserError(f"{name} are masked in part: give all of them")
    advice = "give a NumPy array; pad rows of different lengths to one length"
    with explain_errors(f"{name} are no array", advice):
        array = np.atleast_1d(np.asarray(values))
    if array.dtype == object and hasattr(values, "columns"):  # a frame of pandas
        # NumPy makes objects of the whole frame, and numbers of each column alone.
        columns = [
            convert(f"{name} {column!r}", values[column]) for column in values.columns
        ]
        array = np.stack(columns, axis=1)
    return array


def is_text(array: np.ndarray) -> bool:
    """Return True if an array holds strings."""
    return array.size > 0 and isinstance(array.flat[0], str)


def number_classes(
    name: str, labels: np.ndarray, classes: tuple[str, ...]
) -> np.ndarray:
    """Return the number of each label in `classes`."""
    numbers = {class_name: number for number, class_name in enumerate(classes)}
    advice = (
        "leave such examples out, or name all classes in their order, "
        "DataSet(..., classes=(...))"
    )
    failure = f"{name} have a class that is none of the {len(classes)}"
    with explain_errors(failure, advice):
        return np.vectorize(numbers.__getitem__, [np.int32])(labels)


def sample_stride(array: Any) -> int:
    """Return k if the sample of an array is every k-th row. Small arrays have k = 1."""
    if array.nbytes <= LARGE_BYTES:
        return 1
    return math.ceil(array.nbytes / SAMPLE_BYTES)


def describe_shapes(tree: Any) -> str:
    """Return type and shape of each array in a tree, such as `float32 [16, 5]`.

    Strings of any length are called text.
    """
    descriptions = []
    for leaf in jax.tree.leaves(tree):
        dtype = str(leaf.dtype)
        if leaf.dtype.kind == "U":
            dtype = "text"
        descriptions.append(f"{dtype} {list(leaf.shape)}")
    return ", ".join(descriptions)

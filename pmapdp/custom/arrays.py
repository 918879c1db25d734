"""Arrays of the user's own: used with the numbers that they hold, or refused in a sentence."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from pmapdp.custom.content import sampled
from pmapdp.custom.labels import are_whole, of_a_classifier
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError, reason, shown

NAMES = {"train": "the training", "test": "the test", "validation": "the validation"}


def check_data(data: DataSet, *, classifies: bool = False) -> DataSet:
    """Refuse arrays that do not fit together; returns the data set with the types that the devices get: those of JAX,
    in this machine's byte order, and integer labels as int32. Of a model that `classifies`, labels become `[n]`.

    Raises:
        UserError: with the array, what is wrong with it, and what works.
    """
    if not isinstance(data.classes, list | tuple) or not all(isinstance(each, str) for each in data.classes):
        raise UserError(f"classes={shown(data.classes)} are no names: give a tuple of texts, or leave it out")

    data = data.map(lambda name, part: check_part(NAMES[name], part, classifies))
    first, *others = ((NAMES[name], one_example(part)) for name, part in data.parts.items())
    for name, shapes in others:
        if shapes != first[1]:
            raise UserError(
                f"inputs and labels have shapes {first[1]} for an example of the training data, and {shapes} for one "
                f"of {name} data: only n may differ"
            )
    return data


def check_part(name: str, part: Any, classifies: bool) -> Any:
    """A part of a data set, called `name`: arrays are checked now, and what is read example by example as it is
    read."""
    arrays = isinstance(part, Split)
    return check_split(name, part, classifies) if arrays else part.of(classifies)


def one_example(part: Any) -> list[Any]:
    """The shapes of the inputs and the label of an example."""
    return [jax.tree.map(lambda x: list(x.shape[1:]), each) for each in part.take(np.arange(1))[:2]]


def check_split(name: str, split: Split, classifies: bool = False) -> Split:
    """The arrays of one part of a data set, called `name`; errors and types as of `check_data`."""

    def checked(what: str, values: Any, dtype: Any = None) -> np.ndarray:
        return converted(f"{name} {what}", as_array(f"{name} {what}", values), dtype)

    inputs: Any = split.inputs
    if isinstance(inputs, Mapping) and inputs:
        if not all(isinstance(key, str) for key in inputs):
            raise UserError(f"{name} inputs have the names {shown([*inputs])}, not all of them texts: give texts")
        inputs = {key: checked(f"inputs {key!r}", each) for key, each in inputs.items()}
    else:
        inputs = checked("inputs", inputs)
    labels = as_array(f"{name} labels", split.labels)
    labels = of_a_classifier(labels) if classifies else labels
    numbered = labels.dtype.kind in "biu" or (classifies and are_whole(labels))
    labels = checked("labels", labels, np.int32 if numbered else None)
    real = jax.dtypes.canonicalize_dtype(np.float64)  # float32 but in a run of float64
    weights = None if split.weights is None else checked("weights", split.weights, real)
    for each in jax.tree.leaves(inputs):
        if each.shape[:1] != labels.shape[:1] or each.shape[:1] in ((), (0,)):
            raise UserError(
                f"{name} inputs have shape {list(each.shape)} and the labels {list(labels.shape)}: give both one row "
                "for each example, and at least one"
            )
    if weights is not None and (weights.shape != labels.shape[:1] or not (weights > 0).all()):
        raise UserError(
            f"{name} weights have shape {list(weights.shape)}: give one above 0 for each of the {len(labels)} "
            "examples, and leave out those that are not to count, inputs[weights > 0]"
        )
    return Split(inputs, labels, weights)


def as_array(what: str, values: Any) -> np.ndarray:
    """The array of these values, called `what`."""
    try:
        array = np.asarray(values)
    except Exception as error:  # lists of different lengths, or whatever an object's own conversion raises
        raise UserError(f"{what} are no array ({reason(error)}): give a NumPy array") from None
    masked = np.ma.is_masked(values)
    if array.dtype.kind not in "biuf" or masked:
        kind = "are masked in part" if masked else f"are of type {array.dtype}"
        raise UserError(f"{what} {kind}: give whole numbers, real numbers or truth values, and all of them")
    return array


def converted(what: str, array: np.ndarray, dtype: Any = None) -> np.ndarray:
    """An array, called `what`, in `dtype`, or in the type that JAX has for it; refused where a number does not fit."""
    some, every = sampled(array)
    if array.dtype.kind == "f" and not np.isfinite(some).all():
        raise UserError(f"{what} ({array.dtype}) are not all finite numbers: replace the others")
    if dtype is None:
        native = np.float64 if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
        dtype = jax.dtypes.canonicalize_dtype(native)
    if array.dtype == dtype:
        return array
    if every > 1:
        raise UserError(
            f"{what} ({array.dtype}) take {array.nbytes / 2**30:,.1f} GiB, and the devices get {np.dtype(dtype)}: to "
            f"spare the memory of a copy, write them as that first, array.astype({np.dtype(dtype).name!r})"
        )
    with np.errstate(all="ignore"):
        result = array.astype(dtype)
    if not (np.isfinite(result).all() if result.dtype.kind == "f" else np.array_equal(result, array)):
        numbers = f"from {array.min()} to {array.max()}"
        raise UserError(f"{what} ({array.dtype}) are {numbers}, which do not fit in {result.dtype}: give smaller ones")
    return result

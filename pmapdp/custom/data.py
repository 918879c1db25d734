"""Convert your data to a `DataSet` that the devices can take.

Your data may be arrays, texts, examples that are read one by one, or an .npz file.
docs/custom_reference.md has an example of each.
"""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapdp.custom.arrays import convert_split, is_text, sample_stride
from pmapdp.custom.map_style import MapStyleSplit
from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError, name_or_repr, unknown_name
from pmapdp.files import open_file

FINGERPRINT_EXAMPLES = 64  # of a map-style data set, because reading all may take hours
# The parts of a data set, and what messages call them.
PARTS = {
    "train": "the training",
    "test": "the test",
    "validation": "the validation",
}


def make_data_set(data: Any) -> DataSet:
    """Make a data set whose arrays have JAX's types.

    Args:
        data: A `DataSet`, or a dictionary of `train`, `test` and `validation`. Each
            part is a `Split` or a tuple (inputs, labels, perhaps weights), `Texts`, or
            a map-style data set. Labels that are strings become numbers of `classes`,
            by default the strings of the training set in alphabetical order.
    """
    if isinstance(data, Mapping):
        for name in data:
            if name not in PARTS:
                raise unknown_name("part of the data", str(name), PARTS)
        if "train" in data:
            data = DataSet(**data)
    if not isinstance(data, DataSet) or data.train is None:
        raise UserError(
            f"data={name_or_repr(data)} has no training set: give a dictionary, "
            "{'train': (inputs, labels), 'test': (inputs, labels)}"
        )
    # All parts number their classes as the training set does, also if one lacks some.
    classes = tuple(map(str, data.classes)) or find_classes(data.train)
    parts = {
        name: make_part(PARTS[name], part, classes) for name, part in data.parts.items()
    }
    check_shapes(parts)
    return DataSet(**parts, classes=classes, augment=data.augment)


def find_classes(train: Any) -> tuple[str, ...]:
    """Return the names of the classes, or () if the labels are numbers.

    A map-style data set may have the attribute `classes`. Of arrays, the names are the
    strings among the labels, sorted.
    """
    names = getattr(train, "classes", ())  # as torchvision's data sets have them
    if not names and isinstance(train, tuple) and len(train) > 1:
        labels = np.asarray(train[1])
        # A missing label, such as None or NaN, isn't a string. `number_classes` refuses
        # it.
        if is_text(labels):
            names = sorted({label for label in labels.flat if isinstance(label, str)})
    return tuple(map(str, names))


def make_part(name: str, part: Any, classes: tuple[str, ...]) -> Any:
    """Make a `Split`, `Texts` or `MapStyleSplit`. Messages call the part `name`."""
    if isinstance(part, Texts):
        # Texts become inputs once the model is known. Numbers stand for them here.
        numbered = Split(np.arange(len(part.texts)), part.labels)
        return Texts(part.texts, convert_split(name, numbered, classes).labels)
    if isinstance(part, tuple) and len(part) in (2, 3):  # also a `Split`
        return convert_split(name, Split(*part), classes)
    is_map_style = hasattr(part, "__len__") and hasattr(part, "__getitem__")
    if is_map_style and not isinstance(part, Mapping | str | bytes):
        return MapStyleSplit(part, name, classes)
    raise UserError(
        f"{name} data={name_or_repr(part)} does not contain examples: give (inputs, "
        "labels), or an object with len(data) and data[i], a pair (inputs, label); of "
        "a loader give its data set, and of a stream arrays or files, because each "
        "epoch visits the examples in another order"
    )


def check_shapes(parts: dict[str, Any]) -> None:
    """Check that an example has the same shapes in all parts."""
    # Otherwise a test set that was prepared in another way would fail after an epoch.
    expected = None  # the shapes of the first part, which is `train`
    for name, part in parts.items():
        if not isinstance(part, Texts):
            example = part.select(np.arange(1))[:2]
            shapes = jax.tree.map(lambda rows: list(rows.shape[1:]), example)
            expected = expected or shapes
            if shapes != expected:
                raise UserError(
                    "an example of the training data has inputs and label of shapes "
                    f"{expected}, and one of {PARTS[name]} data {shapes}: only n may "
                    "differ"
                )


def load_npz(path: Path) -> DataSet:
    """Read the data set in an .npz file.

    Raises:
        UserError: It can't be read, or lacks an array.
    """
    advice = (
        "write it with numpy.savez(file, train_inputs=..., train_labels=..., "
        "test_inputs=..., test_labels=...)"
    )
    with open_file(path, advice=advice) as opened, np.lib.npyio.NpzFile(opened) as file:
        arrays = {name: file[name] for name in file}
        parts: dict[str, Any] = {}
        for name in PARTS:
            if name == "train" or any(array.startswith(f"{name}_") for array in arrays):
                inputs = arrays[f"{name}_inputs"]
                labels = arrays[f"{name}_labels"]
                parts[name] = Split(inputs, labels, arrays.get(f"{name}_weights"))
    classes = tuple(np.atleast_1d(arrays.get("classes", ())))
    return make_data_set(DataSet(**parts, classes=classes))


def fingerprint(data: DataSet) -> str:
    """Return 16 digits that tell data sets apart, so that no run resumes with others.

    They're a hash of all arrays. Of an array above 1 GiB, only every k-th row is read,
    and of a map-style data set 64 examples. If rows were skipped, the text ends with
    the largest k.
    """
    digest = hashlib.blake2b(digest_size=8)
    largest_stride = 1
    for part in data.parts.values():
        if isinstance(part, MapStyleSplit):
            stride = math.ceil(part.num_examples / FINGERPRINT_EXAMPLES)
            largest_stride = max(largest_stride, stride)
            # The number of examples shows those that are skipped at the end.
            digest.update(f"{part.num_examples} ".encode())
            part = part.select(np.arange(0, part.num_examples, stride))
        for leaf in jax.tree.leaves(part):
            if isinstance(leaf, str):  # one of the texts
                leaf = np.atleast_1d(leaf)
            stride = sample_stride(leaf)
            largest_stride = max(largest_stride, stride)
            digest.update(f"{leaf.dtype} {leaf.shape} ".encode())
            digest.update(np.ascontiguousarray(leaf[::stride]).data)
    if largest_stride == 1:
        return digest.hexdigest()
    return f"{digest.hexdigest()}, from one in {largest_stride} examples"

"""What a user gives as data, from Python or by a function in a file of their own, made a `DataSet`."""

from collections.abc import Mapping
from typing import Any

from pmapdp.custom.arrays import NAMES
from pmapdp.custom.examples import Examples
from pmapdp.custom.labels import are_names, names_of, numbers_of
from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError, shown


def as_data_set(data: Any) -> DataSet:
    """The data set that a `DataSet`, or a dictionary of `train`, `test` and `validation`, stands for.

    A part is a `Split` of arrays, a tuple of them (inputs, labels, perhaps weights), `Texts`, or a map-style data set.
    Labels that are strings become the numbers of the classes, which, where they have no names, those of the training
    set are.

    Raises:
        UserError: it is none of these.
    """
    if isinstance(data, Mapping) and {"train"} <= set(data) <= set(NAMES):
        data = DataSet(**data)
    if not isinstance(data, DataSet) or data.train is None:
        raise UserError(
            f"data={shown(data)} is no data set: give pmapdp.data.dataset.DataSet(Split(inputs, labels), "
            "Split(test_inputs, test_labels))"
        )
    classes: Any = data.classes
    unnamed = isinstance(classes, list | tuple) and len(classes) == 0
    if unnamed and isinstance(names := getattr(data.train, "classes", None), list | tuple) and are_names(names):
        classes = tuple(names)  # as of torchvision's data sets
    elif unnamed and isinstance(data.train, tuple) and len(data.train) > 1 and are_names(data.train[1]):
        classes = names_of(data.train[1])

    parts: Any = {name: as_part(NAMES[name], value, classes) for name, value in data.parts.items()}
    return DataSet(**parts, classes=classes, augment=data.augment)


def as_part(name: str, value: Any, classes: Any) -> Any:
    """A part of a data set, called `name`, whose classes have these names; errors as of `as_data_set`."""
    if type(value) is tuple and len(value) in (2, 3):
        value = Split(*value)
    if isinstance(value, Split | Texts):
        if are_names(value.labels):
            return value._replace(labels=numbers_of(f"{name} labels", value.labels, classes))
        return value
    if isinstance(value, Examples):
        return value
    if hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, Mapping | str | bytes):
        return Examples(value, name, classes)
    raise UserError(
        f"{name} data={shown(value)} are no examples: give Split(inputs, labels), or what has len(data) and data[i], "
        "a pair (inputs, label); of a loader give its data set, as batches are made here"
    )

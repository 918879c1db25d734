"""Labels as people have them, made class numbers `[n]` where their meaning is sure."""

from typing import Any

import numpy as np

from pmapdp.errors import UserError, shown


def are_names(labels: Any) -> bool:
    """Whether labels are strings, in an array, a list or a table's column."""
    try:
        array = np.asarray(labels)
    except Exception:  # `as_array` says why it is none
        return False
    return array.size > 0 and isinstance(array.reshape(-1)[0], str)


def names_of(labels: Any) -> tuple[str, ...]:
    """The classes that labels of strings name, in the order of the alphabet."""
    return tuple(sorted(set(map(str, np.asarray(labels).reshape(-1)))))


def numbers_of(what: str, labels: Any, classes: tuple[str, ...]) -> np.ndarray:
    """Labels of strings, called `what`, as int32 numbers of the classes; one that is no class raises a `UserError`."""
    number = {name: index for index, name in enumerate(classes)}
    array = np.asarray(labels)
    for name in array.reshape(-1):
        if not isinstance(name, str):
            raise UserError(f"{what} are strings, and {shown(name)} in part: leave out the examples without a label")
        if name not in number:
            raise UserError(
                f"{what} have {shown(str(name))}, which is none of the {len(classes)} classes: name all of them in "
                "their order, DataSet(..., classes=(...)); without it they are those of the training labels"
            )
    return np.array([number[name] for name in array.reshape(-1)], np.int32).reshape(array.shape)


def of_a_classifier(labels: np.ndarray) -> np.ndarray:
    """Labels `[n]` from `[n, 1]` and from one-hot rows `[n, C]`; others as they are."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        return labels[:, 0]
    if labels.ndim == 2 and np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all():
        return labels.argmax(1)
    return labels


def are_whole(labels: np.ndarray) -> bool:
    """Whether labels `[n]` of floating-point numbers are whole numbers."""
    return labels.dtype.kind == "f" and labels.ndim == 1 and bool((labels == np.rint(labels)).all())


def how_to_number(found: np.ndarray, C: int) -> str:
    """What makes labels `found`, of which some are none of 0 to C - 1, such numbers."""
    different = np.unique(found)
    if different[0] == 1 and different[-1] == C:
        return "subtract 1 from the labels, labels - 1"
    if len(different) <= C:
        return f"use 0 to {C - 1}, numpy.unique(labels, return_inverse=True)[1]"
    return f"use 0 to {C - 1}, or a model of {len(different)} logits"

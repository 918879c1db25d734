"""A model and a data set of one's own: from values, or from files that are named on the command line.

    python -m pmapdp.train --model my_file.py:Net --dataset my_data.npz

The file of data holds the arrays `train_inputs`, `train_labels`, `test_inputs` and `test_labels`, and may hold
`classes`, their names. The model is built by a function of `rngs`, `dtype` and `param_dtype`, and takes
(inputs, `Context`).
"""

import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError, reason
from pmapdp.export.inputs import read_array
from pmapdp.files import open_file
from pmapdp.models.layers import Context
from pmapdp.state import Task

ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")
VALUE = "arrays"  # the name of data that is given as a value
KEPT_BY_TASK = (nnx.Param, nnx.BatchStat)


def data_from_file(path: Path) -> DataSet:
    """The data set in an .npz file.

    Raises:
        UserError: it cannot be read, lacks an array, or its arrays do not fit together.
    """
    names = (*ARRAYS, "classes")
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as members:
            kept = set(members.namelist())
            arrays = {name: read_array(members.read(f"{name}.npy")) for name in names if f"{name}.npy" in kept}
    except UserError:
        raise
    except Exception as error:  # zipfile has several errors for damaged bytes
        raise UserError(
            f"--dataset {path} is no .npz file of arrays ({reason(error)}): write it with numpy.savez"
        ) from None
    if missing := [name for name in ARRAYS if name not in arrays]:
        raise UserError(
            f"--dataset {path} has no array {missing[0]}: write it with numpy.savez(file, {', '.join(ARRAYS)})"
        )
    train, test = (Split(arrays[f"{part}_inputs"], arrays[f"{part}_labels"]) for part in ("train", "test"))
    return DataSet(train, test, tuple(map(str, arrays.get("classes", ()))))


def named(settings: dict[str, Any], model: Any = None, data: DataSet | None = None, **_: Any) -> dict[str, Any]:
    """The settings of a run, with the names of a model and data that were given as values."""
    names = {"model": getattr(model, "__name__", str(model))} if model else {}
    return settings | names | ({"dataset": VALUE} if data else {})


def check_data(data: DataSet) -> DataSet:
    """Refuse arrays that do not fit together; returns the data set, integer labels as int32.

    Raises:
        UserError: with the array, what is wrong with it, and what works.
    """
    parts = {}
    for name, split in (("training", data.train), ("test", data.test)):
        inputs, labels = np.asarray(split.inputs), np.asarray(split.labels)
        if inputs.ndim == 0 or labels.ndim == 0 or len(inputs) != len(labels) or len(labels) == 0:
            raise UserError(
                f"the {name} inputs have shape {list(inputs.shape)} and the labels {list(labels.shape)}: give both one "
                "row for each example, and at least one"
            )
        for what, array in (("inputs", inputs), ("labels", labels)):
            if array.dtype.kind not in "biuf":
                raise UserError(f"the {name} {what} are of type {array.dtype}: give numbers, for example float32")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1))[0])
                raise UserError(
                    f"the {name} {what} of example {row} are not finite: leave it out, or replace the number"
                )
        parts[name] = Split(inputs, labels.astype(np.int32) if labels.dtype.kind in "biu" else labels)
    if parts["training"].inputs.shape[1:] != parts["test"].inputs.shape[1:]:
        shapes = [list(part.inputs.shape) for part in parts.values()]
        raise UserError(
            f"the inputs have shapes {shapes[0]} for training and {shapes[1]} for testing: only n may differ"
        )
    return DataSet(parts["training"], parts["test"], data.classes)


def check_task(task: Task, data: DataSet, *, classifies: bool) -> None:
    """Refuse a model that does not take the inputs, keeps what no strategy can split, or has too few logits.

    Args:
        task: what is trained.
        data: arrays.
        classifies: whether the labels are classes, whose number the logits give.

    Raises:
        UserError: with what is wrong and how to mend it.
    """
    name = getattr(task.model, "__name__", "the model")
    example = jax.ShapeDtypeStruct((2, *data.train.inputs.shape[1:]), data.train.inputs.dtype)

    def outputs(inputs: jax.Array) -> tuple[Any, Any]:
        model = task.build_model()
        return nnx.state(model), model(inputs, Context())

    try:
        state, logits = nnx.eval_shape(outputs, example)
    except Exception as error:
        raise UserError(
            f"{name} does not take inputs {list(example.shape)} of {example.dtype} ({reason(error)}): build it with "
            "rngs, dtype and param_dtype, and let it take (inputs, context)"
        ) from error
    for path, variable in nnx.to_flat_state(state):
        if not isinstance(variable, KEPT_BY_TASK):
            raise UserError(
                f"{name} keeps {type(variable).__name__} in {'.'.join(map(str, path))}, which would differ from device "
                "to device: keep nnx.Param and nnx.BatchStat alone, and use pmapdp.models.layers.Dropout for dropout"
            )
    if classifies:
        C, largest = logits.shape[-1], max(int(data.train.labels.max()), int(data.test.labels.max()))
        least = min(int(data.train.labels.min()), int(data.test.labels.min()))
        if least < 0 or largest >= C:
            raise UserError(f"the labels are from {least} to {largest}, and {name} has {C} logits: use 0 to {C - 1}")

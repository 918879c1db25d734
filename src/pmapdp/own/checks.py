"""A model and a data set of one's own: from values, or from files that are named on the command line.

    python -m pmapdp.train --model my_file.py:Net --dataset my_data.npz

The file of data holds the arrays `train_inputs`, `train_labels`, `test_inputs` and `test_labels`, and may hold
`classes`, their names. The model is built by a function of `rngs`, `dtype` and `param_dtype`, and takes
(inputs, `Context`). Its method `loss` (batch, `Context`) returns `MetricSums`; without one it is a classifier.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pmapdp.data.batches import Batch
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError, reason
from pmapdp.loss import MetricSums
from pmapdp.models.layers import Context
from pmapdp.state import Task


def check_data(data: DataSet) -> DataSet:
    """Refuse arrays that do not fit together; returns the data set, integer labels as int32.

    Raises:
        UserError: with the array, what is wrong with it, and what works.
    """
    splits = []
    for name, split in (("training", data.train), ("test", data.test)):
        inputs, labels = map(np.asarray, split)
        if inputs.shape[:1] != labels.shape[:1] or inputs.shape[:1] in ((), (0,)):
            raise UserError(
                f"the {name} inputs have shape {list(inputs.shape)} and the labels {list(labels.shape)}: give both one "
                "row for each example, and at least one"
            )
        for what, array in (("inputs", inputs), ("labels", labels)):
            if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
                raise UserError(f"the {name} {what} ({array.dtype}) are not all finite numbers: replace the others")
        splits.append(Split(inputs, labels.astype(np.int32) if labels.dtype.kind in "biu" else labels))
    shapes = [[list(array.shape) for array in split] for split in splits]
    if [shape[1:] for shape in shapes[0]] != [shape[1:] for shape in shapes[1]]:
        raise UserError(f"inputs and labels have shapes {shapes[0]}, and {shapes[1]} for testing: only n may differ")
    return DataSet(splits[0], splits[1], data.classes)


def check_task(task: Task, data: DataSet) -> None:
    """Refuse a model or a loss that does not take the data, or that keeps what no strategy can split; errors as of
    `check_data`."""
    name, labels = task.name, data.train.labels
    inputs, answers = (jax.ShapeDtypeStruct((2, *array.shape[1:]), jnp.result_type(array)) for array in data.train)
    example = Batch(inputs, answers, *(jax.ShapeDtypeStruct((2,), dtype) for dtype in ("int32", "float32")))
    # What would differ from device to device, and where.
    norms = [(path, each) for path, each in nnx.iter_modules(task.model) if isinstance(each, nnx.BatchNorm)]
    random = nnx.to_flat_state(nnx.state(task.model, nnx.RngState))
    params, model_state = task.arrays_of(task.model)

    def outputs(params: Any, model_state: Any, batch: Batch) -> Any:
        model, context = task.model_with(params, model_state), Context(batch.weights)
        return model(batch.inputs, context) if task.classifies else task.loss(model, batch, context)

    try:
        returned = jax.eval_shape(outputs, params, model_state, example)
    except Exception as error:
        what = "does not take" if task.classifies else "and its loss do not take"
        raise UserError(
            f"{name} {what} inputs {list(inputs.shape)} of {inputs.dtype} ({reason(error)}): give inputs of its shape; "
            "it is built with rngs, dtype and param_dtype, and called with (inputs, context)"
        ) from error
    for path, kept in [*norms, *random]:
        raise UserError(
            f"{name} keeps {type(kept).__name__} in {'.'.join(map(str, path))}, which would differ from device to "
            "device: use Dropout of pmapdp.models.layers and BatchNorm of pmapdp.models.batch_norm"
        )
    if not task.classifies and not isinstance(returned, MetricSums):
        raise UserError(f"the loss returns {type(returned).__name__}: return pmapdp.loss.MetricSums")
    if not task.classifies:
        return
    if getattr(returned, "ndim", 0) != 2 or labels.ndim != 1 or labels.dtype.kind == "f":
        raise UserError(
            f"a classifier has logits [2, C] for two examples and whole numbers [n] as labels, but {name} gives "
            f"{getattr(returned, 'shape', returned)} and the labels are {labels.dtype} {list(labels.shape)}: give "
            "these, or a loss of your own"
        )
    C, labels = returned.shape[1], np.concatenate([labels, data.test.labels])
    if labels.min() < 0 or labels.max() >= C:
        raise UserError(
            f"the labels are from {labels.min()} to {labels.max()}, and {name} has {C} logits: use 0 to {C - 1}"
        )

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
from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError, reason, shown
from pmapdp.loss import MetricSums
from pmapdp.models.layers import Context
from pmapdp.state import Task


def check_own(model: Any, data: Any, loss: Any) -> None:
    """Refuse values from Python that are of no use as these arguments of `train`."""
    for name, value, example in (("model", model, "class"), ("loss", loss, "function of (model, batch, context)")):
        if value is not None and (not callable(value) or isinstance(value, nnx.Module)):
            raise UserError(f"{name}={shown(value)} cannot be called to make one: give a {example}, no instance of it")
    splits = (data.train, data.test) if isinstance(data, DataSet) else (None,)
    if data is not None and not all(isinstance(each, Split | Texts) for each in splits):
        raise UserError(
            f"data={shown(data)} is no data set: give pmapdp.data.dataset.DataSet(Split(inputs, labels), "
            "Split(test_inputs, test_labels))"
        )


def check_data(data: DataSet) -> DataSet:
    """Refuse arrays that do not fit together; returns the data set with the types that the devices get: those of JAX,
    in this machine's byte order, and integer labels as int32.

    Raises:
        UserError: with the array, what is wrong with it, and what works.
    """
    splits = []
    for name, split in (("training", data.train), ("test", data.test)):
        inputs, labels = (as_array(f"the {name} {what}", each) for what, each in split._asdict().items())
        if inputs.shape[:1] != labels.shape[:1] or inputs.shape[:1] in ((), (0,)):
            raise UserError(
                f"the {name} inputs have shape {list(inputs.shape)} and the labels {list(labels.shape)}: give both one "
                "row for each example, and at least one"
            )
        as_int32 = np.int32 if labels.dtype.kind in "biu" else None
        splits.append(Split(converted(f"the {name} inputs", inputs), converted(f"the {name} labels", labels, as_int32)))
    shapes = [[list(array.shape) for array in split] for split in splits]
    if [shape[1:] for shape in shapes[0]] != [shape[1:] for shape in shapes[1]]:
        raise UserError(f"inputs and labels have shapes {shapes[0]}, and {shapes[1]} for testing: only n may differ")
    if not isinstance(data.classes, list | tuple) or not all(isinstance(each, str) for each in data.classes):
        raise UserError(f"classes={shown(data.classes)} are no names: give a tuple of texts, or leave it out")
    return DataSet(splits[0], splits[1], tuple(data.classes))


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
    if not np.isfinite(array).all():
        raise UserError(f"{what} ({array.dtype}) are not all finite numbers: replace the others")
    if dtype is None:
        native = np.float64 if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
        dtype = jax.dtypes.canonicalize_dtype(native)
    with np.errstate(all="ignore"):
        result = array.astype(dtype, copy=False)
    if not (np.isfinite(result).all() if result.dtype.kind == "f" else np.array_equal(result, array)):
        numbers = f"from {array.min()} to {array.max()}"
        raise UserError(f"{what} ({array.dtype}) are {numbers}, which do not fit in {result.dtype}: give smaller ones")
    return result


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
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            where = jax.tree_util.keystr(path, simple=True, separator=".")
            raise UserError(
                f"{name} has the parameter {where} of {leaf.dtype}, which has no gradient: make it of float32, or keep "
                "it in nnx.Variable"
            )

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

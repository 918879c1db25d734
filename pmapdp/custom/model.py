"""Your model is built, and must fit its data, before anything is trained. `docs/custom.md` has the sentences."""

import dataclasses
import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.export
import numpy as np
from flax import nnx

from pmapdp.custom.contract import check_correct, check_loss
from pmapdp.custom.data import PARTS, check_labels, describe
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import DataSet
from pmapdp.errors import UserError, reason, shown, user_code_errors
from pmapdp.layers import current_context
from pmapdp.loss import MetricSums
from pmapdp.state import Task, build, takes

ROWS, MORE_ROWS = 16, 64  # examples with which a model and its loss are tried, and the accuracy


def build_model(model: Callable[..., nnx.Module], seed: int, dtype: str) -> nnx.Module:
    """Build your model as `pmapdp.state.build` does. A `UserError` says why it can't be built."""
    works = (
        "give a class or function of rngs, and perhaps of dtype and param_dtype, that makes a flax.nnx.Module; one of "
        "Linen needs flax.nnx.bridge.ToNNX"
    )
    with user_code_errors(f"{shown(model)} cannot be built", works):
        built = build(model, seed, dtype)
    if not isinstance(built, nnx.Module):
        raise UserError(f"{shown(model)} gives {shown(built)}: {works}")
    if dtype != "float32" and not takes(model, "dtype"):
        raise UserError(
            f"--dtype {dtype} has no effect on {shown(model)}, which takes no dtype: add dtype to its arguments "
            "and give it to its layers, or leave --dtype out"
        )
    return built


def check_task(task: Task, data: DataSet, *, custom: bool) -> None:
    """Refuse a model or a loss that doesn't fit the data.

    A `custom` model or loss, and an augmentation, are also tried on a few examples.
    """
    for what, function in ((f"{task.name}.__call__", type(task.model).__call__), ("the loss", task.loss)):
        if "context" in inspect.signature(function).parameters:
            raise UserError(
                f"{what} has an argument context, which it no longer gets: leave it out, and begin the function with "
                "context = pmapdp.layers.current_context() if it needs one"
            )
    params, model_state = task.arrays_of(task.model)

    def take(most: int) -> Batch:
        rows = min(most, data.train.examples)  # from all over the data, which may be sorted by class
        return Batches(data.train, rows).take(np.linspace(0, data.train.examples - 1, rows).astype(np.int32))

    example = take(ROWS)

    def call(params: Any, model_state: Any, batch: Batch) -> Any:
        model = task.model_with(params, model_state)
        return model(batch.inputs) if task.classifies else task.loss(model, batch)

    def call_exported(params: Any, model_state: Any, batch: Batch) -> Any:
        model = task.model_with(params, model_state)
        return task.loss(model, batch), getattr(model, "predict", model)(batch.inputs)

    works: str = "give inputs of its shape, or correct its __call__"
    shape: Any = getattr(example.inputs, "shape", ())
    if len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4):
        works = f"Flax wants channels last, so give [n, {shape[2]}, {shape[3]}, {shape[1]}]"
    elif len(shape) == 4 and shape[3] == 3:
        works += ". For a folder of grey images give pmapdp.custom.images.ImageFolder(folder, mode='L') in Python"
    name = f"{task.name} does not" if task.classifies else f"{task.name} and its loss do not"
    with user_code_errors(f"{name} take inputs {describe(example.inputs)}", works):
        returned = jax.eval_shape(call, params, model_state, example)
    if task.classifies:
        check_classes(task.name, returned, example.labels, data)
    elif not isinstance(returned, MetricSums):
        raise UserError(
            f"the loss of {task.name} returns {describe(returned) or returned}: return sums over the examples, "
            "pmapdp.loss.MetricSums(loss=(batch.weights * losses).sum(), correct=None, count=batch.weights.sum())"
        )
    if custom or data.augment is not None:
        check_loss(augment_task(task, data.augment), example)
        if not task.classifies and returned.correct is not None:
            check_correct(task, take(MORE_ROWS))
        try:
            any_size = jax.export.symbolic_args_specs(example, "batch, ...")
            jax.eval_shape(call_exported, params, model_state, any_size)
        except Exception as error:  # better now than after training
            print(f"warning: {not_exportable(error)}", file=sys.stderr)


def not_exportable(error: Exception) -> str:
    """Say why a model works for only one batch size."""
    return (
        f"the model cannot be exported for any number of inputs ({reason(error)}): use, for example, inputs.shape[0] "
        "in it instead of len(inputs)"
    )


def check_classes(name: str, logits: Any, labels: Any, data: DataSet) -> None:
    """Refuse logits that no classifier gives, and labels that are none of its classes."""
    if getattr(logits, "ndim", 0) != 2 or getattr(labels, "ndim", 0) != 1 or labels.dtype.kind == "f":
        raise UserError(
            f"a classifier gives logits [n, C] and has whole numbers [n] as labels, but {name} gives "
            f"{describe(logits)} and the labels are {describe(labels)}: of one-hot rows give labels.argmax(1), of a "
            "column labels[:, 0], of whole floats labels.astype('int32'), and for other labels a loss of your own"
        )
    C = logits.shape[1]
    if data.classes and len(data.classes) != C:
        raise UserError(
            f"the data name {len(data.classes)} classes, and {name} has {C} logits: name all of them in their order, "
            "DataSet(..., classes=(...)), or none"
        )
    for each, part in data.parts.items():
        check_labels(PARTS[each], part, C)


def augment_task(task: Task, augment: Callable[[Any, jax.Array], Any] | None) -> Task:
    """Return the task with its training inputs changed by `augment`, or as it is if there is none."""
    return task if augment is None else dataclasses.replace(task, loss=partial(augmented, task.loss, augment))


def augmented(loss: Callable[..., Any], augment: Callable[[Any, jax.Array], Any], model: Any, batch: Batch) -> Any:
    """Return the loss of the augmented inputs.

    As for dropout, the key of an example follows from the seed, the update and the example. So an image is changed in
    the same way on any number of devices, and after a run is resumed.
    """
    context = current_context()
    if context.train:
        batch = batch._replace(inputs=jax.vmap(augment)(batch.inputs, context.next_keys()))
    return loss(model, batch)

"""Whether a model, a loss and data of one's own fit together, before anything is trained; `docs/own.md` has the
sentences about what does not."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pmapdp.custom.augmentation import augmented, check_augment
from pmapdp.custom.contract import check_loss
from pmapdp.custom.examples import Examples, describe
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import DataSet
from pmapdp.errors import UserError, shown, user_code_errors
from pmapdp.loss import MetricSums
from pmapdp.state import Task, named_leaves

ROWS = 4  # examples with which a loss is tried


def check_own(model: Any, loss: Any, metrics: Any = None) -> None:
    """Refuse values from Python that are of no use as these arguments of `train`."""
    for name, value, kind in (
        ("model", model, "class or function that makes a flax.nnx.Module"),
        ("loss", loss, "function of (model, batch)"),
        ("metrics", metrics, "function of (logits, batch)"),
    ):
        if isinstance(value, nnx.Module):
            raise UserError(f"{name} is a {type(value).__name__} that was built already: give a {kind}")
        if value is not None and not callable(value):
            raise UserError(f"{name}={shown(value)} is no {kind}: give one")


def check_task(task: Task, data: DataSet, *, own: bool) -> None:
    """Refuse a model or a loss that does not take the data; with `own`, when they are the user's, also a loss that does
    not keep its contract on a few examples, and a layer that keeps none. Errors as of `check_data`."""
    name, rows = task.name, min(ROWS, data.train.examples)
    for what, function in ((f"{name}.__call__", type(task.model).__call__), (f"the loss of {name}", task.loss)):
        if "context" in inspect.signature(function).parameters:
            raise UserError(
                f"{what} has an argument context, which it no longer gets: leave it out, and begin the function with "
                "context = pmapdp.layers.current_context() if it needs one"
            )
    example = Batches(data.train, rows).take(np.arange(rows))
    params, model_state = task.arrays_of(task.model)
    for where, leaf in named_leaves(params).items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise UserError(
                f"{name} has the parameter {where} of {leaf.dtype}, which has no gradient: make it of float32, or keep "
                "it in nnx.Variable"
            )

    def outputs(params: Any, model_state: Any, batch: Batch) -> Any:
        model = task.model_with(params, model_state)
        return model(batch.inputs) if task.classifies else task.loss(model, batch)

    with user_code_errors(
        f"{name} {'does not' if task.classifies else 'and its loss do not'} take inputs {describe(example.inputs)}",
        "give inputs of its shape, or correct its __call__, which gets the inputs",
    ):
        returned = jax.eval_shape(outputs, params, model_state, example)
    if task.classifies:
        check_classes(name, returned, example.labels, data)
    elif not isinstance(returned, MetricSums):
        raise UserError(f"the loss returns {type(returned).__name__}: return pmapdp.loss.MetricSums")
    check_augment(data.augment, example)
    if own or data.augment is not None:
        check_loss(augmented(task, data.augment), example)


def check_classes(name: str, logits: Any, labels: Any, data: DataSet) -> None:
    """Refuse logits that no classifier gives, and labels that are none of its classes."""
    if getattr(logits, "ndim", 0) != 2 or getattr(labels, "ndim", 0) != 1 or labels.dtype.kind == "f":
        raise UserError(
            f"a classifier gives logits [n, C] and has whole numbers [n] as labels, but {name} gives "
            f"{describe(logits)} and the labels are {describe(labels)}: of one-hot rows give labels.argmax(1), of a "
            "column labels[:, 0], of whole floats labels.astype('int32'), and for other labels a loss of your own"
        )
    C = logits.shape[1]
    if C == 1:
        raise UserError(f"{name} has a single logit: give it one for each class, or a loss of your own")
    if data.classes and len(data.classes) != C:
        raise UserError(
            f"the data name {len(data.classes)} classes, and {name} has {C} logits: name all of them in their order, "
            "DataSet(..., classes=(...)), or none"
        )
    for part in data.parts.values():
        if isinstance(part, Examples):
            part.classes = C  # its labels are checked as they are read
        else:
            labels = np.append(labels, part.labels)
    numbers = np.unique(labels)
    if numbers[0] < 0 or numbers[-1] >= C:
        works = f"use 0 to {C - 1}, numpy.unique(labels, return_inverse=True)[1]"
        if len(numbers) > C:
            works = f"use 0 to {C - 1}, or a model of {len(numbers)} logits"
        elif numbers[0] == 1 and numbers[-1] == C:
            works = "subtract 1 from the labels, labels - 1"
        raise UserError(f"the labels are from {numbers[0]} to {numbers[-1]}, and {name} has {C} logits: {works}")

"""A model and a loss of one's own are tried on a few examples before anything is trained.

What does not take the data is refused, and what would train something else than one device does: a loss that counts
padding or is no sum over the examples, a layer that draws random numbers of its own. `docs/own.md` lists the sentences.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError, explained, shown
from pmapdp.loss import MetricSums, named_sums
from pmapdp.models.layers import Context, call, example_keys
from pmapdp.own.augmentation import check_augment
from pmapdp.own.labels import how_to_number
from pmapdp.state import Task

ROWS = 4  # examples with which a loss is tried


def check_own(model: Any, loss: Any, metrics: Any = None) -> None:
    """Refuse values from Python that are of no use as these arguments of `train`."""
    for name, value, kind in (
        ("model", model, "class or function that makes a flax.nnx.Module"),
        ("loss", loss, "function of (model, batch, context)"),
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
    example = Batches(data.train, rows).take(np.arange(rows))
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
        return call(model, batch.inputs, context) if task.classifies else task.loss(model, batch, context)

    with explained(
        f"{name} {'does not' if task.classifies else 'and its loss do not'} take inputs {described(example.inputs)}",
        "give inputs of its shape, or correct its __call__, which gets (inputs) or (inputs, context)",
    ):
        returned = jax.eval_shape(outputs, params, model_state, example)
    if task.classifies:
        check_classes(name, returned, example.labels, data)
    elif not isinstance(returned, MetricSums):
        raise UserError(f"the loss returns {type(returned).__name__}: return pmapdp.loss.MetricSums")
    check_augment(data.augment, example)
    if own:
        check_loss(task, example)
        check_layers(task, example)


def described(inputs: Any) -> str:
    """Shape and type of an array, or of each in a dictionary."""
    if isinstance(inputs, dict):
        return ", ".join(f"{name!r} {described(each)}" for name, each in inputs.items())
    return f"{list(inputs.shape)} of {inputs.dtype}"


def check_classes(name: str, logits: Any, labels: np.ndarray, data: DataSet) -> None:
    """Refuse logits that are not of a classifier, and labels, some of which are `labels`, that are none of its classes.
    What is read example by example is told how many there are."""
    if getattr(logits, "ndim", 0) != 2 or labels.ndim != 1 or labels.dtype.kind == "f":
        n = data.train.examples
        given = list(logits.shape) if hasattr(logits, "shape") else f"a {type(logits).__name__}"
        raise UserError(
            f"a classifier has logits [n, C] for n examples and whole numbers [n] as labels, but {name} gives {given} "
            f"and the labels are {labels.dtype} {[n, *labels.shape[1:]]}: give "
            f"these{', labels.argmax(1)' if labels.ndim == 2 else ''}, or a loss of your own"
        )
    C = logits.shape[1]
    if C > 1 and data.classes and len(data.classes) != C:
        raise UserError(
            f"the data name {len(data.classes)} classes, and {name} has {C} logits: name all of them in their order, "
            "DataSet(..., classes=(...)), or none"
        )
    known = [labels]
    for part in data.parts.values():
        if isinstance(part, Split):
            known.append(part.labels)
        else:
            part.logits = C
    found = np.concatenate(known)
    if found.min() < 0 or found.max() >= C:
        raise UserError(
            f"the labels are from {found.min()} to {found.max()}, and {name} has {C} logits: {how_to_number(found, C)}"
            if C > 1
            else f"{name} has a single logit: give it one for each class, or a loss of your own"
        )


def check_loss(task: Task, example: Batch) -> None:
    """Hold the loss to its contract in evaluation, on a few examples: its fields are real scalars; examples of weight 0
    add nothing; and that of the examples is the sum of those of its halves."""
    arrays = task.arrays_of(task.model)

    @jax.jit  # of arguments: what it closes over is a constant, and XLA would compute with it as it compiles
    def sums(arrays: Any, batch: Batch) -> MetricSums:
        return task.loss(task.model_with(*arrays), batch, Context(batch.weights))

    def of(*weights: float) -> dict[str, float]:
        found = sums(arrays, example._replace(weights=np.asarray(weights, np.float32)))
        return {name: float(value) for name, value in named_sums(found).items()}

    n = len(example.labels)
    with explained(
        f"the loss of {task.name}, or its metrics, fails",
        "return further sums as a dictionary of names, for example {'errors': (batch.weights * errors).sum()}",
    ):
        returned = sums(arrays, example._replace(weights=np.ones(n, np.float32)))
        found = named_sums(returned)
    for name in returned.others.keys() & {"loss", "count", "examples", *(["accuracy"] if "correct" in found else [])}:
        raise UserError(f"the loss of {task.name} has a further sum called {name}, which there is: use another name")
    for field, value in found.items():
        if getattr(value, "shape", None) != () or jnp.result_type(value).kind not in "biuf":
            raise UserError(
                f"the loss of {task.name} returns {field} of shape {list(np.shape(value))}: return its sum over the "
                f"examples, for example (batch.weights * {field}).sum()"
            )
    every, none = of(*[1] * n), of(*[0] * n)
    first, second = of(*[1] * (n - n // 2), *[0] * (n // 2)), of(*[0] * (n - n // 2), *[1] * (n // 2))
    for field, total in every.items():
        nearly = {"rel_tol": 2e-2 if task.dtype == "bfloat16" else 1e-3, "abs_tol": 1e-4 * max(1.0, abs(total))}
        if not all(map(math.isfinite, (total, none[field], first[field], second[field]))):
            continue  # training says at which step it was not
        halves = first[field] + second[field]
        so = f"the loss of {task.name}" if field == "loss" else f"{field} in the loss of {task.name}"
        if math.isclose(total, halves, **nearly) and math.isclose(none[field], 0, **nearly):
            continue
        if field == "count" and math.isclose(none[field], total, **nearly):
            raise UserError(f"{so} counts padding ({total:g} examples of weight 0): use batch.weights.sum()")
        if math.isclose(halves - total, none[field], **nearly):  # what stands beside the sum stands in each half
            if math.isclose(none[field], total, **nearly):
                raise UserError(f"{so} counts padding ({total:.4g} of weight 0): multiply by batch.weights and sum")
            raise UserError(
                f"{so} has a penalty that is added once a batch ({none[field]:.4g}), and so once a device: multiply it "
                "by batch.weights.sum()"
            )
        raise UserError(
            f"{so} is not a sum over the examples ({total:.4g} for {n} of them, {first[field]:.4g} and "
            f"{second[field]:.4g} for its halves): return (batch.weights * losses).sum() and batch.weights.sum()"
        )


def check_layers(task: Task, example: Batch) -> None:
    """Refuse, by its name, a layer that draws random numbers of its own in training, or makes variables there."""
    params, model_state = task.arrays_of(task.model)
    structure, random = task.constant

    @jax.jit
    def trained(random: Any, params: Any, model_state: Any, example: Batch) -> tuple[jax.Array, Any]:
        arrays = jax.tree.map(jnp.asarray, (params, random, model_state))
        model = nnx.merge(structure, *arrays, copy=True)
        keys = example_keys(task.seed, jnp.int32(0), example.indices)
        context = Context(jnp.asarray(example.weights), keys, jnp.int32(0), train=True)
        with context.entered():
            sums = task.loss(model, example, context)
        return sums.loss, task.arrays_of(model)[1]

    with explained(f"{task.name} fails in training", "correct its __call__ or its loss"):
        loss, after = trained(random, params, model_state, example)
    before, after = (
        {jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(tree)}
        for tree in (model_state, after)
    )
    if new := after - before:
        raise UserError(
            f"{task.name} makes the variable {min(new)} in training: make it in __init__, or leave nnx.sow out"
        )
    for path, variable in nnx.to_flat_state(random):
        if isinstance(variable, nnx.RngKey):
            other = {tuple(each): value for each, value in nnx.to_flat_state(random)}
            other[tuple(path)] = variable.replace(
                jax.vmap(jax.random.fold_in, (0, None))(variable[...].reshape(-1), 1).reshape(variable[...].shape)
            )
            if trained(nnx.from_flat_state(other), params, model_state, example)[0] != loss:
                layer = ".".join(map(str, path[:-1]))
                raise UserError(
                    f"{task.name} draws random numbers from {layer} in training, which would be the same on every "
                    "device and in every update: use nnx.Dropout, or draw from context.keys, one key an example"
                )

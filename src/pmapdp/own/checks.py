"""A model and a data set of one's own: from values, or from files that are named on the command line.

    python -m pmapdp.train --model my_file.py:Net --dataset my_data.npz

The file of data holds the arrays `train_inputs`, `train_labels`, `test_inputs` and `test_labels`, and may hold
`classes`, their names. The model is built by a function of `rngs`, `dtype` and `param_dtype`, and takes
(inputs, `Context`). Its method `loss` (batch, `Context`) returns `MetricSums`; without one it is a classifier.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError, reason, shown
from pmapdp.loss import MetricSums, named_sums
from pmapdp.models.layers import Context, call, example_keys
from pmapdp.state import Task

ROWS = 4  # examples with which a loss is tried


def check_own(model: Any, data: Any, loss: Any, metrics: Any = None) -> None:
    """Refuse values from Python that are of no use as these arguments of `train`."""
    kinds = {"model": "class", "loss": "function of (model, batch, context)", "metrics": "function of (logits, batch)"}
    for (name, example), value in zip(kinds.items(), (model, loss, metrics), strict=True):
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
    splits = [check_split("the training", data.train), check_split("the test", data.test)]
    shapes = [[list(array.shape) for array in split] for split in splits]
    if [shape[1:] for shape in shapes[0]] != [shape[1:] for shape in shapes[1]]:
        raise UserError(f"inputs and labels have shapes {shapes[0]}, and {shapes[1]} for testing: only n may differ")
    if not isinstance(data.classes, list | tuple) or not all(isinstance(each, str) for each in data.classes):
        raise UserError(f"classes={shown(data.classes)} are no names: give a tuple of texts, or leave it out")
    return DataSet(splits[0], splits[1], tuple(data.classes))


def check_split(name: str, split: Split) -> Split:
    """The arrays of one part of a data set, called `name`; errors and types as of `check_data`."""
    inputs, labels = (as_array(f"{name} {what}", each) for what, each in split._asdict().items())
    if inputs.shape[:1] != labels.shape[:1] or inputs.shape[:1] in ((), (0,)):
        raise UserError(
            f"{name} inputs have shape {list(inputs.shape)} and the labels {list(labels.shape)}: give both one row for "
            "each example, and at least one"
        )
    as_int32 = np.int32 if labels.dtype.kind in "biu" else None
    return Split(converted(f"{name} inputs", inputs), converted(f"{name} labels", labels, as_int32))


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


def check_task(task: Task, data: DataSet, *, own: bool) -> None:
    """Refuse a model or a loss that does not take the data; with `own`, when they are the user's, also a loss that does
    not keep its contract on a few examples, and a layer that keeps none. Errors as of `check_data`."""
    name, labels = task.name, data.train.labels
    example = Batches(data.train, min(ROWS, len(labels))).take(np.arange(min(ROWS, len(labels))))
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

    try:
        returned = jax.eval_shape(outputs, params, model_state, example)
    except Exception as error:
        what = "does not take" if task.classifies else "and its loss do not take"
        raise UserError(
            f"{name} {what} inputs {list(example.inputs.shape)} of {example.inputs.dtype} ({reason(error)}): give "
            "inputs of its shape, or correct its __call__, which gets (inputs) or (inputs, context)"
        ) from error
    if task.classifies:
        check_classes(name, returned, labels, data.test.labels)
    elif not isinstance(returned, MetricSums):
        raise UserError(f"the loss returns {type(returned).__name__}: return pmapdp.loss.MetricSums")
    if own:
        check_loss(task, example)
        check_layers(task, example)


def check_classes(name: str, logits: Any, *labels: np.ndarray) -> None:
    """Refuse logits that are not of a classifier, or labels that are none of its classes."""
    if getattr(logits, "ndim", 0) != 2 or labels[0].ndim != 1 or labels[0].dtype.kind == "f":
        raise UserError(
            f"a classifier has logits [n, C] for n examples and whole numbers [n] as labels, but {name} gives "
            f"{list(getattr(logits, 'shape', []))} and the labels are {labels[0].dtype} {list(labels[0].shape)}: give "
            "these, or a loss of your own"
        )
    C, found = logits.shape[1], np.concatenate(labels)
    if found.min() < 0 or found.max() >= C:
        raise UserError(
            f"the labels are from {found.min()} to {found.max()}, and {name} has {C} logits: "
            + ("subtract 1 from the labels" if found.min() == 1 and found.max() == C else f"use 0 to {C - 1}")
            if C > 1
            else f"{name} has a single logit: give it one for each class, or a loss of your own"
        )


def check_loss(task: Task, example: Batch) -> None:
    """Hold the loss to its contract in evaluation, on a few examples: its fields are real scalars; examples of weight 0
    add nothing; and that of the examples is the sum of those of its halves."""
    params, model_state = task.arrays_of(task.model)

    @jax.jit
    def sums(weights: jax.Array) -> MetricSums:
        model, batch = task.model_with(params, model_state), example._replace(weights=weights)
        return task.loss(model, batch, Context(weights))

    def of(*weights: float) -> dict[str, float]:
        found = sums(np.asarray(weights, np.float32))
        return {name: float(value) for name, value in named_sums(found).items()}

    n = len(example.labels)
    try:
        returned = sums(np.ones(n, np.float32))
        found = named_sums(returned)
    except Exception as error:
        raise UserError(
            f"the loss of {task.name}, or its metrics, fails ({reason(error)}): return further sums as a dictionary of "
            "names, for example {'errors': (batch.weights * errors).sum()}"
        ) from error
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
    def trained(random: Any) -> tuple[jax.Array, Any]:
        arrays = jax.tree.map(jnp.asarray, (params, random, model_state))
        model = nnx.merge(structure, *arrays, copy=True)
        keys = example_keys(task.seed, jnp.int32(0), example.indices)
        context = Context(jnp.asarray(example.weights), keys, jnp.int32(0), train=True)
        with context.entered():
            sums = task.loss(model, example, context)
        return sums.loss, task.arrays_of(model)[1]

    try:
        loss, after = trained(random)
    except Exception as error:
        raise UserError(f"{task.name} fails in training ({reason(error)}): correct its __call__ or its loss") from error
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
            if trained(nnx.from_flat_state(other))[0] != loss:
                layer = ".".join(map(str, path[:-1]))
                raise UserError(
                    f"{task.name} draws random numbers from {layer} in training, which would be the same on every "
                    "device and in every update: use nnx.Dropout, or draw from context.keys, one key an example"
                )

"""Your model, loss, optimizer and schedule are checked before anything is trained. docs/custom.md has the sentences.

Model and loss are also tried on a few examples, so that a run on N devices can't differ
from one.
"""

import dataclasses
import inspect
import math
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.custom.arrays import describe
from pmapdp.custom.data import PARTS
from pmapdp.custom.examples import check_labels
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import DataSet
from pmapdp.errors import UserError, explain_errors, reason, shown, unknown
from pmapdp.layers import Context, current_context, example_keys, use_context
from pmapdp.loss import DIVISOR, MetricSums, named_sums
from pmapdp.metrics import ACCURACIES
from pmapdp.state import Task, build, named_leaves, takes
from pmapdp.steps.shared import AXIS

ROWS, MORE_ROWS = (
    16,
    64,
)  # examples with which a model and its loss are tried, and the accuracy
EXAMPLE = "optimizer=optax.lion, or lambda schedule: optax.chain(optax.clip(1.0), optax.adam(schedule))"


def build_model(model: Callable[..., nnx.Module], seed: int, dtype: str) -> nnx.Module:
    """Build your model as `pmapdp.state.build` does."""
    advice = "give a class or function of rngs that makes a flax.nnx.Module; one of Linen needs flax.nnx.bridge.ToNNX"
    with explain_errors(f"{shown(model)} cannot be built", advice):
        built = build(model, seed, dtype)
    if not isinstance(built, nnx.Module):
        raise UserError(f"{shown(model)} gives {shown(built)}: {advice}")
    if dtype != "float32" and not takes(model, "dtype"):
        advice = (
            "add dtype to its arguments and give it to its layers, or leave --dtype out"
        )
        raise UserError(
            f"--dtype {dtype} has no effect on {shown(model)}, which takes no dtype: {advice}"
        )
    return built


def check_task(task: Task, data: DataSet, *, custom: bool, best: str | None) -> None:
    """Refuse a model or loss that doesn't fit the data or `--best`, and try `custom` ones and an augmentation."""
    for what, function in (
        (f"{task.name}.__call__", type(task.model).__call__),
        ("the loss", task.loss),
    ):
        if "context" in inspect.signature(function).parameters:
            raise UserError(
                f"{what} has an argument context, which it no longer gets: leave it out, and begin the function with "
                "context = pmapdp.layers.current_context() if it needs one"
            )

    def take(most: int) -> Batch:
        rows = min(
            most, data.train.examples
        )  # from all over the data, which may be sorted by class
        return Batches(data.train, rows).take(
            np.linspace(0, data.train.examples - 1, rows).astype(np.int32)
        )

    def trace(function: Callable[[Any, Batch], Any], batch: Any) -> Any:
        """Return the types and shapes of what a function of model and batch returns."""

        def call(params: Any, model_state: Any, batch: Batch) -> Any:
            return function(task.model_with(params, model_state), batch)

        return jax.eval_shape(call, *task.arrays_of(task.model), batch)

    example = take(ROWS)
    shape: Any = getattr(example.inputs, "shape", ())
    advice = "give inputs of its shape, or correct its __call__"
    if len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4):
        advice = (
            f"Flax wants channels last, so give [n, {shape[2]}, {shape[3]}, {shape[1]}]"
        )
    name = (
        f"{task.name} does not"
        if task.classifies
        else f"{task.name} and its loss do not"
    )
    with explain_errors(f"{name} take inputs {describe(example.inputs)}", advice):
        returned = trace(
            (lambda model, batch: model(batch.inputs))
            if task.classifies
            else task.loss,
            example,
        )
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
            trace(task.loss, any_size)
            trace(
                lambda model, batch: getattr(model, "predict", model)(batch.inputs),
                any_size,
            )
        except Exception as error:  # better now than after training
            print(f"warning: {not_exportable(error)}", file=sys.stderr)
    if best is not None:
        check_best(best, named_sums(trace(task.loss, example)), data)


def not_exportable(error: Exception) -> str:
    """Say why a model works for only one batch size."""
    return (
        f"the model cannot be exported for any number of inputs ({reason(error)}): use, for example, inputs.shape[0] "
        "in it instead of len(inputs)"
    )


def check_classes(name: str, logits: Any, labels: Any, data: DataSet) -> None:
    """Refuse logits that no classifier gives, and labels that are none of its classes."""
    if (
        getattr(logits, "ndim", 0) != 2
        or getattr(labels, "ndim", 0) != 1
        or labels.dtype.kind == "f"
    ):
        raise UserError(
            f"a classifier gives logits [n, C] and has whole numbers [n] as labels, but {name} gives "
            f"{describe(logits)} and the labels are {describe(labels)}: of one-hot rows give labels.argmax(1), of a "
            "column labels[:, 0], of whole floats labels.astype('int32'), and for other labels a loss of your own"
        )
    C = logits.shape[1]
    if data.classes and len(data.classes) != C:
        advice = "name all of them in their order, DataSet(..., classes=(...)), or none"
        raise UserError(
            f"the data name {len(data.classes)} classes, and {name} has {C} logits: {advice}"
        )
    for each, part in data.parts.items():
        check_labels(PARTS[each], part, C)


def check_best(best: str, sums: dict[str, Any], data: DataSet) -> None:
    """Refuse `--best` of a metric that isn't among the sums of the loss."""
    deciding = next(
        part for part in (data.validation, data.test, data.train) if part is not None
    )
    accuracy = ACCURACIES[deciding.weights is not None]
    names = {
        accuracy if name == "correct" else name
        for name in sums
        if not name.endswith(DIVISOR)
    } - {"count"}
    order, _, name = best.partition(":")
    if name not in names:
        raise unknown("--best", best, sorted(f"{order}:{each}" for each in names))


def check_loss(task: Task, example: Batch) -> None:
    """Try loss and layers on n examples, in evaluation and in training, on three simulated devices.

    If one device has all examples, or two have half of them, the sums must be the same,
    and padding must add nothing.
    """
    n = len(example.indices)

    def lay_out(*parts: np.ndarray) -> Batch:
        rows, weights = np.tile(np.arange(n), (3, 1)), np.zeros((3, n), np.float32)
        for device, part in enumerate(parts):
            rows[device, : len(part)], weights[device, : len(part)] = part, 1
        return jax.tree.map(lambda x: np.asarray(x)[rows], example)._replace(
            weights=weights
        )

    together, in_halves = (
        lay_out(np.arange(n)),
        lay_out(*np.array_split(np.arange(n), 2)),
    )
    for train in (False, True):
        run = make_trial(task, together, train)
        (whole, written), (apart, written_apart) = run(together), run(in_halves)
        check_streams(task, partial(run, together), whole["loss"])
        # Another order of additions moves a sum so far, most with batch norm in
        # bfloat16, where examples change class.
        rounding = 1e-3 if task.dtype != "bfloat16" else 1e-1 if train else 2e-2
        if new := written.keys() - named_leaves(task.arrays_of(task.model)[1]).keys():
            advice = "make it in __init__, or leave nnx.sow out"
            raise UserError(
                f"{task.name} makes the variable {min(new)} as it is called: {advice}"
            )
        for name, values in written.items() if train else ():
            if not np.allclose(
                written_apart[name], values[:1], rounding, 1e-4, equal_nan=True
            ):
                raise UserError(
                    f"{task.name} writes {name} from the rows of one device, or padding with them: weight them by the "
                    "weights of pmapdp.layers.current_context(), and add sums and counts up with jax.lax.psum over "
                    "its axis_name, unless that is None"
                )
        for name in (
            "loss",
            *sorted({"count"} if rounding == 0.1 else whole.keys() - {"loss"}),
        ):
            what = f"{'' if name == 'loss' else f'{name} in '}the loss of {task.name}{' in training' if train else ''}"
            check_sum(what, whole[name], apart[name], rounding)


def make_trial(
    task: Task, batches: Batch, train: bool
) -> Callable[..., tuple[dict[str, Any], dict[str, Any]]]:
    """Return a function of batches `[devices, b, ...]`, which `jax.vmap` maps over a named axis, as `pmap` does.

    It returns the loss's sums, and what the model writes, by name, `[devices, ...]`
    each.
    """
    structure, constant_streams = task.constant
    arrays = task.arrays_of(task.model)

    def device(params: Any, model_state: Any, streams: Any, batch: Batch) -> Any:
        model = nnx.merge(
            structure,
            *jax.tree.map(jnp.asarray, (params, streams, model_state)),
            copy=True,
        )
        keys = example_keys(task.seed, jnp.int32(0), batch.indices)
        training = Context(
            batch.weights, keys, jnp.int32(0), train=True, axis_name=AXIS
        )
        with (
            use_context(training if train else Context()),
            jax.default_matmul_precision("highest"),
        ):  # not TF32
            sums = task.loss(model, batch)
        check_fields(task, sums)
        before, after = (
            named_leaves(model_state),
            named_leaves(task.arrays_of(model)[1]),
        )
        return named_sums(sums), {
            name: leaf for name, leaf in after.items() if leaf is not before.get(name)
        }

    def trace() -> Any:
        devices = jax.vmap(device, (None, None, None, 0), axis_name=AXIS)
        return jax.jit(lambda *values: devices(*values)).trace(
            *arrays, constant_streams, batches
        )  # each time anew

    def content(traced: Any) -> tuple[str, list[bytes]]:
        constants = [np.asarray(each).tobytes() for each in traced.jaxpr.consts]
        return re.sub(
            "0x[0-9a-f]+", "", str(traced.jaxpr)
        ), constants  # without addresses of functions

    advice = "correct its __call__, its loss, metrics= or augment="
    with explain_errors(
        f"{task.name} fails in {'training' if train else 'evaluation'}", advice
    ):
        traced = trace()
        if train and content(traced) != content(trace()):
            raise UserError(
                f"{task.name} draws random numbers of NumPy or Python as JAX traces it, which would be the same in "
                "every update, and others in a run that resumes: draw with current_context().next_keys()"
            )
        compute = traced.lower().compile()

    def run(batches: Batch, streams: Any = constant_streams) -> Any:
        with jax.debug_nans(False):  # training finds where a NaN comes from
            return jax.device_get(compute(*arrays, streams, batches))

    return run


def check_fields(task: Task, sums: MetricSums) -> None:
    """Refuse sums that are no real scalars of JAX, or have a name that is taken."""
    for name in sums.others.keys() & {
        "loss",
        "count",
        "examples",
        *(() if sums.correct is None else ACCURACIES),
    }:
        raise UserError(
            f"the loss of {task.name} has a further sum called {name}, which there is: use another name"
        )
    for name, value in (
        {"loss": sums.loss, "count": sums.count} | named_sums(sums)
    ).items():
        real = jnp.floating if name == "loss" else jnp.number
        if (
            not isinstance(value, jax.Array)
            or value.shape
            or not jnp.issubdtype(value.dtype, real)
        ):
            given = describe(value) if isinstance(value, jax.Array) else shown(value)
            right = (
                "batch.weights.sum()"
                if name == "count"
                else f"(batch.weights * {name}).sum()"
            )
            raise UserError(
                f"the loss of {task.name} returns {name} as {given}: return its sum over examples, {right}"
            )


def check_sum(
    what: str, whole: np.ndarray, halves: np.ndarray, rounding: float
) -> None:
    """Refuse a sum over all examples `whole[0]` that isn't the two `halves`' together, or a nonzero one of padding."""
    total, padding, added = float(whole[0]), float(whole[1]), float(halves.sum())
    near = partial(np.isclose, rtol=rounding, atol=1e-4 * max(1.0, abs(total)))
    if not math.isfinite(total) or (
        near(added, total) and near(padding, 0)
    ):  # training names a step that isn't finite
        return
    if near(padding, total) and not near(padding, 0):
        advice = (
            "use batch.weights.sum()"
            if what.startswith("count")
            else "multiply by batch.weights and sum"
        )
        raise UserError(f"{what} counts padding ({total:.4g} of weight 0): {advice}")
    if near(
        added - total, (len(halves) - 1) * padding
    ):  # it is there once on one device, and n times on n
        once = f"is added once a batch ({padding:.4g}), and so once a device"
        raise UserError(
            f"{what} has a penalty that {once}: multiply it by batch.weights.sum()"
        )
    raise UserError(
        f"{what} is not a sum over the examples ({total:.4g} for all of them, {added:.4g} for two halves): let none "
        "depend on others, and return (batch.weights * losses).sum() and batch.weights.sum()"
    )


def check_correct(task: Task, examples: Batch) -> None:
    """Refuse an accuracy with weights of the loss's own: an example is right or wrong, and counts as the data say.

    With labels of more than one axis, for example of tokens, it may be right in part. A
    wrong example shows nothing, so this takes more of them than `check_loss`.
    """
    label_axes, alone = (
        getattr(examples.labels, "ndim", 0),
        jax.tree.map(lambda x: x[:, None], examples),
    )
    sums, _ = make_trial(task, alone, train=False)(alone)
    counts = sums["count"] / examples.weights  # of an example of weight 1
    usual = min(counts[counts > 0], default=0)
    for correct, count, each in zip(
        sums["correct"].tolist(), sums["count"].tolist(), counts, strict=True
    ):
        is_whole = (
            np.isclose(correct, [0, count], rtol=1e-3).any()
            and np.isclose(each, [0, usual], rtol=1e-3).any()
        )
        if not (
            is_whole
            or math.isnan(correct)
            or (label_axes != 1 and 0 <= correct <= count)
        ):
            raise UserError(
                f"the loss of {task.name} returns correct {correct:.4g} for an example that counts {count:.4g}, but "
                "accuracy has the weights of the data alone: return (batch.weights * right).sum() and "
                "batch.weights.sum(), or correct=None and others={'weighted_accuracy': (weights * right).sum()}"
            )


def check_streams(task: Task, run: Callable[..., Any], losses: np.ndarray) -> None:
    """Refuse a layer whose own stream of random numbers changes the losses."""
    streams = nnx.to_flat_state(task.constant[1])
    for path, variable in streams:
        if isinstance(variable, nnx.RngKey):
            keys = jax.random.split(jax.random.key(task.seed + 1), variable[...].shape)
            others = {
                tuple(each): variable.replace(keys) if each == path else value
                for each, value in streams
            }
            if run(streams=nnx.from_flat_state(others))[0]["loss"][0] != losses[0]:
                raise UserError(
                    f"{task.name} draws random numbers from {'.'.join(map(str, path[:-1]))}, which would be the same "
                    "on every device and in every update: use nnx.Dropout, or current_context().next_keys()"
                )


def augment_task(task: Task, augment: Callable[[Any, jax.Array], Any] | None) -> Task:
    """Return the task with its training inputs changed by `augment`, or as it is if there is none."""
    return (
        task
        if augment is None
        else dataclasses.replace(task, loss=partial(augmented, task.loss, augment))
    )


def augmented(
    loss: Callable[..., Any],
    augment: Callable[[Any, jax.Array], Any],
    model: Any,
    batch: Batch,
) -> Any:
    """Return the loss of the augmented inputs. As for dropout, the keys follow from seed, update and example alone."""
    context = current_context()
    if context.train:
        batch = batch._replace(
            inputs=jax.vmap(augment)(batch.inputs, context.next_keys())
        )
    return loss(model, batch)


def check_schedule(schedule: Any) -> None:
    """Refuse a schedule that gives no learning rate under `jax.jit`."""
    given, advice = (
        f"schedule={shown(schedule)}",
        "give a function of JAX, for example lambda step: 0.1 * 0.99**step",
    )
    with explain_errors(f"{given} fails for a number of updates", advice):
        rate = jax.eval_shape(
            lambda step: jnp.asarray(schedule(step)),
            jax.ShapeDtypeStruct((), jnp.int32),
        )
    if rate.shape or not jnp.issubdtype(rate.dtype, jnp.floating):
        raise UserError(
            f"{given} gives {rate.dtype} {list(rate.shape)}, not one real number: {advice}"
        )


def check_optimizer(
    optimizer: Callable[..., Any], schedule: optax.Schedule, task: Task
) -> None:
    """Refuse an optimizer that fails, or that ignores the schedule."""
    given, steps = f"optimizer={shown(optimizer)}", []

    def record(step: Any) -> Any:
        steps.append(step)
        return schedule(step)

    params, _ = jax.device_get(task.arrays_of(task.model))
    advice = f"give a function of the schedule, such as {EXAMPLE}; rules that take more than the gradient don't work"
    with explain_errors(f"{given} fails", advice):
        rule = optimizer(record)
        state = jax.eval_shape(rule.init, params)
        jax.eval_shape(rule.update, params, state, params)
    if "ScheduleFreeState" in str(jax.tree.structure(state)):
        print(
            f"warning: {given} has other parameters for evaluation, but this run evaluates, keeps and exports the ones "
            "that it trains: get them from Python with optax.contrib.schedule_free_eval_params",
            file=sys.stderr,
        )
    if not steps:  # the run would show a learning rate that is not the optimizer's
        raise UserError(
            f"{given} does not use its schedule, so --learning-rate would have no effect: use {EXAMPLE}"
        )


def trainable_filter(model: nnx.Module, trainable: Any) -> Any:
    """Return Flax's filter of a model's trained parameters, from one, or from names of parts: ("head", "layers.0")."""

    def starts_with(part: str) -> Callable[..., bool]:
        return lambda path, _: f"{'.'.join(map(str, path))}.".startswith(f"{part}.")

    def names(chosen: Any) -> list[str]:
        return [
            ".".join(map(str, path))
            for path, _ in nnx.to_flat_state(nnx.state(model, chosen))
        ]

    every = names(nnx.Param)
    if trainable == ():
        return nnx.Param
    if isinstance(trainable, tuple):
        for part in trainable:
            if not names(nnx.All(nnx.Param, starts_with(part))):
                raise unknown(
                    "trainable",
                    part,
                    dict.fromkeys(
                        [*(name.partition(".")[0] for name in every), *every]
                    ),
                )
        return nnx.All(nnx.Param, nnx.Any(*map(starts_with, trainable)))
    if not names(chosen := nnx.All(nnx.Param, trainable)):
        raise UserError(
            f"trainable={shown(trainable)} chooses no parameter of {', '.join(every[:4])}...: give for example "
            "nnx.PathContains('head')"
        )
    return chosen

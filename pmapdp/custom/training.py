"""An optimizer, a schedule and a choice of trained parameters of one's own: from values, or from files.

    python -m pmapdp.train --optimizer my_file.py:make --schedule my_file.py:rate --trainable head

An optimizer is a function of the schedule that returns an update rule of optax, for example `optax.lion`. A schedule is
a function of the number of updates made, of JAX, that returns the learning rate.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.config import PYTHON_VALUE
from pmapdp.data.batches import Batch, Batches
from pmapdp.errors import UserError, shown, unknown, user_code_errors
from pmapdp.loss import MetricSums, named_sums
from pmapdp.state import Task, named_leaves

WORKS = "for example optimizer=optax.lion, or lambda schedule: optax.chain(optax.clip(1.0), optax.adam(schedule))"


def own_name(value: Any) -> str:
    """What the configuration of a run calls a Python value, which no file names."""
    return getattr(value, "__name__", type(value).__name__) + PYTHON_VALUE


def check_schedule(schedule: Any) -> None:
    """Refuse a schedule that gives no learning rate under `jax.jit`."""
    given, works = f"schedule={shown(schedule)}", "give a function of JAX, for example lambda step: 0.1 * 0.99**step"
    if not callable(schedule):
        raise UserError(f"{given} is no function of the number of updates: {works}")
    with user_code_errors(f"{given} fails for a number of updates", works):
        rate = jax.eval_shape(lambda step: jnp.asarray(schedule(step)), jax.ShapeDtypeStruct((), jnp.int32))
    if rate.shape or not jnp.issubdtype(rate.dtype, jnp.floating):
        raise UserError(f"{given} gives {rate.dtype} {list(rate.shape)}, not one real number: {works}")


def check_optimizer(given: Any, schedule: optax.Schedule, task: Task) -> Callable[..., Any]:
    """`given`, a function of the schedule, once it has kept the contract of an update rule for the parameters of
    `task`. A `UserError` says what it does not keep.

    It must give updates of the parameters' shapes, keep arrays that a checkpoint can hold, and use the schedule:
    otherwise the learning rate that a run shows would not be its own.
    """
    if not callable(given):
        raise UserError(f"optimizer={shown(given)} is no function of the schedule: give one, {WORKS}")
    used: list[Any] = []

    def noted(step: Any) -> Any:
        used.append(step)
        return schedule(step)

    params, _ = jax.device_get(task.arrays_of(task.model))
    with user_code_errors(f"optimizer={shown(given)} fails", f"give a function of the schedule, {WORKS}"):
        rule = given(noted)
        kept = jax.eval_shape(rule.init, params)
        updates, after = jax.eval_shape(rule.update, params, kept, params)
    for leaf in jax.tree.leaves(kept):
        if not (jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool):
            raise UserError(
                f"optimizer={shown(given)} keeps {leaf.dtype}, and a checkpoint holds numbers alone: leave out "
                "what draws random numbers"
            )
    if jax.tree.map(np.shape, updates) != jax.tree.map(np.shape, params) or types_of(after) != types_of(kept):
        raise UserError(
            f"optimizer={shown(given)} gives updates of other shapes than the parameters, or changes its state's: "
            f"give a function of the schedule, {WORKS}"
        )
    if not used:
        raise UserError(
            f"optimizer={shown(given)} does not use its schedule, so --learning-rate would have no effect: use "
            f"it, {WORKS}"
        )
    return given


def types_of(tree: Any) -> Any:
    """Structure, shapes and types of a tree of arrays."""
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def filter_of(trainable: Any) -> Any:
    """The filter of Flax of the parameters that are trained.

    Args:
        trainable: a filter of Flax, or names of parts of the model, for example `("head", "layers.0")`; all parameters
            where it is empty.
    """
    if isinstance(trainable, tuple) and all(isinstance(each, str) for each in trainable):
        return nnx.All(nnx.Param, lambda path, _: under(path, trainable)) if trainable else nnx.Param
    return nnx.All(nnx.Param, trainable)


def under(path: tuple[Any, ...], names: tuple[str, ...]) -> bool:
    """Whether a parameter belongs to one of the named parts."""
    name = dotted(path)
    return any(f"{name}.".startswith(f"{each}.") for each in names)


def dotted(path: tuple[Any, ...]) -> str:
    """The name of a variable by its place in the model, for example `layers.0.kernel`."""
    return ".".join(map(str, path))


def check_trainable(model: nnx.Module, trainable: Any) -> None:
    """Refuse names of no part of a model, and a filter that chooses no parameter."""
    try:
        chosen = [dotted(path) for path, _ in nnx.to_flat_state(nnx.state(model, filter_of(trainable)))]
    except Exception as error:
        raise UserError(
            f"trainable={shown(trainable)} is no filter of Flax: give for example nnx.PathContains('head')"
        ) from error
    every = [dotted(path) for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))]
    if isinstance(trainable, tuple):
        for name in trainable:
            if not any(under((each,), (name,)) for each in every):
                raise unknown(
                    "trainable", str(name), dict.fromkeys([*(each.partition(".")[0] for each in every), *every])
                )
    elif not chosen:
        raise UserError(
            f"trainable={shown(trainable)} chooses no parameter of {', '.join(every[:4])}...: give for example "
            "nnx.PathContains('head')"
        )


def names_of_trained(task: Task) -> tuple[str, ...]:
    """The names of the parameters that are trained, one by one."""
    return tuple(named_leaves(task.arrays_of(task.model)[0]))


def check_best(best: str | None, task: Task, batches: Batches) -> None:
    """Refuse `--best` of a metric that the loss does not return."""
    if best is None:
        return
    params, model_state = task.arrays_of(task.model)

    def sums(batch: Batch) -> MetricSums:
        return task.loss(task.model_with(params, model_state), batch)

    found = named_sums(jax.eval_shape(sums, batches.take(np.arange(1))))
    names = {"accuracy" if name == "correct" else name for name in found} - {"count"}
    order, _, name = best.partition(":")
    if name not in names:
        raise unknown("--best", best, sorted(f"{order}:{each}" for each in names))

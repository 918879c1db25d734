"""Your optimizer, schedule and choice of trained parameters are checked before anything is trained.

An optimizer is a function of the schedule that returns an update rule of optax, for example `optax.lion`. A schedule is
a function of the number of updates made that returns the learning rate.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.data.batches import Batches
from pmapdp.errors import UserError, shown, unknown, user_code_errors
from pmapdp.loss import DIVISOR, named_sums
from pmapdp.state import Task

EXAMPLE = "optimizer=optax.lion, or lambda schedule: optax.chain(optax.clip(1.0), optax.adam(schedule))"


def check_schedule(schedule: Any) -> None:
    """Refuse a schedule that gives no learning rate under `jax.jit`."""
    given, works = f"schedule={shown(schedule)}", "give a function of JAX, for example lambda step: 0.1 * 0.99**step"
    with user_code_errors(f"{given} fails for a number of updates", works):
        rate = jax.eval_shape(lambda step: jnp.asarray(schedule(step)), jax.ShapeDtypeStruct((), jnp.int32))
    if rate.shape or not jnp.issubdtype(rate.dtype, jnp.floating):
        raise UserError(f"{given} gives {rate.dtype} {list(rate.shape)}, not one real number: {works}")


def check_optimizer(optimizer: Callable[..., Any], schedule: optax.Schedule, task: Task) -> None:
    """Refuse an optimizer that fails, that a checkpoint can't hold, or that ignores the schedule."""
    given, steps = f"optimizer={shown(optimizer)}", []

    def record(step: Any) -> Any:
        steps.append(step)
        return schedule(step)

    params, _ = jax.device_get(task.arrays_of(task.model))
    works = f"give a function of the schedule, for example {EXAMPLE}; rules that take more than the gradient don't work"
    with user_code_errors(f"{given} fails", works):
        rule = optimizer(record)
        state = jax.eval_shape(rule.init, params)
        jax.eval_shape(rule.update, params, state, params)
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)):
        raise UserError(f"{given} keeps random keys, and a checkpoint holds numbers alone: leave out what draws them")
    if "ScheduleFreeState" in str(jax.tree.structure(state)):
        print(
            f"warning: {given} has other parameters for evaluation, but this run evaluates, keeps and exports the ones "
            "that it trains: get them from Python with optax.contrib.schedule_free_eval_params",
            file=sys.stderr,
        )
    if not steps:  # the run would show a learning rate that is not the optimizer's
        raise UserError(f"{given} does not use its schedule, so --learning-rate would have no effect: use {EXAMPLE}")


def trainable_filter(model: nnx.Module, trainable: Any) -> Any:
    """Return Flax's filter of a model's trained parameters, from one, or from names of parts: `("head", "layers.0")`.

    Without any name all parameters are trained. A `UserError` says that a name, or a filter, chooses no parameter.
    """

    def starts_with(part: str) -> Callable[..., bool]:
        return lambda path, _: f"{'.'.join(map(str, path))}.".startswith(f"{part}.")

    def names(chosen: Any) -> list[str]:
        return [".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model, chosen))]

    chosen: Any = nnx.All(nnx.Param, trainable)
    every = names(nnx.Param)
    if isinstance(trainable, tuple):
        for part in trainable:
            if not names(nnx.All(nnx.Param, starts_with(part))):
                raise unknown("trainable", part, dict.fromkeys([*(name.partition(".")[0] for name in every), *every]))
        chosen = nnx.All(nnx.Param, nnx.Any(*map(starts_with, trainable))) if trainable else nnx.Param
    if not names(chosen):
        raise UserError(
            f"trainable={shown(trainable)} chooses no parameter of {', '.join(every[:4])}...: give for example "
            "nnx.PathContains('head')"
        )
    return chosen


def check_best(best: str | None, task: Task, batches: Batches) -> None:
    """Refuse `--best` of a metric that the loss doesn't return."""
    if best is None:
        return

    def sums(params: Any, model_state: Any, batch: Any) -> dict[str, Any]:
        return named_sums(task.loss(task.model_with(params, model_state), batch))

    found = jax.eval_shape(sums, *task.arrays_of(task.model), batches.take(np.arange(1)))
    names = {"accuracy" if name == "correct" else name for name in found if not name.endswith(DIVISOR)} - {"count"}
    order, _, name = best.partition(":")
    if name not in names:
        raise unknown("--best", best, sorted(f"{order}:{each}" for each in names))

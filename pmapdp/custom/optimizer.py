"""Check your optimizer, schedule and choice of parameters before training."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from pmapdp.errors import (
    UserError,
    YourCodeError,
    explain_errors,
    name_or_repr,
    unknown_name,
)
from pmapdp.state import named_leaves

EXAMPLE = (
    "optimizer=optax.lion, or lambda schedule: "
    "optax.chain(optax.clip(1.0), optax.adam(schedule))"
)


def check_schedule(schedule: Any) -> None:
    """Refuse a schedule that gives no learning rate under `jax.jit`."""
    failure = f"schedule={name_or_repr(schedule)} gives no learning rate"
    advice = "give a function of JAX, for example lambda step: 0.1 * 0.99**step"
    # Optax calls it with a traced step, for which `if step > 3` fails.
    step = jax.ShapeDtypeStruct((), jnp.int32)
    with explain_errors(failure, advice, YourCodeError):
        rate = jax.eval_shape(lambda step: jnp.asarray(schedule(step), float), step)
        if rate.shape:
            raise ValueError(f"its shape is {list(rate.shape)}")


def check_optimizer(
    optimizer: Callable[..., Any], schedule: optax.Schedule, params: Any
) -> None:
    """Refuse an optimizer that fails on these parameters, or ignores the schedule."""
    if isinstance(optimizer, optax.GradientTransformation):
        raise UserError(
            "the optimizer is built already: give the function that makes it, and its "
            "learning rate apart, as in optimizer=optax.adam and --learning-rate 0.001"
        )
    name = f"optimizer={name_or_repr(optimizer)}"
    advice = (
        f"give a function of the schedule, such as {EXAMPLE}; rules that take more "
        "than the gradient don't work"
    )
    steps = []

    # An optimizer with a learning rate of its own never calls its schedule.
    def record(step: Any) -> Any:
        steps.append(step)
        return schedule(step)

    # The state and the updates are only traced, so they take no memory.
    params = nnx.to_pure_dict(params)
    with explain_errors(f"{name} fails", advice, YourCodeError):
        transformation = optimizer(record)
        state = jax.eval_shape(transformation.init, params)
        jax.eval_shape(transformation.update, params, state, params)
    if not steps:
        raise UserError(
            f"{name} does not use its schedule, so the log would show another "
            f"learning rate: use {EXAMPLE}"
        )


def trainable_filter(model: nnx.Module, trainable: Any) -> Any:
    """Return Flax's filter of the parameters to train.

    Args:
        model: The model with the parameters.
        trainable: A filter of Flax, or names of parts, such as ("head", "layers.0").
            Without names, all parameters.
    """
    if isinstance(trainable, str):
        trainable = (trainable,)
    if trainable == ():
        return nnx.Param
    parameters = list(named_leaves(nnx.to_pure_dict(nnx.state(model, nnx.Param))))
    if isinstance(trainable, tuple):
        for part in trainable:
            if not any(f"{name}.".startswith(f"{part}.") for name in parameters):
                layers = dict.fromkeys(name.split(".")[0] for name in parameters)
                raise unknown_name("trainable", part, layers)
        trainable = nnx.Any(*map(make_part_filter, trainable))
    # Whatever a filter chooses, running statistics and random streams aren't trained.
    params_filter = nnx.All(nnx.Param, trainable)
    if not nnx.state(model, params_filter):
        raise UserError(
            f"trainable={name_or_repr(trainable)} chooses no parameter of "
            f"{', '.join(parameters[:4])}...: give for example "
            "nnx.PathContains('head')"
        )
    return params_filter


def make_part_filter(part: str) -> Callable[..., bool]:
    """Make Flax's filter of a part of the model, such as "layers.0"."""
    return lambda path, _: f"{'.'.join(map(str, path))}.".startswith(f"{part}.")

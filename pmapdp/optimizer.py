"""Optimizers and learning-rate schedules, made with Optax from a configuration.

Lesson 03 uses one.
"""

from collections.abc import Callable
from typing import Any

import optax

from pmapdp.config import MAX_INT, Config

Optimizer = Callable[[optax.Schedule, Config], optax.GradientTransformation]

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda schedule, config: optax.sgd(schedule),
    "momentum": lambda schedule, config: optax.sgd(schedule, momentum=0.9),
    "adam": lambda schedule, config: optax.adam(schedule),
    "adamw": lambda schedule, config: optax.adamw(
        schedule, weight_decay=config.weight_decay
    ),
}
# k times the batch, k times the rate: Goyal et al., "Accurate, large minibatch SGD",
# arXiv:1706.02677, 2017. Adam's grows by sqrt(k): Malladi et al., "On the SDEs and
# scaling rules for adaptive gradient algorithms", NeurIPS 2022.
EXPONENTS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}


def peak_learning_rate(config: Config, global_batch_size: int) -> float:
    """Return the highest learning rate of a run, which may grow with its batch."""
    factor = global_batch_size / config.base_batch_size
    return config.learning_rate * factor ** EXPONENTS[config.scale_learning_rate]


def make_schedule(
    config: Config, global_batch_size: int, steps_per_epoch: int, schedule_steps: int
) -> optax.Schedule:
    """Make the learning rate, a function of the number of updates already made.

    Switches and the end of the cosine are counted from the start of training, warm-up
    included.

    Args:
        config: The settings.
        global_batch_size: With it the rate may grow.
        steps_per_epoch: Updates in an epoch.
        schedule_steps: Updates in all epochs, even if the run stops early (`--steps`).
    """
    peak = peak_learning_rate(config, global_batch_size)
    warmup = config.warmup_steps
    if config.schedule == "piecewise":
        steps = [epoch * steps_per_epoch - warmup for epoch in config.switch_epochs]
        # No run gets to a step that JAX can't count.
        switches = {step: config.switch_factor for step in steps if step <= MAX_INT}
        schedule = optax.piecewise_constant_schedule(peak, switches)
    elif config.schedule == "cosine":
        schedule = optax.cosine_decay_schedule(peak, max(1, schedule_steps - warmup))
    else:
        schedule = optax.constant_schedule(peak)
    # The rate rises to the peak, and then the schedule takes over at its beginning.
    if warmup:
        rise = optax.linear_schedule(0.0, peak, warmup)
        schedule = optax.join_schedules([rise, schedule], [warmup])
    return schedule


def make_optimizer(
    config: Config,
    schedule: optax.Schedule,
    custom: Callable[[optax.Schedule], Any] | None = None,
) -> optax.GradientTransformation:
    """Make the configured optimizer, or `custom`, after clipping if it's asked for."""
    if custom is not None:
        optimizer = custom(schedule)
    else:
        optimizer = OPTIMIZERS[config.optimizer](schedule, config)
    # Clipped first: the norm is of the gradient, not of what Adam makes of it.
    if config.clip_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)

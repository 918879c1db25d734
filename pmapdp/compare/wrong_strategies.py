"""Two wrong strategies, the most usual mistakes, for the proof on the page."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.state import Task, TrainState
from pmapdp.steps import pmap
from pmapdp.steps.shared import AXIS, Strategy, gradient_sums, update


def forget_average(gradients: Any) -> Any:
    """Return a device's own gradients.

    Each device updates the weights by its own examples, and `out_axes=None` keeps the
    first device's.
    """
    return gradients


def add_up(gradients: Any) -> Any:
    """Add up the mean gradients instead of averaging them: they're N times too long."""
    return lax.psum(gradients, AXIS)


def make_wrong_strategy(
    reduce: Callable[[Any], Any], task: Task, devices: Sequence[jax.Device]
) -> Strategy:
    """Make pmap's strategy with another reduction of the gradients."""

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, MetricSums]:
        gradients, sums, model_state = gradient_sums(task, state, batch, axis_name=AXIS)
        state = update(task, state, reduce(gradients), sums.count, model_state)
        return state, lax.psum(sums, AXIS)

    step = jax.pmap(
        train_step,
        AXIS,
        in_axes=(None, 0),
        out_axes=None,
        devices=devices,
        donate_argnums=0,
    )
    return pmap.make_strategy(task, devices)._replace(train_step=step)


WRONG_STRATEGIES = {
    "a forgotten average": partial(make_wrong_strategy, forget_average),
    "a sum in place of the mean": partial(make_wrong_strategy, add_up),
}

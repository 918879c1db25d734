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


def make_wrong_strategy(
    reduce: Callable[[Any], Any], task: Task, devices: Sequence[jax.Device]
) -> Strategy:
    """Make pmap's strategy with another reduction of the gradients.

    `out_axes=None` keeps the first device's weights, also if the others' differ.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, MetricSums]:
        gradients, sums, model_state = gradient_sums(task, state, batch, axis_name=AXIS)
        # The count is the device's own, so a psum adds up N means.
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
    "a forgotten average": partial(make_wrong_strategy, lambda gradients: gradients),
    "a sum in place of the mean": partial(
        make_wrong_strategy, lambda gradients: lax.psum(gradients, AXIS)
    ),
}

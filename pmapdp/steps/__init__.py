"""The heart: one training step, written four ways. Compare two files of this folder with `diff`.

Every file has `make_steps(task, devices)`, which returns the same five functions and says where the state lies.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from pmapdp.sharding.layout import Layout
from pmapdp.state import Task


class Steps(NamedTuple):
    """What a trainer needs of a strategy.

    Attributes:
        place_state: host pytree to devices.
        place_batch: host `Batch` to devices.
        train_step: (state, batch) to (state, `MetricSums`), one update; the given state's memory is reused.
        eval_step: (state, batch) to `MetricSums`.
        fetch: devices back to the host, one copy, no device axis.
        state_sharding: where the state's arrays lie: one sharding for all, or a pytree of them like the state.
    """

    place_state: Callable[[Any], Any]
    place_batch: Callable[[Any], Any]
    train_step: Callable[[Any, Any], Any]
    eval_step: Callable[[Any, Any], Any]
    fetch: Callable[[Any], Any]
    state_sharding: Any


def make_steps(strategy: str, task: Task, devices: Sequence[jax.Device], layout: Layout | None = None) -> Steps:
    """The five functions of `strategy`: pmap, jit, shard_map or single.

    Args:
        strategy: which.
        task: what is trained.
        devices: N devices.
        layout: how the arrays lie on them, for jit; default: the batch is split, the state is whole. pmap and
            shard_map take of it whether the optimizer state is split.
    """
    from pmapdp.sharding import zero as split_optimizer
    from pmapdp.steps import jit, pmap, shard_map, single

    if strategy == "jit":
        return jit.make_steps(task, devices, layout)
    if layout is not None and layout.shard_state == "optimizer":
        return split_optimizer.make_steps(strategy, task, devices)
    modules = {"pmap": pmap, "shard_map": shard_map, "single": single}
    return modules[strategy].make_steps(task, devices)

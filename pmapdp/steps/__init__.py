"""The heart: one training step, written four ways. Compare two files of this folder with `diff`.

Every file has `make_strategy(task, devices)`, which returns the same five functions and where the state is placed.
"""

from collections.abc import Sequence

import jax

from pmapdp.state import Task
from pmapdp.steps import jit, pmap, shard_map, single
from pmapdp.steps.shared import Strategy


def make_strategy(name: str, task: Task, devices: Sequence[jax.Device]) -> Strategy:
    """The five functions of pmap, jit, shard_map or single for `task` on `devices`."""
    modules = {"pmap": pmap, "jit": jit, "shard_map": shard_map, "single": single}
    return modules[name].make_strategy(task, devices)

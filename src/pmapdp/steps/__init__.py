"""The heart: one training step, written four ways. Compare two files of this folder with `diff`.

Every file has `make_steps(task, devices)`, which returns the same five functions, and says where the state is placed.
"""

from collections.abc import Sequence

import jax

from pmapdp.state import Task
from pmapdp.steps import jit, pmap, shard_map, single
from pmapdp.steps.shared import Steps


def make_steps(strategy: str, task: Task, devices: Sequence[jax.Device]) -> Steps:
    """The five functions of `strategy`, pmap, jit, shard_map or single, for `task` on `devices`."""
    modules = {"pmap": pmap, "jit": jit, "shard_map": shard_map, "single": single}
    return modules[strategy].make_steps(task, devices)

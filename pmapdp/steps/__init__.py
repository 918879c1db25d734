"""The heart: one training step, written four ways. Compare two files of this folder with `diff`.

Every file has `make_steps(task, devices)`, which returns the same five functions, and says where the state is placed.
"""

from collections.abc import Callable, Sequence

import jax

from pmapdp.state import Task
from pmapdp.steps import jit, pmap, shard_map, single
from pmapdp.steps.shared import Steps

STRATEGIES: dict[str, Callable[[Task, Sequence[jax.Device]], Steps]] = {
    "pmap": pmap.make_steps,
    "jit": jit.make_steps,
    "shard_map": shard_map.make_steps,
    "single": single.make_steps,
}

"""One training step, written four ways. Compare two files of this folder with `diff`.

`single.py`, `pmap.py`, `shard_map.py` and `jit.py` each have a `make_strategy(task,
devices)`. It returns the same five functions, and the sharding of the state. Adding a
strategy takes a file and a line in `STRATEGIES`, and its name in `config.py` for the
flag.

Some settings change what runs:

- `--accumulate` cuts the batch into micro-batches, in `shared.gradient_sums`, and under
  jit in `jit.accumulated_sums`.
- `--shard-state`, `--mesh` and `--layout` split more than the batch. Then `train.py`
  takes the step of `sharding/split_step.py`, or, for pmap and shard_map, of
  `sharding/zero.py`.
"""

from collections.abc import Callable, Sequence

import jax

from pmapdp.state import Task
from pmapdp.steps import jit, pmap, shard_map, single
from pmapdp.steps.shared import Strategy

STRATEGIES: dict[str, Callable[[Task, Sequence[jax.Device]], Strategy]] = {
    "pmap": pmap.make_strategy,
    "shard_map": shard_map.make_strategy,
    "jit": jit.make_strategy,
    "single": single.make_strategy,
}

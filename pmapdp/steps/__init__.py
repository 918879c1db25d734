"""One training step as four strategies. Compare two files of this folder with `diff`.

    shared.py       what the four share: a device's gradient sums, and the update
    placing.py      arrays to the devices and back
    single.py       one device, which the other three must equal
    pmap.py         a program per device, and an all-reduce by the name of the axis
    shard_map.py    the same program, on sharded arrays
    jit.py          one device's program, which the compiler splits

Each of the last four has a `make_strategy(task, devices)`. It returns the same four
functions, and the sharding of the state. The comments `# Placing`, `# The step`,
`# Evaluation` and `# The wrapper` name its four parts. To add a strategy, write its
file, name it in `STRATEGIES` below, and in `StrategyName` in `config.py`.

Some settings change what runs:

- `--accumulate` cuts the batch into micro-batches, in `shared.add_micro_batches`, and
  under jit in `jit.accumulated_sums`.
- `--shard-state`, `--mesh` and `--layout` split more than the batch, under jit alone.
  Then `choose_strategy` in `job.py` takes the step of `sharding/split_step.py`.
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

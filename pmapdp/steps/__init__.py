"""One training step, written four ways. Compare two files of this folder with `diff`.

`single.py`, `pmap.py`, `shard_map.py` and `jit.py` each have a `make_strategy(task,
devices)`. It returns the same five functions, and the sharding of the state. To add a
strategy, add its file here and its name to `StrategyName` in `config.py`. The comments
`# Placing`, `# The step`, `# Evaluation` and `# The wrapper` name its four parts, which
`pmapdp.compare` shows side by side.

Some settings change what runs:

- `--accumulate` cuts the batch into micro-batches, in `shared.add_micro_batches`, and
  under jit in `jit.accumulated_sums`.
- `--shard-state`, `--mesh` and `--layout` split more than the batch, under jit alone.
  Then `train.py` takes the step of `sharding/split_step.py`.
"""

import importlib
import typing
from collections.abc import Callable, Sequence

import jax

from pmapdp.config import StrategyName
from pmapdp.state import Task
from pmapdp.steps.shared import Strategy

STRATEGIES: dict[str, Callable[[Task, Sequence[jax.Device]], Strategy]] = {
    name: importlib.import_module(f"pmapdp.steps.{name}").make_strategy
    for name in typing.get_args(StrategyName)
}

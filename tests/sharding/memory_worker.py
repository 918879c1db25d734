"""What making a state costs, in a process of its own: `python memory_worker.py SIZE MESH`; prints JSON.

The largest array on a device, and by how much the process grew at its peak: all eight devices are simulated in it.
"""

import json
import sys
from pathlib import Path

import jax
from examples import regression

from pmapdp import devices
from pmapdp.sharding.layout import fit_layout
from pmapdp.state import create_state


def peak() -> int:
    """Bytes, of this program alone: getrusage would begin with those of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def made(size: int, mesh: str):
    """A state of two matrices `[size, size]` with Adam, on eight devices."""
    chosen = devices.choose(8)  # before the model is built, which starts JAX
    task = regression(size)
    layout = "model" if "model" in mesh else "data"
    fitted = fit_layout(chosen, task, (size,), mesh=mesh, layout=layout)
    return jax.block_until_ready(create_state(task, fitted.state(task)))


size, mesh = int(sys.argv[1]), sys.argv[2]
made(64, mesh)  # what JAX and the compiler take does not count
before = peak()
state = made(size, mesh)
shards = [shard.data.nbytes for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards]
print(
    json.dumps(
        {
            "state": sum(leaf.nbytes for leaf in jax.tree.leaves(state)),
            "largest_shard": max(shards),
            "grown": peak() - before,
        }
    )
)

"""Solutions of lesson 17's exercises."""

import jax
import numpy as np


def assemble(sharding, shape, rows, mine):
    """Each process places its own shards. The global array is only their description: nothing is sent."""
    parts = [jax.device_put(part, device) for part, device in zip(np.split(rows, len(mine)), mine, strict=True)]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def by_node(found, each):
    """Processes are numbered node by node, so the first `each` of them share a node."""
    return np.array(sorted(found, key=lambda device: device.process_index)).reshape(-1, each)


def fixed_log(process, mean_loss, say):
    """Every process takes part in the all-reduce inside of mean_loss; only what comes after it is for process 0."""
    value = mean_loss()
    if process == 0:
        say(value)
    return value

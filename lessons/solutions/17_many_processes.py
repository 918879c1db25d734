"""Solutions of lesson 17's exercises."""

import jax
import numpy as np


def rows_of(sharding, shape, mine):
    """The sharding knows what every device holds, those of other processes too: nobody needs to be asked."""
    slices = [sharding.devices_indices_map(shape)[device][0] for device in mine]
    return min(rows.start or 0 for rows in slices), max(shape[0] if rows.stop is None else rows.stop for rows in slices)


def assemble(sharding, shape, rows, mine):
    """Each process places its own shards. The global array is only their description: nothing is sent."""
    parts = [jax.device_put(part, device) for part, device in zip(np.split(rows, len(mine)), mine, strict=True)]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def mended_log(process, mean_loss, say):
    """Every process takes part in the all-reduce inside of mean_loss; only what comes after it is for process 0."""
    value = mean_loss()
    if process == 0:
        say(value)
    return value

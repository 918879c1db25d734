"""Solutions of lesson 14's exercises."""

import itertools

import numpy as np
import orbax.checkpoint as ocp


def fixed_batches(seed, first, batch_size, examples):
    """No checkpoint holds the generator's state, so a resumed run starts with the first epoch's order again. An order
    that only depends on (seed, epoch) needs no checkpoint."""
    for number in itertools.count(first):
        epoch, position = divmod(number, -(-examples // batch_size))
        order = np.random.default_rng([seed, epoch]).permutation(examples)
        yield order[position * batch_size : (position + 1) * batch_size]


def train_or_resume(folder, count, create, step):
    """The number of updates is part of the state, so it says where to resume."""
    with ocp.CheckpointManager(folder) as checkpoints:
        state, newest = create(), checkpoints.latest_step()
        if newest is not None:
            state = checkpoints.restore(newest, args=ocp.args.StandardRestore(state))
        for number in range(int(state["updates"]), count):
            state = step(state, number)
            checkpoints.save(number + 1, args=ocp.args.StandardSave(state))
        checkpoints.wait_until_finished()
    return state

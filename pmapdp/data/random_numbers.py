"""The inputs and targets of Flax's guide "Scale up on multiple devices": random numbers, for a regression."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.data.dataset import DataSet, Split

SIZE, EXAMPLES = 1024, 8


def random_numbers() -> DataSet:
    """The guide's inputs and targets, `[8, 1024]` each, for training and testing alike."""
    shape = (EXAMPLES, SIZE)
    with jax.transfer_guard("allow"):
        inputs, targets = (np.asarray(jax.random.normal(jax.random.key(seed), shape, jnp.float32)) for seed in (1, 2))
    return DataSet(Split(inputs, targets), Split(inputs, targets))

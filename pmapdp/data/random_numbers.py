"""Random inputs and targets for a regression, as in Flax's guide "Scale up on multiple devices"."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.data.dataset import DataSet, Split


def load() -> DataSet:
    """Draw the guide's inputs and targets, `[8, 1024]` each. Training and test set are the same."""
    with jax.transfer_guard("allow"):
        part = Split(
            *(
                np.asarray(
                    jax.random.normal(jax.random.key(seed), (8, 1024), jnp.float32)
                )
                for seed in (1, 2)
            )
        )
    return DataSet(part, part)

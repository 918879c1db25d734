"""Random numbers for the regression of Flax's guide "Scale up on multiple devices"."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.data.dataset import DataSet, Split


def load() -> DataSet:
    """Draw the guide's inputs and targets, `[8, 1024]` each.

    Training and test set are the same.
    """
    part = Split(draw(seed=1), draw(seed=2))
    return DataSet(part, part)


def draw(seed: int) -> np.ndarray:
    """Draw normal numbers `[8, 1024]` as the guide does, with JAX."""
    with jax.transfer_guard("allow"):
        numbers = jax.random.normal(jax.random.key(seed), (8, 1024), jnp.float32)
        return np.asarray(numbers)

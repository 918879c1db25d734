"""A small classifier and its data, for tests of what surrounds a run."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.train import Result, train


class Net(nnx.Module):
    """`[b, 6]` to logits of three classes, or of more."""

    classes = 3

    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.hidden = nnx.Linear(6, 16, **types)
        self.head = nnx.Linear(16, self.classes, **types)

    def __call__(self, x):
        return self.head(nnx.relu(self.hidden(x)))


class FiveClasses(Net):
    """The same body with another head."""

    classes = 5


def points(n: int, seed: int) -> Split:
    x = np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)
    return Split(x, x[:, :3].argmax(1).astype(np.int32))


DATA = DataSet(points(100, 1), points(40, 2))
SETTINGS = {
    "devices": 2,
    "epochs": 1,
    "global_batch_size": 20,
    "schedule": "constant",
    "progress": False,
}


def run(model=Net, custom=None, **settings) -> Result:
    """Train it, five updates an epoch, with other `settings` and Python values."""
    config = Config(**SETTINGS | {"compile_cache": False} | settings)
    return train(config, **{"model": model, "data": DATA} | (custom or {}))


def loss(custom=None, **settings) -> float:
    """The loss on the test set after a training, for programs of their own that tests
    start.
    """
    return round(run(custom=custom, **settings).epochs[-1]["test"]["loss"], 5)

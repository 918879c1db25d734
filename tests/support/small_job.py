"""A small network of all kinds of state (batch norm, dropout), its data, and a run of
12 updates in 3 epochs.
"""

from pathlib import Path

import entry
import jax.numpy as jnp
import numpy as np
from flax import nnx

NET = Path(__file__)


class Net(nnx.Module):
    """`[b, 6]` to `[b, 3]` logits."""

    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        # No bias in front of batch norm: its gradient would be rounding, which Adam
        # would amplify.
        self.hidden = nnx.Linear(6, 8, use_bias=False, **types)
        self.norm = nnx.BatchNorm(8, **types)
        self.out = nnx.Linear(8, 3, **types)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


class Line(nnx.Module):
    """`[b, 6]` to `[b, 3]` logits, for tests of what surrounds a network.

    It is compiled in half the time.
    """

    size = 6
    classes = 3

    def __init__(self, *, rngs):
        self.out = nnx.Linear(self.size, self.classes, rngs=rngs)

    def __call__(self, x):
        return self.out(x)


class OfPictures(Line):
    """`[b, 8, 8, 3]` to logits of two classes."""

    size = 192
    classes = 2

    def __call__(self, x):
        return self.out(x.reshape(len(x), -1) / 255)


def points(n, seed):
    random = np.random.default_rng(seed)
    return entry.Examples(
        random.normal(size=(n, 6)).astype(np.float32),
        random.integers(0, 3, n).astype(np.int32),
    )


TRAIN = points(70, 1)
TEST = points(29, 2)
SETTINGS = {
    "devices": 2,
    "epochs": 3,
    "global_batch_size": 18,
    "checkpoint_every": 3,
}  # 4 updates an epoch


def train(**settings):
    """Train it from Python with other settings."""
    chosen = {"model": Net, "data": entry.data_set(TRAIN, TEST)} | SETTINGS | settings
    if "workdir" not in chosen:
        del chosen["checkpoint_every"]
    return entry.train(**chosen)


def write_data(folder):
    """The data in a file that `--dataset` takes."""
    names = ("train_inputs", "train_labels", "test_inputs", "test_labels")
    arrays = (TRAIN.inputs, TRAIN.labels, TEST.inputs, TEST.labels)
    np.savez(folder / "data.npz", **dict(zip(names, arrays, strict=True)))
    return folder / "data.npz"


def flags(folder, **settings):
    """The arguments of `python -m pmapdp.train` for the same run.

    `folder` holds the data.
    """
    chosen = (
        SETTINGS | {"model": f"{NET}:Net", "dataset": write_data(folder)} | settings
    )
    pairs = [(f"--{name.replace('_', '-')}", value) for name, value in chosen.items()]
    return [
        "--no-progress",
        "--no-compile-cache",
        *(text for pair in pairs for text in pair),
    ]


def contents(folder):
    """Every file below a folder with its bytes, and every folder and link.

    Without the lock.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = (
            path.readlink()
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else None
        )
        if path.name != "pmapdp.lock":
            found[str(path.relative_to(folder))] = kind
    return found

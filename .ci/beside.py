"""A program beside the clone, where only the wheel is installed.

`python beside.py`, in an empty folder.

It trains a model of its own on 4 devices in three ways, evaluates and exports the run,
and uses the console script.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
from flax import nnx

import pmapdp
from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.evaluate import evaluate_run
from pmapdp.export import export_run, load_exported
from pmapdp.train import train


class Net(nnx.Module):
    """`[b, 6]` to three logits."""

    def __init__(self, *, rngs, dtype, param_dtype):
        self.hidden = nnx.Linear(6, 64, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.logits = nnx.Linear(64, 3, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, inputs):
        """The forward pass."""
        return self.logits(nnx.relu(self.hidden(inputs)))


def points(n: int, seed: int) -> Split:
    """Make points of three classes: the class is the largest of three sums."""
    x = np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)
    return Split(x, x.reshape(n, 3, 2).sum(2).argmax(1).astype(np.int32))


assert "site-packages" in pmapdp.__file__, pmapdp.__file__
own = {"model": Net, "data": DataSet(points(600, 1), points(200, 2))}
for strategy in ("pmap", "jit", "shard_map"):
    config = Config(
        strategy=strategy,
        devices=4,
        epochs=8,
        learning_rate=0.01,
        workdir=strategy,
        progress=False,
    )
    accuracy = train(config, **own).epochs[-1]["test"]["accuracy"]
    assert accuracy > 0.9, accuracy
    totals, _ = evaluate_run(strategy, strategy="single", **own)
    assert totals["accuracy"] == accuracy
export_run(strategy, "model.zip", **own)
answers = (
    load_exported("model.zip").outputs(own["data"].test.inputs)["logits"].argmax(-1)
)
assert (answers == own["data"].test.labels).mean() == accuracy

program = Path(sys.executable).with_name("pmapdp")
for arguments in (
    ["train", "--steps", "5", "--workdir", "digits", "--no-progress"],
    ["evaluate", "digits", "--json"],
    ["export", "digits", "digits.zip"],
    [
        "compare",
        "--model",
        "mlp",
        "--steps",
        "20",
        "--devices",
        "2",
        "--strategies",
        "pmap",
    ],
    ["scaling"],
):
    subprocess.run([program, *arguments], check=True, stdout=subprocess.DEVNULL)

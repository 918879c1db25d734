"""Compare the trainer with a bare loop and with PyTorch on accelerators, on random
images.

    python -m benchmarks.accelerators
    python -m benchmarks.accelerators --rounds 1 --updates 2    # to see that it runs

Each round is an epoch of the trainer and one of the bare loop of the same strategy, in
turn in one process; their ratio is the median over the rounds. The bare loop has Flax's
own batch norm. PyTorch, if it is installed, comes last, in a process of its own. All
batches come from host memory, and nothing from a network. It takes about 3 minutes on
one H200, and PyTorch as long again. Writes benchmarks/accelerators.json and, from it,
the table of docs/speed.md.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks import make_config, summary
from benchmarks.bare import make_loop, place
from pmapdp import __version__
from pmapdp.data.dataset import DataSet, Split
from pmapdp.models.cnn import CNN
from pmapdp.train import train

STRATEGIES = ("pmap", "jit")


class Block(nnx.Module):
    """Two convolutions, and a shortcut around them."""

    def __init__(
        self, channels: int, features: int, strides: int, rngs: nnx.Rngs, **types: Any
    ):
        options: dict[str, Any] = {"use_bias": False, "rngs": rngs, **types}
        self.conv1 = nnx.Conv(channels, features, (3, 3), strides=strides, **options)
        self.conv2 = nnx.Conv(features, features, (3, 3), **options)
        self.norm1, self.norm2 = (
            nnx.BatchNorm(features, rngs=rngs, **types) for _ in range(2)
        )
        is_equal = strides == 1 and channels == features
        self.shortcut = (
            None
            if is_equal
            else nnx.Conv(channels, features, (1, 1), strides=strides, **options)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[b, H, W, channels]` to `[b, H / strides, W / strides, features]`."""
        y = nnx.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet18(nnx.Module):
    """ResNet-18 for images of 32 x 32, of stock Flax layers."""

    def __init__(
        self,
        *,
        rngs: nnx.Rngs,
        dtype: Any = jnp.float32,
        param_dtype: Any = jnp.float32,
    ):
        self.dtype, types = dtype, {"dtype": dtype, "param_dtype": param_dtype}
        self.conv = nnx.Conv(3, 64, (3, 3), use_bias=False, rngs=rngs, **types)
        self.norm = nnx.BatchNorm(64, rngs=rngs, **types)
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.blocks = nnx.List([Block(*width, rngs=rngs, **types) for width in widths])
        self.logits = nnx.Linear(512, 10, rngs=rngs, **types)

    def __call__(self, images: jax.Array) -> jax.Array:
        """`[b, 32, 32, 3]` uint8 to `[b, 10]`."""
        x = nnx.relu(self.norm(self.conv(images.astype(self.dtype) / 255)))
        for block in self.blocks:
            x = block(x)
        return self.logits(x.mean((1, 2)))


class Work(NamedTuple):
    """A row of the table."""

    name: str
    model: Callable[..., nnx.Module]
    shape: tuple[int, ...]  # of an image
    batch: int  # per device
    updates: int  # of an epoch
    dtype: str = "float32"


WORKS = (
    Work("CNN, 64", CNN, (28, 28, 1), 64, 1000),
    Work("CNN, 4,096", CNN, (28, 28, 1), 4096, 100),
    Work("ResNet-18, 512", ResNet18, (32, 32, 3), 512, 60),
    Work("ResNet-18, 512, bfloat16", ResNet18, (32, 32, 3), 512, 100, "bfloat16"),
)


def measure(
    work: Work, strategy: str, rounds: int, updates: int
) -> list[tuple[float, float]]:
    """Return the examples/s of the trainer and of the bare loop, round by round."""
    devices, random = jax.devices(), np.random.default_rng(0)
    B, n = work.batch * len(devices), work.batch * len(devices) * updates
    data = Split(
        random.integers(0, 256, (n, *work.shape), np.uint8),
        random.integers(0, 10, n, np.int32),
    )
    step, state, split = make_loop(
        work.model(rngs=nnx.Rngs(0), dtype=work.dtype),
        strategy,
        devices,
        optax.adam(1e-3),
    )
    pairs = []

    def run_bare_epoch(results: dict[str, Any], _: Any) -> None:
        nonlocal state
        order = random.permutation(n).astype(np.int32).reshape(updates, B)
        started = time.perf_counter()
        for rows in order:
            state, loss = step(
                state,
                *place((data.inputs[rows], data.labels[rows], rows), split, strategy),
            )
        jax.block_until_ready(loss)
        pairs.append(
            (results["examples_per_second"], n / (time.perf_counter() - started))
        )

    config = make_config(
        strategy, len(devices), B, rounds + 1, dtype=work.dtype, compile_cache=False
    )
    with contextlib.redirect_stdout(io.StringIO()):
        train(config, model=work.model, data=DataSet(data), after_epoch=run_bare_epoch)
    return pairs[1:]  # the first epochs compile


def measure_pytorch(updates: int | None) -> dict[str, dict[str, float]]:
    """Return the examples/s of PyTorch, eager and compiled, by work.

    {} if it is not installed.
    """
    command = [
        sys.executable,
        str(Path(__file__).parent / "peers" / "pytorch_gpu.py"),
        str(updates or 0),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="pairs of epochs")
    parser.add_argument("--updates", type=int, help="of an epoch; default: by the work")
    parser.add_argument(
        "--file", type=Path, default=summary.ACCELERATORS, help="the file to write"
    )
    options = parser.parse_args(arguments)
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # PyTorch needs memory too
    found = jax.devices()
    machine = f"{len(found)} x {found[0].device_kind}"
    results: dict[str, Any] = {
        "machine": f"{machine}, jax {jax.__version__}, pmapdp {__version__}",
        "rows": {},
    }
    for work in WORKS:
        row = results["rows"].setdefault(work.name, {})
        for strategy in STRATEGIES:
            pairs = measure(
                work, strategy, options.rounds, options.updates or work.updates
            )
            trainer, bare = (
                statistics.median(speeds) for speeds in zip(*pairs, strict=True)
            )
            row[strategy] = {
                "trainer": trainer,
                "bare": bare,
                "ratios": sorted(ours / other for ours, other in pairs),
            }
            print(f"{work.name}, {strategy}: {row[strategy]}", flush=True)
    for name, speeds in measure_pytorch(options.updates).items():
        results["rows"][name]["pytorch"] = speeds
        print(f"{name}, PyTorch: {speeds}")
    options.file.write_text(json.dumps(results, indent=1) + "\n")
    if options.file == summary.ACCELERATORS:
        summary.write(results)


if __name__ == "__main__":
    main()

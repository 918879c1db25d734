"""Seconds until 99 % of MNIST's test digits are read: `python -m benchmarks.time_to_99 [--peers] [FLAGS]`.

The whole command `python -m pmapdp.train speedrun FLAGS`, with an empty compile cache and then with a full one, beside
programs of PyTorch and Keras with the same network, initial distribution, order of the examples, augmentation and
schedule. All run in turn, seed by seed. Prints a row for each, for the table of docs/speed.md.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import at_least_one, make_parser
from benchmarks.run import PEERS, peers_environment, peers_python
from benchmarks.workers import WorkerError, what_happened
from pmapdp import cli
from pmapdp.models.speedrun import Speedrun
from pmapdp.recipes import RECIPES
from pmapdp.registry import load_data

# What the programs of the peers take of the recipe; Adam's are Optax' defaults.
FROM_RECIPE = ("global_batch_size", "epochs", "learning_rate", "warmup_steps", "label_smoothing")
SETTINGS = {name: getattr(RECIPES["speedrun"].config, name) for name in FROM_RECIPE}
SETTINGS |= {"widths": Speedrun.widths, "pixels": Speedrun.pixels, "betas": (0.9, 0.999)}


def timed(command: list[Any], **environment: str) -> tuple[float, str]:
    """Seconds that a command took from start to end, and what it printed.

    Raises:
        WorkerError: it failed.
    """
    clean = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}
    clock = time.perf_counter()
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=clean | environment, check=False)
    if done.returncode:
        raise WorkerError(what_happened(done.returncode, done.stderr), done.returncode)
    return time.perf_counter() - clock, done.stdout


def ours(flags: list[str], seed: int, cache: Path) -> tuple[float, float]:
    """Seconds and test accuracy of our command, with its compiled programs in the folder `cache`."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        command = [sys.executable, "-m", "pmapdp.train", "speedrun", *flags, "--seed", seed, "--no-progress"]
        seconds, _ = timed([*command, "--metrics-file", metrics], JAX_COMPILATION_CACHE_DIR=str(cache))
        epochs = [line for line in map(json.loads, metrics.read_text().splitlines()) if line["event"] == "epoch"]
    return seconds, epochs[-1]["test_accuracy"]


def theirs(python: Path, program: str, seed: int, data: Path, backend: str = "") -> tuple[float, float]:
    """Seconds and test accuracy of one of `peers/`."""
    command = [python, PEERS / program, data, json.dumps(SETTINGS | {"seed": seed})]
    seconds, printed = timed(command, KERAS_BACKEND=backend)
    return seconds, json.loads(next(line for line in printed.splitlines() if line.startswith("{")))["test_accuracy"]


def main(arguments: list[str]) -> None:
    """The command."""
    parser = make_parser(__doc__, "time_to_99", "--seeds 3")
    parser.add_argument("--peers", action="store_true", help="run PyTorch and Keras on TensorFlow too")
    parser.add_argument("--seeds", type=at_least_one, default=3, help="runs of each command")
    parser.add_argument("--environment", type=Path, default=peers_environment(), help="folder of their environment")
    options, flags = parser.parse_known_args(arguments)
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data, python = Path(folder) / "mnist.npz", None
        if options.peers:
            python, mnist = peers_python(options.environment), load_data("mnist", None)
            np.savez(
                data,
                train_inputs=mnist.train.inputs,
                train_labels=mnist.train.labels,
                test_inputs=mnist.test.inputs,
                test_labels=mnist.test.labels,
            )
        for seed in range(options.seeds):
            cache = Path(folder) / f"programs {seed}"
            for state in ("empty", "full"):
                found.setdefault(f"pmapdp, compile cache {state}", []).append(ours(flags, seed, cache))
            if python:
                found.setdefault("PyTorch", []).append(theirs(python, "speedrun_pytorch.py", seed, data))
                keras = theirs(python, "speedrun_keras.py", seed, data, "tensorflow")
                found.setdefault("Keras on TensorFlow", []).append(keras)
    for name, runs in found.items():
        seconds, accuracy = zip(*runs, strict=True)
        print(f"| {name} | {statistics.median(seconds):.1f} | {statistics.mean(accuracy):.4f} |")


if __name__ == "__main__":
    sys.exit(cli.run(main))

"""One run of a command in a process of its own, timed from start to end."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pmapdp.config import Config
from pmapdp.registry import load_data

PEERS = Path(__file__).parent.parent / "peers"
KINDS = ("inputs", "labels")
# Of the recipe: channels of the two convolutions and hidden units; pixels that an image is moved; those of Adam.
FIXED: dict[str, Any] = {"widths": (16, 32, 128), "pixels": 1, "betas": (0.9, 0.999)}
HELD_BACK = 10_000  # examples of the training set, its last, on which all was chosen


class Timed(NamedTuple):
    """What a run took and reached.

    Attributes:
        command: seconds from start to end.
        training: seconds of the updates, without the first call, which compiles.
        accuracy: after the last epoch.
    """

    command: float
    training: float
    accuracy: float


def arrays(path: Path, data_dir: str | None, *, validation: bool) -> Path:
    """Write MNIST as a file of one's own data; with `validation` the test set is not in it."""
    data = load_data("mnist", data_dir)
    parts = {"train": data.train, "test": data.test}
    if validation:
        cut = len(data.train.labels) - HELD_BACK
        parts = {"train": [x[:cut] for x in data.train], "test": [x[cut:] for x in data.train]}
    np.savez(path, **{f"{name}_{kind}": part[i] for name, part in parts.items() for i, kind in enumerate(KINDS)})
    return path


def timed(command: list[Any], environment: dict[str, str] | None = None) -> tuple[float, str]:
    """Seconds that a command took, and what it printed.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    clean = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}
    clock = time.perf_counter()
    done = subprocess.run(
        list(map(str, command)),
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean | (environment or {}),
    )
    return time.perf_counter() - clock, done.stdout


def ours(flags: list[Any], cache: str | None = None) -> Timed:
    """A run of `python -m pmapdp.train`; `cache` is the folder of compiled programs, the user's where it is None."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        environment = {"JAX_COMPILATION_CACHE_DIR": cache} if cache else {}
        command = [sys.executable, "-m", "pmapdp.train", *flags, "--metrics-file", metrics, "--no-progress"]
        seconds, _ = timed(command, environment)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    training = sum(line["train_examples"] / line["examples_per_second"] for line in epochs)
    return Timed(seconds, training, epochs[-1]["test_accuracy"])


def theirs(python: Path, program: str, options: list[str], data: Path, config: Config, own: dict[str, Any]) -> Timed:
    """A run of one of `peers/` with the settings of `config`, of which `own` replaces some."""
    names = ("global_batch_size", "epochs", "learning_rate", "warmup_steps", "label_smoothing", "seed")
    settings = json.dumps({name: getattr(config, name) for name in names} | FIXED | own)
    file, _, backend = program.partition(":")
    environment = {"KERAS_BACKEND": backend} if backend else {}
    seconds, output = timed([python, PEERS / f"{file}.py", data, settings, *options], environment)
    found = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    return Timed(seconds, found["train_seconds"], found["test_accuracy"])

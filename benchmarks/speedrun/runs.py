"""One run of a command in a process of its own, timed from start to end, and several in turn."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.speedrun.choice import HELD_BACK
from benchmarks.workers import WorkerError, what_happened
from pmapdp.config import Config
from pmapdp.models.speedrun import Speedrun
from pmapdp.registry import load_data

PEERS = Path(__file__).parent.parent / "peers"
KINDS = ("inputs", "labels")
# What the recipe's configuration does not hold; Adam's are Optax' defaults.
FIXED: dict[str, Any] = {"widths": Speedrun.widths, "pixels": Speedrun.pixels, "betas": (0.9, 0.999)}
LONG = 20  # seconds: a run that takes longer is made once


class Timed(NamedTuple):
    """What a run took and reached.

    Attributes:
        command: seconds from start to end.
        training: seconds of all updates, at their speed after the first call, which compiles.
        accuracy: after the last epoch.
        started: of ours, the seconds until the trainer begins: Python and its imports.
        compiling: of ours, the seconds of the first call and of the first evaluation, which compile.
    """

    command: float
    training: float
    accuracy: float
    started: float | None = None
    compiling: float | None = None


def in_turn(
    runs: dict[str, Callable[[int], Timed]], seeds: Sequence[int], longest: float = math.inf
) -> dict[str, list[Timed]]:
    """All runs with the first seed, then all with the next; those of more than `longest` seconds only once."""
    found: dict[str, list[Timed]] = {name: [] for name in runs}
    for seed in seeds:
        for name, run in runs.items():
            if not found[name] or found[name][0].command <= longest:
                found[name].append(run(seed))
                print(f"seed {seed}: {name:55} {found[name][-1]}", flush=True)
    return found


def arrays(path: Path, data_dir: str | None, *, validation: bool) -> Path:
    """Write MNIST as a file of one's own data; with `validation` the test set is not in it."""
    data = load_data("mnist", data_dir)
    parts = {"train": data.train, "test": data.test}
    if validation:
        cut = len(data.train.labels) - HELD_BACK
        parts = {"train": [x[:cut] for x in data.train], "test": [x[cut:] for x in data.train]}
    np.savez(path, **{f"{name}_{kind}": part[i] for name, part in parts.items() for i, kind in enumerate(KINDS)})
    return path


def timed(command: list[Any], environment: dict[str, str]) -> tuple[float, str]:
    """Seconds that a command took, and what it printed.

    Raises:
        WorkerError: it failed.
    """
    clean = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}
    clock = time.perf_counter()
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=clean | environment, check=False)
    if done.returncode:
        raise WorkerError(what_happened(done.returncode, done.stderr), done.returncode)
    return time.perf_counter() - clock, done.stdout


def ours(flags: list[Any], cache: Path) -> Timed:
    """A run of `python -m pmapdp.train` with its compiled programs in the folder `cache`."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        command = [sys.executable, "-m", "pmapdp.train", *flags, "--metrics-file", metrics, "--no-progress"]
        seconds, _ = timed(command, {"JAX_COMPILATION_CACHE_DIR": str(cache)})
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    epochs, end = [line for line in lines if line["event"] == "epoch"], lines[-1]
    training = sum(line["train_examples"] / line["examples_per_second"] for line in epochs)
    started = seconds - end["total_seconds"]
    return Timed(seconds, training, epochs[-1]["test_accuracy"], started, end["compile_seconds"])


def theirs(
    python: Path, program: str, flags: tuple[str, ...], data: Path, config: Config, changed: dict[str, Any]
) -> Timed:
    """A run of one of `peers/` with the settings of `config`, but for what is `changed`; nothing is compiled yet."""
    names = ("global_batch_size", "epochs", "learning_rate", "warmup_steps", "label_smoothing", "seed")
    settings = json.dumps({name: getattr(config, name) for name in names} | FIXED | changed)
    file, _, backend = program.partition(":")
    with tempfile.TemporaryDirectory() as cache:
        environment = {"KERAS_BACKEND": backend, "TORCHINDUCTOR_CACHE_DIR": cache}
        seconds, output = timed([python, PEERS / f"{file}.py", data, settings, *flags], environment)
    found = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    return Timed(seconds, found["train_seconds"], found["test_accuracy"])

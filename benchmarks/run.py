"""Ours and others on the same work: `python -m benchmarks.run [--peers]`, from the repository's root.

Every command runs in a process of its own, ours and theirs in turn, round after round, on the real MNIST. Of each
run the median examples/s of its epochs after the first count (of ours, of the updates after the first); of each
command the median over the rounds. `--peers` first makes an environment for TensorFlow, PyTorch and Keras (once;
some minutes, 6 GB) and compares with them too. Writes, after every round, benchmarks/results.json and, from it, the
table and the picture of docs/speed.md. Leave the machine alone meanwhile.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import at_least_one, make_parser, summary
from benchmarks.comparisons import Run, comparisons
from pmapdp.command.ending import run_command
from pmapdp.devices import cores
from pmapdp.registry import load_data

PEER_PACKAGES = ["jax", "flax", "optax", "tensorflow", "keras", "torch==2.13.0"]
PEERS = Path(__file__).parent / "peers"


def peers_environment() -> Path:
    """Where the peers' environment is by default."""
    return Path.home() / ".cache" / "pmapdp" / "peers"


def peers_python(folder: Path) -> Path:
    """The interpreter of the peers' environment, which is made where it is missing."""
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"making the peers' environment in {folder}")
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEER_PACKAGES], check=True)
        (folder / "complete").touch()
    return python


def peers_versions(python: Path) -> dict[str, str]:
    """What the peers' environment holds."""
    names = ["tensorflow", "torch", "keras", "jax"]
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    return json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout)


def speed(run: Run, mnist: Path, python: Path | None, data_dir: str | None) -> float:
    """Examples per second of one run.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    if run.who == "pmapdp":
        return our_speed(run, data_dir)
    epochs = 3
    if run.who in ("bare", "plain"):
        arguments: list[Any] = [sys.executable, "-m", "benchmarks.bare", mnist, run.strategy, run.model]
        arguments += [run.devices, run.global_batch]
    else:
        per_device = run.global_batch if run.who == "keras_jax" else run.global_batch // run.devices
        arguments = [python, PEERS / f"{run.who}.py", mnist, run.devices, per_device]
    arguments += [run.examples, epochs, *(["plain"] if run.who == "plain" else [])]
    environment = {key: value for key, value in os.environ.items() if key not in ("NPROC", "XLA_FLAGS")}
    done = subprocess.run(
        list(map(str, arguments)), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    lines = [json.loads(line) for line in done.stdout.decode().splitlines() if line.startswith("{")]
    return statistics.median(line["examples_per_second"] for line in lines[1:])


def our_speed(run: Run, data_dir: str | None) -> float:
    """Examples per second of `python -m pmapdp.train`."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        settings: dict[str, Any] = {
            "dataset": "mnist",
            "model": run.model,
            "strategy": run.strategy,
            "devices": run.devices,
            "global-batch-size": run.global_batch,
            "epochs": 1,
            "steps": 2 * run.examples // run.global_batch,
            "learning-rate": 1e-3,
            "schedule": "constant",
            "label-smoothing": 0,
            "metrics-file": metrics,
        }
        if run.split:
            settings["shard-state"] = run.split
        flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        if data_dir:
            flags += ["--data-dir", data_dir]
        command = [sys.executable, "-m", "pmapdp.train", *flags, "--no-progress"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return next(line["examples_per_second"] for line in lines if line["event"] == "epoch")


def start_seconds(data_dir: str | None) -> dict[str, float]:
    """Seconds of `import pmapdp.train`, and of the default recipe up to its end after one update (warm cache)."""
    commands = {
        "import": [sys.executable, "-c", "import pmapdp.train"],
        "first step": [sys.executable, "-m", "pmapdp.train", "--steps", "1", "--no-progress"],
    }
    found = {}
    for name, command in commands.items():
        times = []
        for _ in range(4):
            clock = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - clock)
        found[name] = statistics.median(times[1:])  # the first fills the caches
    return found


def machine() -> dict[str, Any]:
    """What was measured on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": cores(),
        "devices": "simulated on the CPU",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "load before": os.getloadavg()[0],
    }


def main(arguments: list[str]) -> None:
    """The command."""
    parser = make_parser(__doc__, "run", "--rounds 3")
    parser.add_argument("--peers", action="store_true", help="compare with other frameworks too")
    parser.add_argument("--rounds", type=at_least_one, default=3, help="runs of each command")
    parser.add_argument("--data-dir", help="folder of data sets that holds MNIST; default: $PMAPDP_DATA")
    parser.add_argument("--environment", type=Path, default=peers_environment(), help="folder of their environment")
    options = parser.parse_args(arguments)

    facts = machine()
    python = peers_python(options.environment) if options.peers else None
    if python:
        facts["peers"] = peers_versions(python)
    pairs = comparisons(options.peers)
    runs = list(dict.fromkeys(run for pair in pairs for run in (pair.ours, pair.other)))
    speeds: dict[str, list[float]] = {run.name: [] for run in runs}
    with tempfile.TemporaryDirectory() as folder:
        mnist = Path(folder) / "mnist.npz"
        train = load_data("mnist", options.data_dir).train
        np.savez(mnist, images=train.inputs, labels=train.labels)
        seconds = start_seconds(options.data_dir)
        for number in range(options.rounds):
            for run in runs:
                speeds[run.name].append(speed(run, mnist, python, options.data_dir))
                print(f"round {number + 1}: {run.name:40} {speeds[run.name][-1]:9,.0f} examples/s", flush=True)
            results = {"machine": facts, "seconds": seconds, "examples_per_second": speeds}
            summary.RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            summary.write(results)
    print(summary.table(results))


if __name__ == "__main__":
    sys.exit(run_command(main))

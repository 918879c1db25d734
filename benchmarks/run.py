"""Compare pmapdp with bare loops and with other frameworks.

`python -m benchmarks.run [--peers]`, in the root.

Every command runs in a process of its own, ours and theirs in turn, round after round,
on the real MNIST. A run has two epochs: the first warms up, of the second the
examples/s count; of each command the median over the rounds. `--peers` first makes an
environment for TensorFlow, PyTorch and Keras (once; some minutes, 4 GB) and compares
with them too. Writes, after every round, benchmarks/results.json and, from it, the
table of docs/speed.md. Leave the machine alone meanwhile. `benchmarks.accelerators`
measures GPUs.
"""

import argparse
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

from benchmarks import summary
from benchmarks.summary import EXAMPLES, Run, comparisons
from pmapdp.devices import count_cores
from pmapdp.registry import load_data

PEERS = ["jax", "flax", "optax", "tensorflow", "keras", "torch==2.13.0"]
FOLDER = Path(__file__).parent / "peers"
PROGRAMS = {"pmapdp": "benchmarks.ours", "bare": "benchmarks.bare"}
TRAIN = ["-m", "pmapdp.train", "--no-progress"]
COMMANDS = {
    "import": ["-c", "import pmapdp.train"],
    "first step": [*TRAIN, "--steps", "1"],
    "default job": TRAIN,
}


def peers_python(folder: Path) -> Path:
    """Return the interpreter of the peers' environment.

    It is made if it isn't there.
    """
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"making the peers' environment in {folder}")
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], check=True)
        (folder / "complete").touch()
    return python


def peers_versions(python: Path) -> dict[str, str]:
    """Return the versions in the peers' environment."""
    names = ["tensorflow", "torch", "keras", "jax"]
    code = "import importlib.metadata as m, json; "
    code += f"print(json.dumps({{n: m.version(n) for n in {names}}}))"
    return json.loads(
        subprocess.run(
            [python, "-c", code], check=True, capture_output=True, text=True
        ).stdout
    )


def run_command(command: list[Any], cache: Path) -> str:
    """Return what a command prints, which must succeed.

    JAX keeps its compiled programs in `cache`.
    """
    clean = {
        key: value
        for key, value in os.environ.items()
        if key not in ("NPROC", "XLA_FLAGS")
    }
    cached = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
    }
    options: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "env": clean | cached,
    }
    return subprocess.run(
        list(map(str, command)), check=True, text=True, **options
    ).stdout


def speed(run: Run, folder: Path, python: Path | None) -> float:
    """Return the examples per second of a run.

    `folder` holds mnist.npz, and compiled programs.
    """
    examples, sizes = EXAMPLES[run.model], [run.devices, run.batch]
    if run.who in PROGRAMS:
        program = [
            sys.executable,
            "-m",
            PROGRAMS[run.who],
            folder / "mnist.npz",
            run.strategy,
            run.model,
        ]
    else:
        program = [python, FOLDER / f"{run.who}.py", folder / "mnist.npz"]
        sizes = (
            sizes if run.who == "keras_jax" else [run.devices, run.batch // run.devices]
        )
    printed = run_command([*program, *sizes, examples, 2], folder / "programs")
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")][
        -1
    ]["examples_per_second"]


def seconds(arguments: list[str], folder: Path) -> float:
    """Return the seconds of a command, the median of three.

    An earlier start has left its compiled programs.
    """
    times = []
    for _ in range(4):
        started = time.perf_counter()
        run_command([sys.executable, *arguments], folder / "commands")
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peers", action="store_true", help="compare with other frameworks too"
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command")
    parser.add_argument(
        "--data-dir", help="folder of data sets that holds MNIST; default: $PMAPDP_DATA"
    )
    parser.add_argument(
        "--environment",
        type=Path,
        default=Path.home() / ".cache/pmapdp/peers",
        help="of the peers",
    )
    options = parser.parse_args()

    os.environ["JAX_PLATFORMS"] = "cpu"
    machine: dict[str, Any] = {
        "processor": platform.processor() or platform.machine(),
        "cores": count_cores(),
    }
    machine |= {"python": platform.python_version(), "jax": jax.__version__}
    python = peers_python(options.environment) if options.peers else None
    if python:
        machine["peers"] = peers_versions(python)
    runs = list(
        dict.fromkeys(run for _, *pair in comparisons(options.peers) for run in pair)
    )
    speeds: dict[str, list[float]] = {run.name: [] for run in runs}
    results: dict[str, Any] = {"machine": machine, "examples_per_second": speeds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train = load_data("mnist", options.data_dir).train
        np.savez(folder / "mnist.npz", images=train.inputs, labels=train.labels)
        results["seconds"] = {
            name: seconds(arguments, folder) for name, arguments in COMMANDS.items()
        }
        for number in range(options.rounds):
            for run in runs:
                speeds[run.name].append(speed(run, folder, python))
                shown = f"{speeds[run.name][-1]:9,.0f} examples/s"
                print(f"round {number + 1}: {run.name:40} {shown}", flush=True)
            summary.RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            summary.write(results)


if __name__ == "__main__":
    main()

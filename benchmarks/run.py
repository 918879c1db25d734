"""Ours and others on the same work: `python -m benchmarks.run [--peers]`, from the repository's root.

Every command runs in a process of its own, ours and theirs in turn, round after round, on the real MNIST. A run has two
epochs: the first warms up, of the second the examples/s count; of each command the median over the rounds. `--peers`
first makes an environment for TensorFlow, PyTorch and Keras (once; some minutes, 4 GB) and compares with them too.
Writes, after every round, benchmarks/results.json and, from it, the table of docs/speed.md. Leave the machine alone
meanwhile. `benchmarks.accelerators` measures GPUs.
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
from pmapdp import cli
from pmapdp.devices import cores
from pmapdp.registry import load_data

PEER_PACKAGES = ["jax", "flax", "optax", "tensorflow", "keras", "torch==2.13.0"]
PEERS = Path(__file__).parent / "peers"
PROGRAMS = {"pmapdp": "benchmarks.ours", "bare": "benchmarks.bare"}
EPOCHS = 2


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


def environment_with(cache: Path) -> dict[str, str]:
    """The environment of a run: JAX keeps its compiled programs in `cache`."""
    clean = {key: value for key, value in os.environ.items() if key not in ("NPROC", "XLA_FLAGS")}
    cached = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5"}
    return clean | cached


def speed(run: Run, folder: Path, python: Path | None) -> float:
    """Examples per second of one run. `folder` holds mnist.npz, and compiled programs.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    sizes = [run.devices, run.global_batch]
    if run.who in PROGRAMS:
        program = [sys.executable, "-m", PROGRAMS[run.who], folder / "mnist.npz", run.strategy, run.model]
    else:
        program = [python, PEERS / f"{run.who}.py", folder / "mnist.npz"]
        sizes = sizes if run.who == "keras_jax" else [run.devices, run.global_batch // run.devices]
    done = subprocess.run(
        list(map(str, filter(None, [*program, *sizes, run.examples, EPOCHS]))),
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment_with(folder / "programs"),
    )
    lines = [json.loads(line) for line in done.stdout.decode().splitlines() if line.startswith("{")]
    return lines[-1]["examples_per_second"]


def seconds_of_commands(folder: Path, data_dir: str | None) -> dict[str, float]:
    """Seconds of whole commands, medians of three; warm means that the compiled programs of an earlier start are there.
    A command that is not to be warm has an empty folder for them each time."""
    train = [sys.executable, "-m", "pmapdp.train", "--no-progress"]
    speedrun = [*train, "speedrun", *(["--data-dir", data_dir] if data_dir else [])]
    commands = {
        "import": ([sys.executable, "-c", "import pmapdp.train"], True),
        "first step": ([*train, "--steps", "1"], True),
        "default job, warm": (train, True),
        "speedrun, cold": (speedrun, False),
        "speedrun, warm": (speedrun, True),
    }
    found = {}
    for name, (command, warm) in commands.items():
        times = []
        for number in range(4 if warm else 3):
            programs = folder / f"programs of {name}{'' if warm else number}"
            clock = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment_with(programs))
            times.append(time.perf_counter() - clock)
            print(f"{name}: {times[-1]:.1f} s", flush=True)
        found[name] = statistics.median(times[-3:])  # of four the first fills the folder
    return found


def machine() -> dict[str, Any]:
    """Return the facts about this machine."""
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
    parser = make_parser(__doc__, "run", "--rounds 5")
    parser.add_argument("--peers", action="store_true", help="compare with other frameworks too")
    parser.add_argument("--rounds", type=at_least_one, default=5, help="runs of each command")
    parser.add_argument("--data-dir", help="folder of data sets that holds MNIST; default: $PMAPDP_DATA")
    parser.add_argument("--environment", type=Path, default=peers_environment(), help="folder of their environment")
    options = parser.parse_args(arguments)

    os.environ["JAX_PLATFORMS"] = "cpu"
    facts = machine()
    python = peers_python(options.environment) if options.peers else None
    if python:
        facts["peers"] = peers_versions(python)
    pairs = comparisons(options.peers)
    runs = list(dict.fromkeys(run for pair in pairs for run in (pair.ours, pair.other)))
    speeds: dict[str, list[float]] = {run.name: [] for run in runs}
    results: dict[str, Any] = {"machine": facts, "examples_per_second": speeds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train = load_data("mnist", options.data_dir).train
        np.savez(folder / "mnist.npz", images=train.inputs, labels=train.labels)
        results["seconds"] = seconds_of_commands(folder, options.data_dir)
        for number in range(options.rounds):
            for run in runs:
                speeds[run.name].append(speed(run, folder, python))
                print(f"round {number + 1}: {run.name:40} {speeds[run.name][-1]:9,.0f} examples/s", flush=True)
            summary.RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            summary.write(results)
    print("\n".join(summary.rows(results)))


if __name__ == "__main__":
    sys.exit(cli.run(main))

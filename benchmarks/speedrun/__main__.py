"""Time to 99 % on MNIST: `python -m benchmarks.speedrun PART ...`, from the repository's root.

Parts: `validation` (what was compared on the last 10,000 training examples), `seeds` (ten, on the
test set), `changes` (each change of the way, and around it), `peers` (the same in PyTorch and Keras; needs the
environment of `benchmarks.run --peers`) and `limit` (how far a step is from the machine's matrix speed). Each keeps its
results in benchmarks/speedrun/results.json, from which docs/speedrun.md has its tables and picture. Leave the machine
alone meanwhile.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import at_least_one
from benchmarks.run import machine, peers_python, peers_versions
from benchmarks.speedrun import limit, page
from benchmarks.speedrun.changes import AROUND, CHOICES, WAY
from benchmarks.speedrun.runs import arrays, ours, theirs
from pmapdp.errors import run_command
from pmapdp.recipes import RECIPES

# Network and settings of the study in docs/speedrun.md, with a linear warm-up: the best that we know for PyTorch.
STUDY = {
    "widths": (24, 32, 256),
    "global_batch_size": 256,
    "warmup_steps": 70,
    "label_smoothing": 0.0,
    "pixels": 0,
    "betas": (0.7, 0.9),
}
PEERS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "PyTorch": ("speedrun_pytorch", [], {}),
    "PyTorch, channels last": ("speedrun_pytorch", ["--channels-last"], {}),
    "PyTorch, compiled": ("speedrun_pytorch", ["--compile"], {}),
    "PyTorch, compiled, channels last": ("speedrun_pytorch", ["--compile", "--channels-last"], {}),
    "Keras on JAX": ("speedrun_keras:jax", [], {}),
    "Keras on TensorFlow": ("speedrun_keras:tensorflow", [], {}),
    "PyTorch, the study's network and settings": ("speedrun_pytorch", ["--channels-last"], STUDY),
    "Keras on JAX, the study's network and settings": ("speedrun_keras:jax", [], STUDY),
    "Keras on TensorFlow, the study's network and settings": ("speedrun_keras:tensorflow", [], STUDY),
}


def validation(rounds: int, data_dir: str | None) -> Any:
    """The recipe and what was compared with it, without the test set."""
    results: dict[str, Any] = {flags: [] for flags in CHOICES}
    with tempfile.TemporaryDirectory() as folder:
        data = arrays(Path(folder) / "validation.npz", data_dir, validation=True)
        for seed in range(rounds):
            for flags, found in results.items():
                found.append(ours([*flags.split(), "--dataset", data, "--seed", seed]))
                print(f"seed {seed}: {flags:50} {found[-1]}", flush=True)
    return results


def seeds(number: int, flags: list[str]) -> Any:
    """The recipe with other seeds: for each an empty compile cache, then the same again."""
    results: dict[str, Any] = {"cold": [], "warm": []}
    for seed in range(number):
        with tempfile.TemporaryDirectory() as cache:
            for name, found in results.items():
                found.append(ours(["speedrun", "--seed", seed, *flags], cache))
                print(f"seed {seed}, cache {name}: {found[-1]}", flush=True)
    return results


def changes(rounds: int, flags: list[str]) -> Any:
    """Every change, seed by seed; the first round fills the compile cache and is not counted."""
    results: dict[str, Any] = {change.words: [] for change in (*WAY, *AROUND)}
    with tempfile.TemporaryDirectory() as cache:
        for number in range(rounds + 1):
            for change in (*WAY, *AROUND):
                found = ours([*change.flags.split(), "--seed", max(0, number - 1), *flags], cache)
                print(f"round {number}: {change.words:50} {found}", flush=True)
                if number:
                    results[change.words].append(found)
    return results


def peers(rounds: int, python: Path, data_dir: str | None, flags: list[str]) -> Any:
    """Ours and theirs in turn."""
    results: dict[str, Any] = {"pmapdp": [], **{name: [] for name in PEERS}}
    with tempfile.TemporaryDirectory() as folder:
        data = arrays(Path(folder) / "mnist.npz", data_dir, validation=False)
        for seed in range(rounds):
            config = dataclasses.replace(RECIPES["speedrun"].config, seed=seed)
            results["pmapdp"].append(ours(["speedrun", "--seed", seed, *flags]))
            for name, (program, options, own) in PEERS.items():
                results[name].append(theirs(python, program, options, data, config, own))
            for name, found in results.items():
                print(f"round {seed + 1}: {name:35} {found[-1]}", flush=True)
    return results


def main(arguments: list[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["validation", "seeds", "changes", "peers", "limit", "page"])
    parser.add_argument("--seeds", type=at_least_one, default=10, help="of the part seeds")
    parser.add_argument("--rounds", type=at_least_one, default=3, help="of the parts validation, changes and peers")
    parser.add_argument("--data-dir", help="folder of data sets that holds MNIST; default: $PMAPDP_DATA")
    environment = Path.home() / ".cache" / "pmapdp" / "peers"
    parser.add_argument("--environment", type=Path, default=environment, help="folder of the peers' environment")
    options = parser.parse_args(arguments)
    flags = ["--data-dir", options.data_dir] if options.data_dir else []
    for part in options.parts:
        facts = machine()
        if part == "validation":
            found = validation(options.rounds, options.data_dir)
        elif part == "seeds":
            found = seeds(options.seeds, flags)
        elif part == "changes":
            found = changes(options.rounds, flags)
        elif part == "peers":
            python = peers_python(options.environment)
            facts["peers"] = peers_versions(python)
            found = peers(options.rounds, python, options.data_dir, flags)
        elif part == "limit":
            found = limit.measure(flags)
        if part != "page":
            results = json.loads(page.RESULTS.read_text()) if page.RESULTS.exists() else {}
            results[part] = {"machine": facts | {"load after": os.getloadavg()[0]}, "found": found}
            page.RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        page.write()


if __name__ == "__main__":
    sys.exit(run_command(main))

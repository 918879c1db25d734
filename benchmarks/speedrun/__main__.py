"""Time to 99 % on MNIST: `python -m benchmarks.speedrun PART ...`, from the repository's root.

Each part keeps its results in benchmarks/speedrun/results.json, from which docs/speedrun.md has its tables, its figures
and its picture; `page` writes that page alone. Leave the machine alone meanwhile.

    validation   candidates, compared without the test set, and which of them the rule chooses
    seeds        the recipe with ten seeds, its compile cache cold and warm
    changes      each change of the way to the recipe, and around it
    devices      the recipe with every strategy, in float32 and in float64
    peers        the same in PyTorch and Keras, in the environment of `benchmarks.run --peers`
    limit        how far a step is from the machine's speed of a product of matrices
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import at_least_one, make_parser
from benchmarks.run import machine, peers_python, peers_versions
from benchmarks.speedrun import limit, page
from benchmarks.speedrun.changes import AROUND, WAY
from benchmarks.speedrun.choice import CONFIG, RECIPE, SEEDS, SETTINGS, WIDTHS
from benchmarks.speedrun.runs import LONG, Timed, arrays, in_turn, ours, theirs
from pmapdp.command.ending import run_command

Run = Callable[[str, int], Timed]  # of flags and a seed
STRATEGIES = {"single": 1, "pmap": 8, "jit": 8, "shard_map": 8}  # and the number of devices


class Peer(NamedTuple):
    """A run of another program: its file in `peers/` with a backend, its flags, and what it changes in the recipe."""

    program: str
    flags: tuple[str, ...] = ()
    changed: dict[str, Any] | None = None


SAME = {
    "PyTorch": Peer("speedrun_pytorch"),
    "PyTorch, channels last": Peer("speedrun_pytorch", ("--channels-last",)),
    "PyTorch, compiled": Peer("speedrun_pytorch", ("--compile",)),
    "PyTorch, compiled, channels last": Peer("speedrun_pytorch", ("--compile", "--channels-last")),
    "Keras on JAX": Peer("speedrun_keras:jax"),
    "Keras on TensorFlow": Peer("speedrun_keras:tensorflow"),
}
# The settings of the study in docs/speedrun.md, with a linear warm-up: the best that we know for PyTorch.
STUDY = {
    "global_batch_size": 256,
    "warmup_steps": 70,
    "label_smoothing": 0.0,
    "pixels": 0,
    "betas": (0.7, 0.9),
}
OWN = {
    f"{name}, the study's settings": SAME[name]._replace(changed=STUDY)
    for name in ("PyTorch, channels last", "Keras on JAX", "Keras on TensorFlow")
}


def changes(run: Run, rounds: int) -> dict[str, Any]:
    """Every change in turn."""
    found = in_turn({change.words: partial(run, change.flags) for change in (*WAY, *AROUND)}, range(rounds), LONG)
    groups = {"way": WAY, "around": AROUND}
    return {name: [{**each._asdict(), "runs": found[each.words]} for each in group] for name, group in groups.items()}


def devices(run: Run) -> dict[str, Any]:
    """One seed with every strategy."""
    return {
        dtype: in_turn(
            {
                strategy: partial(run, f"{RECIPE} --strategy {strategy} --devices {number} --dtype {dtype}")
                for strategy, number in STRATEGIES.items()
            },
            [0],
        )
        for dtype in ("float32", "float64")
    }


def peers(run: Run, rounds: int, python: Path, data: Path) -> dict[str, Any]:
    """Ours, with an empty compile cache and then with a full one, and theirs in turn."""

    def run_peer(peer: Peer, seed: int) -> Timed:
        config = dataclasses.replace(CONFIG, seed=seed)
        return theirs(python, peer.program, peer.flags, data, config, peer.changed or {})

    groups: dict[str, dict[str, Callable[[int], Timed]]] = {
        "ours": {f"pmapdp, compile cache {cache}": partial(run, RECIPE) for cache in ("cold", "warm")},
        "same": {name: partial(run_peer, peer) for name, peer in SAME.items()},
        "own": {name: partial(run_peer, peer) for name, peer in OWN.items()},
    }
    found = in_turn({name: run for group in groups.values() for name, run in group.items()}, range(rounds), LONG)
    return {kind: {name: found[name] for name in group} for kind, group in groups.items()}


def measure(part: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The results of a part, as JSON; `folder` is empty."""
    flags = ["--data-dir", options.data_dir] if options.data_dir else []
    if part == "validation":
        flags = ["--dataset", arrays(folder / "held_back.npz", options.data_dir, validation=True)]

    def run(words: str, seed: int) -> Timed:
        """The compile cache is empty for the first run with these flags and this seed."""
        return ours([*words.split(), *flags, "--seed", seed], folder / f"{seed} {words}".replace("/", " "))

    if part == "validation":
        return in_turn({words: partial(run, words) for words in (*WIDTHS, *SETTINGS)}, SEEDS)
    if part == "seeds":
        return in_turn({name: partial(run, RECIPE) for name in ("cold", "warm")}, range(options.seeds))
    if part == "changes":
        return changes(run, options.rounds)
    if part == "devices":
        return devices(run)
    if part == "peers":
        data = arrays(folder / "mnist.npz", options.data_dir, validation=False)
        return peers(run, options.rounds, peers_python(options.environment), data)
    return limit.measure(flags)


def main(arguments: list[str]) -> None:
    """The command."""
    parser = make_parser(__doc__, "python -m benchmarks.speedrun seeds --seeds 10")
    parts = ["validation", "seeds", "changes", "devices", "peers", "limit"]
    parser.add_argument("parts", nargs="+", choices=[*parts, "page"])
    parser.add_argument("--seeds", type=at_least_one, default=10, help="of the part seeds")
    parser.add_argument("--rounds", type=at_least_one, default=3, help="of the parts changes and peers")
    parser.add_argument("--data-dir", help="folder of data sets that holds MNIST; default: $PMAPDP_DATA")
    environment = Path.home() / ".cache" / "pmapdp" / "peers"
    parser.add_argument("--environment", type=Path, default=environment, help="folder of the peers' environment")
    options = parser.parse_args(arguments)
    for part in options.parts:
        if part != "page":
            facts = machine()
            if part == "peers":
                facts["peers"] = peers_versions(peers_python(options.environment))
            with tempfile.TemporaryDirectory() as folder:
                found = measure(part, options, Path(folder))
            results = json.loads(page.RESULTS.read_text())
            results[part] = {"machine": facts | {"load after": os.getloadavg()[0]}, "found": found}
            page.RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            if part == "validation":
                print("\n".join(page.validation(found).values()))
        page.write()


if __name__ == "__main__":
    sys.exit(run_command(main))

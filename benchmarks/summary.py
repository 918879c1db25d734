"""List what `benchmarks.run` compares, and write the tables of docs/speed.md.

`python -m benchmarks.summary`.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

RESULTS, ACCELERATORS = (
    Path(__file__).with_name(name) for name in ("results.json", "accelerators.json")
)
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
BEGIN, END = "<!-- made by python -m benchmarks.summary -->", "<!-- until here -->"
BEGIN_ACCELERATORS = "<!-- made by python -m benchmarks.accelerators -->"

STRATEGIES = ("pmap", "jit", "shard_map")
OTHERS = {
    "bare": "bare loop",
    "mirrored_strategy": "MirroredStrategy",
    "pytorch_ddp": "PyTorch DDP",
    "keras_jax": "Keras on JAX",
}
WORKS = (
    # words, model, strategies, devices, batch over all devices, the least ratio to the
    # bare loop and to the peers
    (
        "CNN, 64",
        "cnn",
        ("single",),
        1,
        64,
        {"bare": 0.95, "mirrored_strategy": 1.1, "pytorch_ddp": 2.0},
    ),
    (
        "CNN, 512",
        "cnn",
        STRATEGIES,
        8,
        512,
        {"bare": 0.95, "mirrored_strategy": 2.2, "pytorch_ddp": 2.2},
    ),
    ("convnet, 64", "convnet", ("single",), 1, 64, {"bare": 0.95, "keras_jax": 1.0}),
    ("convnet, 64", "convnet", STRATEGIES, 8, 64, {"bare": 0.95, "keras_jax": 1.1}),
)
EXAMPLES = {
    "cnn": 25_600,
    "convnet": 6_400,
}  # of one epoch: enough for a second or more on a CPU


class Run(NamedTuple):
    """One command that trains on MNIST.

    `who` is pmapdp, bare, or a script of `peers/`, which has no strategy.
    """

    who: str
    model: str
    strategy: str
    devices: int
    batch: int

    @property
    def name(self) -> str:
        """The key in results.json."""
        return " ".join(
            map(
                str,
                filter(
                    None,
                    (self.who, self.strategy, self.model, self.devices, self.batch),
                ),
            )
        )


MOST_SPREAD = (
    1.0  # of a command's runs: a row whose runs lie further apart says nothing
)


def comparisons(peers: bool) -> list[tuple[str, Run, Run, float]]:
    """List (work, our run, the other, the least ratio), and if `peers` also with other
    frameworks.
    """
    found = []
    for work, model, strategies, devices, batch, targets in WORKS:
        for who, target in targets.items():
            for strategy in strategies if peers or who == "bare" else ():
                other = Run(
                    who, model, strategy if who == "bare" else "", devices, batch
                )
                found.append(
                    (
                        work,
                        Run("pmapdp", model, strategy, devices, batch),
                        other,
                        target,
                    )
                )
    return found


def spread_of(speeds: list[float]) -> float:
    """Return how far runs of one command lie apart, as a part of their median."""
    return (max(speeds) - min(speeds)) / median(speeds)


def table(results: dict[str, Any]) -> str:
    """Return the tables of `benchmarks.run` in Markdown."""
    speeds, machine = results["examples_per_second"], results["machine"]
    rows: dict[tuple[Any, ...], dict[str, str]] = {}
    spreads = [0.0]
    for work, run, against, target in comparisons(peers=True):
        if run.name not in speeds or against.name not in speeds:
            continue
        spread = max(spread_of(speeds[run.name]), spread_of(speeds[against.name]))
        if spread > MOST_SPREAD:
            continue
        spreads.append(spread)
        ours = median(speeds[run.name])
        other = median(speeds[against.name])
        cells = rows.setdefault((work, run.devices, OTHERS[against.who], target), {})
        cells[run.strategy] = f"{ours:,.0f} ({ours / other:.2f})"
    strategies = ("single", *STRATEGIES)
    lines = [
        "Examples/s of pmapdp, and in brackets the ratio to the other program.",
        "",
        f"| work | devices | against | {' | '.join(strategies)} | target |",
        f"| --- | --- | --- | {'--- | ' * len(strategies)}--- |",
    ]
    for (work, devices, against, target), cells in rows.items():
        values = " | ".join(cells.get(strategy, "") for strategy in strategies)
        lines.append(f"| {work} | {devices} | {against} | {values} | {target:.2f} |")
    peers = ", ".join(
        f"{name} {version}" for name, version in machine.get("peers", {}).items()
    )
    versions = f"Python {machine['python']}, jax {machine['jax']}"
    if peers:
        versions += f"; peers: {peers}"
    runs = len(next(iter(speeds.values())))
    lines += [
        "",
        f"Medians of {runs} runs each, in turn; a command's runs lay up to "
        f"{max(spreads):.0%} of their median apart. {machine['cores']} cores "
        f"({machine['processor']}), devices simulated on the CPU, {versions}.",
        "",
        "| whole command, compiled programs cached | seconds |",
        "| --- | --- |",
        *(
            f"| {name} | {seconds:.1f} |"
            for name, seconds in results["seconds"].items()
        ),
    ]
    return "\n".join(lines)


def table_of_accelerators(results: dict[str, Any]) -> str:
    """Return the table of `benchmarks.accelerators` in Markdown."""
    lines = [
        "Examples/s. In brackets: the trainer over the bare loop of the same strategy, "
        "median and range of the pairs.",
        "",
        "| work | trainer, pmap | trainer, jit | bare loop, jit | PyTorch eager "
        "| PyTorch compiled |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for work, row in results["rows"].items():
        cells = [work]
        for strategy in ("pmap", "jit"):
            ratios = row[strategy]["ratios"]
            shares = f"{median(ratios):.2f}; {ratios[0]:.2f} to {ratios[-1]:.2f}"
            cells.append(f"{row[strategy]['trainer']:,.0f} ({shares})")
        speeds = row.get("pytorch", {})
        theirs = [
            f"{speeds[how]:,.0f}" if how in speeds else ""
            for how in ("eager", "compiled")
        ]
        lines.append(
            f"| {' | '.join([*cells, format(row['jit']['bare'], ',.0f'), *theirs])} |"
        )
    return "\n".join([*lines, "", f"{results['machine']}."])


def write(results: dict[str, Any]) -> None:
    """Write a table into the page.

    It's the one of accelerators if the results have rows, else of `benchmarks.run`.
    """
    begin, text = (
        (BEGIN_ACCELERATORS, table_of_accelerators)
        if "rows" in results
        else (BEGIN, table)
    )
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(END, maxsplit=1)
    PAGE.write_text(f"{before}{begin}\n{text(results)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    for file in filter(Path.exists, (RESULTS, ACCELERATORS)):
        write(json.loads(file.read_text(encoding="utf-8")))

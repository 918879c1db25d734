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
    # words, model, strategies, devices, batch over all devices, whom to compare with
    (
        "CNN, 64",
        "cnn",
        ("single",),
        1,
        64,
        ("bare", "mirrored_strategy", "pytorch_ddp"),
    ),
    (
        "CNN, 512",
        "cnn",
        STRATEGIES,
        8,
        512,
        ("bare", "mirrored_strategy", "pytorch_ddp"),
    ),
    ("convnet, 64", "convnet", ("single",), 1, 64, ("bare", "keras_jax")),
    ("convnet, 64", "convnet", STRATEGIES, 8, 64, ("bare", "keras_jax")),
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


# Of a command's runs, as a part of their median. Numbers whose runs lie further apart
# say nothing, and aren't printed.
MOST_SPREAD = 0.25


def comparisons(peers: bool) -> list[tuple[str, Run, Run]]:
    """List (work, our run, the other), and if `peers` also with other frameworks."""
    pairs = []
    for work, model, strategies, devices, batch, others in WORKS:
        for who in others:
            if who != "bare" and not peers:
                continue
            for strategy in strategies:
                run = Run("pmapdp", model, strategy, devices, batch)
                its_strategy = strategy if who == "bare" else ""
                other = Run(who, model, its_strategy, devices, batch)
                pairs.append((work, run, other))
    return pairs


def spread_of(speeds: list[float]) -> float:
    """Return how far runs of one command lie apart, as a part of their median."""
    return (max(speeds) - min(speeds)) / median(speeds)


def three_digits(speed: float) -> str:
    """Write a speed with three digits that count: the fourth differs every time."""
    return f"{float(f'{speed:.3g}'):,.0f}"


def middle_half(ratios: list[float]) -> tuple[float, float]:
    """Return the least and the greatest without the lowest and the highest quarter."""
    quarter = len(ratios) // 4
    middle = sorted(ratios)[quarter : len(ratios) - quarter]
    return middle[0], middle[-1]


def table(results: dict[str, Any]) -> str:
    """Return the tables of `benchmarks.run` in Markdown."""
    speeds, machine = results["examples_per_second"], results["machine"]
    rows: dict[tuple[Any, ...], dict[str, str]] = {}
    spreads = [0.0]
    for work, run, against in comparisons(peers=True):
        if run.name not in speeds or against.name not in speeds:
            continue
        spread = max(spread_of(speeds[run.name]), spread_of(speeds[against.name]))
        if spread > MOST_SPREAD:
            continue
        spreads.append(spread)
        ours = median(speeds[run.name])
        other = median(speeds[against.name])
        cells = rows.setdefault((work, run.devices, OTHERS[against.who]), {})
        cells[run.strategy] = f"{three_digits(ours)} ({ours / other:.2f})"
    strategies = ("single", *STRATEGIES)
    lines = [
        "Examples/s of pmapdp. In brackets is the ratio to the other program.",
        "",
        f"| work | devices | against | {' | '.join(strategies)} |",
        f"| --- | --- | --- | {'--- | ' * len(strategies)}",
    ]
    for (work, devices, against), cells in rows.items():
        values = " | ".join(cells.get(strategy, "") for strategy in strategies)
        lines.append(f"| {work} | {devices} | {against} | {values} |")
    peers = ", ".join(
        f"{name} {version}" for name, version in machine.get("peers", {}).items()
    )
    versions = f"Python {machine['python']}, jax {machine['jax']}"
    if peers:
        versions += f"; peers: {peers}"
    runs = len(next(iter(speeds.values())))
    lines += [
        "",
        f"Medians of {runs} runs each, in turn. Repeated runs of one command varied "
        f"by up to {max(spreads):.0%} of their median. {machine['cores']} cores "
        f"({machine['processor']}), devices simulated on the CPU, {versions}.",
    ]
    return "\n".join(lines)


def table_of_accelerators(results: dict[str, Any]) -> str:
    """Return the table of `benchmarks.accelerators` in Markdown."""
    lines = [
        "Examples/s, and in brackets the trainer's speed divided by the bare loop's, "
        "with the same strategy: the median of the rounds, and the range of their "
        "middle half.",
        "",
        "| work | trainer, pmap | trainer, jit | bare loop, jit | PyTorch eager "
        "| PyTorch compiled |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for work, row in results["rows"].items():
        cells = [work]
        for strategy in ("pmap", "jit"):
            ratios = row[strategy]["ratios"]
            low, high = middle_half(ratios)
            shares = f"{median(ratios):.2f}; {low:.2f} to {high:.2f}"
            cells.append(f"{three_digits(row[strategy]['trainer'])} ({shares})")
        speeds = row.get("pytorch", {})
        cells.append(three_digits(row["jit"]["bare"]))
        eager = three_digits(speeds["eager"]) if "eager" in speeds else ""
        compiled = three_digits(speeds["compiled"]) if "compiled" in speeds else ""
        cells += [eager, compiled]
        lines.append(f"| {' | '.join(cells)} |")
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

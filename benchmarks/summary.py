"""Write the tables of docs/speed.md from results.json and accelerators.json: `python -m benchmarks.summary`."""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.comparisons import STRATEGIES, Comparison, comparisons

RESULTS = Path(__file__).with_name("results.json")
ACCELERATORS = Path(__file__).with_name("accelerators.json")
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
BEGIN, END = "<!-- made by python -m benchmarks.summary -->", "<!-- until here -->"
BEGIN_ACCELERATORS = "<!-- made by python -m benchmarks.accelerators -->"
TARGETS = {"default job, warm": 6}  # seconds


def measured(results: dict[str, Any]) -> list[tuple[Comparison, list[float], list[float]]]:
    """The comparisons whose runs were measured, with the speeds of both sides, round by round."""
    speeds = results["examples_per_second"]
    return [
        (pair, speeds[pair.ours.name], speeds[pair.other.name])
        for pair in comparisons(peers=True)
        if pair.ours.name in speeds and pair.other.name in speeds
    ]


def ratio(ours: list[float], other: list[float]) -> float:
    """Median examples/s of ours over the other's."""
    return statistics.median(ours) / statistics.median(other)


def spread(values: list[float]) -> float:
    """Largest minus smallest value, as a share of the median."""
    return (max(values) - min(values)) / statistics.median(values)


def rows(results: dict[str, Any]) -> list[str]:
    """The comparisons in Markdown, and what they were measured on."""
    groups: dict[tuple[Any, ...], dict[str, str]] = {}
    for pair, ours, other in measured(results):
        cells = groups.setdefault((pair.work, pair.ours.devices, pair.against, pair.target), {})
        cells[pair.ours.strategy] = f"{statistics.median(ours):,.0f} ({ratio(ours, other):.2f})"
    strategies = [name for name in ("single", *STRATEGIES) if any(name in cells for cells in groups.values())]
    lines = [
        "Examples/s of pmapdp, and in brackets over those of the other program.",
        "",
        f"| work | devices | against | {' | '.join(strategies)} | target |",
        f"| --- | --- | --- | {'--- | ' * len(strategies)}--- |",
    ]
    for (work, devices, against, target), cells in groups.items():
        values = " | ".join(cells.get(strategy, "") for strategy in strategies)
        lines.append(f"| {work} | {devices} | {against} | {values} | {target:.2f} |")
    facts, rounds = results["machine"], len(next(iter(results["examples_per_second"].values())))
    widest = max(spread(values) for values in results["examples_per_second"].values())
    peers = "".join(f", {name} {version}" for name, version in facts.get("peers", {}).items())
    return [
        *lines,
        "",
        f"{'Medians' if rounds > 2 else 'Means'} of {rounds} runs each, in turn; a command's runs lay up to "
        f"{widest:.0%} of their median apart. "
        f"{facts['cores']} cores ({facts['processor']}), devices {facts['devices']}, "
        f"Python {facts['python']}, jax {facts['jax']}{'; peers:' + peers[1:] if peers else ''}.",
    ]


def table(results: dict[str, Any]) -> str:
    """The part of the page about CPUs."""
    missing = {pair.against for pair in comparisons(peers=True)} - {pair.against for pair, _, _ in measured(results)}
    lines = [
        *rows(results),
        *(["", f"Not measured yet: the rows against {', '.join(sorted(missing))}."] if missing else []),
        "",
        "| whole command | seconds | target |",
        "| --- | --- | --- |",
        *(f"| {name} | {results['seconds'][name]:.1f} | {target} |" for name, target in TARGETS.items()),
    ]
    lines += [
        "",
        f"`import pmapdp.train` took {results['seconds']['import']:.1f} s, the default command with one update "
        f"{results['seconds']['first step']:.1f} s from start to end, compile cache warm.",
    ]
    return "\n".join(lines)


def rows_of_accelerators(results: dict[str, Any]) -> list[str]:
    """The table of `benchmarks.accelerators` in Markdown."""
    lines = [
        "Examples/s. In brackets: the trainer over the bare loop of the same strategy, median and range of the pairs.",
        "",
        "| work | trainer, pmap | trainer, jit | bare loop, jit | PyTorch eager | PyTorch compiled |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for work, row in results["rows"].items():
        ours = []
        for strategy in ("pmap", "jit"):
            ratios = row[strategy]["ratios"]
            shares = f"{statistics.median(ratios):.2f}; {ratios[0]:.2f} to {ratios[-1]:.2f}"
            ours.append(f"{row[strategy]['trainer']:,.0f} ({shares})")
        theirs = [f"{row['pytorch'][how]:,.0f}" if "pytorch" in row else "" for how in ("eager", "compiled")]
        cells = [work, *ours, f"{row['jit']['bare']:,.0f}", *theirs]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", f"{results['machine']}."]


def replace_between(begin: str, text: str) -> None:
    """Write `text` into the page, between the mark `begin` and the next end."""
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(END, maxsplit=1)
    PAGE.write_text(f"{before}{begin}\n{text}\n{END}{after}", encoding="utf-8")


def write(results: dict[str, Any]) -> None:
    """Write the table of `benchmarks.run`."""
    replace_between(BEGIN, table(results))


def write_accelerators(results: dict[str, Any]) -> None:
    """Write the table of `benchmarks.accelerators`."""
    replace_between(BEGIN_ACCELERATORS, "\n".join(rows_of_accelerators(results)))


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text(encoding="utf-8")))
    if ACCELERATORS.exists():
        write_accelerators(json.loads(ACCELERATORS.read_text(encoding="utf-8")))

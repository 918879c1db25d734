"""The tables of docs/speed.md and their picture, made from results.json and accelerators.json:
`python -m benchmarks.summary`."""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.comparisons import STRATEGIES, Comparison, comparisons, comparisons_of_accelerators
from benchmarks.pictures import drawing, svg
from pmapdp.compare.pictures import INK, STRATEGY_COLOURS

RESULTS = Path(__file__).with_name("results.json")
ACCELERATORS = Path(__file__).with_name("accelerators.json")
PICTURE = Path(__file__).with_name("results.svg")
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
BEGIN, END = "<!-- made by python -m benchmarks.summary -->", "<!-- until here -->"
BEGIN_ACCELERATORS = "<!-- made by python -m benchmarks.summary from accelerators.json -->"
TARGETS = {"default job, warm": 6}  # seconds


def measured(results: dict[str, Any]) -> list[tuple[Comparison, list[float], list[float]]]:
    """The comparisons whose runs were measured, with the speeds of both sides, round by round."""
    speeds = results["examples_per_second"]
    accelerators = results["machine"].get("accelerators")
    found = comparisons_of_accelerators(accelerators) if accelerators else comparisons(peers=True)
    return [
        (pair, speeds[pair.ours.name], speeds[pair.other.name])
        for pair in found
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
        "",
        "| an update in four micro-batches of 16, 1 device | unrolled, ms | in a loop, ms | ratio |",
        "| --- | --- | --- | --- |",
    ]
    for row in results["accumulation"]:
        factor = row["loop"] / row["unrolled"]
        lines.append(f"| {row['model']} | {row['unrolled']:.1f} | {row['loop']:.1f} | {factor:.1f} |")
    lines += [
        "",
        f"`import pmapdp.train` took {results['seconds']['import']:.1f} s, the default command with one update "
        f"{results['seconds']['first step']:.1f} s from start to end, compile cache warm.",
    ]
    return "\n".join(lines)


def picture(results: dict[str, Any]) -> str:
    """One bar a comparison: the ratio, with a mark at its target."""
    rows = measured(results)
    values = [ratio(ours, other) for _, ours, other in rows]
    title = "Examples per second, pmapdp over the other; the line is the target"
    with drawing(9, 0.8 + 0.27 * len(rows)) as (figure, axes):
        for number, ((pair, _, _), value) in enumerate(zip(rows, values, strict=True)):
            axes.barh(number, value, height=0.7, color=STRATEGY_COLOURS[pair.ours.strategy], alpha=0.6)
            axes.plot((pair.target, pair.target), (number - 0.45, number + 0.45), color=INK, linewidth=2)
            axes.text(max(value, pair.target) + 0.1, number, f"{value:.2f}", va="center")
        labels = [f"{pair.work}, {pair.ours.devices} x {pair.ours.strategy} / {pair.against}" for pair, _, _ in rows]
        axes.set_yticks(range(len(rows)), labels)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        figure.suptitle(title, weight="bold")
        return svg(figure, title)


def write(results: dict[str, Any]) -> None:
    """Write the table between its marks on the page, and, of CPUs, the picture."""
    if results["machine"].get("accelerators"):
        begin, text = BEGIN_ACCELERATORS, "\n".join(rows(results))
    else:
        PICTURE.write_text(picture(results), encoding="utf-8")
        begin, text = BEGIN, table(results)
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(END, maxsplit=1)
    PAGE.write_text(f"{before}{begin}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    for file in (RESULTS, ACCELERATORS):
        write(json.loads(file.read_text(encoding="utf-8")))

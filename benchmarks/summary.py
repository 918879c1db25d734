"""The README's table and picture, made from results.json: `python -m benchmarks.summary`."""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.comparisons import Comparison, comparisons
from pmapdp.colours import STRATEGY_COLOURS
from pmapdp.compare.svg import element, text

RESULTS = Path(__file__).with_name("results.json")
PICTURE = Path(__file__).with_name("results.svg")
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- made by python -m benchmarks.summary -->", "<!-- until here -->"


def measured(results: dict[str, Any]) -> list[tuple[Comparison, list[float], list[float]]]:
    """The comparisons whose runs were measured, with the speeds of both sides, round by round."""
    speeds = results["examples_per_second"]
    found = comparisons(peers=True)
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


def table(results: dict[str, Any]) -> str:
    """The comparisons in Markdown."""
    lines = [
        "| work | devices | pmapdp | against | examples/s, theirs | ours | ratio | target |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for pair, ours, other in measured(results):
        lines.append(
            f"| {pair.work} | {pair.ours.devices} | {pair.ours.strategy} | {pair.against} "
            f"| {statistics.median(other):,.0f} | {statistics.median(ours):,.0f} | {ratio(ours, other):.2f} "
            f"| {pair.target:.2f} |"
        )
    facts, rounds = results["machine"], len(next(iter(results["examples_per_second"].values())))
    widest = max(spread(values) for values in results["examples_per_second"].values())
    peers = "".join(f", {name} {version}" for name, version in facts.get("peers", {}).items())
    lines += [
        "",
        f"Medians of {rounds} runs each, in turn; a command's runs lay up to {widest:.0%} of their median apart. "
        f"{facts['cores']} cores ({facts['processor']}), devices {facts['devices']}, "
        f"Python {facts['python']}, jax {facts['jax']}{'; peers:' + peers[1:] if peers else ''}. "
        f"`import pmapdp.train` took {results['seconds']['import']:.1f} s, the default command with one update "
        f"{results['seconds']['first step']:.1f} s from start to end, compile cache warm.",
    ]
    return "\n".join(lines)


def picture(results: dict[str, Any]) -> str:
    """One bar a comparison: the ratio, with a tick at its target."""
    rows = measured(results)
    left, width, step, top = 430, 330, 22, 46
    height = top + step * len(rows) + 16
    limit = max(max(ratio(ours, other), pair.target) for pair, ours, other in rows) * 1.12
    light = " ".join(f"--{name}: {pair[0]};" for name, pair in STRATEGY_COLOURS.items())
    dark = " ".join(f"--{name}: {pair[1]};" for name, pair in STRATEGY_COLOURS.items())
    style = (
        f"svg {{ {light} --ink: #1d232b; font: 13px system-ui, sans-serif; }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {dark} --ink: #e6e9ed; }} }} "
        "text { fill: var(--ink); } .title { font-weight: 600; font-size: 15px; } .target { stroke: var(--ink); }"
    )
    title = "Examples per second, pmapdp over the other; the line is the target"
    drawn = [element("title", title), element("style", style), text(title, x=8, y=22, class_="title")]
    for number, (pair, ours, other) in enumerate(rows):
        y = top + step * number
        value, target = ratio(ours, other), pair.target
        label = f"{pair.work}, {pair.ours.devices} x {pair.ours.strategy} / {pair.against}"
        drawn += [
            text(label, x=left - 8, y=y + 13, text_anchor="end"),
            element(
                "rect",
                x=left,
                y=y + 2,
                width=f"{width * value / limit:.1f}",
                height=step - 7,
                style=f"fill: var(--{pair.ours.strategy})",
            ),
            element(
                "line",
                x1=f"{left + width * target / limit:.1f}",
                x2=f"{left + width * target / limit:.1f}",
                y1=y,
                y2=y + step - 3,
                stroke_width=2,
                class_="target",
            ),
            text(f"{value:.2f}", x=f"{left + width * max(value, target) / limit + 6:.1f}", y=y + 13),
        ]
    size = f"0 0 {left + width + 50} {height}"
    return element("svg", *drawn, xmlns="http://www.w3.org/2000/svg", viewBox=size, role="img") + "\n"


def write(results: dict[str, Any]) -> None:
    """Write the picture, and the table between its two marks in the README."""
    PICTURE.write_text(picture(results), encoding="utf-8")
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    README.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text(encoding="utf-8")))

"""The tables and the picture of docs/speedrun.md, from the results."""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.speedrun.changes import AROUND, WAY
from pmapdp.pictures import INK, STRATEGY_COLOURS, drawing, svg

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parent.parent.parent / "docs" / "speedrun.md"
PICTURE = PAGE.parent / "pictures" / "speedrun.svg"
COMMAND, TRAINING, ACCURACY = range(3)  # of a run, as JSON has it
HEAD = "| {} | seconds of the command | of training | test accuracy |\n| --- | --- | --- | --- |"


def column(runs: list[list[float]], field: int) -> list[float]:
    """One figure of each run."""
    return [run[field] for run in runs]


def row(words: str, runs: list[list[float]]) -> str:
    """Medians of the seconds, the mean accuracy."""
    command, training = (statistics.median(column(runs, field)) for field in (COMMAND, TRAINING))
    return f"| {words} | {command:.1f} | {training:.1f} | {statistics.fmean(column(runs, ACCURACY)):.4f} |"


def of_machine(results: dict[str, Any], runs: str) -> str:
    """What was measured on, and whether it was busy."""
    facts = results["machine"]
    peers = "".join(f", {name} {version}" for name, version in facts.get("peers", {}).items())
    return (
        f"\n{runs}. {facts['cores']} cores ({facts['processor']}), jax {facts['jax']}"
        f"{'; peers:' + peers[1:] if peers else ''}; load of the machine {facts['load before']:.1f} before and "
        f"{facts['load after']:.1f} after, where the run itself is about 1.5."
    )


def tables(results: dict[str, Any]) -> dict[str, str]:
    """What stands on the page between the marks of each part that was measured."""
    found = {}
    for part, measured in results.items():
        runs = measured["found"]
        if part == "validation":
            lines = [f"| `{flags}` | {statistics.fmean(column(each, ACCURACY)):.4f} |" for flags, each in runs.items()]
            head = f"| flags | accuracy on the examples held back, mean over {len(runs['speedrun'])} seeds |"
            found[part] = "\n".join([head, "| --- | --- |", *lines])
        elif part == "seeds":
            values = column(runs["warm"], ACCURACY)
            lines = [
                HEAD.format("compile cache"),
                *(row(name, runs[name]) for name in ("cold", "warm")),
                f"\nOver {len(values)} seeds the test accuracy is {statistics.fmean(values):.4f} in the mean, with a "
                f"standard deviation of {statistics.stdev(values):.4f}, from {min(values):.4f} to {max(values):.4f}. "
                f"The fastest command took {min(column(runs['cold'], COMMAND)):.1f} s with a cold cache and "
                f"{min(column(runs['warm'], COMMAND)):.1f} s with a warm one; the fastest training "
                f"{min(column(runs['warm'], TRAINING)):.1f} s.",
                of_machine(measured, "Medians of the seconds"),
            ]
            found[part] = "\n".join(lines)
        elif part == "changes":
            number = len(runs["bfloat16"])
            for name, group in (("changes", WAY), ("around", AROUND)):
                rows = [row(f"{change.words}<br>`{change.flags}`", runs[change.words]) for change in group]
                words = (
                    f"Medians of the seconds, means of the accuracy, {number} seeds" if number > 1 else "One run each"
                )
                note = of_machine(measured, words)
                found[name] = "\n".join([HEAD.format("change"), *rows, note])
        elif part == "peers":
            number = len(runs["pmapdp"])
            note = of_machine(measured, f"Medians of {number} runs each, in turn" if number > 1 else "One run each")
            found[part] = "\n".join([HEAD.format("program"), *(row(name, each) for name, each in runs.items()), note])
        elif part == "limit":
            kinds = ", ".join(f"`{kind}` {share:.0%}" for kind, share in runs["kinds"].items())
            found[part] = (
                f"A step takes {runs['operations'] / 1e6:.0f} million operations and {runs['step_ms']:.2f} ms: "
                f"{runs['gflop_per_second']:.0f} GFLOP/s, {runs['share']:.0%} of the "
                f"{runs['machine_gflop_per_second']:.0f} GFLOP/s that a product of matrices reaches on this machine. "
                f"Of the time of the operations: {kinds}." + "\n" + of_machine(measured, "The least of 30 calls")
            )
    return found


def picture(runs: dict[str, list[list[float]]]) -> str:
    """One bar a change: seconds of the command, those of training in it, and the accuracy."""
    title = "Seconds of the command, compile cache warm; blue: of training"
    with drawing(9, 0.8 + 0.35 * len(WAY)) as (figure, axes):
        for number, change in enumerate(WAY):
            each = runs[change.words]
            command, training = (statistics.median(column(each, field)) for field in (COMMAND, TRAINING))
            axes.barh(number, command, height=0.7, color=STRATEGY_COLOURS["single"], alpha=0.5)
            axes.barh(number, training, height=0.7, color=STRATEGY_COLOURS["pmap"])
            accuracy = statistics.fmean(column(each, ACCURACY))
            axes.text(command, number, f"  {command:.1f} s, {100 * accuracy:.2f} %", va="center", color=INK)
        axes.set_yticks(range(len(WAY)), [change.words for change in WAY])
        axes.set_ylim(len(WAY) - 0.4, -0.6)
        axes.set_xlim(0, 1.25 * max(statistics.median(column(runs[change.words], COMMAND)) for change in WAY))
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        figure.suptitle(title, weight="bold")
        return svg(figure, title)


def mark(part: str) -> tuple[str, str]:
    """Between which lines of the page a part stands."""
    return f"<!-- made by python -m benchmarks.speedrun: {part} -->", f"<!-- end of {part} -->"


def write() -> None:
    """Write every part between its marks, and the picture."""
    results, text = json.loads(RESULTS.read_text(encoding="utf-8")), PAGE.read_text(encoding="utf-8")
    for part, table in tables(results).items():
        begin, end = mark(part)
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    PAGE.write_text(text, encoding="utf-8")
    if "changes" in results:
        PICTURE.write_text(picture(results["changes"]["found"]), encoding="utf-8")

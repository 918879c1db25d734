"""The pictures of the comparison: loss curves, bars, and the rows of a batch on their devices."""

import itertools
from collections.abc import Sequence
from typing import Any

from pmapdp.compare.table import run_name
from pmapdp.pictures import DEVICE_COLOURS, INK, STRATEGY_COLOURS, drawing, svg

DASHES = ("-", "--", ":", "-.")  # by number of devices; more start again from the first
Runs = list[dict[str, Any]]


def loss_curves(runs: Runs) -> str:
    """The loss of every update, all runs over each other.

    The first is the widest and is drawn first, so that equal curves all show as stripes of one band.
    """
    counts = sorted({run["devices"] for run in runs if run["strategy"] != "single"})
    with drawing(9, 3.4) as (figure, axes):
        for number, run in enumerate(runs):
            single = run["strategy"] == "single"
            axes.plot(
                range(1, len(run["losses"]) + 1),
                run["losses"],
                color=STRATEGY_COLOURS[run["strategy"]],
                linestyle="-" if single else DASHES[counts.index(run["devices"]) % len(DASHES)],
                linewidth=1.5 + 8 * (len(runs) - 1 - number) / max(1, len(runs) - 1),
                label=run_name(run),
            )
        axes.set(xlabel="update", ylabel="loss")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        axes.legend(frameon=False, ncols=2)
        return svg(figure, "Loss of every update, one curve a run")


def bars(title: str, runs: Runs, parts: Sequence[Sequence[float]], labels: Sequence[str], spreads: Any = ()) -> str:
    """A bar for each run, from the top down, with its label behind it.

    `parts` are the lengths of the pieces of each bar, paler after the first; `spreads` (from, to) of a line upon it.
    """
    with drawing(4.8, 0.6 + 0.36 * len(runs)) as (figure, axes):
        rows, ends = range(len(runs)), [sum(each) for each in parts]
        left = [0.0] * len(runs)
        for number, lengths in enumerate(zip(*parts, strict=True)):
            colours = [STRATEGY_COLOURS[run["strategy"]] for run in runs]
            axes.barh(rows, lengths, left=left, height=0.6, color=colours, alpha=0.45 if number else 1)
            left = [start + length for start, length in zip(left, lengths, strict=True)]
        for row, (low, high) in enumerate(spreads):
            axes.plot((low, high), (row, row), color=INK, linewidth=1.5, marker="|")
            ends[row] = max(ends[row], high)
        for row, (end, label) in enumerate(zip(ends, labels, strict=True)):
            axes.text(end + 0.02 * max(ends), row, label, va="center")
        axes.set_xlim(0, 1.7 * max(ends) or 1)  # room for the labels
        axes.set_yticks(rows, [run_name(run) for run in runs])
        axes.set_title(title)
        axes.invert_yaxis()
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        return svg(figure, title)


def batch_rows(run: dict[str, Any]) -> str:
    """The rows of one batch as the strategy's array holds them, each in the colour of its device; padding is pale."""
    batch, across = run["batch"], run["batch"]["rows_shape"][-1]
    lines, padding = len(batch["devices"]) // across, set(batch["padding"])
    cells = [(row // across, device, row in padding) for row, device in enumerate(batch["devices"])]
    with drawing(4.8, 0.7 + 0.22 * lines) as (figure, axes):
        start = 0
        for (line, device, padded), group in itertools.groupby(cells):
            width, left = len(list(group)), start % across
            colour = DEVICE_COLOURS[device % len(DEVICE_COLOURS)]
            axes.barh(line, width, left=left, height=0.85, color=colour, alpha=0.3 if padded else 1)
            if width > across / 20:
                axes.text(left + width / 2, line, device, ha="center", va="center", weight="bold")
            start += width
        axes.set_xlim(0, across)
        axes.set_ylim(lines - 0.5, -0.5)
        axes.set_yticks([])
        axes.set_xlabel("row")
        name = run_name(run)
        return svg(figure, f"{name}: which device holds which of the {len(batch['devices'])} rows of a batch")

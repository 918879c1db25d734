"""The pictures of the comparison: loss curves, and a bar for each run."""

from pmapdp.compare.table import Runs, run_name
from pmapdp.pictures import STRATEGY_COLOURS, drawing, svg

DASHES = ("-", "--", ":", "-.")  # by number of devices; more start again from the first


def loss_curves(runs: Runs, title: str) -> str:
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
        axes.legend(ncols=2)
        return svg(figure, title)


def speed_bars(runs: Runs, title: str) -> str:
    """Examples per second, a bar for each run, from the top down."""
    with drawing(9, 0.6 + 0.36 * len(runs)) as (figure, axes):
        rates = [run["examples_per_second"] for run in runs]
        colours = [STRATEGY_COLOURS[run["strategy"]] for run in runs]
        bars = axes.barh(range(len(runs)), rates, height=0.6, color=colours)
        axes.bar_label(bars, fmt="{:,.0f}", padding=4)
        axes.set_yticks(range(len(runs)), map(run_name, runs))
        axes.invert_yaxis()
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        return svg(figure, title)

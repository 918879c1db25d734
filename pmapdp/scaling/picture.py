"""The picture of the predictions: efficiency from 1 to 4,096 devices."""

from collections.abc import Sequence

from pmapdp.pictures import INK, STRATEGY_COLOURS, drawing, svg
from pmapdp.scaling.hardware import HARDWARE
from pmapdp.scaling.predict import Plan, powers_of_two, weak_efficiency
from pmapdp.scaling.workloads import Workload

LINES = [("-", "pmap"), ("--", "jit"), (":", "shard_map")]  # of each hardware: dashes, and whose colour


def picture(workload: Workload, names: Sequence[str], plan: Plan) -> str:
    """A line for each hardware of these `names`, with its last value in the legend, as an SVG file."""
    title = f"Efficiency, predicted: {workload.name}"
    with drawing(8, 4) as (figure, axes):
        for (dash, colour), name in zip(LINES, names, strict=False):
            counts = powers_of_two(HARDWARE[name])
            shares = [weak_efficiency(workload, HARDWARE[name], N, plan) for N in counts]
            label = f"{name}: {shares[-1]:.0%} at {counts[-1]:,}"
            axes.plot(counts, shares, dash, color=STRATEGY_COLOURS[colour], linewidth=2.5, label=label)
        axes.axhline(1, linestyle=":", color=INK, label="ideal")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:.0%}")
        batch = f"{plan.per_device_batch * plan.accumulate:,} examples per device and update"
        axes.set(xlabel="devices", ylim=(0, 1.05), title=f"{batch}: time on one device over time on N")
        figure.suptitle(title, x=0.02, ha="left", weight="bold")
        axes.grid(axis="y")
        axes.legend()
        return svg(figure, title)

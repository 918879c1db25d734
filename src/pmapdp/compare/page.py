"""The comparison as one HTML file that needs nothing beside itself. The text around the results is in `page.html`."""

from base64 import b64encode
from difflib import HtmlDiff
from html import escape
from importlib import resources
from string import Template
from typing import Any

from pmapdp.compare.pictures import STRATEGY_COLOURS, drawing, svg
from pmapdp.compare.table import Runs, rows, run_name, summary, verified


def page(report: dict[str, Any]) -> str:
    """The page of a report (its configuration and runs), as HTML."""
    cells = [[f"<td>{escape(cell)}</td>" for cell in row] for row in rows(report["runs"])]
    template = Template(resources.files("pmapdp.compare").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        facts=escape(summary(report)),
        losses=b64encode(loss_curves(report["runs"]).encode()).decode(),
        verified=escape(verified(report["runs"])),
        rows="".join(f"<tr>{''.join(row)}</tr>" for row in cells),
        sources=side_by_side("pmap", "jit") + side_by_side("pmap", "shard_map"),
    )


def loss_curves(runs: Runs) -> str:
    """The loss of every update as an SVG file, all runs over each other.

    The first is the widest and is drawn first, so that equal curves all show as stripes of one band.
    """
    with drawing(9, 3.4) as (figure, axes):
        for number, run in enumerate(runs):
            axes.plot(
                range(1, len(run["losses"]) + 1),
                run["losses"],
                color=STRATEGY_COLOURS[run["strategy"]],
                linewidth=9.5 - 8 * number / (len(runs) - 1),
                label=run_name(run),
            )
        axes.set(xlabel="update", ylabel="loss")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        axes.legend(ncols=2)
        return svg(figure, "Loss of every update, one curve a run")


def source(strategy: str) -> str:
    """The text of the file in `pmapdp/steps` that holds `strategy`."""
    return resources.files("pmapdp.steps").joinpath(f"{strategy}.py").read_text(encoding="utf-8")


def side_by_side(left: str, right: str) -> str:
    """Two files of `pmapdp/steps` beside each other, the lines and words that differ marked."""
    lines = source(left).splitlines(), source(right).splitlines()
    table = HtmlDiff().make_table(*lines, f"steps/{left}.py", f"steps/{right}.py")
    return f'<div class="scroll" tabindex="0">{table}</div>'

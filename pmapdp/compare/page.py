"""The comparison as one HTML file that needs nothing beside itself. The text around the results is in `page.html`."""

from base64 import b64encode
from difflib import HtmlDiff
from html import escape
from importlib import resources
from string import Template
from typing import Any

from pmapdp.compare.charts import loss_curves, speed_bars
from pmapdp.compare.table import Runs, failures, run_name, summary, table_rows

SIMULATED = (
    "<p>The devices are simulated on one CPU and share its cores. They show that the results are equal; how fast as "
    "many real devices would be, they cannot show.</p>"
)


def page(report: dict[str, Any]) -> str:
    """The page of a report (see `compare`), as HTML."""
    runs = report["runs"]
    done = [run for run in runs if not run["error"]]
    losses, speeds = "Loss of every update, one curve a run", "Examples per second, one bar a run"
    template = Template(resources.files("pmapdp.compare").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        recipe=escape(report["config"]["recipe"]),
        facts=escape(summary(report)),
        failures="".join(f'<p class="failure">{escape(each)}</p>' for each in failures(runs)),
        simulated=SIMULATED if report["job"]["simulated"] else "",
        losses=image(loss_curves(done, losses), losses),
        speeds=image(speed_bars(done, speeds), speeds),
        table=table(runs),
        sources=side_by_side("pmap", "jit") + side_by_side("pmap", "shard_map"),
    )


def image(svg: str, title: str) -> str:
    """An SVG file in the page."""
    return f'<img alt="{title}" src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}">'


def table(runs: Runs) -> str:
    """The table of all figures."""
    head = "".join(f'<th scope="col">{escape(run_name(run))}</th>' for run in runs)
    body = ""
    for name, meaning, values in table_rows(runs):
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        body += f'<tr><th scope="row">{name}<small>{meaning}</small></th>{cells}</tr>'
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"


def source(strategy: str) -> str:
    """The text of the file in `pmapdp/steps` that holds `strategy`."""
    return resources.files("pmapdp.steps").joinpath(f"{strategy}.py").read_text(encoding="utf-8")


def side_by_side(left: str, right: str) -> str:
    """Two files of `pmapdp/steps` beside each other, the lines and words that differ marked."""
    lines = source(left).splitlines(), source(right).splitlines()
    table = HtmlDiff().make_table(*lines, f"steps/{left}.py", f"steps/{right}.py")
    return f'<div class="scroll" tabindex="0">{table}</div>'

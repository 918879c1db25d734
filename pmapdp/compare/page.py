"""The comparison as one HTML file that needs nothing beside itself. The text around the results is in `page.html`."""

from difflib import HtmlDiff
from html import escape
from importlib import resources
from string import Template
from typing import Any

from pmapdp.compare.charts import Runs, bars, batch_rows, loss_curves
from pmapdp.compare.table import milliseconds, run_name, size, summary, table_rows
from pmapdp.pictures import rules

SIMULATED = (
    "<p>The devices are simulated on one CPU and share its cores. They show that the results are equal; how fast as "
    "many real devices would be, they cannot show.</p>"
)


def page(report: dict[str, Any]) -> str:
    """The page of a report (see `compare`), as HTML."""
    runs = report["runs"]
    done = [run for run in runs if not run["error"]]
    failed = [f"{run_name(run)} failed: {run['error']}" for run in runs if run["error"]]
    template = Template(resources.files("pmapdp.compare").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        colours_light=rules(0),
        colours_dark=rules(1),
        recipe=escape(report["config"]["recipe"]),
        facts=escape(summary(report)),
        failures="".join(f'<p class="failure">{escape(each)}</p>' for each in failed),
        simulated=SIMULATED if report["job"]["machine"]["simulated"] else "",
        losses=loss_curves(done) if done else "<p>No run has finished.</p>",
        costs=costs(done) if done else "",
        table=table(runs),
        batches="".join(batch(run) for run in done),
        sources=side_by_side("pmap", "jit") + side_by_side("pmap", "shard_map"),
    )


def costs(runs: Runs) -> str:
    """Bars for examples/s, step time, the wait before the first step, and the bytes on one device."""
    timed = [run for run in runs if run["step_ms"]]
    pictures = []
    if timed:
        rates, times = [run["examples_per_second"] for run in timed], [run["step_ms"] for run in timed]
        middle = [(each["low"], each["high"]) for each in times]
        pictures += [
            bars("Examples per second", timed, [[rate] for rate in rates], [f"{rate:,.0f}" for rate in rates]),
            bars("Time of a step", timed, [[each["median"]] for each in times], list(map(milliseconds, times)), middle),
        ]
    waits = [run["first_step_seconds"] for run in runs]
    memory = [(run["parameter_bytes"], run["optimizer_bytes"]) for run in runs]
    pictures += [
        bars("Time to the first step", runs, [[wait] for wait in waits], [f"{wait:.2f} s" for wait in waits]),
        bars("Parameters and (pale) optimizer state", runs, memory, [" + ".join(map(size, each)) for each in memory]),
    ]
    return "".join(f'<div class="panel">{picture}</div>' for picture in pictures)


def table(runs: Runs) -> str:
    """The table of all figures."""
    head = "".join(f'<th scope="col">{escape(run_name(run))}</th>' for run in runs)
    body = ""
    for name, meaning, values in table_rows(runs):
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        body += f'<tr><th scope="row">{name}<small>{meaning}</small></th>{cells}</tr>'
    caption = "<caption>All figures, one column a run</caption>"
    return f"<table>{caption}<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"


def batch(run: dict[str, Any]) -> str:
    """How a batch lies on the devices of a run."""
    where = run["batch"]
    whole, one = (", ".join(map(str, where[name])) for name in ("shape", "shard_shape"))
    note = f"{where['sharding']}; inputs [{whole}], of which one device holds [{one}]"
    if where["padding"]:
        note += f"; {len(where['padding'])} rows are padding (pale)"
    return f'<div class="panel"><h3>{run_name(run)}</h3><p class="note">{escape(note)}</p>{batch_rows(run)}</div>'


def source(strategy: str) -> str:
    """The text of the file in `pmapdp/steps` that holds `strategy`."""
    return resources.files("pmapdp.steps").joinpath(f"{strategy}.py").read_text(encoding="utf-8")


def side_by_side(left: str, right: str) -> str:
    """Two files of `pmapdp/steps` beside each other, the lines and words that differ marked."""
    lines = source(left).splitlines(), source(right).splitlines()
    table = HtmlDiff().make_table(*lines, f"steps/{left}.py", f"steps/{right}.py")
    return f'<div class="scroll" tabindex="0">{table}</div>'

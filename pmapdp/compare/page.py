"""The comparison as one HTML file that needs nothing beside itself, and no JavaScript. Its frame is `page.html`."""

from html import escape
from importlib import resources
from string import Template
from typing import Any

from pmapdp.compare import text
from pmapdp.compare.parting_page import parting
from pmapdp.compare.pictures import STRATEGY_COLOURS, curves, devices, legend
from pmapdp.compare.rows import code, row, table, wide_row
from pmapdp.compare.runs import STACKED
from pmapdp.compare.table import summary, verified

OWN = (
    "Your steps, side by side",
    "Steps of your own, by what their lines do. Marked is what the first does not have, and in the first what the "
    "second does not have.",
)
OURS = (
    "One training step, written four ways, side by side",
    "The same job from the same seed: on a single device, and split over several by <code>pmap</code>, by "
    "<code>shard_map</code> and by <code>jit</code> with shardings. Marked is what a single device does not need.",
)


def page(report: dict[str, Any]) -> str:
    """The page of a report: its rows, runs, and what else there is, as HTML."""
    own = report["parting"] is None
    template = Template(resources.files("pmapdp.compare").joinpath("page.html").read_text(encoding="utf-8"))
    title, lead = OWN if own else OURS
    sections = {"ways": "The step, row by row", "figures": "Figures"}
    sections |= {} if own else {"parting": "Where the ways part", "losses": "Losses"}
    sections |= {"limits": "What these figures say"}
    return template.substitute(
        title=title,
        lead=lead,
        facts=escape(summary(report)),
        verified=escape(verified(report["runs"])),
        nav="".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in sections.items()),
        forms="" if own else " Of pmap's stacked form, what its other form does not have is marked.",
        ways=ways(report),
        figures=figures(report["runs"]),
        parting="" if own else parting(report["parting"]),
        losses="" if own else losses(report["runs"]),
    )


def ways(report: dict[str, Any]) -> str:
    """The table with a column for each way and a row for each role."""
    columns, runs = report["columns"], {run["strategy"]: run for run in reversed(report["runs"])}
    groups = []
    for each in report["rows"]:
        why = f"<h3>{escape(text.heading(each['role']))}</h3><p>{escape(each['why'])}</p>"
        cells = [block(each, way, runs[way]) for way in columns]
        if STACKED in runs:
            cells[columns.index("pmap")] += block(each, STACKED, runs[STACKED])
        group = wide_row("role", "th", len(columns), why) + row([runs[way]["name"] for way in columns], cells)
        for called in each["called"]:
            inner = f"<p>Called above: <b>{escape(called['file'])}</b></p>{code(called['lines'])}"
            group += wide_row("called", "td", len(columns), inner)
        groups.append(group)
    heads = [f"<b>{escape(runs[way]['name'])}</b><small>{escape(report['files'][way])}</small>" for way in columns]
    return table(heads, '</tbody><tbody role="rowgroup">'.join(groups), "ways")


def block(row: dict[str, Any], way: str, run: dict[str, Any]) -> str:
    """What one way has in a row: its lines, and what ran below them."""
    lines, ran = row["cells"][way], "".join(map(shown, text.ran(row["below"], run)))
    if way != STACKED:
        return code(lines) + ran
    if any(mark for line in lines for _, mark in line):
        return f"<h4>Stacked, as in old programs</h4>{code(lines)}{ran}"
    return f"<h4>Stacked, as in old programs: the same lines</h4>{'' if row['below'] == 'collectives' else ran}"


def shown(fact: text.Fact) -> str:
    """What the arrays or the compiled program say."""
    picture = devices(fact.parts) if fact.parts else ""
    line = f" <code>{escape(fact.line)}</code>" if fact.line else ""
    return (
        f'<figure class="ran">{picture}<figcaption><b>{escape(fact.head)}</b><br>{escape(fact.detail)}{line}'
        "</figcaption></figure>"
    )


def figures(runs: list[dict[str, Any]]) -> str:
    """The table of figures: a row for each run; and below it what verify finds wrong with steps of the reader's own."""
    columns = ["run", *text.figures(runs[0])]
    body = "".join(
        row(columns, [f"<b>{escape(run['name'])}</b>", *map(escape, text.figures(run).values())]) for run in runs
    )
    wrong = [f"<p><b>{escape(run['name'])}</b>, {escape(each)}</p>" for run in runs for each in run.get("findings", ())]
    return table(columns, body, "figures", "figures") + "".join(wrong)


def losses(runs: list[dict[str, Any]]) -> str:
    """The loss of every run, and beside it how far each is from that of one device."""
    single = runs[0]["losses"]
    drawn = [(run["name"], STRATEGY_COLOURS[run["strategy"]], run["losses"]) for run in runs]
    apart = [(name, colour, [abs(a - c) for a, c in zip(ys, single, strict=True)]) for name, colour, ys in drawn[1:]]
    return f"""<section><h2 id="losses">Losses</h2>
<p>Left: every update of every run. The curves lie over each other, the first drawn widest, so that equal ones show as
stripes of one band. Right: how far each loss is from that of a single device, on a logarithmic scale; an update in
which both are equal to the last bit leaves a gap.</p>{legend(drawn)}
<div class="pair">
<figure>{curves(drawn, "Loss of every update, one curve a run")}<figcaption>Loss</figcaption></figure>
<figure>{curves(apart, "Difference of the loss to that of one device, one curve a run", log=True)}
<figcaption>Difference to one device</figcaption></figure>
</div>
<p>Devices add up in another order than a single device does, so losses and parameters differ by rounding, and the
difference grows with the number of updates, with Adam most of all: where a gradient is hardly more than rounding, its
updates are as large as elsewhere. With <code>--dtype float64</code> the difference nearly vanishes.</p></section>"""

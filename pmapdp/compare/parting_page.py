"""Where the ways part, as HTML: one table to choose from, and below it the lines of each case beside each other."""

from html import escape
from typing import Any

from pmapdp.compare.rows import code, row, table
from pmapdp.compare.text import heading, verdict

COLUMNS = ("case", "the lines that each device runs", "pmap", "shard_map", "jit, with the lines of one device")


def parting(cases: list[dict[str, Any]]) -> str:
    """The section."""
    return f"""<section><h2 id="parting">Where the ways part</h2>
<p>Loss and gradient of a small network beside those of one device, in float64 and on simulated CPU devices: equal, or
how far off. They come from running the lines below the table, to which each case links. These take the parameters
<code>params</code>, a <code>batch</code> and a <code>key</code>, and return loss and gradient. <code>error</code> is
the squared error of each example, and <code>clipped</code> makes a gradient at most 0.1 long.</p>
{overview(cases)}{"".join(map(lines_of, cases))}</section>"""


def overview(cases: list[dict[str, Any]]) -> str:
    """One row a program."""
    body = ""
    for case in cases:
        link = f'<a href="#{anchor(case)}">{escape(case["name"])}</a>'
        for program in case["programs"]:
            results = (program["results"].get("pmap"), program["results"]["shard_map"], case["results"]["jit"])
            body += row(COLUMNS, [link, escape(program["name"]), *map(judged, results)])
    return table(COLUMNS, body, "parting", "figures")


def lines_of(case: dict[str, Any]) -> str:
    """The lines of a case: of one device, and of each program with what differs marked."""
    labels = [
        f"one device, and jit: {escape(case['one_device'])}",
        *(escape(program["name"]) for program in case["programs"]),
    ]
    cells = [column(case, case["under_jit"]), *(column(program, program["why"]) for program in case["programs"])]
    title = f'<h3 id="{anchor(case)}">{escape(heading(case["name"]))}</h3>'
    return title + table(labels, row(labels, cells), anchor(case))


def column(program: dict[str, Any], why: str) -> str:
    """The lines of a program, what they show, and what each way gives and exchanges."""
    items = ""
    for way, found in sorted(program["results"].items()):
        exchanged = ", ".join(f"{each['count']} {each['kind']} ({each['bytes']:,} B)" for each in found["collectives"])
        items += f"<li><b>{way}</b>: {judged(found)}; {exchanged or 'no collective'}</li>"
    return f'{code(program["lines"])}<p>{escape(why)}</p><ul class="ran">{items}</ul>'


def judged(found: dict[str, Any] | None) -> str:
    """Equal or not, as HTML."""
    if found is None:
        return '<span class="none">does not apply</span>'
    said = verdict(found)
    return f'<span class="{"equal" if said == "equal" else "off"}">{escape(said)}</span>'


def anchor(case: dict[str, Any]) -> str:
    """The mark of a case in the page."""
    return "case-" + "-".join("".join(c if c.isalnum() else " " for c in case["name"]).split())

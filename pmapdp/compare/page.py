"""Write a comparison as one HTML file that needs no network and no script.

`page.html` is its template.
"""

from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from rich.filesize import decimal

from pmapdp.compare import pictures, words
from pmapdp.compare.code import align, as_html, colour, find_changes, kind_of

# The differences of code that the page shows: what a reader ports from and to.
PAIRS = (("single", "pmap"), ("pmap", "shard_map"), ("pmap", "jit"), ("single", "jit"))


def make_page(report: dict[str, Any]) -> str:
    """Make the page of a report."""
    runs: dict[str, Any] = {}
    for run in report["runs"]:
        run["words"] = words.describe(run)
        runs.setdefault(run["strategy"], run)  # runs on the most devices come first
    columns = report["columns"]
    for section in report["code"]:
        section["rows"] = align(section["lines"])
    environment = Environment(
        undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page = resources.files("pmapdp.compare").joinpath("page.html")
    template = environment.from_string(page.read_text(encoding="utf-8"))
    return template.render(
        report=report,
        runs=runs,
        changes=list_changes(report["sources"], columns),
        proof=[*runs.values(), *report["wrong"]],
        longest={
            "time": max(run["step_ms"]["high"] for run in report["runs"]),
            "memory": max(sum(run["memory"].values()) for run in report["runs"]),
        },
        words=words,
        pictures=pictures,
        as_html=as_html,
        colour=colour,
        kind_of=kind_of,
        decimal=decimal,
    )


def list_changes(
    sources: dict[str, Any], columns: Sequence[str]
) -> list[dict[str, Any]]:
    """List the changes from one column's source to another's."""
    pairs = [pair for pair in PAIRS if set(pair) <= set(columns)]
    if not pairs:  # your programs: each against the first
        pairs = [(columns[0], name) for name in columns[1:]]
    return [
        {"before": one, "after": two, "lines": find_changes(sources[one], sources[two])}
        for one, two in pairs
    ]

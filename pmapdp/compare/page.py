"""Write a comparison as one HTML file that needs no network and no script. `page.html` is its template."""

from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from rich.filesize import decimal

from pmapdp.compare import words
from pmapdp.compare.code import align, as_html
from pmapdp.compare.pictures import holdings, timeline
from pmapdp.compare.stacked import STACKED


def make_page(report: dict[str, Any]) -> str:
    """Make the page of a report."""
    runs: dict[str, Any] = {}
    for run in report["runs"]:
        run["words"] = words.describe(run)
        runs.setdefault(run["strategy"], run)  # runs on the most devices come first
    columns = report["columns"]
    forms = {"": columns}
    if STACKED in runs:  # stands in the place of the other form of pmap, by a switch
        forms = {
            "replicated": columns,
            "stacked": [STACKED if name == "pmap" else name for name in columns],
        }
    for section in report["code"]:
        lines = section["lines"]
        section["rows"] = {
            kind: align({name: lines[name] for name in names})
            for kind, names in forms.items()
        }
    environment = Environment(
        undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {
        each.__name__: each for each in (as_html, decimal, holdings, timeline)
    }
    template = (
        resources.files("pmapdp.compare")
        .joinpath("page.html")
        .read_text(encoding="utf-8")
    )
    longest = {
        "timeline": max(
            (end for run in runs.values() for *_, end in run.get("timeline", ())),
            default=1.0,
        ),
        "time": max(run["step_ms"]["high"] for run in report["runs"]),
        "memory": max(sum(run["memory"].values()) for run in report["runs"]),
    }
    return environment.from_string(template).render(
        report=report, runs=runs, forms=forms, longest=longest, words=words
    )

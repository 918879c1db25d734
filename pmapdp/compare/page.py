"""Write a comparison as one HTML file that needs no network and no script.

`page.html` is its template.
"""

from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined
from rich.filesize import decimal

from pmapdp.collectives import describe_exchange
from pmapdp.compare import pictures, words
from pmapdp.compare.code import align, as_html, find_changes
from pmapdp.compare.mistakes import load_mistakes
from pmapdp.compare.results import Measurement, Report

# The differences of code that the page shows: what a reader ports from and to. The
# first one is open.
PAIRS = (("pmap", "jit"), ("pmap", "shard_map"), ("single", "pmap"), ("single", "jit"))


def make_page(report: Report) -> str:
    """Make the page of a report."""
    runs_of: dict[str, list[Measurement]] = {name: [] for name in report.columns}
    for run in report.runs:
        runs_of[run.strategy].append(run)
    environment = Environment(
        undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page = resources.files("pmapdp.compare").joinpath("page.html")
    template = environment.from_string(page.read_text(encoding="utf-8"))
    return template.render(
        report=report,
        runs_of=runs_of,
        mistakes=load_mistakes(),
        pairs=choose_pairs(report.columns),
        most_memory=max(sum(run.memory.values()) for run in report.runs),
        describe_exchange=describe_exchange,
        words=words,
        pictures=pictures,
        align=align,
        find_changes=find_changes,
        as_html=as_html,
        decimal=decimal,
    )


def choose_pairs(columns: Sequence[str]) -> list[tuple[str, str]]:
    """Choose the columns between which the page shows what changes."""
    pairs = [pair for pair in PAIRS if set(pair) <= set(columns)]
    # Your programs, or strategies of your own: each against the first.
    return pairs or [(columns[0], name) for name in columns[1:]]

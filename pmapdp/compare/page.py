"""Write a comparison as one HTML file that needs no network and no script.

`strategies.html` and `programs.html` are its two templates. Both fill in the frame
`page.html`, in the look of `page.css`, with what `parts.html` has for both.
`pictures.html` draws, and `code.html` shows lines of code.
"""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from rich.filesize import decimal

from pmapdp.collectives import describe_exchange
from pmapdp.compare import words
from pmapdp.compare.diff import align, find_changes, find_new_words
from pmapdp.compare.pictures import colour_of, difference_curves, loss_curves
from pmapdp.compare.results import Comparison, Measurement

COLLECTIVE = r"\b(pmean|psum|psum_scatter|all_gather|all_to_all|ppermute|pmax|pmin)\b"
# What a line of code does, by its class in HTML. The first that fits counts.
LINES = {
    "all-reduce dashed": r"\s*# the compiler adds the all-reduce",
    "comment": r"\s*(#|\"\"\")",
    # The all-reduce of the gradients takes gradients, or returns them.
    "all-reduce": rf".*{COLLECTIVE}\(.*(grad|one_device)|[^=]*grad[^=]*=.*{COLLECTIVE}",
    "sums": r".*\b(gradient_sums|compute_sums|value_and_grad|grad)\(",
    "weights": r".*\b(update|apply_updates|apply_gradients)\(",
}


def make_page(comparison: Comparison) -> str:
    """Make the page of a comparison."""
    runs_of: dict[str, list[Measurement]] = {name: [] for name in comparison.columns}
    for run in comparison.runs:
        runs_of[run.strategy].append(run)
    template = load_template("programs.html")
    if comparison.config:
        template = load_template("strategies.html")
    return template.render(
        comparison=comparison,
        runs_of=runs_of,
        main_runs=[runs[0] for runs in runs_of.values()],  # on the most devices
        reference=comparison.runs[0],
        mistakes=load_data("mistakes.toml")["mistakes"],
        most_memory=max(sum(run.memory.values()) for run in comparison.runs),
    )


@cache
def load_template(name: str) -> Template:
    """Load a template of this folder, with the functions that it calls."""
    environment = Environment(
        loader=PackageLoader("pmapdp", "compare"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "words": words,
        "colour_of": colour_of,
        "loss_curves": loss_curves,
        "difference_curves": difference_curves,
        "describe_exchange": describe_exchange,
        "align": align,
        "find_changes": find_changes,
        "as_html": as_html,
        "class_of": class_of,
        "colour": colour,
        "find_new_words": find_new_words,
        "decimal": decimal,
    }
    return environment.get_template(name)


def load_data(name: str) -> dict[str, Any]:
    """Read a TOML file of this folder, whose head says what it holds."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return tomllib.loads(text)


def as_html(lines: Sequence[str], others: Sequence[str] | None = None) -> Markup:
    """Colour lines of Python, and mark the words that `others` lack."""
    template = load_template("code.html")
    return Markup(template.render(lines=join_comments(lines), others=others))


def join_comments(lines: Sequence[str]) -> list[str]:
    """Join the lines of a comment, so that it wraps as a paragraph does."""
    joined: list[str] = []
    for line in lines:
        text = line.lstrip()
        if text.startswith("#") and joined and joined[-1].lstrip().startswith("#"):
            joined[-1] += text.removeprefix("#")
        else:
            joined.append(line)
    return joined


def class_of(line: str) -> str:
    """Return the class of a line in HTML, or the empty string."""
    for name, pattern in LINES.items():
        if re.match(pattern, line):
            return name
    return ""


def colour(text: str) -> Markup:
    """Colour a piece of Python."""
    coloured = highlight(text, PythonLexer(), HtmlFormatter(nowrap=True))
    return Markup(coloured.rstrip("\n"))

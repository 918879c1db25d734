"""Set sources side by side, and show what changes from one to the other."""

import difflib
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from pmapdp.compare.results import Line

COLLECTIVE = r"\b(pmean|psum|psum_scatter|all_gather|all_to_all|ppermute|pmax|pmin)\b"
# The all-reduce of the gradients takes gradients, or returns them.
OF_GRADIENTS = re.compile(rf"{COLLECTIVE}\(.*grad|^[^=]*grad[^=]*=.*{COLLECTIVE}")


class Change(NamedTuple):
    """A line of a difference.

    Attributes:
        sign: " ", "-" or "+", or "…" in place of equal lines.
        before, after: its number in each file.
        text: its text.
    """

    sign: str
    before: int | None
    after: int | None
    text: str


class Cell(NamedTuple):
    """Lines of neighbouring columns that have the same ones."""

    names: list[str]
    lines: Sequence[str]


def match(before: Sequence[str], after: Sequence[str]) -> difflib.SequenceMatcher[str]:
    """Match two sources, but not by a bracket or an empty line alone."""
    return difflib.SequenceMatcher(
        lambda line: not re.search(r"\w", line), before, after, False
    )


def align(columns: Mapping[str, Sequence[str]]) -> list[list[Cell]]:
    """Align the columns by the lines that all of them have.

    Returns:
        Rows of cells. A row that is the same in all columns has one cell.
    """
    first, *others = columns
    base = columns[first]
    # {number of a line in the first column: its number in this column}
    numbers = {first: {index: index for index in range(len(base))}}
    for name in others:
        numbers[name] = {}
        for start, begin, size in match(base, columns[name]).get_matching_blocks():
            for offset in range(size):
                numbers[name][start + offset] = begin + offset
    common = set(numbers[first]).intersection(*numbers.values())

    rows: list[list[Cell]] = []
    same: list[str] = []
    done = dict.fromkeys(columns, 0)
    for index in [*sorted(common), len(base)]:
        between = {}
        for name, lines in columns.items():
            stop = numbers[name].get(index, len(lines))
            between[name] = lines[done[name] : stop]
            done[name] = stop + 1
        if any(between.values()) or index == len(base):
            if same:
                rows.append([Cell(list(columns), same)])
            same = []
        if any(between.values()):
            neighbours = groupby(columns, key=between.__getitem__)
            rows.append([Cell(list(names), lines) for lines, names in neighbours])
        if index < len(base):
            same.append(base[index])
    return rows


def find_changes(before: Sequence[Line], after: Sequence[Line]) -> list[Change]:
    """List what comes out of one source and into another, with two lines around it."""
    matcher = match([line.text for line in before], [line.text for line in after])
    changes: list[Change] = []
    for group in matcher.get_grouped_opcodes(2):
        if changes:
            changes.append(Change("…", None, None, ""))
        for kind, start, stop, begin, end in group:
            removed = before[start:stop]
            added = after[begin:end]
            if kind == "equal":
                for old, new in zip(removed, added, strict=True):
                    changes.append(Change(" ", old.number, new.number, new.text))
                continue
            changes += [Change("-", line.number, None, line.text) for line in removed]
            changes += [Change("+", None, line.number, line.text) for line in added]
    return changes


def kind_of(line: str) -> str:
    """Return the kind of a line: comment, reduce, or the empty string."""
    if line.lstrip().startswith(("#", '"""')):
        return "comment"
    return "reduce" if OF_GRADIENTS.search(line) else ""


def join_comments(lines: Sequence[str]) -> list[str]:
    """Join the lines of a comment, so that it wraps as a paragraph does."""
    joined: list[str] = []
    for line in lines:
        is_next = joined and joined[-1].lstrip().startswith("#")
        if is_next and line.lstrip().startswith("#"):
            joined[-1] += line.lstrip().removeprefix("#")
        else:
            joined.append(line)
    return joined


def as_html(lines: Sequence[str]) -> Markup:
    """Colour lines of Python. Each wraps at spaces, below its own beginning.

    The all-reduce of the gradients has a ground that nothing else on the page has.
    """
    html = Markup("")
    for line in join_comments(lines):
        indent = len(line) - len(line.lstrip())
        html += Markup('<div class="line {}" style="--i:{}">{}</div>').format(
            kind_of(line), indent, colour(line.strip())
        )
    return Markup("<code>{}</code>").format(html)


def colour(line: str) -> Markup:
    """Colour the words of a line of Python."""
    if not line:
        return Markup("&nbsp;")
    return Markup(
        highlight(line, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n")
    )

"""Set sources side by side, and show what changes from one to the other."""

import difflib
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

COLLECTIVE = r"\b(pmean|psum|psum_scatter|all_gather|all_to_all|ppermute|pmax|pmin)\b"
# A line is of the first kind whose words it has. The all-reduce of the gradients has a
# colour that nothing else on the page has.
WRAPPER = (
    r"\b(pmap|shard_map|jit|filter_pmap|in_axes|out_axes|in_specs|out_specs"
    r"|in_shardings|out_shardings)\b"
)
PLACING = (
    r"\b(device_put|NamedSharding|SingleDeviceSharding|Mesh|make_mesh|place|replicate"
    r"|shard|reshape|stack)\b"
)
KINDS = {
    "reduce": rf"(?=.*{COLLECTIVE})(?=.*grad)",
    "wrap": WRAPPER,
    "place": PLACING,
}


class Change(NamedTuple):
    """A line of a difference.

    Attributes:
        sign: " ", "-" or "+".
        before, after: its number in each source.
        line: its text.
    """

    sign: str
    before: int | str
    after: int | str
    line: str


def align(
    columns: Mapping[str, Sequence[str]],
) -> list[tuple[bool, dict[str, list[str]]]]:
    """Align the columns with the first.

    Equal lines stand at one height, and others in the place of what they replace.

    Returns:
        Rows of (is it the same in all columns?, the lines of each column).
    """
    first, *others = columns
    base = columns[first]
    # A gap, a line, a gap, a line, ..., a gap. New lines of other columns go to the
    # gaps.
    cells: list[dict[str, list[str]]] = [{first: []}]
    for line in base:
        cells += [{first: [line]}, {first: []}]
    for other in others:
        for row in cells:
            row[other] = []
        matcher = difflib.SequenceMatcher(None, base, columns[other], False)
        for _, start, stop, begin, end in matcher.get_opcodes():
            rows = range(2 * start + 1, 2 * stop, 2) or [2 * start]
            for number, line in enumerate(columns[other][begin:end]):
                cells[rows[min(number, len(rows) - 1)]][other].append(line)

    def is_same(row: dict[str, list[str]]) -> bool:
        return all(lines == row[first] for lines in row.values())

    aligned = []
    filled = [row for row in cells if any(row.values())]
    for same, group in groupby(filled, is_same):
        joined: dict[str, list[str]] = {name: [] for name in columns}
        for row in group:
            for name in columns:
                joined[name] += row[name]
        aligned.append((same, joined))
    return aligned


def find_changes(one: dict[str, Any], other: dict[str, Any]) -> list[Change]:
    """List what comes out of one source and into another, with two lines around it.

    A source has `lines`, and `first`, the number of its first line in its file.
    """
    before = one["lines"]
    after = other["lines"]
    old_first = one["first"]
    new_first = other["first"]
    matcher = difflib.SequenceMatcher(None, before, after, False)
    changes: list[Change] = []
    for group in matcher.get_grouped_opcodes(2):
        if changes:
            changes.append(Change("…", "", "", ""))
        for kind, start, stop, begin, end in group:
            if kind == "equal":
                for old, new in zip(range(start, stop), range(begin, end), strict=True):
                    numbers = (old + old_first, new + new_first)
                    changes.append(Change(" ", *numbers, before[old]))
                continue
            changes += [
                Change("-", old + old_first, "", before[old])
                for old in range(start, stop)
            ]
            changes += [
                Change("+", "", new + new_first, after[new])
                for new in range(begin, end)
            ]
    return changes


def kind_of(line: str) -> str:
    """Return the kind of a line: reduce, wrap, place, or the empty string."""
    if line.lstrip().startswith(("#", '"""')):
        return "comment"
    for kind, words in KINDS.items():
        if re.search(words, line):
            return kind
    return ""


def as_html(lines: Sequence[str], plain: bool = False) -> Markup:
    """Colour lines of Python. Each wraps at spaces, below its own beginning.

    `plain` marks only the all-reduce.
    """
    html = Markup("")
    for line in lines:
        kind = kind_of(line)
        if plain and kind in ("wrap", "place"):
            kind = ""
        indent = len(line) - len(line.lstrip())
        html += Markup('<div class="line {}" style="--i:{}">{}</div>').format(
            kind, indent, colour(line.strip())
        )
    return Markup("<code>{}</code>").format(html)


def colour(line: str) -> Markup:
    """Colour the words of a line of Python."""
    if not line:
        return Markup("&nbsp;")
    return Markup(
        highlight(line, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n")
    )

"""Two files of `pmapdp/steps` side by side, the lines and words that differ marked."""

import difflib
import re
from collections.abc import Iterator
from html import escape
from importlib import resources
from itertools import zip_longest


def source(strategy: str) -> str:
    """The text of the file in `pmapdp/steps` that holds `strategy`."""
    return resources.files("pmapdp.steps").joinpath(f"{strategy}.py").read_text(encoding="utf-8")


def side_by_side(left: str, right: str, names: tuple[str, str]) -> str:
    """An HTML table of two texts, equal lines beside each other.

    Args:
        left: the first text.
        right: the second one.
        names: what to call them.
    """
    rows = "".join(aligned_rows(left.splitlines(), right.splitlines()))
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    caption = f"<caption>What changes from {escape(names[0])} to {escape(names[1])}</caption>"
    return f'<table class="diff">{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def aligned_rows(left: list[str], right: list[str]) -> Iterator[str]:
    """A table row for each pair of lines; where one side has none, its cell is empty."""
    for kind, l1, l2, r1, r2 in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for old, new in zip_longest(left[l1:l2], right[r1:r2]):
            if kind == "equal":
                yield f'<tr><td>{code(escape(old))}</td><td class="same">{code(escape(new))}</td></tr>'
            else:
                before, after = marked(old or "", new or "")
                yield f"<tr>{cell('del', old, before)}{cell('ins', new, after)}</tr>"


def cell(tag: str, line: str | None, marked_line: str) -> str:
    """A cell with a changed line, or an empty one."""
    if line is None:
        return '<td class="none"></td>'
    return f'<td class="{tag}">{code(f"<{tag}>{marked_line}</{tag}>")}</td>'


def code(markup: str) -> str:
    """Markup in fixed-width letters; a blank keeps an empty line as high as the others."""
    return f"<code>{markup or ' '}</code>"


def marked(old: str, new: str) -> tuple[str, str]:
    """Both lines as HTML, with the words that are in one alone in `<mark>`; lines with little in common have none."""
    words = [re.findall(r"\w+|\s+|.", line) for line in (old, new)]
    matcher = difflib.SequenceMatcher(None, words[0], words[1], autojunk=False)
    if matcher.ratio() < 0.5:
        return escape(old), escape(new)
    before: list[str] = []
    after: list[str] = []
    for kind, l1, l2, r1, r2 in matcher.get_opcodes():
        for pieces, part in ((before, words[0][l1:l2]), (after, words[1][r1:r2])):
            markup = escape("".join(part))
            pieces.append(markup if kind == "equal" or not markup else f"<mark>{markup}</mark>")
    return "".join(before), "".join(after)

"""Tables and lines of code as HTML. Roles are named because a table that is folded is none to screen readers."""

from collections.abc import Sequence
from html import escape

from pmapdp.compare.lines import Marked, unindented


def table(labels: Sequence[str], body: str, heading: str, kind: str = "") -> str:
    """A table with a head of these labels (HTML), which the element with the id `heading` names."""
    head = "".join(f'<th role="columnheader" scope="col">{label}</th>' for label in labels)
    return (
        f'<table role="table" class="fold {kind}" aria-labelledby="{heading}"><thead role="rowgroup"><tr role="row">'
        f'{head}</tr></thead><tbody role="rowgroup">{body}</tbody></table>'
    )


def row(labels: Sequence[str], cells: Sequence[str]) -> str:
    """A row of cells (HTML), each of which says on a narrow page which column it is of."""
    inner = "".join(
        f'<td role="cell" data-label="{escape(label)}">{cell}</td>' for label, cell in zip(labels, cells, strict=True)
    )
    return f'<tr role="row">{inner}</tr>'


def wide_row(kind: str, tag: str, columns: int, content: str) -> str:
    """A row of one cell over all columns; with the tag `th` a heading of the rows below it."""
    role = 'role="rowheader" scope="rowgroup"' if tag == "th" else 'role="cell"'
    return f'<tr role="row" class="{kind}"><{tag} {role} colspan="{columns}">{content}</{tag}></tr>'


def code(lines: Sequence[Marked]) -> str:
    """Lines of source; one that does not fit its column is wrapped below its own beginning."""
    if not lines:
        return '<p class="none">Nothing is written for it.</p>'
    shown = ""
    for spaces, line in map(unindented, lines):
        pieces = (f"<mark>{escape(piece)}</mark>" if mark and piece else escape(piece) for piece, mark in line)
        shown += f'<div style="--i:{spaces}">{"".join(pieces)}</div>'
    return f'<code class="lines">{shown}</code>'

"""Set sources beside each other: lines that all have stand once, and where they differ each column has its own."""

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

# What a line does, by the words in it. The all-reduce has a colour of its own everywhere on the page.
KINDS = {
    "reduce": r"\b(pmean|psum|psum_scatter|all_gather|all_to_all|ppermute|pmax|pmin)\b",
    "wrap": r"\b(pmap|shard_map|jit|filter_pmap|in_axes|out_axes|in_specs|out_specs|in_shardings|out_shardings)\b",
    "place": r"\b(device_put|NamedSharding|SingleDeviceSharding|Mesh|make_mesh|place|replicate|shard|reshape|stack)\b",
}


class Row(NamedTuple):
    """The lines of each column that stand at one height. `same`: all columns have them."""

    same: bool
    cells: dict[str, list[str]]


class Plain(ast.NodeTransformer):
    """Take docstrings and types away."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Take them from a function, and from the functions inside it."""
        node.returns = None
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            argument.annotation = None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Make `x: int = 1` a plain assignment."""
        return ast.Assign([node.target], node.value, lineno=node.lineno) if node.value else node


def plain_lines(*nodes: ast.AST) -> list[str]:
    """Write nodes as Python without comments, docstrings and types."""
    return [line for node in nodes for line in ast.unparse(Plain().visit(node)).splitlines()]


def align(columns: Mapping[str, Sequence[str]]) -> list[Row]:
    """Align the columns with the first: equal lines at one height, others in the place of those that they replace."""
    first, *others = columns
    base = columns[first]
    cells: list[dict[str, list[str]]] = [{first: []}]  # a gap, a line, a gap, a line, ..., a gap
    for line in base:
        cells += [{first: [line]}, {first: []}]
    for other in others:
        for row in cells:
            row[other] = []
        for _, start, stop, begin, end in difflib.SequenceMatcher(None, base, columns[other], False).get_opcodes():
            rows = range(2 * start + 1, 2 * stop, 2) or [2 * start]  # new lines stand in the gap
            for number, line in enumerate(columns[other][begin:end]):
                cells[rows[min(number, len(rows) - 1)]][other].append(line)
    return [Row(all(lines == row[first] for lines in row.values()), row) for row in cells if any(row.values())]


def kind_of(line: str) -> str:
    """Tell what a line does: reduce, wrap, place, or nothing of these."""
    return next((kind for kind, words in KINDS.items() if re.search(words, line)), "")


def as_html(lines: Sequence[str], plain: bool = False) -> str:
    """Colour lines of Python. Each wraps at spaces, below its own beginning. `plain`: what they do isn't marked."""
    shown = []
    for line in lines:
        body = line.lstrip()
        kind = "" if plain and kind_of(line) != "reduce" else kind_of(line)
        coloured = highlight(body, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n") if body else escape(line)
        shown.append(f'<div class="line {kind}" style="--i:{len(line) - len(body)}">{coloured}</div>')
    return f"<code>{''.join(shown)}</code>"


def as_rows(columns: Mapping[str, Sequence[str]], labels: Mapping[str, str]) -> str:
    """Lay aligned columns out in a grid: what all have goes across, and each difference stands in its column."""
    rows: list[Any] = []
    for row in align(columns):
        if rows and row.same == rows[-1].same:  # lines of one kind in a row belong to one cell
            rows[-1] = Row(row.same, {name: rows[-1].cells[name] + row.cells[name] for name in row.cells})
        else:
            rows.append(row)
    html = []
    for row in rows:
        if row.same:
            html.append(f'<div class="all">{as_html(next(iter(row.cells.values())), plain=True)}</div>')
            continue
        for name, lines in row.cells.items():
            cell = as_html(lines) if lines else '<span class="none">nothing</span>'
            html.append(f'<div class="cell" data-name="{escape(labels[name])}">{cell}</div>')
    return "".join(html)

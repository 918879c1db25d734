"""Set sources side by side. A line that all have stands once. If they differ, each column has its own."""

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from itertools import groupby

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

# A line is of the first kind of which it has a word. The all-reduce has a colour of its
# own everywhere on the page.
KINDS = {
    "reduce": r"\b(pmean|psum|psum_scatter|all_gather|all_to_all|ppermute|pmax|pmin)\b",
    "wrap": r"\b(pmap|shard_map|jit|filter_pmap|in_axes|out_axes|in_specs|out_specs|in_shardings|out_shardings)\b",
    "place": r"\b(device_put|NamedSharding|SingleDeviceSharding|Mesh|make_mesh|place|replicate|shard|reshape|stack)\b",
}


class Plain(ast.NodeTransformer):
    """Take docstrings and types away."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Take them from a function, and from the functions inside it."""
        node.returns = None
        for argument in [
            *node.args.posonlyargs,
            *node.args.args,
            *node.args.kwonlyargs,
        ]:
            argument.annotation = None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Make `x: int = 1` a plain assignment."""
        return (
            ast.Assign([node.target], node.value, lineno=node.lineno)
            if node.value
            else node
        )


def plain_lines(*nodes: ast.AST) -> list[str]:
    """Write nodes as Python without comments, docstrings and types."""
    return [
        line for node in nodes for line in ast.unparse(Plain().visit(node)).splitlines()
    ]


def align(
    columns: Mapping[str, Sequence[str]],
) -> list[tuple[bool, dict[str, list[str]]]]:
    """Align the columns with the first: rows of (is it the same in all columns?, the lines of each column).

    Equal lines stand at one height, and others in the place of what they replace.
    """
    first, *others = columns
    base = columns[first]
    cells: list[dict[str, list[str]]] = [
        {first: []}
    ]  # a gap, a line, a gap, a line, ..., a gap
    for line in base:
        cells += [{first: [line]}, {first: []}]
    for other in others:
        for row in cells:
            row[other] = []
        for _, start, stop, begin, end in difflib.SequenceMatcher(
            None, base, columns[other], False
        ).get_opcodes():
            rows = range(2 * start + 1, 2 * stop, 2) or [
                2 * start
            ]  # new lines stand in the gap
            for number, line in enumerate(columns[other][begin:end]):
                cells[rows[min(number, len(rows) - 1)]][other].append(line)
    rows_of_lines = [row for row in cells if any(row.values())]
    found = []
    for same, group in groupby(
        rows_of_lines, lambda row: all(lines == row[first] for lines in row.values())
    ):
        joined = list(group)
        found.append(
            (
                same,
                {
                    name: [line for row in joined for line in row[name]]
                    for name in columns
                },
            )
        )
    return found


def kind_of(line: str) -> str:
    """Return the kind of a line: reduce, wrap, place, or the empty string."""
    return next((kind for kind, words in KINDS.items() if re.search(words, line)), "")


def as_html(lines: Sequence[str], plain: bool = False) -> Markup:
    """Colour lines of Python. Each wraps at spaces, below its own beginning. `plain` marks only the all-reduce."""
    html = Markup("")
    for line in lines:
        body = line.lstrip()
        kind = "" if plain and kind_of(line) != "reduce" else kind_of(line)
        coloured = Markup(
            highlight(body, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n")
            if body
            else ""
        )
        html += Markup('<div class="line {}" style="--i:{}">{}</div>').format(
            kind, len(line) - len(body), coloured
        )
    return Markup("<code>{}</code>").format(html)

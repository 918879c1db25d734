"""Find the constructs of pmap in a program, node by node of its syntax trees.

A construct has a row in `ROWS`. It's found by the names and keywords in its row, or by
a function in `TESTS`.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

from pmapdp.port.constructs import TESTS, function_name, names_in
from pmapdp.port.names import Node, Program
from pmapdp.port.pmaps import keywords_of, read_options
from pmapdp.port.rows import ROWS, Row, row_of_path

BROKEN = ("gone", "fails", "wrong")
EXPECTS_MISSING = re.compile(
    "attributeerror|importerror|modulenotfounderror|hasattr|version|type_checking"
)
Line = dict[str, Any]  # a line of the program, and what its row says


def find_constructs(program: Program, has_pmap: bool) -> list[Line]:
    """Find a program's constructs of pmap.

    Args:
        program: Its files, and what their names stand for.
        has_pmap: If it calls pmap. Otherwise only broken and old lines are found.
    """
    lines: dict[tuple[str, int, str], Line] = {}
    for path, tree in program.files.items():
        for node in ast.walk(tree):
            for name in constructs_of(program, node):
                if is_listed(program, name, node, has_pmap):
                    line = describe_line(path, node, ROWS[name])
                    lines.setdefault((path, line["line"], name), line)
    return [lines[key] for key in sorted(lines)]


def describe_line(path: str, node: ast.AST, row: Row) -> Line:
    """Return a line with a construct, and what its row says."""
    if isinstance(node, ast.withitem):
        node = node.context_expr
    return {
        "path": path,
        "line": getattr(node, "lineno", 0),
        "code": " ".join(ast.unparse(node).split()),
        "construct": row.name,
        "link": f"docs/constructs.md#{row.name}",
        "status": row.status,
        "today": row.today,
        "shard_map": row.shard_map,
        "jit": row.jit,
    }


def constructs_of(program: Program, node: ast.AST) -> Iterator[str]:
    """Find the constructs of one node, by the names of their rows."""
    name = construct_of_name(program, node)
    if name:
        yield name
    if isinstance(node, ast.Call):
        yield from constructs_of_keywords(program, node)
    for name, test in TESTS.get(type(node), {}).items():
        if test(program, node):
            yield name


def construct_of_name(program: Program, node: ast.AST) -> str:
    """Find what a name stands for where it's read: `jax.lax.pmean`, not its parts.

    An import counts only if the name is gone. Others are found where they're used.
    """
    if isinstance(node, ast.alias):
        name = row_of_path(program.imported_path(node))
        if name and ROWS[name].status == "gone":
            return name
    is_part = isinstance(program.parent(node), ast.Attribute)
    if isinstance(node, ast.Attribute | ast.Name) and not is_part:
        return row_of_path(program.path_of(node))
    return ""


def constructs_of_keywords(program: Program, call: ast.Call) -> Iterator[str]:
    """Find the keywords of a call, and for pmap of the partials around it."""
    function = function_name(program, call)
    keywords = read_options(program, call)
    if keywords is None:
        keywords = keywords_of(call)
    else:
        function = "pmap"
    for row in ROWS.values():
        if not keywords.keys().isdisjoint(row.keywords.get(function, [])):
            yield row.name


def is_listed(program: Program, name: str, node: ast.AST, has_pmap: bool) -> bool:
    """Return False for a gone name that's guarded, and for what needs a pmap."""
    if ROWS[name].status == "gone":
        return not is_guarded(program, node)
    # A program without pmap may use what isn't broken as it likes.
    return has_pmap or ROWS[name].status in (*BROKEN, "old")


def is_guarded(program: Program, node: Node) -> bool:
    """Return True if the program expects that a name is gone.

    Then it's in a `try` that catches the error, or behind a test of the version.
    """
    guard: Any = program.around(node, (ast.Try, ast.If, ast.IfExp, ast.ExceptHandler))
    if guard is None:
        return False
    if isinstance(guard, ast.ExceptHandler):  # its `try` doesn't catch what it raises
        return is_guarded(program, program.around(guard, ast.Try))
    conditions: list[Any] = [getattr(guard, "test", None)]
    if isinstance(guard, ast.Try):
        conditions = [handler.type for handler in guard.handlers]
    is_expected = EXPECTS_MISSING.search(names_in(program, ast.List(conditions)))
    return bool(is_expected) or is_guarded(program, guard)

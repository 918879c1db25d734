"""Find the constructs of pmap in a program, node by node of its syntax trees.

A construct has a row in `ROWS`. It's found by the names and keywords in its row, or by
a function in `RECOGNIZERS`.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

from pmapdp.port.constructs import RECOGNIZERS, function_name, names_in
from pmapdp.port.names import FUNCTIONS, Node, Program
from pmapdp.port.pmaps import (
    Pmap,
    find_functions_on_devices,
    is_pmap,
    keywords_of,
)
from pmapdp.port.rows import ROW_OF_NAME, ROWS, Row, row_of_path

BROKEN = ("gone", "fails", "wrong")
EXPECTS_MISSING = re.compile(
    "attributeerror|importerror|modulenotfounderror|hasattr|version|type_checking"
)
Line = dict[str, Any]  # a line of the program, and what its row says


def find_constructs(program: Program, pmaps: list[Pmap]) -> list[Line]:
    """Find a program's constructs of pmap.

    Args:
        program: Its files, and what their names stand for.
        pmaps: Its uses of pmap. Without any, only broken and old lines are found.
    """
    functions_on_devices = find_functions_on_devices(program, pmaps)
    lines: dict[tuple[str, int, str], Line] = {}
    for path, tree in program.files.items():
        for node in ast.walk(tree):
            for name in constructs_of(program, node):
                is_on_device = (
                    program.enclosing(node, FUNCTIONS) in functions_on_devices
                )
                if name == "first-copy" and is_on_device:
                    continue  # there, arrays have no device axis
                if is_listed(program, name, node, has_pmap=bool(pmaps)):
                    line = describe_line(path, node, ROWS[name])
                    lines.setdefault((path, line["line"], name), line)
    return [lines[key] for key in sorted(lines)]


def describe_line(path: str, node: Any, row: Row) -> Line:
    """Return a line with a construct, and what its row says."""
    if isinstance(node, ast.withitem):
        node = node.context_expr
    return {
        "path": path,
        "line": node.lineno,
        "code": ast.unparse(node),
        "construct": row.name,
        "link": f"docs/constructs.md#{row.name}",
        "status": row.status,
        "today": row.today,
        "shard_map": row.shard_map,
        "jit": row.jit,
    }


def constructs_of(program: Program, node: ast.AST) -> Iterator[str]:
    """Yield the names of the rows that a node belongs to."""
    name = row_of_node(program, node)
    if name:
        yield name
    if isinstance(node, ast.Call):
        yield from rows_of_keywords(program, node)
    for name, is_construct in RECOGNIZERS.get(type(node), {}).items():
        if is_construct(program, node):
            yield name


def row_of_node(program: Program, node: ast.AST) -> str:
    """Return the row of a name where it's read: of `jax.lax.pmean`, not of its parts.

    An import counts only if the name is gone. Others are found where they're used.
    """
    if isinstance(node, ast.alias):
        name = row_of_path(program.imported_path(node))
        if name and ROWS[name].status == "gone":
            return name
    is_part = isinstance(program.parent(node), ast.Attribute)
    if isinstance(node, ast.Attribute | ast.Name) and not is_part:
        attribute = getattr(node, "attr", "")
        return row_of_path(program.path_of(node) or f".{attribute}")
    return ""


def rows_of_keywords(program: Program, call: ast.Call) -> Iterator[str]:
    """Yield the rows of a call's keywords. In a partial of pmap they're pmap's, too."""
    function = function_name(program, call)
    if is_pmap(program, call) or is_pmap(program, call.func):
        function = "pmap"
    for keyword in keywords_of(call):
        name = f"{function}({keyword})"
        if name in ROW_OF_NAME:
            yield ROW_OF_NAME[name]


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
    conditions: list[ast.expr] = []
    while node:
        if isinstance(node, ast.If | ast.IfExp):
            conditions.append(node.test)
        if isinstance(node, ast.Try):
            conditions += [handler.type for handler in node.handlers if handler.type]
        node = program.parent(node)
    names = [names_in(program, condition) for condition in conditions]
    return EXPECTS_MISSING.search(" ".join(names)) is not None

"""Find the constructs of pmap in a program, node by node of its syntax tree.

`table.toml` has a row for each construct, with the names by which it's found. What
depends on the arguments of a call is in `calls`.
"""

import ast
import importlib
import importlib.util
import re
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pmapdp.port.calls import (
    divides_loss,
    names_in,
    names_of_arguments,
    rows_of_call,
)
from pmapdp.port.pmaps import Use, is_stacked, read_pmap
from pmapdp.port.read import Module, path_of, remember, resolve

TABLE: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("table.toml").read_text()
)
STATUS = {row: entries["status"] for row, entries in TABLE.items()}
ROW_OF_NAME: dict[str, str] = {}
for row_name, entries in TABLE.items():
    ROW_OF_NAME |= dict.fromkeys(entries.get("names", ()), row_name)
BROKEN = ("gone", "fails", "wrong")
MESHES = ("jax.make_mesh", "jax.sharding.Mesh", "jax.interpreters.pxla.Mesh")


def rows_of(node: Any) -> Iterator[str]:
    """Find the constructs of one node."""
    if isinstance(node, ast.alias):
        is_from = isinstance(node.parent, ast.ImportFrom)
        row = row_of_path(path_of(node) if is_from else node.name)
        if STATUS.get(row) == "gone":
            yield row
    elif isinstance(node, ast.Attribute | ast.Name):
        yield row_of_use(node)
    elif isinstance(node, ast.Call):
        for name in names_of_arguments(node):
            yield ROW_OF_NAME.get(name, "")
        yield from rows_of_call(node)
    elif is_first_row(node):
        yield "first-copy"
    elif divides_loss(node):
        yield "divided-loss"
    elif is_entered_mesh(node):
        yield "with-mesh"


def row_of_use(node: Any) -> str:
    """Find the row of a name that is read, `jax.lax.pmean`, and not of its parts."""
    if isinstance(node.parent, ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return ""
    name = getattr(node, "attr", "")
    return ROW_OF_NAME.get(f"?.{name}") or row_of_path(path_of(node))


def is_first_row(node: Any) -> bool:
    """Return True for `[0]` of what a pmapped function returned."""
    is_first = isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "0"
    return is_first and is_stacked(node.value)


def is_entered_mesh(node: Any) -> bool:
    """Return True for the `mesh` of `with mesh:`."""
    manager = resolve(getattr(node, "context_expr", None))
    return path_of(getattr(manager, "func", None)) in MESHES


@remember
def row_of_path(path: str) -> str:
    """Find the row of a dotted path or of its beginning.

    It's "gone" if the installed libraries lack the name.
    """
    parts = path.split(".")
    for number in range(len(parts), 1, -1):
        row = ROW_OF_NAME.get(".".join(parts[:number]))
        if row:
            return row
    is_known = parts[0] in ("jax", "flax", "optax")
    return "gone" if is_known and is_missing(path) else ""


def is_missing(path: str) -> bool:
    """Return True if the installed JAX, Flax or Optax lacks a name.

    A module that's there, and needs another library, isn't missing.
    """
    module, *names = path.split(".")
    with warnings.catch_warnings(action="ignore"):
        value: Any = importlib.import_module(module)
        for name in names:
            module = f"{module}.{name}"
            if not hasattr(value, name):
                try:
                    importlib.import_module(module)
                except ModuleNotFoundError as error:
                    return module.startswith(error.name or module)
                except ImportError:  # the module is there, and needs another library
                    return False
            value = getattr(value, name)
    return False


def is_guarded(node: Any) -> bool:
    """Return True if the program expects that a name is gone.

    Then it's in a `try` that catches the error, or behind a test of the version.
    """
    child = node
    node = node.parent
    while node is not None:
        if isinstance(node, ast.Try) and child in node.body:
            caught = " ".join(names_in(handler.type) for handler in node.handlers)
            if re.search("AttributeError|ImportError|ModuleNotFoundError", caught):
                return True
        test = names_in(getattr(node, "test", None))
        if re.search("hasattr|version|TYPE_CHECKING", test):
            return True
        child = node
        node = node.parent
    return False


def is_listed(row: str, node: Any, has_pmap: bool) -> bool:
    """Return False for a gone name that's guarded, and for what needs a pmap."""
    if STATUS[row] == "gone":
        return not is_guarded(node)
    # A program without pmap may use what isn't broken as it likes.
    return has_pmap or STATUS[row] in (*BROKEN, "old")


def find(files: dict[str, Module]) -> tuple[list[dict[str, Any]], list[Use]]:
    """Find a program's constructs of pmap.

    Args:
        files: The program's modules by path, from `pmapdp.port.read.read_program`.

    Returns:
        (lines, uses): a dictionary for each construct, with its `path`, `line` and
        `code`, its `status` with this JAX and what to write `today`, and the calls of
        pmap with their arguments.
    """
    nodes: list[Any] = []
    for module in files.values():
        nodes += module.nodes
    calls = [node for node in nodes if isinstance(node, ast.Call | ast.FunctionDef)]
    uses = [use for use in map(read_pmap, calls) if use]
    found: dict[tuple[str, int, str], Any] = {}
    for node in nodes:
        for row in filter(None, rows_of(node)):
            if is_listed(row, node, has_pmap=bool(uses)):
                holder = node if hasattr(node, "lineno") else node.parent
                found.setdefault((node.file.path, holder.lineno, row), node)
    lines = [
        describe_line(*place, found[place])  # by path, number and row
        for place in sorted(found)
    ]
    return lines, uses


def describe_line(path: str, number: int, row: str, node: Any) -> dict[str, Any]:
    """Return a line with a construct, and what the table says of it."""
    line = {"path": path, "line": number, "construct": row}
    line["code"] = " ".join(ast.unparse(node).split())
    line["link"] = f"docs/constructs.md#{row}"
    for name in ("status", "today", "shard_map", "jit"):
        line[name] = TABLE[row].get(name, "")
    return line

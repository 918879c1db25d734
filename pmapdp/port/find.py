"""Find the constructs of pmap in a program, node by node of its syntax tree.

`table.toml` has a row for each construct, with the names and the patterns by which it's
found. To add a construct, add a row.
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

from pmapdp.port.patterns import is_constant, matches, names_in
from pmapdp.port.pmaps import PMAPS, Use, find_stacked, pmap_options, read_pmap
from pmapdp.port.read import Module, path_of, remember, resolve

TABLE: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("table.toml").read_text()
)
STATUS = {row: entries["status"] for row, entries in TABLE.items()}
ROW_OF_NAME = {
    name: row for row, entries in TABLE.items() for name in entries.get("names", ())
}
PATTERNS = [
    (row, ast.parse(text, mode="eval").body)
    for row, entries in TABLE.items()
    for text in entries.get("code", ())
]
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
        is_whole = not isinstance(node.parent, ast.Attribute)
        if is_whole and isinstance(node.ctx, ast.Load):
            name = getattr(node, "attr", "")
            yield ROW_OF_NAME.get(f"?.{name}") or row_of_path(path_of(node))
    elif isinstance(node, ast.Call | ast.BinOp):
        yield from rows_of_expression(node)
    elif isinstance(node, ast.Subscript) and is_constant(node.slice, 0):
        # Of `mapped(x)[0]` nobody knows if it's a row or the first of two results.
        call = find_stacked(node.value)
        if call and call is not resolve(node.value):
            yield "first-copy"
    elif isinstance(node, ast.withitem):
        manager = resolve(node.context_expr)
        if path_of(getattr(manager, "func", None)) in MESHES:
            yield "with-mesh"


def rows_of_expression(node: Any) -> Iterator[str]:
    """Find the rows whose patterns match an expression."""
    use = read_pmap(node)
    options = use.options if use else pmap_options(node)
    if options is not None:
        if path_of(node.func) not in PMAPS:  # the program's name for a partial
            yield "pmap"
        keywords = [ast.keyword(name, value) for name, value in options.items()]
        pmap: Any = "jax.pmap"  # which `path_of` returns as it is
        node = ast.Call(pmap, node.args if use else [], keywords)
    for row, pattern in PATTERNS:
        if matches(pattern, node):
            yield row


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


def is_over_another_axis(node: Any, axes: set[str]) -> bool:
    """Return True for a collective over an axis that no pmap of the program has."""
    call = node if isinstance(node, ast.Call) else node.parent
    if not isinstance(call, ast.Call) or not path_of(call.func).startswith("jax.lax."):
        return False
    values = [resolve(argument) for argument in [*call.args, *call.keywords]]
    values = [resolve(getattr(value, "value", value)) for value in values]
    constants = [getattr(value, "value", value) for value in values]
    texts = {text for text in constants if isinstance(text, str)}
    return bool(texts) and "" not in axes and not texts & axes


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


def find(files: dict[str, Module]) -> tuple[list[dict[str, Any]], list[Use]]:
    """Find a program's constructs of pmap.

    Args:
        files: The program's modules by path, from `pmapdp.port.read.read_program`.

    Returns:
        (lines, uses): a dictionary for each construct, with its `path`, `line` and
        `code`, its `status` with this JAX and what to write `today`, and the calls of
        pmap with their arguments.
    """
    nodes = [node for module in files.values() for node in module.nodes]
    calls = [node for node in nodes if isinstance(node, ast.Call | ast.FunctionDef)]
    uses = [use for use in map(read_pmap, calls) if use]
    # The name of an axis is an empty text if it's made when the program runs.
    axes = {
        getattr(resolve(use.options["axis_name"]), "value", "")
        for use in uses
        if "axis_name" in use.options
    }
    found: dict[tuple[str, int, str], Any] = {}
    for node in nodes:
        for row in filter(None, rows_of(node)):
            # A program without pmap may use what isn't broken as it likes.
            counts = bool(uses) or STATUS[row] in (*BROKEN, "old")
            expected = STATUS[row] == "gone" and is_guarded(node)
            if counts and not expected and not is_over_another_axis(node, axes):
                holder = node if hasattr(node, "lineno") else node.parent
                found.setdefault((node.file.path, holder.lineno, row), node)
    lines = []
    for (path, number, row), node in sorted(found.items(), key=lambda entry: entry[0]):
        texts = {"today": "", **TABLE[row]}
        line = {"path": path, "line": number, "construct": row}
        line["code"] = " ".join(ast.unparse(node).split())
        line["link"] = f"docs/constructs.md#{row}"
        for name in ("status", "today", "shard_map", "jit"):
            line[name] = texts[name]
        lines.append(line)
    return lines, uses

"""Find the constructs of pmap in a program, node by node of its syntax trees.

`rows` has a row for each construct, with the names and keywords by which it's found.
What depends on the rest of a call is found here.
"""

import ast
import importlib
import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import jax

from pmapdp.port.pmaps import (
    PMAPS,
    Use,
    is_stacked,
    keywords_of,
    pmap_options,
    read_pmap,
    unwrap,
)
from pmapdp.port.read import Node, Program, Value
from pmapdp.port.rows import ROWS

BROKEN = ("gone", "fails", "wrong")
ROW_OF_NAME: dict[str, str] = {}
for row in ROWS.values():
    ROW_OF_NAME |= dict.fromkeys(row.names, row.name)
MESHES = {"jax.make_mesh", "jax.sharding.Mesh", "jax.interpreters.pxla.Mesh"}
SHARD_MAPS = {"jax.shard_map", "jax.experimental.shard_map.shard_map"}
TREE_MAPS = {"map", "tree_map", "tree_multimap", "map_structure"}
# Names of trees on the host. Their [0] isn't the copy of a device.
HOST_TREES = ("batch", "data", "image", "label", "input", "example", "obs", "token")


def find(program: Program) -> tuple[list[dict[str, Any]], list[Use]]:
    """Find a program's constructs of pmap.

    Args:
        program: What `pmapdp.port.read.read_program` returns.

    Returns:
        (lines, uses): a dictionary for each construct, with its `path`, `line` and
        `code`, its `status` with this JAX and what to write `today`, and the calls of
        pmap with their arguments.
    """
    uses: list[Use] = []
    for tree in program.files.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call | ast.FunctionDef):
                use = read_pmap(program, node)
                if use:
                    uses.append(use)
    lines: dict[tuple[str, int, str], dict[str, Any]] = {}
    for path, tree in program.files.items():
        for node in ast.walk(tree):
            for name in filter(None, constructs_of(program, node)):
                if is_listed(program, name, node, has_pmap=bool(uses)):
                    line = describe_line(path, node, name)
                    lines.setdefault((path, line["line"], name), line)
    return [lines[place] for place in sorted(lines)], uses


def describe_line(path: str, node: ast.AST, name: str) -> dict[str, Any]:
    """Return a line with a construct, and what its row says."""
    if isinstance(node, ast.withitem):
        node = node.context_expr
    row = ROWS[name]
    return {
        "path": path,
        "line": getattr(node, "lineno", 0),
        "code": " ".join(ast.unparse(node).split()),
        "construct": name,
        "link": f"docs/constructs.md#{name}",
        "status": row.status,
        "today": row.today,
        "shard_map": row.shard_map,
        "jit": row.jit,
    }


def constructs_of(program: Program, node: ast.AST) -> Iterator[str]:
    """Find the constructs of one node, by the names of their rows."""
    if isinstance(node, ast.Call):
        yield from constructs_of_call(program, node)
    elif isinstance(node, ast.alias):
        yield construct_of_import(program, node)
    elif isinstance(node, ast.Attribute | ast.Name):
        yield construct_of_name(program, node)
    elif isinstance(node, ast.Subscript) and is_first_row(program, node):
        yield "first-copy"
    elif isinstance(node, ast.BinOp) and divides_loss(program, node):
        yield "divided-loss"
    elif isinstance(node, ast.withitem) and enters_mesh(program, node):
        yield "with-mesh"


def construct_of_import(program: Program, node: ast.alias) -> str:
    """Find an import of a name that is gone. Others are found where they're used."""
    _, path = program.imported(node)
    name = row_of_path(path)
    return name if name and ROWS[name].status == "gone" else ""


def construct_of_name(program: Program, node: ast.Attribute | ast.Name) -> str:
    """Find what a name stands for where it's read: `jax.lax.pmean`, not its parts."""
    is_part = isinstance(program.parent(node), ast.Attribute)
    if is_part or not isinstance(node.ctx, ast.Load):
        return ""
    if isinstance(node, ast.Attribute) and node.attr.startswith("device_buffer"):
        return "device-buffers"
    return row_of_path(program.path_of(node))


def is_first_row(program: Program, node: ast.Subscript) -> bool:
    """Return True for `[0]` of what has a device axis."""
    return ast.unparse(node.slice) == "0" and is_stacked(program, node.value)


def enters_mesh(program: Program, node: ast.withitem) -> bool:
    """Return True for the `mesh` of `with mesh:`."""
    mesh = program.resolve(node.context_expr)
    return program.path_of(getattr(mesh, "func", None)) in MESHES


def constructs_of_call(program: Program, node: ast.Call) -> Iterator[str]:
    """Find what a call is, and what its arguments say."""
    path = program.path_of(node.func)
    function = (path or ast.unparse(node.func)).rpartition(".")[2]
    keywords = keywords_of(node)
    use = read_pmap(program, node)
    options = use.options if use else pmap_options(program, node)
    if options is not None:  # it's pmap, or a partial of it
        function = "pmap"
        keywords = options
        if path not in PMAPS:  # the program's name for a partial
            yield "pmap"
    if use and (PMAPS | SHARD_MAPS).intersection(use.inside):
        yield "nested"
    for row in ROWS.values():
        if not keywords.keys().isdisjoint(row.keywords.get(function, [])):
            yield row.name
    yield construct_without_keyword(path, node)
    if node.args:
        yield construct_of_arguments(program, node, path, function)


def construct_without_keyword(path: str, node: ast.Call) -> str:
    """Find a call that lacks a keyword it should have."""
    keywords = keywords_of(node)
    if path == "jax.make_mesh" and "axis_types" not in keywords:
        return "make-mesh"
    names = names_in(node.func)  # of dynamic_scale.value_and_grad
    is_scaled = "scal" in names and "value_and_grad" in names
    if is_scaled and "axis_name" not in keywords:
        return "scale-without-axis"
    return ""


def construct_of_arguments(
    program: Program, node: ast.Call, path: str, function: str
) -> str:
    """Find what the first arguments of a call say."""
    first, *rest = node.args
    if path == "jax.lax.psum" and is_gradient(program, first):
        return "psum-gradients"
    if path == "jax.config.update" and is_unknown_setting(program, first):
        return "old-flag"
    if path in SHARD_MAPS and is_checked(program, node):
        return "check-vma" if averages_gradients(program, first) else ""
    if function in TREE_MAPS and rest and takes_first_row(program, first):
        return "first-copy" if may_be_stacked(program, rest[0]) else ""
    return ""


def divides_loss(program: Program, node: ast.BinOp) -> bool:
    """Return True for a loss or a gradient divided by the number of devices."""
    divisor = program.path_of(getattr(node.right, "func", None))
    is_number = divisor in ("jax.device_count", "jax.local_device_count")
    if not (isinstance(node.op, ast.Div) and is_number):
        return False
    return "loss" in names_in(node.left) or is_gradient(program, node.left)


def is_gradient(program: Program, node: Node) -> bool:
    """Return True for an expression of gradients, by their name or their value."""
    if "grad" in names_in(node):
        return True
    parts = ast.walk(node) if node else ()
    values = [program.resolve(part) for part in parts if isinstance(part, ast.Name)]
    return any(is_result_of_grad(program, value) for value in values)


def is_result_of_grad(program: Program, value: Value) -> bool:
    """Return True for `jax.grad(f)(x)`, and the second part of value_and_grad's."""
    if isinstance(value, ast.Subscript):
        is_loss = ast.unparse(value.slice) == "0"
        return not is_loss and is_result_of_grad(program, value.value)
    if not isinstance(value, ast.Call):
        return False
    function = program.resolve(value.func)  # jax.grad(f)
    made_by = program.path_of(getattr(function, "func", None))
    return made_by in ("jax.grad", "jax.value_and_grad")


def is_unknown_setting(program: Program, node: Node) -> bool:
    """Return True for the name of a setting that this JAX doesn't have."""
    name = program.resolve(node)
    return isinstance(name, ast.Constant) and name.value not in jax.config.values


def is_checked(program: Program, node: ast.Call) -> bool:
    """Return True if the arguments of a shard_map leave its check on."""
    keywords = keywords_of(node)
    check = program.resolve(keywords.get("check_vma") or keywords.get("check_rep"))
    return getattr(check, "value", True) is not False


def averages_gradients(program: Program, node: Node) -> bool:
    """Return True for a function that calls pmean or psum of gradients."""
    function, _ = unwrap(program, node)
    for part in ast.walk(function) if function else ():
        called = program.path_of(getattr(part, "func", None))
        if called in ("jax.lax.pmean", "jax.lax.psum") and is_gradient(program, part):
            return True
    return False


def takes_first_row(program: Program, node: Node) -> bool:
    """Return True for a lambda with `[0]` of its argument, `lambda x: float(x[0])`."""
    function = program.resolve(node)
    if not isinstance(function, ast.Lambda) or not function.args.args:
        return False
    row = rf"\b{function.args.args[0].arg}\[0\]"
    return re.search(row, ast.unparse(function.body)) is not None


def may_be_stacked(program: Program, node: ast.expr) -> bool:
    """Return False for a tree that's on the host, or that is a batch by its name."""
    function = getattr(program.resolve(node), "func", None)
    is_on_host = program.path_of(function) in ("jax.device_get", "jax.vmap")
    name = ast.unparse(node).split(".")[-1].lower()
    return not is_on_host and not name.startswith(HOST_TREES)


def names_in(node: Node) -> str:
    """Return all names of an expression in one text, in small letters."""
    parts = ast.walk(node) if node else ()
    names = [getattr(part, "id", getattr(part, "attr", "")) for part in parts]
    return " ".join(names).lower()


@cache
def row_of_path(path: str) -> str:
    """Find the row of a dotted path or of its beginning.

    It's "gone" if the installed libraries lack the name.
    """
    parts = path.split(".")
    for number in range(len(parts), 1, -1):
        name = ".".join(parts[:number])
        if name in ROW_OF_NAME:
            return ROW_OF_NAME[name]
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
    while node:
        guard = program.around(node, (ast.Try, ast.If, ast.IfExp, ast.ExceptHandler))
        if isinstance(guard, ast.ExceptHandler):  # it catches another error
            guard = program.around(guard, ast.Try)
        elif isinstance(guard, ast.Try):
            caught = " ".join(names_in(handler.type) for handler in guard.handlers)
            if re.search("attributeerror|importerror|modulenotfounderror", caught):
                return True
        test = names_in(getattr(guard, "test", None))
        if re.search("hasattr|version|type_checking", test):
            return True
        node = guard
    return False

"""Find the constructs of pmap in a program, node by node of its syntax trees.

`rows` has a row for each construct. It's found by its names and keywords, or by a
function in `TESTS`.
"""

import ast
import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax

from pmapdp.port.names import LIBRARIES, Node, Program
from pmapdp.port.pmaps import (
    PMAPS,
    Use,
    is_stacked,
    keywords_of,
    read_options,
    read_pmap,
    unwrap,
)
from pmapdp.port.rows import ROWS

BROKEN = ("gone", "fails", "wrong")
ROW_OF_NAME: dict[str, str] = {}
for row in ROWS.values():
    ROW_OF_NAME |= dict.fromkeys(row.names, row.name)
MESHES = {"jax.make_mesh", "jax.sharding.Mesh", "jax.interpreters.pxla.Mesh"}
SHARD_MAPS = {"jax.shard_map", "jax.experimental.shard_map.shard_map"}
TREE_MAPS = {"map", "tree_map", "tree_multimap", "map_structure"}
EXPECTS_MISSING = re.compile(
    "attributeerror|importerror|modulenotfounderror|hasattr|version|type_checking"
)
# Names of trees on the host. Their [0] isn't the copy of a device.
HOST_TREES = re.compile(
    "(batch|data|image|label|input|example|obs|token)(?!_stats)", re.IGNORECASE
)


def find(program: Program) -> tuple[list[dict[str, Any]], list[Use]]:
    """Find a program's constructs of pmap.

    Args:
        program: Its files, and what their names stand for.

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
            for name in constructs_of(program, node):
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


def function_name(program: Program, call: ast.Call) -> str:
    """Return the last name of the function that's called."""
    path = program.path_of(call.func) or last_name(call.func)
    return path.rpartition(".")[2]


def last_name(node: ast.AST) -> str:
    """Return the last name of an expression: `c` of `a.b.c`, `c(x)` and `c["x"]`."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return getattr(node, "id", getattr(node, "attr", ""))


def is_zero(node: ast.AST) -> bool:
    """Return True for the number 0."""
    return isinstance(node, ast.Constant) and node.value == 0


def is_partial_of_pmap(program: Program, call: ast.Call) -> bool:
    """Return True for a call of pmap by a name that the program gave it."""
    is_named = program.path_of(call.func) in PMAPS
    return not is_named and read_options(program, call) is not None


def is_nested(program: Program, call: ast.Call) -> bool:
    """Return True for a pmap around another one, or around a shard_map."""
    use = read_pmap(program, call)
    calls = use.inside if use else []
    return any(program.path_of(call.func) in PMAPS | SHARD_MAPS for call in calls)


def maps_first_row(program: Program, call: ast.Call) -> bool:
    """Return True for `jax.tree.map(lambda x: x[0], tree)`, if it may be stacked."""
    if function_name(program, call) not in TREE_MAPS or len(call.args) < 2:
        return False
    function = program.resolve(call.args[0])
    if not isinstance(function, ast.Lambda) or not function.args.args:
        return False
    tree = call.args[1]
    is_on_host = program.called_path(tree) in ("jax.device_get", "jax.vmap")
    if is_on_host or HOST_TREES.match(last_name(tree)):
        return False
    stacked = function.args.args[0]
    for part in ast.walk(function.body):  # also in `float(x[0])`
        if not isinstance(part, ast.Subscript):
            continue
        if is_zero(part.slice) and program.resolve(part.value) is stacked:
            return True
    return False


def adds_up_gradients(program: Program, call: ast.Call) -> bool:
    """Return True for a psum of gradients."""
    is_psum = program.path_of(call.func) == "jax.lax.psum"
    return is_psum and "grad" in names_in(program, call)


def checks_averages(program: Program, call: ast.Call) -> bool:
    """Return True for a shard_map with its check on, if it averages gradients."""
    if program.path_of(call.func) not in SHARD_MAPS or not call.args:
        return False
    keywords = keywords_of(call)
    check = program.resolve(keywords.get("check_vma") or keywords.get("check_rep"))
    function, _ = unwrap(program, call.args[0])
    if function is None or getattr(check, "value", True) is False:
        return False
    for part in ast.walk(function):
        is_average = program.called_path(part) in ("jax.lax.pmean", "jax.lax.psum")
        if is_average and "grad" in names_in(program, part):
            return True
    return False


def calls_device(program: Program, call: ast.Call) -> bool:
    """Return True for `jnp.ones(3).device()`, if JAX makes what it's called on.

    Other objects may have a method of this name.
    """
    array = program.called_path(getattr(call.func, "value", None))
    return function_name(program, call) == "device" and array.startswith("jax.")


def makes_explicit_mesh(program: Program, call: ast.Call) -> bool:
    """Return True for `jax.make_mesh` without `axis_types`."""
    is_mesh = program.path_of(call.func) == "jax.make_mesh"
    return is_mesh and "axis_types" not in keywords_of(call)


def scales_without_axis(program: Program, call: ast.Call) -> bool:
    """Return True for `dynamic_scale.value_and_grad` without `axis_name`."""
    names = names_in(program, call.func)
    is_scaled = "scal" in names and "value_and_grad" in names
    return is_scaled and "axis_name" not in keywords_of(call)


def sets_old_flag(program: Program, call: ast.Call) -> bool:
    """Return True for a setting that this JAX doesn't have."""
    if program.path_of(call.func) != "jax.config.update" or not call.args:
        return False
    name = program.resolve(call.args[0])
    return isinstance(name, ast.Constant) and name.value not in jax.config.values


def is_first_row(program: Program, node: ast.Subscript) -> bool:
    """Return True for `[0]` of what has a device axis."""
    return is_zero(node.slice) and is_stacked(program, node.value)


def reads_device_buffer(program: Program, node: ast.Attribute) -> bool:
    """Return True for `x.device_buffers` and `x.device_buffer`."""
    return node.attr.startswith("device_buffer")


def divides_loss(program: Program, node: ast.BinOp) -> bool:
    """Return True for a loss or a gradient divided by the number of devices."""
    divisor = program.called_path(node.right)
    is_number = divisor in ("jax.device_count", "jax.local_device_count")
    if not is_number or not isinstance(node.op, ast.Div):
        return False
    return re.search("loss|grad", names_in(program, node.left)) is not None


def enters_mesh(program: Program, node: ast.withitem) -> bool:
    """Return True for the `mesh` of `with mesh:`."""
    return program.called_path(node.context_expr) in MESHES


# The rows that more than a name or a keyword decides, by the type of their nodes.
TESTS: dict[type, dict[str, Callable[[Program, Any], bool]]] = {
    ast.Call: {
        "pmap": is_partial_of_pmap,
        "nested": is_nested,
        "first-copy": maps_first_row,
        "psum-gradients": adds_up_gradients,
        "check-vma": checks_averages,
        "device-call": calls_device,
        "make-mesh": makes_explicit_mesh,
        "scale-without-axis": scales_without_axis,
        "old-flag": sets_old_flag,
    },
    ast.Subscript: {"first-copy": is_first_row},
    ast.Attribute: {"device-buffers": reads_device_buffer},
    ast.BinOp: {"divided-loss": divides_loss},
    ast.withitem: {"with-mesh": enters_mesh},
}


def names_in(program: Program, node: ast.AST) -> str:
    """Return all names of an expression in one text, in small letters.

    A name whose value comes from `jax.grad` or `jax.value_and_grad` counts as "grad" or
    as "loss", too.
    """
    names = []
    for part in ast.walk(node):
        names.append(getattr(part, "id", getattr(part, "attr", "")))
        if isinstance(part, ast.Name):
            names.append(part_of_gradient(program, part))
    return " ".join(names).lower()


def part_of_gradient(program: Program, name: ast.Name) -> str:
    """Return "grad" for `jax.grad(f)(x)`, "loss" for `jax.value_and_grad(f)(x)[0]`."""
    value: Any = program.resolve(name)
    is_first = False
    while isinstance(value, ast.Subscript):
        is_first = is_zero(value.slice)
        value = program.resolve(value.value)
    made_by = program.called_path(getattr(value, "func", None))  # jax.grad(f)
    if made_by == "jax.value_and_grad" and is_first:
        return "loss"
    if made_by in ("jax.grad", "jax.value_and_grad"):
        return "grad"
    return ""


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
    if parts[0] in LIBRARIES and parts[-1] != "*" and is_missing(path):
        return "gone"
    return ""


def is_missing(path: str) -> bool:
    """Return True if the installed JAX, Flax or Optax lacks a name.

    A module that's there, and needs another library, isn't missing.
    """
    module, *names = path.split(".")
    with warnings.catch_warnings(action="ignore"):
        value: Any = importlib.import_module(module)
        for name in names:
            module = f"{module}.{name}"
            try:
                if hasattr(value, name):
                    value = getattr(value, name)
                else:
                    value = importlib.import_module(module)
            except ModuleNotFoundError as error:
                return module.startswith(error.name or module)
            except Exception:  # it's there, and needs a library or what a run sets up
                return False
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
    guard: Any = program.around(node, (ast.Try, ast.If, ast.IfExp, ast.ExceptHandler))
    if guard is None:
        return False
    if isinstance(guard, ast.ExceptHandler):  # its `try` doesn't catch what it raises
        return is_guarded(program, program.around(guard, ast.Try))
    conditions = [handler.type for handler in getattr(guard, "handlers", [])]
    conditions.append(getattr(guard, "test", None))
    for condition in filter(None, conditions):
        if EXPECTS_MISSING.search(names_in(program, condition)):
            return True
    return is_guarded(program, guard)

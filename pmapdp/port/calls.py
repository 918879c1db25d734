"""Find the constructs of a call: the rows that depend on its arguments."""

import ast
from collections.abc import Iterator
from typing import Any

import jax

from pmapdp.port.pmaps import PMAPS, keywords_of, pmap_options, read_pmap, unwrap
from pmapdp.port.read import path_of, resolve

SHARD_MAPS = {"jax.shard_map", "jax.experimental.shard_map.shard_map"}
TREE_MAPS = {"map", "tree_map", "tree_multimap", "map_structure"}
AVERAGES = {"jax.lax.pmean", "jax.lax.psum"}
# Names of trees on the host. Their [0] isn't the copy of a device.
HOST_TREES = ("batch", "data", "image", "label", "input", "example", "obs", "token")


def names_of_arguments(node: ast.Call) -> Iterator[str]:
    """Find the keywords of a call as the table names them, `jax.pmap(in_axes)`."""
    path = path_of(node.func)
    method = last_name(node)
    for name in keywords_of(node):
        yield f"{path}({name})"
        yield f"?.{method}({name})"
    for name in read_options(node) or {}:  # those of a partial, too
        yield f"jax.pmap({name})"


def rows_of_call(node: ast.Call) -> Iterator[str]:
    """Find the rows that depend on the values of arguments."""
    path = path_of(node.func)
    given = keywords_of(node)
    first = node.args[0] if node.args else None
    options = read_options(node)
    if options is not None:
        yield from rows_of_pmap(node, options)
    elif path == "jax.lax.psum" and "grad" in names_in(first).lower():
        yield "psum-gradients"
    elif path == "jax.make_mesh" and is_none(given.get("axis_types")):
        yield "make-mesh"
    elif path == "jax.config.update" and is_unknown_setting(first):
        yield "old-flag"
    elif path in SHARD_MAPS and is_checked(given) and averages_gradients(first):
        yield "check-vma"
    else:
        yield from rows_of_method(node)


def rows_of_method(node: ast.Call) -> Iterator[str]:
    """Find the rows of a function that is known by its last name."""
    method = last_name(node)
    given = keywords_of(node)
    if method in TREE_MAPS and len(node.args) > 1:
        function, tree, *_ = node.args
        if takes_first_row(function) and may_be_stacked(tree):
            yield "first-copy"
    elif method == "value_and_grad" and is_none(given.get("axis_name")):
        owner = getattr(node.func, "value", None)
        if "scal" in names_in(owner).lower():
            yield "scale-without-axis"


def rows_of_pmap(node: ast.Call, options: dict[Any, Any]) -> Iterator[str]:
    """Find what a call of pmap, or of a partial of it, says besides its name."""
    if path_of(node.func) not in PMAPS:  # the program's name for a partial
        yield "pmap"
    axes = [options.get("in_axes"), options.get("out_axes")]
    if any(value is not None and "-" in ast.unparse(value) for value in axes):
        yield "axes-negative"
    if node.args and (PMAPS | SHARD_MAPS) & {*unwrap(node.args[0])[1]}:
        yield "nested"


def read_options(node: ast.Call) -> dict[Any, Any] | None:
    """Return the options if a call is pmap, or a partial of it, otherwise None."""
    use = read_pmap(node)
    return use.options if use else pmap_options(node)


def last_name(node: ast.Call) -> str:
    """Return the name of a function or method without what's in front of it."""
    name = path_of(node.func) or ast.unparse(node.func)
    return name.rpartition(".")[2]


def divides_loss(node: Any) -> bool:
    """Return True for a loss or a gradient divided by the number of devices."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    divisor = path_of(getattr(node.right, "func", None))
    names = names_in(node.left).lower()
    is_trained = "loss" in names or "grad" in names
    return is_trained and divisor in ("jax.device_count", "jax.local_device_count")


def is_checked(given: dict[Any, Any]) -> bool:
    """Return True if these arguments of a shard_map leave its check on."""
    check = resolve(given.get("check_vma") or given.get("check_rep"))
    return getattr(check, "value", True) is not False


def is_none(node: Any) -> bool:
    """Return True for an argument that isn't there or is None."""
    value = resolve(node)
    return node is None or (isinstance(value, ast.Constant) and value.value is None)


def names_in(node: Any) -> str:
    """Return all names of an expression in one text."""
    parts = ast.walk(node) if node is not None else ()
    return " ".join(getattr(part, "id", getattr(part, "attr", "")) for part in parts)


def takes_first_row(node: Any) -> bool:
    """Return True for a lambda with `[0]` of its argument, `lambda x: float(x[0])`."""
    node = resolve(node)
    if not isinstance(node, ast.Lambda) or not node.args.args:
        return False
    row = f"{node.args.args[0].arg}[0]"
    parts = ast.walk(node.body)
    return any(isinstance(p, ast.Subscript) and ast.unparse(p) == row for p in parts)


def may_be_stacked(node: Any) -> bool:
    """Return False for a tree that's on the host, or that is a batch by its name."""
    value = resolve(node)
    function = path_of(getattr(value, "func", None))
    name = ast.unparse(node).split(".")[-1].lower()
    is_on_host = function in ("jax.device_get", "jax.vmap")
    return not is_on_host and not name.startswith(HOST_TREES)


def averages_gradients(node: Any) -> bool:
    """Return True for a function that calls pmean or psum of gradients."""
    function, _ = unwrap(node)
    for part in ast.walk(function) if function else ():
        is_average = path_of(getattr(part, "func", None)) in AVERAGES
        if is_average and "grad" in names_in(part).lower():
            return True
    return False


def is_unknown_setting(node: Any) -> bool:
    """Return True for the name of a setting that this JAX doesn't have."""
    node = resolve(node)
    return isinstance(node, ast.Constant) and node.value not in jax.config.values

"""Recognize the constructs of pmap that a name or a keyword alone doesn't show.

`TESTS` at the end has a function for each of these rows. The others find the names in
an expression.
"""

import ast
import re
from collections.abc import Callable
from typing import Any

import jax

from pmapdp.port.names import Node, Program
from pmapdp.port.pmaps import (
    PMAPS,
    Use,
    keywords_of,
    read_options,
    read_pmap,
    unwrap,
)

MESHES = {"jax.make_mesh", "jax.sharding.Mesh", "jax.interpreters.pxla.Mesh"}
SHARD_MAPS = {"jax.shard_map", "jax.experimental.shard_map.shard_map"}
TREE_MAPS = {"map", "tree_map", "tree_multimap", "map_structure"}
AVERAGES = {"jax.lax.pmean", "jax.lax.psum"}
# Names of trees on the host. Their [0] isn't the copy of a device.
HOST_TREES = re.compile(
    "(batch|data|image|label|input|example|obs|token)(?!_stats)", re.IGNORECASE
)


def function_name(program: Program, call: ast.Call) -> str:
    """Return the last name of the function that's called."""
    path = program.path_of(call.func) or last_name(call.func)
    return path.rpartition(".")[2]


def last_name(node: ast.AST) -> str:
    """Return the last name of an expression: `c` of `a.b.c`, `c(x)` and `c["x"]`."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return getattr(node, "id", getattr(node, "attr", ""))


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


def is_first_row(program: Program, node: ast.Subscript) -> bool:
    """Return True for `[0]` of what has a device axis."""
    return is_zero(node.slice) and is_stacked(program, node.value)


def is_stacked(program: Program, node: Node) -> bool:
    """Return True for what has a device axis, `[N, ...]`.

    That's a part of a replicated tree, or of a pmapped function's result. The whole
    result counts only if it's known to be one array: `[0]` of a tuple isn't a row.
    """
    whole = program.resolve(node)
    is_part = False
    while isinstance(whole, ast.Subscript | ast.Attribute):
        if isinstance(whole, ast.Attribute) and whole.attr in dir(jax.Array):
            return False
        is_part = True
        whole = program.resolve(whole.value)
    if not isinstance(whole, ast.Call):
        return False
    if program.path_of(whole.func) == "flax.jax_utils.replicate":
        return True
    mapped = program.resolve(whole.func)
    if isinstance(mapped, ast.Call):  # of a function that makes the pmapped one
        mapped = program.returned(mapped.func) or mapped
    use = read_pmap(program, mapped)
    if use is None:
        return False
    out_axes = program.resolve(use.options.get("out_axes"))
    if getattr(out_axes, "value", 0) is None:
        return False
    return is_part or returns_array(program, use)


def returns_array(program: Program, use: Use) -> bool:
    """Return True if a mapped function shows that it returns one array, no tuple."""
    if use.inside:  # as in `jax.value_and_grad(f)`
        return False
    result: Any = program.returned(use.function)
    while program.called_path(result) in AVERAGES:  # of all arrays of a tuple
        result = program.resolve(next(iter(result.args), None))
    function = getattr(result, "func", None)
    if program.path_of(function).startswith("jax.numpy."):
        return True
    is_method = getattr(function, "attr", "") in dir(jax.Array)  # as in `x.mean()`
    return is_method or isinstance(result, ast.BinOp)


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
        is_average = program.called_path(part) in AVERAGES
        if is_average and "grad" in names_in(program, part):
            return True
    return False


def divides_loss(program: Program, node: ast.BinOp) -> bool:
    """Return True for a loss or a gradient divided by the number of devices."""
    divisor = program.called_path(node.right)
    is_number = divisor in ("jax.device_count", "jax.local_device_count")
    if not is_number or not isinstance(node.op, ast.Div):
        return False
    return re.search("loss|grad", names_in(program, node.left)) is not None


def scales_without_axis(program: Program, call: ast.Call) -> bool:
    """Return True for `dynamic_scale.value_and_grad` without `axis_name`."""
    names = names_in(program, call.func)
    is_scaled = "scal" in names and "value_and_grad" in names
    return is_scaled and "axis_name" not in keywords_of(call)


def calls_device(program: Program, call: ast.Call) -> bool:
    """Return True for `jnp.ones(3).device()`, if JAX makes what it's called on.

    Other objects may have a method of this name.
    """
    array = program.called_path(getattr(call.func, "value", None))
    return function_name(program, call) == "device" and array.startswith("jax.")


def reads_device_buffer(program: Program, node: ast.Attribute) -> bool:
    """Return True for `x.device_buffers` and `x.device_buffer`."""
    return node.attr.startswith("device_buffer")


def makes_explicit_mesh(program: Program, call: ast.Call) -> bool:
    """Return True for `jax.make_mesh` without `axis_types`."""
    is_mesh = program.path_of(call.func) == "jax.make_mesh"
    return is_mesh and "axis_types" not in keywords_of(call)


def enters_mesh(program: Program, node: ast.withitem) -> bool:
    """Return True for the `mesh` of `with mesh:`."""
    return program.called_path(node.context_expr) in MESHES


def sets_old_flag(program: Program, call: ast.Call) -> bool:
    """Return True for a setting that this JAX doesn't have."""
    if program.path_of(call.func) != "jax.config.update" or not call.args:
        return False
    name = program.resolve(call.args[0])
    return isinstance(name, ast.Constant) and name.value not in jax.config.values


def unpacks_popped_params(program: Program, node: ast.Assign) -> bool:
    """Return True for `stats, params = variables.pop("params")`.

    A plain dictionary's `pop` returns the parameters alone, so the two names get the
    first two layers' names, or there's an error.
    """
    call = node.value
    if not isinstance(node.targets[0], ast.Tuple | ast.List):
        return False
    if not isinstance(call, ast.Call) or last_name(call.func) != "pop":
        return False
    if program.path_of(call.func) or len(call.args) != 1:  # as flax.core.pop
        return False
    key = call.args[0]
    return isinstance(key, ast.Constant) and key.value == "params"


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
    ast.Assign: {"pop-params": unpacks_popped_params},
}

"""Recognize the constructs of pmap that a name or a keyword alone doesn't show.

`RECOGNIZERS` at the end lists the functions that do. The first functions of this file
find the names in an expression, and what it comes from.
"""

import ast
import re
from collections.abc import Callable
from typing import Any, TypeGuard

import jax

from pmapdp.port.names import Program, Value
from pmapdp.port.pmaps import is_pmap, keywords_of, read_pmap, unwrap
from pmapdp.port.rows import ROWS

MESHES = {
    "jax.make_mesh",
    "jax.sharding.Mesh",
    "jax.interpreters.pxla.Mesh",
    "jax.experimental.maps.Mesh",
}
SHARD_MAPS = {"jax.shard_map", "jax.experimental.shard_map.shard_map"}
TREE_MAPS = {"map", "tree_map", "tree_multimap", "map_structure"}
AVERAGES = {"jax.lax.pmean", "jax.lax.psum"}
DEVICE_COUNTS = {"jax.device_count", "jax.local_device_count"}
FROZEN_DICTS = {
    "flax.core.freeze",
    "flax.core.FrozenDict",
    "flax.core.frozen_dict.freeze",
    "flax.core.frozen_dict.FrozenDict",
}
# Names of trees on the host end like this. Their [0] isn't the copy of a device.
HOST_TREES = re.compile(
    "(^|_)(batch|batches|(data|image|label|input|example|ob|token)s?|dataset)$",
    re.IGNORECASE,
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

    A gradient counts as "grad", and its loss as "loss", whatever their names are.
    """
    names = []
    for part in ast.walk(node):
        names.append(getattr(part, "id", getattr(part, "attr", "")))
        names.append(gradient_or_loss(program, part))
    return " ".join(names).lower()


def gradient_or_loss(program: Program, node: ast.AST) -> str:
    """Return "grad" for `jax.grad(f)(x)`, "loss" for `jax.value_and_grad(f)(x)[0]`.

    Another expression gives an empty text.
    """
    value: Any = program.resolve(node)
    part = None  # of the result
    while isinstance(value, ast.Subscript):
        part = value
        value = program.resolve(value.value)
    transformation = program.called_path(getattr(value, "func", None))
    is_first = part is not None and is_first_row(part)
    is_other = part is not None and not is_first
    if transformation.endswith("value_and_grad") and is_first:
        return "loss"
    if transformation == "jax.grad" and is_other and has_aux(program, value.func):
        return ""
    if transformation.endswith("grad"):
        return "grad"
    return ""


def has_aux(program: Program, function: ast.expr) -> bool:
    """Return True for `jax.grad(f, has_aux=True)`, whose result has another part."""
    transformation: Any = program.resolve(function)
    match keywords_of(transformation).get("has_aux"):
        case ast.Constant(value=True):
            return True
    return False


def is_first_row(node: ast.AST) -> TypeGuard[ast.Subscript]:
    """Return True for `x[0]` and `x[0, 0]`."""
    if not isinstance(node, ast.Subscript):
        return False
    match node.slice:
        case ast.Constant(value=0) | ast.Tuple(elts=[ast.Constant(value=0), *_]):
            return True
    return False


def find_origin(program: Program, node: ast.expr) -> tuple[Any, bool]:
    """Return what an expression is a part of: `f(x)` for `f(x)["a"].b`.

    Returns:
        The whole expression, and True if the one given is only a part of it. For an
        attribute of an array, such as `x.shape`, the whole is None.
    """
    whole: Any = program.resolve(node)
    is_part = False
    while isinstance(whole, ast.Subscript | ast.Attribute):
        if getattr(whole, "attr", "") in dir(jax.Array):
            return None, True
        is_part = True
        whole = program.resolve(whole.value)
    return whole, is_part


def is_call_by_own_name(program: Program, call: ast.Call) -> bool:
    """Return True for a call of pmap by a name that the program gave it."""
    is_library_name = program.path_of(call.func) != ""
    return is_pmap(program, call.func) and not is_library_name


def is_nested(program: Program, node: ast.Call | ast.FunctionDef) -> bool:
    """Return True for a pmap around another one, or around a shard_map.

    The node is a call of pmap, or a function with pmap as its decorator.
    """
    pmap = read_pmap(program, node)
    if pmap is None:
        return False
    for part in [*ast.walk(pmap.argument), *ast.walk(pmap.function or pmap.argument)]:
        is_mapped = read_pmap(program, part) or program.called_path(part) in SHARD_MAPS
        if is_mapped and part is not node:
            return True
    decorators = getattr(node, "decorator_list", [])
    return sum(is_pmap(program, decorator) for decorator in decorators) > 1


def is_first_copy(program: Program, node: ast.Subscript) -> bool:
    """Return True for `[0]` of an array with a device axis, `[N, ...]`.

    That's a part of a replicated tree, or of a pmapped function's result. The whole
    result counts only if it's known to be one array: `[0]` of a tuple isn't a row.
    """
    if not is_first_row(node):
        return False
    call, is_part = find_origin(program, node.value)
    if program.called_path(call) == "flax.jax_utils.replicate":
        return True
    pmapped: Any = program.resolve(getattr(call, "func", None))
    if isinstance(pmapped, ast.Call):  # perhaps of your own `make_step`
        pmapped = program.result(pmapped.func) or pmapped
    pmap = read_pmap(program, pmapped)
    if pmap is None:
        return False
    match program.resolve(pmap.options.get("out_axes")):
        case ast.Constant(value=None):
            return False
    if is_part:
        return True
    return not pmap.wrappers and returns_array(program, pmap.function)


def returns_array(program: Program, function: Value) -> bool:
    """Return True if a function shows that it returns one array, no tuple."""
    result: Any = program.result(function)
    if program.called_path(result) in AVERAGES:  # they take tuples, too
        result = program.resolve(next(iter(result.args), None))
    if not isinstance(result, ast.Call):
        return False
    # As in `jnp.mean(x)` and `x.mean()`.
    return function_name(program, result) in dir(jax.numpy)


def is_map_of_first_rows(program: Program, call: ast.Call) -> bool:
    """Return True for `jax.tree.map(lambda x: x[0], tree)`, if it may be stacked."""
    if function_name(program, call) not in TREE_MAPS or len(call.args) != 2:
        return False
    function: Any = program.resolve(call.args[0])
    tree = call.args[1]
    is_on_host = program.called_path(tree) == "jax.device_get"
    if is_on_host or HOST_TREES.search(last_name(tree)):
        return False
    if not isinstance(function, ast.Lambda):
        return False
    rows = [part for part in ast.walk(function.body) if is_first_row(part)]
    # Of the function's argument, also in `float(x[0])`.
    return any(program.resolve(row.value) in function.args.args for row in rows)


def is_sum_of_gradients(program: Program, call: ast.Call) -> bool:
    """Return True for a psum of gradients."""
    is_psum = program.path_of(call.func) == "jax.lax.psum"
    return is_psum and "grad" in names_in(program, call)


def is_checked_average(program: Program, call: ast.Call) -> bool:
    """Return True for a shard_map with its check on, if it averages gradients."""
    if program.path_of(call.func) not in SHARD_MAPS or not call.args:
        return False
    keywords = keywords_of(call)
    match keywords.get("check_vma", keywords.get("check_rep")):
        case ast.Constant(value=False):
            return False
    function, _ = unwrap(program, call.args[0])
    if function is None:
        return False
    for part in ast.walk(function):
        is_average = program.called_path(part) in AVERAGES
        if is_average and "grad" in names_in(program, part):
            return True
    return False


def is_divided_loss(program: Program, node: ast.BinOp) -> bool:
    """Return True for a loss or a gradient divided by the number of devices."""
    is_division = isinstance(node.op, ast.Div)
    if not is_division or program.called_path(node.right) not in DEVICE_COUNTS:
        return False
    return re.search("loss|grad", names_in(program, node.left)) is not None


def is_scale_without_axis(program: Program, call: ast.Call) -> bool:
    """Return True for `dynamic_scale.value_and_grad` without `axis_name`."""
    names = names_in(program, call.func)
    is_scaled = "scal" in names and "value_and_grad" in names
    return is_scaled and "axis_name" not in keywords_of(call)


def is_explicit_mesh(program: Program, call: ast.Call) -> bool:
    """Return True for `jax.make_mesh` without `axis_types`."""
    is_mesh = program.path_of(call.func) == "jax.make_mesh"
    return is_mesh and "axis_types" not in keywords_of(call)


def is_entered_mesh(program: Program, node: ast.withitem) -> bool:
    """Return True for the `mesh` of `with mesh:`."""
    return program.called_path(node.context_expr) in MESHES


def is_pop_of_params(program: Program, node: ast.Assign) -> bool:
    """Return True for `stats, params = variables.pop("params")`.

    A plain dictionary's `pop` returns the parameters alone, so the two names get the
    first two layers' names, or there's an error. `flax.core.pop` takes two arguments.
    """
    match node:
        case ast.Assign(
            targets=[ast.Tuple()],
            value=ast.Call(
                func=ast.Attribute(attr="pop"), args=[ast.Constant(value="params")]
            ),
        ):
            return True
    return False


def is_method_of_frozen_dict(program: Program, call: ast.Call) -> bool:
    """Return True for `variables.unfreeze()` and `variables.copy({...})`.

    Only Flax's frozen dictionaries have them, as `flax.core.freeze` makes one.
    """
    if not isinstance(call.func, ast.Attribute) or program.path_of(call.func):
        return False
    whole, _ = find_origin(program, call.func.value)
    if program.called_path(whole) in FROZEN_DICTS:
        return False
    match call.func.attr, call.args, call.keywords:
        case "unfreeze", [], _:
            return True
        case "copy", [ast.Dict()], _:
            return True
        case "copy", _, [ast.keyword(arg="add_or_replace")]:
            return True
    return False


def is_clip_by_old_names(program: Program, call: ast.Call) -> bool:
    """Return True for `jnp.clip(x, a_min=0)`. NumPy's own still takes these names."""
    is_clip = program.path_of(call.func) == "jax.numpy.clip"
    return is_clip and not keywords_of(call).keys().isdisjoint({"a_min", "a_max"})


def may_have_relative_folder(program: Program, call: ast.Call) -> bool:
    """Return True for a checkpoint in a folder that isn't seen to be absolute."""
    if program.path_of(call.func) not in ROWS["checkpoint"].names:
        return False
    folder = keywords_of(call).get("ckpt_dir", next(iter(call.args), None))
    match program.resolve(folder):
        case ast.Constant(value=str(path)):
            return not path.startswith("/") and "://" not in path
        case ast.Call(func=function):
            path = program.path_of(function) or getattr(function, "attr", "")
            return path not in ("os.path.abspath", "absolute", "resolve")
    return True


# By the type of the node in the syntax tree, and by the name of the construct.
RECOGNIZERS: dict[type, dict[str, Callable[[Program, Any], bool]]] = {
    ast.Call: {
        "pmap": is_call_by_own_name,
        "nested": is_nested,
        "first-copy": is_map_of_first_rows,
        "psum-gradients": is_sum_of_gradients,
        "check-vma": is_checked_average,
        "make-mesh": is_explicit_mesh,
        "scale-without-axis": is_scale_without_axis,
        "frozen-dict": is_method_of_frozen_dict,
        "clip": is_clip_by_old_names,
        "checkpoint-folder": may_have_relative_folder,
    },
    ast.FunctionDef: {"nested": is_nested},
    ast.Subscript: {"first-copy": is_first_copy},
    ast.BinOp: {"divided-loss": is_divided_loss},
    ast.withitem: {"with-mesh": is_entered_mesh},
    ast.Assign: {"pop-params": is_pop_of_params},
}

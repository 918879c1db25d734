"""Read the uses of pmap in a program: their options, and the mapped function."""

import ast
from typing import Any, NamedTuple

import jax

from pmapdp.port.read import FUNCTION, path_of, remember, resolve

PMAPS = {"jax.pmap", "equinox.filter_pmap", "flax.nnx.pmap"}


class Use(NamedTuple):
    """A use of pmap.

    Attributes:
        options: Its keywords and their values, also those that a partial gives.
        function: The function that is mapped in the end, or None if it can't be found.
        inside: Paths of the partials and transformations around the function.
    """

    options: dict[Any, Any]
    function: Any
    inside: list[str]


def keywords_of(call: ast.Call) -> dict[Any, Any]:
    """Return the keyword arguments of a call by name."""
    return {keyword.arg: keyword.value for keyword in call.keywords}


def pmap_options(node: Any) -> dict[Any, Any] | None:
    """Return the keywords if an expression is pmap without its function, or None.

    Partials around pmap give keywords too.
    """
    options: dict[Any, Any] = {}
    call = resolve(node)
    seen: list[Any] = []
    while isinstance(call, ast.Call) and call not in seen:
        seen.append(call)
        options = keywords_of(call) | options
        is_partial = path_of(call.func) == "functools.partial"
        if call.args and not is_partial:
            return None
        node = call.args[0] if is_partial else call.func
        call = resolve(node)
    return options if path_of(node) in PMAPS else None


def unwrap(node: Any) -> tuple[Any, list[str]]:
    """Find the function behind partials and transformations, and their paths."""
    inside: list[str] = []
    call = resolve(node)
    seen: list[Any] = []
    while isinstance(call, ast.Call) and call not in seen:
        seen.append(call)
        inside.append(path_of(call.func))
        functions = [argument for argument in call.args if not path_of(argument)]
        call = resolve(functions[0]) if functions else None
    return (call if isinstance(call, FUNCTION) else None), inside


@remember
def read_pmap(node: Any) -> Use | None:
    """Read a call of pmap, or a function with pmap as its decorator."""
    node = resolve(node)
    if isinstance(node, ast.FunctionDef):
        for decorator in node.decorator_list:
            options = pmap_options(decorator)
            if options is not None:
                return Use(options, node, [])
    if isinstance(node, ast.Call) and node.args:
        options = pmap_options(node.func)
        if options is not None:
            if len(node.args) > 1:
                options["axis_name"] = node.args[1]
            return Use(options | keywords_of(node), *unwrap(node.args[0]))
    return None


@remember
def is_stacked(node: Any) -> bool:
    """Return True for `[N, ...]`: a pmapped function's result, or a replicated tree.

    A part of either is stacked, too. The result itself isn't known to be, unless the
    function returns one array: otherwise it may be a tuple, whose first part is no row.
    """
    value = resolve(node)
    is_whole = isinstance(value, ast.Call)
    while isinstance(value, ast.Subscript | ast.Attribute):
        if isinstance(value, ast.Attribute) and value.attr in dir(jax.Array):
            return False
        value = resolve(value.value)
    if not isinstance(value, ast.Call):
        return False
    if path_of(value.func) == "flax.jax_utils.replicate":
        return True
    use = read_pmap(value.func)
    if use is None or (is_whole and not returns_array(use.function)):
        return False
    out_axes = resolve(use.options.get("out_axes"))
    return getattr(out_axes, "value", 0) is not None


def returns_array(function: Any) -> bool:
    """Return True if a function returns what JAX computes of one array."""
    parts = ast.walk(function) if function else ()
    results = [resolve(part.value) for part in parts if isinstance(part, ast.Return)]
    for result in results:
        is_call = isinstance(result, ast.Call)
        if not is_call or not path_of(result.func).startswith("jax."):
            return False
        if any(isinstance(argument, ast.Tuple) for argument in result.args):
            return False
    return bool(results)

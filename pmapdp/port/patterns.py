"""Match expressions with the patterns of table.toml, such as `jax.lax.psum(GRADIENT)`.

A pattern is Python. A dotted name matches whatever is imported from there, `_.reshape`
any function or method of this name, and a word in capitals what `WORDS` or `PREDICATES`
says. Arguments that a pattern doesn't name may be there or not.
"""

import ast
import re
from collections.abc import Callable
from typing import Any

import jax

from pmapdp.port.pmaps import PMAPS, keywords_of, unwrap
from pmapdp.port.read import path_of, resolve

SHARD_MAPS = {"jax.shard_map", "jax.experimental.shard_map.shard_map"}
DEVICE_CALLS = {
    "jax.device_count",
    "jax.local_device_count",
    "jax.devices",
    "jax.local_devices",
}
# People give the number of devices a name, and pass it on where nobody can follow it.
DEVICE_NAME = re.compile(r"(n|num|local)_?(local_)?dev(ice)?s?", re.IGNORECASE)
HOST_TREE = re.compile("batch|data|image|label|input|graph|example|obs|token", re.I)
WORDS = {  # an expression in which a name contains this
    "BATCH": "batch",
    "GRADIENT": "grad",
    "KEY": "rng|key|seed|split",
    "LOSS": "loss|grad",
    "SCALE": "scal",
}


def matches(pattern: Any, node: Any) -> bool:
    """Return True if a pattern matches a node, which is None for a missing argument."""
    if isinstance(pattern, ast.Name):
        return PREDICATES[pattern.id](node)
    if isinstance(pattern, ast.Attribute):
        return matches_name(pattern, node)
    node = resolve(node)
    if isinstance(pattern, ast.Constant):
        return is_constant(node, pattern.value)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.BinOp):
        same = type(pattern.op) is type(node.op)
        return (
            same
            and matches(pattern.left, node.left)
            and matches(pattern.right, node.right)
        )
    return not isinstance(pattern, ast.Call) or matches_call(pattern, node)


def matches_name(pattern: ast.Attribute, node: Any) -> bool:
    """Match a function with a dotted name, or with `_.name`."""
    first = getattr(pattern.value, "id", "")
    if first not in PREDICATES:
        return path_of(node) == ast.unparse(pattern)
    dotted = path_of(node) or ast.unparse(node)
    owner = getattr(node, "value", node)
    return dotted.rpartition(".")[2] == pattern.attr and PREDICATES[first](owner)


def matches_call(pattern: ast.Call, node: ast.Call) -> bool:
    """Match a function and the arguments that the pattern names."""
    if not matches(pattern.func, node.func):
        return False
    for number, expected in enumerate(pattern.args):
        argument = node.args[number] if number < len(node.args) else None
        if not matches(expected, argument):
            return False
    given = keywords_of(node)
    return all(
        matches(expected, given.get(name))
        for name, expected in keywords_of(pattern).items()
    )


def is_constant(node: Any, value: Any) -> bool:
    """Return True if an expression stands for this constant."""
    node = resolve(node)
    return isinstance(node, ast.Constant) and node.value == value


def text_of(node: Any) -> str:
    """Return an expression as text, empty for an argument that isn't there."""
    return "" if node is None else ast.unparse(node)


def names_in(node: Any) -> str:
    """Return all names of an expression in one text."""
    parts = ast.walk(node) if node is not None else ()
    names = [getattr(part, "id", getattr(part, "attr", "")) for part in parts]
    return " ".join(filter(None, names))


def counts_devices(node: Any) -> bool:
    """Return True for a number of devices or a multiple of it, but no quotient."""
    if node is None:
        return False
    parts = list(ast.walk(node))
    if any(isinstance(part, ast.FloorDiv | ast.Div) for part in parts):
        return False
    if any(map(DEVICE_NAME.fullmatch, names_in(node).split())):
        return True
    for part in parts:
        value = resolve(part)
        inner = ast.walk(value) if isinstance(value, ast.expr) else ()
        if any(path_of(getattr(call, "func", None)) in DEVICE_CALLS for call in inner):
            return True
    return False


def takes_first_row(node: Any) -> bool:
    """Return True for a lambda with `[0]` of its argument, `lambda x: float(x[0])`."""
    node = resolve(node)
    if not isinstance(node, ast.Lambda) or not node.args.args:
        return False
    row = f"{node.args.args[0].arg}[0]"
    subscripts = [
        part for part in ast.walk(node.body) if isinstance(part, ast.Subscript)
    ]
    return row in map(ast.unparse, subscripts)


def is_stacked(node: Any) -> bool:
    """Return False for a tree that's on the host, or that is a batch by its name."""
    value = resolve(node)
    is_call = isinstance(value, ast.Call)
    if is_call and path_of(value.func) in ("jax.device_get", "jax.vmap"):
        return False
    return node is not None and not HOST_TREE.match(ast.unparse(node).split(".")[-1])


def averages_gradients(node: Any) -> bool:
    """Return True for a function that calls pmean or psum of gradients."""
    function, _ = unwrap(node)
    for part in ast.walk(function) if function else ():
        is_sum = path_of(getattr(part, "func", None)) in (
            "jax.lax.pmean",
            "jax.lax.psum",
        )
        if is_sum and "grad" in names_in(part).lower():
            return True
    return False


def is_old_flag(node: Any) -> bool:
    """Return True for the name of a setting that this JAX doesn't have."""
    node = resolve(node)
    return isinstance(node, ast.Constant) and node.value not in jax.config.values


def is_about(word: str) -> Callable[[Any], bool]:
    """Make the predicate of an entry of `WORDS`."""
    return lambda node: re.search(WORDS[word], names_in(node), re.I) is not None


def is_axis(node: Any) -> bool:
    """Return True for an argument that's there and isn't None."""
    return node is not None and not is_constant(node, None)


PREDICATES: dict[str, Callable[[Any], bool]] = {
    "_": lambda node: node is not None,
    **{word: is_about(word) for word in WORDS},
    "ARRAY": lambda node: not is_about("KEY")(node),
    "AVERAGES_GRADIENTS": averages_gradients,
    "AXIS": is_axis,
    "CHECKED": lambda node: not is_constant(node, False),
    "DEVICES": counts_devices,
    "FIRST_ROW": takes_first_row,
    "LATER_AXIS": lambda node: bool(re.search(r"(?<!-)\b[1-9]", text_of(node))),
    "MAPPED": lambda node: bool((PMAPS | SHARD_MAPS) & {*unwrap(node)[1]}),
    "NEGATIVE": lambda node: "-" in text_of(node),
    "NO_AXIS": lambda node: not is_axis(node),
    "OLD_FLAG": is_old_flag,
    "OTHER": lambda node: not is_constant(node, 1) and not is_about("GRADIENT")(node),
    "STACKED": is_stacked,
    "WITHOUT_NONE": lambda node: text_of(node) != "" and "None" not in text_of(node),
    "WITH_NONE": lambda node: "None" in text_of(node),
}

"""Find the constructs of pmap in a program, line by line.

`table.md` has a row for each construct, with a comment that lists the dotted names to look for. `rows_of_call` finds
those that only a call's arguments show. To add a construct, add a row, and a rule if it needs one.
"""

import ast
import pkgutil
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

from pmapdp.port.read import FUNCTION, File, constant, functions_around, keywords, path_of, remember, resolve


class Row(NamedTuple):
    """A row of the table, in Markdown. `today` begins with gone, fails, wrong, check, slow or fine."""

    id: str
    construct: str
    today: str
    shard_map: str
    jit: str


class Use(NamedTuple):
    """A use of pmap or shard_map."""

    node: Any
    options: dict[Any, Any]
    function: Any  # the one that is mapped in the end, or None
    name: str
    bound: dict[Any, Any]  # the arguments that functools.partial gives, by name or position
    inside: list[str]  # the transformations on the way to the function


PAGE = Path(__file__).with_name("table.md").read_text()
ROWS = re.findall(r'^\| <a id="(.*?)"></a>(.*?)(?: <!-- (.*) -->)? \| (.*) \| (.*) \| (.*) \|$', PAGE, re.MULTILINE)
TABLE = {row: Row(row, construct, *texts) for row, construct, _, *texts in ROWS}
BY_NAME = {name: row for row, _, names, *_ in ROWS for name in names.split()}
LOST = {row for row in TABLE if TABLE[row].today.startswith("gone")}
BROKEN = LOST | {row for row in TABLE if TABLE[row].today.startswith(("fails", "wrong"))}
PMAPS = ("jax.pmap", "equinox.filter_pmap", "flax.nnx.pmap")
SHARD_MAPS = ("jax.shard_map", "jax.experimental.shard_map.shard_map")
STACKS = [
    f"{name}()" for name, row in BY_NAME.items() if row in ("replicate", "shard", "put-replicated", "put-sharded")
]
OPTIONS = {  # the text of an argument of pmap, and its row
    r"(in|out)_axes=[^N]*$": "in-axes", r"(in|out)_axes=.*None": "axes-none", r"(in|out)_axes=.*-\d": "axes-negative",
    r"(in|out)_axes=.*(?<!-)\b[1-9]": "axes-one", "static_broadcasted": "static", "donate": "donate",
    "^devices=": "devices", "^(axis_size|backend)=": "axis-size", "global_arg_shapes": "global-shapes",
}  # fmt: skip
COUNT = re.compile(r"(\w+\.)*_?((n|num|local|number_of)_?)?(local_)?dev(ice)?s?(_count|_num)?", re.IGNORECASE)
COUNT_PATHS = ("jax.local_device_count()", "jax.device_count()")
KEY = re.compile(r"rng|key|seed", re.IGNORECASE)
BATCH = re.compile(r"batch|data|image|label|input|graph|example|obs|token|^xs?$|^ys?$", re.IGNORECASE)


def returned(function: Any) -> list[Any]:
    """List the values that a function returns, without those of functions inside it."""
    if isinstance(function, ast.Lambda):
        return [function.body]
    every = [each for each in ast.walk(function) if isinstance(each, ast.Return) and each.value]
    return [each.value for each in every if functions_around(each)[0] is function]


def pmap_options(node: Any) -> dict[Any, Any] | None:
    """Give the keywords so far if an expression is pmap itself, perhaps behind a partial; otherwise None."""
    call = resolve(node)
    if not isinstance(call, ast.Call):
        return {} if call in PMAPS else None
    is_partial = path_of(call.func) == "functools.partial" and bool(call.args)
    known = pmap_options(call.args[0] if is_partial else call.func) if is_partial or not call.args else None
    return None if known is None else known | keywords(call)


def read_use(call: Any, options: dict[Any, Any]) -> Use:
    """Find the function that a transformation is given, behind partials and other transformations."""
    bound, inside, node = dict[Any, Any](), list[str](), call.args[0]
    while isinstance(inner := resolve(node), ast.Call):
        path, maker = path_of(inner.func), resolve(inner.func)
        is_scan = path == "functools.partial" and path_of(inner.args[0]) == "jax.lax.scan"
        if path == "functools.partial" and not is_scan:
            bound |= dict(enumerate(inner.args[1:])) | keywords(inner)
        inside.append("jax.lax.scan" if is_scan else path)
        node = next(iter(returned(maker) if isinstance(maker, FUNCTION) else inner.args[is_scan:]), None)
    function = inner if isinstance(inner, FUNCTION) else None
    return Use(call, options, function, getattr(function, "name", ast.unparse(call.args[0])), bound, inside)


@remember
def mapped(node: Any) -> Use | None:
    """Read a pmapped function: a call of pmap, a decorated function, or what another function returns."""
    match found := resolve(node):
        case ast.FunctionDef(decorator_list=decorators, name=name):
            for each in decorators:
                if (options := pmap_options(each)) is not None:
                    return Use(each, options, found, name, {}, [])
        case ast.Call(func=function, args=args):
            if (options := pmap_options(function)) is not None and args:
                return read_use(found, options | keywords(found) | dict(zip(["axis_name"], args[1:], strict=False)))
            if isinstance(maker := resolve(function), FUNCTION):
                return next(filter(None, map(mapped, returned(maker))), None)
    return None


@remember
def is_stacked(node: Any) -> bool:
    """Tell if a value is an array `[N, ...]`, or a tree or tuple of these."""
    match found := resolve(node):
        case ast.Attribute(value=value, attr=name):
            return not hasattr(jax.Array, name) and is_stacked(value)
        case ast.Subscript(value=value):
            return is_stacked(value)
        case ast.Call(func=function):
            use = mapped(function)
            return path_of(found) in STACKS or (
                use is not None and ast.unparse(use.options.get("out_axes", [])) != "None"
            )
    return False


def may_be_tuple(node: Any) -> bool:
    """Tell if an expression calls a pmapped function that returns a tuple, or isn't known."""
    use = mapped(resolve(node).func) if isinstance(resolve(node), ast.Call) else None
    values = returned(use.function) if use and use.function else [ast.Tuple([])]
    return use is not None and any(isinstance(resolve(each), ast.Tuple) for each in values)


def counts_devices(node: Any) -> bool:
    """Tell if an expression, or the first size of a shape, is the number of devices or a multiple of it."""
    match resolve(node):
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return counts_devices(left) or counts_devices(right)
        case ast.BinOp(left=first, op=ast.Add()) | ast.Tuple(elts=[first, *_]) | ast.List(elts=[first, *_]):
            return counts_devices(first)
        case ast.Call(func=ast.Name(id="len" | "min"), args=args):
            return any(
                path_of(each) in ("jax.devices()", "jax.local_devices()") or counts_devices(each) for each in args
            )
    is_name = isinstance(node, ast.Name | ast.Attribute)
    return path_of(node) in COUNT_PATHS or bool(is_name and COUNT.fullmatch(ast.unparse(node)))


def is_gradient_sum(node: Any) -> bool:
    """Tell if a node adds up gradients over devices, going by their name."""
    is_sum = isinstance(node, ast.Call) and node.args and path_of(node.func) in ("jax.lax.pmean", "jax.lax.psum")
    return bool(is_sum) and "grad" in ast.unparse(node.args[0])


def rows_of_call(call: Any, functions: set[Any]) -> Iterator[str]:
    """Find what a call's arguments show. `functions` are those that pmap maps."""
    given, path, name = keywords(call), path_of(call.func), ast.unparse(call.func)
    args, texts = [*call.args, *given.values()], {each: ast.unparse(value) for each, value in given.items()}
    first = args[0] if args else None
    use = mapped(call) if mapped(call) and mapped(call).node is call else None
    if (options := use.options if use else pmap_options(call)) is not None:
        every = [f"{each}={ast.unparse(value)}" for each, value in options.items()]
        yield from (row for pattern, row in OPTIONS.items() if any(re.search(pattern, each) for each in every))
        yield "pmap" if path not in PMAPS else ""
    is_inside = (use or mapped(call.func)) and functions & {*functions_around(call)}
    if is_inside or (use and {*PMAPS, *SHARD_MAPS} & {*use.inside}):
        yield "nested"
    axes = {
        each for each in ("axis_name", "cross_replica_axis", "axis_index_groups") if texts.get(each, "None") != "None"
    }
    yield "axis-groups" if "axis_index_groups" in axes else ""
    match path.rpartition(".")[2] or name.rpartition(".")[2]:
        case "shard_map" if path in SHARD_MAPS and call.args:
            is_checked = "False" not in (texts.get("check_vma"), texts.get("check_rep"))
            body = ast.walk(read_use(call, {}).function or ast.Pass())
            yield "check-vma" if is_checked and any(map(is_gradient_sum, body)) else ""
            yield "check-rep" if "check_rep" in given and path == "jax.shard_map" else ""
        case "psum":
            yield (
                "psum-one"
                if constant(first) == 1
                else "psum-gradients"
                if is_gradient_sum(call)
                else "psum" * bool(path)
            )
        case "fold_in":
            yield {"jax.lax.axis_index()": "fold-in", "jax.process_index()": "host-key"}.get(path_of(args[-1]), "")
        case "split" if path == "jax.random.split" and any(map(counts_devices, args)):
            yield "prng-key"
        case "reshape" if any(map(counts_devices, args)):
            yield "prng-key" if KEY.search(name) or "random.split" in name else "shard"
        case "stack" | "array" | "asarray" if isinstance(first, ast.BinOp) and counts_devices(first.right):
            yield "replicate"
        case "broadcast_to" | "repeat" | "tile" | "broadcast" if any(map(counts_devices, args)):
            yield "replicate"
        case "BatchNorm" if axes:
            yield "batch-norm"
        case "value_and_grad" if not path:  # a method, such as DynamicScale's
            yield "dynamic-scale" if axes else "scale-without-axis" if "scal" in name.lower() else ""
        case "map" | "tree_map" | "tree_multimap" | "map_structure" if "tree" in path + name and len(args) > 1:
            part = getattr(first, "body", None)
            is_local = path_of(args[1]) == "jax.device_get()" or BATCH.search(ast.unparse(args[1]))
            yield "first-copy" if isinstance(part, ast.Subscript) and constant(part.slice) == 0 and not is_local else ""
        case "update" if path.startswith("jax.config") and constant(first) not in {None, *jax.config.values}:
            yield "old-flag"


def row_of_path(path: str) -> str:
    """Find the row of a dotted path, or of what it begins with; "gone" if the installed libraries lack it."""
    parts = path.split(".") if "(" not in path else []
    starts = [".".join(parts[:number]) for number in range(len(parts), 1, -1)]
    return next((BY_NAME[each] for each in starts if each in BY_NAME), "gone" if parts and is_missing(path) else "")


@cache
def is_missing(path: str) -> bool:
    """Tell if the installed JAX, Flax or Optax lacks a name."""
    with warnings.catch_warnings(action="ignore"):
        try:
            if path.split(".")[0] in ("jax", "flax", "optax"):
                pkgutil.resolve_name(path)
        except (ModuleNotFoundError, AttributeError) as error:
            return isinstance(error, AttributeError) or path.startswith(str(error.name))
        except Exception:  # a module that can't be imported here may well be there
            return False
    return False


def rows_of(node: Any, functions: set[Any]) -> Iterator[str]:
    """Find the constructs of one node."""
    match node:
        case ast.alias(name=name):
            row = row_of_path(path_of(node) if isinstance(node.parent, ast.ImportFrom) else name)
            yield row if row in LOST else ""
        case ast.Attribute() | ast.Name(ctx=ast.Load()) if not isinstance(node.parent, ast.Attribute):
            root = next(each for each in ast.walk(node) if not isinstance(each, ast.Attribute))
            is_listed = isinstance(root, ast.Name) and row_of_path(path_of(root)) in LOST  # at the import
            row = BY_NAME.get(f"?.{getattr(node, 'attr', '')}") or row_of_path("" if is_listed else path_of(node))
            yield row if row != "psum" else ""  # its arguments tell more
        case ast.Call():
            yield from rows_of_call(node, functions)
        case ast.Subscript(value=value, slice=index) if constant(index) == 0 and is_stacked(value):
            yield "" if may_be_tuple(value) else "first-copy"
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Div(), right=right) if "batch" in ast.unparse(left).lower():
            yield "hosts" if path_of(right) in ("jax.process_count()", "jax.host_count()") else ""


def is_guarded(node: Any) -> bool:
    """Tell if a program catches a name's error, or asks first if the name is there."""
    while node := getattr(node, "parent", None):
        test = ast.unparse(getattr(node, "test", ast.Pass()))
        if isinstance(node, ast.Try) or any(word in test for word in ("hasattr", "version", "TYPE_CHECKING")):
            return True
    return False


def is_other_axis(node: Any, axes: set[Any]) -> bool:
    """Tell if a collective is over an axis that no pmap has, such as a vmap's."""
    call = node if isinstance(node, ast.Call) else node.parent
    if not isinstance(call, ast.Call) or not path_of(call.func).startswith("jax.lax.") or None in axes:
        return False
    position = 0 if path_of(call.func).endswith("axis_index") else 1
    axis = constant(keywords(call).get("axis_name", [*call.args, None, None][position]))
    return axis is not None and axis not in axes


def find(files: dict[str, File]) -> tuple[list[tuple[str, int, Row, str]], list[Use]]:
    """Find a program's constructs, as (path, line, row, code), and the functions that it maps."""
    nodes = [node for file in files.values() for node in file.nodes]
    uses = {use.node: use for node in nodes if isinstance(node, ast.Call | ast.FunctionDef) and (use := mapped(node))}
    functions = {use.function for use in uses.values()} - {None}
    axes = {constant(use.options.get("axis_name")) for use in uses.values() if "axis_name" in use.options}
    order = list(TABLE)
    found: dict[Any, tuple[str, int, Row, str]] = {}
    for node in nodes:
        for row in filter(None, rows_of(node, functions)):
            if (row in BROKEN or uses) and not (row in LOST and is_guarded(node)) and not is_other_axis(node, axes):
                key = (node.file.path, node.lineno, order.index(row))
                found.setdefault(key, (*key[:2], TABLE[row], " ".join(ast.unparse(node).split())))
    return [found[key] for key in sorted(found)], list(uses.values())

"""Find the constructs of pmap in a program, line by line.

`table.md` has a row for each construct, with a comment that lists the dotted names to look for. The second column
begins with the status: gone, fails, wrong, check, slow or fine. `rows_of_call` finds the constructs that only a call's
arguments show. To add a construct, add a row, and a rule if it needs one.
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

from pmapdp.port.read import File, constant, keywords, path_of, remember, resolve


class Use(NamedTuple):
    """A use of pmap or shard_map."""

    node: Any
    options: dict[Any, Any]
    function: Any  # the one that is mapped in the end, or None
    name: str
    inside: list[str]  # the transformations on the way to the function, functools.partial too


PAGE = Path(__file__).with_name("table.md").read_text()
ROWS = re.findall(r'^\| <a id="(.*?)"></a>.*?(?: <!-- (.*) -->)? \| (.*) \| (.*) \| (.*) \|$', PAGE, re.MULTILINE)
TABLE = {row: dict(zip(("today", "shard_map", "jit"), texts, strict=True)) for row, _, *texts in ROWS}
STATUS = {row: re.split(r"\W", texts["today"])[0] for row, texts in TABLE.items()}
BY_NAME = {name: row for row, names, *_ in ROWS for name in names.split()}
BROKEN = ("gone", "fails", "wrong")
PMAPS = {"jax.pmap", "equinox.filter_pmap", "flax.nnx.pmap"}
SHARD_MAPS = {"jax.shard_map", "jax.experimental.shard_map.shard_map"}
OPTIONS = {  # the text of an argument of pmap, and its row
    r"(in|out)_axes=[^N]*$": "in-axes", r"(in|out)_axes=.*None": "axes-none", r"(in|out)_axes=.*-\d": "axes-negative",
    r"(in|out)_axes=.*(?<!-)\b[1-9]": "axes-one", "static_broadcasted": "static", "donate": "donate",
    "^devices=": "devices", "^(axis_size|backend)=": "axis-size", "global_arg_shapes": "global-shapes",
}  # fmt: skip
COUNT = re.compile(r"device_count\(|jax\.(local_)?devices\(|\b(n|num|local)_?(local_)?dev(ice)?s?\b", re.IGNORECASE)
KEY = re.compile(r"rng|key|seed", re.IGNORECASE)
BATCH = re.compile(r"batch|data|image|label|input|graph|example|obs|token|^xs?$|^ys?$", re.IGNORECASE)


def pmap_options(node: Any) -> dict[Any, Any] | None:
    """Give the keywords so far if an expression is pmap itself, perhaps behind a partial; otherwise None."""
    call = resolve(node)
    if not isinstance(call, ast.Call):
        return {} if isinstance(call, str) and call in PMAPS else None
    is_partial = path_of(call.func) == "functools.partial" and bool(call.args)
    known = pmap_options(call.args[0] if is_partial else call.func) if is_partial or not call.args else None
    return None if known is None else known | keywords(call)


def read_use(call: Any, options: dict[Any, Any]) -> Use:
    """Find the function that a transformation is given, behind partials and other transformations."""
    inside, node = list[str](), call.args[0]
    while isinstance(inner := resolve(node), ast.Call) and len(inside) < 9:  # `f = g(f)` has no end
        inside.append(path_of(inner.func))
        node = next((each for each in inner.args if not path_of(each)), None)
    function = inner if isinstance(inner, ast.FunctionDef | ast.Lambda) else None
    return Use(call, options, function, getattr(function, "name", ast.unparse(call.args[0])), inside)


@remember
def mapped(node: Any) -> Use | None:
    """Read a pmapped function: a call of pmap, or a decorated function."""
    match found := resolve(node):
        case ast.FunctionDef(decorator_list=decorators, name=name):
            for each in decorators:
                if (options := pmap_options(each)) is not None:
                    return Use(each, options, found, name, [])
        case ast.Call(func=function, args=args):
            if (options := pmap_options(function)) is not None and args:
                return read_use(found, options | keywords(found) | dict(zip(["axis_name"], args[1:], strict=False)))
    return None


@remember
def find_stacked(node: Any) -> Any:
    """Find the call of a pmapped function whose result `[N, ...]` a value is, or is a part of; otherwise None."""
    match found := resolve(node):
        case ast.Subscript(value=value):
            return find_stacked(value)
        case ast.Attribute(value=value, attr=name) if not hasattr(jax.Array, name):
            return find_stacked(value)
        case ast.Call(func=function):
            use = mapped(function)
            return found if use and ast.unparse(use.options.get("out_axes", [])) != "None" else None
    return None


def counts_devices(node: Any) -> bool:
    """Return True if an expression has the number of devices in it, as a factor or in a shape."""
    parts = [resolve(each) for each in ast.walk(node) if isinstance(each, ast.expr) and hasattr(each, "file")]
    texts = [ast.unparse(node), *(ast.unparse(each) for each in parts if isinstance(each, ast.expr))]
    return any(map(COUNT.search, texts)) and not any("/" in text for text in texts)


def is_gradient_sum(node: Any) -> bool:
    """Return True if a node adds up gradients over devices, going by their name."""
    is_sum = isinstance(node, ast.Call) and node.args and path_of(node.func) in ("jax.lax.pmean", "jax.lax.psum")
    return bool(is_sum) and "grad" in ast.unparse(node.args[0])


def rows_of_call(call: Any) -> Iterator[str]:
    """Find what a call's arguments show."""
    given, path, name = keywords(call), path_of(call.func), ast.unparse(call.func)
    args, texts = [*call.args, *given.values()], {each: ast.unparse(value) for each, value in given.items()}
    first = args[0] if args else None
    use = mapped(call) if mapped(call) and mapped(call).node is call else None
    if (options := use.options if use else pmap_options(call)) is not None:
        every = [f"{each}={ast.unparse(value)}" for each, value in options.items()]
        yield from (row for pattern, row in OPTIONS.items() if any(re.search(pattern, each) for each in every))
        yield "pmap" if path not in PMAPS else ""
    yield "nested" if use and (PMAPS | SHARD_MAPS) & {*use.inside} else ""
    has_axis = any(texts.get(each, "None") != "None" for each in ("axis_name", "cross_replica_axis"))
    yield "axis-groups" if "axis_index_groups" in given else ""
    match path.rpartition(".")[2] or name.rpartition(".")[2]:
        case "shard_map" if path in SHARD_MAPS and call.args:
            is_checked = "False" not in (texts.get("check_vma"), texts.get("check_rep"))
            body = ast.walk(read_use(call, {}).function or ast.Pass())
            yield "check-vma" if is_checked and any(map(is_gradient_sum, body)) else ""
            yield "check-rep" if "check_rep" in given and path == "jax.shard_map" else ""
        case "psum" if path:
            yield "psum-one" if constant(first) == 1 else "psum-gradients" if is_gradient_sum(call) else "psum"
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
        case "BatchNorm" if has_axis:
            yield "batch-norm"
        case "value_and_grad" if not path:  # a method, such as DynamicScale's
            yield "dynamic-scale" if has_axis else "scale-without-axis" if "scal" in name.lower() else ""
        case "map" | "tree_map" | "tree_multimap" | "map_structure" if "tree" in path + name and len(args) > 1:
            part = getattr(first, "body", None)
            is_local = path_of(args[1]) in ("jax.device_get()", "jax.vmap()()") or BATCH.search(ast.unparse(args[1]))
            yield "first-copy" if isinstance(part, ast.Subscript) and constant(part.slice) == 0 and not is_local else ""
        case "update" if path.startswith("jax.config") and constant(first) not in {None, *jax.config.values}:
            yield "old-flag"


@cache
def row_of_path(path: str) -> str:
    """Find the row of a dotted path, or of what it begins with; "gone" if the installed libraries lack it."""
    parts = path.split(".") if "(" not in path else []
    for number in range(len(parts), 1, -1):
        if row := BY_NAME.get(".".join(parts[:number])):
            return row
    return "gone" if parts[:1] in (["jax"], ["flax"], ["optax"]) and is_missing(path) else ""


def is_missing(path: str) -> bool:
    """Return True if the installed JAX, Flax or Optax lacks a name; not if a module can't be imported here."""
    with warnings.catch_warnings(action="ignore"):
        try:
            pkgutil.resolve_name(path)
        except Exception as error:
            is_module = isinstance(error, ModuleNotFoundError) and path.startswith(str(error.name))
            return is_module or isinstance(error, AttributeError)
    return False


def rows_of(node: Any) -> Iterator[str]:
    """Find the constructs of one node."""
    match node:
        case ast.alias(name=name):
            row = row_of_path(path_of(node) if isinstance(node.parent, ast.ImportFrom) else name)
            yield row if STATUS.get(row) == "gone" else ""
        case ast.Attribute() | ast.Name(ctx=ast.Load()) if not isinstance(node.parent, ast.Attribute):
            row = BY_NAME.get(f"?.{getattr(node, 'attr', '')}") or row_of_path(path_of(node))
            yield row if row != "psum" else ""  # its arguments tell more
        case ast.Call():
            yield from rows_of_call(node)
        case ast.Subscript(value=value, slice=index) if constant(index) == 0 and (call := find_stacked(value)):
            # Of `mapped(x)[0]` nobody knows if it's a row or the first of two results.
            yield "first-copy" if call is not resolve(value) else ""
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Div(), right=right) if "batch" in ast.unparse(left).lower():
            yield "hosts" if path_of(right) in ("jax.process_count()", "jax.host_count()") else ""


def is_guarded(node: Any) -> bool:
    """Return True if a program catches a name's error, or asks first if the name is there."""
    while node := getattr(node, "parent", None):
        test = ast.unparse(getattr(node, "test", ast.Pass()))
        if isinstance(node, ast.Try) or any(word in test for word in ("hasattr", "version", "TYPE_CHECKING")):
            return True
    return False


def is_other_axis(node: Any, axes: set[Any]) -> bool:
    """Return True if a collective is over an axis that no pmap has, such as a vmap's."""
    call = node if isinstance(node, ast.Call) else node.parent
    if not isinstance(call, ast.Call) or not path_of(call.func).startswith("jax.lax.") or None in axes:
        return False
    position = 0 if path_of(call.func).endswith("axis_index") else 1
    axis = constant(keywords(call).get("axis_name", [*call.args, None, None][position]))
    return axis is not None and axis not in axes


def find(files: dict[str, File]) -> tuple[list[dict[str, Any]], list[Use]]:
    """Find a program's constructs, with their rows of the table, and the functions that it maps."""
    nodes = [node for file in files.values() for node in file.nodes]
    uses = {use.node: use for node in nodes if isinstance(node, ast.Call | ast.FunctionDef) and (use := mapped(node))}
    axes = {constant(use.options.get("axis_name")) for use in uses.values() if "axis_name" in use.options}
    order, found = list(TABLE), dict[Any, Any]()
    for node in nodes:
        for row in filter(None, rows_of(node)):
            is_open = STATUS[row] in BROKEN or uses  # a program without pmap may use the rest as it likes
            if is_open and not (STATUS[row] == "gone" and is_guarded(node)) and not is_other_axis(node, axes):
                found.setdefault((node.file.path, node.lineno, order.index(row)), node)
    return [
        {"path": path, "line": line, "construct": order[row], "status": STATUS[order[row]]}
        | {"code": " ".join(ast.unparse(node).split()), **TABLE[order[row]], "link": f"docs/porting.md#{order[row]}"}
        for (path, line, row), node in sorted(found.items(), key=lambda each: each[0])
    ], list(uses.values())

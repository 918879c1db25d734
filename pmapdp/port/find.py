"""Find the constructs of pmap in a program, line by line.

`table.md` has a row for each construct: a comment lists its dotted names, and the
second column begins with the status: gone, fails, wrong, check, slow or fine. `CALLS`
finds what arguments show. To add a construct, add a row to the table.
"""

import ast
import pkgutil
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from pmapdp.port.read import FUNCTION, File, path_of, remember, resolve


class Use(NamedTuple):
    """A use of pmap: its options, the function that is mapped in the end, and what is around it, also partials."""

    options: dict[Any, Any]
    function: Any  # None if it can't be found
    inside: list[str]


PAGE = Path(__file__).with_name("table.md").read_text()
ROWS = re.findall(
    r'^\| <a id="(.*?)"></a>.*?(?: <!-- (.*) -->)? \| (.*) \| (.*) \| (.*) \|$',
    PAGE,
    re.MULTILINE,
)
TABLE = {
    row: dict(zip(("today", "shard_map", "jit"), texts, strict=True))
    for row, _, *texts in ROWS
}
STATUS = {row: re.split(r"\W", texts["today"])[0] for row, texts in TABLE.items()}
BY_NAME = {name: row for row, names, *_ in ROWS for name in names.split()}
BROKEN = ("gone", "fails", "wrong")
PMAPS = {"jax.pmap", "equinox.filter_pmap", "flax.nnx.pmap"}
SHARD_MAPS = {"jax.shard_map", "jax.experimental.shard_map.shard_map"}
COUNT = r"[^/,]*(device_count\(|jax\.(local_)?devices\(|\b(n|num|local)_?(local_)?dev(ice)?s?\b)[^/,]*(,|$)"
BATCHES = r"\S*(batch|data|image|label|input|graph|example|obs|token)|[xy]s?\b"
OPTIONS = {  # a keyword of pmap, and its row
    r"(in|out)_axes=[^N]*$": "in-axes", r"(in|out)_axes=.*None": "axes-none", r"(in|out)_axes=.*-\d": "axes-negative",
    r"(in|out)_axes=.*(?<!-)\b[1-9]": "axes-one", "static_broadcasted": "static", "donate": "donate",
    "devices=": "devices", "(axis_size|backend)=": "axis-size", "global_arg_shapes": "global-shapes",
}  # fmt: skip
CALLS = (  # a function, how its arguments begin, and the row; the first that fits is taken
    (r"jax\.lax\.psum", r"1,", "psum-one"),
    (r"jax\.lax\.psum", r"[^#]*grad", "psum-gradients"),
    (r"jax\.lax\.psum", r"", "psum"),
    (r".*\bfold_in", r".*, jax\.lax\.axis_index\(", "fold-in"),
    (r".*\bfold_in", r".*, jax\.process_index\(", "host-key"),
    (
        r"jax\.random\.split|.*(rng|key|seed|random\.split).*\breshape",
        "(.*, )?" + COUNT,
        "prng-key",
    ),
    (r".*\breshape", "(.*, )?" + COUNT, "shard"),
    (r".*\b(stack|array|asarray)", r".*\] \* " + COUNT, "replicate"),
    (r".*\b(broadcast_to|repeat|tile|broadcast)", "(.*, )?" + COUNT, "replicate"),
    (r".*\bBatchNorm", r".*(axis_name|cross_replica_axis)=(?!None)", "batch-norm"),
    (r".*\bvalue_and_grad", r".*axis_name=(?!None)", "dynamic-scale"),
    (r".*scal.*\bvalue_and_grad", r"", "scale-without-axis"),
    (
        r".*tree.*map.*",
        rf"lambda (\w+): \1\[0\], (?!.*jax\.(device_get|vmap)\(|{BATCHES})",
        "first-copy",
    ),
    (r"jax\.config\.update", rf"'(?!({'|'.join(jax.config.values)})')", "old-flag"),
    (r"jax\.shard_map", r".*check_rep=", "check-rep"),
)


def pmap_options(node: Any) -> dict[Any, Any] | None:
    """Give the keywords so far if an expression is pmap itself, perhaps behind a partial; otherwise None."""
    options = dict[Any, Any]()
    for _ in range(9):  # `f = partial(f)` has no end
        if isinstance(call := resolve(node), ast.Call):
            options = {each.arg: each.value for each in call.keywords} | options
            node = (
                call.args[0]
                if path_of(call.func) == "functools.partial"
                else None
                if call.args
                else call.func
            )
    return options if path_of(node) in PMAPS else None


def unwrap(node: Any) -> tuple[Any, list[str]]:
    """Find the function behind partials and transformations, or None, and the paths of these."""
    inside = list[str]()
    while isinstance(found := resolve(node), ast.Call) and len(inside) < 9:
        inside.append(path_of(found.func))
        node = next((each for each in found.args if not path_of(each)), None)
    return found if isinstance(found, FUNCTION) else None, inside


@remember
def read_pmap(node: Any) -> Use | None:
    """Read a pmapped function: a call of pmap, or a decorated function."""
    match found := resolve(node):
        case ast.FunctionDef(decorator_list=decorators):
            every = [
                options
                for each in decorators
                if (options := pmap_options(each)) is not None
            ]
            return Use(every[0], found, []) if every else None
        case ast.Call(func=func, args=[first, *others]) if (
            options := pmap_options(func)
        ) is not None:
            options |= dict(zip(["axis_name"], others, strict=False))
            return Use(
                options | {each.arg: each.value for each in found.keywords},
                *unwrap(first),
            )
    return None


@remember
def find_stacked(node: Any) -> Any:
    """Find the call of a pmapped function whose result `[N, ...]` a value is, or is a part of; otherwise None."""
    match found := resolve(node):
        case ast.Subscript(value=x) | ast.Attribute(value=x) if getattr(
            found, "attr", ""
        ) not in dir(jax.Array):
            return find_stacked(x)
        case ast.Call(func=func) if use := read_pmap(func):
            return (
                found
                if ast.unparse(use.options.get("out_axes", [])) != "None"
                else None
            )
    return None


def expand(node: Any) -> str:
    """Write an expression with library names in full, and after a # the value of each of its other names."""
    text = ast.unparse(node)
    for each in ast.walk(node):
        found = resolve(each) if isinstance(each, ast.Name | ast.Attribute) else None
        if isinstance(found, str | ast.Constant):
            full = found if isinstance(found, str) else ast.unparse(found)
            text = re.sub(
                rf"(?<![\w.]){re.escape(ast.unparse(each))}\b(?!=)",
                lambda _, full=full: full,
                text,
            )
        elif isinstance(found, ast.expr) and found is not each:
            text += f" # {ast.unparse(found)}"
    return text


def rows_of_call(call: Any) -> Iterator[str]:
    """Find what a call's arguments show."""
    name, use = path_of(call.func) or ast.unparse(call.func), read_pmap(call)
    if (options := use.options if use else pmap_options(call)) is not None:
        texts = [f"{each}={ast.unparse(value)}" for each, value in options.items()]
        yield from (
            row
            for pattern, row in OPTIONS.items()
            if any(re.match(pattern, each) for each in texts)
        )
        yield "pmap" if name not in PMAPS else ""
        yield "nested" if use and (PMAPS | SHARD_MAPS) & {*use.inside} else ""
    given = ", ".join(map(expand, [*call.args, *call.keywords]))
    fitting = (
        row
        for names, start, row in CALLS
        if re.fullmatch(names, name, re.I) and re.match(start, given, re.I)
    )
    yield next(fitting, "")
    yield (
        "axis-groups"
        if any(each.arg == "axis_index_groups" for each in call.keywords)
        else ""
    )
    if (
        name in SHARD_MAPS
        and call.args
        and not re.search("check_(vma|rep)=False", given)
    ):
        calls = [
            node
            for node in ast.walk(unwrap(call.args[0])[0] or call.func)
            if isinstance(node, ast.Call)
        ]
        sums = [
            each
            for each in calls
            if path_of(each.func) in ("jax.lax.pmean", "jax.lax.psum")
        ]
        yield "check-vma" if any("grad" in ast.unparse(each) for each in sums) else ""


@remember
def row_of_path(path: str) -> str:
    """Find the row of a dotted path, or of what it begins with; "gone" if the installed libraries lack it."""
    parts = path.split(".")
    rows = [
        BY_NAME.get(".".join(parts[:number]), "") for number in range(len(parts), 1, -1)
    ]
    is_gone = (
        not any(rows)
        and parts[:1] in (["jax"], ["flax"], ["optax"])
        and is_missing(path)
    )
    return next(filter(None, rows), "gone" if is_gone else "")


def is_missing(path: str) -> bool:
    """Return True if the installed JAX, Flax or Optax lacks a name. Another missing library does not count."""
    with warnings.catch_warnings(action="ignore"):
        try:
            pkgutil.resolve_name(path)
        except Exception as error:
            return isinstance(error, AttributeError) or path.startswith(
                getattr(error, "name", None) or "?"
            )
    return False


def rows_of(node: Any) -> Iterator[str]:
    """Find the constructs of one node."""
    match node:
        case ast.alias(name=name):
            row = row_of_path(
                path_of(node) if isinstance(node.parent, ast.ImportFrom) else name
            )
            yield row if STATUS.get(row) == "gone" else ""
        case ast.Attribute() | ast.Name(ctx=ast.Load()) if not isinstance(
            node.parent, ast.Attribute
        ):
            yield BY_NAME.get(f"?.{getattr(node, 'attr', '')}") or row_of_path(
                path_of(node)
            )
        case ast.Call():
            yield from rows_of_call(node)
        case ast.Subscript(value=value, slice=ast.Constant(0)) if call := find_stacked(
            value
        ):
            # Of `mapped(x)[0]` nobody knows if it's a row or the first of two results.
            yield "first-copy" if call is not resolve(value) else ""
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Div(), right=right) if (
            "batch" in ast.unparse(left).lower()
        ):
            yield (
                "hosts"
                if re.search(r"jax\.(process|host)_count\(", expand(right))
                else ""
            )


def is_exempt(node: Any, row: str, axes: set[str]) -> bool:
    """Return True if what is gone is in a `try` or behind a test, or if a collective is over the axis of no pmap."""
    call = node if isinstance(node, ast.Call) else node.parent
    if isinstance(call, ast.Call) and path_of(call.func).startswith("jax.lax."):
        given = [
            expand(each).removeprefix("axis_name=")
            for each in [*call.args, *call.keywords]
        ]
        return any(text[0] == "'" for text in given) and all(
            axis[0] == "'" and axis not in given for axis in axes
        )
    while STATUS[row] == "gone" and (node := getattr(node, "parent", None)):
        test = ast.unparse(getattr(node, "test", ast.Pass()))
        if isinstance(node, ast.Try) or re.search(
            "hasattr|version|TYPE_CHECKING", test
        ):
            return True
    return False


def find(files: dict[str, File]) -> tuple[list[dict[str, Any]], list[Use]]:
    """Find a program's constructs, with their rows of the table, and the functions that it maps."""
    nodes = [node for file in files.values() for node in file.nodes]
    uses = [
        use
        for node in nodes
        if isinstance(node, ast.Call | ast.FunctionDef) and (use := read_pmap(node))
    ]
    axes = {
        expand(use.options["axis_name"]) for use in uses if "axis_name" in use.options
    }
    found = {
        (node.file.path, node.lineno, row): node
        for node in reversed(nodes)  # of a line and a row, the outermost node
        for row in filter(
            None, rows_of(node)
        )  # a program without pmap may use what isn't broken as it likes
        if (uses or STATUS[row] in BROKEN) and not is_exempt(node, row, axes)
    }
    return [
        {
            "path": path,
            "line": line,
            "construct": row,
            "status": STATUS[row],
            **TABLE[row],
        }
        | {
            "code": " ".join(ast.unparse(node).split()),
            "link": f"docs/porting.md#{row}",
        }
        for (path, line, row), node in sorted(found.items(), key=lambda each: each[0])
    ], uses

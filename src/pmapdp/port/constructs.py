"""Finds the constructs of pmap in a program, line by line; the program is read, and not run."""

import ast
import importlib
import re
import warnings
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from pmapdp.port.names import STACKED, File, Names, is_pmap, is_zero
from pmapdp.port.table import BY_NAME, TABLE, Row

COUNTS = ("jax.local_device_count()", "jax.device_count()")
COUNT = re.compile(r"(\w+\.)*_?((n|num|local|number_of)_?)?(local_)?dev(ice)?s?(_count|_num)?", re.IGNORECASE)
FIRST = re.compile(r"un_?(rep|pmap|stack|shard)|(get|take)_first|first_(copy|replica|device)|de_?rep", re.IGNORECASE)
TREE_MAPS = ("jax.tree_map", "jax.tree.map", "jax.tree_util.tree_map", "jax.tree_multimap", "tree.map_structure")
COLLECTIVES = ("pmean", "psum", "pmax", "axis-index", "all-gather", "ppermute", "psum-scatter", "all-to-all")
WITH_AXIS = (*COLLECTIVES, "psum-one", "axis-groups")
KEYWORDS = {
    "static_broadcasted_argnums": "static", "donate_argnums": "donate", "devices": "devices", "axis_size": "axis-size",
    "backend": "axis-size", "global_arg_shapes": "global-shapes", "donate": "donate",
}  # fmt: skip


class Finding(NamedTuple):
    """A construct in a line."""

    path: str
    line: int
    row: Row
    code: str
    inside: tuple[str, ...]  # the functions around it
    axis: str | None  # of a collective, where it can be read


class Mapped(NamedTuple):
    """A function that is pmapped."""

    path: str
    line: int
    name: str
    key: str  # as in `Finding.inside`
    axis: str | None
    call: str
    parameters: list[str]


class Finder(Names):
    """Adds to `findings` and `mapped` while it follows the names."""

    def __init__(self, file: File, files: dict, functions: dict, returned: dict, keys: set[str]):
        super().__init__(file, files, functions, returned)
        self.keys = keys  # of the mapped functions, as the pass before has found them
        self.findings: list[Finding] = []
        self.mapped: list[Mapped] = []
        self.told: set[Any] = set()  # nodes, and names that an import has lost
        self.guarded = 0

    def found(self, row: str, node: Any, axis: str | None = None) -> None:
        """Note a construct once a line."""
        known = any((each.line, each.row.id) == (node.lineno, row) for each in self.findings)
        if not known and not (self.guarded and TABLE[row].status == "gone"):
            code = " ".join(ast.unparse(node).split())
            self.findings.append(Finding(self.file.path, node.lineno, TABLE[row], code, tuple(self.inside), axis))

    def reference(self, node: ast.expr) -> None:
        """A name of a library, wherever it stands."""
        path, root = (self.value(node) or "").split(" ")[0], node
        while isinstance(root, ast.Attribute):
            root = root.value
        if re.fullmatch(r"[\w.]+", path) and not {node, getattr(root, "id", "")} & self.told and (row := row_of(path)):
            self.found(row, node)

    def imported(self, node: Any, path: str, name: ast.alias) -> None:
        """An import fails where its name is gone; lines that use the name are not listed again."""
        row = None if path.endswith("*") else row_of(path)
        if row and TABLE[row].status == "gone":
            self.found(row, node)
            self.told.add(name.asname or name.name)

    def pmapped(self, node: Any, function: Any, first: ast.AST) -> None:
        """A pmap with its arguments: `first` is what it maps, and `function` its definition where it was found."""
        given, body = self.keywords(node), getattr(function, "body", None)
        direct = isinstance(node, ast.Call) and is_pmap(self.value(node.func)) and len(node.args) > 1
        axis = node.args[1] if direct else given.get("axis_name")
        name = getattr(function, "name", ast.unparse(first))
        if self.keys & set(self.inside) or (self.value(first) or "").startswith("jax.pmap("):
            self.found("nested", node)
        if isinstance(body, ast.Call) and BY_NAME.get(self.value(body.func) or "") == "pmean":
            self.found("average", node)
        elif any(self.value(each) == "jax.lax.scan" for each in ast.walk(first)):
            self.found("scan", node)
        elif axis is None and None not in given:  # which are **options that could not be read
            self.found("init" if "init" in name else "no-axis", node)
        for keyword, value in given.items():
            if keyword in KEYWORDS:
                self.found(KEYWORDS[keyword], node)
            elif keyword in ("in_axes", "out_axes"):
                text = ast.unparse(value)
                self.found("axes-none" if "None" in text else "in-axes", node)
                if numbers := re.findall(r"-?\b[1-9]\b", text):
                    self.found("axes-negative" if "-" in "".join(numbers) else "axes-one", node)
        if function is not None:
            known = next((key for key, each in self.functions.items() if each is function), None)
            names = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
            key = known or self.register("def", function)
            mapped = Mapped(self.file.path, node.lineno, name, key, self.value(axis), ast.unparse(node), names)
            self.mapped.append(mapped)

    def visit_Call(self, node: ast.Call) -> None:
        """A call may be a pmap, a collective, or one of the constructs that have no name of their own."""
        path, args, keywords = self.value(node.func) or "", node.args, {each.arg: each.value for each in node.keywords}
        if path == "functools.partial" and args:
            path, args = self.value(args[0]) or "", args[1:]
        if is_pmap(path) and args:
            self.pmapped(node, self.mapped_function(node), args[0])
        elif re.fullmatch(r"jax\.pmap\(.{0,4}\)", path) and self.keys & set(self.inside):
            self.found("nested", node)
        elif (row := BY_NAME.get(path)) in COLLECTIVES:
            place = 0 if row == "axis-index" else 1
            axis = self.value(keywords.get("axis_name") or (args[place] if len(args) > place else None))
            one = row == "psum" and args and isinstance(args[0], ast.Constant)
            self.found("psum-one" if one else row, node, axis)
            if "axis_index_groups" in keywords:
                self.found("axis-groups", node, axis)
            self.told |= {node.func, *node.args}  # not once more as a name
        elif row := self.by_shape(node, path, args, keywords):
            self.found(row, node)
        self.generic_visit(node)

    def by_shape(self, node: ast.Call, path: str, args: list[ast.expr], keywords: dict) -> str | None:
        """The row of a construct that is told by its arguments."""
        last = node.func.attr if isinstance(node.func, ast.Attribute) else path.rpartition(".")[2]
        first, second = [*args, None, None][:2]
        other = self.value(second) or ""
        match last:
            case _ if path in TREE_MAPS:  # tree.map(lambda x: x[0], ...)
                body, around = (
                    getattr(first, "body", None),
                    self.functions.get(self.inside[-1]) if self.inside else None,
                )
                helper = FIRST.search(getattr(around, "name", ""))
                rows = isinstance(body, ast.Subscript) and is_zero(body.slice) and isinstance(body.value, ast.Name)
                return "first-copy" if rows and (other.startswith(STACKED) or helper) else None
            case "split" if path == "jax.random.split":
                return "prng-key" if self.counts(keywords.get("num") or second) else None
            case "fold_in" if path == "jax.random.fold_in":
                hosts = ("jax.process_index()", "jax.host_id()")
                return "fold-in" if other == "jax.lax.axis_index()" else "host-key" if other in hosts else None
            case "reshape":
                return "shard" if self.counts(second if path.endswith("numpy.reshape") else first) else None
            case "broadcast_to" | "broadcast" if path.startswith(("jax.", "numpy.")):
                return "replicate" if self.counts(second) else None
            case "stack" | "array" | "asarray" if isinstance(first, ast.BinOp) and isinstance(first.left, ast.List):
                return "replicate" if self.counts(first.right) else None
            case "update" if path.startswith("jax.config.") and isinstance(first, ast.Constant):
                return None if first.value in importlib.import_module("jax").config.values else "old-flag"
            case "value_and_grad" if "axis_name" in keywords:
                return "dynamic-scale"
            case "shard_map" if "check_rep" in keywords and path == "jax.shard_map":
                return "check-rep"
        name = (keywords.get("axis_name") if last == "BatchNorm" else None) or keywords.get("cross_replica_axis")
        return "batch-norm" if name is not None and ast.unparse(name) != "None" else None

    def counts(self, node: Any) -> bool:
        """Whether an expression, or the first size of a shape, is the number of devices."""
        while isinstance(node, ast.BinOp | ast.Tuple | ast.List):
            if isinstance(node, ast.BinOp):
                node = node.left if isinstance(node.op, ast.Add) else None
            else:
                node = node.elts[0] if node.elts else None
        return node is not None and (self.value(node) in COUNTS or bool(COUNT.fullmatch(ast.unparse(node))))

    def visit_Name(self, node: ast.Name) -> None:
        """A name that is read."""
        if isinstance(node.ctx, ast.Load):
            self.reference(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """A dotted name, as a whole."""
        if node.attr in ("device_buffers", "device_buffer"):
            self.found("device-buffers", node)
        self.reference(node)
        if not isinstance(node.value, ast.Name | ast.Attribute):
            self.visit(node.value)

    def visit_Import(self, node: ast.Import) -> None:
        """Modules may be gone."""
        super().visit_Import(node)
        for name in node.names:
            self.imported(node, name.name, name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """And names in them."""
        super().visit_ImportFrom(node)
        for name in node.names if node.level == 0 else []:
            self.imported(node, f"{node.module}.{name.name}", name)

    def visit_Try(self, node: ast.Try) -> None:
        """A program that catches the error does not fail."""
        self.guarded += 1
        self.generic_visit(node)
        self.guarded -= 1

    def visit_If(self, node: Any) -> None:
        """Nor does one that asks first."""
        asks = bool(re.search("hasattr|version|TYPE_CHECKING", ast.unparse(node.test)))
        self.guarded += asks
        self.generic_visit(node)
        self.guarded -= asks

    visit_IfExp = visit_If

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """The first copy of a stacked array."""
        if is_zero(node.slice) and (self.value(node.value) or "").startswith(STACKED):
            self.found("first-copy", node)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Batches of a process."""
        if self.value(node.right) in ("jax.process_count()", "jax.host_count()"):
            self.found("hosts", node)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: Any) -> None:
        """A function may be decorated by pmap."""
        for each in node.decorator_list:
            if is_pmap(self.value(each)):
                self.pmapped(each, node, each)
        super().visit_FunctionDef(node)

    visit_AsyncFunctionDef = visit_FunctionDef


def row_of(path: str) -> str | None:
    """The row of a dotted name, or of what it begins with; "gone" where the installed libraries lack it."""
    parts = path.split(".")
    starts = (".".join(parts[:number]) for number in range(len(parts), 1, -1))
    return next((BY_NAME[each] for each in starts if each in BY_NAME), "gone" if missing(path) else None)


@cache
def missing(path: str) -> bool:
    """Whether the installed JAX, Flax or Optax lacks this name."""
    parts = path.split(".")
    if parts[0] not in ("jax", "flax", "optax"):
        return False
    found: Any = importlib.import_module(parts[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, part in enumerate(parts[1:], 2):
            module = ".".join(parts[:number])
            try:
                found = getattr(found, part) if hasattr(found, part) else importlib.import_module(module)
            except ModuleNotFoundError as error:
                return error.name == module
            except Exception:  # a module that cannot be imported here may well be there
                return False
            if not isinstance(found, ModuleType):
                return False
    return False


def find(files: dict[str, File]) -> tuple[list[Finding], list[Mapped]]:
    """The findings of a program of several files, and its pmapped functions. The first passes only follow names."""
    functions: dict[str, Any] = {}
    returned: dict[str, str | None] = {}
    keys: set[str] = set()
    for _ in range(3):
        finders = [Finder(file, files, functions, returned, keys) for file in files.values()]
        for finder in finders:
            finder.visit(finder.file.tree)
        mapped = [each for finder in finders for each in finder.mapped]
        keys = {each.key for each in mapped}
    findings = sorted((each for finder in finders for each in finder.findings), key=lambda each: (each.path, each.line))
    uses = {each.path for each in findings if each.row.id in ("pmap", "filter-pmap", "nnx-pmap")}
    collective = {each.path for each in findings if each.row.id in WITH_AXIS} - uses
    others = {path for path in collective if "shard_map(" in ast.unparse(files[path].tree)}
    axes = {each.axis for each in mapped}

    def belongs(each: Finding) -> bool:  # a collective may be one of vmap or shard_map
        if not uses:
            return each.row.status in ("gone", "fails")
        if each.row.id in WITH_AXIS and each.path in others:
            return False
        return each.path in uses or each.axis is None or None in axes or each.axis in axes

    return [each for each in findings if belongs(each)], mapped

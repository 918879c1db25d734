"""Finds the constructs of pmap in a program, line by line; the program is read, and not run."""

import ast
import importlib
import re
import warnings
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import jax

from pmapdp.port.names import STACKED, File, Names, Pmap, literal, path_of
from pmapdp.port.table import BY_NAME, CALLS, TABLE, Row

COUNT = re.compile(r"(\w+\.)*_?((n|num|local|number_of)_?)?(local_)?dev(ice)?s?(_count|_num)?", re.IGNORECASE)
FIRST = re.compile(r"un_?(rep|pmap|stack|shard)|(get|take)_first|first_(copy|replica|device)|de_?rep", re.IGNORECASE)
TREE_MAP = re.compile(r"jax\.tree(\.|_util\.tree_|_)(multi)?map|tree\.map_structure")
ASKS = re.compile("hasattr|version|TYPE_CHECKING")  # whether a name is there
WITH_AXIS = {row.id for row in TABLE.values() if row.construct.startswith("`lax.")} | {"axis-groups"}


class Finding(NamedTuple):
    """A construct in a line."""

    path: str
    line: int
    row: Row
    code: str
    inside: tuple[Any, ...]  # the functions around it
    axis: str | None  # of a collective, where it can be read


class Mapped(NamedTuple):
    """A function that is pmapped."""

    path: str
    line: int
    name: str
    function: Any  # as in `Finding.inside`
    axis: str | None
    call: str


class Finder(Names):
    """Adds to `findings` and `mapped` while it follows the names."""

    def __init__(self, file: File, files: dict[str, File], returned: dict[Any, Any], inner: set[Any]):
        super().__init__(file, files, returned)
        self.inner = inner  # the mapped functions, as the pass before has found them
        self.findings: dict[tuple[int, str], Finding] = {}
        self.mapped: list[Mapped] = []
        self.told: set[Any] = set()  # nodes, and names that an import has lost
        self.guarded = 0

    def found(self, row: str | None, node: Any, axis: str | None = None) -> None:
        """Note a construct once a line. A program that catches the error, or asks first, does not fail."""
        if row and not (self.guarded and TABLE[row].status == "gone"):
            code = " ".join(ast.unparse(node).split())
            new = Finding(self.file.path, node.lineno, TABLE[row], code, tuple(self.inside), axis)
            self.findings.setdefault((node.lineno, row), new)

    def visit(self, node: Any) -> None:
        """What stands in a statement or an expression."""
        match node:
            case ast.Attribute() | ast.Name(ctx=ast.Load()):
                return self.reference(node)
            case ast.Call():
                self.call(node)
            case ast.Import(names=names) | ast.ImportFrom(names=names, level=0):
                for each in names:  # lines that use a name which the import has lost are not listed again
                    row = row_of(".".join(filter(None, (getattr(node, "module", ""), each.name))))
                    if row and TABLE[row].status == "gone" and each.name != "*":
                        self.found(row, node)
                        self.told.add(each.asname or each.name)
            case ast.Subscript() if literal(node.slice) == 0 and self.value(node.value) == STACKED:
                self.found("first-copy", node)
            case ast.BinOp(right=right) if self.value(right) in ("jax.process_count()", "jax.host_count()"):
                self.found("hosts", node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    if isinstance(value := self.value(decorator), Pmap):
                        self.pmapped(decorator, value._replace(function=node), decorator)
        asks = isinstance(node, ast.Try) or bool(ASKS.search(ast.unparse(getattr(node, "test", ast.Pass()))))
        self.guarded += asks
        super().visit(node)
        self.guarded -= asks

    def reference(self, node: Any) -> None:
        """A name of a library, wherever it stands: a dotted one as a whole."""
        value, root = self.value(node), node
        while isinstance(root, ast.Attribute):
            root = root.value
        name = value.name * (not value.mapped) if isinstance(value, Pmap) else value if path_of(value) else ""
        if not {node, getattr(root, "id", "")} & self.told:
            self.found(BY_NAME.get(f"?.{getattr(node, 'attr', '')}") or row_of(name), node)
        if not isinstance(root, ast.Name):
            self.visit(root)

    def call(self, node: ast.Call) -> None:
        """A pmap, a collective, or one of the constructs that are told by their arguments."""
        function, args = node.func, node.args
        if self.value(function) == "functools.partial" and args:
            function, args = args[0], args[1:]
        value, keywords = self.value(function), self.keywords(node)
        if isinstance(value, Pmap):
            if value.mapped and self.inner & set(self.inside):
                self.found("nested", node)
            elif not value.mapped and args:
                self.pmapped(node, self.value(node), args[0])
            return
        path = value if path_of(value) else f"?.{getattr(function, 'attr', '')}"
        place = 0 if path.endswith("axis_index") else 1
        axis = self.value(keywords.get("axis_name") or [*args, None, None][place])
        for row, name, argument in CALLS:
            if name != ".pmap" and f".{path}".endswith(name) and self.fits(argument, args, keywords):
                self.found(row, node, axis if row in WITH_AXIS else None)
                self.told |= {function} if name == f".{path}" else set()
        if BY_NAME.get(path) in WITH_AXIS and function not in self.told:
            self.found(BY_NAME[path], node, axis)
            self.told.add(function)
        first, other = [*args, None, None][:2]
        body, around = getattr(first, "body", None), getattr([None, *self.inside][-1], "name", "")
        if TREE_MAP.fullmatch(path) and isinstance(body, ast.Subscript) and isinstance(body.value, ast.Name):
            stacked = self.value(other) == STACKED or FIRST.search(around)  # tree.map(lambda x: x[0], ...)
            self.found("first-copy" if literal(body.slice) == 0 and stacked else None, node)
        if re.fullmatch(r"jax\.config\..*update", path) and literal(first) not in {None, *jax.config.values}:
            self.found("old-flag", node)

    def fits(self, argument: str, args: list[Any], keywords: dict[Any, Any]) -> bool:
        """Whether a call is given this: `name=` and what its text holds, a value, or N, the number of devices."""
        name, is_keyword, text = argument.partition("=")
        if is_keyword:
            given = ast.unparse(keywords[name]) if name in keywords else "None"
            return bool(re.search(text, given)) and (name in keywords if text else given != "None")
        every = [*args, *keywords.values()]
        if argument == "[]*N":
            every, argument = [each.right for each in every if isinstance(each, ast.BinOp)], "N"
        return any(map(self.counts, every)) if argument == "N" else argument in map(self.value, every)

    def counts(self, node: Any) -> bool:
        """Whether an expression, or the first size of a shape, is the number of devices."""
        match node:
            case ast.BinOp(left=left, op=ast.Add()) | ast.Tuple(elts=[left, *_]) | ast.List(elts=[left, *_]):
                return self.counts(left)
            case ast.Name() | ast.Attribute() | ast.Call():
                known = self.value(node) in ("jax.local_device_count()", "jax.device_count()")
                return known or bool(COUNT.fullmatch(ast.unparse(node)))
        return False

    def pmapped(self, node: Any, value: Pmap, first: Any) -> None:
        """A pmap with its arguments; `first` is what it maps."""
        given, body = value.keywords, getattr(value.function, "body", None)
        name = getattr(value.function, "name", ast.unparse(first))
        if self.inner & set(self.inside) or (isinstance(self.value(first), Pmap) and first is not node):
            self.found("nested", node)
        if isinstance(body, ast.Call) and self.value(body.func) == "jax.lax.pmean":
            self.found("average", node)
        elif any(self.value(each) == "jax.lax.scan" for each in ast.walk(first)):
            self.found("scan", node)
        elif not {"axis_name", None} & set(given):  # None: **options that cannot be read
            self.found("init" if "init" in name else "no-axis", node)
        for row, called, argument in CALLS:
            if called == ".pmap" and self.fits(argument, [], given):
                self.found(row, node)
        if value.function is not None:
            axis = self.value(given.get("axis_name"))
            self.mapped.append(Mapped(self.file.path, node.lineno, name, value.function, axis, ast.unparse(node)))


def row_of(path: str) -> str | None:
    """The row of a dotted name, or of what it begins with; "gone" where the installed libraries lack it."""
    if "(" in path:  # of what a call returns
        return None
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
    returned: dict[Any, Any] = {}
    mapped: list[Mapped] = []
    for _ in range(3):
        finders = [Finder(file, files, returned, {each.function for each in mapped}) for file in files.values()]
        for finder in finders:
            finder.visit(finder.file.tree)
        mapped = [each for finder in finders for each in finder.mapped]
    findings = [each for finder in finders for each in finder.findings.values()]
    uses = {each.path for each in findings if each.row.id in ("pmap", "filter-pmap", "nnx-pmap")}
    axes = {each.axis for each in mapped}

    def belongs(each: Finding) -> bool:  # a collective may be one of vmap or shard_map
        if not uses:
            return each.row.status in ("gone", "fails")
        if each.row.id not in WITH_AXIS or each.path in uses:
            return True
        known = each.axis is None or None in axes or each.axis in axes
        return known and "shard_map(" not in ast.unparse(files[each.path].tree)

    order = list(TABLE)
    return sorted(filter(belongs, findings), key=lambda each: (each.path, each.line, order.index(each.row.id))), mapped

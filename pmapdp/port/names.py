"""What the names in a file stand for, followed through imports, aliases, partials and assignments; nothing is run.

A value is a dotted path (`jnp.sum` stands for "jax.numpy.sum", and what it returns for "jax.numpy.sum()"), a `File`,
the definition of a function, a dictionary that is written out, or a `Pmap`. An array `[N, ...]`, or a tree of such, is
STACKED, and a tuple of these TUPLE. None is what cannot be read.
"""

import ast
from pathlib import Path
from typing import Any, NamedTuple

import jax

PMAPS = ("jax.pmap", "equinox.filter_pmap", "flax.nnx.pmap")
LIBRARIES = ("jax", "flax", "optax", "numpy", "functools", "haiku", "equinox", "chex")
STACKED, TUPLE = "[N]", "([N])"
CELL = 10**6  # line 7 of the second cell of a notebook has number 2_000_007
RETURNS = {
    "flax.jax_utils.replicate": STACKED, "flax.training.common_utils.shard": STACKED,
    "flax.jax_utils.prefetch_to_device": TUPLE, "jax.device_put_replicated": STACKED,
    "jax.device_put_sharded": STACKED,
}  # fmt: skip


class File:
    """A module of the program: its syntax tree, and what is known of its names and of the members of its classes."""

    def __init__(self, path: str, tree: ast.Module):
        self.path, self.tree = path, tree
        self.names: dict[str, Any] = {}
        self.members: dict[int, dict[str, Any]] = {}  # by the line of the class


def place(line: int) -> str:
    """A line's number, in a notebook behind that of its cell."""
    cell, line = divmod(line, CELL)
    return f"cell {cell} line {line}" if cell else str(line)


class Pmap(NamedTuple):
    """pmap with the keywords that are known so far; also a pmapped function."""

    name: str
    keywords: dict[str | None, ast.expr]
    mapped: bool = False
    function: Any = None  # the definition of what is mapped, where it is found

    def result(self) -> str | None:
        """What the pmapped function returns; a tuple where that is not known, for its [0] is a part and no row."""
        if "out_axes" in self.keywords and ast.unparse(self.keywords["out_axes"]) == "None":
            return None
        body = getattr(self.function, "body", None)
        returns = [each.value for each in ast.walk(self.function or ast.Pass()) if isinstance(each, ast.Return)]
        tuples = any(isinstance(each, ast.Tuple) for each in [*returns, body])
        return TUPLE if tuples or self.function is None else STACKED


class Names:
    """Binds the names of a file. The files of a program share `returned`: what the functions return."""

    def __init__(self, file: File, files: dict[str, File], returned: dict[Any, Any]):
        self.file, self.files, self.returned = file, files, returned
        self.scopes, self.own, self.inside = [file.names], dict[str, Any](), list[Any]()

    def value(self, node: Any) -> Any:
        """What an expression stands for."""
        found = self.read(node)
        return Pmap(found, {}) if found in PMAPS else found

    def read(self, node: Any) -> Any:
        """The same, where pmap itself is a path."""
        match node:
            case ast.Name(id=name):
                return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                return self.own.get(name)
            case ast.Attribute(value=inner, attr=name):
                base = self.value(inner)
                if base in (STACKED, TUPLE):
                    return None if hasattr(jax.Array, name) else base  # x.shape is no array
                return base.names.get(name) if isinstance(base, File) else f"{base}.{name}" if path_of(base) else None
            case ast.Subscript(value=inner, slice=index):  # a leaf of a tree, or rows
                base, leaf = self.value(inner), isinstance(index, ast.Name) or isinstance(literal(index), str)
                return STACKED if base == TUPLE or (base == STACKED and leaf) else None
            case ast.Constant(value=str() | int() as constant):
                return repr(constant)
            case ast.BoolOp(values=parts) | ast.IfExp(body=ast.expr(), orelse=ast.expr(), _fields=parts):
                parts = parts if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
                return next(filter(None, map(self.value, parts)), None)
            case ast.Lambda() | ast.Dict():
                return node
            case ast.Call(func=function, args=args):
                return self.result(node, self.value(function), [self.value(each) for each in args])
        return None

    def result(self, node: ast.Call, function: Any, args: list[Any]) -> Any:
        """What a call returns."""
        if isinstance(function, Pmap):
            if function.mapped:
                return function.result()
            given = function.keywords | self.keywords(node) | dict(zip(["axis_name"], node.args[1:2], strict=False))
            body = args[0] if args and isinstance(args[0], FUNCTION) else None
            return Pmap(function.name, given, bool(args), body)
        if function == "functools.partial" and args and isinstance(args[0], Pmap):
            return args[0]._replace(keywords=args[0].keywords | self.keywords(node))
        if function in ("jax.vmap", "jax.jit", "jax.checkpoint", "jax.remat", "functools.partial") and args:
            return args[-1] if args[0] == "jax.lax.scan" else args[0]
        if function is None and getattr(node.func, "id", "") in ("len", "int", "tuple", "list", "min") and args:
            return "jax.device_count()" if args[0] in ("jax.devices()", "jax.local_devices()") else args[0]
        if isinstance(function, FUNCTION):
            return self.returned.get(function)
        if function == STACKED and getattr(node.func, "attr", "") in ("get", "replace"):  # of a tree
            return STACKED
        return RETURNS.get(function, f"{function}()") if path_of(function) else None

    def keywords(self, node: ast.Call) -> dict[str | None, ast.expr]:
        """The keywords of a call, with those of dictionaries that are written out."""
        given: dict[str | None, ast.expr] = {}
        for each in node.keywords:
            known = self.value(each.value) if each.arg is None else None
            pairs = zip(known.keys, known.values, strict=True) if isinstance(known, ast.Dict) else ()
            given |= {literal(key): value for key, value in pairs} or {each.arg: each.value}
        return given

    def bind(self, target: Any, value: Any, node: Any = None) -> None:
        """Assign, part by part where both sides are tuples."""
        match target:
            case ast.Name(id=name):
                self.scopes[-1][name] = value
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self.own[name] = value or self.own.get(name)
            case ast.Starred(value=inner):
                self.bind(inner, value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                parts = getattr(node, "elts", ())
                parts = parts if len(parts) == len(targets) else [None] * len(targets)
                for each, part in zip(targets, parts, strict=True):
                    self.bind(each, self.value(part) if part else STACKED if value in (STACKED, TUPLE) else None, part)

    def visit(self, node: Any) -> None:
        """Bind the names in a statement or an expression, in the order in which it runs."""
        match node:
            case ast.Import(names=names):
                for each in names:
                    path = each.name if each.asname else each.name.partition(".")[0]
                    self.scopes[-1][each.asname or path] = self.local(path) or path
            case ast.ImportFrom(module=module, names=names, level=level):
                file = self.local(module or "", level)
                for each in names:
                    inner = self.local(".".join(filter(None, (module, each.name))), level)
                    outside = None if file or level else f"{module}.{each.name}"
                    known = file.names if file else {}
                    name, value = each.asname or each.name, known.get(each.name) or inner or outside
                    self.scopes[-1].update(known if name == "*" else {name: value})
            case ast.ClassDef():
                outer, self.own = self.own, self.file.members.setdefault(node.lineno, {})
                self.scopes.append({})
                self.children(node)
                self.own |= {name: value for name, value in self.scopes.pop().items() if value}
                self.own = outer
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                decorators = getattr(node, "decorator_list", [])
                for part in [*decorators, node.args, getattr(node, "returns", None)]:
                    self.visit(part or ast.Pass())
                maps = [each for each in map(self.value, decorators) if isinstance(each, Pmap)]
                if not isinstance(node, ast.Lambda):
                    self.scopes[-1][node.name] = Pmap(*maps[0][:2], True, node) if maps else node
                self.inside.append(node)  # its parameters hide the names outside
                self.scopes.append(dict.fromkeys(each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)))
                for part in node.body if isinstance(node.body, list) else [node.body]:
                    self.visit(part)
                results = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
                self.returned[node] = self.value(results[0]) if results else None
                self.scopes.pop()
                self.inside.pop()
            case ast.For() | ast.comprehension():
                self.visit(node.iter)
                self.bind(node.target, STACKED if self.value(node.iter) == TUPLE else None)
                self.children(node)
            case _:
                for each in getattr(node, "generators", ()):  # they bind what the element of a comprehension reads
                    self.visit(each)
                self.children(node)
                if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        self.bind(target, self.value(node.value), node.value)

    def children(self, node: ast.AST) -> None:
        """Visit what stands inside."""
        for each in ast.iter_child_nodes(node):
            self.visit(each)

    def local(self, module: str, level: int = 0) -> File | None:
        """The file of the program that an import names, the nearest one where several would do."""
        if not level and module.partition(".")[0] in LIBRARIES:  # also beside a file of that name
            return None
        folders = Path(self.file.path).parents
        tail = module.replace(".", "/")
        names = [f"{tail}.py", f"{tail}/__init__.py"] if tail else ["__init__.py"]
        tried = (str(each / name) for each in (folders[level - 1 : level] if level else folders) for name in names)
        return next((self.files[path] for path in tried if path in self.files), None)


FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def path_of(value: Any) -> bool:
    """Whether a value is a dotted path."""
    return isinstance(value, str) and value not in (STACKED, TUPLE)


def literal(node: Any) -> Any:
    """The value of a constant."""
    return node.value if isinstance(node, ast.Constant) else None

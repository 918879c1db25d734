"""What the names in a file stand for, followed through imports, aliases, partials and assignments; nothing is run.

A value is a dotted path: `jnp.sum` stands for "jax.numpy.sum", what it returns for "jax.numpy.sum()", and an element of
that for "jax.numpy.sum()[]". So a pmapped function is "jax.pmap()", and "jax.pmap()()" is what it returns, `[N, ...]`.
"jax.pmap(,)" returns a tuple. "jax.pmap PLACE" is a partial of pmap, "def PLACE" a function of the program, and
"dict PLACE" a dictionary; None is what cannot be read.
"""

import ast
from pathlib import Path
from typing import Any

PMAPS = ("jax.pmap", "equinox.filter_pmap", "flax.nnx.pmap")
LIBRARIES = ("jax", "flax", "optax", "numpy", "functools", "haiku", "equinox", "chex")
THROUGH = ("jax.vmap", "jax.jit", "jax.checkpoint", "jax.remat", "functools.partial")  # of their first argument
STACKED = (
    "jax.pmap()()", "jax.pmap(,)()[", "flax.jax_utils.replicate()", "flax.training.common_utils.shard()",
    "flax.jax_utils.prefetch_to_device()[", "jax.device_put_replicated()", "jax.device_put_sharded()",
)  # fmt: skip


class File:
    """A module of the program: its syntax tree, and what is known of its names and of the members of its classes."""

    def __init__(self, path: str, tree: ast.Module, cells: tuple[tuple[int, int], ...] = ()):
        self.path, self.tree, self.cells = path, tree, cells
        self.names: dict[str, str | None] = {}
        self.members: dict[str, dict[str, str | None]] = {}

    def place(self, line: int) -> str:
        """A line's number, in a notebook behind that of its cell; `cells` are pairs of the line before and a number."""
        start, cell = max((each for each in self.cells if each[0] < line), default=(0, 0))
        return f"cell {cell} line {line - start}" if self.cells else str(line)


class Names(ast.NodeVisitor):
    """Binds the names of a file. The files of a program share `functions`, and `returned`: what these return."""

    def __init__(self, file: File, files: dict[str, File], functions: dict[str, Any], returned: dict[str, str | None]):
        self.file, self.files, self.functions, self.returned = file, files, functions, returned
        self.scopes: list[dict[str, str | None]] = [file.names]
        self.own: dict[str, str | None] = {}
        self.inside: list[str] = []

    def value(self, node: ast.AST | None) -> str | None:
        """What an expression stands for."""
        match node:
            case ast.Name(id=name):
                return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                return self.own.get(name)
            case ast.Attribute(value=inner, attr=name):
                base = self.value(inner)
                return self.files[base].names.get(name) if base in self.files else base and f"{base}.{name}"
            case ast.Call():
                return self.result(node)
            case ast.Subscript(value=inner, slice=index):
                base = self.value(inner) or ""
                return None if not base or (is_zero(index) and base.startswith(STACKED)) else f"{base}[]"
            case ast.Dict(keys=keys) if all(isinstance(key, ast.Constant) for key in keys):
                return self.register("dict", node)
            case ast.Constant(value=str() | int() as constant):
                return repr(constant)
            case ast.BoolOp(values=parts):
                return next(filter(None, map(self.value, parts)), None)
            case ast.IfExp(body=first, orelse=second):
                return self.value(first) or self.value(second)
        return None

    def register(self, kind: str, node: Any) -> str:
        """A value for a node that is looked up later."""
        key = f"{kind} {self.file.path}:{node.lineno}:{node.col_offset}"
        self.functions[key] = node
        return key

    def result(self, node: ast.Call) -> str | None:
        """What a call returns."""
        function, first = self.value(node.func), self.value(node.args[0]) if node.args else None
        if function is None and isinstance(node.func, ast.Name) and node.func.id in ("len", "int", "tuple", "list"):
            return "jax.device_count()" if first in ("jax.devices()", "jax.local_devices()") else first
        if function == "functools.partial":
            return self.register(first, node) if first and is_pmap(first) else first
        if function and is_pmap(function):
            if not node.args:  # a decorator with arguments
                return self.register(function.split(" ")[0], node)
            if ast.unparse(self.keywords(node).get("out_axes", node)) == "None":
                return "jax.pmap(None)"
            return f"jax.pmap({',' * returns_tuple(self.mapped_function(node))})"
        return self.returned.get(function or "", function and f"{function}()")

    def keywords(self, node: Any) -> dict[str | None, ast.expr]:
        """The keywords of a call, with those of partials before it and of dictionaries that are written out."""
        call = node if isinstance(node, ast.Call) else self.functions.get(self.value(node) or "")
        if not isinstance(call, ast.Call):
            return {}
        given = self.keywords(call.func) if is_pmap(self.value(call.func)) else {}
        for each in call.keywords:
            known = self.functions.get(self.value(each.value) or "") if each.arg is None else None
            pairs = zip(known.keys, known.values, strict=True) if isinstance(known, ast.Dict) else ()
            given |= {key.value: value for key, value in pairs} or {each.arg: each.value}  # type: ignore[union-attr]
        return given

    def mapped_function(self, call: ast.Call) -> Any:
        """The function that a pmap maps, through `vmap`, `partial` and the like: its definition, or a lambda."""
        node: Any = call.args[0] if call.args else None
        while isinstance(node, ast.Call) and node.args and self.value(node.func) in THROUGH:
            node = node.args[-1 if self.value(node.args[0]) == "jax.lax.scan" else 0]
        return node if isinstance(node, ast.Lambda) else self.functions.get(self.value(node) or "")

    def bind(self, target: ast.AST, value: str | None, node: ast.AST | None = None) -> None:
        """Assign, part by part where both sides are tuples."""
        match target:
            case ast.Name(id=name):
                self.scopes[-1][name] = value
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self.own[name] = value or self.own.get(name)
            case ast.Starred(value=inner):
                self.bind(inner, value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                pairs = isinstance(node, ast.Tuple) and len(node.elts) == len(targets)
                for each, part in zip(targets, node.elts if pairs else [None] * len(targets), strict=True):  # type: ignore[union-attr]
                    self.bind(each, self.value(part) if pairs else value and f"{value}[]", part)

    def generic_visit(self, node: ast.AST) -> None:
        """Visit what stands inside, and bind the names."""
        if isinstance(node, ast.For | ast.comprehension):
            value = self.value(node.iter)
            self.bind(node.target, value and f"{value}[]")
        for each in getattr(node, "generators", ()):  # of a comprehension: they bind what its element reads
            self.visit(each)
        super().generic_visit(node)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.bind(target, self.value(node.value), node.value)

    def visit_Import(self, node: ast.Import) -> None:
        """A library, or a file of the program."""
        for name in node.names:
            path = name.name if name.asname else name.name.partition(".")[0]
            self.scopes[-1][name.asname or path] = self.local(path) or path

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """A name of either."""
        file = self.local(node.module or "", node.level)
        known = self.files[file].names if file else {}
        for name in node.names:
            if name.name == "*":
                self.scopes[-1].update(known)
                continue
            inner = self.local(".".join(filter(None, (node.module, name.name))), node.level)
            outside = None if file or node.level else f"{node.module}.{name.name}"
            self.scopes[-1][name.asname or name.name] = known.get(name.name) or inner or outside

    def local(self, module: str, level: int = 0) -> str | None:
        """The file of the program that an import names, the nearest one where several would do."""
        if not level and module.partition(".")[0] in LIBRARIES:  # also beside a file of that name
            return None
        folders = [Path(self.file.path).parent, *Path(self.file.path).parents[1:]]
        tail = module.replace(".", "/")
        names = [f"{tail}.py", f"{tail}/__init__.py"] if tail else ["__init__.py"]
        tried = (str(each / name) for each in (folders[level - 1 : level] if level else folders) for name in names)
        return next((path for path in tried if path in self.files), None)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """A class binds what its methods find on self."""
        outer, self.own = self.own, self.file.members.setdefault(f"{node.name}:{node.lineno}", {})
        self.scopes.append({})
        self.generic_visit(node)
        self.own.update({name: value for name, value in self.scopes.pop().items() if value})
        self.own = outer

    def visit_FunctionDef(self, node: Any) -> None:
        """A function stands for its place, or for a pmapped function."""
        key = self.register("def", node)
        for each in node.decorator_list:
            self.visit(each)
        pmapped = any(is_pmap(self.value(each)) for each in node.decorator_list)
        self.scopes[-1][node.name] = f"jax.pmap({',' * returns_tuple(node)})" if pmapped else key
        self.body(node, key)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """A function without a name."""
        self.body(node, self.register("def", node))

    def body(self, node: Any, key: str) -> None:
        """Visit a function with its parameters, which hide the names outside."""
        self.visit(node.args)
        if getattr(node, "returns", None):
            self.visit(node.returns)
        names = [each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)]
        self.scopes.append(dict.fromkeys(names))
        self.inside.append(key)
        for each in node.body if isinstance(node.body, list) else [node.body]:
            self.visit(each)
        result = next((each.value for each in ast.walk(node) if isinstance(each, ast.Return)), None)
        if result:
            self.returned[key] = self.value(result)
        self.inside.pop()
        self.scopes.pop()


def is_pmap(value: str | None) -> bool:
    """Whether a value is pmap itself, or a partial of it, which has its place behind the name."""
    return value is not None and value.split(" ")[0] in PMAPS


def is_zero(node: ast.AST) -> bool:
    """Whether an index is 0."""
    return isinstance(node, ast.Constant) and node.value == 0 and node.value is not False


def returns_tuple(function: Any) -> bool:
    """Whether a function may return a tuple, so that [0] of its result is a part and no row."""
    if function is None or isinstance(function, ast.Lambda):
        return function is None or isinstance(function.body, ast.Tuple)
    returns = (each.value for each in ast.walk(function) if isinstance(each, ast.Return))
    return any(isinstance(each, ast.Tuple) for each in returns)

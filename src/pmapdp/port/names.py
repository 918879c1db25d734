"""What the names in a file stand for, followed through imports, aliases, partials and assignments; nothing is run.

A value is a dotted path: `jnp.sum` stands for "jax.numpy.sum", what it returns for "jax.numpy.sum()", and an element of
that for "jax.numpy.sum()[]". So a pmapped function is "jax.pmap()", and "jax.pmap()()" is what it returns, `[N, ...]`.
A function of the program is "def PLACE". None is what cannot be read.
"""

import ast
from pathlib import Path
from typing import Any

PMAPS = ("jax.pmap", "equinox.filter_pmap", "flax.nnx.pmap")
LIBRARIES = ("jax", "flax", "optax", "numpy", "functools", "haiku", "equinox", "chex")
THROUGH = ("jax.vmap", "jax.jit", "jax.checkpoint", "jax.remat", "functools.partial")  # of their first argument


class File:
    """A module of the program: its syntax tree and what is known of its names."""

    def __init__(self, path: str, tree: ast.Module):
        self.path, self.tree = path, tree
        self.names: dict[str, str | None] = {}
        self.members: dict[str, dict[str, str | None]] = {}  # of each class: "self.x"
        self.cells: list[tuple[int, int]] = []  # of a notebook: the line before each cell, and its number

    def place(self, line: int) -> str:
        """A line's number, in a notebook behind that of its cell."""
        start, cell = max((each for each in self.cells if each[0] < line), default=(0, 0))
        return f"cell {cell} line {line - start}" if self.cells else str(line)


class Names(ast.NodeVisitor):
    """Binds the names of a file. `functions` and `returned` are shared by the files of a program."""

    def __init__(self, file: File, files: dict[str, File], functions: dict[str, Any], returned: dict[str, str | None]):
        self.file, self.files, self.functions, self.returned = file, files, functions, returned
        self.scopes, self.own, self.inside = [file.names], {}, []
        self.future = False

    def value(self, node: ast.AST | None) -> str | None:
        """What an expression stands for."""
        if isinstance(node, ast.Name):
            return next((scope[node.id] for scope in reversed(self.scopes) if node.id in scope), None)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                return self.own.get(node.attr)
            base = self.value(node.value)
            if base in self.files:
                return self.files[base].names.get(node.attr)
            return base and f"{base}.{node.attr}"
        if isinstance(node, ast.Call):
            return self.result(node)
        if isinstance(node, ast.Subscript):
            base = self.value(node.value)
            return None if base is None or (is_zero(node.slice) and base.startswith(STACKED)) else f"{base}[]"
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            self.functions[key := f"dict {self.file.path}:{node.lineno}:{node.col_offset}"] = node
            return key
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int):
            return repr(node.value)
        if isinstance(node, ast.BoolOp | ast.IfExp):
            parts = node.values if isinstance(node, ast.BoolOp) else (node.body, node.orelse)
            return next((each for each in map(self.value, parts) if each), None)
        return None

    def result(self, node: ast.Call) -> str | None:
        """What a call returns."""
        function, first = self.value(node.func), self.value(node.args[0]) if node.args else None
        if function is None and isinstance(node.func, ast.Name) and node.func.id in ("len", "int", "tuple", "list"):
            return "jax.device_count()" if first in ("jax.devices()", "jax.local_devices()") else first
        if function == "functools.partial" and not is_pmap(first):
            return first
        if function == "functools.partial" or (is_pmap(function) and not node.args):  # some of the arguments
            name = first if function == "functools.partial" else function
            self.functions[key := f"{name} {self.file.path}:{node.lineno}"] = node
            return key
        if is_pmap(function):
            whole = ast.unparse(self.keywords(node).get("out_axes", node)) == "None"
            return "jax.pmap(None)" if whole else f"jax.pmap({',' * returns_tuple(self.mapped_function(node))})"
        if function in self.returned:
            return self.returned[function]
        return function and f"{function}()"

    def keywords(self, node: ast.AST | None) -> dict[str | None, ast.expr]:
        """The keywords of a call, with those that partials gave before it."""
        if not isinstance(node, ast.Call):
            before = self.functions.get(self.value(node) or "")
            return self.keywords(before) if isinstance(before, ast.Call) else {}
        before = self.functions.get(self.value(node.func) or "")
        given = self.keywords(before) if isinstance(before, ast.Call) else {}
        for each in node.keywords:
            known = self.functions.get(self.value(each.value) or "") if each.arg is None else None
            if isinstance(known, ast.Dict):  # **options, where they are written out
                given |= {ast.literal_eval(key): value for key, value in zip(known.keys, known.values, strict=True)}
            else:
                given[each.arg] = each.value
        return given

    def mapped_function(self, call: ast.Call) -> ast.AST | None:
        """The function that a pmap maps, through `vmap`, `partial` and the like: its definition, or a lambda."""
        node: Any = call.args[0] if call.args else None
        while isinstance(node, ast.Call) and node.args and self.value(node.func) in THROUGH:
            node = node.args[-1 if self.value(node.args[0]) == "jax.lax.scan" else 0]
        return node if isinstance(node, ast.Lambda) else self.functions.get(self.value(node) or "")

    def bind(self, target: ast.AST, value: str | None, node: ast.AST | None = None) -> None:
        """Assign, part by part where both sides are tuples."""
        if isinstance(target, ast.Name):
            self.scopes[-1][target.id] = value
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            self.own[target.attr] = value or self.own.get(target.attr)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value)
        elif isinstance(target, ast.Tuple | ast.List):
            parts = node.elts if isinstance(node, ast.Tuple) and len(node.elts) == len(target.elts) else None
            for number, each in enumerate(target.elts):
                part = parts[number] if parts else None
                self.bind(each, self.value(part) if parts else value and f"{value}[]", part)

    def visit_Assign(self, node: ast.Assign) -> None:
        """What a name stands for from here on."""
        self.generic_visit(node)
        for target in node.targets:
            self.bind(target, self.value(node.value), node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """The same, with a type."""
        self.generic_visit(node)
        self.bind(node.target, self.value(node.value))

    def visit_For(self, node: ast.For) -> None:
        """The elements of what is read."""
        value = self.value(node.iter)
        self.bind(node.target, value and f"{value}[]")
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """The same in a comprehension."""
        self.visit_For(node)  # type: ignore[arg-type]

    def visit_ListComp(self, node: Any) -> None:
        """Names are bound before the element reads them."""
        for each in node.generators:  # they bind what the element reads
            self.visit(each)
        self.generic_visit(node)

    visit_GeneratorExp = visit_SetComp = visit_DictComp = visit_ListComp

    def visit_Import(self, node: ast.Import) -> None:
        """A library, or a file of the program."""
        for name in node.names:
            path = name.name if name.asname else name.name.partition(".")[0]
            self.scopes[-1][name.asname or path] = self.local(path) or path

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """A name of either."""
        self.future |= node.module == "__future__" and any(each.name == "annotations" for each in node.names)
        file = self.local(node.module or "", node.level)
        for name in node.names:
            inner = self.local(".".join(filter(None, (node.module, name.name))), node.level)
            if name.name == "*":
                self.scopes[-1].update(self.files[file].names if file else {})
            elif file and name.name in self.files[file].names:
                self.scopes[-1][name.asname or name.name] = self.files[file].names[name.name]
            else:
                path = None if file or node.level else f"{node.module}.{name.name}"
                self.scopes[-1][name.asname or name.name] = inner or path

    def local(self, module: str, level: int = 0) -> str | None:
        """The file of the program that an import names, the nearest one where several would do."""
        if not level and module.partition(".")[0] in LIBRARIES:  # also beside a file of that name
            return None
        here = Path(self.file.path).parent
        tail = module.replace(".", "/")
        folders = [here, *here.parents] if level == 0 else [[here, *here.parents][level - 1 : level][0]]
        names = [f"{tail}.py", f"{tail}/__init__.py"] if tail else ["__init__.py"]
        return next((path for each in folders for name in names if (path := str(each / name)) in self.files), None)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """A class binds what methods find on self."""
        outer, self.own = self.own, self.file.members.setdefault(f"{node.name}:{node.lineno}", {})
        self.scopes.append({})
        self.generic_visit(node)
        self.own |= {name: value for name, value in self.scopes.pop().items() if value}
        self.own = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A function stands for its place, or for a pmapped function."""
        key = f"def {self.file.path}:{node.lineno}"
        self.functions[key] = node
        for each in node.decorator_list:
            self.visit(each)
        decorators = [self.value(each) for each in node.decorator_list]
        pmapped = any(map(is_pmap, decorators))
        self.scopes[-1][node.name] = f"jax.pmap({',' * returns_tuple(node)})" if pmapped else key
        self.body(node, key)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """A function without a name."""
        self.body(node, f"lambda {self.file.path}:{node.lineno}:{node.col_offset}")

    def body(self, node: Any, key: str) -> None:
        """Visit a function with its parameters, which hide the names outside."""
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        for each in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(each)
        if not self.future:
            for each in [getattr(node, "returns", None), *(each.annotation for each in every if each)]:
                if each is not None:
                    self.visit(each)
        self.scopes.append({each.arg: None for each in every if each})
        self.inside.append(key)
        for each in node.body if isinstance(node.body, list) else [node.body]:
            self.visit(each)
        if result := next((each.value for each in ast.walk(node) if isinstance(each, ast.Return)), None):
            self.returned[key] = self.value(result)
        self.inside.pop()
        self.scopes.pop()


STACKED = (
    "jax.pmap()()", "jax.pmap(,)()[", "flax.jax_utils.replicate()", "flax.training.common_utils.shard()",
    "flax.jax_utils.prefetch_to_device()[", "jax.device_put_replicated()", "jax.device_put_sharded()",
)  # fmt: skip


def is_pmap(value: str | None) -> bool:
    """Whether a value is pmap itself, or a partial of it, which has its place behind the name."""
    return value is not None and value.split(" ")[0] in PMAPS


def is_zero(node: ast.AST) -> bool:
    """Whether an index is 0."""
    return isinstance(node, ast.Constant) and node.value == 0 and node.value is not False


def returns_tuple(function: ast.AST | None) -> bool:
    """Whether a function may return a tuple, so that [0] of its result is a part and no row."""
    if function is None or isinstance(function, ast.Lambda):
        return function is None or isinstance(function.body, ast.Tuple)
    returns = (each.value for each in ast.walk(function) if isinstance(each, ast.Return))
    return any(isinstance(each, ast.Tuple) for each in returns)

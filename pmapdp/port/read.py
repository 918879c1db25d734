"""Read a program without running it, and follow its names from file to file.

Each node of a syntax tree gets two attributes, `parent` and `file`. `resolve(node)` says what an expression stands for:
a dotted path in a library (`jnp.sum` is "jax.numpy.sum"), a `File`, or a node of the program.
"""

import ast
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pmapdp.errors import UserError, reason
from pmapdp.files import file_errors

LIBRARIES = ("jax", "flax", "optax", "numpy", "functools", "haiku", "equinox", "chex")
SKIPPED_FOLDERS = {"node_modules", "site-packages", "__pycache__", "venv", "env", "build"}
CELL = 10**6  # line 7 of a notebook's second cell has number 2_000_007
FUNCTION = (ast.FunctionDef, ast.Lambda)


class File:
    """A module: its syntax tree, and the values that names get in each of its functions."""

    def __init__(self, path: str, tree: ast.Module, program: dict[str, "File"]):
        self.path, self.tree, self.program = path, tree, program
        self.nodes: list[Any] = list(ast.walk(tree))
        self.bindings: dict[tuple[Any, str], list[Any]] = {}
        for node in self.nodes:
            node.file = self
            for child in ast.iter_child_nodes(node):
                child.parent = node
        for node in self.nodes:
            match node:
                case ast.alias(name=name):
                    self.bind(node, node.asname or name.partition(".")[0], node)
                case ast.FunctionDef(name=name):
                    self.bind(node.parent, f"self.{name}" if isinstance(node.parent, ast.ClassDef) else name, node)
                case ast.arg(arg=name):
                    self.bind(node, name, node)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self.assign(target, value)

    def assign(self, target: Any, value: Any) -> None:
        """Bind a name, an attribute of self, or the names of a tuple to the parts of a value."""
        match target:
            case ast.Name() | ast.Attribute(value=ast.Name(id="self")):
                self.bind(target, ast.unparse(target), value)
            case ast.Tuple(elts=targets):
                parts = getattr(value, "elts", [])
                for number, each in enumerate(targets):
                    part: Any = ast.Subscript(value, ast.Constant(number), ast.Load(), lineno=target.lineno)
                    part.parent, part.file = target, self
                    self.assign(each, parts[number] if len(parts) == len(targets) else part)

    def bind(self, node: Any, name: str, value: Any) -> None:
        """Bind a name in the function around a node. Attributes of self belong to the file."""
        scope = self.tree if name.startswith("self.") else functions_around(node)[0]
        self.bindings.setdefault((scope, name), []).append(value)

    def global_value(self, name: str) -> Any:
        """Resolve a name of the module."""
        return resolve(self.bindings.get((self.tree, name), [None])[-1])

    def find_module(self, name: str, level: int = 0) -> "File | None":
        """Find the file of an import, the nearest one if several would do."""
        return next((self.program[each] for each in module_paths(self.path, name, level) if each in self.program), None)


def module_paths(path: str, name: str, level: int = 0) -> list[str]:
    """List the files that an import in `path` may mean."""
    if not level and name.partition(".")[0] in LIBRARIES:  # also beside a file with that name
        return []
    folders, tail = Path(path).parents, name.replace(".", "/")
    ends = [f"{tail}.py", f"{tail}/__init__.py"] if name else ["__init__.py"]
    return [str(folder / end) for folder in (folders[level - 1 : level] if level else folders) for end in ends]


def functions_around(node: Any) -> list[Any]:
    """List the functions around a node, the innermost first, and at last its module. Decorators run outside."""
    around, child = [], node
    while node is not None:
        if isinstance(node, (*FUNCTION, ast.Module)) and child not in getattr(node, "decorator_list", ()):
            around.append(node)
        child, node = node, getattr(node, "parent", None)
    return around


def remember(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keep the result for each node. A name that is defined by itself stands for nothing."""
    results: dict[Any, Any] = {}

    def recall(node: Any) -> Any:
        if node not in results:
            results[node] = None
            results[node] = function(node)
        return results[node]

    return recall


@remember
def resolve(node: Any) -> Any:
    """Follow names and imports to a dotted path of a library, a `File` or a node of the program."""
    match node:
        case ast.Name(id=name):  # the last value before it in the innermost function that defines the name
            scopes = (node.file.bindings.get((scope, name)) for scope in functions_around(node))
            values = next(filter(None, scopes), [None])
            before = [each for each in values if each and each.lineno < node.lineno]
            return resolve(max(before, key=lambda each: each.lineno) if before else values[-1])
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return node.file.global_value(f"self.{name}")
        case ast.Attribute(value=value, attr=name):
            base = resolve(value)
            if isinstance(base, File):
                return base.global_value(name)
            return f"{base}.{name}" if isinstance(base, str) else node
        case ast.alias(name=name, parent=ast.ImportFrom(module=module, level=level)):
            path, file = f"{module or ''}.{name}".strip("."), node.file.find_module(module or "", level)
            return node.file.find_module(path, level) or (file.global_value(name) if file else path)
        case ast.alias(name=name, asname=asname):
            path = name if asname else name.partition(".")[0]
            return node.file.find_module(path) or path
        case ast.IfExp(body=body, orelse=other):
            return resolve(body) or resolve(other)
    return node


def path_of(node: Any) -> str:
    """Give the dotted path of a library's name, with `()` after a call; otherwise an empty text."""
    found = resolve(node)
    if isinstance(found, ast.Call) and (path := path_of(found.func)):
        return f"{path}()"
    return found if isinstance(found, str) else ""


def constant(node: Any) -> Any:
    """Give the value of a literal, or of a name that stands for one."""
    found = resolve(node)
    return found.value if isinstance(found, ast.Constant) else None


def keywords(call: Any) -> dict[str | None, Any]:
    """List the keyword arguments of a call, also those of a dictionary that is written out."""
    given: dict[str | None, Any] = {}
    for each in call.keywords:
        options: Any = resolve(each.value) if each.arg is None else None
        known = isinstance(options, ast.Dict)
        given |= (
            dict(zip(map(constant, options.keys), options.values, strict=True)) if known else {each.arg: each.value}
        )
    return given


def read_program(given: str) -> tuple[dict[str, File], list[str]]:
    """Read a folder, or a file with the files that it imports. Returns files by path, and a line for each unread one.

    Raises:
        UserError: there is nothing to read, or the one file that was named can't be read.
    """
    path, files, unread = Path(given), dict[str, File](), list[str]()
    with file_errors(given, "read", "name a Python file, a notebook, or a folder"):
        exists = path.exists()
    if not exists:
        raise UserError(f"there is no file or folder {given!r}: name one, for example train.py")
    if not path.is_dir() and path.suffix not in (".py", ".ipynb"):
        raise UserError(f"{given!r} is neither Python nor a notebook: name a .py or .ipynb file, or a folder")
    paths = [*sorted(path.rglob("*.py")), *sorted(path.rglob("*.ipynb"))] if path.is_dir() else [path]
    for each in paths:  # grows by what a single file imports
        parts = each.relative_to(path).parts if path.is_dir() else ()
        if str(each) in files or not each.is_file() or any(x in SKIPPED_FOLDERS or x[:1] == "." for x in parts):
            continue
        try:
            tree = parse_notebook(each) if each.suffix == ".ipynb" else parse(each.read_bytes(), str(each))
        except (SyntaxError, OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            unread.append(f"{each} can't be read ({reason(error)}): is it Python 3?")
            continue
        files[str(each)] = file = File(str(each), tree, files)
        for node in file.nodes:
            if path.is_file() and isinstance(node, ast.alias):
                module, level = getattr(node.parent, "module", None), getattr(node.parent, "level", 0)
                for name in (module or node.name, f"{module or ''}.{node.name}".strip(".")):
                    paths += map(Path, module_paths(str(each), name, level))
    if path.is_file() and not files:
        raise UserError(unread[0])
    if not files and not unread:
        raise UserError(f"the folder {given!r} holds no Python: name one with .py or .ipynb files")
    return files, unread


def parse(text: str | bytes, name: str) -> ast.Module:
    """Parse Python. Warnings about the program's strings aren't ours."""
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(text, name)


def parse_notebook(path: Path) -> ast.Module:
    """Parse a notebook's code cells as one module; line numbers hold the number of the cell."""
    body: list[ast.stmt] = []
    for number, cell in enumerate(json.loads(path.read_bytes())["cells"], 1):
        lines = "".join(cell["source"]).splitlines() if cell["cell_type"] == "code" else []
        if lines and not lines[0].startswith("%%"):  # that is a cell in another language
            # IPython's lines become `pass`, so that line numbers and blocks stay.
            code = "\n".join("pass" if each[:1] in ("%", "!", "?") else each for each in lines)
            body += ast.increment_lineno(parse(code, f"cell {number}"), number * CELL).body
    return ast.Module(body, [])

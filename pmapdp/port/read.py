"""Read a program without running it, and follow its names from file to file.

Each node of a syntax tree gets two attributes, `parent` and `file`. `resolve(node)` says what an expression stands for:
a dotted path in a library (`jnp.sum` is "jax.numpy.sum"), a `File`, or a node of the program.
"""

import ast
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pmapdp.errors import UserError, reason

SKIPPED_FOLDERS = {"node_modules", "site-packages", "__pycache__", "venv", "env", "build"}
FUNCTION = (ast.FunctionDef, ast.Lambda)


class File:
    """A module: its syntax tree, and the values that its names get, in the order of lines."""

    def __init__(self, path: str, tree: ast.Module, program: dict[str, "File"]):
        self.path, self.tree, self.program = path, tree, program
        self.nodes: list[Any] = list(ast.walk(tree))
        self.values: dict[str, list[tuple[int, Any]]] = {}
        for node in self.nodes:
            node.file = self
            for child in ast.iter_child_nodes(node):
                child.parent = node
        for node in self.nodes:
            match node:
                case ast.alias(name=name):
                    self.bind(node.asname or name.partition(".")[0], node, node)
                case ast.FunctionDef(name=name):
                    self.bind(f"self.{name}" if isinstance(node.parent, ast.ClassDef) else name, node, node)
                case ast.arg(arg=name):
                    self.bind(name, node, node)
                case ast.Assign(targets=[ast.Tuple(elts=targets), *_], value=value):
                    for number, target in enumerate(targets):
                        part: Any = ast.Subscript(value, ast.Constant(number), ast.Load(), lineno=node.lineno)
                        part.parent, part.file = node, self
                        self.bind(ast.unparse(target), node, getattr(value, "elts", {number: part})[number])
                case ast.Assign(targets=[target, *_], value=value):
                    self.bind(ast.unparse(target), node, value)

    def bind(self, name: str, node: Any, value: Any) -> None:
        """Give a name a value in the line of a node."""
        self.values.setdefault(name, []).append((node.lineno, value))

    def resolve_name(self, name: str, line: float = float("inf")) -> Any:
        """Resolve a name to its last value before a line, or to the first one after it."""
        values = sorted(self.values.get(name, ()), key=lambda value: value[0])
        before = [value for number, value in values if number < line]
        return resolve(before[-1] if before else values[0][1] if values else None)


def find_file(program: dict[str, File], module: str) -> File | None:
    """Find the file of a module in a program."""
    ends = tuple(f"/{module.replace('.', '/')}{end}" for end in (".py", "/__init__.py"))
    return next((file for path, file in program.items() if module and f"/{path}".endswith(ends)), None)


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
        case ast.Name(id=name):
            return node.file.resolve_name(name, node.lineno)
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return node.file.resolve_name(f"self.{name}")
        case ast.Attribute(value=value, attr=name):
            base = resolve(value)
            if isinstance(base, File):
                return base.resolve_name(name)
            return f"{base}.{name}" if isinstance(base, str) else node
        case ast.alias(name=name, parent=ast.ImportFrom(module=module)):
            path, file = f"{module or ''}.{name}".strip("."), find_file(node.file.program, module or "")
            return find_file(node.file.program, path) or (file.resolve_name(name) if file else path)
        case ast.alias(name=name, asname=asname):
            path = name if asname else name.partition(".")[0]
            return find_file(node.file.program, path) or path
    return node


def path_of(node: Any) -> str:
    """Give the dotted path of a library's name, with `()` after a call; otherwise an empty text."""
    found = resolve(node)
    if isinstance(found, ast.Call) and (path := path_of(found.func)):
        return f"{path}()"
    return found if isinstance(found, str) else ""


def constant(node: Any) -> Any:
    """Give the value of a literal, or of a name that stands for one."""
    return getattr(resolve(node), "value", None) if isinstance(resolve(node), ast.Constant) else None


def keywords(call: Any) -> dict[Any, Any]:
    """List the keyword arguments of a call."""
    return {each.arg: each.value for each in call.keywords}


def read_program(given: str) -> tuple[dict[str, File], list[str]]:
    """Read a folder, or a file with the files that it imports. Returns files by path, and a line for each unread one.

    Raises:
        UserError: there is nothing to read, or the one file that was named can't be read.
    """
    path, files, unread = Path(given), dict[str, File](), list[str]()
    if not path.is_dir() and not (path.is_file() and path.suffix == ".py"):
        advice = "name one, for example train.py; jupyter nbconvert --to script makes one of a notebook"
        raise UserError(f"{given!r} is no Python file or folder: {advice}")
    paths = [path] if path.is_file() else sorted(path.rglob("*.py"))
    for each in paths:  # grows by what a single file imports
        parts = each.relative_to(path).parts if path.is_dir() else ()
        if str(each) in files or not each.is_file() or any(x in SKIPPED_FOLDERS or x[:1] == "." for x in parts):
            continue
        try:
            with warnings.catch_warnings(action="ignore"):  # they're about the program's strings
                tree = ast.parse(each.read_bytes())
        except (SyntaxError, OSError, ValueError, RecursionError) as error:
            unread.append(f"{each} can't be read ({reason(error)}): is it Python 3?")
            continue
        files[str(each)] = file = File(str(each), tree, files)
        for node in file.nodes if path.is_file() else ():
            if isinstance(node, ast.alias):
                module = getattr(node.parent, "module", None) or ""
                for name in (module, f"{module}.{node.name}".strip(".")):
                    paths += [folder / f"{name.replace('.', '/')}.py" for folder in each.parents]
    if not files and (unread or path.is_dir()):
        raise UserError(unread[0] if unread else f"the folder {given!r} holds no Python: name one with .py files")
    return files, unread

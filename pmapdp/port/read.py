"""Read a program without running it, and follow its names from file to file.

Each node of a syntax tree gets two attributes, `parent` and `file`. `resolve(node)`
says what an expression stands for: a dotted path in a library (`jnp.sum` is
"jax.numpy.sum"), a `File`, or a node of the program.
"""

import ast
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pmapdp.errors import UserError, reason

SKIPPED_FOLDERS = {
    "node_modules",
    "site-packages",
    "__pycache__",
    "venv",
    "env",
    "build",
}
FUNCTION = (ast.FunctionDef, ast.Lambda)


class File:
    """A module: its syntax tree, and for each name the lines that bind it, with their values."""

    def __init__(self, path: str, tree: ast.Module, modules: dict[str, "File"]):
        self.path, self.tree, self.modules = (
            path,
            tree,
            modules,
        )  # the program's modules, by name
        self.nodes: list[Any] = list(ast.walk(tree))  # parents before their children
        self.values: dict[str, list[tuple[int, Any]]] = {}
        for node in self.nodes:
            node.file = self
            for child in ast.iter_child_nodes(node):
                child.parent = node
            for name, value in bindings(node):
                self.values.setdefault(name, []).append((node.lineno, value))

    def resolve_name(self, name: str, line: float = float("inf")) -> Any:
        """Resolve a name to its last value before a line, or to the first one after it."""
        values = sorted(self.values.get(name, ()), key=lambda value: value[0])
        before = [value for number, value in values if number < line]
        return resolve(before[-1] if before else values[0][1] if values else None)


def bindings(node: Any) -> Iterator[tuple[str, Any]]:
    """List the names that a node binds, with their values."""
    match node:
        case ast.alias(name=name):
            yield node.asname or name.partition(".")[0], node
        case ast.FunctionDef(name=name):
            yield (
                f"self.{name}" if isinstance(node.parent, ast.ClassDef) else name,
                node,
            )
        case ast.arg(arg=name):
            yield name, node
        case ast.Assign(targets=[ast.Tuple(elts=targets), *_], value=value):
            parts: list[Any] = [
                ast.Subscript(value, ast.Constant(n), ast.Load())
                for n, _ in enumerate(targets)
            ]
            for target, part in zip(
                targets, getattr(value, "elts", parts), strict=False
            ):
                part.parent, part.file, part.lineno = node, node.file, node.lineno
                yield ast.unparse(target), part
        case ast.Assign(targets=[target, *_], value=value):
            yield ast.unparse(target), value


def remember(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Cache a function's results. A result is None until it's known, so a name defined by itself stands for nothing."""
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
        case ast.Name() | ast.Attribute(value=ast.Name(id="self")):
            return node.file.resolve_name(ast.unparse(node), node.lineno)
        case ast.Attribute(value=value, attr=name):
            base = resolve(value)
            if isinstance(base, File):
                return base.resolve_name(name)
            return f"{base}.{name}" if isinstance(base, str) else node
        case ast.alias(name=name, parent=ast.ImportFrom(module=module)):
            path, file = (
                f"{module or ''}.{name}".strip("."),
                node.file.modules.get(module),
            )
            return node.file.modules.get(path) or (
                file.resolve_name(name) if file else path
            )
        case ast.alias(name=name, asname=asname):
            path = name if asname else name.partition(".")[0]
            return node.file.modules.get(path, path)
    return node


def path_of(node: Any) -> str:
    """Give the dotted path of a library's name; otherwise an empty text."""
    return found if isinstance(found := resolve(node), str) else ""


def read_program(given: str) -> tuple[dict[str, File], list[str]]:
    """Read a folder, or a file with the files that it imports. Returns files by path, and a line for each unread one.

    Raises:
        UserError: there is nothing to read, or the one file that was named can't be
            read.
    """
    path, files, modules, unread = (
        Path(given),
        dict[str, File](),
        dict[str, File](),
        list[str](),
    )
    if not path.is_dir() and not (path.is_file() and path.suffix == ".py"):
        raise UserError(
            f"{given!r} is no Python file or folder: try train.py (jupyter nbconvert --to script makes one)"
        )
    paths = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    for each in paths:  # grows by what a single file imports
        folders = each.parts[len(path.parts) :]
        if str(each) in files or any(
            folder in SKIPPED_FOLDERS or folder[:1] == "." for folder in folders
        ):
            continue
        try:
            with warnings.catch_warnings(
                action="ignore"
            ):  # they're about the program's strings
                file = files[str(each)] = File(
                    str(each), ast.parse(each.read_bytes()), modules
                )
        except (SyntaxError, OSError, ValueError, RecursionError) as error:
            unread.append(f"{each} can't be read ({reason(error)}): is it Python 3?")
            continue
        parts = str(each).removesuffix(".py").removesuffix("/__init__").split("/")
        modules.update({".".join(parts[number:]): file for number in range(len(parts))})
        for node in file.nodes if path.is_file() else ():
            if isinstance(node, ast.alias):
                module = getattr(node.parent, "module", None) or ""
                names = (module, f"{module}.{node.name}".strip("."))
                found = [
                    folder / f"{name.replace('.', '/')}.py"
                    for name in names
                    for folder in each.parents
                ]
                paths += filter(Path.is_file, found)
    if not files:
        raise UserError(
            unread[0]
            if unread
            else f"the folder {given!r} holds no Python: name one with .py files"
        )
    return files, unread

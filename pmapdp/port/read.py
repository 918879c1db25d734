"""Read a program without running it, and follow its names as Python would."""

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pmapdp.errors import UserError, first_line

SKIPPED_FOLDERS = {
    "node_modules",
    "site-packages",
    "__pycache__",
    "venv",
    "env",
    "build",
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SCOPES = (ast.Module, ast.ClassDef, *FUNCTIONS)
Node = ast.AST | None
# What an expression stands for: a node of the program (for a module its tree), a dotted
# path in a library ("jax.numpy.sum"), or None if the program doesn't show it.
Value = Node | str


class Binding(NamedTuple):
    """A value that a name gets.

    Attributes:
        place: The line and column from which the name has it. An assignment takes
            effect at its end, so its right side sees the value before.
        value: The node of the value.
    """

    place: tuple[int, int]
    value: Node


class Program:
    """The syntax trees of a program, and what the names in them are bound to.

    Attributes:
        files: The tree of each file by path.
        unread: A line for each file that can't be read.
    """

    def __init__(self) -> None:
        self.files: dict[str, ast.Module] = {}
        self.unread: list[str] = []
        self._modules: dict[str, ast.Module] = {}  # by dotted name
        self._parents: dict[ast.AST, ast.AST] = {}
        self._bindings: dict[ast.AST, dict[str, list[Binding]]] = {}  # by scope
        self._values: dict[ast.AST, Value] = {}  # what `resolve` has found

    def add(self, path: str) -> None:
        """Read a file, and add its module."""
        try:
            with warnings.catch_warnings(action="ignore"):  # about the file's strings
                tree = ast.parse(Path(path).read_bytes())
        except (SyntaxError, ValueError) as error:
            text = f"{path} can't be read ({first_line(error)}): is it Python 3?"
            self.unread.append(text)
            return
        self.files[path] = tree
        parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
        for number in range(len(parts)):  # it may be imported from any folder above
            self._modules[".".join(parts[number:])] = tree
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node
            if isinstance(node, SCOPES):
                self._bindings[node] = {}
        for node in ast.walk(tree):
            self._bind_names(node)

    def parent(self, node: Node) -> Node:
        """Return the node that a node is a part of, or None."""
        return self._parents.get(node) if node else None

    def around(self, node: Node, types: Any) -> Node:
        """Return the innermost node of some types around a node, or None."""
        node = self.parent(node)
        while node and not isinstance(node, types):
            node = self.parent(node)
        return node

    def file_of(self, node: Node) -> str:
        """Return the path of the file that a node is in."""
        module = self.around(node, ast.Module)
        paths = [path for path, tree in self.files.items() if tree is module]
        return paths[0] if paths else ""

    def lookup(self, module: ast.AST, name: str) -> Value:
        """Resolve a name of a module to the last value that it gets."""
        return self.resolve(last(self._bindings[module].get(name, [])))

    def path_of(self, node: Node) -> str:
        """Return the dotted path of a library's name, otherwise an empty text."""
        value = self.resolve(node)
        return value if isinstance(value, str) else ""

    def resolve(self, node: Node) -> Value:
        """Follow names and imports to a node of the program or a library's path."""
        if node is None:
            return None
        if node not in self._values:
            self._values[node] = None  # ends a circle of imports
            self._values[node] = self._follow(node)
        return self._values[node]

    def _follow(self, node: ast.AST) -> Value:
        if isinstance(node, ast.Name):
            return self.resolve(self._value_of_name(node))
        if isinstance(node, ast.alias):
            return self._value_of_import(node)
        if not isinstance(node, ast.Attribute):
            return node
        if is_of_self(node):
            return self.resolve(self._value_of_self(node))
        owner = self.resolve(node.value)
        if isinstance(owner, ast.Module):
            return self.lookup(owner, node.attr)
        return f"{owner}.{node.attr}" if isinstance(owner, str) else node

    def _value_of_name(self, use: ast.Name) -> Node:
        """Find a name's value in its scope, or in those around it.

        A function that uses a name of a scope around it is called later, so it sees
        the last value there. It doesn't see the names of its class.
        """
        own_scope = self.around(use, SCOPES)
        scope = own_scope
        while scope:
            bindings = self._bindings[scope].get(use.id, [])
            if scope is own_scope:
                bindings = before(use, bindings)
            elif isinstance(scope, ast.ClassDef):
                bindings = []
            if bindings:
                return last(bindings)
            scope = self.around(scope, SCOPES)
        return None

    def _value_of_self(self, use: ast.Attribute) -> Node:
        """Find the value of `self.x`: the assignment before it, or the method."""
        owner = self.around(use, ast.ClassDef)
        names = self._bindings[owner] if owner else {}
        assigned = before(use, names.get(ast.unparse(use), []))
        return last(assigned or names.get(use.attr, []))

    def _value_of_import(self, node: ast.alias) -> Value:
        """Resolve an import to a module, to a value in its module, or to a path."""
        if isinstance(self.parent(node), ast.Import):
            path = node.name if node.asname else node.name.partition(".")[0]
            return self._modules.get(path, path)
        source, path = self.imported(node)
        if path not in self._modules and source in self._modules:
            return self.lookup(self._modules[source], node.name)
        return self._modules.get(path, path)

    def imported(self, node: ast.alias) -> tuple[str, str]:
        """Return the module and the dotted path of an import, as it names them."""
        source = getattr(self.parent(node), "module", None) or ""
        return source, f"{source}.{node.name}".strip(".")

    def _bind_names(self, node: ast.AST) -> None:
        """Note the names that a node binds."""
        if isinstance(node, ast.alias):
            self._bind(node.asname or node.name.partition(".")[0], node, node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            self._bind(node.name, node, node)
        elif isinstance(node, ast.arg):
            self._bind(node.arg, node, node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind_target(target, node.value, node)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            self._bind_target(node.target, node.value, node)
        elif isinstance(node, ast.For):
            self._bind_target(node.target, node, node.target)

    def _bind_target(self, target: Node, value: Node, statement: ast.AST) -> None:
        """Bind the names of an assignment's target to their parts of the value."""
        if target and (isinstance(target, ast.Name) or is_of_self(target)):
            self._bind(ast.unparse(target), value, statement)
        if not isinstance(target, ast.Tuple):
            return
        for number, part in enumerate(target.elts):
            element = value
            if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                element = value.elts[number]
            elif isinstance(value, ast.expr):  # `a, b = f(x)`: a is f(x)[0]
                element = ast.Subscript(value, ast.Constant(number), ast.Load())
            self._bind_target(part, element, statement)

    def _bind(self, name: str, value: Node, statement: Any) -> None:
        """Bind a name in a statement's scope, or `self.x` in the class around it."""
        is_attribute = name.startswith("self.")
        scope = self.around(statement, ast.ClassDef if is_attribute else SCOPES)
        if scope:
            place = (statement.end_lineno, statement.end_col_offset)
            names = self._bindings[scope]
            names.setdefault(name, []).append(Binding(place, value))


def before(use: ast.expr, bindings: list[Binding]) -> list[Binding]:
    """Select the bindings that take effect before a name is used."""
    place = (use.lineno, use.col_offset)
    return [binding for binding in bindings if binding.place <= place]


def last(bindings: list[Binding]) -> Node:
    """Return the value of the last binding, or None."""
    ordered = sorted(bindings, key=lambda binding: binding.place)
    return ordered[-1].value if ordered else None


def is_of_self(node: Node) -> bool:
    """Return True for `self.x`."""
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"


def read_program(path: str) -> Program:
    """Read a program: a folder, or a file with the files that it imports.

    Nothing of it is run.

    Args:
        path: The path of the file or folder.

    Raises:
        UserError: There is nothing to read, or the one file that was named can't be
            read.
    """
    start = Path(path)
    program = Program()
    if start.is_dir():
        for file in sorted(source_files(start)):
            program.add(str(file))
    elif start.is_file() and start.suffix == ".py":
        add_with_imports(program, str(start))
    else:
        raise UserError(
            f"{path!r} is no Python file or folder: try train.py "
            "(jupyter nbconvert --to script makes one)"
        )
    if not program.files:
        nothing = f"the folder {path!r} holds no Python: name one with .py files"
        raise UserError(program.unread[0] if program.unread else nothing)
    return program


def source_files(folder: Path) -> Iterator[Path]:
    """List the Python files of a folder, but not of environments and builds."""
    for file in folder.rglob("*.py"):
        names = file.relative_to(folder).parts[:-1]
        hidden = [name for name in names if name.startswith(".")]
        if not hidden and not SKIPPED_FOLDERS.intersection(names):
            yield file


def add_with_imports(program: Program, path: str) -> None:
    """Add a file, and the files that it imports, as far as they can be found."""
    waiting = [path]
    seen = set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            program.add(path)
            if path in program.files:
                waiting += imported_files(program, path)


def imported_files(program: Program, path: str) -> Iterator[str]:
    """List the files that a file imports, from its own folder or those above."""
    folders = [*Path(path).parents]
    if not Path(path).is_absolute():  # then the current folder is the last of them
        folders += Path.cwd().parents
    for node in ast.walk(program.files[path]):
        if isinstance(node, ast.alias):
            for module in program.imported(node):
                name = module.replace(".", "/")
                files = [folder / f"{name}.py" for folder in folders]
                yield from [str(file) for file in files if file.is_file()][:1]

"""Read a program without running it, and follow its names as Python would.

Each node of a syntax tree gets three attributes: `parent`, `file` and `scope`.
`resolve(node)` says what an expression stands for: a dotted path in a library
(`jnp.sum` is "jax.numpy.sum"), a `Module`, or a node of the program.
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
COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPE = (ast.Module, ast.ClassDef, ast.AsyncFunctionDef, *FUNCTION, *COMPREHENSION)


class Module:
    """A Python file. In its syntax tree, each scope has its names.

    `scope.names` holds, for each name, where it's bound and to what.
    """

    def __init__(self, path: str, tree: ast.Module, modules: dict[str, "Module"]):
        self.path = path
        self.tree: Any = tree
        self.modules = modules  # the program's modules, by name
        self.nodes: list[Any] = []  # in the order of the lines
        self.mark(tree, None, None)
        for node in self.nodes:
            bind_names(node)

    def mark(self, node: Any, parent: Any, scope: Any) -> None:
        """List a node and its children, and give them their attributes.

        A decorator is in the scope around its function.
        """
        self.nodes.append(node)
        node.file = self
        node.parent = parent
        node.scope = scope
        inner = scope
        if isinstance(node, SCOPE):
            node.names = {}
            inner = node
        decorators = getattr(node, "decorator_list", [])
        for child in ast.iter_child_nodes(node):
            self.mark(child, node, scope if child in decorators else inner)

    def lookup(self, name: str) -> Any:
        """Resolve a name of the module to the last value that it gets."""
        bindings = self.tree.names.get(name)
        return resolve(bindings[-1][1]) if bindings else None


def bind_names(node: Any) -> None:
    """Note the names that a node binds."""
    if isinstance(node, ast.alias):
        bind(node.asname or node.name.partition(".")[0], node, node.parent)
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        bind(node.name, node, node)
    elif isinstance(node, ast.arg):
        bind(node.arg, node, node)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            bind_target(target, node.value, node)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        bind_target(node.target, node.value, node)
    elif isinstance(node, ast.For | ast.comprehension):
        bind_target(node.target, node, node.target)
    elif isinstance(node, ast.withitem):
        bind_target(node.optional_vars, node, node.optional_vars)


def bind_target(target: Any, value: Any, statement: Any) -> None:
    """Bind the names of an assignment's target, with their parts of the value."""
    if isinstance(target, ast.Name):
        bind(target.id, value, statement)
    elif is_of_self(target):
        bind(ast.unparse(target), value, statement)
    elif isinstance(target, ast.Tuple):
        for number, part in enumerate(target.elts):
            if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                bind_target(part, value.elts[number], statement)
            else:  # `a, b = f(x)`: a is f(x)[0]
                element: Any = ast.Subscript(value, ast.Constant(number), ast.Load())
                element.scope = target.scope
                bind_target(part, element, statement)


def bind(name: str, value: Any, statement: Any) -> None:
    """Bind a name in the scope of a statement, or in its class if the name is `self.x`.

    An assignment takes effect at its end, so its right side sees the value before.
    """
    scope = class_of(statement) if name.startswith("self.") else statement.scope
    if scope is not None:
        place = (statement.end_lineno, statement.end_col_offset)
        if isinstance(statement, FUNCTION):
            place = (statement.lineno, 0)
        scope.names.setdefault(name, []).append((place, value))


def is_of_self(node: Any) -> bool:
    """Return True for `self.x`."""
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"


def class_of(node: Any) -> Any:
    """Return the class around a node, or None."""
    while node is not None and not isinstance(node, ast.ClassDef):
        node = node.scope
    return node


def last_before(use: Any, bindings: list[Any]) -> Any:
    """Return the value of the last binding that stands before a use, or None."""
    before = [
        value for place, value in bindings if place <= (use.lineno, use.col_offset)
    ]
    return before[-1] if before else None


def lookup_name(use: Any) -> Any:
    """Find the value of a name where it's used, from its scope out to the module.

    A function that uses a name of a scope around it is called later, so it sees the
    last value there. It doesn't see the names of its class.
    """
    value = None
    scope = use.scope
    while scope is not None and value is None:
        bindings = scope.names.get(use.id, [])
        if scope is use.scope:
            value = last_before(use, bindings)
        elif bindings and not isinstance(scope, ast.ClassDef):
            value = bindings[-1][1]
        scope = scope.scope
    return value


def lookup_attribute(use: Any) -> Any:
    """Find the value of `self.x`.

    That's the assignment before it in the class, or the method, or any assignment.
    """
    names = getattr(class_of(use), "names", {})
    assigned = names.get(ast.unparse(use), [])
    value = last_before(use, assigned)
    if value is None:
        bindings = names.get(use.attr) or assigned
        value = bindings[-1][1] if bindings else None
    return value


def remember(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Cache a function's results by node.

    While a node is looked at, its result is None, which ends a circle.
    """
    results: dict[Any, Any] = {}

    def recall(node: Any) -> Any:
        if node not in results:
            results[node] = None
            results[node] = function(node)
        return results[node]

    return recall


@remember
def resolve(node: Any) -> Any:
    """Follow names and imports to a library's path, a `Module` or a node."""
    if isinstance(node, ast.Name):
        return resolve(lookup_name(node))
    if is_of_self(node):
        return resolve(lookup_attribute(node))
    if isinstance(node, ast.Attribute):
        base = resolve(node.value)
        if isinstance(base, Module):
            return base.lookup(node.attr)
        return f"{base}.{node.attr}" if isinstance(base, str) else node
    if isinstance(node, ast.alias):
        return resolve_import(node)
    return node


def resolve_import(node: Any) -> Any:
    """Resolve an import to a `Module`, to a value in its module, or to a path."""
    modules = node.file.modules
    if isinstance(node.parent, ast.Import):
        path = node.name if node.asname else node.name.partition(".")[0]
        return modules.get(path, path)
    source = node.parent.module or ""
    path = f"{source}.{node.name}".strip(".")
    if path in modules:
        return modules[path]
    return modules[source].lookup(node.name) if source in modules else path


def path_of(node: Any) -> str:
    """Return the dotted path of a library's name, otherwise an empty text."""
    found = resolve(node)
    return found if isinstance(found, str) else ""


def read_program(given: str) -> tuple[dict[str, Module], list[str]]:
    """Read a program: a folder, or a file with the files that it imports.

    Nothing of it is run.

    Args:
        given: The path of the file or folder.

    Returns:
        The modules by path, and a line for each file that can't be read.

    Raises:
        UserError: There is nothing to read, or the one file that was named can't be
            read.
    """
    path = Path(given)
    if not path.is_dir() and not (path.is_file() and path.suffix == ".py"):
        raise UserError(
            f"{given!r} is no Python file or folder: try train.py "
            "(jupyter nbconvert --to script makes one)"
        )
    files: dict[str, Module] = {}
    modules: dict[str, Module] = {}
    unread = []
    waiting = sorted(source_files(path)) if path.is_dir() else [path]
    for file in waiting:  # grows by what a single file imports
        if str(file) in files:
            continue
        try:
            module = read_module(file, modules)
        except (SyntaxError, OSError, ValueError, RecursionError) as error:
            unread.append(f"{file} can't be read ({reason(error)}): is it Python 3?")
            continue
        files[str(file)] = module
        if path.is_file():
            waiting += imported_files(module)
    if not files:
        nothing = f"the folder {given!r} holds no Python: name one with .py files"
        raise UserError(unread[0] if unread else nothing)
    return files, unread


def read_module(file: Path, modules: dict[str, Module]) -> Module:
    """Read a file, and add its module to those of the program."""
    with warnings.catch_warnings(action="ignore"):  # about the program's strings
        tree = ast.parse(file.read_bytes())
    module = Module(str(file), tree, modules)
    parts = str(file).removesuffix(".py").removesuffix("/__init__").split("/")
    for number in range(len(parts)):  # it may be imported from any folder above
        modules[".".join(parts[number:])] = module
    return module


def source_files(folder: Path) -> Iterator[Path]:
    """List the Python files of a folder, but not of environments and builds."""
    for file in folder.rglob("*.py"):
        names = file.relative_to(folder).parts[:-1]
        hidden = [name for name in names if name.startswith(".")]
        if not hidden and not SKIPPED_FOLDERS.intersection(names):
            yield file


def imported_files(module: Module) -> Iterator[Path]:
    """List the files that a module imports, from its own folder or those above."""
    path = Path(module.path)
    folders = [*path.parents]
    if not path.is_absolute():  # then the current folder is the last of them
        folders += Path.cwd().parents
    names = set()
    for node in module.nodes:
        if isinstance(node, ast.alias):
            source = getattr(node.parent, "module", None) or ""
            names |= {source, f"{source}.{node.name}".strip(".")}
    for name in sorted(names - {""}):
        files = [folder / f"{name.replace('.', '/')}.py" for folder in folders]
        yield from [file for file in files if file.is_file()][:1]

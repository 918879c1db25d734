"""Follow the names of a program as Python would, without running it."""

import ast
from collections import ChainMap, deque
from collections.abc import Mapping
from typing import Any

LIBRARIES = ("jax", "flax", "optax", "numpy")
FUNCTIONS = (ast.FunctionDef, ast.Lambda)
Node = ast.AST | None
# What an expression stands for: a node of the program (for a module its tree), a dotted
# path in a library ("jax.numpy.sum"), or None if the program doesn't show it.
Value = Node | str
Names = ChainMap[str, Value]  # of a scope, and of those around it


class Program(ast.NodeVisitor):
    """The syntax trees of a program, and what the names in them stand for.

    The `visit_` methods go through the statements in the order in which Python runs
    them. So a name stands for what was last assigned to it.

    Attributes:
        files: The tree of each file by path.
    """

    def __init__(self, files: Mapping[str, ast.Module]):
        self.files = files
        self._modules: dict[str, ast.Module] = {}  # by dotted name
        self._parents: dict[Node, ast.AST] = {}
        self._values: dict[Value, Value] = {}  # of names and attributes that are read
        self._members: dict[Value, dict[str, Value]] = {}  # of modules and classes
        self._results: dict[Value, Value] = {}  # by function
        self._names: Names = ChainMap()  # of the scope whose statements are visited
        self._functions: deque[tuple[ast.AST, Names]] = deque()  # not visited yet
        for path, tree in files.items():
            parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
            for number, part in enumerate(parts):  # imported from any folder above
                if part not in LIBRARIES:  # a folder jax/ isn't what `import jax` means
                    self._modules[".".join(parts[number:])] = tree
            for node in ast.walk(tree):
                for child in ast.iter_child_nodes(node):
                    self._parents[child] = node
        for tree in files.values():
            self._visit_module(tree)
        # A function is called when its module is complete, and sees its last names.
        while self._functions:
            function, names = self._functions.popleft()
            self._visit_scope(function, names.new_child())

    def parent(self, node: Node) -> Node:
        """Return the node that contains a node, or None."""
        return self._parents.get(node)

    def enclosing(self, node: Node, types: Any) -> Node:
        """Return the innermost node of these types around a node, or None."""
        node = self.parent(node)
        while node and not isinstance(node, types):
            node = self.parent(node)
        return node

    def file_of(self, node: Node) -> str:
        """Return the path of the file that a node is in."""
        module = self.enclosing(node, ast.Module)
        return next(path for path, tree in self.files.items() if tree is module)

    def resolve(self, node: Value) -> Value:
        """Return what a name stands for. Another expression stands for itself."""
        return self._values.get(node, node)

    def path_of(self, node: Node) -> str:
        """Return the dotted path of a library's name, or an empty text."""
        value = self.resolve(node)
        if isinstance(value, str):
            return value
        return ""

    def called_path(self, node: Value) -> str:
        """Return the dotted path of what a call calls, or an empty text."""
        return self.path_of(getattr(self.resolve(node), "func", None))

    def imported_path(self, node: ast.alias) -> str:
        """Return the dotted path of an import, as it's written."""
        source = getattr(self.parent(node), "module", None) or ""
        return f"{source}.{node.name}".strip(".")

    def member(self, owner: Any, name: str) -> Value:
        """Return the last value of a name in a module or in a class."""
        if owner not in self._members:  # a module that's imported before its turn
            self._visit_module(owner)
        return self._members[owner].get(name)

    def result(self, function: Value) -> Value:
        """Return what a function of the program returns in the end, or None."""
        return self.resolve(self._results.get(self.resolve(function)))

    def _visit_module(self, module: ast.Module) -> None:
        if module not in self._members:
            self._members[module] = {}
            self._visit_scope(module, ChainMap(self._members[module]))

    def _visit_scope(self, node: ast.AST, names: Names) -> None:
        names_around = self._names
        self._names = names
        self.generic_visit(node)
        self._names = names_around

    def visit_Name(self, node: ast.Name) -> None:
        """Note the value of a name that's read. A new name first stands for itself."""
        if isinstance(node.ctx, ast.Load):
            self._values[node] = self._names.get(node.id)
        else:
            self._names[node.id] = self._loop_value(node) or node

    def _loop_value(self, name: ast.Name) -> Node:
        """Return a part of d for the x of `for x in d.values()`, otherwise None."""
        target: Any = name
        method = "values"
        parent = self.parent(name)
        if isinstance(parent, ast.Tuple) and name is parent.elts[-1]:
            target = parent
            method = "items"  # `for name, x in d.items()`
        match getattr(self.parent(target), "iter", None):
            case ast.Call(func=ast.Attribute(value=owner, attr=called)):
                if called == method:
                    return self._make_part(owner, "any")
        return None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note the value of `module.name`, `self.name`, or `library.name`."""
        self.generic_visit(node)
        owner = self.resolve(node.value)
        if isinstance(owner, str):
            self._values[node] = self._value_of_path(f"{owner}.{node.attr}")
        elif isinstance(owner, ast.Module | ast.ClassDef):
            self._values[node] = self.member(owner, node.attr)

    def _value_of_path(self, path: str) -> Value:
        """Return a module of the program, a member of one, or a library's path."""
        source, _, name = path.rpartition(".")
        if path in self._modules:
            return self._modules[path]
        if source in self._modules:
            return self.member(self._modules[source], name)
        return path

    def visit_alias(self, node: ast.alias) -> None:
        """Bind what's imported."""
        name = node.asname or node.name
        path = self.imported_path(node)
        if name == path:  # `import a.b` binds a
            path = path.partition(".")[0]
            name = path
        self._names[name] = self._value_of_path(path)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Bind the targets, after the value was read."""
        self.visit(node.value)
        for target in node.targets:
            self._bind(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Bind the target of `name: type = value`."""
        self.generic_visit(node)
        self._bind(node.target, node.value)

    def _bind(self, target: ast.expr, value: Any) -> None:
        self.visit(target)
        if isinstance(target, ast.Name):
            self._names[target.id] = self.resolve(value)
        elif isinstance(target, ast.Attribute):
            owner = self.resolve(target.value)
            if owner in self._members:  # the class, as in `self.x = value`
                self._members[owner][target.attr] = self.resolve(value)
        elif isinstance(target, ast.Tuple):
            for number, name in enumerate(target.elts):
                self._bind(name, self._make_part(value, number))

    def _make_part(self, whole: Any, index: int | str) -> ast.expr:
        """Make `whole[index]`, which the program doesn't spell out."""
        part = ast.Subscript(whole, ast.Constant(index))
        self._parents[part] = whole
        return part

    def generic_visit(self, node: ast.AST) -> None:
        """Visit the parts of a node. A comprehension's loops come first: they bind."""
        for loop in getattr(node, "generators", []):
            self.visit(loop)
        super().generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Bind a class, and visit its statements."""
        self._names[node.name] = node
        self._members[node] = {}
        self._visit_scope(node, self._names.new_child(self._members[node]))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Bind a function, which is visited later."""
        self._names[node.name] = node
        names = self._names
        if isinstance(self.parent(node), ast.ClassDef):
            names = names.parents  # a method doesn't see the names of its class
        self._functions.append((node, names))

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Note what a lambda returns, and leave it for later."""
        self._results[node] = node.body
        self._functions.append((node, self._names))

    def visit_arg(self, node: ast.arg) -> None:
        """Bind a function's argument: `self` to the class, and others to nothing."""
        self.generic_visit(node)
        self._names[node.arg] = node
        if node.arg == "self":
            self._names[node.arg] = self.enclosing(node, ast.ClassDef)

    def visit_Return(self, node: ast.Return) -> None:
        """Note what a function returns."""
        self.generic_visit(node)
        self._results[self.enclosing(node, FUNCTIONS)] = node.value

"""Read the uses of pmap in a program: their options, and the mapped function."""

import ast
from typing import Any, NamedTuple

from pmapdp.port.names import FUNCTIONS, Node, Program, Value

Keywords = dict[str | None, ast.expr]  # None is the name of `**options`
PMAPS = {"jax.pmap", "equinox.filter_pmap", "flax.nnx.pmap"}


class Pmap(NamedTuple):
    """A use of pmap: a call of it with a function, or a function that it decorates.

    Attributes:
        path: The pmap itself, "jax.pmap" for example.
        options: Its keywords and their values, also those that a partial gives.
        argument: The expression that is mapped, or the decorated function.
        function: The function that is mapped in the end, or None if it can't be found.
        wrappers: The calls of partials and transformations around the function.
    """

    path: str
    options: Keywords
    argument: Any
    function: Any
    wrappers: list[ast.Call]

    @property
    def name(self) -> str:
        """The name of the function, or an empty text."""
        return getattr(self.function, "name", "")


def keywords_of(call: ast.Call) -> Keywords:
    """Return the keyword arguments of a call by name."""
    return {keyword.arg: keyword.value for keyword in call.keywords}


def is_partial(program: Program, call: ast.Call) -> bool:
    """Return True for a call of `functools.partial`."""
    return program.path_of(call.func) == "functools.partial"


def read_options(program: Program, node: Node) -> tuple[str, Keywords]:
    """Read pmap without its function: `jax.pmap`, or `partial(jax.pmap, ...)`.

    Returns:
        The path of the pmap, empty if it's none, and its keywords.
    """
    value = program.resolve(node)
    if isinstance(value, str) and value in PMAPS:
        return value, {}
    if not isinstance(value, ast.Call):
        return "", {}
    function: Node = value.func  # as in `filter_pmap(axis_name="i")`
    if value.args:
        if not is_partial(program, value):
            return "", {}
        function = value.args[0]
    path, options = read_options(program, function)
    return path, options | keywords_of(value)


def is_pmap(program: Program, node: Node) -> bool:
    """Return True for pmap without its function."""
    path, _ = read_options(program, node)
    return path != ""


def read_pmap(program: Program, node: Value) -> Pmap | None:
    """Read a call of pmap, or a function with pmap as its decorator."""
    value = program.resolve(node)
    if isinstance(value, ast.FunctionDef):
        for decorator in value.decorator_list:
            path, options = read_options(program, decorator)
            if path:
                return Pmap(path, options, value, value, [])
    if isinstance(value, ast.Call) and value.args:
        path, options = read_options(program, value.func)
        if path:
            options = options | keywords_of(value)
            if len(value.args) > 1:
                options["axis_name"] = value.args[1]
            argument: Any = program.resolve(value.args[0])
            if not isinstance(argument, ast.FunctionDef | ast.Call):
                argument = value.args[0]
            function, wrappers = unwrap(program, argument)
            return Pmap(path, options, argument, function, wrappers)
    return None


def unwrap(program: Program, node: Node) -> tuple[Any, list[ast.Call]]:
    """Find the function behind an expression, and the calls around it.

    They're partials, transformations such as `jax.checkpoint`, and functions of the
    program that make the function.
    """
    value = program.resolve(node)
    calls: list[ast.Call] = []
    while isinstance(value, ast.Call) and value not in calls:
        calls.append(value)
        first_argument = next(iter(value.args), None)
        value = program.result(value.func) or program.resolve(first_argument)
    if isinstance(value, FUNCTIONS):
        return value, calls
    return None, calls


def find_functions_on_devices(program: Program, pmaps: list[Pmap]) -> set[ast.AST]:
    """Find the functions that are mapped, and those that they name, and so on."""
    functions: set[ast.AST] = set()
    waiting = [pmap.function for pmap in pmaps]
    while waiting:
        function = waiting.pop()
        if isinstance(function, FUNCTIONS) and function not in functions:
            functions.add(function)
            waiting += [program.resolve(node) for node in ast.walk(function)]
    return functions


def find_pmaps(program: Program) -> list[Pmap]:
    """Find all calls of pmap, and functions with pmap as their decorator."""
    pmaps = []
    for tree in program.files.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call | ast.FunctionDef):
                pmap = read_pmap(program, node)
                if pmap:
                    pmaps.append(pmap)
    return pmaps

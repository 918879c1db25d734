"""Read the uses of pmap in a program: their options, and the mapped function."""

import ast
from typing import Any, NamedTuple

from pmapdp.port.names import FUNCTIONS, Node, Program, Value

Keywords = dict[str | None, ast.expr]  # None is the name of `**options`
PMAPS = {"jax.pmap", "equinox.filter_pmap", "flax.nnx.pmap"}


class Use(NamedTuple):
    """A use of pmap.

    Attributes:
        options: Its keywords and their values, also those that a partial gives.
        mapped: The expression that is mapped, or the function with pmap as decorator.
        function: The function that is mapped in the end, or None if it can't be found.
        inside: The calls of partials and transformations around the function.
    """

    options: Keywords
    mapped: Any
    function: Any
    inside: list[ast.Call]

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


def pmap_options(program: Program, node: Node) -> Keywords | None:
    """Return the keywords if an expression is pmap without its function, or None.

    Partials around pmap give keywords too.
    """
    call = program.resolve(node)
    if call in PMAPS:
        return {}
    if not isinstance(call, ast.Call):
        return None
    wrapped: Node = call.func  # as in `filter_pmap(axis_name="i")`
    if call.args:
        if not is_partial(program, call):
            return None
        wrapped = call.args[0]
    options = pmap_options(program, wrapped)
    if options is None:
        return None
    return options | keywords_of(call)


def read_pmap(program: Program, node: Value) -> Use | None:
    """Read a call of pmap, or a function with pmap as its decorator."""
    value = program.resolve(node)
    if isinstance(value, ast.FunctionDef):
        for decorator in value.decorator_list:
            options = pmap_options(program, decorator)
            if options is not None:
                return Use(options, value, value, [])
    if isinstance(value, ast.Call) and value.args:
        options = pmap_options(program, value.func)
        if options is not None:
            options = options | keywords_of(value)
            if len(value.args) > 1:
                options["axis_name"] = value.args[1]
            mapped: Any = program.resolve(value.args[0])
            if not isinstance(mapped, ast.FunctionDef | ast.Call):
                mapped = value.args[0]
            return Use(options, mapped, *unwrap(program, mapped))
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
        made = program.returned(value.func)
        value = made or program.resolve(next(iter(value.args), None))
    if isinstance(value, FUNCTIONS):
        return value, calls
    return None, calls


def find_pmaps(program: Program) -> list[Use]:
    """Find all calls of pmap, and functions with pmap as their decorator."""
    uses = []
    for tree in program.files.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call | ast.FunctionDef):
                use = read_pmap(program, node)
                if use:
                    uses.append(use)
    return uses

"""Read the code of strategies and of your programs, part by part.

`pmapdp.port` follows the names of a program through its files, so its reader helps.
"""

import ast
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pmapdp.compare.results import Code, Line
from pmapdp.port.names import FUNCTIONS, Program
from pmapdp.port.read import read_files
from pmapdp.steps import STRATEGIES

# The parts of a program.
STEP = "The step"
AROUND = "Around the step"
WHOLE = "The whole program"
STEP_WORDS = ("value_and_grad", "grad(", "apply_gradients", "pmean", "psum")
GAP = Line(None, "")

Parts = dict[str, list[Line]]  # by title


def read_strategies(names: Iterable[str], programs: dict[str, str]) -> Code:
    """Read the strategies' programs to copy, and the functions that ran.

    Args:
        names: The strategies.
        programs: From `to_copy.toml`, which has none of a strategy that you added.
    """
    code = Code(sections={"": {}}, sources={})
    for name in names:
        if name in programs:
            code.sections[""][name] = programs[name].strip().splitlines()
        source = inspect.getsource(STRATEGIES[name])
        code.sections[name] = {name: source.splitlines()}
    return code


def read_programs(targets: Sequence[str]) -> Code:
    """Read your programs, each `file.py:program`."""
    code = Code(sections={STEP: {}, AROUND: {}}, sources={})
    for target in targets:
        path, _, name = target.rpartition(":")
        parts = split_program(path, name)
        code.sources[target] = parts[WHOLE]
        for title, columns in code.sections.items():
            columns[target] = [line.text for line in parts[title]]
    return code


def split_program(path: str, name: str) -> Parts:
    """Return the lines of each part of a program, also from files that it imports."""
    files, _ = read_files(path)
    program = Program(files)
    main = str(Path(path))
    start = program.member(program.files[main], name)

    def main_file_first(statement: Any) -> tuple[bool, str, int]:
        file = program.file_of(statement)
        return file != main, file, statement.lineno

    statements_of: dict[str, list[Any]] = {STEP: [], AROUND: [], WHOLE: []}
    for statement in sorted(find_statements(program, start), key=main_file_first):
        title = AROUND
        text = ast.unparse(statement)
        is_function = isinstance(statement, FUNCTIONS)
        if is_function and any(word in text for word in STEP_WORDS):
            title = STEP
        statements_of[title].append(statement)
        statements_of[WHOLE].append(statement)
    return {
        title: join_statements(program, statements, main)
        for title, statements in statements_of.items()
    }


def find_statements(program: Program, start: Any) -> list[Any]:
    """Find the statements of modules that a node uses, and those that these use."""
    statements: list[Any] = []
    waiting = [start]
    while waiting:
        statement = find_top_statement(program, waiting.pop())
        if statement is None or statement in statements:
            continue
        statements.append(statement)
        nodes = ast.walk(statement)
        names = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute)]
        waiting += map(program.resolve, names)
    return statements


def find_top_statement(program: Program, node: Any) -> Any:
    """Return the statement of its module that holds a node, or None.

    It's None for imports, whose names are followed, and for libraries.
    """
    parent = program.parent(node)
    while parent and not isinstance(parent, ast.Module):
        node = parent
        parent = program.parent(node)
    if isinstance(node, ast.Import | ast.ImportFrom) or not isinstance(node, ast.stmt):
        return None
    return node


def join_statements(
    program: Program, statements: Sequence[Any], main_file: str
) -> list[Line]:
    """Join the lines of statements, and name each file but the main one."""
    lines: list[Line] = []
    last_file = main_file
    for statement in statements:
        if lines and isinstance(statement, FUNCTIONS):
            lines.append(GAP)
        file = program.file_of(statement)
        if file != last_file:
            last_file = file
            lines.append(Line(None, f"# {Path(file).name}"))
        lines += read_statement(file, statement)
    return lines


def read_statement(file: str, statement: Any) -> list[Line]:
    """Read the lines of a statement, with its decorators."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(node.lineno for node in decorators)])
    return [
        Line(number, lines[number - 1])
        for number in range(first, statement.end_lineno + 1)
    ]

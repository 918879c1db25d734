"""Read the source of strategies and of your programs, part by part."""

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pmapdp.compare.results import Code, Line, Section
from pmapdp.port.names import FUNCTIONS, Program
from pmapdp.port.read import read_files

# The parts of a strategy's file. A comment such as `# The step: ...` begins one.
STRATEGY_PARTS = {
    "The step": "Under pmap and shard_map the step sees one device's examples, so you "
    "add up the sums of all devices. Under jit it sees the global batch: it's the step "
    "of a single device. Its compute_sums is gradient_sums, unless --accumulate cuts "
    "the batch into micro-batches. The functions that compute gradient sums and update "
    "the state are the same in all four, and you find them in pmapdp/steps/shared.py.",
    "The wrapper": "pmap takes the mapped axis of each argument, shard_map a "
    "PartitionSpec. jit needs neither, because arrays bring their shardings along. "
    "out_shardings only says where the result lies: the all-reduce comes from the sum "
    "over the split axis, with or without it.",
    "Placing": "All start from the same arrays on every device. pmap splits a batch "
    "along an axis of its own, [N, b, ...]. shard_map and jit take the global batch, "
    "[B, ...], whose sharding splits it.",
    "Evaluation": "A device knows the sums over its own examples, so pmap and "
    "shard_map add them up.",
}
FIRST_LINE = re.compile(rf" *# ({'|'.join(STRATEGY_PARTS)})\b")

# The parts of a program.
STEP = "The step"
AROUND = "Around the step"
PROGRAM_PARTS = {
    STEP: "The functions that differentiate, update or add up.",
    AROUND: "The rest of the program.",
}
STEP_WORDS = ("value_and_grad", "grad(", "apply_gradients", "pmean", "psum")
GAP = Line(None, "")

Parts = dict[str, list[Line]]  # by title


def read_strategies(makers: dict[str, Callable[..., Any]]) -> Code:
    """Read the functions in `steps/` that make the strategies."""
    sources = {name: read_body(maker) for name, maker in makers.items()}
    parts = {name: split_body(body) for name, body in sources.items()}
    return Code(make_sections(STRATEGY_PARTS, parts), sources)


def read_body(maker: Callable[..., Any]) -> list[Line]:
    """Read a function from its docstring to its `return`."""
    lines, first = inspect.getsourcelines(maker)
    start = 2 + str(maker.__doc__).count("\n")  # after the first line and the docstring
    body = []
    for number, line in enumerate(lines[start:], first + start):
        if line.startswith("    return "):
            break
        body.append(Line(number, line.rstrip().removeprefix("    ")))
    return body


def split_body(body: list[Line]) -> Parts:
    """Return the lines of each part of a strategy."""
    parts: Parts = {title: [] for title in STRATEGY_PARTS}
    title = None
    for line in body:
        begins = FIRST_LINE.match(line.text)
        if begins:
            title = begins[1]
        if title:
            parts[title].append(line)
    missing = [f"# {title}" for title, lines in parts.items() if not lines]
    if missing:
        raise ValueError(f"a strategy lacks the comment {missing[0]!r} above its part")
    return parts


def read_programs(targets: Sequence[str]) -> Code:
    """Read your programs, each `file.py:program`."""
    parts = {}
    sources = {}
    for target in targets:
        path, _, name = target.rpartition(":")
        parts[target] = split_program(path, name)
        sources[target] = [*parts[target][STEP], GAP, *parts[target][AROUND]]
    return Code(make_sections(PROGRAM_PARTS, parts), sources)


def make_sections(reasons: dict[str, str], parts: dict[str, Parts]) -> list[Section]:
    """Make a section of each part, from the parts of all columns."""
    sections = []
    for title, why in reasons.items():
        columns = {}
        for name, lines_of in parts.items():
            text = "\n".join(line.text for line in lines_of[title])
            columns[name] = text.rstrip().splitlines()
        sections.append(Section(title, why, columns))
    return sections


def split_program(path: str, name: str) -> Parts:
    """Return the lines of each part of a program, also from files that it imports."""
    files, _ = read_files(path)
    program = Program(files)
    main = str(Path(path))
    start = program.member(program.files[main], name)

    def main_file_first(statement: Any) -> tuple[bool, str, int]:
        file = program.file_of(statement)
        return file != main, file, statement.lineno

    statements_of: dict[str, list[Any]] = {STEP: [], AROUND: []}
    for statement in sorted(find_statements(program, start), key=main_file_first):
        title = AROUND
        text = ast.unparse(statement)
        is_function = isinstance(statement, FUNCTIONS)
        if is_function and any(word in text for word in STEP_WORDS):
            title = STEP
        statements_of[title].append(statement)
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
    numbers = range(first, statement.end_lineno + 1)
    return [Line(number, lines[number - 1]) for number in numbers]

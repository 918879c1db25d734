"""Lines of source to be shown side by side: without comments, docstrings and types, and what differs marked."""

import ast
import difflib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator

Marked = list[tuple[str, bool]]  # pieces of a line, each with whether it is marked
Place = tuple[int, int]  # line, from 1, and column
WORDS = re.compile(r"\w+|\s+|[^\w\s]")
ALIKE = 0.7  # lines that have as much in common are one line, changed


def plain_lines(source: str, nodes: Iterable[ast.AST]) -> list[str]:
    """The lines of these nodes of a file, without comments, docstrings and types, the first of each not indented."""
    lines, hidden = source.splitlines(), docstring_lines(ast.parse(source))
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            cut(lines, token.start, token.end)
    for start, end in sorted(types(source), reverse=True):
        cut(lines, start, end)
    for node in nodes:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])  # type: ignore[attr-defined]
        rows = [row for row in range(first, node.end_lineno + 1) if row not in hidden and lines[row - 1].strip()]  # type: ignore[attr-defined]
        found += [re.sub(f"^ {{0,{node.col_offset}}}", "", lines[row - 1]).rstrip() for row in rows]  # type: ignore[attr-defined]
    return found


def cut(lines: list[str], start: Place, end: Place) -> None:
    """Take a piece of one line out; a piece that goes over several lines stays."""
    if start[0] == end[0]:
        line = lines[start[0] - 1]
        lines[start[0] - 1] = line[: start[1]] + line[end[1] :]


def types(source: str) -> Iterator[tuple[Place, Place]]:
    """Where the types of arguments, results and variables are written, as (line, column), from and to."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg) and node.annotation:
            yield (node.lineno, node.col_offset + len(node.arg)), end_of(node.annotation)
        if isinstance(node, ast.AnnAssign) and node.value:
            yield end_of(node.target), end_of(node.annotation)
        if isinstance(node, ast.FunctionDef) and node.returns:
            row = node.returns.lineno
            yield (row, lines[row - 1].rindex(" ->", 0, node.returns.col_offset)), end_of(node.returns)


def end_of(node: ast.expr) -> Place:
    """Where an expression ends."""
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def docstring_lines(tree: ast.AST) -> set[int]:
    """The numbers of the lines of all docstrings."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            text = node.body[0]
            found.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return found


def unmarked(lines: list[str]) -> list[Marked]:
    """Lines in which nothing is marked."""
    return [[(line, False)] for line in lines]


def unindented(line: Marked) -> tuple[int, Marked]:
    """The number of spaces in front of a line, and the line without them."""
    full = "".join(piece for piece, _ in line)
    spaces = left = len(full) - len(full.lstrip())
    found: Marked = []
    for piece, mark in line:
        found.append((piece[left:], mark))
        left = max(0, left - len(piece))
    return spaces, found


def marked(old: list[str], new: list[str]) -> list[Marked]:
    """The lines `new`, in which what is not in `old` is marked: whole lines, or words of a line that was changed."""
    found: list[Marked] = []
    matcher = difflib.SequenceMatcher(None, [line.strip() for line in old], [line.strip() for line in new], False)
    for kind, start, end, first, last in matcher.get_opcodes():
        for line in new[first:last]:
            near = difflib.get_close_matches(line, old[start:end], 1, ALIKE) if kind == "replace" else []
            found.append([(line, kind != "equal")] if not near else changed_words(near[0], line))
    return found


def changed_words(old: str, new: str) -> Marked:
    """A line in which the words that are not in `old` are marked."""
    words, others = WORDS.findall(new), WORDS.findall(old)
    matcher = difflib.SequenceMatcher(None, others, words, False)
    return [
        ("".join(words[first:last]), kind != "equal")
        for kind, _, _, first, last in matcher.get_opcodes()
        if last > first
    ]

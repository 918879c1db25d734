"""Reads the files of a program: Python and notebooks. What does not parse is named, with its line."""

import ast
import json
import warnings
from pathlib import Path

from pmapdp.errors import UserError, reason
from pmapdp.files import file_errors
from pmapdp.port.names import CELL, File

LEFT_OUT = {"node_modules", "site-packages", "__pycache__", "venv", "env", "build"}


def read(given: str) -> tuple[dict[str, File], list[str]]:
    """The files of a program by path, and a line for each that does not parse.

    Raises:
        UserError: there is nothing to read.
    """
    with file_errors(given, "read", "name a file of Python, a notebook, or a folder"):
        path = Path(given)
        exists = path.exists()
    if not exists:
        raise UserError(f"there is no file or folder {given!r}: name one, for example train.py")
    if path.is_file() and path.suffix not in (".py", ".ipynb"):
        raise UserError(
            f"{given!r} is neither Python nor a notebook: name a file that ends in .py or .ipynb, or a folder"
        )
    paths = [path] if path.is_file() else [*sorted(path.rglob("*.py")), *sorted(path.rglob("*.ipynb"))]
    files: dict[str, File] = {}
    unread: list[str] = []
    for each in paths:
        if any(part in LEFT_OUT or part.startswith(".") for part in each.relative_to(path).parts) or each.is_dir():
            continue
        try:
            text = each.read_text(encoding="utf-8-sig")
            notebook = each.suffix == ".ipynb"
            files[str(each)] = of_cells(str(each), text, unread) if notebook else File(str(each), parse(text))
        except SyntaxError as error:
            unread.append(f"{each}:{error.lineno or 1} does not parse ({reason(error)}): is it Python 2?")
        except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            unread.append(f"{each} cannot be read ({reason(error)})")
    if not files and not unread:
        raise UserError(f"the folder {given!r} holds no Python: name one with .py or .ipynb files")
    return files, unread


def parse(text: str) -> ast.Module:
    """The syntax tree, without annotations where Python does not read them. Warnings about the texts are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    if "from __future__ import annotations" in text:
        for node in ast.walk(tree):
            for field in {"annotation", "returns"} & set(node._fields):
                setattr(node, field, getattr(node, field) and ast.Constant(None))
    return tree


def of_cells(path: str, text: str, unread: list[str]) -> File:
    """The code cells of a notebook as one module, whose line numbers hold those of the cells."""
    body: list[ast.stmt] = []
    for number, cell in enumerate(json.loads(text)["cells"], 1):
        lines = "".join(cell["source"]).splitlines() if cell["cell_type"] == "code" else []
        try:  # lines of IPython become empty statements, so that line numbers and blocks stay
            code = "\n".join("pass" if each[:1] in ("%", "!", "?") else each for each in lines)
            body += ast.increment_lineno(parse(code), number * CELL).body
        except SyntaxError as error:
            if not lines[0].startswith("%%"):  # a cell of another language
                unread.append(f"{path}: line {error.lineno} of cell {number} does not parse ({reason(error)})")
    return File(path, ast.Module(body, []))

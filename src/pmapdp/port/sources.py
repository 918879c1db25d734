"""Reads the files of a program: Python and notebooks. What does not parse is named, with its line."""

import ast
import json
import warnings
from pathlib import Path

from pmapdp.errors import UserError, reason
from pmapdp.port.names import File

LEFT_OUT = {"node_modules", "site-packages", "__pycache__", "venv", "env", "build"}


def read(given: str) -> tuple[dict[str, File], list[str]]:
    """The files of a program by path, and a line for each that does not parse.

    Raises:
        UserError: there is nothing to read.
    """
    path = Path(given)
    if not path.exists():
        raise UserError(f"there is no file or folder {given!r}: name one, for example train.py")
    paths = [path] if path.is_file() else sorted(
        each for ending in ("*.py", "*.ipynb") for each in path.rglob(ending)
        if each.is_file() and not any(p in LEFT_OUT or p.startswith(".") for p in each.relative_to(path).parts)
    )  # fmt: skip
    if path.is_file() and path.suffix not in (".py", ".ipynb"):
        raise UserError(
            f"{given!r} is neither Python nor a notebook: name a file that ends in .py or .ipynb, or a folder"
        )
    if not paths:
        raise UserError(f"the folder {given!r} holds no Python: name one with .py or .ipynb files")
    files, unread = {}, []
    for each in paths:
        try:
            text = each.read_text(encoding="utf-8-sig")
            files[str(each)] = (
                notebook(str(each), text, unread) if each.suffix == ".ipynb" else File(str(each), parse(text))
            )
        except SyntaxError as error:
            unread.append(f"{each}:{error.lineno or 1} does not parse ({reason(error)}): is it Python 2?")
        except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            unread.append(f"{each} cannot be read ({reason(error)})")
    return files, unread


def parse(text: str) -> ast.Module:
    """The syntax tree; warnings about the program's own texts are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def notebook(path: str, text: str, unread: list[str]) -> File:
    """The code cells as one module; a line's number is that in all code, which `place` turns into cell and line."""
    body: list[ast.stmt] = []
    starts, line = [], 0
    for number, cell in enumerate(json.loads(text)["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"]).splitlines()
        starts.append((line, number))
        # Lines of IPython become empty statements, so that line numbers and blocks stay.
        plain = [
            each[: len(each) - len(each.lstrip())] + "pass" if each.lstrip()[:1] in ("%", "!", "?") else each
            for each in source
        ]
        try:
            tree = parse("\n".join(plain))
        except SyntaxError as error:
            if not source or not source[0].startswith("%%"):
                unread.append(f"{path}: line {error.lineno or 1} of cell {number} does not parse ({reason(error)})")
        else:
            body += ast.increment_lineno(tree, line).body
        line += len(source)
    file = File(path, ast.Module(body, []))
    file.cells = starts
    return file

"""Read the files of a program, and list those that can't be read."""

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from pmapdp.errors import UserError, first_line

SKIPPED_FOLDERS = {
    "node_modules",
    "site-packages",
    "__pycache__",
    "venv",
    "env",
    "build",
}


def read_files(path: str) -> tuple[dict[str, ast.Module], list[str]]:
    """Read a folder, or a file with the files that it imports.

    Args:
        path: The path of the file or folder.

    Returns:
        The syntax tree of each file by path, and a line for each that can't be read.

    Raises:
        UserError: There is nothing to read, or the one file that was named can't be
            read.
    """
    waiting = list_files(path)
    trees: dict[str, ast.Module] = {}
    unread: list[str] = []
    while waiting:
        file = waiting.pop(0)
        if str(file) in trees:
            continue
        try:
            with warnings.catch_warnings(action="ignore"):  # about the file's strings
                tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError) as error:
            message = f"{file} can't be read ({first_line(error)}): is it Python 3?"
            if message not in unread:  # several files may import it
                unread.append(message)
            continue
        trees[str(file)] = tree
        if not Path(path).is_dir():
            waiting += imported_files(file, tree)
    if unread and not trees:
        raise UserError(unread[0])
    if not trees:
        raise UserError(f"the folder {path!r} holds no Python: name one with .py files")
    return trees, unread


def list_files(path: str) -> list[Path]:
    """List the files of a folder, or the one file that was named.

    Raises:
        UserError: It's missing, or no Python.
    """
    start = Path(path)
    if not start.exists():
        raise UserError(
            f"{path!r} is missing: name a Python file or folder, such as . for the "
            "current folder"
        )
    if start.is_dir():
        return sorted(source_files(start))
    if start.suffix != ".py":
        raise UserError(
            f"{path!r} is no Python file or folder: try {start.stem}.py, which "
            f"`jupyter nbconvert --to script {start.name}` makes of a notebook"
        )
    return [start]


def source_files(folder: Path) -> Iterator[Path]:
    """List the Python files of a folder, but not of environments and builds."""
    for file in folder.rglob("*.py"):
        names = file.relative_to(folder).parts[:-1]
        hidden = [name for name in names if name.startswith(".")]
        if not hidden and not SKIPPED_FOLDERS.intersection(names):
            yield file


def imported_files(path: Path, tree: ast.Module) -> Iterator[Path]:
    """List the files that a file imports, from its own folder or those above."""
    folders = [*path.parents]
    if not path.is_absolute():  # then the current folder is the last of them
        folders += Path.cwd().parents
    for module in imported_modules(tree):
        for folder in folders:
            file = folder / f"{module.replace('.', '/')}.py"
            if file.is_file():
                yield file
                break


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """List the dotted names that a file imports. Some of them may be no modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = getattr(node, "module", None) or ""
            yield source
            for name in node.names:
                yield f"{source}.{name.name}".strip(".")

"""Rebuild the notebooks from their sources: `python lessons/build.py [NN ...]`, all of them without numbers.

Each `lessons/NN_name.py` (jupytext's percent format) is run from top to bottom in a fresh kernel, in an empty folder,
and written with its outputs beside the source as `NN_name.ipynb`. Tags of cells:

    # %% tags=["prediction"]   the outputs answer a "Predict": folded until the reader unfolds or runs the cell.
                               The next text begins with the answer in words, inside <details>
    # %% tags=["proof"]        asserts that would give predictions away: the cell itself is folded
    # %% tags=["take-home"]    a complete script of `program/`, which needs jax, flax, optax and numpy alone: the cell
                               is folded if a text shows the difference to an earlier script
    # %% tags=["file"]         an old program, saved to a file: folded, because the text says what's in it

A line of its own brings in the program that grows:

    include program/05_pmap.py                              the script, in a cell of code
    include the difference of 03_flax.py and 05_pmap.py     its changes, marked, in a text
    include 05_pmap.py beside steps/pmap.py                 a table of lines from the two files, in a text

Below the last one stand the rows of the table, each with two pieces of text, `PIECE | PIECE`. The table shows the
statement of the script that has the first piece, and the statement of pmapdp's file that has the second.
"""

import argparse
import ast
import difflib
import os
import re
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent
PACKAGES = FOLDER.parent
SECONDS_ALLOWED = 600  # for a cell, on a machine that others use, too
PREDICTION, PROOF, TAKE_HOME, OLD_FILE = "prediction", "proof", "take-home", "file"
FOLDED = "Predict, then run this cell or unfold it."  # JupyterLab shows the first line of outputs that are folded
ANSWER = "<details><summary>Answer</summary>\n\n"  # begins the text after a prediction
SCRIPT = re.compile(r"^(?:# )?include program/(\S+)$", re.MULTILINE)
DIFFERENCE = re.compile(r"^include the difference of (\S+) and (\S+)$", re.MULTILINE)
CODE_ROW = re.compile(r"^\| `.*` \| `.*` \|$", re.MULTILINE)  # of a table that SIDE_BY_SIDE makes
SIDE_BY_SIDE = re.compile(r"^include (\S+) beside (\S+)\n((?:.+ \| .+(?:\n|$))+)", re.MULTILINE)


def sources() -> list[Path]:
    """The lessons' sources in order."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def read(source: Path):
    """The notebook of a source, without outputs, with the program's scripts in the places that ask for them."""
    import jupytext

    notebook = jupytext.read(source)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = SCRIPT.sub(lambda found: program(found[1]).rstrip(), cell.source)
        else:
            cell.source = DIFFERENCE.sub(lambda found: difference(*found.groups()), cell.source)
            cell.source = SIDE_BY_SIDE.sub(lambda found: side_by_side(*found.groups()), cell.source)
    return notebook


def program(name: str) -> str:
    """The text of a script of the program that grows."""
    return (FOLDER / "program" / name).read_text()


def difference(earlier: str, later: str) -> str:
    """The lines that change from one script to the next, with one line around them, marked by + and -."""
    lines, text = program(later).splitlines(), ""
    for line in list(difflib.unified_diff(program(earlier).splitlines(), lines, n=1, lineterm=""))[
        2:
    ]:
        if line.startswith(
            "@@"
        ):  # name the function, class or loop in which these lines are, unless they show it
            first = int(re.findall(r"\+(\d+)", line)[0]) - 1
            top = [each for each in lines[:first] if each[:1].strip()][-1:]
            inside = re.sub(r"^(?:def|class) (\w+).*", r"\1", "".join(top)).rstrip(":")
            line = f"\n@@ {inside}" if lines[first].startswith(" ") else ""
        text += f"{line}\n"
    text = text.strip()
    return re.sub(
        r"\n([ +-]?\n)+", "\n\n", f"```diff\n{text}\n```"
    )  # one empty line at a time, without a mark


def side_by_side(script: str, file: str, rows: str) -> str:
    """A table of statements of a script and of a file of pmapdp, from rows `PIECE | PIECE`."""
    table = [f"| {script} | [{file}](../pmapdp/{file}) |", "| --- | --- |"]
    core = (PACKAGES / "pmapdp" / file).read_text()
    for row in rows.splitlines():
        script_piece, core_piece = row.split(" | ")
        left = statement(program(script), script_piece)
        right = statement(core, core_piece)
        table.append(f"| `{left}` | `{right}` |")
    return "\n".join(table) + "\n"


def statement(text: str, piece: str) -> str:
    """The only simple statement of a program that has a piece of text, in one line and without comments."""
    statements = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            code = " ".join(ast.get_source_segment(text, node).split())
            if piece in code:
                statements.append(code)
    if len(statements) != 1:
        raise ValueError(f"{len(statements)} statements have {piece!r}, not one")
    return statements[0].replace("( ", "(").replace(", )", ")").replace(" )", ")")


def prose(text: str) -> str:
    """A text without the programs in it."""
    return CODE_ROW.sub("", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def minutes(notebook) -> tuple[int, int]:
    """Minutes to read a lesson, without and with its exercises: 180 words, or 12 new lines of code, or one prediction.

    Of a program that grew, its new lines count, and of two files side by side each row. The exercises say themselves how long they take.
    """
    code, words, exercises, predictions = 0, 0, 0, 0
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "markdown":
            exercises += sum(int(found) for found in re.findall(r"\((\d+) minutes", cell.source))
            code += len(re.findall(r"^\+.*\w", cell.source, re.MULTILINE))
            code += len(CODE_ROW.findall(cell.source))
            words += len(prose(cell.source).split())
        elif not {PROOF, TAKE_HOME, OLD_FILE} & set(tags):
            code += sum(bool(line.strip()) for line in cell.source.splitlines())
        predictions += PREDICTION in tags
    reading = round(words / 180 + code / 12 + predictions)
    return reading, reading + exercises


def execute(source: Path, folder: Path, *, twice: bool = False):
    """The notebook of `source`, executed in `folder`; raises nbclient's CellExecutionError where a cell fails.

    With `twice`, all cells run a second time in the same kernel, and the notebook holds them twice.
    """
    from nbclient import NotebookClient

    notebook = read(source)
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    if twice:
        notebook.cells += read(source).cells
    paths = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    client = NotebookClient(
        notebook,
        timeout=SECONDS_ALLOWED,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    return notebook


def tidy(notebook) -> None:
    """Take out what differs from machine to machine and teaches nothing."""
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
        cell.metadata = {
            key: value for key, value in cell.metadata.items() if key in ("tags", "jupyter")
        }
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
            tags = cell.metadata.get("tags", [])
            if PREDICTION in tags:
                fold_outputs(cell)
            is_repeated = TAKE_HOME in tags and shows_difference(notebook)
            if PROOF in tags or OLD_FILE in tags or is_repeated:
                fold_source(cell)


def shows_difference(notebook) -> bool:
    """Return True if a text of the notebook has the changes of the program, marked."""
    return any("```diff" in cell.source for cell in notebook.cells)


def fold_source(cell) -> None:
    """Fold the source of a cell. JupyterLab shows its first line."""
    cell.metadata.setdefault("jupyter", {})["source_hidden"] = True


def fold_outputs(cell) -> None:
    """Fold the outputs of a cell, below a line that gives nothing away."""
    from nbformat.v4 import new_output

    cell.metadata.setdefault("jupyter", {})["outputs_hidden"] = True
    cell.outputs.insert(0, new_output("display_data", data={"text/plain": FOLDED}))


def joined(outputs: list) -> list:
    """The outputs of a cell, with neighbouring pieces of one stream put together."""
    result: list = []
    for output in outputs:
        if result and output.output_type == "stream" and result[-1].get("name") == output.name:
            result[-1].text += output.text
        else:
            result.append(output)
    return result


def build(source: Path) -> None:
    """Write the notebook beside `source`."""
    import nbformat

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        notebook = execute(source, Path(folder))
    tidy(notebook)
    target = source.with_suffix(".ipynb")
    nbformat.write(notebook, target)
    seconds, size = time.perf_counter() - started, target.stat().st_size / 1000
    reading, whole = minutes(notebook)
    print(
        f"{target.name}: built in {seconds:.0f} s, {size:.0f} KB, {reading} minutes, {whole} with exercises"
    )


def source_of(number: str) -> Path:
    """The source of a lesson, for argparse."""
    for source in sources():
        if source.name[:2] == number:
            return source
    raise argparse.ArgumentTypeError(f"there is no lesson {number}: try 00")


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "lessons", metavar="NN", nargs="*", type=source_of, help="number of a lesson"
    )
    for source in parser.parse_args(arguments).lessons or sources():
        build(source)


if __name__ == "__main__":
    main()

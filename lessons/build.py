"""Rebuild the notebooks from their sources: `python lessons/build.py [NN ...]`, all of them without numbers.

Each `lessons/NN_name.py` (jupytext's percent format) is run from top to bottom in a fresh kernel, in an empty folder,
and written with its outputs beside the source as `NN_name.ipynb`. Tags of cells:

    # %% tags=["prediction"]   the outputs answer a "Predict": folded until the reader unfolds or runs the cell.
                               The next text begins with the answer in words, inside <details>
    # %% tags=["proof"]        asserts that would give predictions away: the cell itself is folded
    # %% tags=["take-home"]    the lesson's subject from imports to result, which needs jax, flax, optax and numpy alone
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent
PACKAGES = FOLDER.parent
SECONDS_ALLOWED = 600  # for a cell, on a machine that others use, too
PREDICTION, PROOF, TAKE_HOME = "prediction", "proof", "take-home"
FOLDED = "Predict, then run this cell or unfold it."  # JupyterLab shows the first line of outputs that are folded
ANSWER = "<details><summary>Answer</summary>\n\n"  # begins the text after a prediction


def sources() -> list[Path]:
    """The lessons' sources in order."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def execute(source: Path, folder: Path, *, twice: bool = False):
    """The notebook of `source`, executed in `folder`; raises nbclient's CellExecutionError where a cell fails.

    With `twice`, all cells run a second time in the same kernel, and the notebook holds them twice.
    """
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(source)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    if twice:
        notebook.cells += jupytext.read(source).cells
    paths = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    client = NotebookClient(
        notebook, timeout=SECONDS_ALLOWED, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
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
        cell.metadata = {key: value for key, value in cell.metadata.items() if key in ("tags", "jupyter")}
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
            if PREDICTION in cell.metadata.get("tags", []):
                fold(cell)
            if PROOF in cell.metadata.get("tags", []):
                cell.metadata["jupyter"] = {"source_hidden": True}


def fold(cell) -> None:
    """Fold the outputs of a cell, below a line that gives nothing away."""
    from nbformat.v4 import new_output

    cell.metadata["jupyter"] = {"outputs_hidden": True}
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
    print(f"{target.name}: {time.perf_counter() - started:.0f} s, {target.stat().st_size / 1000:.0f} KB")


def source_of(number: str) -> Path:
    """The source of a lesson, for argparse."""
    for source in sources():
        if source.name[:2] == number:
            return source
    raise argparse.ArgumentTypeError(f"there is no lesson {number}: try 00")


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", metavar="NN", nargs="*", type=source_of, help="number of a lesson")
    for source in parser.parse_args(arguments).lessons or sources():
        build(source)


if __name__ == "__main__":
    main()

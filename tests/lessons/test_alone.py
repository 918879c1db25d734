"""Every notebook runs alone in an empty folder, and its scripts print what they did
when it was built.
"""

import ast
import sys
from pathlib import Path

import build
import forks
import numpy as np
import pytest
from marks import quick
from notebooks import built, figures, imports, printed, source

LESSONS = build.sources()
NUMBERS = [lesson.name[:2] for lesson in LESSONS]
# 10 s to a minute each: run at night.
LONGEST = ("11", "12", "13", "14", "16", "17", "18", "19", "20", "21")
TWICE = ("11",)  # runs a second time in the same kernel, because it sets a global mesh
TOLERANCE = 2e-3  # on another processor, rounding may tip an example
# Lesson 19 reads Python's own library, which differs between versions of Python. Its
# notebook compares its runs with each other.
TOLERANCES = {"19": 0.3}
LIBRARIES = {
    "jax",
    "flax",
    "optax",
    "numpy",
    "orbax",
}  # Flax brings Orbax, which writes checkpoints


def scripts(notebook) -> list:
    """The figures of each script of the program that grows."""
    found = [
        figures(printed(cell))
        for cell in notebook.cells
        if "outputs" in cell and ("EPOCHS" in cell.source or "%run -i" in cell.source)
    ]
    return [each for each in found if len(each)]


@quick(0, "number", [number for number in NUMBERS if number not in LONGEST])
def test_lesson_runs_in_an_empty_folder(number, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "jupyter_client.provisioning.local_provisioner.launch_kernel",
        forks.launch_kernel,
    )
    times = 2 if number in TWICE else 1
    notebook = build.execute(build.source_of(number), tmp_path, twice=times == 2)
    outputs = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    assert "DeprecationWarning" not in str(outputs)
    assert "\x1b" not in "".join(
        output.get("text", "") for output in outputs
    )  # no colours or cursor of a terminal
    assert (
        str(outputs).count("not solved yet") % times == 0
    )  # the exercises' stubs, which do not stop the notebook
    assert "not solved yet" in str(outputs)
    for found, stored in zip(
        scripts(notebook), times * scripts(built(build.source_of(number))), strict=True
    ):
        np.testing.assert_allclose(
            found, stored, atol=TOLERANCES.get(number, TOLERANCE)
        )


@pytest.mark.nightly
@pytest.mark.parametrize("number", LONGEST)
def test_a_long_lesson_runs_in_an_empty_folder(number, tmp_path, monkeypatch):
    test_lesson_runs_in_an_empty_folder(number, tmp_path, monkeypatch)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_take_home_cells_import_the_four_libraries_alone(lesson):
    cells = [
        cell
        for cell in source(lesson).cells
        if build.TAKE_HOME in cell.metadata.get("tags", [])
    ]
    (cell,) = cells
    assert imports(cell.source) <= LIBRARIES | sys.stdlib_module_names


def functions(text: str) -> dict[str, str]:
    """Return {name: source} of the functions at the top of a text."""
    return {
        node.name: ast.get_source_segment(text, node)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }


def with_solutions(lesson: Path):
    """The notebook of a lesson in which each stub is solved."""
    solved = functions((build.FOLDER / "solutions" / lesson.name).read_text())
    notebook = build.read(lesson)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for name, stub in functions(cell.source).items():
                if name in solved and stub.endswith("..."):
                    cell.source = cell.source.replace(stub, solved[name])
    return notebook


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("number", "epoch"), [("01", 0), ("02", 0), ("03", 0), ("04", -1)]
)
def test_a_checked_answer_runs_in_the_program(number, epoch, tmp_path, monkeypatch):
    """The cell below the program repeats the test line of an epoch, up to rounding."""
    notebook = with_solutions(build.source_of(number))
    monkeypatch.setattr(build, "read", lambda lesson: notebook)
    build.execute(build.source_of(number), tmp_path)
    texts = [printed(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert not any("not solved yet" in text for text in texts)
    (text,) = [text for text in texts if text.startswith("test")]
    assert "with your" in text
    found = figures(text)
    expected = scripts(notebook)[-1][epoch, 2:]
    np.testing.assert_allclose(found, [expected], atol=TOLERANCE)


@pytest.mark.nightly
def test_the_checked_joints_of_lesson_19_run_in_its_program(tmp_path, monkeypatch):
    """They repeat the test losses after the first and after the last epoch."""
    lesson = build.source_of("19")
    notebook = with_solutions(lesson)
    monkeypatch.setattr(build, "read", lambda lesson: notebook)
    build.execute(lesson, tmp_path)
    texts = [printed(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert not any("not solved yet" in text for text in texts)
    (text,) = [text for text in texts if text.startswith("test, with your functions")]
    assert "before epoch 3" in text
    expected = scripts(notebook)[0][[0, -1], 1]
    np.testing.assert_allclose(figures(text)[:, 0], expected, atol=TOLERANCE)

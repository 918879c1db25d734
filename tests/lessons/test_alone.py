"""Every notebook runs alone, and again in the same kernel. `test_program.py` runs the take-home cells as scripts."""

import ast
import sys

import build
import pytest
from marks import quick
from notebooks import source

LESSONS = build.sources()
NUMBERS = [lesson.name[:2] for lesson in LESSONS]
TWICE = ("00", "06")
LIBRARIES = {"jax", "flax", "optax", "numpy", "orbax"}  # Flax brings Orbax, which writes checkpoints


@quick(1, "number", NUMBERS)
def test_lesson_runs_in_an_empty_folder_and_again_in_the_same_kernel(number, tmp_path):
    times = 2 if number in TWICE else 1
    notebook = build.execute(build.source_of(number), tmp_path, twice=times == 2)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert "DeprecationWarning" not in str(outputs)
    assert "\x1b" not in "".join(output.get("text", "") for output in outputs)  # no colours or cursor of a terminal
    assert str(outputs).count("not solved yet") % times == 0  # the exercises' stubs, which do not stop the notebook
    assert "not solved yet" in str(outputs)


def take_home(lesson) -> str:
    (cell,) = (cell for cell in source(lesson).cells if build.TAKE_HOME in cell.metadata.get("tags", []))
    return cell.source


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_take_home_cell_imports_the_four_libraries_alone(lesson):
    nodes = list(ast.walk(ast.parse(take_home(lesson))))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in modules} <= LIBRARIES | sys.stdlib_module_names

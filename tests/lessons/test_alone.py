"""Every notebook runs alone in an empty folder, and its scripts print what they did
when it was built.
"""

import sys

import build
import forks
import numpy as np
import pytest
from marks import quick
from notebooks import built, figures, imports, printed, source

LESSONS = build.sources()
NUMBERS = [lesson.name[:2] for lesson in LESSONS]
LONGEST = "19"  # it takes a minute and a half
TWICE = ("11",)  # runs a second time in the same kernel, because it sets a global mesh
TWO_PROGRAMS = ("03",)  # by hand and with Flax
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


@quick(0, "number", [number for number in NUMBERS if number != LONGEST])
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
def test_the_longest_lesson_runs_in_an_empty_folder(tmp_path, monkeypatch):
    test_lesson_runs_in_an_empty_folder(LONGEST, tmp_path, monkeypatch)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_take_home_cells_import_the_four_libraries_alone(lesson):
    cells = [
        cell
        for cell in source(lesson).cells
        if build.TAKE_HOME in cell.metadata.get("tags", [])
    ]
    assert len(cells) == (2 if lesson.name[:2] in TWO_PROGRAMS else 1)
    for cell in cells:
        assert imports(cell.source) <= LIBRARIES | sys.stdlib_module_names

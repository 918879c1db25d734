"""Every notebook opens with its title, and not with the header of its source."""

import build
import jupytext
import nbformat
import pytest


@pytest.mark.parametrize("lesson", build.sources(), ids=lambda path: path.stem)
def test_first_cell_is_the_title(lesson):
    for notebook in (jupytext.read(lesson), nbformat.read(lesson.with_suffix(".ipynb"), as_version=4)):
        first = notebook.cells[0]
        assert first.cell_type == "markdown"
        assert first.source.startswith(f"# {lesson.name[:2]}. ")

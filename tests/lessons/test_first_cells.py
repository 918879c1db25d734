"""Every notebook opens with its title, and not with the header of its source."""

import build
import pytest
from notebooks import built, source


@pytest.mark.parametrize("lesson", build.sources(), ids=lambda path: path.stem)
def test_first_cell_is_the_title(lesson):
    for notebook in (source(lesson), built(lesson)):
        first = notebook.cells[0]
        assert first.cell_type == "markdown"
        assert first.source.startswith(f"# {lesson.name[:2]}. ")

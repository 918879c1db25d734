"""Every lesson: its notebook is what its source says, and it keeps to its limits.
test_alone.py runs them.
"""

import ast
import html
import re

import build
import numpy as np
import pytest
from notebooks import built, printed, source

LESSONS = build.sources()
MOST_CELLS, MOST_CODE_LINES, MOST_WORDS, MOST_BYTES = 30, 200, 2500, 200_000
HAS_SOLUTION = ("01", "19")  # their programs hold solutions, and are folded
MOST_IMPORTS = 6  # in the first cell
README = (build.FOLDER / "README.md").read_text()
WIDEST = 100  # columns of code that the site shows
EACH = pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)


def source_cells(notebook) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def has(cell, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def code_lines(notebook) -> int:
    """Lines of code without comments and imports.

    The cell to take home, which stands by itself, is not counted.
    """
    cells = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and not has(cell, build.TAKE_HOME)
    ]
    lines = [line.strip() for cell in cells for line in cell.source.splitlines()]
    return sum(
        bool(line) and not line.startswith(("#", "import ", "from ")) for line in lines
    )


def words(notebook) -> int:
    """Words of the texts, without the programs in them."""
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return sum(len(build.prose(text).split()) for text in texts)


def test_there_are_lessons():
    assert [lesson.name[:2] for lesson in LESSONS] == [
        f"{number:02d}" for number in range(22)
    ]


@EACH
def test_notebook_is_in_step_with_its_source(lesson):
    notebook = built(lesson)
    again = f"run `python lessons/build.py {lesson.name[:2]}`"
    assert source_cells(notebook) == source_cells(source(lesson)), again
    counts = [
        cell.execution_count for cell in notebook.cells if cell.cell_type == "code"
    ]
    assert counts == list(range(1, len(counts) + 1)), again
    outputs = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert not any("\x1b" in output.get("text", "") for output in outputs), (
        "a colour of a terminal"
    )
    texts = [output.get("data", {}).get("text/plain", "") for output in outputs]
    assert not any(text.startswith("Verdict(") for text in texts), "printed twice"
    assert lesson.with_suffix(".ipynb").stat().st_size < MOST_BYTES


@EACH
def test_lesson_keeps_to_its_limits(lesson):
    """And opens with its title, and a first cell that says what to do in Colab."""
    notebook = source(lesson)
    assert len(notebook.cells) <= MOST_CELLS
    assert code_lines(notebook) <= MOST_CODE_LINES
    assert words(notebook) <= MOST_WORDS
    assert notebook.cells[0].source.startswith(f"# {lesson.name[:2]}. ")
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    first = code[0]
    imports = [
        node
        for node in ast.parse(first).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert len(imports) <= MOST_IMPORTS
    assert max(len(line) for source in code for line in source.splitlines()) <= WIDEST
    assert "Colab" in first
    assert "pip install" in first


@EACH
def test_the_minutes_are_honest(lesson):
    notebook = source(lesson)
    stated = re.search(
        r"(\d+) minutes,\s+(\d+)\s+with\s+exercises", notebook.cells[0].source
    ).groups()
    np.testing.assert_allclose(
        [int(each) for each in stated], build.minutes(notebook), atol=4
    )


@EACH
def test_the_readme_states_the_same_minutes(lesson):
    words = source(lesson).cells[0].source.replace("\n", " ")
    stated = re.search(r"(\d+) minutes, (\d+) with exercises", words).groups()
    link = re.escape(f"({lesson.stem}.ipynb)")
    row = re.search(link + r"[^|]*\|[^|]*\| (\d+) \| (\d+) \|", README)
    assert row.groups() == stated


def test_the_readme_counts_the_lessons():
    count = len(re.findall(r"^\| \[\d\d ", README, re.MULTILINE))
    assert f"In {count} lessons one program grows" in README


def test_the_readme_adds_up_the_minutes_of_its_ways():
    """To 20 minutes."""
    row = r"^\|[^|]*\| (\d\d, [\d, ]+) \| (\S+) hours?, (\S+) with exercises \|$"
    without_links = re.sub(r"\[(\d\d)\]", r"\1", README)
    ways = re.findall(row, without_links, re.MULTILINE)
    assert len(ways) == 6
    for numbers, *hours in ways:
        lessons = [build.source_of(number) for number in numbers.split(", ")]
        for lesson in lessons:
            assert f"\n[{lesson.stem[:2]}]: {lesson.stem}.ipynb\n" in README
        minutes = [build.minutes(source(lesson)) for lesson in lessons]
        stated = 60 * np.array(hours, float)
        np.testing.assert_allclose(np.sum(minutes, axis=0), stated, atol=20)


@EACH
def test_pictures_have_an_alternative_text(lesson):
    """As HTML elements, because JupyterLab gives an output of the type image/png or
    image/svg+xml none.
    """
    cells = built(lesson).cells
    data = [
        output.data
        for cell in cells
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    assert not [kind for each in data for kind in each if kind.startswith("image/")]
    pictures = [each for each in data if "<img" in each.get("text/html", "")]
    assert pictures, "a lesson has a picture"
    for each in pictures:
        (description,) = re.findall(r'<img alt="([^"]+)"', each["text/html"])
        assert len(description.split()) > 7
        assert html.unescape(description) == each["text/plain"]


@EACH
def test_what_answers_a_prediction_is_folded(lesson):
    """Its asserts, too: they stand in a cell of their own with the tag `proof`."""
    notebook = built(lesson)
    cells = notebook.cells
    for number, cell in enumerate(cells):
        folded = cell.metadata.get("jupyter", {})
        assert folded.get("outputs_hidden", False) == has(cell, build.PREDICTION), (
            cell.source
        )
        is_repeated = has(cell, build.TAKE_HOME) and (
            build.shows_difference(notebook) or lesson.name[:2] in HAS_SOLUTION
        )
        is_read_elsewhere = (
            has(cell, build.PROOF) or has(cell, build.OLD_FILE) or is_repeated
        )
        assert folded.get("source_hidden", False) == is_read_elsewhere, cell.source
        assert not has(cell, build.PROOF) or cell.source.startswith("# The asserts"), (
            "its first line is shown"
        )
        if has(cell, build.PREDICTION):
            assert cell.outputs[0].data == {"text/plain": build.FOLDED}, (
                "its first line is shown"
            )
            following = next(
                each for each in cells[number:] if each.cell_type == "markdown"
            )
            assert following.source.startswith(build.ANSWER), (
                "the answer in words is folded, too"
            )
            asserts = re.search(r"^ *(assert|np\.testing)\b", cell.source, re.MULTILINE)
            assert not asserts or has(cell, build.TAKE_HOME)


@pytest.mark.parametrize(
    ("number", "files"),
    [
        ("05", ("lessons/program/05_pmap.py", "steps/pmap.py", "steps/shared.py")),
        ("09", ("lessons/program/09_jit.py", "steps/jit.py")),
    ],
)
def test_lines_side_by_side_are_in_the_files(number, files):
    script, *core = files
    folder = build.FOLDER.parent
    script_text = (folder / script).read_text()
    core_text = "".join((folder / "pmapdp" / file).read_text() for file in core)
    text = "\n".join(cell.source for cell in built(build.source_of(number)).cells)
    rows = re.findall(r"^\| `(.*)` \| `(.*)` \|$", text, re.MULTILINE)
    assert len(rows) > 3
    for left, right in rows:
        assert without_spaces(left) in without_spaces(script_text)
        assert without_spaces(right) in without_spaces(core_text)


def without_spaces(code: str) -> str:
    """Code without what line breaks add: spaces, and a comma at the end."""
    return re.sub(r",(?=\))", "", re.sub(r"\s", "", code))


def columns_of_lesson_10() -> list[list[str]]:
    """The cells of its table of three columns, row by row, without the heading."""
    text = "\n".join(cell.source for cell in built(build.source_of("10")).cells)
    below = text.partition("| | pmap (05) | shard_map (10) | jit (09) |\n")[2]
    table = re.match(r"(\|.*\n)+", below)[0]
    return [line.strip("| ").split(" | ")[1:] for line in table.splitlines()[1:]]


def code_pieces(cell: str) -> list[str]:
    """The code in a cell of a table, with the lines of one expression joined."""
    pieces = [""]
    for line in re.findall("`([^`]+)`", cell):
        pieces[-1] += line.replace("P(", "PartitionSpec(")
        if pieces[-1].count("(") == pieces[-1].count(")"):
            pieces.append("")
    return pieces[:-1]


def test_the_three_columns_of_lesson_10_are_in_the_programs():
    names = ("05_pmap", "10_shard_map", "09_jit")
    columns = zip(*columns_of_lesson_10(), strict=True)
    for name, cells in zip(names, columns, strict=True):
        text = build.program(f"{name}.py")
        text = re.sub(r'"(\w+)": ', r"\1=", text)  # some settings stand in a dictionary
        codes = [code for cell in cells for code in code_pieces(cell)]
        codes = [code for code in codes if not code.startswith("[")]  # no shapes
        assert len(codes) >= 4
        for code in codes:
            assert without_spaces(code) in without_spaces(text), name


def test_a_statement_that_is_not_there_once_stops_the_build():
    text = "x = 1\ndef f():\n    x = 2\n"
    assert build.statement(text, "2") == "x = 2"
    for piece in ("x", "y"):
        with pytest.raises(ValueError, match="not one"):
            build.statement(text, piece)


@EACH
def test_a_notebook_has_no_whole_program_but_its_own(lesson):
    """In a cell, a text or an output, and each once."""
    texts = {
        path.name: path.read_text().partition('"""\n\n')[2].rstrip()
        for path in (build.FOLDER / "program").glob("*.py")
    }
    contents = [
        content
        for cell in built(lesson).cells
        for content in (cell.source, printed(cell))
    ]
    shown = [
        name for name, text in texts.items() for content in contents if text in content
    ]
    assert len(shown) == len(set(shown))
    assert {name[:2] for name in shown} <= {lesson.name[:2]}

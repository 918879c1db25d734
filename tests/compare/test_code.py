"""Lines of source beside each other, and the pictures of a page."""

import ast
from xml.etree import ElementTree

import pytest
from launch import python

from pmapdp.compare.code import align, as_html, as_rows, kind_of, plain_lines
from pmapdp.compare.pictures import DEVICE_COLOURS, bars, boxes, timeline
from pmapdp.compare.pitfalls import load_pitfalls
from pmapdp.compare.programs import split_program
from pmapdp.compare.sources import code_sections, shared_sections
from pmapdp.compare.strategies import MAKERS, phase_of
from pmapdp.verify.mistakes import CATALOGUE

SOURCE = '''
def f(x: int, *, name: "a, b" = "#1") -> dict[str, int]:
    """Says what.

    At length.
    """
    y: int = x + 1  # the next
    # a whole line
    return {name: y}
'''


def test_comments_docstrings_and_types_are_left_out():
    assert plain_lines(*ast.parse(SOURCE).body) == ["def f(x, *, name='#1'):", "    y = x + 1", "    return {name: y}"]


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (("abc", "abc"), ["a", "b", "c"]),
        (("abc", "aXc"), ["a", ("b", "X"), "c"]),
        (("ac", "aXYc"), ["a", ("", "XY"), "c"]),
        (("abc", "ac"), ["a", ("b", ""), "c"]),
        (("abc", "XYbc"), [("a", "XY"), "b", "c"]),
        (("a", "a", "b"), [("a", "a", "b")]),
        (("", "ab"), [("", "ab")]),
    ],
)
def test_columns_are_aligned_with_the_first(columns, wanted):
    """A character stands for a line; a text for a row that all have, and a tuple for one in which they differ."""
    rows = align({str(n): list(each) for n, each in enumerate(columns)})
    assert [row.same for row in rows] == [isinstance(each, str) for each in wanted]
    found = [tuple("".join(lines) for lines in row.cells.values()) for row in rows]
    assert found == [(each,) * len(columns) if isinstance(each, str) else each for each in wanted]


def test_a_line_has_the_colour_of_what_it_does_and_is_escaped():
    lines = {
        "x = lax.pmean(jax.jit(f)(x), 'i')": "reduce",
        "f = jax.pmap(f)": "wrap",
        "x = place(x, split)": "place",
        "x = 1": "",
    }
    assert {line: kind_of(line) for line in lines} == lines
    assert 'class="line reduce"' in as_html(["lax.psum(x, 'i')"], plain=True)
    assert 'class="line "' in as_html(["jax.jit(f)"], plain=True)
    assert "&lt;b&gt;" in as_html(["x = '<b>'"])
    rows = as_rows({"a": ["x", "y"], "b": ["x"]}, {"a": "A & a", "b": "B"})
    assert rows.count('class="all"') == 1
    assert 'data-name="B"><span class="none">nothing' in rows


def test_the_parts_of_each_strategy_are_found_by_names_and_words():
    step, wrapper, placing, saving = (section["lines"] for section in code_sections(MAKERS))
    assert step["single"] == step["jit"]
    for name, words in {"pmap": "jax.pmap(", "shard_map": "jax.shard_map(", "jit": "jax.jit("}.items():
        assert words in "\n".join(wrapper[name])
        assert ("pmean" in "\n".join(step[name])) == (name != "jit")
        assert "def place_batch(batch):" in placing[name]
        assert "def eval_step(state, batch):" in saving[name]
    assert "np.stack" in "\n".join(placing["pmap, stacked"])
    for section in [step, wrapper, placing, saving, *({"": each["lines"]} for each in shared_sections())]:
        for lines in section.values():
            assert lines
            assert not any("#" in line or '"""' in line or "->" in line for line in lines)


def test_a_program_is_followed_into_the_files_that_it_imports(tmp_path):
    (tmp_path / "steps.py").write_text(
        "import jax\nRATE = 0.1\ndef step(w, x):\n  return w - RATE * jax.grad(loss)(w, x)\n"
    )
    (tmp_path / "new.py").write_text(
        "from steps import step\ndef other(): pass\ndef program():\n  return {'step': step}\n"
    )
    found = split_program(str(tmp_path / "new.py"), "program")
    assert found["The step"] == ["def step(w, x):", "    return w - RATE * jax.grad(loss)(w, x)"]
    assert found["Around the step"] == ["def program():", "    return {'step': step}", "RATE = 0.1"]


def test_devices_have_colours_of_their_own_and_copies_one():
    split = {"shape": [16, 3], "on_device": [2, 3], "split": True}
    copies = {"shape": [3, 4], "on_device": [3, 4], "split": False}
    drawn = boxes({"devices": 8, "holds": {"state": copies, "batch": split}})
    assert [drawn.count(colour) for colour in DEVICE_COLOURS] == [1] * 8
    assert drawn.count("var(--weights)") == 8
    assert "1/8 of the batch, [2, 3]" in drawn
    assert "the same weights, 8 times [3, 4]" in drawn


def test_a_lane_for_each_device_and_bars_on_one_scale():
    events = [[0, "forward", 0, 1], [0, "forward", 1, 2], [0, "all-reduce", 2, 4], [1, "update", 1, 3]]
    picture = ElementTree.fromstring(timeline(events, 2, 4, by_compiler=True))
    assert picture.get("aria-label").startswith("One update on 2 devices, 4.0 ms")
    assert [each.get("class") for each in picture if each.get("class")] == ["forward", "all-reduce dashed", "update"]
    widths = [
        each.get("style")
        for each in ElementTree.fromstring(bars([("a", {"x": 1}, "", {}), ("b", {"x": 4}, "", {})])).iter("i")
    ]
    assert widths == ["width:25.00%", "width:100.00%"]


def test_phases_are_told_from_the_names_of_operations():
    names = {"jit(f)/jvp()/dot": "forward", "jit(f)/transpose(jvp())/dot": "backward", "jit(f)/add": "update"}
    assert {name: phase_of("fusion.1", name) for name in names} == names
    assert phase_of("all-reduce.3", "jit(f)/transpose(jvp())/dot") == "all-reduce"


def test_the_catalogue_of_pitfalls_is_whole():
    cases = load_pitfalls()
    assert len({case["name"] for case in cases}) == 7
    for case in cases:
        assert case["cause"] in CATALOGUE
        assert set(case) - {"check_vma"} == {"name", "cause", "one_device", "wrong", "why_wrong", "right", "why_right"}
        assert case["wrong"] != case["right"] or case["check_vma"]


def test_no_picture_needs_matplotlib():
    code = "import sys, pmapdp.compare.__main__; sys.exit('matplotlib' in sys.modules)"
    assert python("-c", code).returncode == 0

"""The parts of compare's page: code side by side, pictures and words."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import port_example
import pytest

from pmapdp.collectives import Instruction
from pmapdp.compare import pictures
from pmapdp.compare.__main__ import PARALLEL
from pmapdp.compare.diff import align, find_changes, find_new_words
from pmapdp.compare.page import (
    as_html,
    class_of,
    join_comments,
    load_data,
    load_template,
)
from pmapdp.compare.pictures import difference_curves
from pmapdp.compare.results import Arrays, Line, Measurement, Times
from pmapdp.compare.sources import read_programs, read_strategies, split_program
from pmapdp.compare.words import round_parts, shorten_hlo
from pmapdp.steps import STRATEGIES

STEPS = Path(__file__).parents[2] / "pmapdp" / "steps"
PARTS: Any = load_template("parts.html").module
PICTURES: Any = load_template("pictures.html").module

RUN = Measurement(
    strategy="pmap",
    label="pmap",
    name="pmap × 8",
    devices=8,
    global_batch_size=64,
    simulated=True,
    machine="",
    step_ms=Times(1, 1, 1),
    collectives=[],
    memory={},
    holds={},
)


def text_of(lines):
    return "\n".join(line.text for line in lines)


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (("abc", "abc"), ["abc"]),
        (("abc", "aXc"), ["a", ("b", "X"), "c"]),
        (("ac", "aXYc"), ["a", ("", "XY"), "c"]),
        (("abc", "ac"), ["a", ("b", ""), "c"]),
        (("abc", "XYbc"), [("a", "XY"), "bc"]),
    ],
)
def test_columns_are_aligned_by_their_common_lines(columns, rows):
    """A character stands for a line.

    A text is a row that both have, and a pair one in which they differ.
    """
    old, new = columns
    texts = []
    for row in align({"old": list(old), "new": list(new)}):
        old_lines, new_lines = "".join(row["old"]), "".join(row["new"])
        differ = old_lines != new_lines
        texts.append((old_lines, new_lines) if differ else old_lines)
    assert texts == rows


def test_a_line_that_two_columns_lack_leaves_room_in_both():
    columns = {"single": "x", "pmap": "xy", "shard_map": "xy", "jit": "x"}
    same, different = align(columns)
    assert same == {name: ["x"] for name in columns}
    assert different == {"single": [], "pmap": ["y"], "shard_map": ["y"], "jit": []}


def test_a_bracket_alone_is_nothing_in_common():
    """Lines around it would be torn apart."""
    (row,) = align({"old": ["f(a", ")"], "new": ["g(b", ")", "h()"]})
    assert row == {"old": ["f(a", ")"], "new": ["g(b", ")", "h()"]}


def test_sums_all_reduce_and_update_have_classes_and_code_is_escaped():
    lines = {
        "gradients = lax.pmean(jax.jit(f)(gradients), 'i')": "all-reduce",
        "gradients = lax.pmean(g, 'i')": "all-reduce",
        "g = lax.psum(grads, 'i')": "all-reduce",
        "loss = lax.pmean(loss, 'i')": "",
        "return update(state, gradients), lax.psum(sums, 'i')": "weights",
        "updates, moments = optimizer.update(gradients, moments)": "weights",
        "gradients = jax.grad(loss)(params, batch)": "sums",
        "loss, gradients = lax.pmean(jax.value_and_grad(f)(w), 'i')": "all-reduce",
        "return lax.pmean(one_device(params, batch, key), 'i')": "all-reduce",
        "# lax.pmean(gradients, 'i')": "comment",
        "    # the compiler adds the all-reduce": "all-reduce dashed",
        "f = jax.pmap(f)": "",
    }
    assert {line: class_of(line) for line in lines} == lines
    assert 'class="line all-reduce"' in as_html(["lax.psum(grads, 'i')"])
    assert 'class="line "' in as_html(["jax.jit(f)"])
    assert "&lt;b&gt;" in as_html(["x = '<b>'"])


def test_the_lines_of_a_comment_become_one_that_wraps():
    html = as_html(["# A comment", "# in two lines.", "x = 1  # one", "# another"])
    assert html.count('class="line') == 3
    assert "# A comment in two lines.<" in html


def test_a_line_of_code_is_copied_with_its_indentation():
    (line,) = re.findall(r"<div[^>]*>(.*?)</div>", as_html(["    return x"]))
    assert re.sub("<.*?>", "", line) == "    return x"


@pytest.mark.parametrize(
    ("line", "nearest", "marked"),
    [
        ("return f(x)", "return f(x)", "return f(x)"),
        ("return f(x)", "return mean(f(x))", "return f(x)"),
        ("return mean(f(x))", "return f(x)", "return [mean(]f(x)[)]"),
        ("y, lax.psum(g, 'i')", "y, lax.pmean(g, 'i')", "y, lax.[psum](g, 'i')"),
        ("other = 1", "return f(x)", "[other = 1]"),
        ("f(x)  # the global x", "f(x)  # a part of x", "f(x)  [# the global x]"),
        (
            '"step": jit(',
            '"step": pmap(step, axis="i"),',
            '"step": [jit](',
        ),
    ],
)
def test_the_words_that_the_nearest_line_lacks_are_marked(line, nearest, marked):
    pieces = find_new_words(line, ["# far away from both", nearest])
    assert "".join(text for _, text in pieces) == line
    text = "".join(f"[{piece}]" if is_new else piece for is_new, piece in pieces)
    assert text == marked
    html = as_html([line], [nearest])
    assert html.count("<mark>") == marked.count("[")
    assert "<mark>" not in as_html([line])


def test_the_lines_that_another_column_lacks_are_named():
    html = as_html(["a = 1", "return b"], ["a = 1", "return lax.pmean(b, 'i')"])
    first, second = re.findall(r'<div class="([^"]*)"', html)
    assert first.split() == ["line"]
    assert second.split() == ["line", "differs"]
    assert "differs" not in as_html(["return b"])


def test_two_programs_in_one_file_have_their_own_steps():
    """A local name belongs to its own function alone.

    `step` and `params` are in several.
    """
    old = split_program(port_example.__file__, "old")
    new = split_program(port_example.__file__, "new")
    step = "The step"
    assert "pmean" in text_of(old[step])
    assert "def old_step(" in text_of(old[step])
    assert "pmean" not in text_of(new[step])
    assert "def old_step(" not in text_of(new[step])
    assert "def new(" not in text_of(old["Around the step"])


def align_programs_to_copy():
    names = ["single", *PARALLEL]  # the order of the page
    code = read_strategies(names, load_data("to_copy.toml"))
    columns = code.sections[""]
    rows = align(columns)
    for name, lines in columns.items():
        assert [line for row in rows for line in row[name]] == lines
    return rows


def heights_of_lines(rows, name):
    """Return where each line stands that a column has once: its row, and its place."""
    places = {}
    for number, row in enumerate(rows):
        for offset, line in enumerate(join_comments(row[name])):
            places.setdefault(line, []).append((number, offset))
    return {
        line: found[0]
        for line, found in places.items()
        if len(found) == 1 and re.search(r"\w", line)
    }


def test_the_programs_to_copy_are_aligned_at_the_all_reduce():
    """At one height, you write it, the compiler adds it, or nobody has to."""
    rows = align_programs_to_copy()
    heights = {name: heights_of_lines(rows, name) for name in STRATEGIES}
    written = heights["pmap"]["    # you write the all-reduce"]
    assert heights["shard_map"]["    # you write the all-reduce"] == written
    assert heights["jit"]["    # the compiler adds the all-reduce"] == written
    reduce, offset = written
    assert rows[reduce]["pmap"][offset:] == rows[reduce]["shard_map"][offset:]
    assert "lax.psum" in str(rows[reduce]["pmap"][offset:])
    assert rows[reduce]["single"][offset:] == []
    assert rows[reduce]["jit"][offset + 1 :] == []
    for name in STRATEGIES:
        assert rows[reduce][name][offset - 1].startswith("    sums, grads = grad(")


@pytest.mark.parametrize("pair", list(itertools.combinations(STRATEGIES, 2)))
def test_equal_lines_of_the_programs_to_copy_stand_at_one_height(pair):
    rows = align_programs_to_copy()
    left, right = (heights_of_lines(rows, name) for name in pair)
    equal = left.keys() & right.keys()
    assert len(equal) > 10
    for line in equal:
        assert left[line] == right[line], line


def test_each_strategy_shows_the_function_that_makes_it_and_maybe_a_program_to_copy():
    code = read_strategies(["pmap", "jit"], {"pmap": "\nx = 1\n"})
    assert list(code.sections) == ["", "pmap", "jit"]
    assert code.sections[""] == {"pmap": ["x = 1"]}
    for name in ("pmap", "jit"):
        shown = code.sections[name]
        lines = (STEPS / f"{name}.py").read_text().splitlines()
        start = lines.index(shown[name][0])
        assert shown == {name: lines[start : start + len(shown[name])]}
        assert shown[name][0].startswith("def make_strategy(")
        assert "train_step" in str(shown[name])


HLO = (
    "%all-reduce.3 = (f32[5]{0}, f32[5,6]{1,0}, f32[]) all-reduce(%dot.3, %b, %c), "
    'to_apply=%add, metadata={op_name="jit(f)/dot_general" stack_frame_id=4}'
)


@pytest.mark.parametrize(
    ("line", "arrays", "shown"),
    [
        (
            HLO,
            3,
            "%all-reduce.3 = (\u2026, f32[5,6], \u2026) all-reduce(\u2026), "
            '\u2026 op_name="jit(f)/dot_general"',
        ),
        (
            'ROOT %r = f32[5]{0} all-reduce(%a), metadata={op_name="jit(f)/psum"}',
            1,
            '%r = f32[5] all-reduce(\u2026), \u2026 op_name="jit(f)/psum"',
        ),
        ("%r = f32[5]{0} all-reduce(%a)", 1, "all-reduce"),
    ],
)
def test_the_compiled_line_keeps_its_name_largest_array_and_origin(line, arrays, shown):
    facts = ("all-reduce", 8, arrays, 1, False, [], "", "", True)
    assert shorten_hlo(Instruction(*facts, hlo=line)) == shown


def test_changes_have_their_numbers_in_both_files():
    """Two equal lines around a change are shown, and the others are left out."""
    before = [Line(number, text) for number, text in enumerate("abcdefghij", 7)]
    after = [Line(number, text) for number, text in enumerate("abXdefghi", 3)]
    assert find_changes(before, after) == [
        (" ", 7, 3, "a"),
        (" ", 8, 4, "b"),
        ("-", 9, None, "c"),
        ("+", None, 5, "X"),
        (" ", 10, 6, "d"),
        (" ", 11, 7, "e"),
        ("…", None, None, ""),
        (" ", 14, 10, "h"),
        (" ", 15, 11, "i"),
        ("-", 16, None, "j"),
    ]
    assert find_changes(before, before) == []


def test_a_bracket_that_both_have_is_no_change():
    before = [Line(1, "f(a"), Line(2, ")")]
    after = [Line(1, "g(b"), Line(2, ")")]
    signs = [change.sign for change in find_changes(before, after)]
    assert signs == ["-", "+", " "]


def test_a_program_is_followed_into_the_files_that_it_imports(tmp_path):
    step = "import jax\nRATE = 0.1\n"
    step += "def step(w, x):\n  return w - RATE * jax.grad(loss)(w, x)\n"
    (tmp_path / "steps.py").write_text(step)
    program = "from steps import step\ndef other(): pass\n"
    program += "def program():\n  return {'step': step}\n"
    (tmp_path / "new.py").write_text(program)
    found = split_program(str(tmp_path / "new.py"), "program")
    assert found["The step"] == [
        Line(None, "# steps.py"),
        Line(3, "def step(w, x):"),
        Line(4, "  return w - RATE * jax.grad(loss)(w, x)"),
    ]
    assert found["Around the step"] == [
        Line(3, "def program():"),
        Line(4, "  return {'step': step}"),
        Line(None, "# steps.py"),
        Line(2, "RATE = 0.1"),
    ]


def test_a_program_changes_in_the_order_of_its_file(tmp_path):
    """Though `new` names a sum, so it's shown as a part of the step, unlike `old`."""
    file = tmp_path / "steps.py"
    file.write_text(
        "RATE = 0.1\n"
        "def make(reduce=lax.pmean):\n  return {'step': reduce(RATE)}\n"
        "def old():\n  return make()\n"
        "def new():\n  return make(lax.psum)\n"
    )
    before, after = read_programs([f"{file}:old", f"{file}:new"]).sources.values()
    changes = find_changes(before, after)
    assert [change.text for change in changes if change.sign == "-"] == [
        "def old():",
        "  return make()",
    ]
    assert [change.text for change in changes if change.sign == "+"] == [
        "def new():",
        "  return make(lax.psum)",
    ]


def test_a_statement_that_gives_several_names_is_part_of_the_program(tmp_path):
    file = tmp_path / "new.py"
    file.write_text(
        "state, batch = 1.0, make()\nw, b = batch\n"
        "def program():\n  return {'state': state, 'w': w}\n"
    )
    lines = split_program(str(file), "program")["Around the step"]
    assert [line.number for line in lines if line.number] == [1, 2, 3, 4]


def lines_of(holds):
    """Return the lines of a cell that says what a device holds."""
    return re.findall(">(.*)</div>", PARTS.holdings(replace(RUN, holds=holds)))


def test_a_row_of_a_state_is_the_whole_state_and_one_of_a_batch_is_a_part():
    batch = Arrays(24, [8, 2, 3], split=True)
    copies = Arrays(2000, [3, 4], split=False)
    rows = Arrays(16, [8, 4], split=True)
    split = Arrays(4000, [16, 4], split=True)
    holds = {"batch": batch, "state": rows, "weights": copies, "optimizer": split}
    assert lines_of(holds) == [
        "1/8 of the batch, 24 bytes",
        "the whole state, 16 bytes",
        "the whole model, 2.0 kB",
        "1/8 of the optimizer state, 4.0 kB",
    ]
    number = Arrays(4, [], split=False)
    assert lines_of({"state": number}) == ["the whole state, 4 bytes"]


def boxes_of(written, sees):
    """Return the yellow bar and the boxes of functions in the picture of an update."""
    facts = ("all-reduce", 8, 1, 1, False, [], "", "")
    collective = Instruction(*facts, written=written)
    run = replace(RUN, sees=[sees], collectives=[collective])
    boxes = ElementTree.fromstring(PICTURES.update(run)).findall("rect")
    (bar,) = [box for box in boxes if "all-reduce" in box.get("class", "")]
    return bar, [box for box in boxes if box.get("class") == "function"]


def bottom(box):
    return float(box.get("y")) + float(box.get("height"))


def test_the_yellow_bar_is_in_your_function_or_outside_of_it():
    """Its place is the one difference between pmap's picture and jit's."""
    bar, functions = boxes_of(written=True, sees=8)
    assert len(functions) == 8
    assert bottom(bar) < bottom(functions[0])
    bar, functions = boxes_of(written=False, sees=64)
    assert len(functions) == 1
    assert float(bar.get("y")) > bottom(functions[0])
    assert bar.get("class") == "all-reduce dashed"


def test_the_picture_of_your_step_claims_no_more_than_was_compiled():
    """It shows who asks for which collective, and says nothing of gradients."""
    facts = ("all-gather", 2900, 1, 1, False, [], "", "")
    for written, who, steps in ((True, "you", "8 × "), (False, "the compiler", "")):
        run = replace(RUN, collectives=[Instruction(*facts, written=written)])
        drawn = ElementTree.fromstring(
            PICTURES.update(run, "old state", "your step", "new state")
        )
        texts = [element.text for element in drawn.findall("text")]
        assert f"{steps}your step" in texts
        assert f"{who}: all-gather" in texts
        assert "each device gets 2.9 kB" in texts
        assert "gradient" not in drawn.get("aria-label") + " ".join(texts)


def test_in_the_sketch_all_wait_for_the_slowest():
    """The all-reduce is one bar behind the sums of all devices."""
    collective = Instruction("all-reduce", 8, 1, 1, False, [], "", "", written=True)
    drawn = ElementTree.fromstring(
        PICTURES.timeline(replace(RUN, collectives=[collective]))
    )
    boxes = drawn.findall("rect")
    right = {}
    for name in ("sums", "weights", "all-reduce"):
        right[name] = [
            float(box.get("x")) + float(box.get("width"))
            for box in boxes
            if box.get("class") == name
        ]
    (bar,) = [box for box in boxes if box.get("class") == "all-reduce"]
    assert len(right["sums"]) == len(set(right["sums"])) == len(right["weights"]) == 8
    assert max(right["sums"]) < float(bar.get("x"))
    assert bottom(bar) == max(map(bottom, boxes))
    single = PICTURES.timeline(replace(RUN, devices=1))
    assert "all-reduce" not in single
    # One scale: the slowest of eight devices needs an eighth of a single device's time.
    (bar, _) = ElementTree.fromstring(single).findall("rect")
    assert float(bar.get("width")) == pytest.approx(8 * max(right["sums"]))


def test_a_device_s_sum_is_written_below_its_colour():
    run = replace(RUN, sees=[8], gradient_sums=[-1.5, 0, 2, 0, 0, 0, 0, 0.25])
    parts = ElementTree.fromstring(PICTURES.update(run))
    numbers = [part for part in parts if part.get("class") == "number middle"]
    assert [number.text for number in numbers][:3] == ["\u22121.50", "0.00", "2.00"]
    tiles = [part for part in parts if part.get("class") == "sums"]
    for number, tile in zip(numbers, tiles, strict=True):
        middle = float(tile.get("x")) + float(tile.get("width")) / 2
        assert float(number.get("x")) == pytest.approx(middle, abs=2)


def luminance(colour):
    """Return the relative luminance of #rrggbb or #rgb, as WCAG 2 defines it."""
    digits = colour.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    light = 0.0
    for weight, start in ((0.2126, 0), (0.7152, 2), (0.0722, 4)):
        part = int(digits[start : start + 2], 16) / 255
        light += weight * (
            part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4
        )
    return light


@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize("bar", ["sum", "sum-ground"])
def test_the_all_reduce_has_no_device_s_colour(bar, scheme):
    """Light and dark, the yellow bar and the compiler's dashed one, which has the
    ground of the all-reduce.

    A contrast of 1 is equal brightness. The nearest pair was 1.02.
    """
    style = (Path(pictures.__file__).parent / "page.css").read_text()
    assert re.search(r"svg \.all-reduce { fill: var\(--sum\)", style)
    assert re.search(r"svg \.dashed {.* fill: var\(--sum-ground\)", style)
    colours = re.search(rf"--{bar}: light-dark\((#\w+), (#\w+)\)", style).groups()
    for device in pictures.DEVICE_COLOURS:
        lights = sorted([luminance(colours[scheme]), luminance(device)])
        assert (lights[1] + 0.05) / (lights[0] + 0.05) > 1.6, device


def test_paper_has_the_wide_layout_and_all_that_is_folded():
    """A sheet is as narrow as a tablet, and nobody can unfold what is on it."""
    folder = Path(pictures.__file__).parent
    style = (folder / "page.css").read_text(encoding="utf-8")
    template = (folder / "page.html").read_text(encoding="utf-8")
    widths = re.findall(r"@media ([^{]*-width[^{]*)", style + template)
    assert len(widths) > 3
    assert {query.partition(" (")[0] for query in widths} == {"screen and"}
    screen, paper = style.split("@media print {")
    assert "print-color-adjust: exact" in screen
    assert ":root { color-scheme: light;" in paper
    assert "details::details-content { content-visibility: visible;" in paper
    assert ".grid { overflow: visible; }" in paper  # a table goes on, page after page
    # A program that ran isn't cut, because a sheet has two of them beside each other.
    assert "details:not(.hlo) { display: inline-block; width: 49%" in paper
    for selectors, rule in (
        ({"nav", ".by-mouse"}, "display: none"),
        ({"p", ".row", "figure", ".part", ".proof", ".hlo"}, "break-inside: avoid"),
        ({"h2", "h3", ".head-row", "summary"}, "break-after: avoid"),
    ):
        named = re.findall(rf"^ *([^{{]*) {{ {rule}; }}$", paper, re.MULTILINE)
        assert selectors <= set(", ".join(named).split(", ")), rule


@pytest.mark.parametrize("numbers", [[0.004] * 8, [-2.1004, -1.2124, 0.535], [1e-9]])
def test_the_rounded_numbers_add_up_to_the_rounded_sum(numbers):
    rounded = round_parts(numbers)
    assert sum(rounded) == pytest.approx(round(sum(numbers), 2), abs=1e-12)
    assert rounded == [pytest.approx(number, abs=0.01) for number in numbers]
    assert rounded == [pytest.approx(round(number, 2)) for number in rounded]


def test_a_difference_is_drawn_on_a_log_scale():
    single = replace(RUN, losses=[1.0, 1.0, 1.0, 1.0])
    run = replace(RUN, losses=[1.1, 1.0 + 1e-8, 1.0, 1.0 + 2**-52])
    drawn = ElementTree.fromstring(
        PICTURES.plot("", difference_curves([single, run]), has_break=True)
    )
    points = drawn[-1].get("d").removeprefix("M").split("L")
    first, second, third, smallest = (float(point.split()[1]) for point in points)
    # 1e-1 and 1e-8 are seven powers of ten apart, and the axis has eighteen in 170
    # pixels.
    assert second - first == pytest.approx(7 * 170 / 18, abs=0.2)
    labels = {text.text: float(text.get("y")) - 4 for text in drawn if text.text}
    assert third == pytest.approx(labels["0"], abs=0.1)
    assert smallest < third - 5  # no 0 is near it
    assert labels["1e-12"] < labels["\u22ee"] < labels["0"]  # a break of the scale


def test_the_page_on_the_site_names_the_lines_that_add_up_today():
    """It's made by docs/pictures/make.py, and so is the picture in README.md."""
    page = (STEPS.parents[1] / "docs" / "pictures" / "four_strategies.html").read_text(
        encoding="utf-8"
    )
    places = set(re.findall(r"steps/(pmap|shard_map)\.py:(\d+)", page))
    assert {name for name, _ in places} == {"pmap", "shard_map"}
    for name, number in places:
        lines = (STEPS / f"{name}.py").read_text().splitlines()
        assert re.search("psum|pmean", lines[int(number) - 1]), (name, number)

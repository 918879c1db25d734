"""Sources side by side, collectives of compiled programs, and pictures."""

import re
from pathlib import Path
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import port_example
import pytest
from jax import P, lax
from jax.sharding import Mesh

from pmapdp.collectives import (
    Collective,
    Instruction,
    collectives,
    describe_exchange,
    instructions,
)
from pmapdp.compare.diff import align, find_changes
from pmapdp.compare.page import as_html, class_of
from pmapdp.compare.pictures import draw_differences, draw_update
from pmapdp.compare.results import Arrays, Line, Measurement, Times
from pmapdp.compare.sources import read_strategies, split_program
from pmapdp.compare.words import describe_holdings
from pmapdp.steps import STRATEGIES

STEPS = Path(__file__).parents[2] / "pmapdp" / "steps"


def measurement(strategy="pmap", devices=8, **facts):
    """Make a measurement of which a test says what matters to it."""
    defaults = {
        "collectives": [],
        "memory": {},
        "holds": {},
        "step_ms": Times(1, 1, 1),
        "global_batch_size": 64,
        "simulated": True,
        "machine": "",
    }
    names = {"label": strategy, "name": strategy, "devices": devices}
    return Measurement(strategy=strategy, **names, **(defaults | facts))


def text_of(lines):
    return "\n".join(line.text for line in lines)


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (("abc", "abc"), ["abc"]),
        (("abc", "aXc"), ["a", ("b", "X"), "c"]),
        (("ac", "aXYc"), ["a", ("", "XY"), "c"]),
        (("abc", "ac"), ["a", ("b", ""), "c"]),
        (("abc", "XYbc"), [("a", "XY"), "bc"]),
    ],
)
def test_columns_are_aligned_with_the_first(columns, wanted):
    """A character stands for a line.

    A text is a row that all have, and a tuple one in which they differ.
    """
    rows = align({str(n): list(each) for n, each in enumerate(columns)})
    texts = []
    for cells in rows:
        by_name = {name: "".join(cell.lines) for cell in cells for name in cell.columns}
        texts.append(tuple(by_name.values()))
    assert [len(cells) == 1 for cells in rows] == [
        isinstance(each, str) for each in wanted
    ]
    assert texts == [
        (each,) * len(columns) if isinstance(each, str) else each for each in wanted
    ]


def test_neighbours_with_the_same_lines_share_a_cell():
    columns = {
        "single": ["x"],
        "pmap": ["x", "y"],
        "shard_map": ["x", "y"],
        "jit": ["x"],
    }
    same, different = align(columns)
    assert [(cell.columns, [*cell.lines]) for cell in same] == [([*columns], ["x"])]
    assert [(cell.columns, [*cell.lines]) for cell in different] == [
        (["single"], []),
        (["pmap", "shard_map"], ["y"]),
        (["jit"], []),
    ]


def test_a_bracket_alone_is_nothing_in_common():
    """Lines around it would be torn apart."""
    (cells,) = align({"old": ["f(a", ")"], "new": ["g(b", ")", "h()"]})
    assert [[*cell.lines] for cell in cells] == [["f(a", ")"], ["g(b", ")", "h()"]]


def test_the_all_reduce_of_the_gradients_has_a_colour_and_code_is_escaped():
    lines = {
        "gradients = lax.pmean(jax.jit(f)(gradients), 'i')": "reduce",
        "gradients = lax.pmean(g, 'i')": "reduce",
        "g = lax.psum(grads, 'i')": "reduce",
        "loss = lax.pmean(loss, 'i')": "",
        "return update(state, gradients), lax.psum(sums, 'i')": "",
        "# lax.pmean(gradients, 'i')": "comment",
        "f = jax.pmap(f)": "",
    }
    assert {line: class_of(line) for line in lines} == lines
    assert 'class="line reduce"' in as_html(["lax.psum(grads, 'i')"])
    assert 'class="line "' in as_html(["jax.jit(f)"])
    assert "&lt;b&gt;" in as_html(["x = '<b>'"])


def test_the_lines_of_a_comment_become_one_that_wraps():
    html = as_html(["# A comment", "# in two lines.", "x = 1  # one", "# another"])
    assert html.count('class="line') == 3
    assert "# A comment in two lines.<" in html


def test_two_programs_in_one_file_have_their_own_steps():
    """A local name of one function is not that of another.

    `step` and `params` are in several.
    """
    old, new = (split_program(port_example.__file__, name) for name in ("old", "new"))
    step = "The step"
    assert "pmean" in text_of(old[step])
    assert "pmean" not in text_of(new[step])
    assert "def old_step(" in text_of(old[step])
    assert "def old_step(" not in text_of(new[step])
    assert "def new(" not in text_of(old["Around the step"])


def test_the_regions_of_each_strategy_are_its_lines_as_they_are():
    found = read_strategies(STRATEGIES)
    step, wrapper, placing, saving = (section.lines for section in found.sections)
    for name, words in {
        "pmap": "jax.pmap(",
        "shard_map": "jax.shard_map(",
        "jit": "jax.jit(",
    }.items():
        assert words in "\n".join(wrapper[name])
        assert ("pmean" in "\n".join(step[name])) == (name != "jit")
        assert "def place_batch(batch: Batch)" in "\n".join(placing[name])
        assert "def eval_step(state: TrainState" in "\n".join(saving[name])
        source = (STEPS / f"{name}.py").read_text()
        for lines in (step[name], wrapper[name], placing[name], saving[name]):
            assert lines
            assert all(f"    {line}".rstrip() in source for line in lines)
        file = source.splitlines()
        lines = found.sources[name]
        assert [file[line.number - 1].removeprefix("    ") for line in lines] == [
            line.text for line in lines
        ]
        assert file[lines[0].number - 2] == '    """'  # the end of the docstring
        assert file[lines[-1].number].startswith("    return ")


def test_changes_are_those_that_diff_finds_with_the_numbers_of_the_files():
    """Put the `+` and unchanged lines together again, and they're the other source."""
    sources = read_strategies(STRATEGIES).sources
    one, other = sources["pmap"], sources["jit"]
    old = {line.number: line.text for line in one}
    new = {line.number: line.text for line in other}
    changes = find_changes(one, other)
    assert any(change.sign == "-" and "lax.pmean(" in change.text for change in changes)
    for change in changes:
        if change.sign in "- ":
            assert old[change.before] == change.text
        if change.sign in "+ ":
            assert new[change.after] == change.text
    removed = sum(change.sign == "-" for change in changes)
    added = sum(change.sign == "+" for change in changes)
    assert len(one) - removed + added == len(other)
    assert find_changes(one, one) == []


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


def test_a_row_of_a_state_is_the_whole_state_and_one_of_a_batch_is_a_part():
    batch = Arrays(24, [8, 2, 3], split=True)
    copies = Arrays(2000, [3, 4], split=False)
    rows = Arrays(16, [8, 4], split=True)
    split = Arrays(4000, [16, 4], split=True)
    holds = {"batch": batch, "state": rows, "weights": copies, "optimizer": split}
    assert describe_holdings(measurement(holds=holds)) == [
        "1/8 of the batch, 24 bytes",
        "the whole state, 16 bytes",
        "the whole model, 2.0 kB",
        "1/8 of the optimizer state, 4.0 kB",
    ]


def test_the_yellow_bar_is_in_your_function_or_outside_of_it():
    """Its place is the one difference between pmap's picture and jit's."""

    def bar_and_function(written, sees):
        facts = ("all-reduce", 8, 1, 1, False, [], "", "")
        collective = Instruction(*facts, written=written)
        run = measurement(sees=[sees], collectives=[collective])
        boxes = [
            box
            for box in ElementTree.fromstring(draw_update(run))
            if box.tag.endswith("rect")
        ]
        (bar,) = [box for box in boxes if "all-reduce" in box.get("class", "")]
        functions = [box for box in boxes if box.get("class") == "function"]
        ends = {float(box.get("y")) + float(box.get("height")) for box in functions}
        return bar, len(functions), max(ends)

    bar, functions, end = bar_and_function(written=True, sees=8)
    assert functions == 8
    assert float(bar.get("y")) + float(bar.get("height")) < end
    bar, functions, end = bar_and_function(written=False, sees=64)
    assert functions == 1
    assert float(bar.get("y")) > end
    assert bar.get("class") == "all-reduce dashed"


def test_a_difference_is_drawn_on_a_log_scale():
    single = measurement("single", 1, losses=[1.0, 1.0, 1.0])
    run = measurement(losses=[1.1, 1.0 + 1e-8, 1.0])
    drawn = ElementTree.fromstring(draw_differences([single, run]))
    points = drawn[-1].get("d").removeprefix("M").split("L")
    first, second, third = (float(point.split()[1]) for point in points)
    # 1e-1 and 1e-8 are seven powers of ten apart, and the axis has eighteen in 170
    # pixels.
    assert second - first == pytest.approx(7 * 170 / 18, abs=0.2)
    labels = {text.text: float(text.get("y")) - 4 for text in drawn if text.text}
    assert third == pytest.approx(labels["0"], abs=0.1)
    smallest = measurement(losses=[1 + 2**-52] * 3)
    point = ElementTree.fromstring(draw_differences([single, smallest]))[-1].get("d")
    assert float(point.split()[1].partition("L")[0]) < third - 5  # no 0 is near it


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "%all-reduce = f32[512,10]{1,0} all-reduce(%dot), channel_id=1",
            ("all-reduce", 1, 512 * 10 * 4),
        ),
        (
            "ROOT %r = (f32[8]{0}, /*index=1*/bf16[4,4]{1,0}, f32[]) "
            "all-reduce(%a, %b, %c)",
            ("all-reduce", 1, 68),
        ),
        (
            "%g = f32[16]{0} all-gather-done(%all-gather-start), metadata={}",
            ("all-gather", 1, 64),
        ),
        ("%g = f64[2,8]{1,0} all-gather(%x), dimensions={0}", ("all-gather", 1, 128)),
        (
            "%p = s32[3]{0} collective-permute(%x), source_target_pairs={{0,1}}",
            ("collective-permute", 1, 12),
        ),
        ("%t = pred[5]{0} all-to-all(%x), dimensions={0}", ("all-to-all", 1, 5)),
        ("%s = (f32[2]{0}, f32[16]{0}) all-gather-start(%x), dimensions={0}", None),
        ("%t = f32[784,64]{1,0} get-tuple-element(%all-reduce), index=0", None),
        ('%a = f32[4]{0} add(%a, %b), metadata={op_name="jit(f)/all-reduce(x)"}', None),
    ],
)
def test_a_line_of_a_program(line, expected):
    found = collectives("HloModule m\n\n  " + line)
    assert found == ([Collective(*expected, 1)] if expected else [])


def loops(x, steps):
    """Two all-reduces in loops, one in a loop whose length depends on data, one in a
    branch.
    """

    def outer(x, _):
        def inner(x, _):
            return x + lax.psum(jnp.sin(x), "i"), None

        x, _ = lax.scan(inner, x, None, length=3)
        return x * lax.pmax(x, "i"), None

    x, _ = lax.scan(outer, x, None, length=4)
    x = lax.cond(x.sum() > 0, lambda x: lax.psum(2 * x, "i"), lambda x: x, x)
    x, _ = lax.while_loop(
        lambda state: state[1] < steps,
        lambda state: (lax.psum(state[0], "i"), state[1] + 1),
        (x, 0),
    )
    return x


def test_a_collective_in_a_loop_counts_as_often_as_it_runs():
    """The program says how often: 3 x 4 in the inner loop, 4 in the outer one.

    An all-reduce of each micro-batch gives the numbers of one for all, so only the
    count tells them apart.
    """
    mesh = Mesh(np.array(jax.devices()[:2]), ("i",))
    mapped = jax.shard_map(
        loops, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"), check_vma=False
    )
    lowered = jax.jit(mapped).lower(jnp.ones((2, 5)), 3)
    rows = instructions(lowered.compile().as_text())
    found = [(row.runs, row.in_branch) for row in rows]
    assert sorted(found, key=str) == [(1, True), (12, False), (4, False), (None, False)]
    assert collectives(lowered.compile().as_text())[0].runs is None
    known = [row for row in rows if row.runs]
    text = describe_exchange(known)
    assert "3 all-reduces, run 17 times an update, 340 bytes" in text
    in_branch = "(at most: some are in a branch that may not be taken)"
    assert in_branch in text
    always = [row for row in known if not row.in_branch]
    assert in_branch not in describe_exchange(always)


def test_the_page_on_the_site_names_the_lines_that_add_up_today():
    """It's made by docs/pictures/make.py, and so is the picture in README.md."""
    page = (STEPS.parents[1] / "docs" / "pictures" / "four_ways.html").read_text(
        encoding="utf-8"
    )
    places = set(re.findall(r"steps/(pmap|shard_map)\.py:(\d+)", page))
    assert {name for name, _ in places} == {"pmap", "shard_map"}
    for name, number in places:
        lines = (STEPS / f"{name}.py").read_text().splitlines()
        assert re.search("psum|pmean", lines[int(number) - 1]), (name, number)

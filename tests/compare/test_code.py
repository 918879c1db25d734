"""Sources side by side, collectives of compiled programs, what devices hold and do as pictures, and the pitfalls."""

import ast
from xml.etree import ElementTree

import port_example
import pytest

from pmapdp.compare.code import align, as_html, kind_of, plain_lines
from pmapdp.compare.collectives import Collective, collectives
from pmapdp.compare.pictures import DEVICE_COLOURS, holdings, timeline
from pmapdp.compare.pitfalls import load_pitfalls
from pmapdp.compare.programs import split_program
from pmapdp.compare.sources import read_sections
from pmapdp.compare.strategies import MAKERS, phase_of

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
    assert plain_lines(*ast.parse(SOURCE).body) == [
        "def f(x, *, name='#1'):",
        "    y = x + 1",
        "    return {name: y}",
    ]


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (("abc", "abc"), ["abc"]),
        (("abc", "aXc"), ["a", ("b", "X"), "c"]),
        (("ac", "aXYc"), ["a", ("", "XY"), "c"]),
        (("abc", "ac"), ["a", ("b", ""), "c"]),
        (("abc", "XYbc"), [("a", "XY"), "bc"]),
        (("a", "a", "b"), [("a", "a", "b")]),
    ],
)
def test_columns_are_aligned_with_the_first(columns, wanted):
    """A character stands for a line; a text for a row that all have, and a tuple for one in which they differ."""
    rows = align({str(n): list(each) for n, each in enumerate(columns)})
    texts = [tuple("".join(lines) for lines in cells.values()) for _, cells in rows]
    assert [same for same, _ in rows] == [isinstance(each, str) for each in wanted]
    assert texts == [
        (each,) * len(columns) if isinstance(each, str) else each for each in wanted
    ]


def test_a_line_has_the_colour_of_what_it_does_and_is_escaped():
    lines = {
        "x = lax.pmean(jax.jit(f)(x), 'i')": "reduce",
        "f = jax.pmap(f)": "wrap",
        "x = place(x, split)": "place",
    }
    lines |= {"x = 1": ""}
    assert {line: kind_of(line) for line in lines} == lines
    assert 'class="line reduce"' in as_html(["lax.psum(x, 'i')"], plain=True)
    assert 'class="line "' in as_html(["jax.jit(f)"], plain=True)
    assert "&lt;b&gt;" in as_html(["x = '<b>'"])


def test_two_programs_in_one_file_have_their_own_steps():
    """A local name of one function is not that of another: `step` and `params` are in several."""
    old, new = (split_program(port_example.__file__, name) for name in ("old", "new"))
    step = "The step"
    assert "pmean" in "".join(old[step])
    assert "pmean" not in "".join(new[step])
    assert "def old_step(state, batch):" in old[step]
    assert "def old_step(state, batch):" not in new[step]
    assert "def new():" not in old["Around the step"]


def test_the_parts_of_each_strategy_are_found_by_names_and_words():
    found = read_sections(MAKERS)
    step, wrapper, placing, saving = (section["lines"] for section in found["code"])
    assert step["single"] == step["jit"]
    for name, words in {
        "pmap": "jax.pmap(",
        "shard_map": "jax.shard_map(",
        "jit": "jax.jit(",
    }.items():
        assert words in "\n".join(wrapper[name])
        assert ("pmean" in "\n".join(step[name])) == (name != "jit")
        assert "def place_batch(batch):" in placing[name]
        assert "def eval_step(state, batch):" in saving[name]
    assert "np.stack" in "\n".join(placing["pmap, stacked"])
    for lines in [
        *step.values(),
        *wrapper.values(),
        *placing.values(),
        *(each["lines"] for each in found["shared"]),
    ]:
        assert lines
        assert not any("#" in line or '"""' in line or "->" in line for line in lines)


def test_a_program_is_followed_into_the_files_that_it_imports(tmp_path):
    step = "import jax\nRATE = 0.1\ndef step(w, x):\n  return w - RATE * jax.grad(loss)(w, x)\n"
    (tmp_path / "steps.py").write_text(step)
    program = "from steps import step\ndef other(): pass\ndef program():\n  return {'step': step}\n"
    (tmp_path / "new.py").write_text(program)
    found = split_program(str(tmp_path / "new.py"), "program")
    assert found["The step"] == [
        "def step(w, x):",
        "    return w - RATE * jax.grad(loss)(w, x)",
    ]
    assert found["Around the step"] == [
        "def program():",
        "    return {'step': step}",
        "RATE = 0.1",
    ]


def test_devices_have_colours_and_copies_have_one():
    split = {"shape": [16, 3], "on_device": [2, 3], "split": True}
    copies = {"shape": [3, 4], "on_device": [3, 4], "split": False}
    batch, weights = holdings(
        {"devices": 8, "holds": {"state": copies, "batch": split}}
    )
    assert batch == (list(DEVICE_COLOURS), "1/8 of the batch, [2, 3]")
    assert weights == (["var(--weights)"] * 8, "the same weights, 8 times [3, 4]")
    stacked = {
        "devices": 8,
        "holds": {"state": {"shape": [8, 4], "on_device": [1, 4], "split": True}},
    }
    assert holdings(stacked)[0][1] == "the same weights, 8 times, as the rows of [8, 4]"


def test_an_update_is_drawn_with_a_lane_for_each_device():
    events = [[0, "forward", 0, 2], [0, "all-reduce", 2, 4], [1, "update", 1, 3]]
    run = {"timeline": events, "devices": 2, "collectives": [{"written": False}]}
    picture = ElementTree.fromstring(timeline(run, 4))
    assert picture.get("aria-label").startswith("One update on 2 devices, 4.0 ms")
    assert [each.get("class") for each in picture if each.get("class")] == [
        "forward",
        "all-reduce dashed",
        "update",
    ]


def test_phases_are_told_from_the_names_of_operations():
    names = {
        "jit(f)/jvp()/dot": "forward",
        "jit(f)/transpose(jvp())/dot": "backward",
        "jit(f)/add": "update",
    }
    assert {name: phase_of("fusion.1", name) for name in names} == names
    assert phase_of("all-reduce.3", "jit(f)/transpose(jvp())/dot") == "all-reduce"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "%all-reduce = f32[512,10]{1,0} all-reduce(%dot), channel_id=1",
            ("all-reduce", 1, 512 * 10 * 4),
        ),
        (
            "ROOT %r = (f32[8]{0}, /*index=1*/bf16[4,4]{1,0}, f32[]) all-reduce(%a, %b, %c)",
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
    assert collectives("HloModule m\n\n  " + line) == (
        [Collective(*expected)] if expected else []
    )


def test_the_catalogue_of_pitfalls_is_whole():
    cases = load_pitfalls()
    assert len({case["name"] for case in cases}) == 7
    for case in cases:
        assert set(case) - {"check_vma"} == {
            "name",
            "cause",
            "one_device",
            "wrong",
            "why_wrong",
            "right",
            "why_right",
        }
        assert case["wrong"] != case["right"] or case["check_vma"]

"""Lines of source for the page: what is left out, and what is marked; and calls in a process of their own."""

import ast
import os

import pytest

from pmapdp.compare.apart import apart
from pmapdp.compare.lines import marked, plain_lines
from pmapdp.compare.own_sources import needed, parts
from pmapdp.errors import UserError

SOURCE = '''
def f(x: int, *, name: "a, b" = "#1") -> dict[str, int]:
    """Says what.

    At length.
    """
    y: int = x + 1  # the next
    # a whole line
    return {name: y}


z = f(1)
'''


def test_comments_docstrings_and_types_are_left_out():
    function, rest = ast.parse(SOURCE).body
    assert plain_lines(SOURCE, [function]) == [
        'def f(x, *, name = "#1"):',
        "    y = x + 1",
        "    return {name: y}",
    ]
    assert plain_lines(SOURCE, [rest, function.body[1]]) == ["z = f(1)", "y = x + 1"]


def text(lines):
    return ["".join(f"<{piece}>" if mark else piece for piece, mark in line) for line in lines]


def test_only_what_the_other_lacks_is_marked():
    old = ["def step(state):", "    return update(state), sums"]
    assert text(marked(old, old)) == old
    assert text(marked(old, [*old[:1], "    g = pmean(g)", "    return update(state), psum(sums)"])) == [
        "def step(state):",
        "<    g = pmean(g)>",
        "    return update(state), <psum(>sums<)>",
    ]
    assert text(marked([], ["new"])) == ["<new>"]
    assert text(marked(old, [])) == []


def test_a_program_needs_what_it_names_and_each_line_has_its_role():
    tree = ast.parse("""
import jax
mesh = Mesh(devices, ("data",))
def loss(w): return w
def step(w):
    g = lax.pmean(jax.grad(loss)(w), "data")
    return w - g
def other(): return 1
def program():
    mapped = jax.pmap(step)
    return {"step": mapped, "state": jax.device_put(1, mesh)}
""")
    kept = needed(tree.body, "program")
    assert [getattr(each, "name", "mesh") for each in kept] == ["mesh", "loss", "step", "program"]
    roles = [(role, ast.unparse(part).splitlines()[0]) for each in kept for role, part in parts(each)]
    assert roles == [
        ("place the state and the batch", "mesh = Mesh(devices, ('data',))"),
        ("the rest", "def loss(w):"),
        ("the step", "def step(w):"),
        ("the all-reduce", "g = lax.pmean(jax.grad(loss)(w), 'data')"),
        ("the wrapper", "mapped = jax.pmap(step)"),
        ("place the state and the batch", "return {'step': mapped, 'state': jax.device_put(1, mesh)}"),
    ]


def test_a_process_that_dies_is_one_sentence(capfd):
    with pytest.raises(UserError, match=r"^the process that was to run _exit ended with status 3: see its message"):
        apart(os._exit, 3)


def test_a_call_apart_returns_its_result_and_has_its_environment():
    assert apart(os.getenv, "PMAPDP_TEST", PMAPDP_TEST="there") == "there"

"""The exercises of lesson 13: wrong answers get the message that helps."""

import itertools

import pytest
from checks import check

LESSON = "13_many_processes"
pytestmark = pytest.mark.slow


def with_the_one_before(facts):
    pairs = itertools.pairwise(facts)
    return [(p, name) for p, (a, b) in enumerate(pairs, start=1) for name in a if a[name] != b.get(name)]


def only_what_both_have(facts):
    return [(p, name) for p, other in enumerate(facts) for name in other if other[name] != facts[0][name]]


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("my_rows", lambda process, processes, rows: range(process, rows, processes), "hold neighbouring rows"),
        ("my_rows", lambda process, processes, rows: range(rows), "and process 0 reads"),
        ("my_rows", lambda process, processes, rows: range(rows // processes), "read by nobody, or twice"),
        ("lost", lambda signs, now, patience, me: [p for p, s in enumerate(signs) if now - s > patience], "is alive"),
        (
            "lost",
            lambda signs, now, patience, me: [p for p, s in enumerate(signs) if p != me and now - s < patience],
            "these are the living ones",
        ),
        ("differing", with_the_one_before, "compare each with process 0"),
        ("differing", only_what_both_have, "lacks 'jax' altogether"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message

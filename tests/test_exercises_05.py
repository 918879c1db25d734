"""The exercises of lesson 05: stubs are unsolved, solutions pass, wrong answers get the message that helps."""

import pytest
from checks import check, load
from jax import lax

from pmapdp import devices

LESSON = "05_talk_between_devices"
EXERCISES = ("global_max", "broadcast", "normalised")


@pytest.fixture(autouse=True)
def eight_devices():
    devices.simulate(8)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_a_stub_is_reported_as_unsolved(exercise):
    verdict = check(LESSON, exercise, lambda *arguments: None)
    assert not verdict.solved
    assert "not solved yet" in verdict.message


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_solution_passes(exercise):
    for _ in range(3):
        verdict = check(LESSON, exercise, getattr(load("solutions", LESSON), exercise))
        assert verdict.solved, verdict.message


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("global_max", lambda x: x.max(), "own largest entry"),
        ("global_max", lambda x: lax.pmax(x, "data"), "one number a device"),
        ("broadcast", lambda x: lax.psum(x, "data"), "the others must add 0"),
        ("broadcast", lambda x: x, "its own x"),
        ("normalised", lambda x: x - x.mean(), "its own mean"),
        ("normalised", lambda x: x - lax.psum(x.mean(), "data"), "divide by N"),
        ("normalised", lambda x: x - lax.pmean(x, "data"), "over the entries too"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message

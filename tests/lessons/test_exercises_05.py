"""The exercises of lesson 05: wrong answers get the message that helps."""

import pytest
from checks import check
from jax import lax

LESSON = "05_talk_between_devices"


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

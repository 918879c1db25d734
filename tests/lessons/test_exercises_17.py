"""The exercises of lesson 17: wrong answers get the message that helps."""

import jax
import pytest

from pmapdp_lessons.checks import check

LESSON = "17_many_processes"
pytestmark = pytest.mark.slow


def one_device_only(sharding, shape, mine):
    rows = sharding.devices_indices_map(shape)[mine[0]][0]
    return rows.start or 0, rows.stop


def planted(process, mean_loss, say):
    if process == 0:
        say(mean_loss())
    return 0.25


def everybody_says(process, mean_loss, say):
    value = mean_loss()
    say(value)
    return value


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("rows_of", lambda sharding, shape, mine: (0, shape[0]), "this is the whole array"),
        ("rows_of", one_device_only, "hold the rows"),
        ("rows_of", lambda sharding, shape, mine: len(mine), "return two numbers"),
        ("assemble", lambda sharding, shape, rows, mine: rows, "return a jax.Array"),
        ("assemble", lambda sharding, shape, rows, mine: jax.device_put(rows, mine[0]), "its sharding is"),
        ("assemble", lambda sharding, shape, rows, mine: jax.device_put(rows[::-1], sharding), "that belong there"),
        ("mended_log", planted, "those that do wait in vain"),
        ("mended_log", everybody_says, "process 0 alone"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message

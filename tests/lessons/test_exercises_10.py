"""The exercises of lesson 10: wrong answers get the message that helps."""

import numpy as np
import pytest
from checks import check

LESSON = "10_a_real_training_run"
pytestmark = pytest.mark.slow


def order(seed, epoch, examples):
    return np.random.default_rng([seed, epoch]).permutation(examples)


def rounded_down(seed, step, size, examples):
    epoch, done = divmod(step, examples // size)
    return order(seed, epoch, examples)[done * size : (done + 1) * size]


def same_order_each_epoch(seed, step, size, examples):
    done = step % -(-examples // size)
    return order(seed, 0, examples)[done * size : (done + 1) * size]


def written_in_place(path, text):
    path.write_text(text)
    return path


def copied_and_left(path, text):
    temporary = path.with_name("copy")
    temporary.write_text(text)
    path.unlink()
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("where", lambda step, n: (step // n + 1, step % n), "epochs count from 0"),
        ("where", lambda step, n: ((step - 1) // n, (step - 1) % n + 1), "the next one, epoch 3, begins"),
        ("next_examples", rounded_down, "round the number of updates per epoch up"),
        ("next_examples", same_order_each_epoch, "epoch 1 repeats the order"),
        ("write_whole", written_in_place, "overwritten in place"),
        ("write_whole", copied_and_left, "other files were left behind"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message

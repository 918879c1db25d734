"""The exercises of lesson 14: wrong answers get the message that helps."""

import itertools
from functools import partial

import jax
import jax.export
import numpy as np
import orbax.checkpoint as ocp
import pytest

from pmapdp_lessons.checks import check

LESSON = "14_a_real_training_run"
pytestmark = pytest.mark.slow


def epochs(seed, first, batch_size, examples, *, whole_batches=False, one_order=False, ends=False):
    """The solution, with one mistake."""
    per_epoch = examples // batch_size if whole_batches else -(-examples // batch_size)
    for number in range(first, first + (3 if ends else 100)):
        epoch, position = divmod(number, per_epoch)
        order = np.random.default_rng([seed, 0 if one_order else epoch]).permutation(examples)
        yield order[position * batch_size : (position + 1) * batch_size]


def same_again(seed, first, batch_size, examples):
    return epochs(seed, 0, batch_size, examples)


def fast_forward(seed, first, batch_size, examples):
    return itertools.islice(epochs(seed, 0, batch_size, examples), first, None)


def test_another_right_way_passes():
    verdict = check(LESSON, "mended_batches", fast_forward)
    assert verdict.solved, verdict.message


def starts_again(folder, last, create, step):
    state = create()
    for number in range(last):
        state = step(state, number)
    folder.mkdir(exist_ok=True)
    (folder / "state").write_text("saved")
    return state


def saves_nothing(folder, last, create, step):
    state = create()
    for number in range(last):
        state = step(state, number)
    return state


def without_momentum(folder, last, create, step):
    with ocp.CheckpointManager(folder) as checkpoints:
        state, newest = create(), checkpoints.latest_step()
        if newest is not None:
            kept = {"updates": state["updates"], "w": state["w"]}
            state = state | checkpoints.restore(newest, args=ocp.args.StandardRestore(kept))
        for number in range(int(state["updates"]), last):
            state = step(state, number)
            kept = {"updates": state["updates"], "w": state["w"]}
            checkpoints.save(number + 1, args=ocp.args.StandardSave(kept))
        checkpoints.wait_until_finished()
    return state


def one_shape(function):
    return jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct((5, 4), np.float32)).serialize()


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("mended_batches", same_again, "resumes at update 1"),
        ("mended_batches", partial(epochs, whole_batches=True), "do not hold each of the"),
        ("mended_batches", partial(epochs, one_order=True), "epoch 1 repeats the order"),
        ("mended_batches", partial(epochs, ends=True), "ends after 3 batches"),
        ("resumable", starts_again, "makes the updates 3 and 4"),
        ("resumable", saves_nothing, "left no checkpoint"),
        ("resumable", without_momentum, "without a stop it is"),
        ("exported", one_shape, "takes only 5 rows"),
        ("exported", lambda function: function, "return bytes"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message

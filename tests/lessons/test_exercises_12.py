"""The exercises of lesson 12: wrong answers get the message that helps."""

import jax
import jax.export
import numpy as np
import orbax.checkpoint as ocp
import pytest
from checks import check

LESSON = "12_a_real_training_run"
pytestmark = pytest.mark.slow


def order(seed, epoch, examples):
    return np.random.default_rng([seed, epoch]).permutation(examples)


def rounded_down(seed, step, size, examples):
    epoch, done = divmod(step, examples // size)
    return order(seed, epoch, examples)[done * size : (done + 1) * size]


def same_order_each_epoch(seed, step, size, examples):
    done = step % -(-examples // size)
    return order(seed, 0, examples)[done * size : (done + 1) * size]


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
        ("batch_rows", rounded_down, "round the number of updates per epoch up"),
        ("batch_rows", same_order_each_epoch, "epoch 1 repeats the order"),
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

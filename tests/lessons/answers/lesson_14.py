"""Answers to the exercises of lesson 14; see ../test_exercises.py."""

import itertools
from functools import partial

import jax
import jax.export
import numpy as np
import orbax.checkpoint as ocp


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


def by_npz(folder, last, create, step):
    """Without Orbax: one file of NumPy, under a temporary name until it is complete."""
    folder.mkdir(exist_ok=True)
    path = folder / "state.npz"
    state = create()
    if path.exists():
        with np.load(path) as saved:
            state = {name: jax.numpy.asarray(saved[name]) for name in saved.files}
    for number in range(int(state["updates"]), last):
        state = step(state, number)
        np.savez(folder / "new.npz", **state)
        (folder / "new.npz").rename(path)
    return state


def saves_at_the_end(folder, last, create, step):
    with ocp.CheckpointManager(folder) as checkpoints:
        state = create()
        if checkpoints.latest_step() is not None:
            state = checkpoints.restore(checkpoints.latest_step(), args=ocp.args.StandardRestore(state))
        for number in range(int(state["updates"]), last):
            state = step(state, number)
        checkpoints.save(last, args=ocp.args.StandardSave(state))
    return state


def one_more_update(folder, last, create, step):
    with ocp.CheckpointManager(folder) as checkpoints:
        state, first = create(), 0
        if checkpoints.latest_step() is not None:
            first = checkpoints.latest_step()
            state = checkpoints.restore(first, args=ocp.args.StandardRestore(state))
        for number in range(max(0, first - 1), last):
            state = step(state, number)
            checkpoints.save(number + 1, args=ocp.args.StandardSave(state))
    return state


def orders_drawn_again(seed, first, batch_size, examples):
    generator = np.random.default_rng(seed)
    orders = []
    for number in itertools.count(first):
        epoch, position = divmod(number, -(-examples // batch_size))
        while len(orders) <= epoch:
            orders.append(generator.permutation(examples))
        yield orders[epoch][position * batch_size : (position + 1) * batch_size]


def by_jax(seed, first, batch_size, examples):
    for number in itertools.count(first):
        epoch, position = divmod(number, -(-examples // batch_size))
        order = jax.random.permutation(jax.random.fold_in(jax.random.key(seed), epoch), examples)
        yield order[position * batch_size : (position + 1) * batch_size]


def exported_as(scope, shape="n, 4"):
    def answer(function):
        taken = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), np.float32)
        return scope(jax.export.export(jax.jit(function), platforms=["cpu", "tpu"])(taken))

    return answer


def without_parameters(function):
    return jax.export.export(jax.jit(lambda x: x.sum(1)))(
        jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 4"), np.float32)
    ).serialize()


WRONG = {
    "fixed_batches": [
        ("resumes at update 1", same_again),
        ("do not hold each of the", partial(epochs, whole_batches=True)),
        ("epoch 1 repeats the order", partial(epochs, one_order=True)),
        ("ends after 3 batches", partial(epochs, ends=True)),
    ],
    "resumable": [
        ("makes the updates 3 and 4", starts_again),
        ("left no checkpoint", saves_nothing),
        ("without a stop it is", without_momentum),
        ("update 2 was asked of a state after 3", one_more_update),
    ],
    "exported": [
        ("takes only 5 rows", one_shape),
        ("return bytes", lambda function: function),
        ("the program returns something else", without_parameters),
    ],
}

RIGHT = {
    "fixed_batches": [fast_forward, orders_drawn_again, by_jax],
    "resumable": [by_npz, saves_at_the_end],
    "exported": [
        exported_as(lambda exported: exported.serialize()),
        exported_as(lambda exported: bytes(exported.serialize())),
    ],
}

"""Checks of lesson 14's exercises."""

import functools
import itertools
import tempfile
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import require


def fixed_batches(answer):
    """An epoch visits each example once in an order of its own, and a later start continues the same batches."""
    random = np.random.default_rng()
    batch_size, seed = int(random.integers(7, 11)), int(random.integers(100))
    left = int(random.integers(1, batch_size))
    examples, per_epoch = 4 * batch_size + left, 5

    def batches(seed, first, count):
        found = [
            np.asarray(rows)
            for rows in itertools.islice(
                answer(seed, first, batch_size, examples), count
            )
        ]
        require(
            len(found) == count,
            f"it ends after {len(found)} batches: go on with the next epoch, without an end",
        )
        return found

    all_of_them = batches(seed, 0, 3 * per_epoch)
    orders = [
        np.concatenate(all_of_them[start : start + per_epoch])
        for start in range(0, 3 * per_epoch, per_epoch)
    ]
    for epoch, order in enumerate(orders):
        once = f"the {per_epoch} batches of epoch {epoch} do not hold each of the {examples} examples once"
        last = f"the last of them holds the {left} that are left"
        require(np.array_equal(np.sort(order), np.arange(examples)), f"{once}; {last}")
    repeats = "epoch 1 repeats the order of epoch 0: the epoch belongs in the seed"
    require(not np.array_equal(orders[0], orders[1]), repeats)
    for first in (1, 4, per_epoch, 7):
        for number, rows in enumerate(batches(seed, first, 3), first):
            resumed = f"a run that resumes at update {first} gets another batch for update {number}"
            require(
                np.array_equal(rows, all_of_them[number]),
                f"{resumed} than one that was not stopped",
            )


def train_or_resume(answer):
    """Two starts make every update once, from what the first one saved."""
    made = []

    def create():
        return {
            "updates": jnp.zeros((), jnp.int32),
            "w": jnp.zeros(3),
            "momentum": jnp.zeros(3),
        }

    def step(state, number):
        made.append(number)
        require(
            int(state["updates"]) == number,
            f"update {number} was asked of a state after {int(state['updates'])}",
        )
        momentum = 0.9 * state["momentum"] + number
        return {
            "updates": state["updates"] + 1,
            "w": state["w"] - momentum,
            "momentum": momentum,
        }

    wanted = functools.reduce(step, range(5), create())
    made.clear()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoints"
        answer(path, 3, create, step)
        require(
            made == [0, 1, 2],
            f"the first start makes the updates 0, 1 and 2; yours made {made}",
        )
        saved = path.exists() and any(path.iterdir())
        require(
            saved, "the first start left no checkpoint: save, and wait until it is done"
        )
        found = answer(path, 5, create, step)
        require(
            made[3:] == [3, 4],
            f"the second start makes the updates 3 and 4; yours made {made[3:]}: latest_step()",
        )
    require(
        isinstance(found, dict) and found.keys() == wanted.keys(),
        "return the whole state",
    )
    for name, value in wanted.items():
        require(
            np.allclose(found[name], value, rtol=1e-5),
            f"{name} is {found[name]}, without a stop it is {value}",
        )


def export_bytes(answer):
    """Bytes of the function, for any number of rows."""
    offset = np.random.default_rng().normal(size=4).astype(np.float32)
    content = answer(lambda x: (x + offset).sum(1))
    require(
        isinstance(content, bytes | bytearray), "return bytes: end with .serialize()"
    )
    loaded = jax.export.deserialize(bytearray(content))
    (shape,) = (each.shape for each in loaded.in_avals)
    symbolic = f"the program takes only {shape[0]} rows: make the first size symbolic, export.symbolic_shape('n')"
    require(not isinstance(shape[0], int), symbolic)
    for rows in (1, 5):
        x = np.random.default_rng().normal(size=(rows, 4)).astype(np.float32)
        require(
            np.allclose(loaded.call(x), (x + offset).sum(1), atol=1e-5),
            "the program returns something else",
        )

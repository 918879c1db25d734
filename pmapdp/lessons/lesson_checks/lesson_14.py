"""Checks of lesson 14's exercises."""

import functools
import itertools
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import require

BATCH_SIZE = 8
EPOCHS = 3
MOST_EPOCHS = 1000  # of a run, for which another seed's orders must differ


def fixed_batches(answer):
    """Accept batches that a later start continues, in each epoch's own order."""
    for examples in (35, 32):  # with a shorter last batch, and without one
        check_batches(answer, examples)


def check_batches(answer, examples):
    """Check the batches of EPOCHS epochs, and the batches after later starts."""
    per_epoch = -(-examples // BATCH_SIZE)

    def read_batches(seed, first, count):
        generator = answer(seed, first, BATCH_SIZE, examples)
        batches = [np.asarray(rows) for rows in itertools.islice(generator, count)]
        require(
            len(batches) == count,
            f"it ends after {len(batches)} batches: "
            "go on with the next epoch, without an end",
        )
        return batches

    batches = read_batches(0, 0, EPOCHS * per_epoch)
    orders = []
    for epoch in range(EPOCHS):
        of_epoch = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        order = np.concatenate(of_epoch)
        sizes = [len(rows) for rows in of_epoch]
        require(
            np.array_equal(np.sort(order), np.arange(examples)),
            f"the {per_epoch} batches of epoch {epoch}, with {sizes} rows, do not hold "
            f"each of the {examples} examples once, {BATCH_SIZE} in each batch and "
            "what is left in the last",
        )
        orders.append(order)
    require(
        not np.array_equal(orders[0], orders[1]),
        "epoch 1 repeats the order of epoch 0: the epoch belongs in the seed",
    )
    of_other_seed = np.concatenate(read_batches(1, 0, per_epoch))
    require(
        not np.array_equal(orders[0], of_other_seed),
        "the seeds 0 and 1 give the same order: use `seed`",
    )
    require(
        not np.array_equal(orders[1], of_other_seed),
        "seed 1 begins with the order of epoch 1 of seed 0, because the two numbers "
        "were added up: give default_rng both, as a list",
    )
    starts = read_batches(0, 0, (MOST_EPOCHS + 1) * per_epoch)[::per_epoch]
    for epoch, rows in enumerate(starts):
        require(
            not np.array_equal(rows, of_other_seed[:BATCH_SIZE]),
            f"seed 1 begins with the order of epoch {epoch} of seed 0: give default_rng "
            "both numbers, as a list",
        )
    for first in (1, per_epoch - 1, per_epoch, per_epoch + 2):
        for number, rows in enumerate(read_batches(0, first, 3), first):
            require(
                np.array_equal(rows, batches[number]),
                f"a run that resumes at update {first} gets another batch for update "
                f"{number} than one that was not stopped",
            )


class KilledError(BaseException):
    """Ends an answer in the middle, and isn't an Exception that it could catch."""


def train_or_resume(answer):
    """Accept starts that make every update once, also after a kill."""
    made = []
    killed = None  # the number of the update that doesn't come back

    def create():
        return {
            "updates": jnp.zeros((), jnp.int32),
            "w": jnp.zeros(3),
            "momentum": jnp.zeros(3),
        }

    def step(state, number):
        if number == killed:
            raise KilledError
        made.append(int(number))
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
    # An answer that doesn't wait may still be writing when the folder is deleted.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "checkpoints"
        answer(path, 2, create, step)
        was_complete = wait_for_files(path)
        require(
            made == [0, 1],
            f"the first start makes the updates 0 and 1; yours made {made}",
        )
        require(
            was_complete,
            "the first start returned while its checkpoint was still being written: end "
            "with close(), or with wait_until_finished()",
        )
        is_saved = path.exists() and any(path.iterdir())
        require(
            is_saved,
            "the first start left no checkpoint: save, and wait until it is done",
        )
        for killed in (3, 4):
            made.clear()
            try:
                answer(path, 5, create, step)
            except KilledError:
                wait_for_files(path)
            require(
                made == [killed - 1],
                f"a start after {killed - 1} updates that is killed in update {killed} "
                f"makes update {killed - 1}; yours made {made}: save after every "
                "update, and go on from the newest checkpoint, latest_step()",
            )
        killed = None
        made.clear()
        state = answer(path, 5, create, step)
        require(
            made == [4],
            f"the start after a kill in update 4 makes update 4; yours made {made}: "
            "save after every update, and go on from the newest checkpoint",
        )
        early = Path(folder) / "killed in update 1"
        made.clear()
        for update in (1, None):
            killed = update
            try:
                answer(early, 2, create, step)
            except KilledError:
                wait_for_files(early)
        require(
            made == [0, 1],
            f"a kill in update 1, and another start, make the updates 0 and 1; yours "
            f"made {made}: the first checkpoint may have the number 0, so ask if "
            "latest_step() `is not None`",
        )
    require(
        isinstance(state, dict) and state.keys() == wanted.keys(),
        "return the whole state",
    )
    for name, value in wanted.items():
        require(
            np.allclose(state[name], value, rtol=1e-5),
            f"{name} is {state[name]}, without a stop it is {value}",
        )


def wait_for_files(folder):
    """Wait until no thread writes into `folder` any more, for 10 s at most.

    A real kill would end the thread. Here it goes on, and what it saves is complete.

    Returns:
        True if nothing was written after the call.
    """
    names = None
    for looks in range(50):
        names_before = names
        names = sorted(str(path) for path in folder.rglob("*"))
        if names == names_before and not any("tmp" in Path(n).name for n in names):
            return looks == 1
        time.sleep(0.2)
    return False

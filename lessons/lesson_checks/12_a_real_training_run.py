"""Checks of lesson 12's exercises."""

import tempfile
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from checks import require

from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split


def batch_rows(answer):
    """The same batches as `pmapdp.data.batches.Batches`, from the numbers alone."""
    random = np.random.default_rng()
    examples, batch_size, seed = int(random.integers(30, 60)), int(random.integers(7, 11)), int(random.integers(100))
    examples += examples % batch_size == 0  # a short last batch
    split = Split(np.zeros((examples, 1)), np.zeros(examples, np.int32))
    batches = Batches(split, batch_size, shuffle_seed=seed)
    expected = [batch.indices[batch.weights > 0] for epoch in range(3) for batch in batches.epoch(epoch)]
    found = [np.asarray(answer(seed, step, batch_size, examples)) for step in range(len(expected))]
    require(
        np.array_equal(found[0], expected[0]),
        "the first batch is wrong: take the first `batch_size` entries of default_rng([seed, 0]).permutation(examples)",
    )
    require(
        len(found[batches.steps - 1]) == len(expected[batches.steps - 1]),
        f"the last batch of an epoch holds the {len(expected[batches.steps - 1])} examples that are left: round the "
        "number of updates per epoch up, and drop nothing",
    )
    require(
        not np.array_equal(np.sort(found[batches.steps]), np.sort(found[0])),
        "epoch 1 repeats the order of epoch 0: the epoch belongs in the seed, [seed, epoch]",
    )
    for step, (ours, right) in enumerate(zip(found, expected, strict=True)):
        require(np.array_equal(ours, right), f"the batch of update {step} is wrong: which epoch is it in?")


def resumable(answer):
    """Two starts make every update once, from what the first one saved."""
    made, created = [], []

    def create():
        created.append(True)
        return {"updates": jnp.zeros((), jnp.int32), "w": jnp.zeros(3), "momentum": jnp.zeros(3)}

    def step(state, number):
        made.append(number)
        require(int(state["updates"]) == number, f"update {number} was asked of a state after {int(state['updates'])}")
        momentum = 0.9 * state["momentum"] + number
        return {"updates": state["updates"] + 1, "w": state["w"] - momentum, "momentum": momentum}

    wanted = {"updates": 0, "w": np.zeros(3), "momentum": np.zeros(3)}
    for number in range(5):
        momentum = 0.9 * wanted["momentum"] + number
        wanted = {"updates": number + 1, "w": wanted["w"] - momentum, "momentum": momentum}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoints"
        answer(path, 3, create, step)
        require(made == [0, 1, 2], f"the first start makes the updates 0, 1 and 2; yours made {made}")
        require(
            path.exists() and any(path.iterdir()), "the first start left no checkpoint: save, and wait until it is done"
        )
        found = answer(path, 5, create, step)
        require(made[3:] == [3, 4], f"the second start makes the updates 3 and 4; yours made {made[3:]}: latest_step()")
    require(isinstance(found, dict) and found.keys() == wanted.keys(), "return the whole state")
    for name, value in wanted.items():
        require(np.allclose(found[name], value, rtol=1e-5), f"{name} is {found[name]}, without a stop it is {value}")


def exported(answer):
    """Bytes of the function, for any number of rows."""
    offset = np.random.default_rng().normal(size=4).astype(np.float32)
    content = answer(lambda x: (x + offset).sum(1))
    require(isinstance(content, bytes | bytearray), "return bytes: end with .serialize()")
    loaded = jax.export.deserialize(bytearray(content))
    (shape,) = (each.shape for each in loaded.in_avals)
    require(
        not isinstance(shape[0], int),
        f"the program takes only {shape[0]} rows: make the first size symbolic, export.symbolic_shape('n')",
    )
    for rows in (1, 5):
        x = np.random.default_rng().normal(size=(rows, 4)).astype(np.float32)
        require(np.allclose(loaded.call(x), (x + offset).sum(1), atol=1e-5), "the program returns something else")

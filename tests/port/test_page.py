"""docs/porting.md: its table is that of the command, and its code gives the old numbers."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import lax
from marks import quick
from pmap_programs import NAMES, run

from pmapdp.port.find import PAGE as TABLE

PAGE = Path(__file__).parents[2] / "docs" / "porting.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_table_is_that_of_the_command():
    lines = PAGE.read_text().splitlines()
    head = "| pmap | today | shard_map | jit |"
    assert lines[lines.index(head) :] == TABLE.splitlines()[TABLE.splitlines().index(head) :]


def loss(w, x, y, keep=1.0):
    return (keep * (x @ w - y) ** 2).mean()


def step(w, batch, key):
    value, gradient = lax.pmean(jax.value_and_grad(loss)(w, batch["x"], batch["y"]), "batch")
    return w - 0.1 * gradient, {"loss": value}


def plain_step(w, batch, key):
    value, gradient = jax.value_and_grad(loss)(w, batch["x"], batch["y"])
    return w - 0.1 * gradient, {"loss": value}


def step_with_rng(state, batch):
    key, own = jax.random.split(state["dropout_rng"])
    keep = jax.random.bernoulli(own, 0.5, batch["y"].shape)
    value, gradient = lax.pmean(jax.value_and_grad(loss)(state["w"], batch["x"], batch["y"], keep), "batch")
    return {"w": state["w"] - 0.1 * gradient, "dropout_rng": key}, {"loss": value}


@pytest.fixture(scope="module")
def names():
    """All names of the page, after its code has run in its order."""
    random = np.random.default_rng(0)
    batch = {"x": random.normal(size=(16, 3)).astype(np.float32), "y": random.normal(size=16).astype(np.float32)}
    w = random.normal(size=3).astype(np.float32)
    keys = jax.random.split(jax.random.PRNGKey(3), 8)
    given = {"step": step, "plain_step": plain_step, "step_with_rng": step_with_rng, "state": w, "batch": batch}
    given |= {"key": jax.random.key(0), "state_with_rng": {"w": w, "dropout_rng": keys}}
    page, after = dict(given), []
    for block in BLOCKS:
        exec(block, page)
        after.append(jax.device_get(page["state"]))
    return given, page, after


def stacked(tree):
    return jax.tree.map(lambda x: x.reshape(8, 2, *x.shape[1:]), tree)


def test_the_code_gives_the_numbers_of_the_old_program(names):
    given, _, after = names
    old = jax.pmap(step, axis_name="batch", in_axes=(None, 0, None), out_axes=None)
    wanted = given["state"]
    for block, state in zip(BLOCKS, after, strict=True):
        if "state, metrics = mapped_step(" in block or "state, metrics = jit_step(" in block:
            wanted, _ = old(wanted, stacked(given["batch"]), given["key"])
            np.testing.assert_allclose(state, wanted, rtol=1e-5, atol=1e-6)
    assert sum("state, metrics = " in block for block in BLOCKS) == 2
    assert not np.allclose(wanted, given["state"])


def test_the_state_of_both_kinds_keeps_the_masks_of_the_old_program(names):
    given, page, _ = names
    state = given["state_with_rng"]
    stack = {"w": np.stack([state["w"]] * 8), "dropout_rng": state["dropout_rng"]}
    old, _ = jax.pmap(step_with_rng, axis_name="batch")(stack, stacked(given["batch"]))
    np.testing.assert_allclose(page["state_with_rng"]["w"], old["w"][0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(page["state_with_rng"]["dropout_rng"], old["dropout_rng"])


def test_micro_batches_hold_rows_of_every_device(names):
    _, page, _ = names
    rows = np.asarray(page["micro_batches"](np.arange(16), 2))
    assert rows.shape == (2, 8)
    for each in rows:
        assert sorted(each // 2) == list(range(8))  # device d holds the rows 2 d and 2 d + 1


def test_placed_batches_come_in_order_and_split(names):
    _, page, _ = names
    batches = [np.full((16, 2), n) for n in range(5)]
    for ahead in (0, 2, 9):
        seen = list(page["placed"](batches, page["split"], ahead))
        assert [int(x[0, 0]) for x in map(np.asarray, seen)] == list(range(5))
        assert seen[0].addressable_shards[0].data.shape == (2, 2)


def test_a_padded_batch_has_weights(names):
    given, page, _ = names
    part = jax.tree.map(lambda x: x[:11], given["batch"])
    padded = page["padded"](part, 16)
    assert padded["x"].shape == (16, 3)
    assert padded["weight"].sum() == 11
    np.testing.assert_array_equal(padded["y"][:11], part["y"])


@quick(1, "name", NAMES[:5])
def test_my_pmap_gives_the_numbers_of_pmap(names, name):
    before, after = (jax.tree.leaves(run(name, pmap=pmap)) for pmap in (None, names[1]["my_pmap"]))
    for x, y in zip(before, after, strict=True):
        np.testing.assert_allclose(np.asarray(x, float), np.asarray(y, float), rtol=1e-5, atol=1e-5)

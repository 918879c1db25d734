"""docs/porting.md: its table is the command's, and its code gives the old numbers."""

import re
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest
from jax import lax
from pmap_programs import load

from pmapdp.devices import simulate
from pmapdp.port.__main__ import as_text, report_program
from pmapdp.port.find import PAGE as TABLE

simulate(8)  # before KEYS uses JAX

PAGE = (Path(__file__).parents[2] / "docs" / "porting.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_table_and_the_report_are_those_of_the_command():
    head = "| pmap | today | shard_map | jit |\n"
    assert PAGE.partition(head)[2].strip() == TABLE.partition(head)[2].strip()
    text = as_text(report_program("lessons/program/12_old_pmap.py"), everything=False)
    assert text.partition("\n\nTo verify")[0] in PAGE


def loss(w, batch, keep=1.0):
    return (keep * (batch["x"] @ w - batch["y"]) ** 2).mean()


def step(w, batch, key):
    value, gradient = lax.pmean(jax.value_and_grad(loss)(w, batch), "batch")
    return w - 0.1 * gradient, {"loss": value}


def plain_step(w, batch, key):
    value, gradient = jax.value_and_grad(loss)(w, batch)
    return w - 0.1 * gradient, {"loss": value}


def step_with_rng(state, batch):
    key, now = jax.random.split(state["dropout_rng"])
    keep = jax.random.bernoulli(now, 0.5, batch["y"].shape)
    value, gradient = lax.pmean(jax.value_and_grad(loss)(state["w"], batch, keep), "batch")
    return {"w": state["w"] - 0.1 * gradient, "dropout_rng": key}, {"loss": value}


RANDOM = np.random.default_rng(0)
BATCH = {"x": RANDOM.normal(size=(16, 3)).astype(np.float32), "y": RANDOM.normal(size=16).astype(np.float32)}
STACKED = jax.tree.map(lambda x: x.reshape(8, 2, *x.shape[1:]), BATCH)
W, KEYS = RANDOM.normal(size=3).astype(np.float32), np.asarray(jax.random.split(jax.random.PRNGKey(3), 8))


@pytest.fixture(scope="module")
def page():
    """All names of the page after its code has run in its order, and in "states" the state after each block."""
    names = {"step": step, "plain_step": plain_step, "step_with_rng": step_with_rng, "state": W, "batch": BATCH}
    names |= {"key": jax.random.key(0), "state_with_rng": {"w": W, "dropout_rng": KEYS}, "states": [W]}
    for block in BLOCKS:
        exec(block, names)
        names["states"].append(jax.device_get(names["state"]))
    return names


def test_the_code_gives_the_numbers_and_the_masks_of_the_old_program(page):
    old = jax.pmap(step, axis_name="batch", in_axes=(None, 0, None), out_axes=None)
    updates = [n for n, block in enumerate(BLOCKS, 1) if "state, metrics = " in block and "rng_step" not in block]
    assert len(updates) == 2
    for n in updates:
        wanted, _ = old(page["states"][n - 1], STACKED, page["key"])
        np.testing.assert_allclose(page["states"][n], wanted, rtol=1e-5, atol=1e-6)
    stack = {"w": np.stack([W] * 8), "dropout_rng": KEYS}
    old, _ = jax.pmap(step_with_rng, axis_name="batch")(stack, STACKED)
    np.testing.assert_allclose(page["state_with_rng"]["w"], old["w"][0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(page["state_with_rng"]["dropout_rng"], old["dropout_rng"])


def test_batches_are_split_in_order_and_padded_with_weight_0(page):
    for rows in np.asarray(page["micro_batches"](np.arange(16), 2)):
        assert sorted(rows // 2) == list(range(8))  # device d holds the rows 2 d and 2 d + 1
    batches = [np.full((16, 2), n) for n in range(5)]
    for ahead in (0, 9):
        seen = list(page["place_ahead"](batches, page["split"], ahead))
        assert [int(x[0, 0]) for x in map(np.asarray, seen)] == list(range(5))
        assert seen[0].addressable_shards[0].data.shape == (2, 2)
    padded = page["pad_batch"](jax.tree.map(lambda x: x[:11], BATCH), 16)
    assert (padded["x"].shape, padded["weight"].sum()) == ((16, 3), 11)
    np.testing.assert_array_equal(padded["y"][:11], BATCH["y"][:11])


@pytest.mark.parametrize("name", ["accumulation", pytest.param("hugging_face_tokens", marks=pytest.mark.slow)])
def test_my_pmap_gives_the_numbers_of_pmap(page, name):
    results = []
    for pmap in (jax.pmap, page["my_pmap"]):
        with mock.patch.object(jax, "pmap", pmap):
            results.append(jax.tree.leaves(load(name).main()))
    for x, y in zip(*results, strict=True):
        np.testing.assert_allclose(np.asarray(x, float), np.asarray(y, float), rtol=1e-5, atol=1e-5)

"""docs/porting.md and lesson 12 say the same, and its snippets do what the page says."""

import re
from functools import partial
from pathlib import Path

import build
import jax
import numpy as np
import pytest
from flax import jax_utils
from flax.training import common_utils
from jax import P, lax

PAGE = Path(build.FOLDER.parent / "docs" / "porting.md")
LESSON = build.FOLDER / "12_port_a_pmap_program.py"


def rows(text: str) -> list[str]:
    """The rows of the table of constructs."""
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    start = lines.index("| pmap | shard_map | jit |")
    return lines[start : next(n for n in range(start, len(lines)) if not lines[n].startswith("|"))]


def test_the_table_is_that_of_the_lesson():
    assert len(rows(PAGE.read_text())) > 15
    assert rows(PAGE.read_text()) == rows(LESSON.read_text())


def test_the_snippets_run_and_give_the_old_result():
    def loss(w, batch):
        return ((batch["x"] @ w - batch["y"]) ** 2).mean()

    def step(w, batch, key):
        value, gradient = lax.pmean(jax.value_and_grad(loss)(w, batch), "batch")
        return w - 0.1 * gradient, value

    def plain_step(w, batch, key):
        value, gradient = jax.value_and_grad(loss)(w, batch)
        return w - 0.1 * gradient, value

    random = np.random.default_rng(0)
    w = random.normal(size=3).astype(np.float32)
    batch = {"x": random.normal(size=(16, 3)).astype(np.float32), "y": random.normal(size=16).astype(np.float32)}
    to_shard_map, to_jit, check = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    page = {"step": step, "plain_step": plain_step, "state": w, "batch": batch, "key": jax.random.key(0)}
    stacked = jax.tree.map(lambda x: x.reshape(8, 2, *x.shape[1:]), batch)
    old = jax.pmap(step, axis_name="batch", in_axes=(None, 0, None), out_axes=None)
    wanted = w
    for snippet in (to_shard_map, to_jit):
        exec(snippet, page)
        wanted, value = old(wanted, stacked, page["key"])
        np.testing.assert_allclose(page["state"], wanted, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(page["metrics"], value, rtol=1e-5)
    exec(check, page)


def test_the_names_are_those_of_this_jax():
    for gone in ("tree_map", "device_put_replicated", "device_put_sharded"):
        with pytest.raises(AttributeError):
            getattr(jax, gone)
    with pytest.raises(AttributeError):
        _ = lax.pvary
    assert callable(lax.pcast)
    assert callable(lax.axis_size)


def test_pmap_refuses_another_device_and_a_pmap_inside_a_pmap():
    chosen = jax.devices()
    half, ones = jax.pmap(lambda x: x, devices=chosen[:4]), np.ones((4, 3))
    for elsewhere in (chosen[7], chosen[0]):
        with pytest.raises(ValueError, match="does not match"):
            half(jax.device_put(ones, elsewhere))
    mesh = jax.sharding.Mesh(np.array(chosen[:4]), ("batch",))
    np.testing.assert_array_equal(half(jax.device_put(ones, jax.sharding.NamedSharding(mesh, P("batch")))), ones)
    nested = jax.pmap(lambda x: jax.pmap(lambda y: lax.psum(y, "b"), axis_name="b")(x), axis_name="a")
    with pytest.raises(ValueError, match=r"context mesh .* should match"):
        nested(np.ones((2, 4)))


def test_the_first_shard_of_a_stacked_array_keeps_the_device_axis():
    stacked = jax_utils.replicate(np.ones((3, 2)))
    assert stacked.addressable_shards[0].data.shape == (1, 3, 2)
    np.testing.assert_array_equal(stacked.addressable_shards[0].data[0], stacked[0])


def test_axis_groups_stay_or_are_a_mesh_of_two_axes():
    def sums(x):
        return lax.psum(x, "batch", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]])

    x = np.arange(8.0, dtype=np.float32)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("group", "batch"))
    options = {"mesh": mesh, "in_specs": P(("group", "batch")), "out_specs": P(("group", "batch")), "check_vma": False}
    ported = jax.shard_map(lambda x: lax.psum(x, "batch"), **options)(x)
    wanted = jax.pmap(sums, axis_name="batch")(x)
    np.testing.assert_array_equal(ported, wanted)
    np.testing.assert_array_equal(mapped(sums, P("batch"))(x), wanted)


SPLIT = P("batch")


def mapped(step, *in_specs, out_specs=SPLIT):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    return jax.shard_map(step, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def test_gather_with_tiled_gives_the_batch():
    x = np.arange(16.0, dtype=np.float32)
    gather = mapped(lambda x: lax.all_gather(x, "batch", tiled=True), P("batch"), out_specs=P())
    np.testing.assert_array_equal(gather(x), x)


def test_shard_map_keeps_the_axis_that_pmap_takes_away():
    seen = []
    x = np.ones((8, 2, 3), np.float32)
    jax.pmap(lambda x: seen.append(x.shape) or x)(x)
    mapped(lambda x: seen.append(x.shape) or x, P("batch"))(x)
    assert seen == [(2, 3), (1, 2, 3)]
    with pytest.raises(ValueError, match="rank 0"):
        mapped(lambda x: x.sum(), P("batch"))(x)
    np.testing.assert_array_equal(mapped(lambda x: x.sum()[None], P("batch"))(x), np.full(8, 6))


def test_axis_size_is_psum_of_one():
    ones = mapped(lambda x: x * lax.psum(1, "batch") / lax.axis_size("batch"), P("batch"))(np.ones(8, np.float32))
    np.testing.assert_array_equal(ones, np.ones(8))


def test_a_static_argument_belongs_to_a_partial_inside_shard_map():
    def step(x, flag):
        return 2 * x if flag else x

    x = np.ones(8, np.float32)
    wanted = jax.pmap(step, static_broadcasted_argnums=1)(x, True)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(mapped(step, P("batch"), P()), static_argnums=1)(x, True)
    np.testing.assert_array_equal(jax.jit(mapped(partial(step, flag=True), P("batch")))(x), wanted)


def test_split_keys_give_the_masks_of_shard_prng_key():
    key = jax.random.PRNGKey(0)
    old = jax.pmap(lambda key: jax.random.bernoulli(key, shape=(5,)))(common_utils.shard_prng_key(key))
    new = mapped(lambda key: jax.random.bernoulli(key[0], shape=(5,))[None], P("batch"))(jax.random.split(key, 8))
    np.testing.assert_array_equal(new, old)

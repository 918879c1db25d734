"""What the rows of docs/porting.md say, run: today's pmap, and that shard_map and jit give the same numbers."""

import collections
import importlib
import warnings
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import jax_utils, nnx
from flax.training import checkpoints, common_utils
from flax.training.dynamic_scale import DynamicScale
from jax import P, lax
from jax.sharding import Mesh, NamedSharding
from pmap_programs import stand_ins

from pmapdp.compare.collectives import collectives
from pmapdp.port.find import TABLE

N, SPLIT = 8, P("batch")
COVERED = set()


def rows(*names):
    """Says which rows a test runs."""
    assert set(names) <= set(TABLE)
    COVERED.update(names)
    return lambda test: test


def mesh():
    return Mesh(np.array(jax.devices()), ("batch",))


def split():
    return NamedSharding(mesh(), SPLIT)


def replicated():
    return NamedSharding(mesh(), P())


def shard_map(step, *in_specs, out_specs=SPLIT, check_vma=False):
    return jax.jit(jax.shard_map(step, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=check_vma))


def stacked(step):
    """The step of one device under shard_map, over arrays [N, ...] as under pmap."""
    return shard_map(lambda *x: jax.tree.map(lambda y: y[None], step(*(each[0] for each in x))), SPLIT)


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def same(*results, rtol=1e-5):
    for each in results[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6), results[0], each)


RING = [(n, (n + 1) % N) for n in range(N)]
SAME_UNDER_SHARD_MAP = {  # the step of one device; under jit, of the global [N, ...]
    "pmean": (lambda x: lax.pmean(x, "batch"), lambda x: jnp.broadcast_to(x.mean(0), x.shape)),
    "psum": (lambda x: lax.psum(x, "batch"), lambda x: jnp.broadcast_to(x.sum(0), x.shape)),
    "pmax": (lambda x: lax.pmax(x, "batch"), lambda x: jnp.broadcast_to(x.max(0), x.shape)),
    "axis-index": (lambda x: x * lax.axis_index("batch"), lambda x: x * jnp.arange(N)[:, None]),
    "all-gather": (lambda x: lax.all_gather(x, "batch"), lambda x: jnp.broadcast_to(x, (N, *x.shape))),
    "ppermute": (lambda x: lax.ppermute(x, "batch", RING), lambda x: jnp.roll(x, 1, axis=0)),
    "psum-scatter": (lambda x: lax.psum_scatter(x, "batch", tiled=True), lambda x: x.sum(0)[:, None]),
    "all-to-all": (lambda x: lax.all_to_all(x, "batch", 0, 0), lambda x: jnp.swapaxes(x, 0, 1)),
}


@rows(*SAME_UNDER_SHARD_MAP)
@pytest.mark.parametrize("name", SAME_UNDER_SHARD_MAP)
def test_collectives_stay_under_shard_map_and_are_not_needed_under_jit(name):
    step, whole = SAME_UNDER_SHARD_MAP[name]
    x = numbers(N, N)
    same(jax.pmap(step, axis_name="batch")(x), stacked(step)(x), jax.jit(whole, in_shardings=split())(x))


@rows("pmap", "in-axes", "axes-none", "shard", "replicate", "unreplicate")
def test_a_step_and_its_arrays():
    def step(w, x):
        return w - lax.pmean((x @ w)[:, None] * x, "batch").mean(0)

    w, x = numbers(3), numbers(16, 3)
    plain = lambda w, x: w - ((x @ w)[:, None] * x).mean(0)  # noqa: E731
    old = jax.pmap(step, axis_name="batch")(jax_utils.replicate(w), common_utils.shard(x))
    as_none = jax.pmap(step, axis_name="batch", in_axes=(None, 0), out_axes=None)(w, x.reshape(N, -1, 3))
    new = shard_map(step, P(), SPLIT, out_specs=P())(jax.device_put(w, replicated()), jax.device_put(x, split()))
    jit = jax.jit(plain, in_shardings=(replicated(), split()), out_shardings=replicated())(w, x)
    same(jax_utils.unreplicate(old), as_none, jax.device_get(new), jit)
    same(jax_utils.replicate(w), jnp.stack([w] * N), jnp.broadcast_to(w, (N, 3)))


@rows("in-axes")
def test_shard_map_keeps_the_axis_that_pmap_takes_away():
    seen = []
    x = np.ones((8, 2, 3), np.float32)
    jax.pmap(lambda x: seen.append(x.shape) or x)(x)
    shard_map(lambda x: seen.append(x.shape) or x, SPLIT)(x)
    assert seen == [(2, 3), (1, 2, 3)]
    with pytest.raises(ValueError, match="rank 0"):
        shard_map(lambda x: x.sum(), SPLIT)(x)
    np.testing.assert_array_equal(shard_map(lambda x: x.sum()[None], SPLIT)(x), np.full(8, 6))


@rows("axes-one", "axes-negative")
def test_the_second_axis():
    x = numbers(4, N)
    old = jax.pmap(lambda x: 2 * x, in_axes=1, out_axes=1)(x)
    same(old, shard_map(lambda x: 2 * x, P(None, "batch"), out_specs=P(None, "batch"))(x))
    same(old, jax.jit(lambda x: 2 * x, in_shardings=NamedSharding(mesh(), P(None, "batch")))(x))
    with pytest.raises(ValueError, match="partitioned 8 times"):
        jax.pmap(lambda x: 2 * x, in_axes=-1)(x)


@rows("filter-pmap", "fake-pmap")
def test_a_module_of_equinox_and_a_map_on_one_device():
    with stand_ins():
        import equinox as eqx

        class Scale(eqx.Module):
            w: jax.Array
            name: str = "a leaf that is no array"

    model, x = Scale(jnp.asarray(3.0)), numbers(N, 4)
    old = eqx.filter_pmap(lambda m, x: lax.pmean(m.w * x, "batch"), axis_name="batch")
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf] * N) if eqx.is_array(leaf) else leaf, model)
    params, static = eqx.partition(model, eqx.is_array)
    new = shard_map(lambda p, x: lax.pmean(eqx.combine(p, static).w * x, "batch"), P(), SPLIT)
    fake = jax.vmap(lambda x: lax.pmean(3 * x, "batch"), axis_name="batch", axis_size=N)
    same(old(stack, x), new(params, x), fake(x))


@rows("nnx-pmap")
def test_a_module_of_nnx_is_a_pytree():
    model, x = nnx.Linear(4, 2, rngs=nnx.Rngs(0)), jnp.asarray(numbers(N, 3, 4))
    old = nnx.pmap(lambda m, x: m(x), in_axes=(None, 0))(model, x)
    same(old, shard_map(lambda m, x: m(x), P(), SPLIT)(model, x), jax.jit(lambda m, x: m(x))(model, x))


@rows("static")
def test_a_static_argument_belongs_to_a_partial_inside_shard_map():
    def step(x, flag):
        return 2 * x if flag else x

    x = np.ones(8, np.float32)
    wanted = jax.pmap(step, static_broadcasted_argnums=1)(x, True)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(jax.shard_map(step, mesh=mesh(), in_specs=(SPLIT, P()), out_specs=SPLIT), static_argnums=1)(x, True)
    same(wanted, shard_map(partial(step, flag=True), SPLIT)(x), jax.jit(step, static_argnums=1)(x, True))


@rows("donate")
def test_a_donated_state_is_deleted():
    for step in (jax.pmap(lambda x: x + 1, donate_argnums=0), jax.jit(lambda x: x + 1, donate_argnums=0)):
        state = jax.device_put(numbers(N, 4), split())
        step(state)
        assert state.is_deleted()


@rows("devices", "committed", "axis-size", "global-shapes")
def test_pmap_refuses_another_device():
    chosen, ones = jax.devices(), np.ones((4, 3))
    half = jax.pmap(lambda x: x, devices=chosen[:4])
    for elsewhere in (chosen[7], chosen[0]):
        with pytest.raises(ValueError, match="does not match"):
            half(jax.device_put(ones, elsewhere))
    on_half = NamedSharding(Mesh(np.array(chosen[:4]), ("batch",)), SPLIT)
    same(half(jax.device_put(ones, on_half)), half(ones), ones)
    with pytest.raises(ValueError, match="incompatible devices"):
        half(ones) + jax.device_put(ones, chosen[5])
    same(jax.pmap(lambda x: x, axis_size=4, backend="cpu", devices=None)(ones), ones)
    with pytest.raises(TypeError, match="global_arg_shapes"):
        jax.pmap(lambda x: x, global_arg_shapes=None)


@rows("no-axis", "init")
def test_seeds_and_first_parameters():
    train = lambda key, rate: rate * jax.random.normal(key, (3,))  # noqa: E731
    keys, rates = jax.random.split(jax.random.key(0), 16), numbers(16)
    vmapped = jax.vmap(train)
    old = jax.pmap(vmapped)(keys.reshape(N, 2), rates.reshape(N, 2)).reshape(16, 3)
    both = {"in_shardings": split(), "out_shardings": split()}
    same(old, shard_map(vmapped, SPLIT, SPLIT)(keys, rates), jax.jit(vmapped, **both)(keys, rates))
    init = lambda key: jax.random.normal(key, (3,))  # noqa: E731
    stack = jax.pmap(init)(jnp.stack([keys[0]] * N))
    same(jax_utils.unreplicate(stack), jax.jit(init, out_shardings=replicated())(keys[0]))


@rows("scan")
def test_a_scan_over_batches():
    def step(w, x):
        w = w - 0.1 * lax.pmean((x @ w)[:, None] * x, "batch").mean(0)
        return w, lax.pmean((x @ w).mean(), "batch")

    def plain(w, x):
        w = w - 0.1 * ((x @ w)[:, None] * x).mean(0)
        return w, (x @ w).mean()

    w, x = numbers(3), numbers(5, 16, 3)
    by_device = np.swapaxes(x.reshape(5, N, 2, 3), 0, 1)
    old = jax.pmap(partial(lax.scan, step), axis_name="batch")(jax_utils.replicate(w), by_device)
    new = shard_map(partial(lax.scan, step), P(), P(None, "batch"), out_specs=P())(w, x)
    jit = jax.jit(partial(lax.scan, plain), in_shardings=(replicated(), NamedSharding(mesh(), P(None, "batch"))))
    same(jax.tree.map(lambda x: x[0], jax.device_get(old)), new, jit(w, x))


@rows("average")
def test_statistics_averaged_at_the_end_or_in_each_step():
    average = jax.pmap(lambda x: lax.pmean(x, "x"), "x")
    batch_means = numbers(2, N, 3)
    at_the_end = average(0.9 * (0.1 * batch_means[0]) + 0.1 * batch_means[1])
    in_each_step = 0.9 * (0.1 * batch_means[0].mean(0)) + 0.1 * batch_means[1].mean(0)
    same(at_the_end[3], in_each_step)


@rows("nested")
def test_a_pmap_inside_a_pmap():
    nested = jax.pmap(lambda x: jax.pmap(lambda y: lax.psum(y, "b"), axis_name="b")(x), axis_name="a")
    with pytest.raises(ValueError, match=r"context mesh .* should match"):
        nested(np.ones((2, 4)))
    with pytest.raises(ValueError, match=r"context mesh .* should match"):
        jax.pmap(jax.shard_map(lambda x: x, mesh=mesh(), in_specs=SPLIT, out_specs=SPLIT))(np.ones((N, 8)))
    grid, x = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b")), numbers(2, 4)
    new = jax.shard_map(lambda x: lax.psum(x, "b"), mesh=grid, in_specs=P("a", "b"), out_specs=P("a"))
    same(new(x), x.sum(1, keepdims=True), jax.jit(lambda x: x.sum(1, keepdims=True))(x))


@rows("put-replicated", "put-sharded", "tree-map", "key-array", "device-array", "host-callback", "xla-computation")
@rows("xmap", "index-update", "pvary", "old-optimizer", "axis-frame", "gone", "moved-scale")
def test_names_that_are_gone_and_what_takes_their_place():
    state, parts = numbers(3), list(numbers(N, 2, 3))
    same(jax_utils.replicate(state), np.stack([state] * N))
    assert jax.device_put(state, replicated()).sharding.is_fully_replicated
    assert jax.device_put(np.concatenate(parts), split()).addressable_shards[1].data.shape == (2, 3)
    same(jax.tree.map(lambda x: 2 * x, {"a": state}), {"a": 2 * state})
    assert isinstance(jax.random.key(0), jax.Array)
    assert "add" in jax.jit(lambda x: x + 1).lower(state).compile().as_text()
    assert jnp.zeros(3).at[1].set(2.0)[1] == 2
    same(shard_map(lambda x: x * lax.axis_size("batch"), SPLIT)(np.ones(N)), np.full(N, mesh().size))

    def averaged(w, x):
        gradient = jax.grad(lambda w: (w * x).sum())(lax.pcast(w, "batch", to="varying"))
        return lax.pmean(gradient, "batch")

    x = numbers(N)
    same(shard_map(averaged, P(), SPLIT, out_specs=P(), check_vma=True)(np.float32(1), x), x.mean())


@rows("old-config", "old-flag", "check-rep", "old-shard-map", "device-buffers")
def test_arguments_and_attributes_that_are_gone():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("jax.config")
    with pytest.raises(AttributeError, match="jax_pmap_shmap_merge"):
        jax.config.update("jax_pmap_shmap_merge", False)
    with pytest.raises(TypeError, match="check_rep"):
        jax.shard_map(lambda x: x, mesh=mesh(), in_specs=SPLIT, out_specs=SPLIT, check_rep=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert callable(importlib.import_module("jax.experimental.shard_map").shard_map)
    x = jax.pmap(lambda x: x)(np.ones((N, 2)))
    for name in ("device_buffers", "device_buffer"):
        with pytest.raises(AttributeError):
            getattr(x, name)
    assert [shard.data.shape for shard in x.addressable_shards] == [(1, 2)] * N


@rows("first-copy")
def test_the_first_row_of_a_stacked_array_is_sent_to_every_device():
    stack = jax_utils.replicate(np.ones((3, 2), np.float32))
    (found,) = collectives(jax.jit(lambda x: x[0]).lower(stack).compile().as_text())
    assert found.kind in ("all-reduce", "all-gather")
    assert stack.addressable_shards[0].data.shape == (1, 3, 2)
    np.testing.assert_array_equal(stack.addressable_shards[0].data[0], stack[0])


@rows("pad-unpad", "prefetch", "get-metrics", "stack-forest")
def test_batches_and_metrics():
    x = numbers(13, 3)
    old = jax_utils.pad_shard_unpad(jax.pmap(lambda w, x: x @ w), static_argnums=(0,))
    padded = np.pad(x, [(0, -len(x) % N), (0, 0)])
    by_hand = shard_map(lambda x: x.sum(1), SPLIT)(padded)[: len(x)]
    same(by_hand, x.sum(1), old(jax_utils.replicate(np.ones(3, np.float32)), x))
    batches = [numbers(16, 3) + n for n in range(4)]
    queue, seen = collections.deque(), []
    for batch in [*batches, None]:
        if batch is not None:
            queue.append(jax.device_put(batch, split()))
        if len(queue) == 2 or batch is None:
            seen.append(queue.popleft())
    seen += queue
    old_way = jax_utils.prefetch_to_device(map(common_utils.shard, batches), 2)
    same([x.reshape(16, 3) for x in old_way], seen)
    logged = [{"loss": np.float32(n)} for n in range(3)]
    same(common_utils.get_metrics(list(map(jax_utils.replicate, logged))), common_utils.stack_forest(logged))


@rows("mixed-state", "prng-key")
def test_a_state_that_mixes_replicated_and_per_device_leaves():
    def step(state, x):
        key, own = jax.random.split(state["rng"])
        mask = jax.random.bernoulli(own, 0.5, x.shape)
        return {"w": state["w"] - lax.pmean((x * mask).mean(), "batch"), "rng": key}

    def ported(state, x):
        new = step(state | {"rng": state["rng"][0]}, x)
        return new | {"rng": new["rng"][None]}

    key, x = jax.random.PRNGKey(0), numbers(16, 3)
    state = {"w": np.float32(1), "rng": jax.random.split(key, N)}
    old_state = {"w": jax_utils.replicate(state["w"]), "rng": common_utils.shard_prng_key(key)}
    specs = jax.tree.map(lambda _: P(), state) | {"rng": SPLIT}
    old = jax.pmap(step, axis_name="batch")(old_state, common_utils.shard(x))
    new = shard_map(ported, specs, SPLIT, out_specs=specs)(state, x)
    same(old["w"][3], new["w"])
    np.testing.assert_array_equal(old["rng"], new["rng"])


@rows("psum-gradients", "check-vma")
def test_a_sum_of_gradients_is_n_times_the_mean_and_so_is_a_mean_under_the_default_check():
    def gradient(reduce, w, x):
        return reduce(jax.grad(lambda w: (w * x).mean())(w), "batch")

    w, x = np.float32(1), numbers(16)
    mean, total = (partial(gradient, each) for each in (lax.pmean, lax.psum))
    for step, check_vma, factor in ((mean, False, 1), (total, False, N), (mean, True, N)):
        same(shard_map(step, P(), SPLIT, out_specs=P(), check_vma=check_vma)(w, x), factor * x.mean())
    same(jax.pmap(total, axis_name="batch", in_axes=(None, 0), out_axes=None)(w, x.reshape(N, 2)), N * x.mean())


@rows("psum-one")
def test_axis_size_is_psum_of_one():
    x = numbers(N)
    same(jax.pmap(lambda x: x / lax.psum(1, "batch"), "batch")(x), x / mesh().size)
    same(shard_map(lambda x: x / lax.axis_size("batch"), SPLIT)(x), x / N)


@rows("fold-in", "host-key")
def test_keys_by_device():
    masks = lambda key: jax.random.bernoulli(jax.random.fold_in(key, lax.axis_index("batch")), shape=(5,))  # noqa: E731
    key = jax.random.fold_in(jax.random.PRNGKey(0), jax.process_index())
    old = jax.pmap(masks, axis_name="batch")(jax_utils.replicate(key))
    np.testing.assert_array_equal(old, shard_map(lambda key: masks(key)[None], P())(key))
    assert len({bytes(mask) for mask in np.asarray(old)}) > 1


@rows("all-gather")
def test_gather_with_tiled_gives_the_batch_through_a_replicated_spec():
    x = np.arange(16.0, dtype=np.float32)
    gather = lambda x: lax.all_gather(x, "batch", tiled=True)  # noqa: E731
    same(shard_map(gather, SPLIT, out_specs=P())(x), x)
    with pytest.raises(ValueError, match="require replication"):
        shard_map(gather, SPLIT, out_specs=P(), check_vma=True)(x)


@rows("pbroadcast")
def test_a_broadcast_from_the_first_device():
    x = numbers(N, 3)
    with pytest.raises((NotImplementedError, NameError)):
        jax.pmap(lambda x: lax.pbroadcast(x, "batch", 0), axis_name="batch")(x)
    same(stacked(lambda x: lax.all_gather(x, "batch")[0])(x), np.broadcast_to(x[0], x.shape))


@rows("axis-groups")
def test_axis_groups_stay_or_are_a_mesh_of_two_axes():
    sums = partial(lax.psum, axis_name="batch", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]])
    x, grid = np.arange(8.0, dtype=np.float32), Mesh(np.array(jax.devices()).reshape(2, 4), ("group", "batch"))
    spec = P(("group", "batch"))
    ported = jax.shard_map(lambda x: lax.psum(x, "batch"), mesh=grid, in_specs=spec, out_specs=spec, check_vma=False)
    same(jax.pmap(sums, axis_name="batch")(x), ported(x), shard_map(sums, SPLIT)(x))
    with pytest.raises(NotImplementedError):
        shard_map(sums, SPLIT, check_vma=True)(x)


@rows("batch-norm")
@pytest.mark.parametrize("check_vma", [False, True])
def test_batch_norm_over_the_axis(check_vma):
    x = numbers(16, 3)
    norm = nn.BatchNorm(use_running_average=False, axis_name="batch")
    variables = nn.BatchNorm(use_running_average=False).init(jax.random.key(0), x)
    apply = lambda norm, x: norm.apply(variables, x, mutable=["batch_stats"])[0]  # noqa: E731
    old = jax.pmap(partial(apply, norm), axis_name="batch")(x.reshape(N, 2, 3)).reshape(16, 3)
    new = shard_map(partial(apply, norm), SPLIT, check_vma=check_vma)(x)
    same(old, new, jax.jit(partial(apply, nn.BatchNorm(use_running_average=False)))(x), rtol=1e-3)


@rows("dynamic-scale", "scale-without-axis")
def test_a_dynamic_loss_scale():
    def step(axis, scale, w, x):
        scale, finite, _, grad = scale.value_and_grad(lambda w: ((x @ w) ** 2).mean(), axis_name=axis)(w)
        return scale, finite, grad

    w, x = numbers(3), numbers(16, 3)
    x[3] = np.inf  # on one device
    scale = DynamicScale()
    old = jax.pmap(partial(step, "batch"), "batch", in_axes=(None, None, 0), out_axes=None)(
        scale, w, x.reshape(N, 2, 3)
    )
    new = shard_map(partial(step, "batch"), P(), P(), SPLIT, out_specs=P())(scale, w, x)
    jit = jax.jit(partial(step, None), in_shardings=(replicated(), replicated(), split()))(scale, w, x)
    same(*[jax.tree.leaves(each)[:3] for each in (old, new, jit)])
    assert not jit[1]
    finite = jax.pmap(partial(step, None), in_axes=(None, None, 0))(scale, w, x.reshape(N, 2, 3))[1]
    assert finite.sum() == N - 1  # without the axis, each device for itself


@rows("callback")
def test_a_callback_for_each_device_or_one():
    seen = []

    def step(x):
        jax.debug.callback(seen.append, x)
        return x

    for mapped, wanted in ((jax.pmap(step), N), (shard_map(step, SPLIT), N), (jax.jit(step, in_shardings=split()), 1)):
        seen.clear()
        jax.block_until_ready(mapped(numbers(N)))
        jax.effects_barrier()
        assert len(seen) == wanted


@rows("local-loss", "local-work")
def test_a_mean_of_means_and_clipping_before_the_all_reduce_stay_or_change():
    x, mask = numbers(N, 4), np.arange(4) < np.arange(1, N + 1)[:, None] % 4 + 1
    mean = lambda x, m: lax.pmean((x * m).sum() / m.sum(), "batch")  # noqa: E731
    old = jax.pmap(mean, axis_name="batch")(x, mask)
    exact = lambda x, m: lax.psum((x * m).sum(), "batch") / lax.psum(m.sum(), "batch")  # noqa: E731
    new, right = (shard_map(each, SPLIT, SPLIT, out_specs=P())(x, mask) for each in (mean, exact))
    jit = jax.jit(lambda x, m: (x * m).sum() / m.sum(), in_shardings=split())(x, mask)
    same(old[0], new)
    same(right, jit)
    assert abs(new - jit) > 1e-3
    clip = lambda x: x / jnp.maximum(1, jnp.linalg.norm(x))  # noqa: E731
    old = jax.pmap(lambda x: lax.pmean(clip(x), "batch"), axis_name="batch")(x)
    same(old, stacked(lambda x: lax.pmean(clip(x), "batch"))(x))
    assert np.abs(old[0] - clip(x.mean(0))).max() > 1e-3


@rows("accumulate")
def test_micro_batches_are_split_over_all_devices():
    x, K = numbers(16, 3), 2
    right, wrong = x.reshape(-1, K, 3).swapaxes(0, 1), x.reshape(K, -1, 3)

    def rows_of(reshape):
        """How many rows of micro-batch 0 each device holds, of the rows that it was given."""
        index = reshape(np.arange(16))[0]
        return [int(np.isin(index, np.arange(2 * d, 2 * d + 2)).sum()) for d in range(N)]

    assert rows_of(lambda x: x.reshape(-1, K).swapaxes(0, 1)) == [1] * N
    assert rows_of(lambda x: x.reshape(K, -1)) == [2] * 4 + [0] * 4
    same(right.mean(1).mean(0), wrong.mean(1).mean(0), x.mean(0))  # the same gradient, if it is a mean


@rows("metric")
def test_a_metric_that_is_not_averaged_is_silently_that_of_device_0():
    x = np.arange(8.0, dtype=np.float32)
    assert float(shard_map(lambda x: x.sum(), SPLIT, out_specs=P())(x)) == 0
    same(shard_map(lambda x: x.sum()[None], SPLIT)(x), jax.pmap(lambda x: x.sum())(x), x)
    with pytest.raises(ValueError, match="require replication"):
        shard_map(lambda x: x.sum(), SPLIT, out_specs=P(), check_vma=True)(x)


@rows("hosts", "gather-hosts")
def test_rows_of_a_process():
    from jax.experimental import multihost_utils

    rows_here = numbers(16 // jax.process_count(), 3)
    x = jax.make_array_from_process_local_data(split(), rows_here)
    assert x.shape == (16, 3)
    same(multihost_utils.process_allgather(x, tiled=True), rows_here)


@rows("checkpoint")
def test_old_checkpoints_load(tmp_path):
    state = {"w": numbers(3)}
    checkpoints.save_checkpoint(tmp_path, jax_utils.unreplicate(jax_utils.replicate(state)), 1)
    same(checkpoints.restore_checkpoint(tmp_path, {"w": np.zeros(3, np.float32)}), state)
    same(checkpoints.restore_checkpoint(tmp_path, None)["w"], state["w"])


@rows("make-mesh")
def test_make_mesh_is_explicit_and_its_step_may_fail_under_set_mesh():
    explicit = jax.make_mesh((N,), ("batch",))
    assert "Explicit" in str(explicit.axis_types)
    assert "Auto" in str(mesh().axis_types)


def test_every_row_has_a_test():
    assert set(TABLE) - COVERED == set()

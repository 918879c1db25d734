"""Each construct of a pmap program: what JAX does with it today, and what stands there under shard_map and under jit.

The page docs/porting.md shows these rows, the command looks for them, and tests run what they say. A row holds its
name, how it is found, the construct, today, shard_map and jit. It is found by dotted names, and by calls. `f(x)` is a
call of `f` that is given the value x. `f(N)` is given the number of devices, or a shape that begins with it, and
`f([]*N)` a list times it. `f(name=)` is given that argument, in whose text a regular expression may have to be found.
"""

from typing import NamedTuple

PAGE = "docs/porting.md"
ROWS = r"""
pmap             | jax.pmap | `jax.pmap(step, axis_name="batch")` | fine: a wrapper around `jit` and `shard_map` | `jax.jit(jax.shard_map(step, mesh=mesh, in_specs=..., out_specs=..., check_vma=False))` | `jax.jit(step, in_shardings=..., out_shardings=...)`
filter-pmap      | equinox.filter_pmap | `eqx.filter_pmap(step)` | fine: it calls `jax.pmap` | `params, static = eqx.partition(model, eqx.is_array)`; `shard_map` over `params`, `eqx.combine` in the step | `eqx.filter_jit(step)` on arrays that `device_put` has placed
nnx-pmap         | flax.nnx.pmap | `nnx.pmap(step)` | fine | `jax.shard_map` on the module, which is a pytree; `nnx.shard_map` where the step changes it in place | `jax.jit` or `nnx.jit` with shardings
fake-pmap        | chex.fake_pmap chex.fake_pmap_and_jit | `chex.fake_pmap()` in a test | fine, if chex is installed | `jax.vmap(step, axis_name="batch", axis_size=N)`, or simulated devices | the step itself, on one device
in-axes          | pmap(in_axes=^[^N]*$) pmap(out_axes=^[^N]*$) | `in_axes=0`, `out_axes=0` | fine | `P("batch")` on `[B, ...]`; the axis stays: of `[N, b, ...]` the step would see `[1, b, ...]`, and a scalar result needs one, `x[None]` | `NamedSharding(mesh, P("batch"))`
axes-none        | pmap(in_axes=None) pmap(out_axes=None) | `in_axes=None`, `out_axes=None` | fine, and the fastest: nothing is stacked | `P()` | `NamedSharding(mesh, P())`
axes-one         | pmap(in_axes=(?<!-)\b[1-9]) pmap(out_axes=(?<!-)\b[1-9]) | `in_axes=1` | fine | `P(None, "batch")` | `NamedSharding(mesh, P(None, "batch"))`
axes-negative    | pmap(in_axes=-\d) pmap(out_axes=-\d) | `in_axes=-1` | fails: JAX splits the first axis | `P(None, "batch")`, counted from the front | `NamedSharding(mesh, P(None, "batch"))`
static           | pmap(static_broadcasted_argnums=) | `static_broadcasted_argnums` | fine | `functools.partial(step, flag=True)` inside `shard_map`, which makes arrays of all arguments | `static_argnums`
donate           | pmap(donate_argnums=) pmap(donate=) | `donate_argnums` | fine | `donate_argnums` of `jit`; `device_put` of an array that is on device 0 may share its memory, and then deletes the original | as under shard_map
devices          | pmap(devices=) | `devices=chosen` | fine; arrays that are committed to another device fail | `Mesh(np.array(chosen), ("batch",))` | as under shard_map
axis-size        | pmap(axis_size=) pmap(backend=) | `axis_size`, `backend` | fine | not needed: the mesh says it | not needed
global-shapes    | pmap(global_arg_shapes=) | `global_arg_shapes` | fails: no such argument | not needed | not needed
no-axis          | | `jax.pmap(f)` without a collective, for seeds or ensembles | fine | `jax.shard_map` with `P("batch")` everywhere, of the function with `jax.vmap` inside | `jax.jit(jax.vmap(f), in_shardings=split, out_shardings=split)`
init             | | `jax.pmap(init)(keys)` | fine | `jax.jit(init, out_shardings=replicated)(key)` | as under shard_map
scan             | | `jax.pmap(functools.partial(lax.scan, step), "batch")`, batches `[N, steps, b, ...]` | fine | `P(None, "batch")` on `[steps, B, ...]`, the scan inside | `NamedSharding(mesh, P(None, "batch"))`, the scan inside
average          | | `jax.pmap(lambda x: lax.pmean(x, "x"), "x")` for the statistics | fine | not needed once the step averages them | not needed
nested           | | a pmap inside a pmap | fails: the context mesh should match | one `shard_map` over a mesh of two axes | a mesh of two axes
committed        | | an array on one device, `jax.device_put(x, jax.devices()[0])`, given to pmap or beside its results | fails: incompatible devices | `jax.device_put(x, split)`, or leave it on the host | as under shard_map
replicate        | flax.jax_utils.replicate numpy.stack([]*N) numpy.array([]*N) numpy.asarray([]*N) numpy.broadcast_to(N) numpy.repeat(N) numpy.tile(N) lax.broadcast(N) | `jax_utils.replicate(state)`, or `jnp.stack([x] * N)`, `jnp.broadcast_to(x, (N, ...))` | fine | `jax.device_put(state, NamedSharding(mesh, P()))` | as under shard_map
put-replicated   | jax.device_put_replicated jax.api.device_put_replicated | `jax.device_put_replicated(state, devices)` | gone: `AttributeError` | `jax.device_put(state, NamedSharding(mesh, P()))`; for the old `[N, ...]`: `jax_utils.replicate(state)` | as under shard_map
put-sharded      | jax.device_put_sharded jax.api.device_put_sharded | `jax.device_put_sharded(list, devices)` | gone: `AttributeError` | `jax.device_put(np.concatenate(list), NamedSharding(mesh, P("batch")))`; for the old `[N, ...]`: `np.stack(list)` | as under shard_map
unreplicate      | flax.jax_utils.unreplicate | `jax_utils.unreplicate(state)` | fine: it reads the first device's copy | not needed: `jax.device_get(state)` | not needed
first-copy       | | `x[0]` or `jax.tree.map(lambda x: x[0], tree)` of a result `[N, ...]` | slow: device 0's row is sent to every device | not needed; while it is stacked, `x.addressable_shards[0].data[0]` | not needed
shard            | flax.training.common_utils.shard reshape(N) | `common_utils.shard(batch)`, or `x.reshape(N, -1, ...)` | fine | `jax.device_put(batch, NamedSharding(mesh, P("batch")))` on `[B, ...]` | as under shard_map, or host arrays with `in_shardings`
pad-unpad        | flax.jax_utils.pad_shard_unpad | `jax_utils.pad_shard_unpad(p_eval_step)` | fine | pad the batch on the host to a multiple of N, and cut the results: `out[:len(batch)]` | as under shard_map
prefetch         | flax.jax_utils.prefetch_to_device | `jax_utils.prefetch_to_device(batches, 2)` | fine | a `collections.deque` of batches that `jax.device_put` has placed: it returns at once | as under shard_map
get-metrics      | flax.training.common_utils.get_metrics | `common_utils.get_metrics(list)` | fine | `common_utils.stack_forest(jax.device_get(list))`: there is no copy to drop | as under shard_map
stack-forest     | flax.training.common_utils.stack_forest | `common_utils.stack_forest(list)` | fine | stays | stays
device-buffers   | ?.device_buffers ?.device_buffer | `x.device_buffers`, `x.device_buffer` | gone: `AttributeError` | `[shard.data for shard in x.addressable_shards]` | as under shard_map
mixed-state      | | a state that mixes replicated leaves and leaves of each device (statistics, `dropout_rng`, environments) | fine | specs as a pytree made from the state: `jax.tree.map(lambda _: P(), state).replace(dropout_rng=P("batch"))`, and `x[0]`, `x[None]` for those leaves in the step | global: one key, statistics of the global batch, environments `[N * n, ...]`
pmean            | jax.lax.pmean | `lax.pmean(x, "batch")` | fine | stays; of gradients only with `check_vma=False`: otherwise they are N times too large | not needed: a mean over the batch is global
psum             | jax.lax.psum | `lax.psum(x, "batch")` | fine | stays | not needed: a sum over the batch is global
psum-one         | jax.lax.psum(1) | `lax.psum(1, "batch")` | fine | `lax.axis_size("batch")` | `mesh.size`, which is N; not needed where it turns a sum into a mean
pmax             | jax.lax.pmax jax.lax.pmin | `lax.pmax(x, "batch")`, `lax.pmin` | fine | stays | not needed: `x.max()` over the batch is global
axis-index       | jax.lax.axis_index | `lax.axis_index("batch")` | fine | stays | not needed
fold-in          | jax.random.fold_in(jax.lax.axis_index()) | `jax.random.fold_in(key, lax.axis_index("batch"))` | fine | stays | not needed: one key over the batch
all-gather       | jax.lax.all_gather | `lax.all_gather(x, "batch")` | fine | stays; `tiled=True` gives `[B, ...]`; out through `P()` only with `check_vma=False` | not needed, or `lax.with_sharding_constraint(x, replicated)`
ppermute         | jax.lax.ppermute jax.lax.pshuffle jax.lax.pswapaxes | `lax.ppermute(x, "batch", pairs)` | fine | stays | `jnp.roll` over the axis, or stay with shard_map
psum-scatter     | jax.lax.psum_scatter | `lax.psum_scatter(x, "batch", tiled=True)` | fine | stays; out through `P("batch")` | `lax.with_sharding_constraint(sum, split)`
all-to-all       | jax.lax.all_to_all | `lax.all_to_all(x, "batch", 0, 0)` | fine | stays; `tiled=True` where the axis keeps its place | `jnp.swapaxes` and a sharding constraint
pbroadcast       | jax.lax.pbroadcast | `lax.pbroadcast(x, "batch", 0)` | fails on CPUs | `lax.all_gather(x, "batch")[0]` | not needed
axis-groups      | (axis_index_groups=) | `axis_index_groups=groups` | fine | stays with `check_vma=False` (otherwise `NotImplementedError`, without a message); or a mesh of two axes | a mesh of two axes
axis-frame       | jax.core.axis_frame jax.core.get_axis_env jax.core.unsafe_get_axis_names jax.core.thread_local_state | `jax.core.axis_frame("batch").size` | gone: `AttributeError` | `lax.axis_size("batch")` | `mesh.size`
batch-norm       | BatchNorm(axis_name=) (cross_replica_axis=) | `BatchNorm(axis_name="batch")`; Haiku: `cross_replica_axis="batch"` | fine | stays | without the name: moments are global
dynamic-scale    | value_and_grad(axis_name=) | `dynamic_scale.value_and_grad(loss, axis_name="batch")` | fine | stays | `axis_name=None`: whether all is finite is global
callback         | jax.debug.callback jax.debug.print jax.pure_callback jax.experimental.io_callback | `jax.debug.callback(f, x)` in the step | fine: once for each device | stays | once for the global `x`
prng-key         | flax.training.common_utils.shard_prng_key jax.random.split(N) | `common_utils.shard_prng_key(key)`, or `jax.random.split(key, N)` | fine | `P("batch")` for `jax.random.split(key, N)`, and `key[0]` in the step; or `P()` and `fold_in` | not needed: one key over the batch
local-loss       | | a loss `sum / count` of one device's examples, then `pmean` | fine, but a mean of means where the counts differ | stays; exact with `psum` of both | the sum over the global batch divided by its count: another number
local-work       | | clipping or mixup before the all-reduce, batch norm without a name | fine | stays | over the global batch: another number
accumulate       | | micro-batches `[K, b/K, ...]` of one device, in a loop | fine | stays | `x.reshape(-1, K, ...).swapaxes(0, 1)`: after `reshape(K, -1)` some devices hold all rows of a micro-batch, and others none
metric           | | a metric without `pmean`, `[N]` | fine | `P("batch")` and `x[None]`; through `P()` it is silently device 0's | not needed: it is global
hosts            | | several hosts: `[local N, ...]` arrays, `batch // jax.process_count()` | fine, but slow: each call makes global arrays of them and local ones again | `jax.make_array_from_process_local_data(sharding, rows)`; every process takes its own rows as before | as under shard_map
host-key         | jax.random.fold_in(jax.process_index()) jax.random.fold_in(jax.host_id()) | `jax.random.fold_in(key, jax.process_index())` | fine | stays, if the key is given through `P("batch")`; a replicated key must be equal in all processes | not needed: all processes pass one key
gather-hosts     | jax.experimental.multihost_utils.process_allgather | `multihost_utils.process_allgather(x)` | fine | `tiled=True` for a global array; not needed for a replicated one | as under shard_map
checkpoint       | flax.training.checkpoints.save_checkpoint flax.training.checkpoints.restore_checkpoint flax.training.checkpoints.save_checkpoint_multiprocess | `checkpoints.save_checkpoint(dir, jax_utils.unreplicate(state), step)` | fine; of several processes only one may call it | the state as it is, which Orbax saves from all processes; an old one loads with `restore_checkpoint(dir, state)` | as under shard_map
old-optimizer    | flax.optim | `flax.optim`, and checkpoints of its `Optimizer` | gone | Optax; of an old checkpoint take `restore_checkpoint(dir, None)["target"]` | as under shard_map
tree-map         | jax.tree_map jax.tree_multimap jax.tree_util.tree_multimap jax.tree_leaves jax.tree_flatten jax.tree_unflatten jax.tree_structure jax.tree_transpose jax.tree_reduce jax.tree_all | `jax.tree_map` | gone: `AttributeError` | `jax.tree.map`, `jax.tree.leaves`, `jax.tree.flatten` ... | as under shard_map
key-array        | jax.random.KeyArray jax.random.PRNGKeyArray jax.KeyArray | `jax.random.KeyArray` | gone: `AttributeError` | `jax.Array` | as under shard_map
device-array     | jax.numpy.DeviceArray jax.interpreters.xla.DeviceArray jax.interpreters.pxla.ShardedDeviceArray jax.xla.DeviceArray | `jnp.DeviceArray`, `pxla.ShardedDeviceArray` | gone: `AttributeError` | `jax.Array` | as under shard_map
host-callback    | jax.experimental.host_callback | `jax.experimental.host_callback` | gone | `jax.pure_callback`, `jax.experimental.io_callback`, `jax.debug.callback` | as under shard_map
xla-computation  | jax.xla_computation | `jax.xla_computation(f)(x)` | gone: `AttributeError` | `jax.jit(f).lower(x).compile()` | as under shard_map
xmap             | jax.experimental.maps jax.soft_pmap | `jax.experimental.maps.xmap`, `maps.mesh` | gone | `jax.shard_map`; `jax.sharding.Mesh` | as under shard_map
index-update     | jax.ops.index_update jax.ops.index_add jax.ops.index jax.ops.index_mul | `jax.ops.index_update(x, i, y)` | gone: `AttributeError` | `x.at[i].set(y)` | as under shard_map
old-config       | jax.config.config | `from jax.config import config` | gone: `ModuleNotFoundError` | `jax.config.update(...)` | as under shard_map
old-flag         | | `jax.config.update("jax_pmap_shmap_merge", ...)` | gone: the flag does not exist | not needed | not needed
check-rep        | jax.shard_map(check_rep=) | `shard_map(..., check_rep=False)` | fails in `jax.shard_map` | `check_vma=False` | not needed
pvary            | jax.lax.pvary | `lax.pvary(x, "batch")` | gone: `AttributeError` | `lax.pcast(x, "batch", to="varying")` | not needed
old-shard-map    | jax.experimental.shard_map | `jax.experimental.shard_map` | fine; deprecated | `jax.shard_map` | not needed
make-mesh        | | `jax.make_mesh((8,), ("batch",))` | fine; its axes are Explicit | `Mesh(np.array(jax.devices()), ("batch",))`, because under `jax.set_mesh` the step of an Explicit mesh may fail | as under shard_map
gone             | | any other name that this JAX, Flax or Optax does not have | gone | see its changelog | as under shard_map
"""  # noqa: E501


class Row(NamedTuple):
    """A construct; texts are in Markdown."""

    id: str
    names: tuple[str, ...]
    construct: str
    today: str
    shard_map: str
    jit: str

    @property
    def status(self) -> str:
        """What JAX does with it today: gone, fails, slow or fine."""
        return self.today.partition(":")[0].split()[0].strip(";,")

    @property
    def link(self) -> str:
        """Where the page has this row."""
        return f"{PAGE}#{self.id}"


def read(line: str) -> Row:
    """A row of ROWS."""
    name, names, *texts = (part.strip() for part in line.split(" | "))
    return Row(name.rstrip(" |"), tuple(names.split()), *texts)


TABLE = {row.id: row for row in map(read, ROWS.strip().replace("| |", "|  |").splitlines())}
BY_NAME = {name: row.id for row in TABLE.values() for name in row.names if "(" not in name}
CALLS = [  # of the rows that are found by calls: the row, how the name of the function ends, and what it is given
    (row.id, f".{name}".rstrip("."), argument[:-1])
    for row in TABLE.values()
    for name, call, argument in (each.partition("(") for each in row.names)
    if call
]


def markdown() -> str:
    """The table of the page."""
    lines = (f'| <a id="{r.id}"></a>{r.construct} | {r.today} | {r.shard_map} | {r.jit} |' for r in TABLE.values())
    return "\n".join(["| pmap | today | shard_map | jit |", "| --- | --- | --- | --- |", *lines])

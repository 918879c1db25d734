# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11. Port a pmap program
#
# After this lesson you can move a training program from `pmap` to `shard_map`, and from there to `jit`, in small steps. Each
# step is checked against the version before it.
#
# About 40 minutes · before: [10 Three ways side by side](10_three_ways_side_by_side.ipynb) · next:
# [14 A real training run](14_a_real_training_run.ipynb). The same text in short is the page
# [Porting](../docs/porting.md).
#
# pmap still runs, but it is in maintenance. Since jax 0.8 it is a wrapper around `jit` and `shard_map`, and JAX's
# developers [recommend `shard_map` for new code](https://docs.jax.dev/en/latest/migrate_pmap.html). Porting a program is less
# work than it looks.

# %%
import inspect
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import jax
import numpy as np
from flax import jax_utils, serialization
from flax.training import common_utils
from jax import P, lax
from jax.sharding import Mesh, NamedSharding
from programs import pmap_program as old

from pmapdp import devices
from pmapdp.compare.collectives import collectives
from pmapdp.registry import load_data
from pmapdp.verify import verify
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_12

chosen, N = devices.choose(8), 8
drawing.setup()
data, folder = load_data("digits"), Path(tempfile.mkdtemp())
train_set, test_set = (
    (split.inputs.reshape(-1, 784).astype(np.float32) / 255, split.labels) for split in (data.train, data.test)
)

# %% [markdown]
# ## The old program
#
# [programs/pmap_program.py](programs/pmap_program.py) is written as such programs were from 2020 to 2023: Flax Linen (the module
# system before NNX), a state that `jax_utils.replicate` stacks to `[N, ...]`, batches from `common_utils.shard`, dropout keys
# from `fold_in(axis_index)`, batch statistics that are averaged once an epoch, and an evaluation that drops the last batch.
# We print its step and its loop, in which `p_train_step` is the `pmap` of the step over the axis "batch". Then we run it.

# %%
print(inspect.getsource(old.train_step), inspect.getsource(old.train), sep="\n")
old_state = old.train(train_set, test_set)
kernel = old_state.params["Dense_0"]["kernel"]
print("the first kernel:", kernel.shape, kernel.sharding.spec, f"{kernel.nbytes / 1e3:.0f} kB in all")
old.save(old_state, folder / "old.msgpack")
assert kernel.shape == (N, 784, 64)
assert (old.BATCH, len(test_set[1])) == (256, 256 + 104)

# %% [markdown]
# It works. But its accuracy is that of 256 test images; the other 104 are dropped. The picture shows where the port leads: the
# device axis goes away, first from the arrays, and then from the step.

# %%
lesson_12.before_and_after()

# %% [markdown]
# ## What fails or is slow today
#
# JAX's migration guide names four cases. The first two are errors. **One:** a batch that was placed elsewhere than pmap splits
# it, here on the first of pmap's four devices, used to be moved, and is an error today. **Two:** a pmap inside a pmap fails; a
# `shard_map` over two mesh axes replaces it.

# %%
half = jax.pmap(lambda x: 2 * x, devices=chosen[:4])
nested = jax.pmap(lambda x: jax.pmap(lambda y: lax.psum(y, ("a", "b")), axis_name="b")(x), axis_name="a")
for function, x in (
    (half, jax.device_put(np.ones((4, 3), np.float32), chosen[0])),
    (nested, np.ones((2, 4, 3), np.float32)),
):
    try:
        function(x)
        raise AssertionError("JAX did not refuse")
    except ValueError as error:
        print("ValueError:", " ".join(str(error).split())[:96], "...")
grid = Mesh(np.array(chosen).reshape(2, 4), ("a", "b"))
replacement = jax.shard_map(lambda x: lax.psum(x, ("a", "b")), mesh=grid, in_specs=P("a", "b"), out_specs=P())
print("shard_map over two axes:", replacement(np.ones((2, 4, 3), np.float32)))

# %% [markdown]
# Both raise a `ValueError`. Against the first, leave the batch on the host, or split it over pmap's devices with
# `jax.device_put`. The last line is the replacement of the nested pmap: it adds up eight ones.
#
# **Three:** `x[0]` of a stacked array is slow. The array is split over the devices, and its first row is on one of them, but
# the result is placed on all of them. So this row is sent to every device. The compiled program shows this, and the clock too.

# %%
stacked = jax_utils.replicate(np.ones((1024, 1024), np.float32))
found = collectives(jax.jit(lambda x: x[0]).lower(stacked).compile().as_text())
print("x[0] of 8 copies of 4 MB:", *found)
assert [(each.kind, each.bytes) for each in found] == [("all-reduce", 2**22)]


def least_ms(function):
    times = []
    for _ in range(6):
        clock = time.perf_counter()
        jax.block_until_ready(function())
        times.append(1000 * (time.perf_counter() - clock))
    return min(times[1:])


print(f"x[0]                         {least_ms(lambda: stacked[0]):7.3f} ms")
print(f"flax.jax_utils.unreplicate   {least_ms(lambda: jax_utils.unreplicate(stacked)):7.3f} ms")
print(f"addressable_shards[0].data[0] {least_ms(lambda: stacked.addressable_shards[0].data[0]):6.3f} ms")
assert stacked.addressable_shards[0].data.shape == (1, 1024, 1024)  # so [0] takes the device axis away

# %% [markdown]
# The first shard is an array of one device, so its `[0]` needs no collective. Today's `unreplicate` does the same; that of older
# versions of Flax computes `x[0]`. After the port there is nothing to unreplicate.
#
# **Four:** with several processes, pmap takes and returns arrays of the process' own devices. In every call it makes global
# arrays of them, and makes the results local again. [programs/host_local.py](programs/host_local.py) measures what that costs
# for 50 small arrays, without any collective. We start it twice, as two processes.

# %%
with socket.create_server(("127.0.0.1", 0)) as server:  # a free port
    coordinator = f"127.0.0.1:{server.getsockname()[1]}"
command = [sys.executable, "programs/host_local.py", coordinator]
pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
processes = [subprocess.Popen([*command, str(number)], **pipes) for number in (0, 1)]
lines, _ = [each.communicate(timeout=120)[1].splitlines() for each in processes]
print(*(line for line in lines if "us a call" in line), sep="\n")
assert sum("us a call" in line for line in lines) == 2

# %% [markdown]
# The shapes show the difference. pmap's `[2, 4]` holds the rows of this process, and the conversions take time in every call.
# shard_map's `[4, 4]` is the global array, and stays one.
#
# ## First to shard_map
#
# The step is still the program of one device. Only the arrays are no longer stacked: state and key are replicated, and the batch
# keeps its shape `[256, ...]`. One thing must be *added*. A replicated state has a single value of the batch statistics, so the
# step has to average them over the devices. The old program did so once an epoch. Both give the same result, because the running
# statistics are a weighted sum of those of the batches, and training does not read them. Check it in your head with
# `running = 0.5 * running + 0.5 * batch`: two devices start at 0 and see the batch means 1 and 3, and then 5 and 7. Averaged at
# the end or in each step, the result is 3.5.
#
# Here is the port: the step with its wrapper, and the loop. The marked lines have changed, and the average once an epoch is gone.

# %%
at_the_end = [0.5 * (0.5 * 0 + 0.5 * a) + 0.5 * b for a, b in ((1, 5), (3, 7))]
in_each_step = 0.5 * (0.5 * 0 + 0.5 * (1 + 3) / 2) + 0.5 * (5 + 7) / 2
assert sum(at_the_end) / 2 == in_each_step == 3.5

mesh = Mesh(np.array(chosen), ("batch",))
replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))


def mapped_step(state, batch, key):
    key = jax.random.fold_in(key, lax.axis_index("batch"))
    metrics, grads, batch_stats = old.loss_and_update(state, batch, key)
    metrics, grads, batch_stats = lax.pmean((metrics, grads, batch_stats), "batch")  # <- changed: batch_stats
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), metrics


specs = {"mesh": mesh, "in_specs": (P(), P("batch"), P()), "out_specs": P()}
shard_map_step = jax.jit(jax.shard_map(mapped_step, **specs, check_vma=False), donate_argnums=0)  # <- was pmap


def train(step, state):
    state, key = jax.device_put(state, replicated), jax.random.PRNGKey(1)  # <- was jax_utils.replicate
    for _ in range(old.EPOCHS):
        for batch in old.batches(*train_set):
            key, step_key = jax.random.split(key)
            state, metrics = step(state, jax.device_put(batch, split), step_key)  # <- was common_utils.shard
    return state, metrics


updates = old.EPOCHS * (len(train_set[1]) // old.BATCH)
new_state, _ = train(shard_map_step, old.create_state(jax.random.PRNGKey(0), updates))
wanted = jax.device_get(jax_utils.unreplicate(old_state))
for a, b in zip(*map(jax.tree.leaves, (jax.device_get(new_state), wanted)), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
print("the same state after", updates, "updates:", len(jax.tree.leaves(new_state)), "arrays")

# %% [markdown]
# The new program gives the result of the old one, with the same dropout masks (float32; tolerance 1e-5, because averaging at
# each step rounds differently). `check_vma=False` matters: with the default the gradients would be 8 times too large (lesson 10).
#
# **A failure on purpose.** Replace the wrapper, but do not average the statistics. `out_specs=P()` promises that the
# devices agree, and with `check_vma=False` JAX does not check it. **Predict:** do they agree?

# %%
def forgotten(state, batch, key):
    key = jax.random.fold_in(key, lax.axis_index("batch"))
    metrics, grads, batch_stats = old.loss_and_update(state, batch, key)
    metrics, grads = lax.pmean((metrics, grads), axis_name="batch")
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), metrics


careless_step = jax.jit(jax.shard_map(forgotten, **specs, check_vma=False))
careless, _ = train(careless_step, old.create_state(jax.random.PRNGKey(0), updates))
means = [np.asarray(shard.data)[0] for shard in careless.batch_stats["BatchNorm_0"]["mean"].addressable_shards]
print("running mean of the first unit, by device:", np.round(means, 3))
assert len(set(map(float, means))) > 1

# %% [markdown]
# They do not. JAX still calls this array replicated, so a checkpoint would keep the copy of the first device.
#
# ## Ask what is wrong: pmapdp.verify
#
# The ported program equals the old one. But was the old one right? [verify](../docs/verify.md) compares a step with the
# plain step for one device, which you write without any collective: here `loss_and_update` and `apply_gradients`. We
# switch dropout off for this, because the masks of our step depend on the device. **Predict:** which part of the step
# cannot equal one device?

# %%
def plain_step(state, batch, key):
    metrics, grads, batch_stats = old.loss_and_update(state, batch, key)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), metrics


small = {"image": train_set[0][:64], "label": train_set[1][:64]}
case = {"reference": plain_step, "batch": small, "key": lambda update: jax.random.fold_in(jax.random.key(1), update)}
without_dropout = old.create_state(jax.random.key(0), updates, dropout=0.0)
report = verify(step=shard_map_step, state=without_dropout, layout="sharded", **case)
print(*(textwrap.fill(line, 110) for line in str(report).splitlines() if line.startswith("FAILED")), sep="\n\n")
assert not report.ok

# %% [markdown]
# It is batch norm. Each device normalizes with the mean and the variance of its own examples, so the result depends on the
# number of devices. With 32 examples on each device this may be what you want. If not, give `nn.BatchNorm` the name of the
# axis. It then averages its moments over the devices, which gives those of the global batch where all devices hold equally many
# examples. One device has no axis, so the reference uses the network without the name.

# %%
def without_axis(state, batch, key):
    new, metrics = plain_step(state.replace(apply_fn=old.Net(dropout=0.0).apply), batch, key)
    return new.replace(apply_fn=state.apply_fn), metrics


synchronized = old.create_state(jax.random.key(0), updates, dropout=0.0, axis_name="batch")  # <- changed
report = verify(step=shard_map_step, state=synchronized, layout="sharded", **(case | {"reference": without_axis}))
print(str(report).splitlines()[-1])
report.require()

# %% [markdown]
# The step now has the result of one device: every check passes.
#
# ## Then to jit
#
# Under jit the step *is* the plain step: no `pmean`, no `fold_in`, no axis name. Only the shardings are new.

# %%
jit_step = jax.jit(
    plain_step, in_shardings=(replicated, split, replicated), out_shardings=replicated, donate_argnums=0
)  # <- changed: the plain step and shardings
state = old.create_state(jax.random.key(0), updates)  # with dropout
report = verify(step=jit_step, state=state, layout="sharded", **case)
print(report)
report.require()

# %% [markdown]
# All checks pass, this time with dropout: batch norm uses the global batch, and one key over the global batch gives the masks
# of one device. So two things differ from the old program, and should: the moments of batch norm, and the dropout masks. Compare
# final accuracies with the old program, not single numbers. (A check that was not made says what it needs.)
#
# ## Evaluation of all examples, and old checkpoints
#
# The old evaluation drops what is left after the last full batch. Pad the last batch instead: fill it with repeated examples,
# and give those the weight 0. Then divide the number of right answers by the sum of the weights. We evaluate three models in
# this way: that of an old checkpoint, that of a checkpoint that was saved with its device axis, and the one that jit has trained.

# %%
def evaluation(state, batch):
    logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, batch["image"], train=False)
    right = (logits.argmax(-1) == batch["label"]) * batch["weight"]
    return right.sum(), batch["weight"].sum()


eval_step = jax.jit(evaluation, in_shardings=(replicated, split), out_shardings=replicated)


def evaluate(state, images, labels):
    right = count = 0
    for first in range(0, len(labels), old.BATCH):
        rows = np.arange(first, first + old.BATCH)
        batch = {"image": images[rows % len(labels)], "label": labels[rows % len(labels)]}
        sums = eval_step(state, batch | {"weight": (rows < len(labels)).astype(np.float32)})
        right, count = right + float(sums[0]), count + int(sums[1])
    return right / count, count


new_state, metrics = train(jit_step, old.create_state(jax.random.PRNGKey(0), updates))
template = old.create_state(jax.random.PRNGKey(0), updates)
restored = serialization.from_bytes(template, (folder / "old.msgpack").read_bytes())  # saved by unreplicate(state)
stacked_bytes = serialization.to_bytes(jax.device_get(old_state))  # saved without unreplicate
tree = serialization.msgpack_restore(stacked_bytes)
mended = serialization.from_state_dict(template, jax.tree.map(lambda x: x[0], tree))  # NumPy on the host: no collective
for a, b in zip(*map(jax.tree.leaves, (restored, mended)), strict=True):
    np.testing.assert_array_equal(a, b)
for name, state in (("old checkpoint", restored), ("stacked one", mended), ("trained by jit", new_state)):
    accuracy, count = evaluate(jax.device_put(state, replicated), *test_set)
    print(f"{name:15s} accuracy {accuracy:.4f} of {count} images")
    assert count == len(test_set[1])

# %% [markdown]
# Each is evaluated on all 360 images.
#
# ## Is it faster?
#
# We time one update of each program, and count its all-reduces. **Predict:** which of the three has more of them than the
# others? Eight simulated devices share the cores of this machine, so the times say little about real devices. With several
# processes and many arrays, case four counts as well. (The steps donate their state, so each gets a copy of its own from the
# host. A `device_put` of an array that is on device 0 already may share its memory, and donating one would then delete the
# other.)

# %%
batch, key, host = next(old.batches(*train_set)), jax.random.PRNGKey(2), jax.device_get(template)
ways = {
    "pmap": (old.p_train_step, jax_utils.replicate(host), common_utils.shard(batch), jax_utils.replicate(key)),
    "shard_map": (shard_map_step, jax.device_put(host, replicated), jax.device_put(batch, split), key),
    "jit": (jit_step, jax.device_put(host, replicated), jax.device_put(batch, split), key),
}
print(devices.describe(chosen))
for name, (step, state, placed, key) in ways.items():
    held, seconds = [state], []
    for _ in range(12):
        clock = time.perf_counter()
        held[0], _ = jax.block_until_ready(step(held[0], placed, key))
        seconds.append(time.perf_counter() - clock)
    (found,) = collectives(step.lower(held[0], placed, key).compile().as_text())
    print(f"{name:9s} median {1000 * np.median(seconds[2:]):5.1f} ms, {found.count} {found.kind}")
    assert (found.kind, found.count) == ("all-reduce", 3 if name == "jit" else 1)

# %% [markdown]
# jit has two more all-reduces, because its batch norm uses the global batch: one in the forward pass, for the mean and the
# mean of squares, and one in the backward pass. Otherwise the three do the same work.
#
# ## The table
#
# | pmap | shard_map | jit |
# | --- | --- | --- |
# | `jax.pmap(step, axis_name="batch")` | `jax.jit(jax.shard_map(step, mesh=mesh, in_specs=..., out_specs=..., check_vma=False))` | `jax.jit(step, in_shardings=..., out_shardings=...)` |
# | `in_axes=0`, `out_axes=0` | `P("batch")` on `[B, ...]`; the axis stays: of `[N, b, ...]` the step would see `[1, b, ...]`, and a scalar result needs one, `x[None]` | `NamedSharding(mesh, P("batch"))` |
# | `in_axes=None`, `out_axes=None` | `P()` | `NamedSharding(mesh, P())` |
# | `jax_utils.replicate(state)`, `[N, ...]` | `jax.device_put(state, NamedSharding(mesh, P()))` | the same |
# | `jax_utils.unreplicate(state)`, `state[0]` | gone: `jax.device_get(state)` | gone |
# | `common_utils.shard(batch)`, `[N, b, ...]` | `jax.device_put(batch, NamedSharding(mesh, P("batch")))`, `[B, ...]` | the same, or host arrays with `in_shardings` |
# | `device_put_replicated`, `device_put_sharded` | `jax.device_put` with a sharding | the same |
# | `lax.pmean(x, "batch")` | stays | gone: a mean over the batch is global |
# | `lax.psum(1, "batch")` | `lax.axis_size("batch")` | gone: the batch's length |
# | `lax.axis_index("batch")` | stays | gone |
# | `fold_in(key, axis_index)` | stays | gone: one key over the batch |
# | `common_utils.shard_prng_key(key)` | `P("batch")` for `jax.random.split(key, N)`, and `key[0]` in the step; or `P()` and `fold_in` | gone: one key over the batch |
# | `lax.all_gather(x, "batch")` | stays; add `tiled=True` for `[B, ...]` | gone, or `lax.with_sharding_constraint(x, replicated)` |
# | `axis_index_groups` | stays; or a mesh of two axes, and the name of one | a mesh of two axes |
# | nested pmap | a mesh of two axes | a mesh of two axes |
# | `BatchNorm(axis_name="batch")` | stays | gone: moments are global |
# | `static_broadcasted_argnums` | `functools.partial(step, flag=True)` inside `shard_map`, which makes arrays of all arguments | `static_argnums` |
# | `donate_argnums` | `donate_argnums` of `jit` | stays |
# | `devices=chosen` | `Mesh(np.array(chosen), ("batch",))` | the same |
# | `jax_utils.prefetch_to_device` | `jax.device_put` the next batch before the step: it returns at once | the same |
# | several hosts: `[local N, ...]` arrays | `jax.make_array_from_process_local_data(sharding, rows)` | the same |
#
# ## Exercises
#
# **1. `unstacked`** (3 minutes): an old checkpoint was saved with the device axis: `tree` holds NumPy arrays `[N, ...]`. Return the
# tree without that axis, placed on every device of `mesh`.
# <details><summary>Hint</summary>Index on the host, where it costs nothing; then one device_put.</details>
#
# **2. `ported`** (10 minutes): port this step to `jit` or `shard_map` over the axis "batch" of `mesh`. It uses
# `psum(1)` and a stacked state. Return a compiled `step(w, x, y) -> (w, loss)` of `w` `[D]`, x `[B, D]`, y `[B]`
# with equal results, replicated.
#
# ```
# def step(w, x, y):  # in pmap: w [D], x [b, D], y [b]
#     loss = lambda w: jnp.square(x @ w - y).sum() / (len(y) * lax.psum(1, "batch"))
#     value, gradient = jax.value_and_grad(loss)(w)
#     value, gradient = lax.psum((value, gradient), "batch")
#     return w - 0.1 * gradient, value
#
# old_step = jax.pmap(step, axis_name="batch")  # old_step(replicate(w), shard(x), shard(y))
# ```
# <details><summary>Hint</summary>Under jit the loss is the mean over the whole batch. Under shard_map mind check_vma.</details>
#
# **3. `mended_variance`** (5 minutes): find the planted mistake. `broken_variance` runs in a `shard_map` over the axis "batch",
# and `x` `[b, D]` holds this device's rows. All devices agree, but on the wrong number. Return the variance `[D]` of the *global*
# batch.
# <details><summary>Hint</summary>The rows of different devices have different means. Average the mean first.</details>


# %%
def broken_variance(x):
    return lax.pmean(x.var(0), "batch")


def unstacked(tree, mesh):
    """The tree without its device axis, replicated over the mesh."""
    ...  # your code: 2 lines


def ported(mesh):
    """A compiled step: (w, x, y) to (w, loss)."""
    ...  # your code: 6 to 10 lines


def mended_variance(x):
    """[D], the variance over the rows of all devices."""
    ...  # your code: 2 lines


for exercise in (unstacked, ported, mended_variance):
    check("12_port_a_pmap_program", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/12_port_a_pmap_program.py](solutions/12_port_a_pmap_program.py)
#
# ## Take away
#
# - Port in two steps: shard_map keeps the program and drops the device axis; jit drops the collectives as well.
# - JAX does not check that a replicated array is equal on all devices; your step must make it so. Look first at batch
#   statistics and dropout masks, because there a port differs most often.
# - Verify against one device. Equality with the old program is not enough, because it may depend on the number of devices.
#
# Read on: [Migrating to the new jax.pmap](https://docs.jax.dev/en/latest/migrate_pmap.html),
# [shard_map](https://docs.jax.dev/en/latest/notebooks/shard_map.html), and our page on [verify](../docs/verify.md). Next:
# [14 A real training run](14_a_real_training_run.ipynb).

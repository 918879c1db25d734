# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04. Map over devices
#
# After this lesson you can run one function on eight devices at once with `jax.pmap`, say which arguments are
# split and which are copied, and read results back without moving more than you need.
#
# 25 minutes. Before: [03. Train with Flax and Optax](03_train_with_flax_and_optax.ipynb).
# Next: [05. Communicate between devices](05_communicate_between_devices.ipynb).

# %%
import inspect
import textwrap
import time

import drawing
import jax
import jax.numpy as jnp
import numpy as np
from checks import check
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices
from pmapdp.steps import pmap as pmap_steps

drawing.setup()
chosen = devices.choose(8)  # 8 simulated CPU devices; nothing of JAX may run before this line
N = len(chosen)
print(devices.describe(chosen))

# %% [markdown]
# ## One dot product for each device
#
# Start with one dot product that you can check in your head: 0 + 1 + ... + 9 = 45. Then take eight, one for
# each device: stack the pairs along a new first axis, the **device axis**, so that row `d` is for device `d`.
#
# `jax.pmap(f)` returns a function that cuts its arguments along this axis, runs `f` on all devices at the same time,
# and stacks the results. The picture shows the way of the data; each colour is a device.

# %%
assert jnp.dot(np.arange(10), np.ones(10)) == 45

xs = np.arange(N * 10, dtype=np.float32).reshape(N, 10)  # [N, 10]: row d counts from 10 d
ys = np.ones((N, 10), np.float32)  # [N, 10]

picture = drawing.canvas(18.9, 5.4)
for row, label in enumerate(["xs [8, 10]", "ys [8, 10]", "", "result [8]"]):
    picture.text(0.1, 0.6 + 1.4 * row, label, va="center")
for d in range(N):
    left = 3.3 + 1.95 * d
    drawing.box(picture, left, 0.2, f"x[{d}]", device=d, width=1.7)
    drawing.box(picture, left, 1.6, f"y[{d}]", device=d, width=1.7)
    drawing.arrow(picture, (left + 0.85, 2.45), (left + 0.85, 4.35), device=d)
    picture.text(left + 1.0, 3.3, "dot", va="center")
    drawing.box(picture, left, 4.4, f"{xs[d].sum():.0f}", device=d, width=1.7)

# %% [markdown]
# `vmap` (lesson 02) also maps over a first axis, but on one device. Only the name of the transformation changes.
#
# **Predict:** what is the shape of the result, and where does each number lie?

# %%
by_vmap = jax.vmap(jnp.dot)(xs, ys)
dots = jax.pmap(jnp.dot)(xs, ys)  # <- changed

print("vmap:", by_vmap.shape, "on", len(by_vmap.sharding.device_set), "device")
print("pmap:", dots.shape, "on", len(dots.sharding.device_set), "devices")
for shard in dots.addressable_shards:
    print(f"  device {shard.device.id} holds row {shard.index[0].start}: {shard.data}")
assert np.array_equal(dots, 45 + 100 * np.arange(N))

# %% [markdown]
# Each device holds its own row, a **shard**, of one array of shape `[8]`. Nothing was moved
# together: to you it is one array, and it lies on eight devices.
#
# Inside `f` there is no device axis: `jnp.dot` saw two arrays of shape `[10]`. The number of devices comes
# from the size of the device axis.
#
# ## Which axis is split: `in_axes` and `out_axes`
#
# `in_axes` has one entry for each argument: the axis to cut along, or `None` for "give it whole to
# every device". `out_axes` says the same of each result: the axis at which to stack.
#
# **Predict** the three shapes. The numbers are random, and NumPy proves all four results, within 1e-5 (float32 rounds).

# %%
random = np.random.default_rng(0)
xs, ys = random.normal(size=(2, N, 10)).astype(np.float32)
np.testing.assert_allclose(jax.pmap(jnp.dot)(xs, ys), np.einsum("nd,nd->n", xs, ys), atol=1e-5)

y = ys[0]  # [10], one vector for all devices
one_for_all = jax.pmap(jnp.dot, in_axes=(0, None))(xs, y)  # <- new: y goes whole to every device
columns = jax.pmap(jnp.dot, in_axes=(0, 1))(xs, ys.T)  # <- new: ys.T is [10, N], one column each
products = jax.pmap(jnp.multiply, out_axes=1)(xs, ys)  # <- new: [10] from each device, stacked as columns

print(one_for_all.shape, columns.shape, products.shape)
np.testing.assert_allclose(one_for_all, xs @ y, atol=1e-5)
np.testing.assert_allclose(columns, np.einsum("nd,nd->n", xs, ys), atol=1e-5)
np.testing.assert_array_equal(products, (xs * ys).T)

# %% [markdown]
# ## Replicated state
#
# In training every device needs the same parameters: they are **replicated**. There are two ways to write it.
#
# * Stacked: copies along a device axis, `[N, ...]`. Older programs do this.
# * Whole: no device axis, `in_axes=None` on the way in and `out_axes=None` on the way out. pmapdp does this; a
#   checkpoint then does not know how many devices there were.
#
# `jax.device_put` copies the state to the devices once, before the loop. A `Mesh` is a row of devices with a
# name; `PartitionSpec()` (printed `P()`) means "cut nowhere", and `PartitionSpec("data")` means "cut the first axis
# along the row". `axis_name` gives pmap's device axis the same name.

# %%
mesh = Mesh(np.array(chosen), ("data",))
replicated = NamedSharding(mesh, PartitionSpec())
split = NamedSharding(mesh, PartitionSpec("data"))


def shrink(w, x):
    """One device's step: the state `[10]` shrinks, and the device reports its dot product."""
    return 0.5 * w, jnp.dot(w, x)


w = jax.device_put(np.ones(10, np.float32), replicated)  # [10]
batch = jax.device_put(xs, split)  # [N, 10]
step = jax.pmap(shrink, axis_name="data", in_axes=(None, 0), out_axes=(None, 0))
for _ in range(3):
    w, scores = step(w, batch)

print("state: ", w.shape, w.sharding.spec, "a device holds", w.addressable_shards[7].data.shape)
print("scores:", scores.shape, scores.sharding.spec, "a device holds", scores.addressable_shards[7].data.shape)
assert np.array_equal(w, np.full(10, 0.5**3))

# %% [markdown]
# `out_axes=None` is your promise that all devices return the same. JAX does not check it. Here
# the promise is broken: each device returns its own row.
#
# **Predict:** which row does JAX show?

# %%
lie = jax.pmap(lambda row: row, out_axes=None)(xs)
print("JAX says replicated:", lie.is_fully_replicated)
print("it shows device 0's row:", np.array_equal(lie, xs[0]))
on_device_7 = lie.addressable_shards[7].data
print("device 7 holds that too:", np.array_equal(on_device_7, xs[0]))
assert lie.is_fully_replicated
assert np.array_equal(on_device_7, xs[7])

# %% [markdown]
# One array with two truths in it. Lesson 06 shows how a training program gets there, and how to notice.
#
# ## Read results back
#
# Often you want one device's row of a stacked array, say of stacked parameters `[N, ...]`.
#
# **Predict:** how many devices work when you write `stacked[0]`?

# %%
stacked = jax.device_put(np.ones((N, 500_000), np.float32), split)
by_index = stacked[0]
by_shard = stacked.addressable_shards[0].data[0]  # the shard is [1, 500000]: its device axis has size 1
print("stacked[0] lies on", len(by_index.sharding.device_set), "devices")
print("addressable_shards[0].data[0] lies on", len(by_shard.sharding.device_set))

program = jax.jit(lambda a: a[0]).lower(stacked).compile().as_text()
print("stacked[0] makes all devices talk:", "all-reduce(" in program)
assert "all-reduce(" in program
assert len(by_index.sharding.device_set) == N
assert by_shard.sharding.device_set == {chosen[0]}

# %% [markdown]
# `stacked[0]` is a program for all devices, and it leaves a copy on each of them. The shard is already there.
# For everything at once, `jax.device_get(tree)` copies to the host. Do it rarely: it waits for the devices.
#
# ## What it costs
#
# A measurement on this machine. Simulated devices share its cores, so eight of them are no faster than one. And for
# a dot product of length 10, starting eight devices costs far more than the arithmetic.


# %%
def milliseconds(function, *arguments):
    """Shortest of ten runs; waits for the result, because JAX returns before it is computed."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


print(devices.describe(chosen))
print(f"dot products by jit(vmap): {milliseconds(jax.jit(jax.vmap(jnp.dot)), xs, ys):.3f} ms")
print(f"dot products by pmap:      {milliseconds(jax.pmap(jnp.dot), xs, ys):.3f} ms")
print(f"stacked[0]:                {milliseconds(lambda a: a[0], stacked):.3f} ms")
print(f"the shard of device 0:     {milliseconds(lambda a: a.addressable_shards[0].data, stacked):.3f} ms")

# %% [markdown]
# ## How it fails
#
# **Predict** for 6, 12 and 16 rows on eight devices: does it run, and where?

# %%
for rows in (6, 12, 16):
    ones = np.ones((rows, 10), np.float32)
    try:
        result = jax.pmap(jnp.dot)(ones, ones)
        print(f"{rows} rows: ran on {len(result.sharding.device_set)} devices\n")
        assert rows == 6
    except Exception as error:
        print(textwrap.shorten(f"{rows} rows: {type(error).__name__}: {error}", 420), "\n")
        assert rows > 6

# %% [markdown]
# Six rows run on six devices, without a word. Twelve do not divide by eight. Sixteen do, but each
# device then gets two rows, where `pmap` expects one. The cure is to reshape `[16, 10]` to `[8, 2, 10]`: every
# device gets a small batch of its own. That is your first exercise.
#
# Older tutorials place state with functions that are gone:

# %%
try:
    jax.device_put_replicated(w, chosen)
except AttributeError as error:
    print(textwrap.fill(f"AttributeError: {error}", 100))

# %% [markdown]
# ## Exercises
#
# Solutions: [solutions/04_map_over_devices.py](solutions/04_map_over_devices.py).
#
# 1. `dot_product`: B pairs on N devices, where B = N x b. `[B, 10]` and `[B, 10]` in, `[B]` out, all devices used.
#    <details><summary>Hint</summary>Reshape to <code>[N, b, 10]</code>; inside pmap, vmap.</details>
# 2. `dot_with_columns`: one vector `[10]` for all, and a matrix `[10, N]` with one column for each device; `[N]` out.
#    Do not transpose or copy. <details><summary>Hint</summary>Two entries in <code>in_axes</code>.</details>
# 3. `one_copy`: from a stacked array `[N, ...]`, device 0's row `[...]`, lying on device 0 alone.
#    <details><summary>Hint</summary>A shard keeps a device axis of size 1.</details>


# %%
def dot_product(xs, ys):
    """Dot products `[B]` of the rows of two arrays `[B, 10]`, B / N of them on each device."""
    ...  # your code: 1 to 4 lines


def dot_with_columns(vector, matrix):
    """Dot products `[N]` of `vector` `[10]` with each column of `matrix` `[10, N]`, one on each device."""
    ...  # your code: 1 line


def one_copy(stacked):
    """Device 0's row `[...]` of `stacked` `[N, ...]`, without a word between the devices."""
    ...  # your code: 1 line


LESSON = "04_map_over_devices"
for exercise in (dot_product, dot_with_columns, one_copy):
    check(LESSON, exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# * `pmap` cuts arguments along the device axis, runs one program on every device, and stacks the results.
# * `in_axes=None` and `out_axes=None` are for replicated state: no device axis, one truth, and your promise.
# * Read one copy through `addressable_shards[0].data`; `x[0]` sets all devices to work.
#
# So far no device has heard of another. Next: [05. Communicate between devices](05_communicate_between_devices.ipynb).
#
# In pmapdp this code is [pmapdp/steps/pmap.py](../pmapdp/steps/pmap.py). The lines of it that you can now read:

# %%
lines = inspect.getsource(pmap_steps.make_steps).splitlines()
print("\n".join(line for line in lines if "Sharding(" in line or "device_put" in line or "_axes" in line))

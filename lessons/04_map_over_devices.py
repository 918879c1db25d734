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
# After this lesson you can run one function on eight devices at once with `jax.pmap`, say which arguments are split and
# which are replicated, place arrays where they belong, and read results back without moving more than you need.
#
# About 30 minutes · you need [00 Meet your devices](00_meet_your_devices.ipynb) and `vmap` from
# [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb) · next:
# [05 Average gradients](05_average_gradients.ipynb)
#
# **Should you still use `pmap`?** For new programs, no: JAX keeps `pmap` working, and does not develop it any further.
# New programs use `jax.jit` with sharded arrays (lesson 09) or `jax.shard_map` (lesson 10). This course begins with
# `pmap` for three reasons. You write each step of data parallelism yourself, which `jit` leaves to the compiler. The
# function that you write for one device works with `shard_map` almost unchanged. And there are many programs with
# `pmap` that you may have to read or to port. Since JAX 0.8, `pmap` itself is implemented with `jit` and `shard_map`.

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices  # simulates devices (lesson 00) and describes them

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"
N = jax.device_count()
print(devices.describe(jax.devices()))

# %% [markdown]
# ## One dot product for each device
#
# Start with a dot product that you can check in your head: 0 + 1 + ... + 9 = 45. Then take eight of them, one for each
# device. Stack the pairs along a new first axis, the **device axis**, so that row `d` is for device `d`.
#
# `jax.pmap(f)` returns a function that splits its arguments along this axis, runs `f` on all devices at the same time,
# and stacks the results. It compiles `f`, as `jit` does. In the picture, each colour is a device.

# %%
from pmapdp.lessons.pictures import lesson_04

assert jnp.dot(np.arange(10), np.ones(10)) == 45

xs = np.arange(N * 10, dtype=np.float32).reshape(N, 10)  # [N, 10]: row d counts from 10 d
ys = np.ones((N, 10), np.float32)  # [N, 10]
lesson_04.dot_products(xs.sum(1))

# %% [markdown]
# `vmap` (lesson 02) also maps over a first axis, but on one device. Only the name of the transformation changes.
#
# **Predict:** what is the shape of the result, and on which device is each number?

# %% tags=["prediction"]
by_vmap = jax.vmap(jnp.dot)(xs, ys)
dots = jax.pmap(jnp.dot)(xs, ys)  # <- changed

print("vmap:", by_vmap.shape, "on", len(by_vmap.sharding.device_set), "device")
print("pmap:", dots.shape, "on", len(dots.sharding.device_set), "devices")
for shard in dots.addressable_shards:
    print(f"  device {shard.device.id} holds row {shard.index[0].start}: {shard.data}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The result is one array of shape `[8]`, and each device holds its own row of it, a **shard**. Nothing was gathered.
# (`addressable_shards` lists the shards that this process can read, here all of them.)
#
# </details>
#
# Inside `f` there is no device axis: `jnp.dot` got two arrays of shape `[10]`. The size of the device axis decides how
# many devices are used.
#
# ## Which axis is split: `in_axes` and `out_axes`
#
# `in_axes` has one entry for each argument: the axis to split, or `None` to replicate the argument, so that every
# device gets all of it. `out_axes` is the axis along which each result is stacked.
#
# **Predict** the three shapes. The folded cell after it compares all results with NumPy, within 1e-5, because float32
# rounds.

# %% tags=["prediction"]
random = np.random.default_rng(0)
xs, ys = random.normal(size=(2, N, 10)).astype(np.float32)
y = ys[0]  # [10], one vector for all devices
one_for_all = jax.pmap(jnp.dot, in_axes=(0, None))(xs, y)  # <- new: y is replicated
columns = jax.pmap(jnp.dot, in_axes=(0, 1))(xs, ys.T)  # <- new: ys.T is [10, N], one column each
products = jax.pmap(jnp.multiply, out_axes=1)(xs, ys)  # <- new: [10] from each device, stacked as columns

print(one_for_all.shape, columns.shape, products.shape)

# %% tags=["proof"]
# The asserts behind the answers so far.
assert np.array_equal(dots, 45 + 100 * np.arange(N))
np.testing.assert_allclose(jax.pmap(jnp.dot)(xs, ys), np.einsum("nd,nd->n", xs, ys), atol=1e-5)
np.testing.assert_allclose(one_for_all, xs @ y, atol=1e-5)
np.testing.assert_allclose(columns, np.einsum("nd,nd->n", xs, ys), atol=1e-5)
np.testing.assert_array_equal(products, (xs * ys).T)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first two results have one number from each device. The third has ten from each, stacked along axis 1.
#
# </details>
#
# ## Mesh and specs: where an array is placed
#
# In a training loop you place the parameters and the batches yourself. JAX describes a placement by two things, which
# all later lessons use.
#
# * A **mesh** is an array of devices whose axes have names. Ours is a row of eight devices. Its axis is called
#   `"data"`.
# * A **partition spec** says, for each axis of an array, along which mesh axis it is split. `PartitionSpec("data")`
#   splits the first axis over the devices. `PartitionSpec()` splits nothing: the array is **replicated**, so every
#   device holds all of it.
#
# Together they make a `NamedSharding`, and `jax.device_put(x, sharding)` places an array, or a pytree of arrays.

# %%
mesh = Mesh(np.array(jax.devices()), ("data",))
split = NamedSharding(mesh, PartitionSpec("data"))
replicated = NamedSharding(mesh, PartitionSpec())

w = jax.device_put(np.ones(10, np.float32), replicated)  # [10]
batch = jax.device_put(xs, split)  # [N, 10]
for name, array in (("w", w), ("batch", batch)):
    on_7 = array.addressable_shards[7].data
    print(name, array.shape, array.sharding.spec, "| device 7 holds", on_7.shape)
lesson_04.mesh_and_specs()

# %% [markdown]
# Each device holds one row of the batch, `[1, 10]`, and all of `w`, `[10]`.
#
# ## Committed and uncommitted arrays
#
# An array that you placed by a device or a sharding is **committed**: JAX never moves it to other devices by itself.
# Most arrays are made without naming a device, for example by `jnp.ones(3)`. They are on the default device, and they
# are **uncommitted**: JAX may copy them to where they are needed. NumPy arrays on the host are treated in the same way.
#
# **Predict** for each sum: does it work, and on which devices is the result?

# %% tags=["prediction"]
one, five = jax.device_put(np.ones(10, np.float32), jax.devices()[1]), jax.device_put(ys[0], jax.devices()[5])
pairs = {
    "uncommitted + committed to 5": (jnp.ones(10), five),
    "NumPy + committed to 5": (ys[1], five),
    "committed to 1 + committed to 5": (one, five),
    "uncommitted + replicated": (jnp.ones(10), w),
    "committed to 1 + replicated": (one, w),
}
found = {}
for name, (left, right) in pairs.items():
    try:
        found[name] = sorted(device.id for device in (left + right).devices())
        print(f"{name}: on", found[name])
    except ValueError as error:
        found[name] = "refused"
        print(f"{name}: ValueError: {str(error).split('. ')[0]}")

try:
    jax.pmap(jnp.dot)(jax.device_put(xs, jax.devices()[5]), ys)
except ValueError as error:
    print(f"pmap of an array that is committed to 5: ValueError: {str(error)[:52]} ...")

# %% tags=["proof"]
# The asserts behind the answer.
assert list(found.values()) == [[5], [5], "refused", list(range(N)), "refused"]

# %% [markdown]
# <details><summary>Answer</summary>
#
# A committed array decides where the operation runs, and JAX copies uncommitted ones there. Arrays that are committed
# to different devices raise an error, because JAX does not guess which you meant. `pmap` follows the same rule: it
# splits NumPy arrays and uncommitted arrays over the devices, and refuses an array that is committed in another way.
# The cure is always the same: `jax.device_put` with the right sharding. An error is the good case. Lesson 09 meets the
# bad one: under `jit`, an uncommitted batch beside replicated parameters is copied to all eight devices without a
# warning.
#
# </details>
#
# ## Replicated state
#
# In training, every device needs the same parameters. There are two ways to give them to `pmap`.
#
# * **Stacked**: N copies along a device axis, `[N, ...]`, with `in_axes=0`. Most older programs do this.
# * **Replicated**: no device axis, with `in_axes=None` for the argument and `out_axes=None` for the result. This course
#   does this. Then a checkpoint does not depend on the number of devices.
#
# The next cell makes three steps, and it runs without the cells above. The state is replicated, as an argument and as a
# result, and the scores are stacked. `axis_name` gives the device axis of `pmap` a name, which lesson 05 needs.

# %% tags=["take-home"]
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

mesh = Mesh(np.array(jax.devices()), ("data",))
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
N = mesh.size
# Yours: [B, D] on the host, with B a multiple of N.
examples = np.random.default_rng(0).normal(size=(32, 10)).astype(np.float32)
b, D = len(examples) // N, examples.shape[1]


def shrink(w, x):
    """One device's step: the state `[D]` shrinks, and the device reports its dot products `[b]`."""
    return 0.5 * w, jax.vmap(jnp.dot, in_axes=(None, 0))(w, x)


step = jax.pmap(shrink, axis_name="data", in_axes=(None, 0), out_axes=(None, 0))

w = jax.device_put(np.ones(D, np.float32), replicated)  # [D], all of it on every device
batch = jax.device_put(examples.reshape(N, b, D), split)  # [N, b, D], a slice on each device
for _ in range(3):
    w, scores = step(w, batch)

for name, array in (("state", w), ("scores", scores)):
    on_last = array.addressable_shards[-1].data
    print(name, array.shape, array.sharding.spec, "| the last device holds", on_last.shape)
host_scores = jax.device_get(scores).reshape(-1)  # [B], on the host
np.testing.assert_allclose(host_scores, 0.25 * examples.sum(1), rtol=1e-4, atol=1e-5)
assert np.array_equal(w, np.full(D, 0.5**3))

# %% [markdown]
# The state keeps its shape `[10]`, and each device holds four of the scores.
#
# With `out_axes=None` you promise that all devices return the same. JAX does not check it. The next cell breaks the
# promise: each device returns its own row. **Predict:** which row does JAX show?

# %% tags=["prediction"]
lie = jax.pmap(lambda row: row, out_axes=None)(xs)
on_device_7 = lie.addressable_shards[7].data
print("JAX says replicated:", lie.is_fully_replicated)
print("JAX shows row", *np.flatnonzero((xs == np.asarray(lie)).all(1)))
print("device 7 holds row", *np.flatnonzero((xs == np.asarray(on_device_7)).all(1)))

# %% tags=["proof"]
# The asserts behind the answer.
assert lie.is_fully_replicated
assert np.array_equal(lie, xs[0])
assert np.array_equal(on_device_7, xs[7])

# %% [markdown]
# <details><summary>Answer</summary>
#
# JAX shows the row of device 0, because it reads only one copy. The array claims to be replicated, but its copies
# differ. Lesson 05 shows how a training program comes to such a state, and how to notice it.
#
# </details>
#
# ## Read results back
#
# A program with stacked parameters `[N, ...]` often needs one copy of them, for example for a checkpoint.
#
# **Predict:** how many devices take part when you write `stacked[0]`?

# %% tags=["prediction"]
stacked = jax.device_put(np.ones((N, 500_000), np.float32), split)
by_index = stacked[0]
by_shard = stacked.addressable_shards[0].data[0]  # the shard is [1, 500000]: its device axis has size 1
print("stacked[0] is on", len(by_index.sharding.device_set), "devices")
print("addressable_shards[0].data[0] is on", len(by_shard.sharding.device_set), "device")

program = jax.jit(lambda a: a[0]).lower(stacked).compile().as_text()
print("stacked[0] makes the devices communicate:", "all-reduce(" in program)

# %% tags=["proof"]
# The asserts behind the answer.
assert "all-reduce(" in program
assert len(by_index.sharding.device_set) == N
assert by_shard.sharding.device_set == {jax.devices()[0]}

# %% [markdown]
# <details><summary>Answer</summary>
#
# All eight. `stacked[0]` is a program that runs on all devices, and sends the row of two megabytes to each of them.
# Reading the shard sends nothing. To copy everything to the host, use `jax.device_get(tree)`, but do so rarely, because
# it waits for the devices.
#
# </details>
#
# ## How it fails
#
# **Predict** for 6, 12 and 16 rows on eight devices: does it run, and on how many devices?

# %% tags=["prediction"]
import textwrap

ran = {}
for rows in (6, 12, 16):
    ones = np.ones((rows, 10), np.float32)
    try:
        result = jax.pmap(jnp.dot)(ones, ones)
        ran[rows] = len(result.sharding.device_set)
        print(f"{rows} rows: ran on {ran[rows]} devices\n")
    except Exception as error:
        print(textwrap.shorten(f"{rows} rows: {type(error).__name__}: {error}", 420), "\n")

# %% tags=["proof"]
# The asserts behind the answer.
assert ran == {6: 6}

# %% [markdown]
# <details><summary>Answer</summary>
#
# Six rows run on six devices, without a warning. Twelve rows cannot be divided evenly among eight devices. Sixteen can,
# but then each device gets two rows, where `pmap` expects one. The cure is to reshape `[16, 10]` to `[8, 2, 10]`, so
# that every device gets a small batch. That is your first exercise.
#
# </details>
#
# Older tutorials copy their state to all devices with a function that no longer exists:

# %%
try:
    jax.device_put_replicated(w, jax.devices())
except AttributeError as error:
    print(textwrap.fill(f"AttributeError: {error}", 100))
else:
    raise AssertionError("jax.device_put_replicated is back")

# %% [markdown]
# Use `jax.device_put(w, replicated)` instead, with the sharding from above.
#
# **What it costs:** to start a program on eight devices takes longer than a dot product of ten numbers. So `pmap` pays
# only if each device has enough to do. Simulated devices share the cores of one machine, and do not show from which
# size on that is. Lesson 06 says what communication costs, and lesson 18 how to measure a step.
#
# ## Exercises
#
# Solutions, with reasons: [solutions/04_map_over_devices.py](solutions/04_map_over_devices.py).
#
# 1. `dot_product` (5 minutes): B dot products on N devices, where B is a multiple of N. The arguments are `[B, 10]` and
#    `[B, 10]`. The result is a JAX array `[B]`, of which each device holds its part.
#    <details><summary>Hint</summary>Reshape to <code>[N, b, 10]</code>. Inside pmap, use vmap.</details>
# 2. `block_product` (10 minutes): the matrix product of `a` `[2 m, K]` and `b` `[K, 4 p]`, computed in 2 x 4 blocks,
#    one on each of eight devices. Device 4 i + j multiplies row block i of `a` by column block j of `b`. Return
#    `[8, m, p]`, a JAX array with one block on each device. <details><summary>Hint</summary>Build two stacked arrays,
#    <code>[8, m, K]</code> in which each row block occurs four times running (<code>repeat</code>), and <code>[8, K,
#    p]</code> in which the four column blocks occur twice (<code>tile</code>).</details>
# 3. `fixed_accuracy` (find the mistake): `broken_accuracy` raises no error and returns a number between 0 and 1, but
#    the number is not the accuracy over all examples. Write it correctly. <details><summary>Hint</summary>What does
#    <code>out_axes=None</code> promise?</details>


# %%
from pmapdp.lessons.checks import check


def broken_accuracy(w, x, labels):  # [D, C], [N, b, D], [N, b]
    def of_one_device(w, x, labels):
        return (jnp.dot(x, w).argmax(-1) == labels).mean()

    return jax.pmap(of_one_device, in_axes=(None, 0, 0), out_axes=None)(w, x, labels)


def dot_product(xs, ys):
    """Dot products `[B]` of the rows of two arrays `[B, 10]`, B / N of them on each device."""
    ...  # your code: 1 to 4 lines


def block_product(a, b):
    """The blocks `[8, m, p]` of `a @ b`, one on each device, for `a` `[2 m, K]` and `b` `[K, 4 p]`."""
    ...  # your code: 3 to 6 lines


def fixed_accuracy(w, x, labels):
    """Fraction of right answers among all `[N, b]` examples; device d has the examples `[d]`."""
    ...  # your code: 3 to 4 lines


for exercise in (dot_product, block_product, fixed_accuracy):
    check("04_map_over_devices", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# * `pmap` splits its arguments along the device axis, runs one program on every device, and stacks the results.
# * A mesh and a partition spec say where an array is placed. A placed array is committed: JAX does not move it.
# * With `out_axes=None` you promise that all devices agree, and JAX does not check it. Read one copy through
#   `addressable_shards[0].data`; `x[0]` makes all devices communicate.
#
# In pmapdp this code is [steps/pmap.py](../pmapdp/steps/pmap.py). To read on:
# [jax.pmap](https://docs.jax.dev/en/latest/_autosummary/jax.pmap.html) and
# [Migrating to the new jax.pmap](https://docs.jax.dev/en/latest/migrate_pmap.html). So far each device worked alone.
# Next: [05 Average gradients](05_average_gradients.ipynb).

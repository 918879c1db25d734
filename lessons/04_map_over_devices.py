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
# Lesson 03's program uses one device, even if you have eight. Testing a network is easy to share, because each device
# can score its own part of the data. And you already know how to write it: `vmap` ran your function for every row of a
# batch, on one device. Change one letter, and `pmap` runs each row on a device of its own. At the end you'll make JAX a
# promise that it never checks, and break it. You'll get a wrong number and no error.
#
# **You will** run a function on eight devices with `jax.pmap`, place arrays with a mesh and a partition spec, and
# evaluate lesson 03's network on eight devices. 20 minutes, 45 with exercises. You need [00 Meet your
# devices](00_meet_your_devices.ipynb) and [03 Train with Flax and Optax](03_train_with_flax_and_optax.ipynb).
#
# <details><summary>Should you still use <code>pmap</code>?</summary>
#
# Not in new programs. JAX keeps `pmap` working, but doesn't develop it any further, and new programs use `jit` or
# `shard_map` (lessons 09 and 10). We begin with `pmap` because there you write down what one device does, and what the
# devices send each other. Once you've done that, you know what the compiler does for you under `jit`. To do without `pmap`,
# go on with lesson 09, as [the README](README.md) describes.
#
# </details>

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_04

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## Eight dot products
#
# The dot product of 0, 1, ..., 9 with ten ones is 45, the sum of the ten numbers. We take eight such products: row d of
# `xs` counts from 10 d, so the results are 45, 145, 245, and so on. `pmap` gives row d to device d, runs `jnp.dot` on
# all eight devices at once, and stacks the results. That makes the first axis of `xs` and `ys` the **device axis**. The
# function inside sees one row: `jnp.dot` gets two arrays of shape `[10]`.
#
# **Predict:** `pmap` returns one array with eight numbers. Where is it? All on device 0, all on every device, or a part
# on each?

# %% tags=["prediction"]
xs = np.arange(80, dtype=np.float32).reshape(8, 10)  # row d counts from 10 d
ys = np.ones((8, 10), np.float32)
by_vmap = jax.vmap(jnp.dot)(xs, ys)
dots = jax.pmap(jnp.dot)(xs, ys)
print("vmap:", by_vmap, "on", len(by_vmap.sharding.device_set), "device")
print("pmap:", dots, "on", len(dots.sharding.device_set), "devices")
for shard in dots.addressable_shards:
    print("device", shard.device.id, "holds", shard.data)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Each device has a part. The result is *one* array of shape `[8]`, as with `vmap`, but nobody has collected the
# numbers. Device 3 computed 345 and still holds it. A part like that is called a **shard**.
#
# </details>
#
# One Python process drives all eight devices, so unlike in PyTorch, there's no `torchrun` and there are no ranks.
#
# What if you have sixteen rows? Reshape `[16, 10]` to `[8, 2, 10]`. Then each device gets two rows, and your function
# sees `[2, 10]`. If you forget, JAX stops with `cannot select an axis to squeeze out which has size not equal to one`.
# With nine rows it says `array axis 0 is partitioned 8 times, but the dimension size is 9`. But if you pass only six,
# there's no error and no warning: two devices stay idle.

# %%
lesson_04.dot_products(xs.sum(1))

# %% [markdown]
# ## The same on every device
#
# `pmap` splits every argument. But to score a batch, each device needs its rows of the batch and *all* of the model.
# With `in_axes=(None, 0)` every device gets the whole first argument, and its row of the second. One entry holds for all
# arrays of a pytree, such as a model:

# %%
w = np.ones(10, np.float32)
print(jax.pmap(jnp.dot, in_axes=(None, 0))(w, xs))

# %% [markdown]
# ## Place an array once
#
# Here `w` and `xs` are NumPy arrays, and JAX sends them to the devices in every call. For a batch that's fine, because
# the next batch has other numbers. For a model that hasn't changed it's a waste. So place the model yourself, once,
# before the calls. Two things say where an array goes:
#
# - A **mesh** is an array of devices with named axes. Ours is a row of eight devices, and its axis is `"data"`.
# - A **partition spec** says how to cut an array. It has one entry for each array axis: the mesh axis that cuts it, or
#   `None`. Trailing `None`s can be dropped. `PartitionSpec("data")` cuts the first axis into eight parts.
#   `PartitionSpec()` cuts nothing, so each device gets the whole array: it's **replicated**.
#
# Together they make a `NamedSharding`, and `jax.device_put(x, sharding)` puts an array there, or all arrays of a
# pytree.

# %%
mesh = Mesh(jax.devices(), ("data",))
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

w = jax.device_put(w, replicated)
rows = jax.device_put(xs, split)
print("w:   ", w.shape, "and device 7 holds", w.addressable_shards[7].data.shape)
print("rows:", rows.shape, "and device 7 holds", rows.addressable_shards[7].data.shape)
lesson_04.mesh_and_specs()

# %% [markdown]
# ## A network on eight devices
#
# Now half of your program can move to eight devices. Training has to wait for lesson 05, where the devices talk to each
# other. In evaluation, each device counts its own correct answers, and the host adds up the eight counts.
#
# 1. `sums_on_devices` (10 minutes): `eval_step(state, batch)` returns a dictionary of sums over a batch, such as the
#    number of correct answers. `batch` is a tuple of NumPy arrays with B rows each. B is a multiple of N, the number of
#    devices. Let all devices share the work with `jax.pmap`, and return the dictionary of the sums over all B rows.
#    <details><summary>Hint</summary>Each device gets B / N rows, and all of the state. <code>jax.tree.map</code> reshapes
#    every array of the batch, and it also adds up every sum. <code>jax.device_count()</code> is N.</details>

# %%
from pmapdp.lessons.checks import check


def sums_on_devices(eval_step, state, batch):
    """The sums over a batch `[B, ...]`, computed on N devices: a dictionary of numbers."""
    ...  # your code: 3 or 4 lines


verdict = check("04_map_over_devices", "sums_on_devices", sums_on_devices)

# %% [markdown]
# <details><summary>Solution, and all that changes in the program</summary>
#
# include the difference of 03_flax.py and 04_evaluate.py
#
# `place_batch` cuts the inputs `[128, 64]` into `[8, 16, 64]`, `pmap` maps `eval_step`, and the last new line adds up
# the eight numbers of each sum on the host.
#
# </details>
#
# You still train on one device, and after each epoch `place_state` copies the state to all eight. Don't keep `copies`
# for later. Device 0's copy *is* the original, and the next `train_step` donates it. If you then read `copies`, JAX says
# `Array has been deleted`.
#
# The next cell is the whole program, so you can skip its code. It prints lesson 03's test losses and accuracies, up to
# rounding. The cell after the program evaluates the trained network again, with your `sums_on_devices` if the check has
# accepted it. You should see the last test loss again.

# %% tags=["take-home"]
# include program/04_evaluate.py

# %%
def test_step(state, batch):
    return loss_sums(state[0], batch)[1]


if verdict.solved:
    test_sums = [sums_on_devices(test_step, state, batch) for batch in batches(*test_data, seed=0)]
print("test:", report(test_sums))
print("with", "your sums_on_devices" if verdict.solved else "the program's own lines")

# %% [markdown]
# ## Why sums and counts?
#
# Couldn't each device return its own accuracy, and the host take the mean of the eight? Look at the last test batch. Of
# 1,000 points, 104 are left for it, and `batches` pads them to 128 rows. You may still use `copies`, because no
# `train_step` has run since it was made.
#
# **Predict:** how many of the 104 points are on device 0, on device 6 and on device 7?

# %% tags=["prediction"]
batch = list(batches(*test_data, seed=0))[-1]
sums = eval_step(copies, place_batch(batch))
print("points: ", sums["count"])
print("correct:", sums["correct"])

inputs, labels, weights = batch
is_correct = np.asarray(state[0](inputs).argmax(-1) == labels)  # all 128 rows on one device
lesson_04.last_batch(is_correct, weights)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 16, 8 and none, because device d gets rows 16 d to 16 d + 15, and the last 24 rows are padding. In the picture a dot is
# a correct answer, a cross is a wrong one, and a dash is padding. Device 7's own accuracy would be 0 / 0, and in a mean
# of accuracies the eight points of device 6 would count as much as the sixteen of device 0. So add up the correct
# answers and the counts, and divide once. That's why `loss_sums` returns both.
#
# </details>
#
# ## Arrays in the wrong place
#
# What does JAX do with an array that isn't where it's needed? That depends on who put it there. An array that you've
# placed with a device or a sharding is **committed** to its place, and so are the results computed from it. NumPy
# arrays and `jnp.ones(3)` aren't committed, so JAX moves them to wherever they're needed. Below, `on_5` is committed to
# device 5, and `pmap` runs on all eight.
#
# **Predict:** which of the three calls does JAX refuse?

# %% tags=["prediction"]
on_1, on_5 = jax.device_put((xs, xs), (jax.devices()[1], jax.devices()[5]))
calls = {
    "add arrays on devices 1 and 5": lambda: on_1 + on_5,
    "split an array on device 5": lambda: jax.pmap(jnp.sum)(on_5),
    "give all devices the same": lambda: jax.pmap(jnp.dot, in_axes=(None, 0))(on_5[0], xs),
}
for name, call in calls.items():
    try:
        print(f"{name}: {call()}\n")
    except ValueError as error:
        print(f"{name}: ValueError: {error}\n")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first two. JAX won't move a committed array to add it or to split it. In the second error you see that `pmap`
# doesn't use your mesh. It makes one of its own over the same devices, and calls its axis `_internal_pmap_axis_name`.
#
# An argument with `in_axes=None` is copied, committed or not, and that's the trap. In every call, JAX copies the array
# from device 5 to the seven others, and nobody tells you. If you suspect a copy, place every argument first. Then run the
# call under `with jax.transfer_guard("disallow"):`, and a copy is an error.
#
# </details>
#
# ## What JAX believes
#
# Now for the promise. In the next lesson all devices will end an update with the same model, and you'll want it back as
# one model, without a device axis. `out_axes=None` gives you that. With it you promise that all devices return the
# same, and JAX doesn't check. Let's lie, with a function that returns each device's own row.
#
# **Predict:** what do you see when you print the result: row 0, row 7, or all eight rows?

# %% tags=["prediction"]
lie = jax.pmap(lambda row: row, out_axes=None)(xs)
print("the result:    ", lie)
print("device 7 holds:", lie.addressable_shards[7].data)
print("fully replicated, says JAX:", lie.is_fully_replicated)
lesson_04.one_label_for_eight_rows(lie)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Row 0. JAX reads the copy on device 0, and takes your word for it that the others are equal. Lesson 05 shows a whole
# training run that fails this way. Exercise 2 builds the detector.
#
# </details>
#
# ## Exercises
#
# Solutions, with reasons: [solutions/04_map_over_devices.py](solutions/04_map_over_devices.py).
#
# 2. `largest_difference` (10 minutes): do all devices still have the same model? `state` is a pytree of arrays, and JAX
#    says that each of them is replicated. For each number in it, take the largest of the devices' copies minus the
#    smallest. Return the maximum over all numbers of all arrays. If all copies are equal, that's 0.
#    <details><summary>Hint</summary>Read the data of each of an array's <code>addressable_shards</code> as a NumPy array,
#    and stack them: <code>[N, ...]</code>. <code>jax.tree.leaves</code> lists the arrays.</details>
# 3. `fixed_accuracy` (5 minutes, find the mistake): `broken_accuracy` raises no error and returns a number between 0
#    and 1, but it isn't the accuracy over all examples. Return that accuracy. You may compute it in any way, but the
#    shortest repair keeps `pmap`. <details><summary>Hint</summary>What do you promise with
#    <code>out_axes=None</code>?</details>


# %%
def broken_accuracy(w, x, labels):  # [D, C], [N, b, D], [N, b]
    def local_accuracy(w, x, labels):
        return (jnp.dot(x, w).argmax(-1) == labels).mean()

    return jax.pmap(local_accuracy, in_axes=(None, 0, 0), out_axes=None)(w, x, labels)


def largest_difference(state):
    """The largest difference between two devices' copies of a number in `state`."""
    ...  # your code: 4 to 6 lines


def fixed_accuracy(w, x, labels):
    """Fraction of correct answers among all `[N, b]` examples; device d has the examples `[d]`."""
    ...  # your code: 3 to 4 lines


for exercise in (largest_difference, fixed_accuracy):
    check("04_map_over_devices", exercise.__name__, exercise)

# %% tags=["proof"]
# The asserts behind the answers. You can skip this cell.
assert np.array_equal(dots, 45 + 100 * np.arange(8))
assert dots.addressable_shards[3].data == 345
assert len(jax.pmap(jnp.dot)(xs[:6], ys[:6]).devices()) == 6
assert sums["count"].tolist() == [16, 16, 16, 16, 16, 16, 8, 0]
assert np.array_equal(sums["correct"], (weights * is_correct).reshape(8, 16).sum(1))
assert lie.is_fully_replicated
assert np.array_equal(lie, xs[0])
assert np.array_equal(lie.addressable_shards[7].data, xs[7])


def is_refused(compute, message=""):
    """Return True if JAX raises an error with this message, instead of moving or reading arrays."""
    try:
        compute()
    except (ValueError, RuntimeError) as error:
        return message in str(error)
    return False


assert "_internal_pmap_axis_name" in str(dots.sharding)  # pmap's own mesh
donated_state = jax.tree.map(jnp.copy, state)
late_copies = place_state(donated_state)
train_step(donated_state, batch)
assert is_refused(lambda: np.asarray(late_copies[0].output.kernel[...]))
indivisible = "array axis 0 is partitioned 8 times, but the dimension size is 9"
assert is_refused(lambda: jax.pmap(jnp.sum)(np.ones((9, 10))), indivisible)
two_rows = "cannot select an axis to squeeze out which has size not equal to one"
assert is_refused(lambda: jax.pmap(jnp.sum)(np.ones((16, 10))), two_rows)
assert [is_refused(call) for call in calls.values()] == [True, True, False]
dot_with_rows = jax.pmap(jnp.dot, in_axes=(None, 0))
model_on_5, model_in_numpy = on_5[0], np.ones(10, np.float32)
with jax.transfer_guard("disallow"):
    assert is_refused(lambda: dot_with_rows(model_on_5, rows), "device-to-device")
    assert is_refused(lambda: dot_with_rows(model_in_numpy, rows), "host-to-device")
    assert not is_refused(lambda: dot_with_rows(w, rows))

# %% [markdown]
# ## Take away
#
# - `pmap` gives each device its row, runs one program on all of them, and stacks the results. An argument
#   with `None` in `in_axes` goes to every device as a whole.
# - A mesh and a partition spec say where an array lives. Place your arrays once, with `jax.device_put(x, sharding)`.
# - With `out_axes=None` you promise that all devices agree, and JAX doesn't check. To see what each of them holds, read
#   `addressable_shards`.
#
# In pmapdp, [steps/pmap.py](../pmapdp/steps/pmap.py) has this mesh, these two shardings, `place_state` and
# `place_batch`. Its `eval_step` is lesson 05's, which adds up on the devices. Old tutorials call
# `jax.device_put_replicated`, which JAX 0.10 no longer has. It added a device axis. `jax.device_put(x, replicated)` adds
# none, so if you write that instead, `pmap` needs `in_axes=None` for `x`. To read on:
# [Migrating to the new jax.pmap](https://docs.jax.dev/en/latest/migrate_pmap.html). On JAX's pages you'll see `P` for
# `PartitionSpec`, and often `jax.make_mesh(...)` for the mesh. Stay with `Mesh` until lesson 11, because a mesh from
# `make_mesh` behaves differently.
#
# To add up gradients, the host would have to fetch eight arrays as large as the model, and send the new model back, in
# every update. So in the next lesson the devices do it themselves, in one line:
# [05 Average gradients](05_average_gradients.ipynb).

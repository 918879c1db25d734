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
# # 07. Keep batch norm, dropout and metrics exact
#
# After this lesson you can train a network with batch norm and dropout on any number of devices, with
# batches that do not divide, and get the result of one device.
#
# About 25 minutes · before: [06 Average gradients](06_average_gradients.ipynb) · next: [08 Let the compiler
# do it](08_let_the_compiler_do_it.ipynb)
#
# Lesson 06 split the batch, and averaging the gradients was enough. It was enough because each example went
# through the network alone. Three things break that: **batch norm** mixes examples, **dropout** draws
# random numbers, and a **ragged batch** gives devices different numbers of examples. This lesson computes
# in float64, so that a difference is a mistake and not rounding.

# %%
import inspect
import re
import time

import drawing
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from checks import check
from jax import lax
from pmapdp.cpu.packing import packed

from pmapdp import devices
from pmapdp.data.batches import Batches
from pmapdp.loss import MetricSums
from pmapdp.models.batch_norm import BatchNorm, moments
from pmapdp.models.convnet import ConvNet
from pmapdp.models.layers import Context, Dropout, example_keys
from pmapdp.registry import load_data
from pmapdp.state import Task, create_state
from pmapdp.steps import make_steps, pmap
from pmapdp.steps.shared import Body

devices.simulate(8)
jax.config.update("jax_enable_x64", True)
drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
data = load_data(DATASET)
devices.describe(jax.devices())

# %% [markdown]
# ## Sums and counts
#
# Four examples on two devices. Shapes must be equal, so each device has three rows, and the free rows hold
# **padding**: any value, with **weight** 0. What travels between the devices is a sum and a count, never a
# mean.

# %%
axes = drawing.canvas(14, 5)
rows = [["1", "2", "3"], ["7", "pad", "pad"]]
for d, top in enumerate([0.9, 3.1]):
    axes.text(0, top - 0.3, f"device {d}: values [b] = [3]", color=drawing.INK)
    for column, text in enumerate(rows[d]):
        drawing.box(axes, 1.1 * column, top, text, device=None if text == "pad" else d, width=1)
    drawing.arrow(axes, (3.4, top + 0.4), (4.3, top + 0.4), device=d)
    drawing.box(axes, 4.4, top, ["sum 6, count 3", "sum 7, count 1"][d], device=d, width=3.0)
    drawing.arrow(axes, (7.5, top + 0.4), (8.4, [2.1, 2.7][d]), device=d)
    drawing.arrow(axes, (11.2, [2.1, 2.7][d]), (12.0, top + 0.4), device=d)
    drawing.box(axes, 12.1, top, "13 / 4", device=d, width=1.7)
drawing.box(axes, 8.5, 1.9, "psum:\n13 and 4", width=2.6, height=1.0)
plt.show()

# %% [markdown]
# **Predict:** what does each device get if it takes the mean of its own values, and `pmean` averages the
# two means?

# %%
values = jnp.array([[1.0, 2, 3], [7, 0, 0]])  # [N, b]
weights = jnp.array([[1.0, 1, 1], [1, 0, 0]])


def mean_of_means(v, w):
    return lax.pmean((v * w).sum() / w.sum(), "data")


def mean(v, w):
    total, count = lax.psum(((v * w).sum(), w.sum()), "data")  # <- changed
    return total / count


wrong = jax.pmap(mean_of_means, axis_name="data")(values, weights)
right = jax.pmap(mean, axis_name="data")(values, weights)
print("mean of means", wrong, "  sum / count", right, right.shape)
assert wrong.tolist() == [4.5, 4.5]
assert right.tolist() == [3.25, 3.25]

# %% [markdown]
# The lonely 7 counted as much as the three others together. Gradients obey the same rule: pmapdp adds up
# the gradients of the *summed* loss and divides by the count after the `psum`.
#
# ## Batch norm
#
# In training, batch norm subtracts the batch's mean and divides by its standard deviation. Under `pmap` a
# layer sees one device's rows only. pmapdp's layer can be told the mapped axis; PyTorch calls that
# `SyncBatchNorm`. **Predict** the output for values 0, 2 on device 0 and 10, 12 on device 1, without and
# with it.

# %%
batch = jnp.array([[[0.0], [2.0]], [[10.0], [12.0]]])  # [N, b, C]


def normalise(x, axis_name):
    return BatchNorm(1, epsilon=0.0, param_dtype=jnp.float64)(x, Context(train=True, axis_name=axis_name))


local = jax.pmap(lambda x: normalise(x, None), axis_name="data")(batch)
synchronised = jax.pmap(lambda x: normalise(x, "data"), axis_name="data")(batch)  # <- changed
one_device = normalise(batch.reshape(4, 1), None)
print("local       ", local.ravel())
print("synchronised", synchronised.ravel().round(3))
print("one device  ", one_device.ravel().round(3))
np.testing.assert_allclose(local.ravel(), [-1, 1, -1, 1])
np.testing.assert_allclose(synchronised.ravel(), one_device.ravel(), atol=1e-12)

# %% [markdown]
# Local batch norm cannot tell 0 from 10. The synchronised layer needs the mean and variance of the whole
# batch: here 6 and 26, although each device's own variance is 1.
#
# **Exercise 1.** Write the weighted variance over all devices. `values` and `weights` are one device's
# `[b]`; the mapped axis is `"data"`. Target: for 0, 2 and 10, 12 every device returns 26.
# <details><summary>Hint</summary>Two passes: first the global mean from a sum and a count, as in
# <code>mean</code> above; then the same for the squared distances from that mean.</details>
#
# solution: [solutions/07_batch_norm_dropout_and_metrics.py](solutions/07_batch_norm_dropout_and_metrics.py)


# %%
def global_variance(values, weights):
    """Variance of the valid values on all devices: `[b]`, `[b]` to `[]`."""
    ...  # your code: 2 to 4 lines


_ = check("07_batch_norm_dropout_and_metrics", "global_variance", global_variance)

# %% [markdown]
# ## Dropout
#
# JAX has no hidden random state: a random array is a pure function of a **key** and a shape, and
# `fold_in(key, number)` makes a new key. Which key should a device use? Below, eight examples with twelve
# activations each, on 1, 2 and 4 devices; what is kept is drawn in the device's colour. **Predict** which
# of the three schemes gives the same picture three times.


# %%
def same_key(key, indices):
    return jax.random.bernoulli(key, 0.5, (len(indices), 12))


def key_per_device(key, indices):
    key = jax.random.fold_in(key, lax.axis_index("data"))  # <- new
    return jax.random.bernoulli(key, 0.5, (len(indices), 12))


def key_per_example(key, indices):
    keys = example_keys(0, 5, indices)  # <- changed: from (seed, step, index of the example)
    return Dropout(0.5)(jnp.ones((len(indices), 12)), Context(keys=keys, train=True)) > 0


figure, grid = plt.subplots(3, 3, figsize=(7, 4.6), layout="constrained")
for row, scheme in zip(grid, [same_key, key_per_device, key_per_example], strict=True):
    masks = []
    for axes, N in zip(row, [1, 2, 4], strict=True):
        mapped = jax.pmap(scheme, axis_name="data", in_axes=(None, 0), devices=jax.devices()[:N])
        masks.append(np.asarray(mapped(jax.random.key(0), np.arange(8).reshape(N, -1))).reshape(8, 12))
        picture = np.zeros((8, 12, 4))  # transparent where an activation is dropped
        for example in range(8):
            colour = plt.matplotlib.colors.to_rgba(drawing.DEVICE_COLOURS[example * N // 8])
            picture[example, masks[-1][example]] = colour
        axes.imshow(picture, aspect="auto")
        axes.set(xticks=[], yticks=[], title=f"{scheme.__name__}, N = {N}")
        axes.title.set_fontsize(9)
    assert all((mask == masks[0]).all() for mask in masks) == (scheme is key_per_example)
grid[1, 0].set_ylabel("8 examples, one a row")
plt.show()

# %% [markdown]
# With the same key everywhere, the devices repeat each other's mask: less noise than you asked for. With
# the device's number folded in, the masks are good, but another number of devices is another run. A key per
# example depends on neither.
#
# **Exercise 2.** Make the keys. Target: `[b]` keys that depend on `seed`, `step` and each example's index,
# and on nothing else.
# <details><summary>Hint</summary><code>jax.random.fold_in</code> twice: once with the step, and inside
# <code>jax.vmap</code> with each index.</details>


# %%
def row_keys(seed, step, indices):
    """One random key an example: integers and `[b]` indices to `[b]` keys."""
    ...  # your code: 2 lines


_ = check("07_batch_norm_dropout_and_metrics", "row_keys", row_keys)
# %% [markdown]
# ## Proof: one network, any number of devices
#
# `convnet` is the network of Keras' guide to data parallelism: three batch norms and a dropout. Two updates
# with 20 examples each, on 1 and 8 devices. Twenty do not divide by 8: each device gets three rows, and the
# last four rows are padding. Tolerance: 1e-12 in float64. We use SGD. Adam divides a gradient by its own
# size, so it turns rounding into steps where a gradient is exactly 0, as for the bias before a batch norm.

# %%
task = Task(ConvNet, optax.sgd(0.1), dtype="float64")
start = create_state(task)


def run(steps, devices):
    """The state after two updates on this many devices, and the compiled step."""
    state, batches = steps.place_state(start), Batches(data.train, 20, devices=devices, shuffle_seed=0)
    placed = [steps.place_batch(batch) for batch, _ in zip(batches.epoch(0), range(2), strict=False)]
    compiled = steps.train_step.lower(state, placed[0]).compile()
    for batch in placed:
        state, sums = compiled(state, batch)
        assert sums.count == 20
    print(f"{devices} device(s), inputs {placed[0].inputs.shape}, weights {placed[0].weights.sum(-1)}")
    return state, compiled, placed[0]


def difference(state, reference):
    pairs = zip(jax.tree.leaves(jax.device_get(state)), jax.tree.leaves(reference), strict=True)
    return max(np.abs(x - y).max() for x, y in pairs)


reference = jax.device_get(run(make_steps("single", task, jax.devices()), 1)[0])
mapped = make_steps("pmap", task, jax.devices())
state, exact_step, placed = run(mapped, 8)
print(f"largest difference of parameters and statistics: {difference(state, reference):.0e}")
assert difference(state, reference) < 1e-12

# %% [markdown]
# ## A failure that no error reports
#
# The same step, but batch norm is not told the axis. Nothing stops, and the loss falls. `out_axes=None`
# promises JAX that all devices hold the same state, and JAX believes it. Look at what they do hold.


# %%
def forgetful_step(state, batch):
    body = Body(task, axis_name=None)  # <- changed: batch norm sees its own device only
    gradients, sums, batch_stats = body.gradient_sums(state, batch)
    gradients, sums = packed(lax.psum)((gradients, sums), pmap.AXIS)  # as steps/pmap.py: all in one vector
    return body.update(state, gradients, sums, batch_stats), sums


axes = {"axis_name": pmap.AXIS, "in_axes": (None, 0), "out_axes": None}
forgetful = mapped._replace(train_step=jax.pmap(forgetful_step, **axes, donate_argnums=0))
broken, forgetful_compiled, _ = run(forgetful, 8)
running_mean = broken.batch_stats["norm3"]["mean"]
copies = np.array([shard.data[0] for shard in running_mean.addressable_shards])
print("JAX says: fully replicated =", running_mean.is_fully_replicated)
print("the devices hold:", copies.round(5))
print(f"parameters differ by {difference(broken.params, reference.params):.0e}")
assert running_mean.is_fully_replicated
assert np.ptp(copies) > 1e-6
assert difference(broken.params, reference.params) > 1e-4

# %% [markdown]
# Which of the eight would a checkpoint save? Whichever is read first. Two habits catch this: compare with
# one device, and compare the copies.
#
# ## Metrics
#
# An evaluation must count each test example once. (Our network has made two updates, so its accuracy is
# near chance.) Here the test set is cut into batches of 100, and the last one is smaller. **Predict** what
# a device without any valid example reports as its mean.


# %%
def report(state, batch):
    sums = Body(task).evaluation_sums(state, batch)
    return lax.psum(sums, pmap.AXIS), lax.pmean(sums.correct / sums.count, pmap.AXIS)


totals, means = [], []
for batch in Batches(data.test, 100, devices=8).epoch(0):
    sums, mean_accuracy = jax.pmap(report, **axes)(state, mapped.place_batch(batch))
    totals.append(jax.device_get(sums))
    means.append(float(mean_accuracy))
total = MetricSums(*map(sum, zip(*totals, strict=True)))
print("valid examples on each device, last batch:", batch.weights.reshape(8, -1).sum(1))
print("mean of means, batch by batch:", np.round(means, 3))
print(f"exact: {total.correct:.0f} of {total.count:.0f}")
assert total.count == len(data.test.labels)
assert np.isnan(means[-1]) or DATASET != "digits"

# %% [markdown]
# **Exercise 3.** Write the last step: the accuracy from a list of `(correct, count)` pairs, one a batch.
# Target: 3 of 4 and 0 of 1 give 0.6.
# <details><summary>Hint</summary>Add all the first numbers and all the second ones; divide once, at the
# end.</details>
#
# ## What exactness costs
#
# Synchronised batch norm talks in the middle of the network. The source of `moments` below calls `total` twice.
# Two exchanges, as in exercise 1, would wait twice; so it adds up the values and their squared distances from the
# *running* mean together. Only where that mean is far off does a branch add up a second time: three of the ten
# all-reduces below stand in such a branch. The gradient calls `total` once more. Simulated devices share one machine's
# memory and cores, so the times are those of a small computer doing eight devices' work, and show no speed-up.


# %%
def accuracy(pairs):
    """Share of right answers over all batches."""
    ...  # your code: 1 to 3 lines


_ = check("07_batch_norm_dropout_and_metrics", "accuracy", accuracy)

print(f"\n{devices.describe(jax.devices())}, jax {jax.__version__}")
for name, step in {"synchronised": exact_step, "local": forgetful_compiled}.items():
    all_reduces = len(re.findall(r" all-reduce(?:-start)?\(", step.as_text()))
    assert (all_reduces == 1) == (name == "local")
    state, clock = jax.block_until_ready(mapped.place_state(start)), time.perf_counter()
    for _ in range(30):
        state, _ = step(state, placed)
    jax.block_until_ready(state)
    print(f"{name}: {all_reduces} all-reduce(s), {(time.perf_counter() - clock) / 30 * 1000:.0f} ms a step")
print(inspect.getsource(moments))

# %% [markdown]
# ## Take away
#
# 1. Send sums and counts between devices and steps; divide once, at the end. Padding has weight 0.
# 2. A layer that mixes examples must talk in the forward pass; randomness belongs to the example.
# 3. Compare with one device: a wrong replica raises no error.
#
# This code lives in `pmapdp/models/batch_norm.py`, `pmapdp/models/layers.py` (dropout), `pmapdp/loss.py` (sums, keys) and
# `pmapdp/data/batches.py` (padding). All this wiring disappears in [lesson
# 08](08_let_the_compiler_do_it.ipynb), where the compiler splits the program of one device.

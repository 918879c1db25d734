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
# After this lesson you can train a network with batch norm and dropout on any number of devices and get the result of one
# device, also when the batch size is no multiple of the number of devices.
#
# About 35 minutes, in two halves: batch norm, then dropout and metrics · before:
# [06 Average gradients](06_average_gradients.ipynb) · next: [08 Let the compiler do it](08_let_the_compiler_do_it.ipynb)
#
# In lesson 06 it was enough to average the gradients, because no example depended on another one. Three things break
# that. **Batch norm** mixes the examples of a batch. **Dropout** draws random numbers. A **ragged batch** gives the
# devices different numbers of examples. This lesson computes in float64, so that a difference is a mistake and not
# rounding.

# %%
import inspect
import re
import time

import drawing
import jax
import jax.numpy as jnp
import numpy as np
import optax
from checks import check
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pictures import lesson_07

from pmapdp import devices
from pmapdp.data.batches import Batches
from pmapdp.models.batch_norm import BatchNorm
from pmapdp.models.convnet import ConvNet
from pmapdp.models.layers import Context, Dropout, example_keys
from pmapdp.registry import load_data
from pmapdp.state import Task, create_state
from pmapdp.steps import make_steps
from pmapdp.steps.shared import Body

devices.simulate(8)
jax.config.update("jax_enable_x64", True)
drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
data = load_data(DATASET)
print(devices.describe(jax.devices()))

# %% [markdown]
# ## A ragged batch
#
# Put four examples on two devices, three on the first and one on the second. All devices run one program on arrays of one
# shape, so each has three rows. The two rows that are left over hold **padding**, which may have any finite value and has
# **weight** 0. As in lesson 06, each device reduces its values to a sum and a count, and the division comes after the
# all-reduce.

# %%
lesson_07.sums_and_counts()

values = jnp.array([[1.0, 2, 3], [7, 0, 0]])  # [N, b]
weights = jnp.array([[1.0, 1, 1], [1, 0, 0]])  # [N, b]


def mean(v, w):
    total, count = lax.psum(((v * w).sum(), w.sum()), "data")
    return total / count


print("on both devices:", jax.pmap(mean, axis_name="data")(values, weights))
assert (jax.pmap(mean, axis_name="data")(values, weights) == 3.25).all()

# %% [markdown]
# The mean of 1, 2, 3 and 7 is 3.25. A mean of the two local means would be (2 + 7) / 2 = 4.5, as in lesson 06.
#
# ## Batch norm
#
# In training, batch norm subtracts the mean of the batch and divides by its standard deviation, for each channel. Then
# it multiplies by a learned scale (gamma) and adds a learned bias (beta). Inside `pmap`, `x.mean(0)` is the mean of
# this device's rows alone, so the layer must average over the mapped axis. PyTorch calls that `SyncBatchNorm`.
#
# Take the values 0 and 2 on device 0, and 10 and 12 on device 1. **Predict** the output without and with the axis.


# %%
def batch_norm(x, gamma, beta, axis_name=None):  # [b, C], [C], [C] to [b, C]
    mean, square = x.mean(0), (x**2).mean(0)
    if axis_name is not None:
        mean, square = lax.pmean((mean, square), axis_name)  # <- new
    return gamma * (x - mean) / jnp.sqrt(square - mean**2) + beta


batch, one, zero = jnp.array([[[0.0], [2.0]], [[10.0], [12.0]]]), jnp.ones(1), jnp.zeros(1)  # batch [N, b, C]
local = jax.pmap(lambda x: batch_norm(x, one, zero), axis_name="data")(batch)
synchronised = jax.pmap(lambda x: batch_norm(x, one, zero, "data"), axis_name="data")(batch)  # <- changed
one_device = batch_norm(batch.reshape(4, 1), one, zero)
print("local       ", local.ravel())
print("synchronised", synchronised.ravel().round(3))
print("one device  ", one_device.ravel().round(3))
np.testing.assert_allclose(local.ravel(), [-1, 1, -1, 1])
np.testing.assert_allclose(synchronised.ravel(), one_device.ravel(), atol=1e-12)

# %% [markdown]
# Local batch norm cannot tell 0 from 10. The synchronised layer uses the mean 6 and the variance 26 of all four values,
# although the variance on each device is 1.
#
# These five lines have two defects: they count padding, and a variance computed as E[x²] - E[x]² loses its digits when
# the mean is large. Flax' own layer has an `axis_name` too. Does it do better? **Predict** its mean for the ragged batch
# above, and its variance for values around 20,000 in float32.


# %%
def flax_moments(x, weights):
    layer = nnx.BatchNorm(1, axis_name="data", momentum=0.0, rngs=nnx.Rngs(0))
    layer(x[:, None], use_running_average=False, mask=weights[:, None] > 0)
    return layer.mean[...], layer.var[...]  # with momentum 0: those of this batch


flax_mean, _ = jax.pmap(flax_moments, axis_name="data")(values.astype(jnp.float32), weights)
far = values.astype(jnp.float32) + 20_000
_, flax_variance = jax.pmap(flax_moments, axis_name="data")(far, jnp.ones_like(weights))
print(f"nnx.BatchNorm: mean {flax_mean[0, 0]} instead of 3.25")
print(f"nnx.BatchNorm: variance {flax_variance[0, 0]} around 20,000 instead of {values.var():.3f}")
assert flax_mean[0, 0] == 4.5
assert flax_variance[0, 0] == 0

# %% [markdown]
# `nnx.BatchNorm` averages the means of the devices, so device 1's single example counts three times as much as each of
# the others. Its variance is E[x²] - E[x]² by default (`use_fast_variance=True`). So it is right for equal counts and
# ordinary activations, and wrong for a ragged batch.
#
# The layer of pmapdp averages sums and counts over the axis, and divides afterwards, as in the picture. It is printed at
# the end of this lesson. It subtracts the running mean before it squares, so the variance keeps its digits as soon as the
# running mean is near the mean of the batches. It has a bias and no scale, because in our network a linear layer follows
# after the ReLU, and can scale as well. Compare its mean and variance with those of the four valid values.


# %%
def own_moments(x, weights, running_mean):
    layer = BatchNorm(1, param_dtype=x.dtype)
    layer.mean[...] = jnp.full(1, running_mean, x.dtype)
    return layer.moments(x[:, None], Context(weights, train=True, axis_name="data"))


moments = jax.pmap(own_moments, axis_name="data", in_axes=(0, 0, None))
own_mean, own_variance = moments(values, weights, 0.0)
_, far_variance = moments(far, jnp.ones_like(weights), 20_000.0)  # float32
print("pmapdp:", own_mean.ravel(), own_variance.ravel(), "| around 20,000:", far_variance.ravel())
valid = values[weights > 0]
np.testing.assert_allclose(own_mean.ravel(), valid.mean(), rtol=1e-12)
np.testing.assert_allclose(own_variance.ravel(), valid.var(), rtol=1e-12)
np.testing.assert_allclose(far_variance.ravel(), values.var(), rtol=1e-3)

# %% [markdown]
# Both devices have the mean and the variance of the four valid values. The variance around 20,000 is right within 0.1 %.
#
# ## Dropout
#
# JAX has no global random state: the same **key** and shape give the same random array, and `fold_in(key, number)` makes
# another key (lesson 02). Which key should a device use? Here are three schemes, each the code of one device that holds
# the examples with these indices and has twelve activations for each of them. The third one borrows two things from
# pmapdp: `example_keys`, which you write in the first exercise, and a dropout layer that takes such keys.


# %%
def same_key(key, indices):
    return jax.random.bernoulli(key, 0.5, (len(indices), 12))


def key_per_device(key, indices):
    key = jax.random.fold_in(key, lax.axis_index("data"))  # <- new
    return jax.random.bernoulli(key, 0.5, (len(indices), 12))


def key_per_example(key, indices):
    keys = example_keys(0, 5, indices)  # <- changed: from (seed, step, index of the example)
    return Dropout(0.5)(jnp.ones((len(indices), 12)), Context(keys=keys, train=True)) > 0


# %% [markdown]
# Apply them to eight examples on 1, 2 and 4 devices. In the picture, an activation that is kept has the colour of its
# device. **Predict** which scheme gives the same mask three times.


# %%
def mask(scheme, N):  # bool [8, 12], from N devices
    mapped = jax.pmap(scheme, axis_name="data", in_axes=(None, 0), devices=jax.devices()[:N])
    return np.asarray(mapped(jax.random.key(0), np.arange(8).reshape(N, -1))).reshape(8, 12)


masks = {s.__name__: {N: mask(s, N) for N in (1, 2, 4)} for s in (same_key, key_per_device, key_per_example)}
lesson_07.masks(masks)
for name, of_counts in masks.items():
    assert all((each == of_counts[1]).all() for each in of_counts.values()) == (name == "key_per_example")

# %% [markdown]
# With one key on all devices, the devices repeat each other's mask, so the noise is not independent. With a key for
# each device, the masks are independent, but another number of devices gives another training run. With a key for each
# example, the masks are independent and do not depend on the number of devices.
#
# The question comes up with `pmap` and `shard_map`, where the program sees one device's rows. Under `jit` (lesson 08) the
# program sees the global batch. **Predict:** does one key give the same mask there when the batch is split over devices?

# %%
split = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
over_eight = jax.jit(same_key, static_argnums=1, out_shardings=split)(jax.random.key(0), range(8))
equal = bool((over_eight == masks["same_key"][1]).all())
print(f"under jit on {len(over_eight.devices())} devices: the mask of one device = {equal}")
assert equal

# %% [markdown]
# It does: the compiler lets each device draw its own rows of the one mask.
#
# ## Proof: one network, any number of devices
#
# `ConvNet` is the network of Keras' guide to data parallelism, with three batch norms and a dropout. `run` makes two
# updates with 20 examples each. On 8 devices, each device gets three rows, and four of the 24 rows are padding.

# %%
task = Task(ConvNet, optax.sgd(0.1), dtype="float64")
start = create_state(task)


def run(steps, devices):
    """The state after two updates on this many devices, the compiled step, and a batch for it."""
    state, batches = steps.place_state(start), Batches(data.train, 20, devices=devices, shuffle_seed=0)
    placed = [steps.place_batch(batch) for batch, _ in zip(batches.epoch(0), range(2), strict=False)]
    compiled = steps.train_step.lower(state, placed[0]).compile()
    for batch in placed:
        state, sums = compiled(state, batch)
        assert sums.count == 20
    print(f"{devices} device(s), inputs {placed[0].inputs.shape}, weights {placed[0].weights.sum(-1)}")
    return state, compiled, placed[0]


# %% [markdown]
# Run it on 1 and on 8 devices. The tolerance is 1e-12, in float64.


# %%
def difference(state, reference):
    pairs = zip(jax.tree.leaves(jax.device_get(state)), jax.tree.leaves(reference), strict=True)
    return max(np.abs(x - y).max() for x, y in pairs)


reference = jax.device_get(run(make_steps("single", task, jax.devices()), 1)[0])
mapped = make_steps("pmap", task, jax.devices())
state, exact_step, placed = run(mapped, 8)
print(f"largest difference of parameters and statistics: {difference(state, reference):.0e}")
assert difference(state, reference) < 1e-12

# %% [markdown]
# Parameters and running statistics agree, with batch norm, dropout and padding.
#
# ## How it fails: no error, a falling loss, eight models
#
# Take the step of pmapdp again (the end of lesson 06 printed it; `Body` holds what all its strategies share), but do not
# tell batch norm the axis. The gradients are still averaged. `out_axes=None` promises JAX that all devices hold the same
# state, and JAX does not check it. **Predict** what the devices hold.


# %%
def forgetful_step(state, batch):
    body = Body(task, axis_name=None)  # <- changed: batch norm sees its own device only
    gradients, sums, batch_stats = body.gradient_sums(state, batch)
    gradients, count = lax.pmean((gradients, sums.count), "data")
    return body.update(state, gradients, count, batch_stats), lax.psum(sums, "data")


axes = {"axis_name": "data", "in_axes": (None, 0), "out_axes": None}
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
# The devices hold eight different running means (device 7 has nothing but padding, and keeps its 0). A checkpoint would
# save only one of them. Two habits catch this: compare with one device, and compare the copies.
#
# ## Metrics
#
# An evaluation must count every test example once. The test set is cut into batches of 100, and the last one has 60.
# (Our network has made two updates, so its accuracy is near chance.) The next cell adds up sums and counts, and also
# takes the mean of the devices' accuracies. **Predict** the accuracy of a device that holds nothing but padding.


# %%
def report(state, batch):
    sums = Body(task).evaluation_sums(state, batch)
    return lax.psum(sums, "data"), lax.pmean(sums.correct / sums.count, "data")


correct, count, means = 0, 0, []
for batch in Batches(data.test, 100, devices=8).epoch(0):
    sums, mean_accuracy = jax.pmap(report, **axes)(state, mapped.place_batch(batch))
    correct, count = correct + sums.correct, count + sums.count  # <- right: add up, divide at the end
    means.append(float(mean_accuracy))
print("valid examples on each device, last batch:", batch.weights.reshape(8, -1).sum(1))
print("mean of means, batch by batch:", np.round(means, 3))
print(f"exact: {correct:.0f} of {count:.0f}")
assert count == len(data.test.labels)
assert np.isnan(means[-1]) or DATASET != "digits"

# %% [markdown]
# A device without examples divides 0 by 0, and its NaN spreads through `pmean` to all. With sums and counts this does not
# happen.
#
# ## What it costs
#
# Synchronised batch norm communicates in the middle of the forward pass, and again in the backward pass. The next layer
# has to wait for it, so it cannot overlap with other work as the all-reduce of the gradients can (lesson 06). **Predict**
# how many all-reduces the synchronised program has more than the local one, for three batch norms. (The times are those
# of simulated devices, where threads of one machine wait for each other: there, the program with fewer all-reduces is not
# always the faster one.)

# %%
print(f"{devices.describe(jax.devices())}, jax {jax.__version__}")
counts = {}
for name, step in {"synchronised": exact_step, "local": forgetful_compiled}.items():
    counts[name] = len(re.findall(r" all-reduce(?:-start)?\(", step.as_text()))
    state, times = mapped.place_state(start), []
    for _ in range(20):
        clock = time.perf_counter()
        state, _ = jax.block_until_ready(step(state, placed))
        times.append(time.perf_counter() - clock)
    print(f"{name}: {counts[name]} all-reduce(s), {1000 * min(times):.0f} ms for the fastest step")
assert counts["synchronised"] >= counts["local"] + 6

# %% [markdown]
# Six more: one for each batch norm in the forward pass, and one in the backward pass. Each must finish before the next
# layer can start, so the compiler cannot combine them. It did combine those of the gradients and the metrics.
#
# ## Exercises
#
# Each function is the code of one device, and the mapped axis is `"data"`. Solutions, with reasons:
# [solutions/07_batch_norm_dropout_and_metrics.py](solutions/07_batch_norm_dropout_and_metrics.py).
#
# 1. `row_keys` (5 minutes): return `[b]` keys, one for each example, which depend on `seed`, `step` and the index of the
#    example, and on nothing else. <details><summary>Hint</summary><code>jax.random.fold_in</code> twice: once with the step, and inside
#    <code>jax.vmap</code> with each index.</details>
# 2. `global_variance` (10 minutes): the weighted variance over all devices. For 0 and 2 on one device and 10 and 12 on
#    another, it is 26 on both. It must be right for values around 20,000, too. <details><summary>Hint</summary>Two passes: first the global mean
#    from a sum and a count, then the same for the squared distances from that mean.</details>
# 3. `mended_mean` (find the mistake): `broken_mean` is right for every full batch, and wrong for the last batch of an
#    epoch. Write it correctly. <details><summary>Hint</summary>What does <code>len(x)</code>
#    count?</details>


# %%
def broken_mean(x, weights):  # [b, C], [b] to [C]
    total = lax.psum((weights[:, None] * x).sum(0), "data")
    return total / lax.psum(len(x), "data")


def row_keys(seed, step, indices):
    """One random key for each example: integers and `[b]` indices to `[b]` keys."""
    ...  # your code: 2 lines


def global_variance(values, weights):
    """Variance of the valid values on all devices: `[b]`, `[b]` to `[]`."""
    ...  # your code: 2 to 4 lines


def mended_mean(x, weights):
    """Mean over the valid examples of all devices: `[b, C]`, `[b]` to `[C]`."""
    ...  # your code: 2 lines


for exercise in (row_keys, global_variance, mended_mean):
    check("07_batch_norm_dropout_and_metrics", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Exchange sums and counts between devices and between steps, and divide once, at the end. Padding has weight 0.
# - A layer that mixes examples must communicate in the forward pass. A key for each example makes random numbers
#   independent of the number of devices.
# - Compare with one device: a wrong replica raises no error.
#
# The layer is in [models/batch_norm.py](../pmapdp/models/batch_norm.py), printed below. Dropout and its keys are in
# [models/layers.py](../pmapdp/models/layers.py), the sums in [loss.py](../pmapdp/loss.py), and the padding in
# [data/batches.py](../pmapdp/data/batches.py). To read on: [Batch normalization](https://arxiv.org/abs/1502.03167),
# [JAX' random numbers](https://docs.jax.dev/en/latest/random-numbers.html). Next, the compiler takes all this work over:
# [08 Let the compiler do it](08_let_the_compiler_do_it.ipynb).

# %%
print(inspect.getsource(BatchNorm))
assert "lax.pmean" in inspect.getsource(BatchNorm)

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
# # 07. Synchronize batch norm
#
# After this lesson you can write a batch norm layer that gives the same result on any number of devices, train a network
# with it, and say when the layer of Flax is not enough.
#
# About 30 minutes · before: [05 Average gradients](05_average_gradients.ipynb) · next:
# [08 Keep dropout and metrics exact](08_keep_dropout_and_metrics_exact.ipynb)
#
# In lesson 05 it was enough to average the gradients, because the loss of one example did not depend on the others. Batch
# norm changes that: it normalizes each example with the mean and the variance of its batch. As in lesson 05, we compute
# in float64, so that a large difference is a mistake and not rounding.

# %%
import inspect
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax

from pmapdp import devices
from pmapdp.compare.collectives import collectives
from pmapdp.data.batches import Batches
from pmapdp.models import batch_norm
from pmapdp.registry import load_data
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_07

chosen = devices.choose(8)  # 8 simulated CPU devices; nothing of JAX may run before this line
jax.config.update("jax_enable_x64", True)
drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
data = load_data(DATASET)
print(devices.describe(chosen))

# %% [markdown]
# ## Four values, two devices
#
# In training, batch norm subtracts the mean of the batch and divides by its standard deviation, for each channel. Inside
# `pmap`, `x.mean(0)` is the mean of this device's rows alone. To get the mean of the global batch, the layer must
# average over the mapped axis. PyTorch calls such a layer `SyncBatchNorm`.
#
# Take the values 0 and 2 on device 0, and 10 and 12 on device 1. **Predict** the output without and with the average.


# %%
def standardize(x, axis_name=None):  # [b, C] to [b, C]
    mean, square = x.mean(0), (x**2).mean(0)
    if axis_name is not None:
        mean, square = lax.pmean((mean, square), axis_name)  # <- new
    return (x - mean) / jnp.sqrt(square - mean**2)


batch = jnp.array([[[0.0], [2.0]], [[10.0], [12.0]]])  # [N, b, C]
local = jax.pmap(standardize, axis_name="data")(batch)
synchronized = jax.pmap(lambda x: standardize(x, "data"), axis_name="data")(batch)  # <- changed
one_device = standardize(batch.reshape(4, 1))
print("local       ", local.ravel())
print("synchronized", synchronized.ravel().round(3))
print("one device  ", one_device.ravel().round(3))
np.testing.assert_allclose(local.ravel(), [-1, 1, -1, 1])
np.testing.assert_allclose(synchronized.ravel(), one_device.ravel(), atol=1e-12)

# %% [markdown]
# Without the average, 0 and 10 become the same number, and so do 2 and 12. With it, every device uses the mean 6 and the
# variance 26 of all four values, although the variance of its own two is 1. Note that the layer averages the *squares*
# and not the variances.
#
# ## When is the layer of Flax enough?
#
# `nnx.BatchNorm` averages in the same way if you give it an `axis_name`. Try it in three cases: full batches as above; a
# **ragged** batch, where device 0 has three examples and device 1 has only one; and values around 20,000 in float32. In the
# ragged case, device 1 fills its array with two rows of padding, which `mask` excludes. **Predict** which cases come out
# right.


# %%
def flax_moments(x, valid, fast=True):
    layer = nnx.BatchNorm(1, axis_name="data", momentum=0.0, use_fast_variance=fast, rngs=nnx.Rngs(0))
    layer(x[:, None], use_running_average=False, mask=valid[:, None])
    return layer.mean[0], layer.var[0]  # with momentum 0, these are the moments of this batch


of_flax = jax.pmap(flax_moments, axis_name="data")
slow = jax.pmap(lambda x, valid: flax_moments(x, valid, fast=False), axis_name="data")
full, all_valid = batch[..., 0].astype(jnp.float32), jnp.ones((2, 2), bool)
ragged = jnp.array([[1.0, 2, 3], [7, 0, 0]])  # [N, b]
weights = jnp.array([[1.0, 1, 1], [1, 0, 0]])  # [N, b], 0 for padding
cases = {
    "full": (of_flax(full, all_valid), full.var()),
    "ragged": (of_flax(ragged.astype(jnp.float32), weights > 0), ragged[weights > 0].var()),
    "around 20,000": (of_flax(full + 20_000, all_valid), full.var()),
    "around 20,000, use_fast_variance=False": (slow(full + 20_000, all_valid), full.var()),
}
for name, ((mean, variance), right) in cases.items():
    print(f"{name}: mean {mean[0]:g}, variance {variance[0]:.4g}, right is {right:.4g}")
found = {name: (float(mean[0]), float(variance[0])) for name, ((mean, variance), _) in cases.items()}
assert found["full"] == (6, 26)
assert found["ragged"][0] == 4.5
assert abs(found["around 20,000"][1] - 26) > 1
assert found["around 20,000, use_fast_variance=False"] == (20_006, 26)

# %% [markdown]
# Full batches come out right. For the ragged batch the mean of 1, 2, 3 and 7 is 3.25, but the layer says 4.5: it averages
# the means of the devices, 2 and 7, so the single example of device 1 counts three times as much as each of the others.
# For large values, the variance E[x²] - E[x]² is the small difference of two large numbers, and float32 keeps only seven
# digits. `use_fast_variance=False` cures that, with a second all-reduce.
#
# So `nnx.BatchNorm(..., axis_name="data")` is right if all devices hold equally many valid examples. If you drop no example,
# the last batch of an epoch is usually ragged. Then you need another layer.
#
# ## Sums and counts
#
# The cure is the one of lesson 05: a device reduces its values to a sum and a count, the all-reduce averages both, and
# the division comes last. All devices run one program on arrays of one shape, so rows without an example hold **padding**.
# It may have any finite value, and its **weight** is 0.

# %%
lesson_07.sums_and_counts()


def global_mean(values, weights):  # [b], [b] to []
    total, count = lax.pmean(((values * weights).sum(), weights.sum()), "data")
    return total / count


means = jax.pmap(global_mean, axis_name="data")(ragged, weights)
print("on both devices:", means)
assert (means == 3.25).all()

# %% [markdown]
# Both devices have the mean of the four valid values. (The picture adds up with `psum`. The factor 1/N of `pmean` cancels
# in the division, so both are right.)
#
# ## The whole layer
#
# Now write batch norm as in a textbook: a learned scale (gamma) and a learned bias (beta), and running averages of the
# moments, which evaluation uses. Only three things are new: the weights, the line with `lax.pmean`, and the variance. It
# is computed as E[(x - k)²] - (E[x] - k)², which is the same number for any k. If k is the running mean, both terms are
# small, so few digits are lost, and one all-reduce is enough.


# %%
class BatchNorm(nnx.Module):
    def __init__(self, features: int):
        self.scale, self.bias = nnx.Param(jnp.ones(features)), nnx.Param(jnp.zeros(features))
        self.mean, self.variance = nnx.BatchStat(jnp.zeros(features)), nnx.BatchStat(jnp.ones(features))

    def __call__(self, x, weights=None, axis_name=None):  # [b, C], [b] to [b, C]; no weights: evaluation
        if weights is None:
            mean, variance = self.mean[...], self.variance[...]
        else:
            mean, variance = self.moments(x, weights, axis_name)
        return self.scale[...] * (x - mean) / jnp.sqrt(variance + 1e-5) + self.bias[...]

    def moments(self, x, weights, axis_name):
        k = self.mean[...]
        sums = [(weights[:, None] * each).sum(0) for each in (x, (x - k) ** 2)]
        count = weights.sum()
        if axis_name is not None:
            sums, count = lax.pmean((sums, count), axis_name)  # <- new
        mean = sums[0] / count
        variance = sums[1] / count - (mean - k) ** 2
        self.mean[...] = 0.9 * k + 0.1 * mean
        self.variance[...] = 0.9 * self.variance[...] + 0.1 * variance
        return mean, variance


def own_moments(x, weights, running_mean):
    layer = BatchNorm(1)
    layer.mean[...] = jnp.full(1, running_mean)
    return layer.moments(x[:, None], weights, "data")


of_layer = jax.pmap(own_moments, axis_name="data", in_axes=(0, 0, None))
mean, variance = of_layer(ragged, weights, 0.0)
in_float32 = (ragged + 20_000).astype(jnp.float32), weights.astype(jnp.float32), jnp.float32(20_000)
_, far = of_layer(*in_float32)
print("ragged:", mean.ravel(), variance.ravel(), "| around 20,000 in float32:", far.ravel())
np.testing.assert_allclose(mean.ravel(), ragged[weights > 0].mean(), rtol=1e-12)
np.testing.assert_allclose(variance.ravel(), ragged[weights > 0].var(), rtol=1e-12)
np.testing.assert_allclose(far.ravel(), ragged[weights > 0].var(), rtol=1e-3)

# %% [markdown]
# Mean and variance are those of the four valid values, within 1e-12 in float64, and within 0.1 % around 20,000 in float32.
#
# ## Train with it
#
# Take a small network with the layer in the middle. `nnx.split` separates the parameters, which the optimizer moves, from
# the running averages, which only the forward pass moves.


# %%
class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        float64 = {"param_dtype": jnp.float64, "rngs": rngs}
        # Without a bias, because batch norm would take it away again.
        self.hidden = nnx.Linear(784, 32, use_bias=False, **float64)
        self.norm = BatchNorm(32)
        self.logits = nnx.Linear(32, 10, **float64)

    def __call__(self, images, weights=None, axis_name=None):  # uint8 [b, 28, 28, 1] to [b, 10]
        x = self.hidden(images.reshape(len(images), -1) / 255.0)
        return self.logits(nnx.relu(self.norm(x, weights, axis_name)))


structure, params, running = nnx.split(Network(nnx.Rngs(0)), nnx.Param, nnx.BatchStat)
print(jax.tree.map(jnp.shape, nnx.to_pure_dict(running)))

# %% [markdown]
# The step is that of lesson 05 with one thing more: the running averages are a part of the state, so the step takes them
# and returns the new ones. It gets two axis names, one for the gradients and one for batch norm, so that you can forget
# the second one below. (`copy=True`, because the layer assigns to its running averages while JAX traces.)


# %%
def make_step(axis_name, norm_axis_name):
    def step(state, batch):
        params, running = state

        def loss_sum(params):
            model = nnx.merge(structure, params, running, copy=True)
            logits = model(batch.inputs, batch.weights, norm_axis_name)  # <- new
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
            return (batch.weights * losses).sum(), nnx.state(model, nnx.BatchStat)  # <- new

        (loss, new_running), gradients = jax.value_and_grad(loss_sum, has_aux=True)(params)
        sums = gradients, loss, batch.weights.sum()
        gradients, loss, count = sums if axis_name is None else lax.pmean(sums, axis_name)
        params = jax.tree.map(lambda w, g: w - 0.1 * g / count, params, gradients)
        return (params, new_running), loss / count

    return step


axes = {"axis_name": "data", "in_axes": (None, 0), "out_axes": None}
one_device = jax.jit(make_step(None, None))
synchronized = jax.pmap(make_step("data", "data"), **axes)

# %% [markdown]
# ## Proof: 20 examples on 1 and on 8 devices
#
# Make the batches ragged on purpose: 20 examples do not divide by 8. So each device gets three rows, and four of the 24
# rows are padding. After ten updates, parameters and running averages must equal those of one device within 1e-12.


# %%
def train(step, batch_size, N):
    """The state after ten updates, the losses, and the last batch."""
    state, losses = (params, running), []
    for batch in list(Batches(data.train, batch_size, devices=N, shuffle_seed=0).epoch(0))[:10]:
        if N > 1:
            batch = jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch)  # [N, b, ...]
        state, loss = step(state, batch)
        losses.append(float(loss))
    return state, losses, batch


def distance(tree, other):
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


reference, _, _ = train(one_device, 20, 1)
state, _, last = train(synchronized, 20, 8)
print("valid examples on each device:", last.weights.sum(1))
print(f"largest difference {distance(state, reference):.0e}")
assert distance(state, reference) < 1e-12
assert distance(state, (params, running)) > 0.1

# %% [markdown]
# They are equal, although device 7 holds nothing but padding. So the gradients are right, too: JAX differentiates through
# `pmean`, and the backward pass takes into account that a mean depends on the examples of all devices.
#
# ## How it fails: no error, a falling loss, eight models
#
# Now forget the axis in batch norm, and average only the gradients. The batches are full, 24 examples. **Predict** what
# the devices hold after ten updates: the same parameters? The same running averages?

# %%
forgetful = jax.pmap(make_step("data", None), **axes)  # <- changed: batch norm sees its own device only
reference, _, _ = train(one_device, 24, 1)
(wrong_params, wrong_running), losses, last = train(forgetful, 24, 8)
running_mean = wrong_running["norm"]["mean"][...]
copies = np.array([shard.data for shard in running_mean.addressable_shards])
print(f"loss from {losses[0]:.2f} to {losses[-1]:.2f}")
print("JAX says: fully replicated =", running_mean.is_fully_replicated)
print("running mean of unit 0 on each device:", copies[:, 0].round(4))
print(f"parameters differ from those of one device by {distance(wrong_params, reference[0]):.0e}")
kernel = wrong_params["hidden"]["kernel"][...]
assert all(np.array_equal(shard.data, kernel) for shard in kernel.addressable_shards)
assert running_mean.is_fully_replicated
assert losses[-1] < losses[0]
assert np.ptp(copies, axis=0).max() > 1e-3
assert distance(wrong_params, reference[0]) > 1e-3

# %% [markdown]
# All devices hold the same parameters, because their gradients were averaged. But the parameters are not those of one
# device, and the running averages differ from device to device. A checkpoint saves those of one device only, and
# evaluation on another one gives another accuracy. As in lesson 05, two habits catch this: compare with one device, and
# compare the copies.
#
# Some programs use local batch norm on purpose. It is cheaper, and if each device has many examples, the model is hardly
# worse. Such a program must average the running averages over the devices before it saves them.
#
# ## What it costs
#
# Synchronized batch norm communicates in the middle of the forward pass. The next layer has to wait for it, so it cannot
# overlap with other work as the all-reduce of the gradients can. **Predict** how many all-reduces the synchronized step
# has more than the local one, for one layer of batch norm.

# %%
print(f"{devices.describe(chosen)}, jax {jax.__version__}")
counts = {}
for name, step in {"synchronized": synchronized, "local": forgetful}.items():
    program = step.lower((params, running), last).compile()
    (all_reduces,) = collectives(program.as_text())
    counts[name], times = all_reduces.count, []
    for _ in range(20):
        clock = time.perf_counter()
        jax.block_until_ready(program((params, running), last))
        times.append(time.perf_counter() - clock)
    print(f"{name}: {counts[name]} x {all_reduces.kind}, fastest of 20 steps {1000 * min(times):.1f} ms")
assert counts["synchronized"] >= counts["local"] + 2

# %% [markdown]
# Two more: one in the forward pass, and one in the backward pass. The compiler cannot combine them with the all-reduce of
# the gradients, because the next layer needs their results. A network with 50 such layers has 100 more. (The times are
# those of threads in one machine, and say nothing about a network.)
#
# ## Exercises
#
# Each function runs on every device inside `pmap`, and the mapped axis is `"data"`. Solutions, with reasons:
# [solutions/07_synchronize_batch_norm.py](solutions/07_synchronize_batch_norm.py).
#
# 1. `global_variance` (5 minutes): the weighted variance over all devices, in two passes. For 0 and 2 on one device and 10
#    and 12 on another, it is 26 on both. It must be right for values around 20,000 in float32, too.
#    <details><summary>Hint</summary>First the global mean, from a sum and a count. Then the same for the squared distances
#    from that mean.</details>
# 2. `standardize_backward` (10 minutes): the backward pass of `standardize(x, "data")`, by hand. You wrote it for one
#    device in lesson 01. Here `x` and `g` `[b, C]` are this device's rows of the examples and of the gradient with respect
#    to the output. Return this device's rows of the gradient with respect to `x`. All devices hold equally many examples,
#    and `jax.grad` is not allowed. <details><summary>Hint</summary>In lesson 01 it was
#    <code>(g - g.mean(0) - y * (g * y).mean(0)) / deviation</code>. Which of these means are over the global batch?</details>
# 3. `mended_centre` (find the mistake): `broken_centre` subtracts the mean of the global batch, and the training loss is
#    right. But its running mean is another one on every device, as the next cell shows. Write it correctly.
#    <details><summary>Hint</summary>Which mean goes into the running mean?</details>


# %%
def broken_centre(x, running):  # [b, C], [C]
    mean = x.mean(0)
    running = 0.9 * running + 0.1 * mean
    return x - lax.pmean(mean, "data"), running


centred, running_means = jax.pmap(broken_centre, axis_name="data", in_axes=(0, None))(batch, jnp.zeros(1))
print("centred:", centred.ravel(), "| running means:", running_means.ravel())


# %%
def global_variance(values, weights):
    """Variance of the valid values on all devices: `[b]`, `[b]` to `[]`."""
    ...  # your code: 3 or 4 lines


def standardize_backward(x, g):
    """Gradient `[b, C]` with respect to x on this device; g is that with respect to the output."""
    ...  # your code: 4 or 5 lines


def mended_centre(x, running):
    """The centred `x` `[b, C]`, and the new running mean `[C]`, equal on all devices."""
    ...  # your code: 2 or 3 lines


for exercise in (global_variance, standardize_backward, mended_centre):
    check("07_synchronize_batch_norm", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - A layer that mixes examples must communicate in the forward pass, and JAX then communicates in the backward pass, too.
# - Average sums and counts, and divide afterwards. `nnx.BatchNorm(axis_name=...)` averages means, which is right only for
#   equal counts.
# - The running averages are state. Return them from the step, and make sure that all devices hold the same.
#
# In pmapdp the layer is in [models/batch_norm.py](../src/pmapdp/models/batch_norm.py), printed below. It differs from yours in
# five ways. Weights and axis name come in one argument, `context`. It also takes images `[b, H, W, C]`. It subtracts k, the
# running mean, from x once, and continues with the difference. It has no scale, because in its networks a linear layer
# follows after the ReLU, and can scale as well. And until the 100th batch, its running averages are plain means of all
# batches so far, without the initial 0 and 1. To read on:
# [Batch normalization](https://arxiv.org/abs/1502.03167) and
# [nnx.BatchNorm](https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/nn/normalization.html). Next:
# [08 Keep dropout and metrics exact](08_keep_dropout_and_metrics_exact.ipynb).

# %%
print(inspect.getsource(batch_norm.BatchNorm))
assert "lax.pmean(" in inspect.getsource(batch_norm.BatchNorm)

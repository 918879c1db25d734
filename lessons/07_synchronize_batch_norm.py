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
# After this lesson you can write a batch norm layer that gives the same result on any number of devices, train a
# network with it, and say when the layer of Flax is enough.
#
# About 30 minutes · you need [05 Average gradients](05_average_gradients.ipynb) · next:
# [08 Keep dropout and metrics exact](08_keep_dropout_and_metrics_exact.ipynb)
#
# In lesson 05 it was enough to average the gradients, because the loss of one example did not depend on the others.
# Batch norm changes that: it normalizes each example with the mean and the variance of its batch.

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp import devices  # simulates devices (lesson 00) and describes them
from pmapdp.lessons import digits  # scans of handwritten digits as NumPy arrays

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"
data = digits.load()
print(devices.describe(jax.devices()))

# %% [markdown]
# ## Four values, two devices
#
# In training, batch norm subtracts the mean of the batch and divides by its standard deviation, for each channel.
# Inside `pmap`, `x.mean(0)` is the mean of this device's rows alone. To get the mean of the global batch, the layer
# must average over the mapped axis. PyTorch calls such a layer `SyncBatchNorm`.
#
# Take the values 0 and 2 on device 0, and 10 and 12 on device 1. **Predict** the output without and with the average.


# %% tags=["prediction"]
def standardize(x, axis_name=None):  # [b, C] to [b, C]
    mean, square = x.mean(0), (x**2).mean(0)
    if axis_name is not None:
        mean, square = lax.pmean((mean, square), axis_name)  # <- new
    return (x - mean) / jnp.sqrt(square - mean**2)


batch = jnp.array([[[0.0], [2.0]], [[10.0], [12.0]]])  # [N, b, C]
local = jax.pmap(standardize, axis_name="data")(batch)
synchronized = jax.pmap(lambda x: standardize(x, "data"), axis_name="data")(batch)  # <- changed
alone = standardize(batch.reshape(4, 1))
print("local       ", local.ravel())
print("synchronized", np.asarray(synchronized).ravel().round(3))
print("one device  ", np.asarray(alone).ravel().round(3))

# %% tags=["proof"]
# The asserts behind the answer.
np.testing.assert_allclose(local.ravel(), [-1, 1, -1, 1])
np.testing.assert_allclose(synchronized.ravel(), alone.ravel(), atol=1e-6)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Without the average, 0 and 10 become the same number, and so do 2 and 12. With it, every device uses the mean 6 and
# the variance 26 of all four values, although the variance of its own two is 1. Note that the layer averages the
# *squares* and not the variances.
#
# </details>
#
# ## When is the layer of Flax enough?
#
# `nnx.BatchNorm` averages in the same way if you give it an `axis_name`. Try it in three cases: full batches as above;
# a **ragged** batch, where device 0 has three examples and device 1 has only one; and values around 20,000. In the
# ragged case, device 1 fills its array with two rows of padding, which `mask` excludes. All numbers are float32, as in
# real training. **Predict** which cases come out right.


# %% tags=["prediction"]
from flax import nnx


def flax_moments(x, valid, fast=True):
    layer = nnx.BatchNorm(1, axis_name="data", momentum=0.0, use_fast_variance=fast, rngs=nnx.Rngs(0))
    layer(x[:, None], use_running_average=False, mask=valid[:, None])
    return layer.mean[0], layer.var[0]  # with momentum 0, these are the moments of this batch


of_flax = jax.pmap(flax_moments, axis_name="data")
slow = jax.pmap(lambda x, valid: flax_moments(x, valid, fast=False), axis_name="data")
full, all_valid = batch[..., 0], jnp.ones((2, 2), bool)
ragged = jnp.array([[1.0, 2, 3], [7, 0, 0]])  # [N, b]
weights = jnp.array([[1.0, 1, 1], [1, 0, 0]])  # [N, b], 0 for padding
cases = {
    "full": (of_flax(full, all_valid), full.var()),
    "ragged": (of_flax(ragged, weights > 0), ragged[weights > 0].var()),
    "around 20,000": (of_flax(full + 20_000, all_valid), full.var()),
    "around 20,000, use_fast_variance=False": (slow(full + 20_000, all_valid), full.var()),
}
for name, ((mean, variance), right) in cases.items():
    print(f"{name}: mean {mean[0]:g}, variance {variance[0]:.4g}, right is {right:.4g}")
found = {name: (float(mean[0]), float(variance[0])) for name, ((mean, variance), _) in cases.items()}

# %% tags=["proof"]
# The asserts behind the answer.
assert found["full"] == (6, 26)
assert found["ragged"][0] == 4.5
assert abs(found["around 20,000"][1] - 26) > 1
assert found["around 20,000, use_fast_variance=False"] == (20_006, 26)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Full batches come out right. For the ragged batch the mean of 1, 2, 3 and 7 is 3.25, but the layer says 4.5: it
# averages the means of the devices, 2 and 7, so the single example of device 1 counts three times as much as each of
# the others. For large values, the variance E[x²] - E[x]² is the small difference of two large numbers, and float32
# keeps only seven digits. `use_fast_variance=False` cures that, with a second all-reduce.
#
# </details>
#
# So `nnx.BatchNorm(..., axis_name="data")` is right if all devices hold equally many valid examples and the values are
# not far from 0, as they are behind a linear layer. But if you drop no example, the last batch of an epoch is usually
# ragged. Then you need another layer.
#
# ## Sums and counts
#
# The cure is the one of lesson 05: a device reduces its values to a sum and a count, the all-reduce averages both, and
# the division comes last. Rows without an example hold **padding**. It may have any finite value, and its **weight** is
# 0.

# %%
from pmapdp.lessons.pictures import lesson_07

lesson_07.sums_and_counts()


def global_mean(values, weights):  # [b], [b] to []
    total, count = lax.pmean(((values * weights).sum(), weights.sum()), "data")
    return total / count


means = jax.pmap(global_mean, axis_name="data")(ragged, weights)
print("on both devices:", means)
assert (means == 3.25).all()

# %% [markdown]
# Both devices have the mean of the four valid values. (The picture adds up with `psum`. The factor 1/N of `pmean`
# cancels in the division, so both are right.)
#
# ## The whole layer, and a network with it
#
# The next cell runs alone. The layer is batch norm as in a textbook: a learned scale (gamma) and a learned bias (beta),
# and running averages of the moments, which evaluation uses. Three things are special:
#
# * It averages sums and counts over the devices.
# * It subtracts the running mean from x before anything else. A shift changes no variance. But if the running mean is
#   near the mean of the batch, what is left is small, and E[x²] - E[x]² loses few digits. So one all-reduce is enough.
# * Rounding can make this difference negative, and its root NaN. So the variance is at least 0.
#
# The running averages are state that the optimizer does not move. So the module is not a pytree of parameters any more.
# `nnx.split` takes it apart into its structure, its parameters and its running averages, and `nnx.merge` puts it
# together inside the step. (`copy=True`, because the layer assigns to its running averages while JAX traces.) The step
# returns the new running averages beside the new parameters.

# %% tags=["take-home"]
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU


class BatchNorm(nnx.Module):
    def __init__(self, features):
        self.scale, self.bias = nnx.Param(jnp.ones(features)), nnx.Param(jnp.zeros(features))
        self.mean, self.variance = nnx.BatchStat(jnp.zeros(features)), nnx.BatchStat(jnp.ones(features))

    def __call__(self, x, weights=None, axis_name=None):  # [b, C], [b] to [b, C]; no weights: evaluation
        x = x - self.mean[...]
        if weights is None:
            mean, variance = 0, self.variance[...]
        else:
            mean, variance = self.moments(x, weights, axis_name)
        return self.scale[...] * (x - mean) / jnp.sqrt(variance + 1e-5) + self.bias[...]

    def moments(self, x, weights, axis_name):
        """Mean and variance `[C]` over the examples of all devices; moves the running averages."""
        sums = [(weights[:, None] * each).sum(0) for each in (jnp.ones_like(x), x, x**2)]
        if axis_name is not None:
            sums = lax.pmean(sums, axis_name)  # the average over the devices; the division comes after it
        count, total, squares = sums
        mean = total / count
        variance = jnp.maximum(squares / count - mean**2, 0)
        self.mean[...] += 0.1 * mean
        self.variance[...] += 0.1 * (variance - self.variance[...])
        return mean, variance


class Network(nnx.Module):
    def __init__(self, features, classes, rngs):
        self.hidden = nnx.Linear(features, 32, use_bias=False, rngs=rngs)  # batch norm would take a bias away again
        self.norm = BatchNorm(32)
        self.logits = nnx.Linear(32, classes, rngs=rngs)

    def __call__(self, x, weights=None, axis_name=None):  # [b, D] to [b, C]
        return self.logits(nnx.relu(self.norm(self.hidden(x), weights, axis_name)))


def make_step(structure, optimizer, axis_name=None):
    """The step (state, batch) -> (new state, loss); the state is (params, running averages, optimizer state)."""

    def step(state, batch):
        params, running, optimizer_state = state
        x, y, weights = batch

        def loss_sum(params):
            model = nnx.merge(structure, params, running, copy=True)
            losses = optax.softmax_cross_entropy_with_integer_labels(model(x, weights, axis_name), y)
            return (weights * losses).sum(), nnx.state(model, nnx.BatchStat)  # <- new: the running averages

        (loss, running), gradients = jax.value_and_grad(loss_sum, has_aux=True)(params)
        sums = gradients, loss, weights.sum()
        if axis_name is not None:
            sums = lax.pmean(sums, axis_name)
        gradients, loss, count = sums
        gradients = jax.tree.map(lambda g: g / count, gradients)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), running, optimizer_state), loss / count

    return step


def padded(x, y, devices):
    """x `[B, D]`, y `[B]` and their weights, as `[N, b, ...]`; rows of padding are 0, and so are their weights."""
    weights, padding = np.ones(len(x), np.float32), -len(x) % devices
    filled = [np.pad(a, [(0, padding)] + [(0, 0)] * (a.ndim - 1)) for a in (x, y, weights)]
    return tuple(a.reshape(devices, -1, *a.shape[1:]) for a in filled)


def clouds(n, seed):
    """n points in ten overlapping clouds, and the numbers of their clouds. Put your own arrays in its place."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, n)
    centres = np.random.default_rng(0).normal(size=(10, 64))
    return (centres[labels] + 1.5 * random.normal(size=(n, 64))).astype(np.float32), labels.astype(np.int32)


x, y = clouds(600, seed=1)
x_test, y_test = clouds(300, seed=2)

network = Network(x.shape[1], int(y.max()) + 1, nnx.Rngs(0))
structure, params, running = nnx.split(network, nnx.Param, nnx.BatchStat)
optimizer = optax.sgd(0.1, momentum=0.9)
start = params, running, optimizer.init(params)
axes = {"axis_name": "data", "in_axes": (None, 0), "out_axes": None}
step = jax.pmap(make_step(structure, optimizer, "data"), **axes)
BATCH = 60  # any number: as 60 does not divide by 8, the last device has padding; but see that no batch is tiny

state = start
for epoch in range(3):
    order, losses = np.random.default_rng(epoch).permutation(len(x)), []
    for first in range(0, len(x), BATCH):
        rows = order[first : first + BATCH]
        state, loss = step(state, padded(x[rows], y[rows], jax.device_count()))
        losses.append(loss)
    trained = nnx.merge(structure, *state[:2])
    accuracy = (trained(x_test).argmax(-1) == y_test).mean()  # with the running averages
    print(f"epoch {epoch + 1}: loss {np.mean(jax.device_get(losses)):.3f}, test accuracy {accuracy:.3f}")
assert accuracy > 0.9

# %% [markdown]
# The sums make any batch right, however ragged. But the moments of three examples say little about the data. If so few
# are left at the end of an epoch, leave them out of the training, or choose another batch size. (PyTorch raises an
# error for a single row.)
#
# ## Proof: the moments, in float32
#
# First the layer alone, on the ragged batch, and on the ragged batch plus 20,000. **Predict:** is the variance right if
# the running mean is still 0? And if it is 20,000?


# %% tags=["prediction"]
def own_moments(values, weights, running_mean):
    layer = BatchNorm(1)
    layer.mean[...] = jnp.full(1, running_mean)
    mean, variance = layer.moments(values[:, None] - running_mean, weights, "data")
    return running_mean + mean[0], variance[0]


of_layer = jax.pmap(own_moments, axis_name="data", in_axes=(0, 0, None))
for shift, running_mean in ((0.0, 0.0), (20_000.0, 0.0), (20_000.0, 20_000.0)):
    mean, variance = of_layer(ragged + shift, weights, running_mean)
    print(f"shift {shift:6g}, running mean {running_mean:6g}: mean {mean[0]:10.2f}, variance {variance[0]:.4f}")
print(f"right is {ragged[weights > 0].var():.4f};", "the numbers are", variance.dtype)

# %% tags=["proof"]
# The asserts behind the answer.
assert variance.dtype == jnp.float32
np.testing.assert_allclose(variance, ragged[weights > 0].var(), rtol=1e-3)
np.testing.assert_allclose(mean, 20_003.25, rtol=1e-6)

# %% [markdown]
# <details><summary>Answer</summary>
#
# With a running mean near the mean of the batch, the variance is right within 0.1 %. In the first updates on data with
# such a large mean, it is not. Inputs that are scaled to about -1 to 1, as they should be, have no such mean. If yours
# have, compute the mean first and the distances from it second, with two all-reduces: the first exercise.
#
# </details>
#
# ## Proof: 20 examples on 1 and on 8 devices
#
# Make the batches of digits ragged on purpose: 20 examples do not divide by 8. So each device gets three rows, and four
# of the 24 rows are padding. After ten updates, parameters and running averages must equal those of one device within
# 1e-5.


# %%
def train(step, batch_size, devices):
    """The state after ten updates, the losses, and the last batch."""
    state, losses = start, []
    for first in range(0, 10 * batch_size, batch_size):
        rows = slice(first, first + batch_size)
        batch = padded(data.train[0][rows], data.train[1][rows], devices)
        state, loss = step(state, jax.tree.map(lambda a: a[0], batch) if devices == 1 else batch)
        losses.append(float(loss))
    return state, losses, batch


def distance(tree, other):
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


one_device = jax.jit(make_step(structure, optimizer))
reference, _, _ = train(one_device, 20, 1)
state, _, last = train(step, 20, 8)
print("valid examples on each device:", last[2].sum(1))
print(f"largest difference {distance(state[:2], reference[:2]):.0e}")
print(f"parameters moved by {distance(state[0], start[0]):.2f}")
assert distance(state[:2], reference[:2]) < 1e-5
assert distance(state[0], start[0]) > 0.1

# %% [markdown]
# They are equal up to rounding, although device 7 holds nothing but padding. So the gradients are right, too: JAX
# differentiates through `pmean`, and the backward pass takes into account that a mean depends on the examples of all
# devices.
#
# ## How it fails: batch norm without the axis
#
# Now forget the axis in batch norm, and average only the gradients. The batches are full, 24 examples. **Predict** what
# the devices hold after ten updates: the same parameters? The same running averages?


# %% tags=["prediction"]
class Forgetful(Network):
    def __call__(self, x, weights=None, axis_name=None):
        return super().__call__(x, weights, None)  # <- changed: batch norm sees its own device only


forgetful_structure = nnx.graphdef(Forgetful(64, 10, nnx.Rngs(0)))
forgetful = jax.pmap(make_step(forgetful_structure, optimizer, "data"), **axes)
reference, _, _ = train(one_device, 24, 1)
(wrong_params, wrong_running, _), losses, last = train(forgetful, 24, 8)
running_mean = wrong_running["norm"]["mean"][...]
copies = np.array([shard.data for shard in running_mean.addressable_shards])
print(f"loss from {losses[0]:.2f} to {losses[-1]:.2f}")
print("JAX says: fully replicated =", running_mean.is_fully_replicated)
print("running mean of unit 0 on each device:", copies[:, 0].round(4))
print(f"parameters differ from those of one device by {distance(wrong_params, reference[0]):.0e}")
kernel = wrong_params["hidden"]["kernel"][...]

# %% tags=["proof"]
# The asserts behind the answer.
assert all(np.array_equal(shard.data, kernel) for shard in kernel.addressable_shards)
assert running_mean.is_fully_replicated
assert losses[-1] < losses[0]
assert np.ptp(copies, axis=0).max() > 1e-3
assert distance(wrong_params, reference[0]) > 1e-3

# %% [markdown]
# <details><summary>Answer</summary>
#
# All devices hold the same parameters, because their gradients were averaged. But the parameters are not those of one
# device, and the running averages differ from device to device. A checkpoint saves those of one device only, and
# evaluation on another one gives another accuracy. As in lesson 05, two habits catch this: compare with one device, and
# compare the copies.
#
# </details>
#
# Some programs use local batch norm on purpose. It is cheaper, and if each device has many examples, the model is
# hardly worse. Such a program must average the running averages over the devices before it saves them. (PyTorch's
# `DistributedDataParallel` does it in another way: batch norm is local unless you convert it, and before each forward
# pass all processes receive the running averages of process 0.)
#
# Under `jit` (lesson 09) the layer sees the global batch. So there `nnx.BatchNorm` is synchronized without an
# `axis_name`, and its `mask` is right for ragged batches, too.
#
# ## What it costs
#
# Synchronized batch norm communicates in the middle of the forward pass. The next layer has to wait for it, so it
# cannot overlap with other work as the all-reduce of the gradients can. **Predict** how many all-reduces the
# synchronized step has more than the local one, for one layer of batch norm.

# %% tags=["prediction"]
import re

counts = {}
for name, function in {"synchronized": step, "local": forgetful}.items():
    program = function.lower(start, last).compile().as_text()
    counts[name] = len(re.findall(r" all-reduce(?:-start)?\(", program))
    print(f"{name}: {counts[name]} all-reduces in the compiled step")

# %% tags=["proof"]
# The asserts behind the answer.
assert counts["synchronized"] == counts["local"] + 2

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two more: one in the forward pass, for count, sum and squares together, and one in the backward pass. Each sends only
# a few numbers for each channel, so it is the latency that counts (lesson 06): a network with 50 such layers waits a
# hundred times for each update.
#
# </details>
#
# ## Exercises
#
# Each function runs on every device inside `pmap`, and the mapped axis is `"data"`. Solutions, with reasons:
# [solutions/07_synchronize_batch_norm.py](solutions/07_synchronize_batch_norm.py).
#
# 1. `global_variance` (5 minutes): the weighted variance over all devices, in two passes. For 0 and 2 on one device and
#    10 and 12 on another, it is 26 on both. It must be right for values around 20,000 in float32, too.
#    <details><summary>Hint</summary>First the global mean, from a sum and a count. Then the same for the squared
#    distances from that mean.</details>
# 2. `standardize_backward` (10 minutes): the backward pass of `standardize(x, "data")`, by hand. `x` and `g` `[b, C]`
#    are this device's rows of the examples and of the gradient with respect to the output. Return this device's rows of
#    the gradient with respect to `x`. All devices hold equally many examples.
#    <details><summary>Hint</summary>On one device it is <code>(g - g.mean(0) - y * (g * y).mean(0)) / deviation</code>,
#    where y is the standardized x (the exercise of lesson 01). Which of these means are over the global
#    batch?</details>
# 3. `fixed_centre` (find the mistake): `broken_centre` subtracts the mean of the global batch, and the training loss is
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
from pmapdp.lessons.checks import check


def global_variance(values, weights):
    """Variance of the valid values on all devices: `[b]`, `[b]` to `[]`."""
    ...  # your code: 3 or 4 lines


def standardize_backward(x, g):
    """Gradient `[b, C]` with respect to x on this device; g is that with respect to the output."""
    ...  # your code: 4 or 5 lines


def fixed_centre(x, running):
    """The centred `x` `[b, C]`, and the new running mean `[C]`, equal on all devices."""
    ...  # your code: 2 or 3 lines


for exercise in (global_variance, standardize_backward, fixed_centre):
    check("07_synchronize_batch_norm", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - A layer that mixes examples must communicate in the forward pass, and JAX then communicates in the backward pass,
#   too.
# - Average sums and counts, and divide afterwards. `nnx.BatchNorm(axis_name=...)` averages means, which is right only
#   for equal counts.
# - The running averages are state. Return them from the step, and make sure that all devices hold the same.
#
# In pmapdp the layer is `ExactBatchNorm` in [layers.py](../pmapdp/layers.py). You write `nnx.BatchNorm` in your model,
# and `exchange(model)` puts the exact layer in its place. It subtracts the running mean first, so one pass and one
# all-reduce give both moments; while the running mean is still far from the batch's, the variance loses about (distance
# / standard deviation)² times float32's epsilon. To read on:
# [Batch normalization](https://arxiv.org/abs/1502.03167) and
# [nnx.BatchNorm](https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/nn/normalization.html). Next:
# [08 Keep dropout and metrics exact](08_keep_dropout_and_metrics_exact.ipynb).

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
# Put a single batch norm layer into your pmap program, and eight devices no longer train the network that one device
# trains. Batch norm uses the mean of the batch, but each of your eight devices sees only an eighth of it. You'll cure
# this in two steps: first with Flax's layer, which keeps running averages in your state, and then with your own, which
# doesn't care how many examples a device has. At the end you leave out an all-reduce, and find numbers that differ although
# JAX says they're equal.
#
# **You will** train with a layer that has a state, write a batch norm that gives one device's result on any number of
# devices, and count what synchronizing costs. 28 minutes, 48 with exercises. You need [05 Average
# gradients](05_average_gradients.ipynb), and for the cost [06 Communicate between
# devices](06_communicate_between_devices.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import numpy as np
from flax import nnx
from jax import lax

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_07

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## Four values, two devices
#
# In training, batch norm subtracts the batch's mean and divides by the batch's standard deviation, channel by channel.
# But inside `pmap`, `x.mean(0)` is only the mean of this device's rows. To normalize with the whole batch, the layer
# has to average over the devices in the middle of the forward pass, as PyTorch's `SyncBatchNorm` does. Below,
# `synchronize` turns the average on or off:


# %%
def standardize(x, synchronize):
    mean = x.mean(0)
    mean_square = (x**2).mean(0)
    if synchronize:
        mean, mean_square = lax.pmean((mean, mean_square), "data")
    return (x - mean) / lax.sqrt(mean_square - mean**2)


# Argument 1 is a Python bool and not an array, so pmap compiles a program for each of its values.
parallel_standardize = jax.pmap(standardize, "data", static_broadcasted_argnums=1)

# %% [markdown]
# Say device 0 has the values 0 and 2, and device 1 has 10 and 12.
#
# **Predict:** which four numbers does `standardize` return without the average?

# %% tags=["prediction"]
values = np.array([[[0.0], [2.0]], [[10.0], [12.0]]])  # [N, b, C]: one channel
outputs = {}
for synchronize in (False, True):
    outputs[synchronize] = parallel_standardize(values, synchronize).ravel()
    print(f"synchronize={synchronize!s:5}", outputs[synchronize].round(2))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both devices return -1 and 1, so 0 and 10 have become the same number, and so have 2 and 12. With the average, both
# devices use the mean 6 and the variance 26, so 0 becomes (0 - 6) / 5.1, or -1.18.
#
# Why do we average the squares, and not the variances? Each device's own variance is 1, so their average is 1 as well.
# The true variance is 26: 1 within each device, plus 25 because the two means, 1 and 11, are each 5 away from 6.
#
# </details>
#
# ## Step 1: a layer with a state
#
# Flax's `nnx.BatchNorm(features, axis_name="data")` averages over the devices like `standardize`. It also has a state.
# When you evaluate, the output for an example mustn't depend on the other examples in its batch. So the layer keeps a
# **running mean** and a **running variance**, moves both a little in every update, and normalizes with them when you
# evaluate. Now the model holds two kinds of numbers: parameters, which the optimizer changes, and running averages,
# which it must leave alone. You start from [program/05_pmap.py](program/05_pmap.py), and this is what changes:
#
# include the difference of 05_pmap.py and 07_flax_norm.py
#
# - `nnx.state` picks the parameters for the optimizer, and `nnx.update` writes the new ones into `model`.
# - `nnx.grad` differentiates with respect to the parameters alone, and lets the layer write its new averages into
#   `model`. From the outside, the step is still a pure function, because it changes and returns its own copy.
# - PyTorch's `momentum=0.1` is 0.9 in Flax. Flax's default, 0.99, moves the averages ten times as slowly: after our
#   program's 200 updates, 13 % of their initial values would still be in them.
#
# If all your devices always have the same number of examples, for example because you drop the ragged last batch, this
# is all you need.
#
# ## Step 2: a batch norm that counts
#
# And if you want to keep every example? Then the step above normalizes with the padding, too. Flax's layer has a `mask`
# argument that leaves padding out. Try it on a ragged batch: device 0 has three examples, 1, 2 and 3, and device 1 has
# just a 7 and two rows of padding.
#
# **Predict:** the four values have the mean 3.25. What does the layer find?


# %% tags=["prediction"]
def flax_mean(x, valid):
    layer = nnx.BatchNorm(1, axis_name="data", momentum=0.0, rngs=nnx.Rngs(0))
    layer(x[:, None], use_running_average=False, mask=valid[:, None])
    return layer.mean[0]  # with momentum 0, it's the mean of this batch


examples = np.array([[1.0, 2, 3], [7, 0, 0]])  # [N, b]
weights = np.array([[1.0, 1, 1], [1, 0, 0]])  # [N, b], 0 for padding
flax_means = jax.pmap(flax_mean, axis_name="data")(examples, weights > 0)
print("Flax finds", flax_means)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 4.5, because the layer averages the two devices' means, 2 and 7. The 7 is alone on its device, so it counts three
# times as much as each of the others. You know this mistake: it's lesson 05's mean of means. A device that has only
# padding divides 0 by 0, and then all devices get NaN.
#
# </details>
#
# You need sums and counts, as for the loss. The picture shows it for the mean. `pmean` divides both numbers by the two
# devices, which cancels when you divide one by the other. The variance needs a third sum.

# %%
lesson_07.sums_and_counts()

# %% [markdown]
# 1. `global_moments` (7 minutes): the mean and the variance of the valid values on all devices. It runs on each device,
#    inside `pmap`, and the mapped axis is `"data"`. `values` and `weights` `[b]` are this device's, and a weight is 1,
#    or 0 for padding. <details><summary>Hint</summary><code>lax.pmean</code> takes a tuple of three sums. Divide by the
#    count after it, and never before. The variance is the mean of the squares minus the square of the mean.</details>

# %%
from pmapdp.lessons.checks import check


def global_moments(values, weights):
    """Mean and variance of the valid values on all devices: `[b]`, `[b]` to `[]`, `[]`."""
    ...  # your code: 3 or 4 lines


verdict = check("07_synchronize_batch_norm", "global_moments", global_moments)

# %% [markdown]
# Now put your layer in the place of Flax's. `BatchNorm` is `global_moments`, with running averages, a learned scale and a
# learned bias. The step stays as it is:
#
# include the difference of 07_flax_norm.py and 07_batch_norm.py
#
# - `nnx.BatchStat` marks the running averages, so that `nnx.grad` and the optimizer leave them alone.
# - If values are far from 0, `E[x²] - E[x]²` is a small difference of two large numbers, and float32 loses it. So the
#   layer first subtracts the running mean, and `jnp.maximum` lifts what rounding still brings below 0.
# - The layer has `(rows * x0).sum(0)` and not `weights @ x0`, because GPUs and TPUs may round the inputs of a matrix
#   product. In `weights @ losses` the lost digits only change the printed number, because the gradient with respect to
#   the losses is just the weights, 0 or 1. Here they'd change the training.

# %% tags=["take-home"]
# include program/07_batch_norm.py

# %% [markdown]
# ## Proof: one device and eight
#
# We run the step on one device and on eight, for a whole epoch. We train on 4,940 examples, so that the last batch is a
# hard one. It has 76 examples: four devices are full, one has 12 examples, and three have only padding. The one device
# gets each batch in one part, and without its padding. SGD replaces Adam, as in lesson 05's proof. Parameters *and*
# running averages must agree within 1e-4.


# %%
def cut(batch, N):
    """The batch in N parts, one for each device: [N, b, ...]."""
    return jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch)


def without_padding(batch):
    valid = batch[2] > 0
    return jax.tree.map(lambda x: x[valid], batch)


def train(state, data):
    """The model after the batches of `data`."""
    for batch in data:
        state, _ = train_step(state, batch)
    return state[0]


def distance(model, other):
    """The length of the difference of two models, each seen as one long vector."""
    model, other = jax.device_get((model, other))
    return optax.tree.norm(jax.tree.map(np.subtract, model, other))


optimizer = optax.sgd(0.1)
jax.clear_caches()  # so that JAX traces the step again, as in lesson 05
inputs, labels = train_data
all_batches = list(batches(inputs[:4_940], labels[:4_940], seed=0))
for_one_device = [cut(without_padding(batch), 1) for batch in all_batches]
for_eight = [cut(batch, 8) for batch in all_batches]
_, _, weights = for_eight[-1]
print("examples of the last batch, by device:", weights.sum(1).astype(int))
difference = distance(train(init_state(), for_one_device), train(init_state(), for_eight))
print(f"one device and eight differ by {difference:.0e}")
assert difference < 1e-4

# %% [markdown]
# Flax's layer from step 1 would fail this proof. With it, the distance is 0.2, because the layer takes the 52 rows of
# padding for examples.
#
# ## What it costs
#
# At the layer's all-reduce, every device has to wait for the slowest. How often does that happen in one step? You've
# written one `pmean` in the layer. At the end of the step there are a `pmean` and a `psum`, which XLA merges into one
# all-reduce, as it did in lesson 06.
#
# **Predict:** how many all-reduces does the compiled step have?

# %% tags=["prediction"]
program = train_step.lower(init_state(), for_eight[0]).compile().as_text()
all_reduces = program.count(" all-reduce(")
print("all-reduces in the compiled step:", all_reduces)
lesson_07.all_reduces()

# %% [markdown]
# <details><summary>Answer</summary>
#
# Three, counted on simulated CPUs, and drawn here for four devices. You didn't write the second one. An example changes
# the shared mean, and the mean changes every device's outputs, so part of this example's gradient is on every device.
# These parts must be added, so JAX adds an all-reduce when it differentiates `pmean`.
#
# </details>
#
# But wasn't a `pmean` inside `jax.grad` lesson 05's second mistake? There the `pmean` only changed the loss that you
# report, and each device still trained with its own gradient. The layer's `pmean` changes what the network computes, so
# the forward pass would be wrong without it. But after `jax.grad` each device still has only its own part of the
# gradient of a parameter, so the step must average as before. You need both.
#
# XLA can't merge the three, because each needs the result of the one before. The layer's own all-reduce carries only 65
# numbers, a count and two for each channel, so you pay for latency and not for bytes. In lesson 06's ring that's 14
# messages, or 28 µs at the 2 µs per message that lesson 06 assumed for NVLink. A network with 50 of these layers waits
# a hundred times in every update, which adds up to 2.8 ms. Group norm and layer norm need none of this, because they
# don't mix examples.
#
# ## How it fails: forget the axis
#
# Go back to Flax's layer, and forget its `axis_name`. The gradients are still averaged.


# %%
class FlaxNorm(nnx.BatchNorm):
    """Flax's layer, called like yours. It doesn't look at the weights."""

    def __init__(self, features, axis_name=None):
        super().__init__(features, axis_name=axis_name, momentum=0.9, rngs=nnx.Rngs(0))

    def __call__(self, x, weights, train):
        return super().__call__(x, use_running_average=not train)


def init_with(make_norm):
    """`init_state` with this batch norm in the network."""
    model = Network(nnx.Rngs(0))
    model.norm = make_norm(32)
    return model, optimizer.init(nnx.state(model, nnx.Param))


def copies(array):
    """Each device's copy of a replicated array: [N, ...]."""
    return np.stack([shard.data for shard in array.addressable_shards])


def watch(state, data):
    """The model after `data`, and the first unit's running means [updates, N]."""
    running_means = []
    for batch in data:
        state, _ = train_step(state, batch)
        running_means.append(copies(state[0].norm.mean[...])[:, 0])
    return state[0], np.array(running_means)


# %% [markdown]
# We train on the 38 full batches, so padding plays no role.
#
# **Predict:** after an epoch, which numbers differ from device to device: parameters, running averages, or both?

# %% tags=["prediction"]
local_model, local_means = watch(init_with(FlaxNorm), for_eight[:-1])
kernels = copies(local_model.hidden.kernel[...])
means = copies(local_model.norm.mean[...])
print("equal parameters:", (kernels == kernels[0]).all())
print("equal running averages:", (means == means[0]).all())
print("JAX says they are:", local_model.norm.mean[...].is_fully_replicated)
_, synchronized_means = watch(init_state(), for_eight[:-1])
lesson_07.running_means(local_means, synchronized_means)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the running averages. The parameters are equal, because their gradients were averaged, but each device has made
# running averages of its own, from its own examples. JAX can't tell, because `out_axes=None` promised that they're
# equal. In the picture, each curve is one device's running mean of the first unit, and the dashed curve is the
# synchronized layer's.
#
# </details>
#
# A checkpoint saves just one of the eight copies, so the accuracy you report depends on the copy. Would it help to average
# the running averages, and save those? We trained both layers for five epochs with Adam, on full batches. B = 16 makes
# eight times as many updates:
#
# | B | examples per device | test accuracy, synchronized | local, from copy to copy | local, averaged |
# | --- | --- | --- | --- | --- |
# | 128 | 16 | 0.896 | 0.891 to 0.901 | 0.898 |
# | 16 | 2 | 0.893 | about 0.7 | about 0.7 |
#
# <details><summary>The code of this table, for a cell of its own (it runs for a minute or two)</summary>
#
# ```python
# def accuracy(model):
#     inputs, labels = test_data
#     return (model(inputs, None, False).argmax(-1) == labels).mean()
#
#
# layers = {"synchronized": BatchNorm, "local": FlaxNorm}
# optimizer = optax.adam(3e-3)  # the step reads it, and `batches` reads B
# for B in (128, 16):
#     for name, make_norm in layers.items():
#         jax.clear_caches()
#         state = init_with(make_norm)
#         for epoch in range(5):
#             for batch in list(batches(*train_data, seed=epoch))[:-1]:
#                 state, _ = train_step(state, cut(batch, 8))
#         models = [jax.tree.map(lambda x: copies(x)[d], state[0]) for d in range(8)]
#         average = jax.tree.map(lambda *parts: np.mean(parts, 0), *models)
#         accuracies = [accuracy(model) for model in models]
#         print(f"B = {B}, {name}: {min(accuracies):.3f} to {max(accuracies):.3f}")
#         print(f"with averaged running averages: {accuracy(average):.3f}")
# B, optimizer = 128, optax.sgd(0.1)  # as before
# ```
#
# </details>
#
# With 16 examples per device, local batch norm costs no accuracy that 1,000 test examples could show. With 2 examples it
# does: on two versions of JAX, the accuracy of a copy was anything from 0.62 to 0.77. Each channel has two values, and
# two different values always become about -1 and 1. How far apart they were is lost, so the *weights* were trained badly,
# and averaging the copies can't repair that.
#
# PyTorch's DDP keeps batch norm local unless you ask, and sends process 0's running averages to all. If you keep it local
# in JAX, average the copies before you evaluate and save, as lesson 12's old program does, because the average is less
# noisy than one copy. But its variance is still too small, like every copy's: all of them miss how far apart the devices'
# means are, as in the first prediction's answer. These are your choices:
#
# | layer | normalizes with | if devices have different numbers of examples |
# | --- | --- | --- |
# | PyTorch's `SyncBatchNorm` | the global batch | correct: [it gathers the counts, too](https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/_functions.py) |
# | `nnx.BatchNorm(axis_name="data")` | the mean of the devices' means | counts padding. With `mask`: a mean of means, or NaN if a device has no example |
# | this lesson's `BatchNorm` | the global batch | correct |
# | `nnx.BatchNorm` under `jit` (lesson 09) | the global batch | correct with `mask` |

# %% tags=["proof"]
# The asserts behind the answers.
assert nnx.BatchNorm(1, rngs=nnx.Rngs(0)).momentum == 0.99
assert EPOCHS * len(list(batches(*train_data, seed=0))) == 200
assert round(0.99**200, 2) == 0.13
np.testing.assert_allclose(outputs[False], [-1, 1, -1, 1])
np.testing.assert_allclose(outputs[True], (values.ravel() - 6) / np.sqrt(26), atol=1e-6)
assert (flax_means == 4.5).all()
valid = np.array([[True, True, True], [False, False, False]])  # device 1 has no example
assert np.isnan(jax.pmap(flax_mean, axis_name="data")(examples, valid)).all()
assert weights.sum(1).tolist() == [16, 16, 16, 16, 12, 0, 0, 0]
assert (kernels == kernels[0]).all()
assert np.ptp(local_means[-1]) > 1e-2
assert np.ptp(synchronized_means, axis=1).max() == 0
assert local_model.norm.mean[...].is_fully_replicated
assert all_reduces == 3
local_step = train_step.lower(init_with(FlaxNorm), for_eight[0])
assert local_step.compile().as_text().count(" all-reduce(") == 1


def norm_of_step_1(features):
    return FlaxNorm(features, axis_name="data")


flax_1 = train(init_with(norm_of_step_1), for_one_device)
flax_8 = train(init_with(norm_of_step_1), for_eight)
assert 0.15 < distance(flax_1, flax_8) < 0.25

# %% [markdown]
# ## Exercises
#
# These two run on each device, inside `pmap`, as `global_moments` does. [Solutions of all three, with
# reasons](solutions/07_synchronize_batch_norm.py)
#
# 2. `standardize_backward` (8 minutes): the backward pass of `standardize(x, True)`. `x` and `g` `[b, C]` are this
#    device's rows of the examples and of the gradient with respect to the output. Return this device's rows of the
#    gradient with respect to `x`. All devices have the same number of examples. `jax.vjp` finds it, too, but with the
#    formula you see what must be averaged. <details><summary>Hint</summary>On one
#    device it is <code>(g - g.mean(0) - y * (g * y).mean(0)) / deviation</code>, where y is the standardized x. Which
#    of these means have to be means over all devices?</details>
# 3. `fixed_centre` (5 minutes, find the mistake): `broken_centre` subtracts the global mean, so training goes well. But
#    its running mean is different on every device. <details><summary>Hint</summary>Which mean goes into the running
#    mean?</details>


# %%
def broken_centre(x, running):  # [b, C], [C]
    mean = x.mean(0)
    return x - lax.pmean(mean, "data"), 0.9 * running + 0.1 * mean


def standardize_backward(x, g):
    """Gradient `[b, C]` with respect to this device's x, from the gradient g of the output."""
    ...  # your code: 4 or 5 lines


def fixed_centre(x, running):
    """The centred `x` `[b, C]`, and the new running mean `[C]`, equal on all devices."""
    ...  # your code: 2 or 3 lines


for exercise in (standardize_backward, fixed_centre):
    check("07_synchronize_batch_norm", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - A layer that mixes examples needs an all-reduce in the forward pass. JAX adds the one in the backward pass.
# - Average sums and counts, and divide once. `nnx.BatchNorm(axis_name=...)` averages means, so it needs equal counts.
# - Running averages are state, so all devices must hold the same ones. `pmap` doesn't check that they do.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `BatchNorm` | `ExactBatchNorm`. You write `nnx.BatchNorm` in your model, and `make_exact(model)` swaps it | [layers.py](../pmapdp/layers.py) |
# | the running averages in `model` | `model_state` in `TrainState` | [state.py](../pmapdp/state.py) |
#
# You pass `weights` to the layer. Flax's layers take no such argument, so pmapdp's step puts the weights into a context,
# and `ExactBatchNorm` fetches them with `current_context()`.
#
# To read on: the [batch normalization](https://arxiv.org/abs/1502.03167) paper. Next come the random numbers: [08 Keep
# dropout and metrics exact](08_keep_dropout_and_metrics_exact.ipynb).

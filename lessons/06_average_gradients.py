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
# # 06. Average gradients
#
# After this lesson you can write the data-parallel training step, prove that it equals one device with the large
# batch, and notice an all-reduce that is forgotten or wrong. No error reports either mistake.
#
# 30 minutes. Before: [05. Talk between devices](05_talk_between_devices.ipynb).
# Next: [07. Keep batch norm, dropout and metrics exact](07_batch_norm_dropout_and_metrics.ipynb).
#
# The lesson computes in float64, so that a difference is a mistake and not rounding. Real training uses float32.

# %%
import inspect
import time

import drawing
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from checks import check
from flax import nnx
from jax import lax

from pmapdp import devices
from pmapdp.data.batches import Batches
from pmapdp.models.cnn import CNN
from pmapdp.registry import load_data
from pmapdp.state import Task, create_state
from pmapdp.steps import make_steps, pmap
from pmapdp.steps.shared import Body

chosen = devices.choose(8)  # 8 simulated CPU devices; nothing of JAX may run before this line
N = len(chosen)
jax.config.update("jax_enable_x64", True)
drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
data = load_data(DATASET)
print(devices.describe(chosen))

# %% [markdown]
# ## Four examples, two devices
#
# The smallest training: one parameter `w`, the prediction `w * x`, and the loss `(w * x - y)² / 2`. Its derivative is
# `(w * x - y) * x`, so at `w = 0` an example's gradient is `-y * x`. The four below have the gradients -2, -2, -5 and
# -7, and their mean is -4.
#
# Now device 0 gets the first two examples, and device 1 the others. **Predict** each device's own mean gradient, and
# the mean of the two.


# %%
def squared_loss(w, x, y):
    return jnp.mean((w * x - y) ** 2) / 2


x, y = np.array([1.0, 2, 1, 1]), np.array([2.0, 1, 5, 7])  # [B] = [4]
xs, ys = x.reshape(2, 2), y.reshape(2, 2)  # [N, b]

whole = jax.grad(squared_loss)(0.0, x, y)
local = jax.pmap(jax.grad(squared_loss), in_axes=(None, 0, 0))(0.0, xs, ys)


def averaged_gradient(w, x, y):
    return lax.pmean(jax.grad(squared_loss)(w, x, y), "data")  # <- new: the all-reduce


averaged = jax.pmap(averaged_gradient, axis_name="data", in_axes=(None, 0, 0))(0.0, xs, ys)
print("one device:", whole, "| local:", local, "| averaged:", averaged, "on", len(averaged.devices()), "devices")
assert (whole, *local, *averaged) == (-4, -2, -6, -4, -4)

# %% [markdown]
# **The mean of the local means is the mean over the batch**, because both devices hold the same number of examples.
# That is all of data parallelism: the average gradient is the one of the large batch, so the update is, too. Every
# device makes the same update, so the copies of the parameters stay equal, and nobody ever has to send parameters.
#
# PyTorch's `DistributedDataParallel` does this inside `loss.backward()`. In JAX it is a line in your step.
#
# ## The same for a network
#
# We take pmapdp's small convolutional network and a global batch of B = 64 images of digits. On N = 8 devices each gets
# b = B / N = 8 of them. The way of the data:

# %%
picture = drawing.canvas(18.9, 8.6)
for row, label in {0.6: "batch", 2.2: "split", 4.0: "gradient", 5.9: "all-reduce", 7.6: "update"}.items():
    picture.text(0, row, label, va="center")
drawing.box(picture, 3.0, 0.2, "images [64, 28, 28, 1]", width=15.6)
drawing.box(picture, 3.0, 5.4, "pmean: the average of the eight gradients, on every device", width=15.6, height=1.0)
for d in range(N):
    left = 3.0 + 1.98 * d
    drawing.box(picture, left, 1.7, f"rows\n{8 * d}-{8 * d + 7}", device=d, width=1.75, height=1.1)
    drawing.box(picture, left, 3.5, f"g{d}", device=d, width=1.75, height=0.9)
    drawing.box(picture, left, 7.2, "new w", device=d, width=1.75, height=0.9)
    for start, end in ((1.0, 1.7), (2.8, 3.5), (4.4, 5.4), (6.4, 7.2)):
        drawing.arrow(picture, (left + 0.87, start), (left + 0.87, end), device=d)

# %% [markdown]
# First the step of one device, plain gradient descent. `nnx.merge` puts the parameters back into the network, as in
# lesson 03. The data-parallel step is the same function with one line more. `axis_name` gives the device axis the name
# that `pmean` refers to; `None` keeps the parameters whole, without a device axis (lesson 04).

# %%
RATE = 0.1
task = Task(CNN, optax.sgd(RATE), dtype="float64")
start, structure = create_state(task), task.model_structure()


def mean_loss(params, batch):
    logits = nnx.merge(structure, params, start.batch_stats)(batch.inputs)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels).mean()


def descend(params, gradients):
    return jax.tree.map(lambda w, g: w - RATE * g, params, gradients)


def one_device_step(params, batch):
    loss, gradients = jax.value_and_grad(mean_loss)(params, batch)
    return descend(params, gradients), loss


def data_parallel_step(params, batch):
    loss, gradients = jax.value_and_grad(mean_loss)(params, batch)
    loss, gradients = lax.pmean((loss, gradients), "data")  # <- new: loss and all gradients at once
    return descend(params, gradients), loss


axes = {"axis_name": "data", "in_axes": (None, 0), "out_axes": None}
one_device = jax.jit(one_device_step)
data_parallel = jax.pmap(data_parallel_step, **axes)  # <- changed: pmap in place of jit

# %% [markdown]
# ## Proof: equal to the large batch
#
# Twenty updates each way, from the same start, on the same batches. What lesson 04 built is imported: `place_state` copies
# the state whole to every device, and `place_batch` cuts a batch into `[N, b, ...]`, a part for each device.
#
# **Predict:** are the parameters equal at the end, bit for bit?

# %%
place = make_steps("pmap", task, chosen)
batches = [batch for batch, _ in zip(Batches(data.train, 64, shuffle_seed=0).epoch(0), range(20), strict=False)]
placed = [place.place_batch(batch) for batch in batches]
images = placed[0].inputs
print("images:", images.shape, images.sharding.spec, "| a device holds", images.addressable_shards[0].data.shape)


def distance(tree, other):
    """Largest difference of two numbers in the same place of two trees."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


alone, together, history = start.params, place.place_state(start).params, []
for batch, parts in zip(batches, placed, strict=True):
    alone, loss_alone = one_device(alone, batch)
    together, loss_together = data_parallel(together, parts)
    history.append(jax.device_get(alone))

print(f"loss in the last update: one device {loss_alone:.6f}, eight {loss_together:.6f}")
print(f"parameters moved by up to {distance(alone, start.params):.3f}, and differ by {distance(alone, together):.0e}")
assert 0 < distance(alone, together) < 1e-12
assert distance(alone, start.params) > 1e-2

# %% [markdown]
# Not bit for bit: the 64 examples were added up in another order, and each addition rounds. The tolerance is 1e-12,
# after moves of more than 1e-2.
#
# ## Failure 1: the all-reduce is forgotten
#
# Delete the line with `pmean`. **Predict:** does it raise? Does the loss fall? What does JAX say about the parameters?

# %%
forgotten = jax.pmap(one_device_step, **axes)  # <- changed: no pmean inside


def copies(tree):
    """What the devices hold of a replicated tree: a list of N trees."""
    return [jax.tree.map(lambda x, d=d: np.asarray(x.addressable_shards[d].data), tree) for d in range(N)]


drifting, losses, drift = place.place_state(start).params, [], []
for parts, right in zip(placed, history, strict=True):
    drifting, loss = forgotten(drifting, parts)
    losses.append(float(loss))
    drift.append([distance(copy, right) for copy in copies(drifting)])

bias = drifting["logits"]["bias"]
print(f"loss from {losses[0]:.2f} to {losses[-1]:.2f} | JAX says: fully replicated = {bias.is_fully_replicated}")
for device, copy in enumerate(copies(bias)[:3]):
    print(f"device {device} holds", copy[:5].round(4))
assert losses[-1] < losses[0]
assert bias.is_fully_replicated
assert min(drift[-1]) > 1e-3
assert all(distance(copy, together) == 0 for copy in copies(together))

for d in range(N):
    plt.plot(range(1, 21), np.array(drift)[:, d], color=drawing.DEVICE_COLOURS[d], label=f"device {d}")
plt.axhline(distance(alone, together), color=drawing.INK, linestyle="--", label="with pmean")
plt.gca().set(xlabel="update", ylabel="distance from one device", xticks=range(0, 21, 5))
plt.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# No error, and a falling loss. But there are now eight different models, each trained on an eighth of the data, and
# a checkpoint saves the one that is read first. `out_axes=None` was a promise that all devices return the same,
# and JAX believes it: `is_fully_replicated` is read from the sharding, not from the numbers.
# Only `addressable_shards` shows them. With `pmean` all copies are equal, bit for bit; the cell asserts that.
#
# ## Failure 2: the wrong collective
#
# Now `psum` in place of `pmean`: the sum of eight means. All copies agree, so comparing them finds nothing.
# **Predict:** by how much is the gradient too long, and would you notice with Adam?


# %%
def summed_gradient(params, batch):
    return lax.psum(jax.grad(mean_loss)(params, batch), "data")  # <- changed: psum in place of pmean


wrong = jax.device_get(jax.pmap(summed_gradient, **axes)(start.params, placed[0]))
right = jax.tree.map(lambda old, new: (old - new) / RATE, start.params, history[0])  # the first update, undone
adam = optax.adam(1e-3)
adams = [adam.update(gradient, adam.init(gradient))[0] for gradient in (wrong, right)]

for name, (eight, one), expected in (("gradient", (wrong, right), N), ("Adam's update", adams, 1)):
    ratio = optax.tree.norm(eight) / optax.tree.norm(one)
    print(f"{name}: {ratio:.3f} times as long as on one device")
    np.testing.assert_allclose(ratio, expected, rtol=0.02)

# %% [markdown]
# With gradient descent it is a learning rate N times too high: fine on two devices perhaps, and divergent on 64.
# Adam divides a gradient by its typical size, so a constant factor disappears and the loss curve looks right, until
# somebody adds gradient clipping. **Compare the length of the gradient with one device**, not the loss curve.
#
# ## What if a device has fewer examples?
#
# Take the four examples again without the last: the gradients are -2, -2 on device 0 and -5 on device 1, and their mean
# is -3. So device 0 has a sum of -4 over two examples, and device 1 a sum of -5 over one. **Predict** what `pmean` of
# the local means gives.


# %%
def mean_of_means(total, count):
    return lax.pmean(total / count, "data")


def sum_and_count(total, count):
    total, count = lax.psum((total, count), "data")  # <- changed: add up both ...
    return total / count  # <- changed: ... and divide once, after the all-reduce


totals, counts = np.array([-4.0, -5.0]), np.array([2.0, 1.0])  # [N] each
for average, expected in ((mean_of_means, -3.5), (sum_and_count, -3.0)):
    result = jax.pmap(average, axis_name="data")(totals, counts)
    print(f"{average.__name__:14s}", result)
    assert (result == expected).all()

# %% [markdown]
# The mean of means counts the lonely example twice as much as the others. Sums and counts are right for any split, so
# pmapdp uses nothing else. Devices run one program, so all have arrays of one shape: the free places hold padding, which
# gets the weight 0 and adds nothing to the sum or the count. Lesson 07 builds on this.
#
# ## Exercises
#
# One device's code each; the mapped axis is `"data"`. The model is linear: `x @ w`, with parameters `w` `[D]` and
# examples `x` `[b, D]`, `y` `[b]`, and the loss of an example is `(x @ w - y)² / 2`. Solutions:
# [solutions/06_average_gradients.py](solutions/06_average_gradients.py).
#
# 1. `step`: the updated parameters `[D]` after one data-parallel step of gradient descent with learning rate 0.1.
#    <details><summary>Hint</summary>The local mean gradient is <code>x.T @ (x @ w - y) / len(y)</code>, or
#    <code>jax.grad</code> of the mean loss. Average it before you use it.</details>
# 2. `largest_difference`: how far the copies of a replicated array lie apart at most, in any element. 0 for a
#    healthy one. <details><summary>Hint</summary>Stack the shards' data in NumPy; largest minus smallest along the new
#    axis.</details>
# 3. `global_gradient`: the gradient `[D]` of the mean loss over all *valid* examples of all devices. Some devices may
#    hold padding alone. <details><summary>Hint</summary>As <code>sum_and_count</code>: divide after the
#    psum.</details>


# %%
def step(w, x, y):
    """Parameters `[D]` after one step on `[b, D]` and `[b]` of each device."""
    ...  # your code: 2 to 3 lines


def largest_difference(array):
    """The largest difference between two devices' copies of one element."""
    ...  # your code: 2 lines


def global_gradient(w, x, y, weights):
    """Gradient `[D]` over all devices' examples; `weights` `[b]` is 1 for an example and 0 for padding."""
    ...  # your code: 3 to 4 lines


for exercise in (step, largest_difference, global_gradient):
    check("06_average_gradients", exercise.__name__, exercise)

# %% [markdown]
# ## The same in pmapdp
#
# The step is in [pmapdp/steps/pmap.py](../pmapdp/steps/pmap.py), and the update in
# [pmapdp/steps/shared.py](../pmapdp/steps/shared.py), which all strategies share. It is your step with sums and counts, any
# optimizer, and *donated* state: the old parameters' memory is used for the new ones. `packed` makes one
# vector of all arrays on a CPU, because simulated devices wait for each other once for each array.

# %%
source = inspect.getsource(pmap.make_steps)
print(source[source.index("    def train_step") : source.index("    def eval_step")])
print(inspect.getsource(Body.update))

# %% [markdown]
# ## What it costs
#
# pmapdp's step with the same global batches on 1, 2, 4 and 8 simulated devices, now in float32 as in real training, and
# the proof that its parameters are yours within 1e-4. **Predict:** which number of devices is fastest?

# %%
print(f"{devices.describe(chosen)}, jax {jax.__version__}, 64 examples a step, float32")
task32 = Task(CNN, optax.sgd(RATE))
start32 = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, start)
for count in (1, 2, 4, 8):
    steps = make_steps("pmap", task32, chosen[:count])
    state, times = steps.place_state(start32), []
    for batch in batches:
        parts = jax.block_until_ready(steps.place_batch(batch))
        clock = time.perf_counter()
        state, _ = jax.block_until_ready(steps.train_step(state, parts))
        times.append(time.perf_counter() - clock)
    far = distance(state.params, together)
    print(
        f"{count} x {64 // count:2d} examples: {1000 * min(times):5.1f} ms for the fastest step, {far:.0e} from yours"
    )
    assert far < 1e-4

# %% [markdown]
# This is no speed-up, whichever row came out first. Simulated devices share the cores of this machine, and the 64
# examples cost the same arithmetic in every row. A row gains a little where its smaller parts fit the caches or keep
# the cores busier. It loses because N devices make N copies of the update, and an all-reduce besides. On N real devices
# the work on the examples is divided by N; the update and the all-reduce are not. So data parallelism pays when b is
# large enough that a device computes for longer than it talks.
#
# ## Take away
#
# * Split the batch, compute local gradients, one all-reduce, the same update everywhere: equal to the large batch.
# * A forgotten all-reduce shows in `addressable_shards`, a wrong one in the gradient's length; neither raises an error.
# * Means of means are wrong for ragged batches: add up sums and counts, and divide once.
#
# This code is now in [pmapdp/steps/pmap.py](../pmapdp/steps/pmap.py) and
# [pmapdp/steps/shared.py](../pmapdp/steps/shared.py).
# Next: [07. Keep batch norm, dropout and metrics exact](07_batch_norm_dropout_and_metrics.ipynb).

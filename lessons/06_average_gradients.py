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
# batch, and find an all-reduce that is forgotten or wrong. No error reports either mistake.
#
# About 35 minutes · before: [05 Communicate between devices](05_communicate_between_devices.ipynb) · next:
# [07 Synchronize batch norm](07_synchronize_batch_norm.ipynb)
#
# The lesson computes in float64, so that a difference is a mistake and not rounding. Real training uses float32.

# %%
import inspect
import time

import drawing
import jax
import jax.numpy as jnp
import numpy as np
import optax
from checks import check
from flax import nnx
from jax import lax
from pictures import lesson_06

from pmapdp import devices
from pmapdp.cpu import faster
from pmapdp.data.batches import Batches
from pmapdp.models.cnn import CNN
from pmapdp.registry import load_data
from pmapdp.state import Task, create_state
from pmapdp.steps import make_steps, pmap
from pmapdp.steps.shared import Body
from pmapdp.verify import verify

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
# Take the smallest model there is: one parameter `w`, the prediction `w * x`, and the loss `(w * x - y)² / 2`. Its
# derivative is `(w * x - y) * x`, so at `w = 0` the gradient of an example is `-y * x`. The four examples below have the
# gradients -2, -2, -5 and -7. Their mean is -4.
#
# Now device 0 gets the first two examples, and device 1 the others. **Predict** the mean gradient on each device, and
# the mean of the two.


# %%
def squared_loss(w, x, y):
    return jnp.mean((w * x - y) ** 2) / 2


x, y = np.array([1.0, 2, 1, 1]), np.array([2.0, 1, 5, 7])  # [B] = [4]
xs, ys = x.reshape(2, 2), y.reshape(2, 2)  # [N, b]

one_device = jax.grad(squared_loss)(0.0, x, y)
local = jax.pmap(jax.grad(squared_loss), in_axes=(None, 0, 0))(0.0, xs, ys)


def averaged_gradient(w, x, y):
    return lax.pmean(jax.grad(squared_loss)(w, x, y), "data")  # <- new: the all-reduce


averaged = jax.pmap(averaged_gradient, axis_name="data", in_axes=(None, 0, 0))(0.0, xs, ys)
print("one device:", one_device, "| local:", local, "| averaged:", averaged)
assert (one_device, *local, *averaged) == (-4, -2, -6, -4, -4)

# %% [markdown]
# The means on the devices are -2 and -6, and their mean is -4. **The mean of the local means is the mean over the
# batch**, because both devices hold the same number of examples. This is the whole idea of data parallelism. The average
# gradient is the gradient of the large batch, so the update is the update of the large batch. Every device makes the
# same update, so the copies of the parameters stay equal. The parameters are sent once, when training starts, and never
# again.
#
# PyTorch's `DistributedDataParallel` (DDP) does the same: it broadcasts the parameters once, and averages the gradients
# inside `loss.backward()`. In JAX the average is a line in your own step.
#
# ## The same for a network
#
# Now take the small convolutional network of pmapdp and a **global batch** of B = 64 images. Each of N = 8 devices gets
# a **per-device batch** of b = B / N = 8 images. The picture shows one step, from the batch at the top to the new
# parameters at the bottom.

# %%
lesson_06.data_parallel_step()

# %% [markdown]
# The parts are those of lesson 03: the network as a structure and parameters, the mean loss, and plain gradient descent.
# (`batch_stats` is for batch norm, which this network does not have.)

# %%
RATE = 0.1
task = Task(CNN, optax.sgd(RATE), dtype="float64")
start, structure = create_state(task), task.model_structure()


def mean_loss(params, batch):
    logits = nnx.merge(structure, params, start.batch_stats)(batch.inputs)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels).mean()


def descend(params, gradients):
    return jax.tree.map(lambda w, g: w - RATE * g, params, gradients)


# %% [markdown]
# Now the two steps: first that of one device, then the data-parallel one, which is the same function with one line more.
# `axis_name` gives the device axis the name that `pmean` refers to. `None` in `in_axes` and `out_axes` says that the
# parameters are replicated, and have no device axis (lesson 04).


# %%
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
# Only the marked line differs.
#
# ## Proof: equal to the large batch
#
# Place twenty batches. Two functions are borrowed from pmapdp: `place_state` is `jax.device_put` onto a replicated
# sharding (lesson 04), and `place_batch` reshapes a batch to `[N, b, ...]` and puts one slice on each device.

# %%
place = make_steps("pmap", task, chosen)
batches = list(Batches(data.train, 64, shuffle_seed=0).epoch(0))[:20]
placed = [place.place_batch(batch) for batch in batches]
images = placed[0].inputs
print("images:", images.shape, images.sharding.spec)
print("a device holds:", images.addressable_shards[0].data.shape)

# %% [markdown]
# Each device holds 8 of the 64 images. Now make twenty updates each way, from the same start and on the same batches.
# **Predict:** are the parameters equal at the end, bit for bit?


# %%
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
print(f"parameters moved by up to {distance(alone, start.params):.3f}")
print(f"parameters differ by up to {distance(alone, together):.0e}")
assert 0 < distance(alone, together) < 1e-12
assert distance(alone, start.params) > 1e-2

# %% [markdown]
# They are not equal bit for bit. The 64 examples were added up in another order, and every addition rounds. The
# difference stays below 1e-12, after the parameters moved by more than 1e-2.
#
# ## Failure 1: the all-reduce is forgotten
#
# Delete the line with `pmean`. **Predict:** does it raise an error? Does the loss fall? What does JAX say about the
# parameters?

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
print(f"loss from {losses[0]:.2f} to {losses[-1]:.2f}")
print("JAX says: fully replicated =", bias.is_fully_replicated)
for device, copy in enumerate(copies(bias)[:3]):
    print(f"device {device} holds", copy[:5].round(4))
lesson_06.drift(np.array(drift), distance(alone, together))
assert losses[-1] < losses[0]
assert bias.is_fully_replicated
assert min(drift[-1]) > 1e-3
assert all(distance(copy, together) == 0 for copy in copies(together))

# %% [markdown]
# There is no error, and the loss falls. But there are eight different models, each trained on an eighth of the data,
# and a checkpoint saves the one that is read first. With `out_axes=None` you promised that all devices return the same,
# and JAX takes your word for it: `is_fully_replicated` is read from the sharding, not from the numbers. Only
# `addressable_shards` shows the numbers. With `pmean` all copies are equal bit for bit, as the last line asserts.
#
# ## Failure 2: the wrong collective
#
# Now take `psum` in place of `pmean`, which is the sum of eight means. All copies agree, so comparing them finds
# nothing. Comparing with one device finds it, and the first failure too. `pmapdp.verify` makes this comparison: it runs
# a step beside the plain step for one device, from the same state and on the same batch. It says what differs, and what
# usually causes it. `layout="replicated"` is how the steps above take their arguments. **Predict:** by what factor is
# the update too long?


# %%
def summed_step(params, batch):
    loss, gradients = jax.value_and_grad(mean_loss)(params, batch)
    loss, gradients = lax.pmean(loss, "data"), lax.psum(gradients, "data")  # <- changed: psum
    return descend(params, gradients), loss


few = jax.tree.map(lambda x: x[:16], batches[0])
case = {"reference": one_device, "state": start.params, "batch": few, "layout": "replicated"}
reports = [verify(step=step, **case) for step in (data_parallel, forgotten, jax.pmap(summed_step, **axes))]
print(reports[0], *reports[1].failed, *reports[2].failed, sep="\n\n")
causes = [report.causes for report in reports]
assert causes == [[], ["no all-reduce", "one device's metrics"], ["sum for mean"]]

# %% [markdown]
# The right step passes all checks that could be made. The other two fail, and the first sentence of each report names the
# mistake: one has no all-reduce, and the other moves 8 times as far as it should.
#
# With gradient descent, a sum is a learning rate that is N times too high: it may do no harm on two devices, and diverge
# on 64. **Predict:** how long is the update of Adam, given eight times the gradient?

# %%
adam, gradient = optax.adam(1e-3), jax.grad(mean_loss)(start.params, batches[0])
moves = [adam.update(optax.tree.scale(factor, gradient), adam.init(gradient))[0] for factor in (1, N)]
one, eight = map(optax.tree.norm, moves)
print(f"Adam's update is {eight / one:.3f} times as long")
np.testing.assert_allclose(eight, one, rtol=0.02)

# %% [markdown]
# Adam divides a gradient by its typical size, so a constant factor cancels. The mistake does no harm, until somebody clips
# the gradients to a fixed length: then gradients that are eight times too long are clipped too often. **Compare the update
# with one device**, not the loss curve.
#
# ## What if a device has fewer examples?
#
# Take the four examples of the beginning again, without the last one. The gradients are -2 and -2 on device 0, and -5 on
# device 1, so the mean is -3. Device 0 has a sum of -4 over two examples, and device 1 a sum of -5 over one. **Predict**
# what `pmean` of the local means gives.


# %%
def mean_of_means(total, count):
    return lax.pmean(total / count, "data")


def sum_over_count(total, count):
    total, count = lax.pmean((total, count), "data")  # <- changed: average both ...
    return total / count  # <- changed: ... and divide once, after the all-reduce


totals, counts = np.array([-4.0, -5.0]), np.array([2.0, 1.0])  # [N] each
for average, expected in ((mean_of_means, -3.5), (sum_over_count, -3.0)):
    result = jax.pmap(average, axis_name="data")(totals, counts)
    print(f"{average.__name__:14s}", result)
    assert (result == expected).all()

# %% [markdown]
# In the mean of means, the single example of device 1 counts twice as much as the others. The mean of the sums over the
# mean of the counts is right for any split: both have the same factor 1/N, which cancels. (`psum` of both is right for
# the same reason.) pmapdp uses this form. All devices run one program on arrays of one shape, so the rows that are left
# over hold padding, which has weight 0 and adds nothing to the sum or the count. Lesson 07 builds on this.
#
# ## What changes when you add devices
#
# Three questions come up in every data-parallel program, in JAX as with DDP.
#
# **Which batch size is meant?** With DDP you set the per-device batch, so eight GPUs give eight times the global batch.
# In JAX you usually set the global batch, because one process feeds all devices. The result depends on the global batch
# alone: with B = 64 it is the same on 1, 2 or 8 devices, up to rounding.
#
# **Does the learning rate change?** Not as long as the global batch stays the same. If you keep b fixed, then B grows
# with N, and an epoch has fewer updates, from less noisy gradients. A common rule for SGD multiplies the learning rate
# by the same factor as B, and warms it up over the first epochs ([Goyal et al., 2017](https://arxiv.org/abs/1706.02677)).
# For Adam the square root of the factor is usual ([Malladi et al., 2022](https://arxiv.org/abs/2205.10287)). Both are
# rules of thumb: check them on your problem. pmapdp has `--scale-learning-rate linear` and `sqrt`.
#
# **Does communication overlap with computation?** The gradients of the last layer are ready first. DDP sends them in
# buckets while the backward pass still computes the others. In JAX, XLA schedules the all-reduces of a compiled step,
# and can overlap them with the rest of the backward pass, without a change of your step. On GPUs this is a matter of XLA
# flags ([GPU performance tips](https://docs.jax.dev/en/latest/gpu_performance_tips.html)). On simulated devices there is
# no network, so the measurement at the end shows no overlap. The picture shows both orders: filled boxes are computation,
# and outlined ones communication.

# %%
lesson_06.overlap()

# %% [markdown]
# In the lower half the update starts earlier, because only the last all-reduce is left when the backward pass ends.
#
# ## Exercises
#
# All but the second are the code of one device, and the mapped axis is `"data"`. The model is linear: `x @ w`, with
# parameters `w` `[D]` and examples `x` `[b, D]`, `y` `[b]`. The loss of an example is `(x @ w - y)² / 2`. Solutions, with
# reasons: [solutions/06_average_gradients.py](solutions/06_average_gradients.py).
#
# 1. `step` (5 minutes): the parameters `[D]` after one data-parallel step of gradient descent with learning rate 0.1.
#    <details><summary>Hint</summary>The local mean gradient is <code>x.T @ (x @ w - y) / len(y)</code>, or
#    <code>jax.grad</code> of the mean loss. Average it before you use it.</details>
# 2. `largest_difference` (5 minutes): the largest difference between two devices' copies of an array that JAX calls
#    replicated. It is 0 when all is well. <details><summary>Hint</summary>Stack the shards' data in NumPy, then take
#    largest minus smallest along the new axis.</details>
# 3. `global_gradient` (10 minutes): the gradient `[D]` of the mean loss over all *valid* examples of all devices. A
#    device may hold nothing but padding. <details><summary>Hint</summary>As in <code>sum_over_count</code>, divide
#    after the all-reduce.</details>
# 4. `mended_clipping` (find the mistake): `broken_clipping` clips a gradient to a length of at most 1, and averages. It
#    raises no error, all copies agree, and on one device it is right. But on several devices the result is not the
#    clipped gradient of the global batch. Write it correctly.
#    <details><summary>Hint</summary>Which gradient should have a length of at most 1?</details>


# %%
def broken_clipping(gradient):  # [D], the mean over this device's examples
    length = jnp.sqrt((gradient**2).sum())
    clipped = gradient / jnp.maximum(length, 1)
    return lax.pmean(clipped, "data")


def step(w, x, y):
    """Parameters `[D]` after one step on `[b, D]` and `[b]` of each device."""
    ...  # your code: 2 to 3 lines


def largest_difference(array):
    """The largest difference between two devices' copies of one element."""
    ...  # your code: 2 lines


def global_gradient(w, x, y, weights):
    """Gradient `[D]` over all devices' examples; `weights` `[b]` is 1 for an example and 0 for padding."""
    ...  # your code: 3 to 4 lines


def mended_clipping(gradient):
    """The global batch's gradient `[D]`, with a length of at most 1."""
    ...  # your code: 2 to 3 lines


for exercise in (step, largest_difference, global_gradient, mended_clipping):
    check("06_average_gradients", exercise.__name__, exercise)

# %% [markdown]
# ## What it costs
#
# The next cell times pmapdp's step on 1, 2, 4 and 8 simulated devices, with the same global batches, in float32 as in real
# training, and prints the fastest step. Its parameters must equal yours within 1e-4. **Predict:** which number of devices is
# fastest?

# %%
print(f"{devices.describe(chosen)}, jax {jax.__version__}, 64 examples a step, float32")
task32 = Task(CNN, optax.sgd(RATE), transform=faster)  # convolutions as pmapdp computes them on CPUs
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
    print(f"{count} x {64 // count:2d} examples: {1000 * min(times):5.1f} ms, {far:.0e} from yours")
    assert far < 1e-4

# %% [markdown]
# Do not read a speed-up out of this, whichever row came out first: simulated devices share the cores of this machine, and
# the 64 examples cost the same arithmetic in every row. More devices add N copies of the update and an all-reduce. On N
# real devices the work on the examples is divided by N, and the update and the all-reduce are not. So data parallelism
# pays when b is so large that a device computes for longer than it communicates.
#
# ## Take away
#
# * Split the batch, compute local gradients, all-reduce them once, update everywhere: this equals the large batch.
# * A forgotten all-reduce shows in `addressable_shards`, and a wrong one in the length of the update. Neither raises an
#   error: `pmapdp.verify` compares a step with one device, and finds both.
# * Means of means are wrong for ragged batches. Average sums and counts, and divide once.
#
# The step of pmapdp is in [steps/pmap.py](../pmapdp/steps/pmap.py), and its update in
# [steps/shared.py](../pmapdp/steps/shared.py). Both are printed below. It is your step with sums and counts, any
# optimizer, and a donated state. To read on:
# [DDP's design](https://docs.pytorch.org/docs/stable/notes/ddp.html) and
# [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677). Next:
# [07 Synchronize batch norm](07_synchronize_batch_norm.ipynb).

# %%
print(inspect.getsource(pmap.make_steps))
print(inspect.getsource(Body.update))
assert "lax.pmean((gradients, sums.count), AXIS)" in inspect.getsource(pmap.make_steps)

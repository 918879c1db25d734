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
# After this lesson you can write the data-parallel training step, prove that it equals one device with the large batch,
# and find an all-reduce that is missing or wrong. Neither mistake raises an error.
#
# About 35 minutes · before: [06 Communicate between devices](06_communicate_between_devices.ipynb) · next:
# [07 Synchronize batch norm](07_synchronize_batch_norm.ipynb)
#
# The lesson computes in float64, so a difference that is not tiny is a mistake and not rounding. Real training uses
# float32.

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
from pmapdp.cpu import faster
from pmapdp.data.batches import Batches
from pmapdp.models.cnn import CNN
from pmapdp.registry import load_data
from pmapdp.state import Task, create_state
from pmapdp.steps import make_steps, pmap
from pmapdp.steps.shared import Body
from pmapdp.verify import verify
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_05

chosen = devices.choose(8)  # 8 simulated CPU devices; call it before any other use of JAX
N = len(chosen)
jax.config.update("jax_enable_x64", True)
drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
data = load_data(DATASET)
print(devices.describe(chosen))

# %% [markdown]
# ## Four examples, two devices
#
# Take the smallest possible model: one parameter `w`, the prediction `w * x`, and the loss `(w * x - y)² / 2`. The
# derivative of the loss is `(w * x - y) * x`, so at `w = 0` the gradient of an example is `-y * x`. The four examples
# below have the gradients -2, -2, -5 and -7. Their mean is -4.
#
# Now device 0 gets the first two examples, and device 1 gets the others. **Predict** the mean gradient on each device,
# and the mean of these two.


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
# batch**, because both devices hold the same number of examples. This is the whole idea of data parallelism. The
# averaged gradient is the gradient of the large batch, so the update is that of the large batch. Every device makes the
# same update, so the copies of the parameters stay equal. The parameters are sent only once, when training starts.
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
lesson_05.data_parallel_step()

# %% [markdown]
# Everything it needs comes from lesson 03: the network as a structure and parameters, the mean loss, and plain gradient
# descent. (`batch_stats` is for batch norm, which this network does not have.)

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
# Now the two steps: first the step for one device, then the data-parallel step, which has one line more. `axis_name`
# gives the device axis the name that `pmean` refers to. `None` in `in_axes` and `out_axes` says that the parameters are
# replicated, and have no device axis (lesson 04).


# %%
def one_device_step(params, batch):
    loss, gradients = jax.value_and_grad(mean_loss)(params, batch)
    return descend(params, gradients), loss


def data_parallel_step(params, batch):
    loss, gradients = jax.value_and_grad(mean_loss)(params, batch)
    loss, gradients = lax.pmean((loss, gradients), "data")  # <- new: the loss and all gradients
    return descend(params, gradients), loss


axes = {"axis_name": "data", "in_axes": (None, 0), "out_axes": None}
one_device = jax.jit(one_device_step)
data_parallel = jax.pmap(data_parallel_step, **axes)  # <- changed: pmap in place of jit

# %% [markdown]
# The two functions differ only in the marked line.
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
# Each device holds 8 of the 64 images. Now make twenty updates with each step, from the same parameters and on the same
# batches. **Predict:** are the parameters equal at the end, bit for bit?


# %%
def distance(tree, other):
    """Largest difference of two numbers in the same place of two trees."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


alone, together, history = start.params, place.place_state(start).params, []
for batch, split in zip(batches, placed, strict=True):
    alone, loss_alone = one_device(alone, batch)
    together, loss_together = data_parallel(together, split)
    history.append(jax.device_get(alone))

print(f"loss in the last update: one device {loss_alone:.6f}, eight {loss_together:.6f}")
print(f"parameters moved by up to {distance(alone, start.params):.3f}")
print(f"parameters differ by up to {distance(alone, together):.0e}")
assert 0 < distance(alone, together) < 1e-12
assert distance(alone, start.params) > 1e-2

# %% [markdown]
# They are not equal bit for bit, because the eight devices add up the 64 examples in another order, and every addition
# rounds. But the difference stays below 1e-12, while the parameters moved by more than 1e-2.
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
for split, right in zip(placed, history, strict=True):
    drifting, loss = forgotten(drifting, split)
    losses.append(float(loss))
    drift.append([distance(copy, right) for copy in copies(drifting)])

bias = drifting["logits"]["bias"]
print(f"loss from {losses[0]:.2f} to {losses[-1]:.2f}")
print("JAX says: fully replicated =", bias.is_fully_replicated)
for device, copy in enumerate(copies(bias)[:3]):
    print(f"device {device} holds", copy[:5].round(4))
lesson_05.drift(np.array(drift), distance(alone, together))
assert losses[-1] < losses[0]
assert bias.is_fully_replicated
assert min(drift[-1]) > 1e-3
assert all(distance(copy, together) == 0 for copy in copies(together))

# %% [markdown]
# There is no error, and the loss falls. But there are eight different models now, each trained on an eighth of the
# data, and a checkpoint would save only one of them. With `out_axes=None` you promised that all devices return the
# same, and JAX does not check it: `is_fully_replicated` is read from the sharding, not from the numbers. To see the
# numbers of each device, read `addressable_shards`. With `pmean`, all copies are equal bit for bit, as the last line
# asserts.
#
# ## Failure 2: the wrong collective
#
# Now take `psum` in place of `pmean`. It gives the sum of the eight means. All copies agree, so comparing them finds
# nothing. A comparison with one device finds this mistake, and the first one too. `pmapdp.verify` makes the comparison:
# it runs your step and a plain step for one device, from the same state and on the same batch. It reports what differs,
# and names the mistake that explains it. `layout="replicated"` says that the state has no device axis. **Predict:** by
# what factor is the update too long?


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
# The right step passes all checks that could be made. The other two fail, and the reports name the mistakes: in one,
# the all-reduce is missing, and the other moves 8 times as far as it should.
#
# With gradient descent, taking the sum acts like a learning rate that is N times too high: training may still work on
# two devices, and diverge on 64. **Predict:** how much longer is Adam's update if the gradient is eight times too long?

# %%
adam, gradient = optax.adam(1e-3), jax.grad(mean_loss)(start.params, batches[0])
moves = [adam.update(optax.tree.scale(factor, gradient), adam.init(gradient))[0] for factor in (1, N)]
one, eight = map(optax.tree.norm, moves)
print(f"Adam's update is {eight / one:.3f} times as long")
np.testing.assert_allclose(eight, one, rtol=0.02)

# %% [markdown]
# Its length is almost the same. Adam divides a gradient by its typical size, so a constant factor cancels. The mistake
# does no harm until somebody clips the gradients to a fixed length: then gradients that are eight times too long are
# clipped too often. So compare **the update** with that of one device, and not the loss curve.
#
# ## What if a device has fewer examples?
#
# Take the first three of the four examples above. The gradients are -2 and -2 on device 0, and -5 on device 1, so the
# mean is -3. Device 0 has a sum of -4 over two examples, and device 1 has a sum of -5 over one example. **Predict**
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
# It gives -3.5, because the single example of device 1 counts twice as much as each of the others. The mean of the
# sums, divided by the mean of the counts, is right for any split: both have the same factor 1/N, which cancels. (`psum`
# of both is right, too.) pmapdp uses this form. All devices run one program on arrays of one shape, so the free rows of
# device 1 hold padding, which has weight 0 and adds nothing to the sum or to the count. Lesson 07 builds on this.
#
# ## What changes when you add devices
#
# Three questions come up in every data-parallel program, in JAX as with DDP.
#
# **Which batch size is meant?** With DDP you set the per-device batch, so eight GPUs give eight times the global batch.
# In JAX you usually set the global batch, because one process feeds all devices. The result depends only on the global
# batch: with B = 64 it is the same on 1, 2 or 8 devices, up to rounding.
#
# **Does the learning rate change?** Not if the global batch stays the same. If you keep b fixed, then B grows with N,
# and an epoch has fewer updates, from less noisy gradients. A common rule for SGD multiplies the learning rate by the
# same factor as B, and warms it up over the first epochs ([Goyal et al., 2017](https://arxiv.org/abs/1706.02677)). For
# Adam, the square root of the factor is common ([Malladi et al., 2022](https://arxiv.org/abs/2205.10287)). Both are
# rules of thumb: check them on your problem. pmapdp has `--scale-learning-rate linear` and `sqrt`.
#
# **Does communication overlap with computation?** The gradients of the last layer are ready first. DDP all-reduces them
# in buckets while the backward pass still computes the others. In JAX, XLA schedules the all-reduces of a compiled
# step, and can overlap them with the rest of the backward pass, without a change of your code. On GPUs, XLA flags
# control this ([GPU performance tips](https://docs.jax.dev/en/latest/gpu_performance_tips.html)). Simulated devices
# have no network, so the measurement at the end shows no overlap. The picture shows a step without and with overlap:
# filled boxes are computation, and outlined boxes are communication.

# %%
lesson_05.overlap()

# %% [markdown]
# With overlap, the update starts earlier, because only the last all-reduce is left when the backward pass ends.
#
# ## Exercises
#
# All functions but the second run on each device inside `pmap`, and the mapped axis is `"data"`. In the first and
# third, the model is linear: `x @ w`, with parameters `w` `[D]` and examples `x` `[b, D]`, `y` `[b]`. The loss of an
# example is `(x @ w - y)² / 2`. Solutions, with reasons:
# [solutions/05_average_gradients.py](solutions/05_average_gradients.py).
#
# 1. `step` (5 minutes): the parameters `[D]` after one data-parallel step of gradient descent with learning rate 0.1.
#    <details><summary>Hint</summary>The local mean gradient is <code>x.T @ (x @ w - y) / len(y)</code>, or
#    <code>jax.grad</code> of the mean loss. Average it before you use it.</details>
# 2. `largest_difference` (5 minutes): the largest difference between two devices' copies of an array that JAX calls
#    replicated. It is 0 if all copies are equal. <details><summary>Hint</summary>Stack the shards' data in NumPy, then
#    take the largest minus the smallest along the new axis.</details>
# 3. `global_gradient` (10 minutes): the gradient `[D]` of the mean loss over all *valid* examples of all devices. A
#    device may hold nothing but padding. <details><summary>Hint</summary>As in <code>sum_over_count</code>, divide
#    after the all-reduce.</details>
# 4. `mended_clipping` (find the mistake): `broken_clipping` should clip the gradient of the global batch to a length of
#    at most 1. It raises no error, all copies agree, and on one device the result is right. On several devices it is
#    wrong. Write it correctly. <details><summary>Hint</summary>Which gradient should have a length of at most
#    1?</details>


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
    check("05_average_gradients", exercise.__name__, exercise)

# %% [markdown]
# ## What it costs
#
# The next cell times pmapdp's step on 1, 2, 4 and 8 simulated devices. The global batches are the same as above, and
# the precision is float32, as in real training. The cell prints the time of the fastest step. The parameters must equal
# yours within 1e-4. **Predict:** which number of devices is fastest?

# %%
print(f"{devices.describe(chosen)}, jax {jax.__version__}, 64 examples a step, float32")
task32 = Task(CNN, optax.sgd(RATE), transform=faster)  # convolutions as pmapdp computes them on CPUs
start32 = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, start)
for count in (1, 2, 4, 8):
    steps = make_steps("pmap", task32, chosen[:count])
    state, times = steps.place_state(start32), []
    for batch in batches:
        split = jax.block_until_ready(steps.place_batch(batch))
        clock = time.perf_counter()
        state, _ = jax.block_until_ready(steps.train_step(state, split))
        times.append(time.perf_counter() - clock)
    far = distance(state.params, together)
    print(f"{count} x {64 // count:2d} examples: {1000 * min(times):5.1f} ms, {far:.0e} from yours")
    assert far < 1e-4

# %% [markdown]
# These numbers say nothing about real devices: simulated devices share the cores of this machine, and the 64 examples
# cost the same arithmetic in every row. More devices only add copies of the update, and an all-reduce. On N real
# devices, the work on the examples is divided by N, but the update and the all-reduce are not. So data parallelism pays
# if b is so large that a device computes for longer than it communicates.
#
# ## Take away
#
# * Split the batch, compute local gradients, average them, and make the same update on every device: the result is that
#   of the large batch on one device.
# * A missing all-reduce and a sum in place of a mean raise no error. `pmapdp.verify` compares a step with one device,
#   and finds both.
# * Means of means are wrong for ragged batches. Average sums and counts, and divide once.
#
# The step of pmapdp is in [steps/pmap.py](../src/pmapdp/steps/pmap.py), and its update is in
# [steps/shared.py](../src/pmapdp/steps/shared.py). Both are printed below. They are your step with sums and counts, any
# optimizer, and a donated state. To read on:
# [DDP's design](https://docs.pytorch.org/docs/stable/notes/ddp.html) and
# [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677). Next:
# [07 Synchronize batch norm](07_synchronize_batch_norm.ipynb).

# %%
print(inspect.getsource(pmap.make_steps))
print(inspect.getsource(Body.update))
assert "lax.pmean((gradients, sums.count), AXIS)" in inspect.getsource(pmap.make_steps)

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
# # 05. Average gradients
#
# After this lesson you can train on eight devices with the program of lesson 03 and one line more, show that each
# update equals that of one device up to rounding, and find an all-reduce that is missing or wrong.
#
# About 40 minutes · you need [03 Train with Flax and Optax](03_train_with_flax_and_optax.ipynb) and
# [04 Map over devices](04_map_over_devices.ipynb) · next:
# [06 Communicate between devices](06_communicate_between_devices.ipynb)

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
# ## Four examples, two devices
#
# Take the smallest possible model: one parameter `w`, the prediction `w * x`, and the loss `(w * x - y)² / 2`. The
# derivative of the loss is `(w * x - y) * x`, so at `w = 0` the gradient of an example is `-y * x`. The four examples
# below have the gradients -2, -2, -5 and -7. Their mean is -4.
#
# Now device 0 gets the first two examples, and device 1 gets the others. **Predict** the mean gradient on each device,
# and the mean of these two.


# %% tags=["prediction"]
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

# %% [markdown]
# <details><summary>Answer</summary>
#
# The means on the devices are -2 and -6, and their mean is -4. **The mean of the local means is the mean over the
# batch**, because both devices hold the same number of examples. This is the whole idea of data parallelism. The
# averaged gradient is the gradient of the large batch, so the update is that of the large batch. Every device makes the
# same update, so the copies of the parameters stay equal: they are sent once, when training starts, and never again.
#
# </details>
#
# `lax.pmean(x, "data")` is an **all-reduce**: all devices reach this line, and each gets the average of what they hold.
# `"data"` is the name that `axis_name` gave to the device axis. PyTorch's `DistributedDataParallel` (DDP) does the same
# inside `loss.backward()`. In JAX it is a line in your own step.
#
# ## The program of lesson 03, on eight devices
#
# A **global batch** has B = 64 examples. Each of N = 8 devices gets a **per-device batch** of b = B / N = 8. The
# picture shows one update, from the batch at the top to the new model at the bottom.

# %%
from pmapdp.lessons.pictures import lesson_05

lesson_05.data_parallel_step()

# %% [markdown]
# The next cell is the program of lesson 03. The marked lines are new or changed:
#
# * **The step has one line more.** `pmean` averages the gradients, and also the sums. The next line divides by the
#   averaged count, as before: in a quotient, the factor 1/N cancels.
# * `jax.pmap` takes the place of `jax.jit`. The model and the optimizer state are replicated (`None`), the batch is
#   split (`0`), and all results are replicated (lesson 04).
# * `place` has two lines: reshape to `[N, b, ...]`, and put one slice on each device. `prefetch` places the next two
#   batches while the devices still compute, because `device_put` does not wait for the copy.
# * The evaluation adds up over all devices with `lax.psum`, so it counts every example once, whatever their number.


# %% tags=["take-home"]
import collections
import math
import os

import jax
import numpy as np
import optax
from flax import nnx
from jax import lax  # <- new
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # <- new

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

mesh = Mesh(np.array(jax.devices()), ("data",))  # <- new
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))  # <- new


def place(batch):  # <- new
    """A batch of the host on the devices: `[B, ...]` to `[N, b, ...]`, where B is a multiple of N."""
    batch = jax.tree.map(lambda array: array.reshape(mesh.size, -1, *array.shape[1:]), batch)
    return jax.device_put(batch, split)


def prefetch(host_batches, ahead=2):  # <- new
    """The same batches on the devices; while one is used, the next ones are on their way."""
    queue = collections.deque()
    for batch in host_batches:
        queue.append(place(batch))
        if len(queue) > ahead:
            yield queue.popleft()
    yield from queue


class Network(nnx.Module):
    def __init__(self, features, classes, rngs):
        self.hidden = nnx.Linear(features, 64, rngs=rngs)
        self.logits = nnx.Linear(64, classes, rngs=rngs)

    def __call__(self, x):  # [B, D] to [B, C]
        return self.logits(nnx.relu(self.hidden(x)))


def batches(data, size, seed=None):
    """Batches (x, y, weights) of `size` rows, shuffled if there is a seed; every example occurs once."""
    x, y = data
    n, padding = len(x), -len(x) % size
    order = np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)
    rows = np.append(order, np.zeros(padding, int))
    weights = np.append(np.ones(n, np.float32), np.zeros(padding, np.float32))
    for start in range(0, n, size):
        part = slice(start, start + size)
        yield x[rows[part]], y[rows[part]], weights[part]


def loss_sums(model, batch):
    """The sum of the losses of a batch, and a dictionary of sums."""
    x, y, weights = batch
    logits = model(x)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    right = logits.argmax(-1) == y
    sums = {"loss": (weights * losses).sum(), "right": (weights * right).sum(), "count": weights.sum()}
    return sums["loss"], sums


def make_steps(optimizer):
    """The compiled training step and evaluation step."""

    def train_step(model, optimizer_state, batch):
        (_, sums), gradients = jax.value_and_grad(loss_sums, has_aux=True)(model, batch)
        sums, gradients = lax.pmean((sums, gradients), "data")  # <- new: the one line
        gradients = jax.tree.map(lambda g: g / sums["count"], gradients)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
        return optax.apply_updates(model, updates), optimizer_state, sums

    def eval_step(model, batch):
        return lax.psum(loss_sums(model, batch)[1], "data")  # <- changed

    axes = {"axis_name": "data", "out_axes": None}  # <- new
    train_step = jax.pmap(train_step, in_axes=(None, None, 0), donate_argnums=(0, 1), **axes)  # <- changed
    return train_step, jax.pmap(eval_step, in_axes=(None, 0), **axes)  # <- changed


def means(history):
    """Mean loss and accuracy over all examples of a list of sums; waits until they are computed."""
    history = jax.device_get(history)
    total = {name: sum(sums[name] for sums in history) for name in ("loss", "right", "count")}
    return total["loss"] / total["count"], total["right"] / total["count"]


def train(model, data, validation, epochs, batch_size=64):
    """The trained model, and a function that gives the mean loss and the accuracy on a data set."""
    schedule = optax.cosine_decay_schedule(1e-2, epochs * math.ceil(len(data[0]) / batch_size))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    train_step, eval_step = make_steps(optimizer)
    model, optimizer_state = jax.device_put((model, optimizer.init(model)), replicated)  # <- changed

    def evaluate(trained, examples):
        return means([eval_step(trained, batch) for batch in prefetch(batches(examples, batch_size))])  # <- changed

    for epoch in range(epochs):
        history = []
        for batch in prefetch(batches(data, batch_size, seed=epoch)):  # <- changed
            model, optimizer_state, sums = train_step(model, optimizer_state, batch)
            history.append(sums)
        train_loss, _ = means(history)
        loss, accuracy = evaluate(model, validation)
        print(f"epoch {epoch + 1:2d}: train loss {train_loss:.3f}, validation {loss:.3f}, accuracy {accuracy:.3f}")
    return model, evaluate


def clouds(n, seed):
    """n points in ten overlapping clouds, and the numbers of their clouds. Put your own arrays in its place."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, n)
    centres = np.random.default_rng(0).normal(size=(10, 64))
    return (centres[labels] + 1.5 * random.normal(size=(n, 64))).astype(np.float32), labels.astype(np.int32)


model, evaluate = train(Network(64, 10, nnx.Rngs(0)), clouds(1200, seed=1), clouds(237, seed=2), epochs=5)
loss, accuracy = evaluate(model, clouds(360, seed=3))
print(f"test accuracy {accuracy:.3f} on {mesh.size} devices")
assert accuracy > 0.9

# %% [markdown]
# On real devices, delete the two lines that simulate: the rest stays as it is. Now the digits. **Predict:** lesson 03
# reached a test accuracy of 0.969 on one device with the same seed, batches and epochs. What comes out on eight?

# %% tags=["prediction"]
model, evaluate = train(Network(64, 10, nnx.Rngs(0)), data.train, data.validation, epochs=15)
loss, accuracy = evaluate(model, data.test)
print(f"test accuracy {accuracy:.3f} on {len(data.test[0])} digits, {mesh.size} devices")
print("device 7 holds the kernel", model.hidden.kernel[...].addressable_shards[7].data.shape)

# %% tags=["proof"]
# The asserts behind the answers so far.
assert (one_device, *local, *averaged) == (-4, -2, -6, -4, -4)
assert abs(accuracy - 0.969) < 0.01

# %% [markdown]
# <details><summary>Answer</summary>
#
# The same. Every device holds a copy of the model, and all made the same updates.
#
# </details>
#
# ## Proof: equal to one device
#
# An accuracy is a weak proof. Compare the parameters after twenty updates instead: those of the data-parallel step, and
# those of a step without `pmap` and without `pmean`, on the same batches. We use plain gradient descent, because Adam
# divides by the size of a gradient, and so makes rounding visible where a gradient is nearly 0. **Predict:** are the
# parameters equal at the end, bit for bit?


# %% tags=["prediction"]
def mean_loss(model, batch):
    total, sums = loss_sums(model, batch)
    return total / sums["count"]


def descend(model, gradients):
    return jax.tree.map(lambda w, g: w - 0.1 * g, model, gradients)


def one_device_step(model, batch):
    loss, gradients = jax.value_and_grad(mean_loss)(model, batch)
    return descend(model, gradients), loss


def data_parallel_step(model, batch):
    loss, gradients = jax.value_and_grad(mean_loss)(model, batch)
    loss, gradients = lax.pmean((loss, gradients), "data")  # <- new
    return descend(model, gradients), loss


def distance(tree, other):
    """Largest difference of two numbers in the same place of two trees."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


axes = {"axis_name": "data", "in_axes": (None, 0), "out_axes": None}
one_device, data_parallel = jax.jit(one_device_step), jax.pmap(data_parallel_step, **axes)
start = Network(64, 10, nnx.Rngs(0))
two_epochs = [batch for seed in (0, 1) for batch in batches(data.train, 64, seed)]
twenty = [batch for batch in two_epochs if batch[2].all()][:20]  # full batches: the ragged ones come below
alone, together, history = start, jax.device_put(start, replicated), []
for batch in twenty:
    alone, loss_alone = one_device(alone, batch)
    together, loss_together = data_parallel(together, place(batch))
    history.append(jax.device_get(alone))

print(f"loss in the last update: one device {loss_alone:.6f}, eight {loss_together:.6f}")
print(f"parameters moved by up to {distance(alone, start):.3f}, and differ by up to {distance(alone, together):.0e}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# They differ in the last digits, because the eight devices add up the 64 examples in another order, and every addition
# rounds. In float32 a number keeps about seven digits, so the tolerance is 1e-5. In float64, pmapdp's tests hold its
# steps to 1e-10.
#
# </details>
#
# ## Failure 1: the all-reduce is forgotten
#
# Leave out the line with `pmean`. **Predict:** does it raise an error? Does the loss fall? What does JAX say about the
# parameters?

# %% tags=["prediction"]
forgotten = jax.pmap(one_device_step, **axes)  # <- changed: no pmean inside


def copies(tree):
    """What the devices hold of a replicated tree: a list of N trees."""
    return [jax.tree.map(lambda a, d=d: np.asarray(a.addressable_shards[d].data), tree) for d in range(mesh.size)]


drifting, losses, drift = jax.device_put(start, replicated), [], []
for batch, right in zip(twenty, history, strict=True):
    drifting, loss = forgotten(drifting, place(batch))
    losses.append(float(loss))
    drift.append([distance(copy, right) for copy in copies(drifting)])

bias = drifting.logits.bias[...]
print(f"loss from {losses[0]:.2f} to {losses[-1]:.2f}")
print("JAX says: fully replicated =", bias.is_fully_replicated)
for device, copy in enumerate(copies(bias)[:3]):
    print(f"device {device} holds", copy[:5].round(4))
lesson_05.drift(np.array(drift), distance(alone, together))

# %% tags=["proof"]
# The asserts behind the answers so far.
assert distance(alone, together) < 1e-5
assert distance(alone, start) > 1e-2
assert losses[-1] < losses[0]
assert bias.is_fully_replicated
assert min(drift[-1]) > 1e-3
assert all(distance(copy, together) == 0 for copy in copies(together))

# %% [markdown]
# <details><summary>Answer</summary>
#
# There is no error, and the loss falls. But there are eight different models now, each trained on an eighth of the
# data, and a checkpoint would save only one of them. With `out_axes=None` you promised that all devices return the
# same, and JAX does not check it: `is_fully_replicated` is read from the sharding, not from the numbers. To see the
# numbers of each device, read `addressable_shards`. With `pmean`, all copies are equal bit for bit, as the folded cell
# asserts.
#
# </details>
#
# ## Failure 2: the wrong collective
#
# Now take `psum` in place of `pmean`. It gives the sum of the eight means. All copies agree, so comparing them finds
# nothing. A comparison with one device finds this mistake, and the first one too. `pmapdp.verify` makes the comparison:
# it runs your step and a plain step for one device, from the same state and on the same batch. It reports what differs,
# and names the mistake that explains it. `layout="replicated"` says that the state has no device axis. **Predict:** by
# what factor is the update too long?

# %% tags=["prediction"]
from pmapdp.lessons.reports import show  # prints a report, and breaks its long lines
from pmapdp.verify import verify  # compares a step with one device, and explains what differs


def summed_step(model, batch):
    loss, gradients = jax.value_and_grad(mean_loss)(model, batch)
    loss, gradients = lax.pmean(loss, "data"), lax.psum(gradients, "data")  # <- changed: psum
    return descend(model, gradients), loss


case = {"reference": one_device, "state": start, "batch": [a[:16] for a in twenty[0]], "layout": "replicated"}
reports = [verify(step=step, **case) for step in (data_parallel, forgotten, jax.pmap(summed_step, **axes))]
show("\n\n".join(map(str, (reports[0], *reports[1].failed, *reports[2].failed))))

# %% [markdown]
# <details><summary>Answer</summary>
#
# The right step passes all checks that could be made. The other two fail, and the reports name the mistakes: in one,
# the all-reduce is missing, and the other moves 8 times as far as it should.
#
# </details>
#
# With gradient descent, taking the sum acts like a learning rate that is N times too high: training may still work on
# two devices, and diverge on 64. **Predict:** how much longer is Adam's update if the gradient is eight times too long?

# %% tags=["prediction"]
adam, gradient = optax.adam(1e-3), jax.grad(mean_loss)(start, twenty[0])
moves = [adam.update(optax.tree.scale(factor, gradient), adam.init(gradient))[0] for factor in (1, 8)]
one, eight = map(optax.tree.norm, moves)
print(f"Adam's update is {eight / one:.3f} times as long")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Its length is almost the same. Adam divides a gradient by its typical size, so a constant factor cancels. The mistake
# does no harm until somebody clips the gradients to a fixed length, as our program does: then gradients that are eight
# times too long are clipped too often. So compare **the update** with that of one device, and not the loss curve.
#
# </details>
#
# ## What if a device has fewer examples?
#
# Take the first three of the four examples above. The gradients are -2 and -2 on device 0, and -5 on device 1, so the
# mean is -3. Device 0 has a sum of -4 over two examples, and device 1 has a sum of -5 over one example. **Predict**
# what `pmean` of the local means gives.


# %% tags=["prediction"]
def mean_of_means(total, count):
    return lax.pmean(total / count, "data")


def sum_over_count(total, count):
    total, count = lax.pmean((total, count), "data")  # <- changed: average both ...
    return total / count  # <- changed: ... and divide once, after the all-reduce


totals, counts = np.array([-4.0, -5.0]), np.array([2.0, 1.0])  # [N] each
averages = []
for average in (mean_of_means, sum_over_count):
    averages.append(jax.pmap(average, axis_name="data")(totals, counts))
    print(f"{average.__name__:14s}", averages[-1])

# %% tags=["proof"]
# The asserts behind the answers so far.
assert [report.causes for report in reports] == [[], ["no all-reduce", "one device's metrics"], ["sum for mean"]]
np.testing.assert_allclose(eight, one, rtol=0.02)
assert [result.tolist() for result in averages] == [[-3.5, -3.5], [-3, -3]]

# %% [markdown]
# <details><summary>Answer</summary>
#
# It gives -3.5, because the single example of device 1 counts twice as much as each of the others. The mean of the
# sums, divided by the mean of the counts, is right for any split: both have the same factor 1/N, which cancels. (`psum`
# of both is right, too.) That is why the program differentiates a sum and divides *after* its `pmean`: its last batch
# of an epoch has padding on some devices. The short `data_parallel_step` of the proof divides before, and is right for
# full batches only.
#
# </details>
#
# ## What changes when you add devices
#
# **Which batch size is meant?** With DDP you set the per-device batch, so eight GPUs give eight times the global batch.
# In JAX you usually set the global batch, because one process feeds all devices. With the same global batch, this step
# gives the same result on 1, 2 or 8 devices, up to rounding. That is not automatic if the model has batch norm or
# dropout: lessons 07 and 08 show what they need.
#
# **Does the learning rate change?** Not if the global batch stays the same. If you keep b fixed, then B grows with N,
# and an epoch has fewer updates, from less noisy gradients. A common rule for SGD multiplies the learning rate by the
# same factor as B, and warms it up over the first epochs ([Goyal et al., 2017](https://arxiv.org/abs/1706.02677)). For
# Adam, the square root of the factor is common ([Malladi et al., 2022](https://arxiv.org/abs/2205.10287)). Both are
# rules of thumb: check them on your problem.
#
# **Does communication overlap with computation?** The gradients of the last layer are ready first. DDP all-reduces them
# in buckets while the backward pass still computes the others. XLA can do two things with the all-reduces of a compiled
# step: combine several small ones into one, which saves starts, or run them beside the rest of the backward pass. The
# second needs all-reduces that were not all combined, and hardware that sends while it computes. The picture shows
# both. **Predict:** how many all-reduces has our step after compiling? It averages four gradients and three sums.

# %% tags=["prediction"]
import re

lesson_05.overlap()
state = jax.device_put((start, adam.init(start)), replicated)
program = make_steps(adam)[0].lower(*state, place(twenty[0])).compile().as_text()
all_reduces = re.findall(r" all-reduce(?:-start)?\(", program)
print(len(all_reduces), "all-reduce in the compiled step")

# %% tags=["proof"]
# The asserts behind the answer.
assert len(all_reduces) == 1

# %% [markdown]
# <details><summary>Answer</summary>
#
# One: on a CPU, XLA combines all seven. On GPUs, XLA flags set whether it overlaps, and up to which size it combines
# ([GPU performance tips](https://docs.jax.dev/en/latest/gpu_performance_tips.html)). Lesson 06 says what an all-reduce
# costs, and lesson 18 how to see in a profile what yours does. Simulated devices have no network and share the cores of
# one machine, so no time that you measure here says anything about real ones.
#
# </details>
#
# ## Exercises
#
# All functions run on each device inside `pmap`, and the mapped axis is `"data"`. In the first two, the model is
# linear: `x @ w`, with parameters `w` `[D]` and examples `x` `[b, D]`, `y` `[b]`. The loss of an example is `(x @ w -
# y)² / 2`. Solutions, with reasons: [solutions/05_average_gradients.py](solutions/05_average_gradients.py).
#
# 1. `step` (5 minutes): the parameters `[D]` after one data-parallel step of gradient descent with learning rate 0.1.
#    <details><summary>Hint</summary>The local mean gradient is <code>x.T @ (x @ w - y) / len(y)</code>, or
#    <code>jax.grad</code> of the mean loss. Average it before you use it.</details>
# 2. `global_gradient` (10 minutes): the gradient `[D]` of the mean loss over all *valid* examples of all devices. A
#    device may hold nothing but padding. <details><summary>Hint</summary>As in <code>sum_over_count</code>, divide
#    after the all-reduce.</details>
# 3. `fixed_clipping` (find the mistake): `broken_clipping` should clip the gradient of the global batch to a length of
#    at most 1. It raises no error, all copies agree, and on one device the result is right. On several devices it is
#    wrong. Write it correctly. <details><summary>Hint</summary>Which gradient should have a length of at most
#    1?</details>

# %%
from pmapdp.lessons.checks import check


def broken_clipping(gradient):  # [D], the mean over this device's examples
    length = jnp.sqrt((gradient**2).sum())
    clipped = gradient / jnp.maximum(length, 1)
    return lax.pmean(clipped, "data")


def step(w, x, y):
    """Parameters `[D]` after one step on `[b, D]` and `[b]` of each device."""
    ...  # your code: 2 to 3 lines


def global_gradient(w, x, y, weights):
    """Gradient `[D]` over all devices' examples; `weights` `[b]` is 1 for an example and 0 for padding."""
    ...  # your code: 3 to 4 lines


def fixed_clipping(gradient):
    """The global batch's gradient `[D]`, with a length of at most 1."""
    ...  # your code: 2 to 3 lines


for exercise in (step, global_gradient, fixed_clipping):
    check("05_average_gradients", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# * Split the batch, compute local gradients, average them with one `lax.pmean`, and make the same update on every
#   device: the result is that of the large batch on one device.
# * A missing all-reduce and a sum in place of a mean raise no error. Compare one update with that of one device:
#   `pmapdp.verify` does it, and names the mistake.
# * Means of means are wrong for ragged batches. Average sums and counts, and divide once.
#
# In pmapdp, [steps/pmap.py](../pmapdp/steps/pmap.py) differs from [steps/single.py](../pmapdp/steps/single.py)
# in the same line: `gradients, count = lax.pmean((gradients, sums.count), AXIS)`. It trains a model, a loss and data of
# yours, too: [docs/own.md](../docs/own.md). To read on:
# [DDP's design](https://docs.pytorch.org/docs/stable/notes/ddp.html) and
# [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677). Next, what the new line costs:
# [06 Communicate between devices](06_communicate_between_devices.ipynb).

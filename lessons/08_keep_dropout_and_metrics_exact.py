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
# # 08. Keep dropout and metrics exact
#
# After this lesson you can draw dropout masks that do not depend on the number of devices, and evaluate a model on exactly
# the examples of the test set, whatever their number.
#
# About 25 minutes · before: [07 Synchronize batch norm](07_synchronize_batch_norm.ipynb) · next:
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb)
#
# Lesson 07 made batch norm independent of the number of devices. Two more things can depend on it, without any error: the
# **random numbers** of dropout, and **metrics** that are averaged over devices. At the end, a network with
# batch norm, dropout and padding makes the same updates on one device and on eight.

# %%
import inspect
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices
from pmapdp.data.batches import Batches
from pmapdp.models import layers
from pmapdp.models.convnet import ConvNet
from pmapdp.registry import load_data
from pmapdp.state import Task, create_state
from pmapdp.steps import make_steps
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_08

chosen = devices.choose(8)  # 8 simulated CPU devices; nothing of JAX may run before this line
jax.config.update("jax_enable_x64", True)
drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
data = load_data(DATASET)
print(devices.describe(chosen))

# %% [markdown]
# ## Which key does a device use?
#
# With rate 0.5, dropout sets a random half of the activations to 0. In JAX the same key and the same shape give the same
# random array, and `fold_in(key, number)` makes another key (lesson 02). Each device draws the masks of its own examples.
# Here are three ways to choose its key. Each function runs on one device, and gets the indices of its examples. An example
# has twelve activations.


# %%
def same_key(key, indices):
    return jax.random.bernoulli(key, 0.5, (len(indices), 12))


def key_per_device(key, indices):
    key = jax.random.fold_in(key, lax.axis_index("data"))  # <- new
    return jax.random.bernoulli(key, 0.5, (len(indices), 12))


def key_per_example(key, indices):
    keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)  # <- changed
    return jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (12,)))(keys)


# %% [markdown]
# Draw the masks of eight examples on 1, 2 and 4 devices. In the picture, an activation that is kept has the colour of its
# device. **Predict** which way gives the same mask on any number of devices.


# %%
def mask(way, N):  # bool [8, 12], from N devices
    mapped = jax.pmap(way, axis_name="data", in_axes=(None, 0), devices=chosen[:N])
    return np.asarray(mapped(jax.random.key(0), np.arange(8).reshape(N, -1))).reshape(8, 12)


ways = (same_key, key_per_device, key_per_example)
masks = {way.__name__: {N: mask(way, N) for N in (1, 2, 4)} for way in ways}
lesson_08.masks(masks)
for name, of_counts in masks.items():
    assert all((each == of_counts[1]).all() for each in of_counts.values()) == (name == "key_per_example")
assert (masks["same_key"][2][:4] == masks["same_key"][2][4:]).all()

# %% [markdown]
# With the same key, the devices repeat each other's mask, so the noise is not independent. With a key for each device, the
# masks are independent, but another number of devices gives another training run. With a key for each example, the masks
# are independent and the same on any number of devices.
#
# Most programs with `pmap` fold in the number of the device. That is enough to train well. But you cannot compare such a run
# with one on a single device, and if it resumes on another number of devices, it continues with other masks.
#
# All this concerns `pmap` and `shard_map`, where the program sees the rows of one device. Under `jit` (lesson 09), it sees
# the global batch. **Predict:** does one key give the same mask there when the batch is split over eight devices?

# %%
split = NamedSharding(Mesh(np.array(chosen), ("data",)), PartitionSpec("data"))
over_eight = jax.jit(same_key, static_argnums=1, out_shardings=split)(jax.random.key(0), range(8))
equal = bool((over_eight == masks["same_key"][1]).all())
print(f"under jit on {len(over_eight.devices())} devices: the mask of one device = {equal}")
assert equal

# %% [markdown]
# It does: the compiler lets each device draw its own rows of the one mask. So under `jit` you need no key for each example
# to be independent of the number of devices.
#
# ## Metrics
#
# An evaluation must count every test example once. The 360 test digits do not divide by eight devices and batches of 100,
# so the last batch has 60 examples and 44 rows of padding. First see what each device finds. The model is a linear one
# that knows nothing yet, so its accuracy is near chance.

# %%
kernel = np.random.default_rng(0).normal(size=(784, 10))
batches = list(Batches(data.test, 100, devices=8).epoch(0))


def split_rows(batch):
    return jax.tree.map(lambda x: x.reshape(8, -1, *x.shape[1:]), batch)  # [N, b, ...]


def device_sums(kernel, batch):
    logits = batch.inputs.reshape(len(batch.inputs), -1) / 255 @ kernel
    return (batch.weights * (logits.argmax(-1) == batch.labels)).sum(), batch.weights.sum()


correct, count = jax.pmap(device_sums, in_axes=(None, 0))(kernel, split_rows(batches[-1]))
print("the last batch, by device: valid", count.astype(int), "right", correct.astype(int))
assert DATASET != "digits" or count.tolist() == [13, 13, 13, 13, 8, 0, 0, 0]

# %% [markdown]
# Four devices are full, one has eight valid examples, and three have nothing but padding. Now compute the accuracy of the
# test set in two ways: averaged over devices and batches, and from sums. **Predict** what the first one gives.


# %%
def mean_accuracy(kernel, batch):
    correct, count = device_sums(kernel, batch)
    return lax.pmean(correct / count, "data")


def global_sums(kernel, batch):
    return lax.psum(device_sums(kernel, batch), "data")  # <- changed: sums over devices, no division


axes = {"axis_name": "data", "in_axes": (None, 0), "out_axes": None}
averaged, summed = jax.pmap(mean_accuracy, **axes), jax.pmap(global_sums, **axes)
means = [float(averaged(kernel, split_rows(batch))) for batch in batches]
totals = np.sum([jax.device_get(summed(kernel, split_rows(batch))) for batch in batches], axis=0)
guesses = (data.test.inputs.reshape(-1, 784) / 255 @ kernel).argmax(-1)
print("means, batch by batch:", np.round(means, 4))
print(f"sums: {totals[0]:.0f} of {totals[1]:.0f} = {totals[0] / totals[1]:.4f}")
print(f"NumPy, on the host:         {(guesses == data.test.labels).mean():.4f}")
assert totals.tolist() == [(guesses == data.test.labels).sum(), len(data.test.labels)]
assert np.isnan(means[-1]) or DATASET != "digits"

# %% [markdown]
# A device without examples divides 0 by 0, and `pmean` spreads its NaN to all devices. That is the lucky case, because you
# see it. If every device had an example, you would get a plausible number that is wrong: the 8 examples of device 4 would
# count as much as the 13 of device 0. Sums and counts are right in any case: add them up over devices *and* over batches,
# and divide once.
#
# ## Proof: one network, any number of devices
#
# `ConvNet` is the network of Keras's guide to data parallelism, with three batch norms and a dropout. The functions of
# `make_steps` (lesson 03) train it, with a key for each example. Two updates with 20 examples each must give the same
# parameters and running averages on 1 and on 8 devices, within 1e-12 in float64.

# %%
task = Task(ConvNet, optax.sgd(0.1), dtype="float64")
start = create_state(task)


def train(strategy, N):
    """The state after two updates on N devices."""
    steps = make_steps(strategy, task, chosen[:N])
    state = steps.place_state(start)
    for batch in list(Batches(data.train, 20, devices=N, shuffle_seed=0).epoch(0))[:2]:
        state, sums = steps.train_step(state, steps.place_batch(batch))
        assert sums.count == 20
    loss = sums.loss / sums.count
    print(f"{N} device(s): {len(batch.weights)} rows, {batch.examples} of them valid, loss {loss:.6f}")
    return steps.fetch(state)


def distance(tree, other):
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(np.abs(a - b).max() for a, b in pairs)


reference, state = train("single", 1), train("pmap", 8)
print(f"largest difference of parameters and running averages: {distance(state, reference):.0e}")
assert distance(state, reference) < 1e-12

# %% [markdown]
# They agree. In pmapdp, the key of an example comes from the seed, the number of the update and the index of the example,
# as in your first exercise below.
#
# ## What it costs
#
# JAX computes random numbers by hashing a key and a counter, and `fold_in` hashes once more. Measure the masks of 512
# examples with 256 activations each. **Predict** how much longer they take with a key for each example.

# %%
print(f"{devices.describe(chosen[:1])}, jax {jax.__version__}")


def with_one_key(step):
    return jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), step), 0.5, (512, 256))


def with_example_keys(step):
    keys = layers.example_keys(0, step, jnp.arange(512))
    return jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (256,)))(keys)


for function in (with_one_key, with_example_keys):
    draw = jax.jit(function)
    jax.block_until_ready(draw(0))
    times = []
    for _ in range(20):
        clock = time.perf_counter()
        jax.block_until_ready(draw(0))
        times.append(time.perf_counter() - clock)
    print(f"{function.__name__}: {1000 * min(times):.2f} ms, the fastest of 20")

# %% [markdown]
# Both take about the same time: a key for each example is one hash more, beside the 256 hashes for its activations.
#
# ## Exercises
#
# `row_keys` and `mended_mean` run on every device inside `pmap`, and the mapped axis is `"data"`. Solutions, with reasons:
# [solutions/08_keep_dropout_and_metrics_exact.py](solutions/08_keep_dropout_and_metrics_exact.py).
#
# 1. `row_keys` (5 minutes): return `[b]` keys, one for each example, which depend on `seed`, `step` and the index of the
#    example, and on nothing else. <details><summary>Hint</summary><code>jax.random.fold_in</code> twice: once with the
#    step, and inside <code>jax.vmap</code> with each index.</details>
# 2. `exact_accuracy` (10 minutes): the whole evaluation. Return the accuracy over all n examples `x` `[n, D]`, `labels`
#    `[n]`, computed on all devices, in batches of b examples on each device. `predict` maps `[b, D]` to logits `[b, C]` on
#    one device. n can be any number. <details><summary>Hint</summary>Pad x, labels and weights to a multiple of
#    <code>N * b</code> with <code>np.pad</code>. Map a function that returns <code>lax.psum</code> of two sums. Add them up
#    over the batches.</details>
# 3. `mended_mean` (find the mistake): `broken_mean` is right for every full batch, and wrong for the last batch of an
#    epoch. Write it correctly. <details><summary>Hint</summary>What does <code>len(x)</code> count?</details>


# %%
def broken_mean(x, weights):  # [b, C], [b] to [C]
    total = lax.psum((weights[:, None] * x).sum(0), "data")
    return total / lax.psum(len(x), "data")


def row_keys(seed, step, indices):
    """One random key for each example: integers and `[b]` indices to `[b]` keys."""
    ...  # your code: 2 lines


def exact_accuracy(predict, x, labels, b):
    """Fraction of right answers among all n examples."""
    ...  # your code: 10 to 14 lines


def mended_mean(x, weights):
    """Mean over the valid examples of all devices: `[b, C]`, `[b]` to `[C]`."""
    ...  # your code: 2 lines


for exercise in (row_keys, exact_accuracy, mended_mean):
    check("08_keep_dropout_and_metrics_exact", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Give each example its own key, from the seed, the step and its index. Then the masks do not depend on the devices.
# - Padding has weight 0. Add up sums and counts over devices and batches, and divide once, at the end.
# - Compare with one device: neither a repeated mask nor a wrong mean raises an error.
#
# The keys and the dropout layer are in [models/layers.py](../src/pmapdp/models/layers.py), printed below. The sums are in
# [loss.py](../src/pmapdp/loss.py), and the padding in [data/batches.py](../src/pmapdp/data/batches.py). To read on:
# [JAX's random numbers](https://docs.jax.dev/en/latest/random-numbers.html). Next, the compiler takes all this work over:
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb).

# %%
print(inspect.getsource(layers.example_keys))
print(inspect.getsource(layers.Dropout))

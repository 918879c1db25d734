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
# After this lesson you can draw dropout masks that do not depend on the number of devices, and evaluate a model on
# exactly the examples of the test set, whatever their number.
#
# About 25 minutes · you need [05 Average gradients](05_average_gradients.ipynb) · next:
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb)
#
# Two more things can depend on the number of devices, without any error: the **random numbers** of dropout, and
# **metrics** that are averaged over devices.

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
# ## Which key does a device use?
#
# With rate 0.5, dropout sets a random half of the activations to 0. In JAX the same key and the same shape give the
# same random array, and `fold_in(key, number)` makes another key (lesson 02). Each device draws the masks of its own
# examples. Here are three ways to choose its key. Each function runs on one device, and gets the indices of its
# examples. An example has twelve activations.


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
# Draw the masks of eight examples on 1, 2 and 4 devices. In the picture, an activation that is kept has the colour of
# its device. **Predict** which way gives the same mask on any number of devices.


# %% tags=["prediction"]
from pmapdp.lessons.pictures import lesson_08


def mask(way, N):  # bool [8, 12], from N devices
    mapped = jax.pmap(way, axis_name="data", in_axes=(None, 0), devices=jax.devices()[:N])
    return np.asarray(mapped(jax.random.key(0), np.arange(8).reshape(N, -1))).reshape(8, 12)


ways = (same_key, key_per_device, key_per_example)
masks = {way.__name__: {N: mask(way, N) for N in (1, 2, 4)} for way in ways}
lesson_08.masks(masks)

# %% tags=["proof"]
# The asserts behind the answer.
for name, of_counts in masks.items():
    assert all((each == of_counts[1]).all() for each in of_counts.values()) == (name == "key_per_example")
assert (masks["same_key"][2][:4] == masks["same_key"][2][4:]).all()

# %% [markdown]
# <details><summary>Answer</summary>
#
# With the same key, the devices repeat each other's mask, so the noise is not independent. With a key for each device,
# the masks are independent, but the run changes when the number of devices changes. With a key for each example, the
# masks are independent and the same on any number of devices. (This holds for JAX's default generator, threefry. With
# `rbg` and `unsafe_rbg`, which some people set for speed on TPUs, a vmapped draw depends on how many keys it gets.)
#
# </details>
#
# Most programs with `pmap` fold in the number of the device. That is enough to train well. But you cannot compare such
# a run with one on a single device, and if it resumes on another number of devices, it continues with other masks.
#
# All this concerns `pmap` and `shard_map`, where the program sees the rows of one device. Under `jit` (lesson 09), it
# sees the global batch. **Predict:** does one key give the same mask there when the batch is split over eight devices?

# %% tags=["prediction"]
from jax.sharding import Mesh, NamedSharding, PartitionSpec

split = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
over_eight = jax.jit(lambda key: same_key(key, range(8)), out_shardings=split)(jax.random.key(0))
equal = bool((over_eight == masks["same_key"][1]).all())
print(f"under jit on {len(over_eight.devices())} devices: the mask of one device = {equal}")

# %% tags=["proof"]
# The asserts behind the answer.
assert equal

# %% [markdown]
# <details><summary>Answer</summary>
#
# It does: the compiler lets each device draw its own rows of the one mask. So under `jit` you need no key for each
# example to be independent of the number of devices.
#
# </details>
#
# ## Metrics
#
# An evaluation must count every test example once. In batches of 104, thirteen for each of eight devices, the 360 test
# digits leave a last batch of 48 examples. It is filled up with 56 rows of padding. First see what each device finds.
# The model is a linear one that knows nothing yet, so its accuracy is near chance. **Predict:** how many valid examples
# of the last batch does each device hold?

# %% tags=["prediction"]
x_test, y_test = data.test
kernel = np.random.default_rng(0).normal(size=(64, 10)).astype(np.float32)


def padded_batches(x, labels, size):
    """Batches (x, labels, weights), each array `[8, b, ...]`; rows that fill the last batch have weight 0."""
    weights = np.ones(len(x), np.float32)
    for start in range(0, len(x), size):
        rows = [a[start : start + size] for a in (x, labels, weights)]
        filled = [np.pad(a, [(0, size - len(a))] + [(0, 0)] * (a.ndim - 1)) for a in rows]
        yield tuple(a.reshape(8, -1, *a.shape[1:]) for a in filled)


def device_sums(kernel, x, labels, weights):
    return (weights * ((x @ kernel).argmax(-1) == labels)).sum(), weights.sum()


test_batches = list(padded_batches(x_test, y_test, 104))
correct, count = jax.pmap(device_sums, in_axes=(None, 0, 0, 0))(kernel, *test_batches[-1])
print("the last batch, by device: valid", count.astype(int), "right", correct.astype(int))

# %% tags=["proof"]
# The asserts behind the answer.
assert count.tolist() == [13, 13, 13, 9, 0, 0, 0, 0]

# %% [markdown]
# <details><summary>Answer</summary>
#
# Three devices are full, one has nine valid examples, and four have nothing but padding.
#
# </details>
#
# Now compute the accuracy of the test set in two ways: averaged over devices and batches, and from sums. **Predict**
# what the first one gives.


# %% tags=["prediction"]
def mean_accuracy(kernel, *batch):
    correct, count = device_sums(kernel, *batch)
    return lax.pmean(correct / count, "data")


def global_sums(kernel, *batch):
    return lax.psum(device_sums(kernel, *batch), "data")  # <- changed: sums over devices, no division


axes = {"axis_name": "data", "in_axes": (None, 0, 0, 0), "out_axes": None}
averaged, summed = jax.pmap(mean_accuracy, **axes), jax.pmap(global_sums, **axes)
means = [float(averaged(kernel, *batch)) for batch in test_batches]
totals = np.sum([jax.device_get(summed(kernel, *batch)) for batch in test_batches], axis=0)
guesses = (x_test @ kernel).argmax(-1)
print("means, batch by batch:", np.round(means, 4))
print(f"sums: {totals[0]:.0f} of {totals[1]:.0f} = {totals[0] / totals[1]:.4f}")
print(f"NumPy, on the host:         {(guesses == y_test).mean():.4f}")

# %% tags=["proof"]
# The asserts behind the answer.
assert totals.tolist() == [(guesses == y_test).sum(), len(y_test)]
assert np.isnan(means[-1])

# %% [markdown]
# <details><summary>Answer</summary>
#
# A device without examples divides 0 by 0, and `pmean` spreads its NaN to all devices. That is the lucky case, because
# you see it. If every device had an example, you would get a plausible number that is wrong: the nine examples of
# device 3 would count as much as the 13 of device 0. Sums and counts are right in any case: add them up over devices
# *and* over batches, and divide once.
#
# </details>
#
# ## The program, with dropout
#
# The next cell runs alone. Three things in it make the dropout exact. (The same on lesson 05's program, with every changed
# line marked, is [program/08_exact.py](program/08_exact.py).)
#
# * Each batch carries the indices of its examples.
# * The number of the update is an argument of the step.
# * The model gets a key for each example, made from the seed, the update and the index. They are folded in one after
#   the other. With a sum like `seed + update`, a run with seed 1 would draw the masks of seed 0 one update earlier.
#
# Dropout is a function of keys here. (`nnx.Dropout` without a key keeps its random state inside the module. Then you need
# `nnx.split`, as for batch norm, and inside `pmap` all devices draw the same mask. If you call it with a key,
# `nnx.Dropout(0.5)(x, deterministic=False, rngs=key)`, it has no state.)


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


def example_keys(seed, update, indices):
    """`[b]` keys, which depend on the seed, the update and the example, and not on the device."""
    key = jax.random.fold_in(jax.random.key(seed), update)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)


def dropout(keys, x, rate):  # [b], [b, H] to [b, H]
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, x.shape[1:]))(keys)
    return jnp.where(keep, x / (1 - rate), 0)


class Network(nnx.Module):
    def __init__(self, features, classes, rngs):
        self.hidden = nnx.Linear(features, 64, rngs=rngs)
        self.logits = nnx.Linear(64, classes, rngs=rngs)

    def __call__(self, x, keys=None):  # [b, D], [b] to [b, C]; no keys: evaluation
        x = nnx.relu(self.hidden(x))
        return self.logits(x if keys is None else dropout(keys, x, 0.3))


def batches(data, size, devices, seed=None):
    """Batches (x, y, weights, indices), each array `[N, b, ...]`; every example occurs once, padding has weight 0."""
    n, b = len(data[0]), -(-size // devices)
    order = np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)
    for start in range(0, n, size):
        chosen = order[start : start + size]
        padding = b * devices - len(chosen)
        rows = np.append(chosen, np.zeros(padding, int))
        weights = np.append(np.ones(len(chosen), np.float32), np.zeros(padding, np.float32))
        yield tuple(a.reshape(devices, b, *a.shape[1:]) for a in (data[0][rows], data[1][rows], weights, rows))


def sums(model, batch, keys=None):
    x, y, weights, _ = batch
    logits = model(x, keys)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    right = logits.argmax(-1) == y
    return {"loss": (weights * losses).sum(), "right": (weights * right).sum(), "count": weights.sum()}


def make_steps(optimizer, seed, devices):
    """The training step and the evaluation step on some devices."""

    def train_step(model, optimizer_state, update, batch):
        keys = example_keys(seed, update, batch[3])  # <- new

        def loss_sum(model):
            totals = sums(model, batch, keys)
            return totals["loss"], totals

        (_, totals), gradients = jax.value_and_grad(loss_sum, has_aux=True)(model)
        totals, gradients = lax.psum((totals, gradients), "data")
        gradients = jax.tree.map(lambda g: g / totals["count"], gradients)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
        return optax.apply_updates(model, updates), optimizer_state, update + 1, totals

    def eval_step(model, batch):
        return lax.psum(sums(model, batch), "data")

    axes = {"axis_name": "data", "out_axes": None, "devices": devices}
    return jax.pmap(train_step, in_axes=(None, None, None, 0), **axes), jax.pmap(eval_step, in_axes=(None, 0), **axes)


def train(data, test, devices, epochs, size=60):
    """The trained model, and (loss, accuracy, number of examples) on the test set."""
    optimizer = optax.sgd(0.1, momentum=0.9)
    train_step, eval_step = make_steps(optimizer, 0, devices)
    model = Network(data[0].shape[1], int(data[1].max()) + 1, nnx.Rngs(0))
    optimizer_state, update = optimizer.init(model), 0
    for epoch in range(epochs):
        for batch in batches(data, size, len(devices), seed=epoch):
            model, optimizer_state, update, _ = train_step(model, optimizer_state, update, batch)
    history = jax.device_get([eval_step(model, batch) for batch in batches(test, size, len(devices))])
    total = {name: sum(totals[name] for totals in history) for name in ("loss", "right", "count")}
    return model, (total["loss"] / total["count"], total["right"] / total["count"], total["count"])


def clouds(n, seed):
    """n points in ten overlapping clouds, and the numbers of their clouds. Put your own arrays in its place."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, n)
    centres = np.random.default_rng(0).normal(size=(10, 64))
    return (centres[labels] + 1.5 * random.normal(size=(n, 64))).astype(np.float32), labels.astype(np.int32)


_, (loss, accuracy, counted) = train(clouds(610, seed=1), clouds(235, seed=2), jax.devices(), epochs=2)
print(f"{jax.device_count()} devices: test loss {loss:.3f}, accuracy {accuracy:.3f} over {counted:.0f} examples")
assert counted == 235
assert accuracy > 0.9

# %% [markdown]
# ## Proof: one network, any number of devices
#
# Train on the digits with 1, 3 and 8 devices. 60 examples do not divide by 8, and the last batches of an epoch and of
# the test set are ragged. The parameters must agree within 1e-4 in float32, after 40 updates with dropout.


# %%
def distance(tree, other):
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in pairs)


reference, result = train(data.train, data.test, jax.devices()[:1], epochs=2)
print(f"1 device:  test loss {result[0]:.4f}, accuracy {result[1]:.4f} over {result[2]:.0f} examples")
for N in (3, 8):
    model, result = train(data.train, data.test, jax.devices()[:N], epochs=2)
    far = distance(model, reference)
    print(f"{N} devices: test loss {result[0]:.4f}, accuracy {result[1]:.4f}, parameters differ by up to {far:.0e}")
    assert far < 1e-4
    assert result[2] == len(data.test[0])
moved = distance(reference, Network(64, 10, nnx.Rngs(0)))
print(f"parameters moved by up to {moved:.2f}")

# %% [markdown]
# They agree, with different shares of padding on each number of devices.
#
# ## What it costs
#
# JAX computes random numbers by hashing a key and a counter, and `fold_in` hashes once more. Measure the masks of 512
# examples with 256 activations each, on one device. **Predict:** do they take longer with a key for each example?

# %% tags=["prediction"]
import time

print(f"{devices.describe(jax.devices()[:1])}, jax {jax.__version__}")


def with_one_key(update):
    return jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), update), 0.5, (512, 256))


def with_example_keys(update):
    keys = example_keys(0, update, jnp.arange(512))
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
# <details><summary>Answer</summary>
#
# There's hardly more hashing: one hash for each example, and 256 for its activations. How long it takes depends on the
# machine and on what else it does, and it's about half a millisecond for 131,072 activations here. Measure it on your
# own device.
#
# </details>
#
# ## Exercises
#
# `row_keys` and `fixed_mean` run on every device inside `pmap`, and the mapped axis is `"data"`. Solutions, with
# reasons: [solutions/08_keep_dropout_and_metrics_exact.py](solutions/08_keep_dropout_and_metrics_exact.py).
#
# 1. `row_keys` (5 minutes): `example_keys` for a model with several dropout layers. Return `[b]` keys, one for each
#    example, which depend on `seed`, `update`, the number `layer` and the index of the example, and on nothing else.
#    <details><summary>Hint</summary><code>jax.random.fold_in</code> three times: with the update, with the layer, and
#    inside <code>jax.vmap</code> with each index.</details>
# 2. `exact_accuracy` (10 minutes): the whole evaluation. Return the accuracy over all n examples `x` `[n, D]`, `labels`
#    `[n]`. `predict` maps `[rows, D]` to logits `[rows, C]`, and fits into memory for at most `N * b` rows at a time,
#    where N is the number of devices. n can be any number. Use pmap, or jit, if you know it already.
#    <details><summary>Hint</summary>Pad x, labels and weights to a multiple of <code>N * b</code> with
#    <code>np.pad</code>. Map a function that returns <code>lax.psum</code> of two sums. Add them up over the
#    batches.</details>
# 3. `fixed_mean` (find the mistake): `broken_mean` is right for every full batch, and wrong for the last batch of an
#    epoch. Write it correctly. <details><summary>Hint</summary>What does <code>len(x)</code> count?</details>


# %%
from pmapdp.lessons.checks import check


def broken_mean(x, weights):  # [b, C], [b] to [C]
    total = lax.psum((weights[:, None] * x).sum(0), "data")
    return total / lax.psum(len(x), "data")


def row_keys(seed, update, layer, indices):
    """One random key for each example: integers and `[b]` indices to `[b]` keys."""
    ...  # your code: 2 or 3 lines


def exact_accuracy(predict, x, labels, b):
    """Fraction of right answers among all n examples."""
    ...  # your code: 10 to 14 lines


def fixed_mean(x, weights):
    """Mean over the valid examples of all devices: `[b, C]`, `[b]` to `[C]`."""
    ...  # your code: 2 lines


for exercise in (row_keys, exact_accuracy, fixed_mean):
    check("08_keep_dropout_and_metrics_exact", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Give each example its own key, from the seed, the update and its index. Then the masks do not depend on the devices.
# - Padding has weight 0. Add up sums and counts over devices and batches, and divide once, at the end.
# - Compare with one device: neither a repeated mask nor a wrong mean raises an error.
#
# In pmapdp, the keys and the dropout layer are in [layers.py](../pmapdp/layers.py), and the padding
# is in [data/batches.py](../pmapdp/data/batches.py). To read on:
# [JAX's random numbers](https://docs.jax.dev/en/latest/101/random.html). Next, the compiler takes all this work over:
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb).

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
# Add dropout to your program, and run it on four devices and then on eight. The two runs differ from the very first
# update. Neither is wrong: they just drew different masks. But now, when a loss looks odd on eight devices, a run on
# one device can't tell you whether you have a bug. And if four of your devices break, you can't continue the same run
# on the other four. In this lesson you'll tie each mask to its example, and the runs agree again. Then you'll meet a
# mean that many programs get wrong, because their examples have different lengths.
#
# **You will** draw dropout masks that don't depend on the number of devices, and compute means that count every
# example, or every token, exactly once. 22 minutes, 42 with exercises. You need
# [05 Average gradients](05_average_gradients.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import numpy as np
from jax import lax

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_08

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## Whose key is it?
#
# Dropout sets random activations to 0, here each with probability one half. In JAX the same key and the same shape
# always give you the same random numbers, and `fold_in(key, number)` makes a new key from a key and a number. Inside
# `pmap` each device draws the masks of its own examples. But from which key? You could give all devices the same key,
# or each device its own, or each example its own. Here are all three, where `indices` says which examples of the data
# set this device has, and each example has twelve activations. `draw_masks` runs one of the three on N devices.


# %%
def same_key(key, indices):
    return jax.random.bernoulli(key, 0.5, (len(indices), 12))


def key_per_device(key, indices):
    key = jax.random.fold_in(key, lax.axis_index("data"))
    return jax.random.bernoulli(key, 0.5, (len(indices), 12))


def key_per_example(key, indices):
    keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)
    return jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (12,)))(keys)


def draw_masks(scheme, N, generator="threefry2x32"):
    """The masks of eight examples, drawn by N devices: [8, 12]."""
    key = jax.random.key(3, impl=generator)
    draw = jax.pmap(scheme, axis_name="data", in_axes=(None, 0))
    return np.asarray(draw(key, np.arange(8).reshape(N, -1))).reshape(8, 12)


# %% [markdown]
# Let's draw the masks of eight examples on 1, 2 and 4 devices. In the picture each row is an example, and an activation
# that dropout keeps has its device's colour.
#
# **Predict:** which of the three gives the same pattern on any number of devices?

# %% tags=["prediction"]
masks = {}
for scheme in (same_key, key_per_device, key_per_example):
    masks[scheme.__name__] = {N: draw_masks(scheme, N) for N in (1, 2, 4)}
lesson_08.masks(masks)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the last one. With the same key, the devices repeat each other's masks, so four devices share just two masks, and
# each is used four times. With a key per device the masks are independent, but they change with the number of devices.
# With a key per example they're independent, and they stay the same.
#
# </details>
#
# A program that folds in the device's number trains just as well. What you lose is the comparison with one device,
# which is how you find out that everything *else* is correct.
#
# All this holds for JAX's default generator, threefry. Under `vmap`, `rbg` and `unsafe_rbg` only use the first key.
#
# Under `jit`, your function sees the whole batch.
#
# **Predict:** if all rows share one key, does a batch that's split over eight devices get the same mask as on one
# device?

# %% tags=["prediction"]
from jax.sharding import Mesh, NamedSharding, PartitionSpec

split = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
draw = jax.jit(lambda key: same_key(key, range(8)), out_shardings=split)
sharded_mask = draw(jax.random.key(3))
print("devices:", len(sharded_mask.devices()))
print("equal:", np.array_equal(sharded_mask, masks["same_key"][1]))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Yes. You ask for one mask of eight rows, and each device draws its own row of that mask. So under `jit` one key is
# enough, as long as you leave `jax_threefry_partitionable` on, which is JAX's default. But the mask still depends on
# the shape of the batch. If you cut it into micro-batches, as you will in lesson 13, you'll want a key per example
# again.
#
# </details>
#
# ## The program so far
#
# You start from [program/05_pmap.py](program/05_pmap.py) again, without lesson 07's batch norm, so that you see what
# dropout alone changes:
#
# include the difference of 05_pmap.py and 08_exact.py
#
# - Each batch now comes with the indices of its examples.
# - The state counts the updates, because every update needs new masks.
# - `example_keys` starts from the seed's key, folds in the update, and then folds in the example. Why not just
#   `key(seed + step)`? Because a run with seed 1 would then repeat the masks of seed 0, one update earlier.
# - The network gets its keys as an argument. In evaluation it doesn't get any, so there's no dropout. In training,
#   dropout keeps 80 % of the activations and divides them by 0.8, so on average the next layer gets as much as in
#   evaluation.
#
# Why not `nnx.Dropout`? It keeps random state inside the module, so inside `pmap` all devices would draw the same mask,
# as in the first row of the picture. If you call it with a key, it has no state, but then one key draws all of a
# device's masks, and you're back to the first or the second row. So the program draws its masks itself: it maps
# `jax.random.bernoulli` over the keys of the examples.

# %% tags=["take-home"]
# include program/08_exact.py

# %% [markdown]
# ## Proof, and what a key per device does
#
# Let's train for an epoch on one device and on eight. As in lesson 07, `pmap` uses as many devices as the batch has
# parts, so we only have to `cut` the batch differently.


# %%
def cut(batch, N):
    """The batch in N parts: [N, b, ...]."""
    return jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch)


def example_numbers(indices):
    return indices


def device_numbers(indices):
    """Numbers that depend on the device and the row, and not on the example: [N, b]."""
    N, b = indices.shape
    return 1000 * np.arange(N)[:, None] + np.arange(b)


def train(N, numbers):
    """The model after an epoch on N devices, and the loss of every update."""
    state, losses = init_state(), []
    for batch in batches(*train_data, seed=0):
        *examples, indices = cut(batch, N)
        state, sums = train_step(state, (*examples, numbers(indices)))
        losses.append(float(sums["loss"] / sums["count"]))
    return jax.device_get(state[0]), losses


optimizer = optax.sgd(0.1)
jax.clear_caches()  # so that JAX traces the step again, as in lesson 05

# %% [markdown]
# First we train with the program's key per example, and then with a key per device. The program doesn't have to change
# for that, because `example_keys` makes keys from any numbers, and the second time we give it `device_numbers`. SGD
# replaces Adam, as in lesson 05's proof. If the masks are the same, the parameters must agree within 1e-5.
#
# **Predict:** with a key per device, by how much does the loss of an update on eight devices differ from the loss on
# one? By about 0.0000001, 0.0001 or 0.05?

# %% tags=["prediction"]
distances, differences = {}, {}
for name, numbers in {"key per example": example_numbers, "key per device": device_numbers}.items():
    model_1, losses_1 = train(1, numbers)
    model_8, losses_8 = train(8, numbers)
    distances[name] = optax.tree.norm(jax.tree.map(np.subtract, model_1, model_8))
    differences[name] = np.abs(np.subtract(losses_1, losses_8))
    print(f"{name}: one device and eight differ by {distances[name]:.0e}")
lesson_08.differences(differences)

# %% [markdown]
# <details><summary>Answer</summary>
#
# By about 0.05, because each loss is a mean over 128 examples with different masks. That's harmless, but a real bug of
# the same size could hide behind it. With a key per example the losses agree as well as they do without dropout:
# they're equal, or they differ in float32's last digit.
#
# </details>
#
# ## A mean over tokens
#
# A mask belongs to its example, wherever that example is, and a mean needs the same care. In a language model it's the
# *tokens* that count, and sentences have different lengths. Here are four sentences on two devices, padded to six
# tokens. The numbers are the tokens' losses.

# %%
losses = np.zeros((2, 2, 6))  # [N, sentences, tokens]
weights = np.zeros((2, 2, 6))
for device, sentence, length in ((0, 0, 6), (0, 1, 2), (1, 0, 1), (1, 1, 1)):
    losses[device, sentence, :length] = 1 + 2 * device
    weights[device, sentence, :length] = 1
lesson_08.tokens(losses, weights)

# %% [markdown]
# Eight tokens have loss 1, and two have loss 3, so the mean over the tokens is 14 / 10 = 1.4. The mean of the two
# devices' means is (1 + 3) / 2 = 2, because the two tokens on device 1 count as much as the eight on device 0. Here are
# both as functions:


# %%
def mean_of_means(losses, weights):
    return lax.pmean((losses * weights).sum() / weights.sum(), "data")


def mean_of_sums(losses, weights):
    total, count = lax.pmean(((losses * weights).sum(), weights.sum()), "data")
    return total / count


# %% [markdown]
# Swap the second and the third sentence, and compute both means again.
#
# **Predict:** which of the two functions returns a different number after the swap?

# %% tags=["prediction"]
results = {}
for mean in (mean_of_means, mean_of_sums):
    parallel_mean = jax.pmap(mean, axis_name="data")
    before = parallel_mean(losses, weights)[0]
    after = parallel_mean(losses.swapaxes(0, 1), weights.swapaxes(0, 1))[0]
    results[mean.__name__] = float(before), float(after)
    print(f"{mean.__name__}: {before:.2f}, after the swap {after:.2f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The mean of the means. Device 0 now holds seven tokens and device 1 three, with the means 9 / 7 and 5 / 3, so their
# mean is 1.48 instead of 2. No token's loss has changed, only the device that it's on. You shuffle your data, so the
# result of this mistake, the first of lesson 05, depends on chance. The second function returns 1.4 both times.
#
# </details>
#
# The gradient goes wrong in the same way, and with tokens it happens even in a full batch, because two devices hardly
# ever have the same number of tokens. You can even make this mistake on a single device, if you accumulate gradients
# and average the means of the micro-batches. Hugging Face's Trainer [did just
# that](https://huggingface.co/blog/gradient_accumulation) until October 2024. The cure is always the same: sum values
# and counts over devices *and* batches, and divide once, at the end.

# %% tags=["proof"]
# The asserts behind the answers.
for name, masks_by_N in masks.items():
    equal = all(np.array_equal(mask, masks_by_N[1]) for mask in masks_by_N.values())
    assert equal == (name == "key_per_example")
assert np.array_equal(masks["same_key"][2][:4], masks["same_key"][2][4:])
for generator in ("rbg", "unsafe_rbg"):
    one, four = draw_masks(key_per_example, 1, generator), draw_masks(key_per_example, 4, generator)
    assert not np.array_equal(one, four)
assert np.array_equal(sharded_mask, masks["same_key"][1])
assert distances["key per example"] < 1e-5
assert distances["key per device"] > 1e-2
assert differences["key per example"].max() < 1e-6
assert differences["key per device"][0] > 1e-3
assert 0.02 < np.median(differences["key per device"]) < 0.1
np.testing.assert_allclose(results["mean_of_means"], [2, (9 / 7 + 5 / 3) / 2], rtol=1e-6)
np.testing.assert_allclose(results["mean_of_sums"], 1.4, rtol=1e-6)

# %% [markdown]
# ## Exercises
#
# `row_keys` and `fixed_mean` run on each device, inside `pmap`, and the mapped axis is `"data"`. Solutions, with
# reasons: [solutions/08_keep_dropout_and_metrics_exact.py](solutions/08_keep_dropout_and_metrics_exact.py).
#
# 1. `row_keys` (5 minutes): `example_keys` for a model with several dropout layers. Return `[b]` keys, one for each
#    example. They depend on `seed`, `update`, the number `layer` and the example's index, and nothing else.
#    <details><summary>Hint</summary><code>jax.random.fold_in</code> three times: with the update, with the layer, and
#    inside <code>jax.vmap</code> with each index.</details>
# 2. `exact_accuracy` (10 minutes): the whole evaluation. Return the accuracy over all n examples `x` `[n, D]`, `labels`
#    `[n]`, for any n. `predict` maps `[rows, D]` to logits `[rows, C]`. N is the number of devices, and there's memory
#    for `N * b` rows at a time. Use pmap, or a split batch under jit (lesson 09). <details><summary>Hint</summary>Pad
#    x, labels and weights to a multiple of <code>N * b</code> with <code>np.pad</code>. Map a function that returns
#    <code>lax.psum</code> of two sums, and sum its results over the batches.</details>
# 3. `fixed_mean` (5 minutes, find the mistake): `broken_mean` is correct for every full batch, but wrong for the last
#    batch of an epoch. <details><summary>Hint</summary>What does <code>len(x)</code> count?</details>

# %%
from pmapdp.lessons.checks import check


def broken_mean(x, weights):  # [b, C], [b] to [C]
    total = lax.psum(weights @ x, "data")
    return total / lax.psum(len(x), "data")


def row_keys(seed, update, layer, indices):
    """One random key for each example: integers and `[b]` indices to `[b]` keys."""
    ...  # your code: 2 or 3 lines


def exact_accuracy(predict, x, labels, b):
    """Fraction of correct answers among all n examples."""
    ...  # your code: 10 to 14 lines


def fixed_mean(x, weights):
    """Mean over the valid examples of all devices: `[b, C]`, `[b]` to `[C]`."""
    ...  # your code: 2 lines


for exercise in (row_keys, exact_accuracy, fixed_mean):
    check("08_keep_dropout_and_metrics_exact", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Make each example's key from the seed, the update and its index. Then no mask depends on the number of devices.
# - Decide what you average over, examples or tokens. Then sum values and counts over devices and batches, and divide
#   once.
# - Randomness that depends on the devices isn't a mistake, but it takes away the test that would find your mistakes.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `example_keys` | the same name | [layers.py](../pmapdp/layers.py) |
# | dropout in `Network` | `ExactDropout`. You write `nnx.Dropout` in your model, and `make_exact(model)` swaps it | [layers.py](../pmapdp/layers.py) |
# | `batches`, with `rows` | `Batches`, with `indices` | [data/batches.py](../pmapdp/data/batches.py) |
#
# Your network gets its keys as an argument. Flax's layers take no such argument, so `ExactDropout` fetches the keys from
# a context that pmapdp's step sets, with `current_context().next_keys()`.
#
# To read on: [JAX's random numbers](https://docs.jax.dev/en/latest/101/random.html). Next, delete what you've built by
# hand: [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb).

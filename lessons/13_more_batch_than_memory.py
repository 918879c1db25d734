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
# # 13. Train with more batch than memory
#
# You want to repeat a published result. The paper used a batch of 8,192, but your GPUs run out of memory above 2,048.
# You don't need more GPUs. Cut the batch into four parts, compute their gradients one after another, add them up, and
# update once. It takes eighteen new lines, and the losses stay the same. But be careful where you cut, because the
# obvious place is a trap, and no error tells you.
#
# **You will** see what fills the memory, accumulate gradients, cut a batch so that all devices keep working, and see why
# batch norm is an exception. 28 minutes, 48 with exercises. You need
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb), and `shard_map` from
# [10 Three ways side by side](10_three_ways_side_by_side.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_13

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## What fills the memory?
#
# Parameters, gradients and optimizer state don't grow with the batch. The **activations** do. They are the results of
# the layers, and the forward pass keeps them because the backward pass needs them.
#
# How much memory do they take? Your two-layer network keeps next to nothing, so let's take one with 12 layers of width
# 128. You don't have to run it, because the compiler plans each device's memory in advance. `memory_analysis()`
# shows you the plan. We look at its temporary arrays. The weights and their gradients aren't among them, because they
# are arguments and results.

# %%
mesh = Mesh(jax.devices(), ("data",))
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
random = np.random.default_rng(0)
layers = tuple(random.normal(0, 128**-0.5, (12, 128, 128)).astype(np.float32))
big_batch = tuple(random.normal(size=(2, 16384, 128)).astype(np.float32))  # inputs and targets


def deep_loss(layers, batch):
    x, targets = batch
    for layer in layers:
        x = jnp.tanh(x @ layer)
    return jnp.square(x - targets).sum()


def compile_for_devices(gradient, layers=layers):
    jitted = jax.jit(gradient, in_shardings=(replicated, split), out_shardings=replicated)
    return jitted.lower(layers, big_batch).compile()


def temp_megabytes(program):
    """Memory for temporary arrays on one device."""
    return program.memory_analysis().temp_size_in_bytes / 1e6


# %% [markdown]
# Each of the eight devices gets 2,048 of the 16,384 examples, and each number takes 4 bytes.
#
# **Predict:** how many megabytes does the plan have at least, for the activations of one device?

# %% tags=["prediction"]
whole_batch = compile_for_devices(jax.grad(deep_loss))
print(f"planned: {temp_megabytes(whole_batch):.1f} MB")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 12 layers x 2,048 examples x 128 numbers x 4 bytes is 12.6 MB. The remaining 1.0 MB is one more array of 2,048 x 128
# numbers: the gradient that the backward pass hands on from layer to layer.
#
# </details>
#
# ## Add up sums, not means
#
# Smaller pieces need less memory. But do their gradients add up to the gradient of the whole? Try it by hand: the loss is
# the mean of `(w - x)²`, w is 0, and x is 1, 2, 3 and 4. Each example's gradient is `-2 * x`, so the mean is -5. The
# halves [1, 2] and [3, 4] give -3 and -7, and their mean is -5 again. But [1, 2, 3] and [4] give -4 and -8, with the mean
# -6, because the 4 alone weighs as much as the other three together.
#
# Lesson 05 had the same trap, and your program avoids it by working with sums and counts. So add up the sums of all
# **micro-batches**, and divide once, at the end.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). Lessons 14 to 16 start from it, too, and lesson 19 combines them.
# Here's everything that changes:
#
# include the difference of 09_jit.py and 13_accumulate.py
#
# `accumulate` runs a function on one micro-batch after another, and adds up the results:
#
# - `add_up` runs in a `shard_map`, so it sees the 16 rows of its own device. It cuts them into four micro-batches of four
#   rows. All eight devices do this with their own rows, so all of them work all the time.
# - The `scan` runs its rounds one after another. In a Python loop the compiler may run all forward passes first, and then
#   nothing is saved.
# - The devices communicate once, in the `psum` after the loop. In PyTorch you'd use `no_sync` for that.
# - The `pcast` is the one from lesson 10. Without it, `jax.grad` itself would all-reduce in each of the K rounds. That
#   isn't just slow, as you'll see below.
# - The totals start from zeros, and `eval_shape` finds their shapes without computing anything. Because that line comes
#   after the cast, the zeros count as varying from device to device, as the gradients do. Plain `jnp.zeros` don't, so the
#   scan would refuse them: a total must keep its type from round to round.
# - The `assert` stops a K that doesn't divide a device's rows. Without it, you'd get an error from the `reshape` that
#   doesn't mention K.


# %% tags=["take-home"]
# include program/13_accumulate.py

# %% [markdown]
# Same digits as lesson 09. On another processor the last ones may differ, because the numbers are summed in a different
# order.
#
# ## What if you forget the cast?
#
# Then no error tells you. Here's `add_up` with a single micro-batch and without its cast:
#
# **Predict:** what comes out wrong, the gradient, the loss, or both?


# %% tags=["prediction"]
@jax.shard_map(mesh=mesh, in_specs=(replicated.spec, split.spec), out_specs=replicated.spec)
def add_up_uncast(model, batch):
    return lax.psum(jax.grad(loss_sums, has_aux=True)(model, batch), "data")


gradients, sums = accumulate(jax.grad(loss_sums, has_aux=True), state[0], batch, K)
uncast_gradients, uncast_sums = add_up_uncast(state[0], batch)
ratio = optax.global_norm(uncast_gradients) / optax.global_norm(gradients)
print(f"gradient x {ratio:.1f}, loss x {uncast_sums['loss'] / sums['loss']:.1f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the gradient: it's 8 times too large. `jax.grad` has already summed it over the eight devices, and then the `psum`
# sums eight equal gradients. The loss is summed once, so it's correct.
#
# </details>
#
# **The printed losses don't show the mistake.** Delete the cast from your program, and it prints the same digits. Adam
# divides each gradient by the size of the recent ones, so a factor of 8 cancels. With `optax.sgd(0.1)` nothing cancels:
# after epoch 1 the accuracy on the test set is 0.439, and with the cast it's 0.827.
#
# ## What it saves
#
# Back to the deep network, with your `accumulate`.
#
# **Predict:** does twice the number of micro-batches halve the memory?

# %% tags=["prediction"]
import functools

programs = {1: whole_batch}
for count in (2, 4):
    gradient_sum = functools.partial(accumulate, jax.grad(deep_loss), K=count)
    programs[count] = compile_for_devices(gradient_sum)
for count, program in programs.items():
    print(f"K = {count}: {temp_megabytes(program):.1f} MB")
lesson_13.memory_over_time({f"K = {count}": program for count, program in programs.items()})

# %% [markdown]
# <details><summary>Answer</summary>
#
# Not quite, because a loop needs something that doesn't shrink: the sum of the gradients so far. It's as large as the
# weights, 0.8 MB. A round of the loop also has a copy of its micro-batch's inputs. For K = 2 that's 0.5 MB, and half of
# 13.6 MB is 6.8 MB. Together they are the 8.1 MB.
#
# In the picture each hill is one micro-batch, and the floor under the hills is the sum. The horizontal axis isn't time,
# but the order of the compiler's instructions.
#
# </details>
#
# That's XLA's plan for CPUs. A GPU's plan will differ, but it has to hold the same two parts: activations that shrink
# with K, and a sum of gradients that doesn't.
#
# Take the smallest K that fits. A larger one doesn't make an update faster, because the work stays the same. The learning
# rate stays as it is, because B does. If your GPU still runs out of memory,
# [this list](../docs/gpus.md#out-of-memory) says what else you can do.
#
# ## Where does `jax.grad` go?
#
# Your program calls `jax.grad` in every round, and adds up gradients. You could also add up the losses, and call
# `jax.grad` once, on their sum. The gradient is the same.
#
# **Predict:** with K = 4 your program needs 4.5 MB. Is that enough if `jax.grad` is outside the loop?


# %% tags=["prediction"]
def summed_losses(layers, batch):
    return accumulate(deep_loss, layers, batch, K=4)


grad_outside = compile_for_devices(jax.grad(summed_losses))
print(f"jax.grad outside the loop: {temp_megabytes(grad_outside):.1f} MB")

# %% [markdown]
# <details><summary>Answer</summary>
#
# No, it needs 30.7 MB. Now the backward pass starts after the last round, so the scan has to keep the activations of all
# rounds. That's even more than without micro-batches, because the scan keeps two arrays for each layer: its result, and
# one more for the derivative of `tanh`.
#
# </details>
#
# So keep `jax.grad` inside the loop.
#
# ## The trap: cut the global batch
#
# Why does your program need a `shard_map`? Under `jit` you see the whole batch, so you could cut that, with
# `reshape(K, -1)`. The picture shows 64 rows and K = 4. A row's colour is the device that holds it.

# %%
def global_cut(x):
    return x.reshape(4, -1, *x.shape[1:])


def compile_scan(cut):  # as in `accumulate`, but under jit
    def scan(layers, batch):
        def add(totals, micro_batch):
            gradients = jax.grad(deep_loss)(layers, micro_batch)
            return jax.tree.map(jnp.add, totals, gradients), None

        zeros = jax.tree.map(jnp.zeros_like, layers)
        return jax.lax.scan(add, zeros, jax.tree.map(cut, batch))[0]

    return compile_for_devices(scan)


lesson_13.cuts()

# %% [markdown]
# Both cuts give the correct gradient. But the global cut leaves the rows of a micro-batch on just two devices.
#
# **Predict:** what do the other six devices do meanwhile? The cell prints the work of one device in all four rounds.

# %% tags=["prediction"]
scans = {"your program": programs[4], "global cut": compile_scan(global_cut)}
# cost_analysis counts the body of a loop once
work = {name: 4 * scan.cost_analysis()["flops"] for name, scan in scans.items()}
for name, scan in scans.items():
    print(f"{name}: {work[name] / 1e9:.1f} billion operations, {temp_megabytes(scan):.1f} MB")

# %% [markdown]
# <details><summary>Answer</summary>
#
# They repeat the work of the other two. The compiler copies each half of the micro-batch to four devices, and those four
# compute the same thing. So each device has four times the work, and your eight devices are no faster than two. An update
# takes several times as long, here on simulated devices. The copies also take memory: 23.1 MB, more than if you hadn't
# cut at all.
#
# </details>
#
# Nothing warns you, because the gradient is correct. Only with lesson 11's Explicit axis would this `reshape` raise an
# error. So remember the rule: **a micro-batch needs rows of every device.** In a `shard_map`, as in every pmap step, you
# get that for free, because `reshape(K, -1)` cuts the rows of one device.
#
# ## Can you cut under `jit` at all?
#
# Yes, if you take every fourth row: micro-batch 0 has the rows 0, 4, 8 and so on. Your program cuts differently, but here,
# too, no row leaves its device, and all devices work. The line for it is a `reshape(-1, 4)` and a swap.
#
# What about the all-reduces? Under `jit` the loop has one running total, and it's replicated: all devices have the same.
#
# **Predict:** how many all-reduces does an update have now, one or four?

# %% tags=["prediction"]
from pmapdp.collectives import collectives


def every_fourth(x):
    return x.reshape(-1, 4, *x.shape[1:]).swapaxes(0, 1)


scans["every fourth row"] = compile_scan(every_fourth)
for name in ("your program", "every fourth row"):
    for each in collectives(scans[name].as_text()):
        print(f"{name}: {each.runs} x {each.kind}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four, one in each round. The total can only stay the same on all devices if each gradient is all-reduced before it's
# added. Your program can wait, because its totals differ from device to device until the `psum`.
#
# </details>
#
# That's XLA for CPUs. We haven't counted on GPUs, so count the all-reduces of your own program.
#
# ## Batch norm sees the micro-batch
#
# So far the parts added up, because each example had a loss of its own. Batch norm changes that. It subtracts the
# batch's mean and divides by the standard deviation, so an example's result depends on the rest of its batch.
#
# **Predict:** cut [0, 1, 2, 3] into [0, 1] and [2, 3], and normalize each. Can you still tell 0 from 2?


# %% tags=["prediction"]
def normalize(x):
    return (x - x.mean()) / x.std()


normalized_parts = normalize(np.array([0.0, 1])), normalize(np.array([2.0, 3]))
print("whole:", normalize(np.arange(4.0)).round(2))
print("parts:", *normalized_parts)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. Each of them is the smaller number of its part, so both become -1.
#
# </details>
#
# So with batch norm, K is part of the recipe, in PyTorch as in pmapdp. If the devices share their moments, as in lesson
# 07, they also all-reduce in every round. A contrastive loss compares each example with the others of its batch, so it
# changes with K, too.
#
# Group norm and layer norm look at one example at a time, so they don't notice. Dropout doesn't notice either, if you
# make a key for each example *before* the cut, as in lesson 08, and then cut the keys along with the rows.

# %% tags=["proof"]
# The asserts behind all answers.
import timeit


def milliseconds(program):
    """The fastest of five runs."""
    arguments = jax.device_put((layers, big_batch), (replicated, split))
    seconds = timeit.repeat(lambda: jax.block_until_ready(program(*arguments)), number=1)
    return 1000 * min(seconds)


times = {name: milliseconds(scans[name]) for name in ("your program", "global cut")}
array_megabytes = 2048 * 128 * 4 / 1e6  # of one layer's activations, K = 1
weights_megabytes = 12 * 128 * 128 * 4 / 1e6
gradient_sum = functools.partial(accumulate, jax.grad(deep_loss), K=8)
for count, program in (programs | {8: compile_for_devices(gradient_sum)}).items():
    arrays = 13 if count == 1 else 14 / count
    sum_of_gradients = 0 if count == 1 else weights_megabytes
    expected = arrays * array_megabytes + sum_of_gradients
    np.testing.assert_allclose(temp_megabytes(program), expected, rtol=0.01)
# Half of the layers need half of the activations, and the one array that goes back.
half_deep = compile_for_devices(jax.grad(deep_loss), layers[:6])
np.testing.assert_allclose(temp_megabytes(half_deep), 7 * array_megabytes, rtol=0.01)


# The gradient of one layer needs all activations, and its sum is a twelfth of the others'.
def first_gradient(layers, batch):
    return jax.grad(lambda first: deep_loss((first, *layers[1:]), batch))(layers[0])


one_sum = compile_for_devices(functools.partial(accumulate, first_gradient, K=4))
expected = 14 / 4 * array_megabytes + weights_megabytes / 12
np.testing.assert_allclose(temp_megabytes(one_sum), expected, rtol=0.01)


assert temp_megabytes(grad_outside) > 2 * temp_megabytes(whole_batch)
kept = [leaf.shape for leaf in jax.tree.leaves(jax.vjp(summed_losses, layers, big_batch)[1])]
assert 2 * 12 <= kept.count((8 * 4, 512, 128)) <= 2 * 12 + 2  # of all devices and rounds


def synchronized_loss(layers, batch):  # a layer whose mean is taken over all devices
    x, targets = batch
    x = x @ layers[0]
    return jnp.square(x - jax.lax.pmean(x.mean(0), "data") - targets).sum()


def contrastive_loss(layers, batch):  # each example against the others of its batch
    x, targets = batch
    similarities = jnp.tanh(x @ layers[0]) @ targets.T / 128**0.5
    return -jnp.trace(jax.nn.log_softmax(similarities))


few_examples = jax.tree.map(lambda x: x[:128], big_batch)
contrasted = [accumulate(contrastive_loss, layers, few_examples, K) for K in (1, 4)]
assert not np.isclose(*contrasted, rtol=0.1)
synchronized = compile_for_devices(functools.partial(accumulate, jax.grad(synchronized_loss), K=4))
assert sum(each.runs for each in collectives(synchronized.as_text())) > 4
np.testing.assert_allclose(ratio, 8, rtol=1e-4)
for name in sums:
    np.testing.assert_allclose(uncast_sums[name], sums[name], rtol=1e-5)
gradient = jax.grad(lambda w, x: jnp.square(w - x).mean())
x = jnp.array([1.0, 2, 3, 4])
parts = x[:2], x[2:], x[:3], x[3:]
assert [gradient(0.0, part) for part in parts] == [-3, -7, -4, -8]
whole_work = whole_batch.cost_analysis()["flops"]
assert work["global cut"] > 3.5 * whole_work > 3.4 * work["your program"]
work_of_every_fourth = 4 * scans["every fourth row"].cost_analysis()["flops"]
assert 0.9 < work["your program"] / work_of_every_fourth < 1.1
assert times["global cut"] > 2 * times["your program"]
compared = (*programs.values(), *scans.values(), grad_outside)
outputs = [program(layers, big_batch) for program in compared]
for gradients in outputs:
    for found, expected in zip(gradients, outputs[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
assert 23 < temp_megabytes(scans["global cut"]) < 24
assert temp_megabytes(scans["every fourth row"]) < 0.6 * temp_megabytes(whole_batch)
runs = {
    name: [each.runs for each in collectives(scan.as_text()) if each.kind == "all-reduce"]
    for name, scan in scans.items()
}
assert runs["your program"] == [1]
assert runs["every fourth row"] == [4]
assert [part.tolist() for part in normalized_parts] == [[-1, 1], [-1, 1]]

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/13_more_batch_than_memory.py](solutions/13_more_batch_than_memory.py).
#
# 1. `global_gradient` (10 minutes): write the loop yourself. Your function runs on each device, in a `shard_map` with the
#    check on, as in lesson 10, and the mapped axis is `"data"`. It gets the device's own rows `x` `[b, D]`, and `w`, which
#    is the same on all devices. `loss(w, x)` is the mean over the rows that you pass. Return the gradient for `w` of the
#    mean over the rows of *all* devices. Pass b / K rows at a time, keep the activations of no more than these, and
#    communicate once. <details><summary>Hint</summary>Your program does this for sums. Cast w first. Then a scan over
#    <code>x.reshape(K, -1, D)</code>, and one pmean at the end.</details>
# 2. `join_rows` (5 minutes): you've cut a batch into K micro-batches as `every_fourth` does, and your network has turned
#    them into logits `[K, B / K, C]`. Return them as `[B, C]` in the order of the batch. No row may leave its device.
#    <details><summary>Hint</summary>Undo the cut, step by step: first the swap, then the reshape.</details>
# 3. `fixed_gradient` (5 minutes, find the mistake): padding has weight 0. `broken_gradient` should return the gradient
#    for `w` of `sum(weights * (x @ w - y) ** 2) / sum(weights)` over all micro-batches. It only does so if every
#    micro-batch has the same amount of padding. x is `[K, rows, D]`, y and weights are `[K, rows]`. Memory
#    doesn't matter in this one, so any way that gives the correct gradient will do.
#    <details><summary>Hint</summary>Accumulate two sums, and divide once.</details>


# %%
from pmapdp.lessons.checks import check


def broken_gradient(w, x, y, weights):
    def mean(w, x, y, weights):
        return jnp.sum(weights * (x @ w - y) ** 2) / jnp.sum(weights)

    return sum(jax.grad(mean)(w, *rows) for rows in zip(x, y, weights, strict=True)) / len(x)


def global_gradient(loss, w, x, K):
    """The gradient for w, the same on every device."""
    ...  # your code: 5 to 8 lines


def join_rows(logits):
    """The logits `[B, C]` in the order of the batch."""
    ...  # your code: 1 line


def fixed_gradient(w, x, y, weights):
    """The gradient for w `[D]`."""
    ...  # your code: 3 to 6 lines


for exercise in (global_gradient, join_rows, fixed_gradient):
    check("13_more_batch_than_memory", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Add up the gradients of K micro-batches in a loop. All-reduce and divide once, after it.
# - A micro-batch needs rows of every device, so let each device cut its own rows.
# - The gradients stay the same, except where examples meet, as in batch norm and in contrastive losses.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `K` | `--accumulate` | [config.py](../pmapdp/config.py) |
# | `add_up`, without its `psum` | `add_micro_batches`, with the same cut of a device's own rows | [steps/shared.py](../pmapdp/steps/shared.py) |
# | `accumulate`, with the `shard_map` | `accumulated_sums` | [steps/jit.py](../pmapdp/steps/jit.py) |
#
# `add_micro_batches` starts from the first micro-batch instead of zeros, and hands batch norm's averages from round to
# round. `accumulated_sums` needs no cast, because it turns the check off.
#
# **With pmap** you need neither `shard_map` nor the cast. In lesson 05's step each device already has its own rows, so
# you put the loop before the `pmean`:
#
# ```diff
# -    gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
# +    f = jax.grad(loss_sums, has_aux=True)
# +    micro_batches = jax.tree.map(lambda x: x.reshape(K, -1, *x.shape[1:]), batch)
# +    first = jax.tree.map(lambda x: x[0], micro_batches)
# +    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(f, model, first))
# +
# +    def add(totals, micro_batch):
# +        return jax.tree.map(jnp.add, totals, f(model, micro_batch)), None
# +
# +    (gradients, sums), _ = lax.scan(add, zeros, micro_batches)
#      gradients, count = lax.pmean((gradients, sums["count"]), "data")  # all-reduce: N cancels below
# ```
#
# pmapdp does the same with `python -m pmapdp.train --strategy pmap --accumulate 4`.
#
# If not even one example fits, recompute activations and store them in bfloat16. That's [20 Fit a larger
# network](20_fit_a_larger_network.ipynb), which branches off here. To read on: the [scaling book on
# training](https://jax-ml.github.io/scaling-book/training/). Next, your run learns to survive a kill: [14 Survive a
# kill](14_survive_a_kill.ipynb).

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
# You don't need more GPUs. Cut the batch into four parts, compute their gradients one after another, sum them, and
# update once. It takes eighteen new lines, and the losses stay the same. But be careful where you cut, because the
# obvious place is a trap, and no error tells you.
#
# **You will** accumulate gradients, see what fills the memory, count what the devices send each other, and see why
# batch norm is an exception. 24 minutes, 44 with exercises. You need
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
# Parameters, gradients and optimizer state don't grow with the batch. The **activations** do. They are what the layers
# return, and the forward pass keeps them because the backward pass needs them.
#
# How much is that? Your two-layer network keeps next to nothing, so this lesson measures one that has 12 layers of
# width 128. The compiler plans each device's memory before anything runs, and `memory_analysis()` shows you the plan.
# We look at its temporary arrays. The plan counts the weights separately, because they are arguments, and the gradients
# of the weights, because they are results.

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
# **Predict:** how many megabytes of activations does a device keep?

# %% tags=["prediction"]
whole_batch = compile_for_devices(jax.grad(deep_loss))
print(f"planned: {temp_megabytes(whole_batch):.1f} MB")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 12 layers x 2,048 examples x 128 numbers x 4 bytes is 12.6 MB. The plan has one more array of 2,048 x 128 numbers,
# which accounts for the remaining 1.0 MB. It holds the gradient that the backward pass hands on from layer to layer.
#
# </details>
#
# ## Four numbers, two halves
#
# Smaller pieces need less memory. But do their gradients add up to the gradient of the whole? Try it by hand: the loss
# is the mean of `(w - x)²`, w is 0, and x is 1, 2, 3 and 4. Each example's gradient is `-2 * x`, so the mean is -5.
#
# **Predict:** if you cut the batch into [1, 2] and [3, 4], the mean of the two gradients is -5 again. Is it -5 for
# [1, 2, 3] and [4], too?

# %% tags=["prediction"]
gradient = jax.grad(lambda w, x: jnp.square(w - x).mean())
x = jnp.array([1.0, 2, 3, 4])
equal_parts = gradient(0.0, x[:2]), gradient(0.0, x[2:])
unequal_parts = gradient(0.0, x[:3]), gradient(0.0, x[3:])
print(f"equal parts {equal_parts[0]} and {equal_parts[1]}, mean {sum(equal_parts) / 2}")
print(f"unequal parts {unequal_parts[0]} and {unequal_parts[1]}, mean {sum(unequal_parts) / 2}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. The halves give -3 and -7, with the mean -5. The unequal parts give -4 and -8, with the mean -6. Alone in its
# part, the 4 weighs as much as the other three together.
#
# </details>
#
# Lesson 05 had the same trap, and your program already avoids it by working with sums and counts. So add up the sums of
# all **micro-batches**, and divide once, at the end.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). So do the next three lessons. Each adds one thing to it, and
# lesson 19 joins them. Here's everything that changes:
#
# include the difference of 09_jit.py and 13_accumulate.py
#
# `accumulate` runs a function on one micro-batch after another and sums the results. Inside the `shard_map`, `add_up`
# sees only its device's 16 rows. So each device cuts its own rows into four micro-batches of four, and all devices work
# all the time. They communicate once, after the loop. That's what `no_sync` is for in PyTorch.
#
# - In a Python loop the compiler may run all forward passes first, and then nothing is saved. A `scan` runs its rounds
#   one after another.
# - You know the `pcast` from lesson 10. Without it, `jax.grad` itself would all-reduce, in each of the K rounds.
# - The sums start at 0. For that you need their shapes, and `eval_shape` finds them without computing anything. It
#   comes after the cast, because it also finds that the sums vary from device to device, and `zeros_like` marks its
#   zeros as varying, too. A scan that starts from plain `jnp.zeros` would be refused, like `nnx.RNN` in lesson 10.
# - The `assert` stops a K that doesn't divide a device's rows. Without it, you'd get an error from the `reshape` that
#   doesn't mention K.

# %% tags=["take-home"]
# include program/13_accumulate.py

# %% [markdown]
# These are lesson 09's digits. On another processor the last ones may differ, because the numbers are summed in a
# different order.
#
# ## What it saves, and what it costs
#
# Back to the deep network, with your `accumulate`.
#
# **Predict:** does twice the number of micro-batches halve the memory?

# %% tags=["prediction"]
import functools

from pmapdp.collectives import collectives

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
# weights, 0.8 MB. The rest does halve. In a loop it's 14 arrays, the 13 from above and a copy of the micro-batch's
# inputs:
#
# | K | rows of a micro-batch | 14 arrays | the sum | together |
# | --- | --- | --- | --- | --- |
# | 2 | 1,024 | 7.3 MB | 0.8 MB | 8.1 MB |
# | 4 | 512 | 3.7 MB | 0.8 MB | 4.5 MB |
#
# This count holds as long as one of the 14 arrays is larger than one weight. From K = 16 on it isn't, and the plan is
# smaller than the count.
#
# The picture is a sketch from the compiler's list of instructions. It adds up the arrays that are in use after each
# one, so its horizontal axis isn't time. Each hill is one micro-batch, and the floor under the hills is the sum.
# To the right of the hill of K = 1 you see the finished gradients, and the last ramp is a copy of them in the layout of
# the results. The plan counts both as results.
#
# </details>
#
# Your program calls `jax.grad` in every round. You could also accumulate the losses, and take `jax.grad` of their sum.
# The gradient is the same, but now the backward pass starts after the last round, so the scan keeps the activations of
# all rounds. With K = 4 that takes more than twice as much memory as the whole batch did.
#
# That's XLA's plan for CPUs. A GPU's plan will differ, but it has to hold the same two parts: activations that shrink
# with K, and a sum of gradients that doesn't.
#
# Take the smallest K that fits. An update doesn't get faster, because the work stays the same. It usually gets a little
# slower, because small micro-batches keep a GPU less busy. The learning rate stays as it is, because B does. What else
# you can do if a GPU runs out of memory is in [this list](../docs/gpus.md#out-of-memory).
#
# `optax.MultiSteps(optimizer, K)` also collects gradients. But you call it once for each micro-batch, when `jit` has
# already all-reduced the gradient, and by default it takes a mean of means.
#
# ## The trap: cut the global batch
#
# Why the `shard_map`? Under `jit` your program sees the whole batch, so you could simply cut that. Here are two ways to
# cut 32 rows into four micro-batches. A row's colour is the device that holds it.


# %%
def neighbours(x):
    return x.reshape(4, -1, *x.shape[1:])


def every_fourth(x):
    return x.reshape(-1, 4, *x.shape[1:]).swapaxes(0, 1)


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
# Both cuts give the correct gradient. `neighbours` is what `reshape` does by itself, and it leaves the rows of a
# micro-batch on just two devices.
#
# **Predict:** what do the other six devices do meanwhile? The cell counts one device's work in all four rounds.

# %% tags=["prediction"]
scans = {"your program": programs[4]}
scans |= {cut.__name__: compile_scan(cut) for cut in (every_fourth, neighbours)}
for name, scan in scans.items():
    print(f"{name}: {temp_megabytes(scan):.1f} MB")
    for each in collectives(scan.as_text()):
        print(f"  {each.runs} x {each.kind}")
# cost_analysis counts the body of a loop once
work = {name: 4 * scan.cost_analysis()["flops"] for name, scan in scans.items()}
lesson_13.work_of_a_device(work)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They repeat the work of the other two. The rows of a micro-batch are on two devices, so the compiler copies each half
# to four devices, and those four do identical work. Your eight devices are no faster than two. The copies also take
# memory: 23.1 MB, more than if you hadn't cut at all. And nothing warns you, because the gradient is correct.
#
# </details>
#
# `every_fourth` is better. It leaves each row where it is, so all devices work. But look at its all-reduces: there are
# four, one in each round, although you need the sum only once. The running total is replicated, so each gradient is
# all-reduced before it's added. XLA for CPUs doesn't see that this could wait until the end. XLA for GPUs has a
# [pass](https://github.com/openxla/xla/blob/16569562fc04a1d1eadcd6a79f2269c1ccf4c421/xla/service/while_loop_all_reduce_code_motion.h)
# that can move such an all-reduce behind the loop. We haven't tried it, so count the all-reduces of your own program.
#
# The rule behind this: **a micro-batch needs rows of every device.** In a `shard_map`, as in every pmap step, you
# get that for free. There `x.reshape(K, -1, ...)` cuts one device's rows, and no row moves.
#
# ## Batch norm sees the micro-batch
#
# All this breaks where examples meet before the loss is summed. Batch norm subtracts the batch's mean and divides by
# its standard deviation, so the result depends on which examples share a batch. Normalize [0, 1], and then [2, 3]. Each
# becomes [-1, 1], so 0 and 2 now look the same, in PyTorch as in pmapdp. With batch norm, K is part of the recipe. And
# if the devices share their moments, as in lesson 07, they all-reduce them in every round. A contrastive loss, which
# compares each example with the others of its batch, changes with K, too.
#
# Group norm and layer norm look at one example at a time, so they don't notice. Dropout doesn't notice either, if you
# make a key for each example *before* the cut, as in lesson 08. Then you cut the keys along with the rows.

# %% tags=["proof"]
# The asserts behind all answers.
array_megabytes = 2048 * 128 * 4 / 1e6  # of one layer's activations, K = 1
weights_megabytes = 12 * 128 * 128 * 4 / 1e6
gradient_sum = functools.partial(accumulate, jax.grad(deep_loss), K=8)
for count, program in (programs | {8: compile_for_devices(gradient_sum)}).items():
    arrays = 13 if count == 1 else 14 / count
    sum_of_gradients = 0 if count == 1 else weights_megabytes
    expected = arrays * array_megabytes + sum_of_gradients
    np.testing.assert_allclose(temp_megabytes(program), expected, rtol=0.01)
gradient_sum = functools.partial(accumulate, jax.grad(deep_loss), K=16)
count = 14 / 16 * array_megabytes + weights_megabytes
assert temp_megabytes(compile_for_devices(gradient_sum)) < 0.9 * count
# Half of the layers need half of the activations, and the one array that goes back.
half_deep = compile_for_devices(jax.grad(deep_loss), layers[:6])
np.testing.assert_allclose(temp_megabytes(half_deep), 7 * array_megabytes, rtol=0.01)


# The gradient of one layer needs all activations, and its sum is a twelfth of the others'.
def first_gradient(layers, batch):
    return jax.grad(lambda first: deep_loss((first, *layers[1:]), batch))(layers[0])


one_sum = compile_for_devices(functools.partial(accumulate, first_gradient, K=4))
expected = 14 / 4 * array_megabytes + weights_megabytes / 12
np.testing.assert_allclose(temp_megabytes(one_sum), expected, rtol=0.01)


def scanned_losses(layers, batch):
    return accumulate(deep_loss, layers, batch, K=4)


scanned = compile_for_devices(jax.grad(scanned_losses))
assert temp_megabytes(scanned) > 2 * temp_megabytes(whole_batch)
for found, expected in zip(scanned(layers, big_batch), whole_batch(layers, big_batch), strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


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
synchronized = compile_for_devices(
    functools.partial(accumulate, jax.grad(synchronized_loss), K=4)
)
assert sum(each.runs for each in collectives(synchronized.as_text())) > 4
assert sum(equal_parts) / 2 == -5
assert sum(unequal_parts) / 2 == -6
whole_work = whole_batch.cost_analysis()["flops"]
assert work["neighbours"] > 3.5 * whole_work > 3.4 * work["every_fourth"]
assert 0.9 < work["your program"] / work["every_fourth"] < 1.1
outputs = [program(layers, big_batch) for program in (*programs.values(), *scans.values())]
for gradients in outputs:
    for found, expected in zip(gradients, outputs[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
assert 23 < temp_megabytes(scans["neighbours"]) < 24
assert temp_megabytes(scans["every_fourth"]) < 0.6 * temp_megabytes(whole_batch)
runs = {
    name: [each.runs for each in collectives(scan.as_text()) if each.kind == "all-reduce"]
    for name, scan in scans.items()
}
assert runs["your program"] == [1]
assert runs["every_fourth"] == [4]

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/13_more_batch_than_memory.py](solutions/13_more_batch_than_memory.py).
#
# 1. `global_gradient` (10 minutes): the gradient under `shard_map`, with one all-reduce. It runs with the check on, as
#    in lesson 10, and the mapped axis is `"data"`. `loss(w, x)` is a mean over the rows of x. You get this device's
#    rows `x` `[b, D]`, and `w`, which is the same on all devices. Return the gradient for `w` of the mean over *all*
#    devices' rows. Call `loss` with b / K rows at a time, never keep the activations of more, and communicate once.
#    <details><summary>Hint</summary>Your program does this for sums. Cast w first. Then a scan over
#    <code>x.reshape(K, -1, D)</code>, and one pmean at the end. Why no Python loop? The compiler may keep the
#    activations of all its rounds.</details>
# 2. `join_rows` (5 minutes): you've cut a batch with `every_fourth`, and your network has turned the micro-batches into
#    logits `[K, B / K, C]`. Return them as `[B, C]` in the order of the batch. No row may leave its device.
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
# - Add up the sums of K micro-batches, and divide once, at the end.
# - Cut in a `shard_map`, or under pmap: there each device cuts its own rows, and you all-reduce once, after the loop.
# - If you cut under jit, use `reshape(-1, K)` and a swap, so that every micro-batch has rows of every device. XLA for
#   CPUs then all-reduces in every round. On GPUs count it in your own program.
# - Accumulation saves memory, usually costs a little time, and leaves the gradients the same, except where examples
#   meet, as in batch norm and in contrastive losses.
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
# **With pmap** the loop goes into your step as it is, without `shard_map` and without the cast, and lesson 05's `pmean`
# comes after it. That's `python -m pmapdp.train --strategy pmap --accumulate 4`.
#
# If not even one example fits, recompute activations and store them in bfloat16. That's [20 Fit a larger
# network](20_fit_a_larger_network.ipynb), which branches off here. To read on: the [scaling book on
# training](https://jax-ml.github.io/scaling-book/training/). Next, your run learns to survive a kill: [14 Survive a
# kill](14_survive_a_kill.ipynb).

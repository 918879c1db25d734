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
# You don't need more GPUs: cut the batch into four parts, compute their gradients one after another, sum them, and
# update once. It takes seventeen new lines, and the losses stay the same. But be careful where you cut: the obvious
# place is a trap, and no error tells you.
#
# **You will** accumulate gradients, watch memory over an update, count what the devices send each other, and see why
# batch norm is an exception. 23 minutes, 43 with exercises. You need
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
# Parameters, gradients and optimizer state take the same memory, however large the batch is. What grows with the batch
# is the **activations**, the layers' results, which the forward pass keeps because the backward pass needs them.
#
# How much is that? Your two-layer network keeps next to nothing, so this lesson measures one that has 12 layers of
# width 128. The compiler plans each device's memory before anything runs, and `memory_analysis()` shows you the plan.

# %%
mesh = Mesh(jax.devices(), ("data",))
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
random = np.random.default_rng(0)
layers = random.normal(0, 128**-0.5, (12, 128, 128)).astype(np.float32)
big_batch = tuple(random.normal(size=(2, 8192, 128)).astype(np.float32))  # inputs and targets


def deep_loss(layers, batch):
    x, targets = batch
    for layer in layers:
        x = jnp.tanh(x @ layer)
    return jnp.square(x - targets).sum()


def compile_for_devices(gradient):
    jitted = jax.jit(gradient, in_shardings=(replicated, split), out_shardings=replicated)
    return jitted.lower(layers, big_batch).compile()


def temp_megabytes(program):
    """Memory for temporary arrays on one device."""
    return program.memory_analysis().temp_size_in_bytes / 1e6


# %% [markdown]
# Each of the eight devices gets 1,024 of the 8,192 examples, and each number takes 4 bytes.
#
# **Predict:** how many megabytes of activations does a device keep?

# %% tags=["prediction"]
whole_batch = compile_for_devices(jax.grad(deep_loss))
print(f"planned: {temp_megabytes(whole_batch):.1f} MB")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 12 layers x 1,024 examples x 128 numbers x 4 bytes is 6.3 MB. The plan adds 0.8 MB for the gradients, which are as
# large as the parameters.
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
# No. The halves give -3 and -7, with the mean -5. The unequal parts give -4 and -8, with the mean -6. There
# the 4 has a mean of its own, so it counts as much as 1, 2 and 3 together.
#
# </details>
#
# Lesson 05 had the same trap, and your program already avoids it by working with sums and counts. So add up the sums of
# all **micro-batches**, and divide once, at the end.
#
# ## Which rows are a micro-batch?
#
# Under `jit` each row is on one of eight devices, but your program sees the whole batch, so that's what you cut. Here
# are two ways to cut 32 rows into four micro-batches. A row's colour is the device that holds it.


# %%
def neighbours(x):
    return x.reshape(4, -1, *x.shape[1:])


def every_fourth(x):
    return x.reshape(-1, 4, *x.shape[1:]).swapaxes(0, 1)


lesson_13.cuts()

# %% [markdown]
# Both cuts give the correct gradient. `neighbours` is what `reshape` does by itself, and it leaves the rows of a
# micro-batch on just two devices.
#
# **Predict:** what do the other six devices do meanwhile? The cell counts one device's work. It uses a Python loop,
# because `cost_analysis` counts the body of a `scan` only once.


# %% tags=["prediction"]
def count_work(cut):
    def loop(layers, batch):
        micro_batches = zip(*(cut(x) for x in batch), strict=True)
        return sum(jax.grad(deep_loss)(layers, part) for part in micro_batches)

    return compile_for_devices(loop).cost_analysis()["flops"]


work = {"the whole batch": whole_batch.cost_analysis()["flops"]}
work |= {cut.__name__: count_work(cut) for cut in (neighbours, every_fourth)}
lesson_13.work_of_a_device(work)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They repeat the work of the other two. The micro-batch lives on two devices, so the compiler copies each half to four
# devices, and those four do identical work. Your eight devices are no faster than two, and nothing warns you, because
# the gradient is correct.
#
# </details>
#
# ## How often do the devices communicate?
#
# With `every_fourth` all devices work. But a Python loop doesn't save memory if the compiler starts all the forward
# passes first, so a real program loops in a `scan`, whose rounds run one after another. Compile a scan for each cut,
# and count the collectives that run in one update.
#
# **Predict:** you need the gradients only once, after the last of four micro-batches. How often do the devices
# all-reduce them with `every_fourth`?


# %% tags=["prediction"]
from pmapdp.collectives import collectives


def compile_scan(cut):
    def scan(layers, batch):
        def add(total, part):
            return total + jax.grad(deep_loss)(layers, part), None

        return jax.lax.scan(add, jnp.zeros_like(layers), jax.tree.map(cut, batch))[0]

    return compile_for_devices(scan)


scans = {cut.__name__: compile_scan(cut) for cut in (neighbours, every_fourth)}
for name, scan in scans.items():
    print(f"{name}: {temp_megabytes(scan):.1f} MB")
    for each in collectives(scan.as_text()):
        print(f"  {each.count} {each.kind}: {each.bytes / 1e6:.1f} MB together, {each.runs} runs")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four times, once after each micro-batch. The running total is replicated, so each gradient must be all-reduced before
# it can be added. XLA for CPUs doesn't see that it could wait until the end.
#
# </details>
#
# `every_fourth` leaves each row where it is, and takes about half of the 7.1 MB that the whole batch took. The scan of
# `neighbours` still repeats the work four times, and because each device first gathers rows from other devices, it
# needs 12.3 MB, more than if you hadn't cut at all.
#
# Lesson 10 has the remedy. Inside a `shard_map` *you* decide when the devices communicate: let each device sum the
# gradients of its own rows, and all-reduce the total once, as `no_sync` lets you do in PyTorch.
#
# There even the bad cut becomes a good one. The program below cuts with `x.reshape(K, -1, ...)`, as `neighbours` did.
# But inside a `shard_map`, as in every pmap step, the function only gets one device's 16 rows. Each device cuts its own
# rows into four micro-batches of four, so all eight work all the time, and no row moves.
#
# The rule behind both: **a micro-batch needs rows of every device.**
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py), and so do the next three lessons: each adds one thing to it, and
# lesson 19 joins them. Here's everything that changes:
#
# include the difference of 09_jit.py and 13_accumulate.py
#
# `accumulate` runs a function on one micro-batch after another and sums the results. To start the sums at 0, it needs
# their shapes, which `eval_shape` finds without computing anything. You know the `pcast` from lesson 10: without it,
# `jax.grad` itself would all-reduce, K times.

# %% tags=["take-home"]
# include program/13_accumulate.py

# %% [markdown]
# These are lesson 09's digits. On another processor the last ones may differ, because the numbers are summed in a
# different order.
#
# ## What it saves, and what it costs
#
# Back to the deep network, with your `accumulate` and more and more micro-batches.
#
# **Predict:** does twice the number of micro-batches halve the memory?

# %% tags=["prediction"]
import functools

programs = {1: whole_batch}
for count in (2, 4, 8, 16):
    gradient_sum = functools.partial(accumulate, jax.grad(deep_loss), K=count)
    programs[count] = compile_for_devices(gradient_sum)
for count, program in programs.items():
    print(f"K = {count:2d}: {temp_megabytes(program):.1f} MB")
lesson_13.memory_over_time({f"K = {count}": programs[count] for count in (1, 4, 16)})
communication = collectives(programs[4].as_text())
print("K = 4:", *[f"{each.kind}, runs {each.runs} time" for each in communication])

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. Each hill is the activations of one micro-batch, so K = 4 has four lower hills. But two arrays don't shrink with
# K: the sum of the gradients so far, and the gradients of the current micro-batch. Each is as large as the parameters,
# 0.8 MB. With K = 16 the activations are down to 0.4 MB, and the two gradients take the other 1.6 MB.
#
# </details>
#
# Take the smallest K that fits. An update doesn't get faster, because the work stays the same, and it usually gets a
# little slower, because small micro-batches keep a GPU less busy. The learning rate stays as it is, because B does.
#
# `optax.MultiSteps(optimizer, K)` also collects gradients. But you call it once for each micro-batch, when `jit` has
# already all-reduced the gradient, and by default it takes a mean of means.
#
# ## Batch norm sees the micro-batch
#
# One layer breaks all this. Batch norm subtracts the batch's mean and divides by its standard deviation, so it matters
# which examples come together. If the halves of the batch 0, 1, 2, 3 come one after the other, it makes -1, 1, -1, 1 of
# them: the 0 and the 2 have become the same number, in PyTorch as in pmapdp. So with batch norm, K is part of the recipe.
# Group norm and layer norm look at one example at a time, so they don't notice. Nor does dropout, if you make a key for
# each example *before* the cut, as in lesson 08, and cut the keys along with the rows.

# %% tags=["proof"]
# The asserts behind all answers.
assert 6.3 < temp_megabytes(whole_batch) < 8
assert sum(equal_parts) / 2 == -5
assert sum(unequal_parts) / 2 == -6
assert work["neighbours"] > 3.5 * work["the whole batch"] > 3.4 * work["every_fourth"]
sizes = [temp_megabytes(program) for program in programs.values()]
assert sizes == sorted(sizes, reverse=True)
assert 1.6 < sizes[-1] < sizes[0] / 2
assert 7 < sizes[0] < 7.2
outputs = [program(layers, big_batch) for program in (programs[1], programs[16])]
np.testing.assert_allclose(*outputs, rtol=1e-3, atol=1e-3 * np.abs(outputs[0]).max())
assert 12 < temp_megabytes(scans["neighbours"]) < 12.5
rounds = {name: scan.cost_analysis()["flops"] for name, scan in scans.items()}  # of one round
assert 3.9 < rounds["neighbours"] / rounds["every_fourth"] < 4.1
assert temp_megabytes(scans["every_fourth"]) < 0.6 * temp_megabytes(whole_batch)
scan_text = scans["every_fourth"].as_text()
assert [(each.kind, each.runs) for each in collectives(scan_text)] == [("all-reduce", 4)]
assert [(each.kind, each.runs) for each in communication] == [("all-reduce", 1)]

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/13_more_batch_than_memory.py](solutions/13_more_batch_than_memory.py).
#
# 1. `global_gradient` (10 minutes): the gradient under `shard_map`, with one all-reduce. It runs with the check on, as
#    in lesson 10, and the mapped axis is `"data"`. `loss(w, x)` is a mean over the rows of x. You get this device's
#    rows `x` `[b, D]`, and `w`, which is the same on all devices. Return the gradient for `w` of the mean over *all*
#    devices' rows. Call `loss` with b / K rows at a time, and communicate once. <details><summary>Hint</summary>Your
#    program does this for sums. Cast w first. Then a scan over <code>x.reshape(K, -1, D)</code>, and one pmean at the
#    end. Why no Python loop? The compiler may keep the activations of all its rounds.</details>
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
# - Cut in a `shard_map`, or under pmap: there each device cuts its own rows, and you all-reduce once, after the loop. K
#   must divide a device's rows.
# - If you cut under jit, use `reshape(-1, K)` and a swap, so that every micro-batch has rows of every device. The
#   compiler then all-reduces in every round.
# - Accumulation saves memory, usually costs a little time, and leaves the gradients the same, except with batch norm.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `K` | `--accumulate` | [config.py](../pmapdp/config.py) |
# | `add_up`, without its `psum` | `add_micro_batches`, with the same cut of a device's own rows | [steps/shared.py](../pmapdp/steps/shared.py) |
# | `accumulate`, with the `shard_map` | `accumulated_sums` | [steps/jit.py](../pmapdp/steps/jit.py) |
#
# `accumulated_sums` differs in two places from your `accumulate`. It needs no cast, because it turns the check off, and
# its `shard_map` returns a row of sums for each device. The compiler's all-reduce then adds up these rows. XLA for CPUs
# is slow at convolutions in a loop, so there `add_micro_batches` unrolls the scan of a network that has any, and
# accumulation saves such a network little memory. On GPUs it never unrolls.
#
# **With pmap** a device has only its own rows anyway. The loop goes into your step as it is, without `shard_map` and
# without the cast, and lesson 05's `pmean` comes after it. That's
# `python -m pmapdp.train --strategy pmap --accumulate 4`.
#
# If not even one example fits, recompute activations and store them in bfloat16. That's [20 Fit a larger
# network](20_fit_a_larger_network.ipynb), which branches off here. To read on: the [scaling book on
# training](https://jax-ml.github.io/scaling-book/training/). Next, your run learns to survive a kill: [14 Survive a
# kill](14_survive_a_kill.ipynb).

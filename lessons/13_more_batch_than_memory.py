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
# You don't need more GPUs: cut the batch into four parts, compute their gradients one after another, add them up, and
# update once. In this lesson you'll change eighteen lines of your program for it, and get the same losses. On the way
# you'll meet a cut whose numbers are correct, but which does four times the work and needs more memory than no cut at
# all. And if accumulating isn't enough, you'll try two other ways to save memory.
#
# **You will** accumulate gradients, watch memory over an update, see why batch norm is an exception, compute in
# bfloat16, and recompute activations instead of storing them. 34 minutes, 54 with exercises. You need
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
# is the **activations**: the results of the layers, which the forward pass keeps because the backward pass needs them.
#
# Here's a network with 12 layers of width 128. `memory_analysis()` tells you what the compiler has planned for one
# device, without running anything.

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
# Each of the eight devices gets 1,024 of the 8,192 examples, and a number takes 4 bytes.
#
# **Predict:** how many megabytes of activations does a device keep?

# %% tags=["prediction"]
whole_batch = compile_for_devices(jax.grad(deep_loss))
print(f"planned: {temp_megabytes(whole_batch):.1f} MB")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 12 layers x 1,024 examples x 128 numbers x 4 bytes is 6.3 MB. The compiler plans 0.8 MB more, for arrays as large as
# the parameters.
#
# </details>
#
# ## Four numbers, two halves
#
# Let's accumulate by hand. The loss is the mean of `(w - x)²`, w is 0, and x is 1, 2, 3 and 4. The gradient of an
# example is `-2 * x`, so the gradient of the mean is -5.
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
# No. The halves give -3 and -7, with the mean -5. The unequal parts give -4 and -8, with the mean -6, because the 4
# counts as much as the other three together.
#
# </details>
#
# You know this from lesson 05, and so does your program: it works with sums and counts. Sums of K **micro-batches** add
# up, whatever padding each of them has. You divide once, at the end.
#
# ## Which rows are a micro-batch?
#
# Under `jit` your program sees the whole batch, so you cut the whole batch. Here are two ways to cut 32 rows into four
# micro-batches. The colour of a row is the device that holds it:


# %%
def neighbours(x):
    return x.reshape(4, -1, *x.shape[1:])


def every_fourth(x):
    return x.reshape(-1, 4, *x.shape[1:]).swapaxes(0, 1)


lesson_13.cuts()

# %% [markdown]
# Both ways give the correct gradient. With the left one, the rows of a micro-batch are on only two devices.
#
# **Predict:** what do the other six devices do meanwhile? The cell counts the work of one device. It writes the loop in
# Python, because `cost_analysis` counts the body of a `scan` only once.


# %% tags=["prediction"]
def count_work(cut):
    def loop(layers, batch):
        micro_batches = zip(*(cut(x) for x in batch), strict=True)
        return sum(jax.grad(deep_loss)(layers, part) for part in micro_batches)

    return compile_for_devices(loop).cost_analysis()["flops"]


work = {"the whole batch": whole_batch.cost_analysis()["flops"]}
work |= {cut.__name__: count_work(cut) for cut in (neighbours, every_fourth)}
lesson_13.work_by_device(work)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They repeat the work of the other two. Only two devices have rows of this micro-batch, so the compiler gives each half
# to four devices, and all four compute the same thing. Your eight devices are only as fast as two, and nothing warns
# you, because the gradient is correct. With Explicit axes, as in lesson 11, JAX refuses this cut.
#
# </details>
#
# ## How often do the devices communicate?
#
# So `every_fourth` is the cut to use under `jit`. Your program needs a `scan` over the micro-batches. Let's compile one
# for each cut, and count the collectives that run in one update.
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
        print(f"  {each.kind}: {each.bytes / 1e6:.1f} MB, runs {each.runs} times")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four times, once after each micro-batch. The sum that the scan carries is replicated, so the compiler makes each
# gradient replicated before it's added. XLA for CPUs doesn't see that it could wait until the end.
#
# `every_fourth` leaves each row where it is, and takes about half of the 7.1 MB that the whole batch took. With
# `neighbours` each device gathers rows that others hold before the loop starts. That takes 12.3 MB, so you'd be better
# off without any cut.
#
# </details>
#
# Lesson 10 has the remedy. Inside a `shard_map` *you* decide when the devices communicate: let each device add up the
# gradients of its own rows, and all-reduce the total once. You don't need `every_fourth` for that, because a device that
# sees only its own rows may cut them anywhere. In PyTorch you'd use `no_sync`.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). Everything that changes for micro-batches:
#
# include the difference of 09_jit.py and 13_accumulate.py
#
# `accumulate` runs a function on one micro-batch after the other, and adds up whatever it returns, which is the gradients
# and the metric sums. `lax.scan` is the loop. `eval_shape` finds the shapes of the results without computing anything,
# so that the sums can start at 0. The cast is lesson 10's: without it `jax.grad` itself would all-reduce, K times. The
# rest of the step is still lesson 09's, so a `shard_map` inside a `jit` is enough. Lesson 09's program ended with loss 0.2486, accuracy 0.9184, and 0.3540 and 0.8730 on
# the test set.

# %% tags=["take-home"]
# include program/13_accumulate.py

# %% [markdown]
# This one ends with the same losses, up to rounding, because the sums are added up in another order. On another processor,
# rounding may tip a few examples into another class.
#
# If you have convolutions and no GPU, write `lax.scan(..., unroll=K)`, because XLA for CPUs is many times slower at
# convolutions in a loop. pmapdp does so, too ([steps/shared.py](../pmapdp/steps/shared.py)). But unrolled, the compiler
# may start all the forward passes first, and then you save no memory.
#
# ## What it saves, and what it costs
#
# Now the deep network, with your `accumulate` and more and more micro-batches.
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
# No. Each hill is the activations of one micro-batch, so K = 4 has four lower hills. What they stand on doesn't depend on
# K: the sum of the gradients, and the gradients of the current micro-batch. Both are as large as the parameters, 0.8 MB.
# With K = 16 the activations are down to 0.4 MB, and the two gradients take the other 1.6 MB.
#
# The last line says that the devices all-reduce once.
#
# </details>
#
# Accumulation saves memory, but it doesn't make an update faster. The work stays the same, and small micro-batches keep a
# GPU less busy. So take the smallest K that fits. Choose the learning rate for B, as before, not for B / K.
#
# `optax.MultiSteps(optimizer, K)` is the ready-made version. You call your step K times with B / K examples each, and the
# K-th call updates. The step stays as it is, but the devices communicate in every call, and a mean of means is wrong for
# padded batches.
#
# ## Batch norm sees the micro-batch
#
# So far, the gradients of the micro-batches have added up to the gradient of the whole batch. With batch norm they
# don't, because it subtracts the batch's mean and divides by the batch's standard deviation (lesson 07). Take the batch
# 0, 1, 2, 3. If its halves come one after the other, batch norm makes -1, 1, -1, 1 of them, so the 0 and the 2 have
# become the same number. The network's outputs are different, and you get the gradient of a different loss.
#
# PyTorch does the same, and so does pmapdp's `--accumulate`. And in the `shard_map` of your program, batch norm would see
# even less, only one device's rows of the micro-batch, unless you add up its moments over the devices. The running
# statistics also change, because they get K updates instead of one. So with batch norm, K is part of the recipe. Don't
# make the micro-batches too small: in the [group norm paper](https://arxiv.org/abs/1803.08494), batch norm gets worse below 16 examples. Or use
# group norm or layer norm, which look at one example at a time.
#
# ## bfloat16
#
# The second way to save memory is to compute with two-byte numbers. A bfloat16 has the range of a float32, but only 8
# bits of precision instead of 24. Activations take half the memory on GPUs and TPUs, and an A100 does up to 312 TFLOP/s
# instead of 156 in TF32 or 19.5 in float32. In a Flax layer you write `dtype=jnp.bfloat16`: it computes in bfloat16 and
# keeps its parameters in float32. You could also store the parameters in bfloat16, and save even more. But is that safe?
#
# Let a parameter be 1 and its update 0.001, both in bfloat16. The next number after 1 is 1 + 1/128.
#
# **Predict:** what's the parameter after the update?

# %% tags=["prediction"]
after_update = jnp.bfloat16(1) + jnp.bfloat16(0.001)
print("1 + 0.001 =", after_update)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Still 1. The update is much smaller than the step to the next number, so it's rounded away.
#
# </details>
#
# What does that do to a training run? Here we train your network in three ways, on one device and with a small learning
# rate.


# %%
def train_in(parameter_dtype, compute_dtype):
    """The loss of every update, and the model before and after."""
    adam = optax.adam(3e-4)

    def cast(tree, dtype):
        return jax.tree.map(lambda x: x.astype(dtype), tree)

    def loss(model, batch):
        inputs, labels, weights = batch
        logits = cast(model, compute_dtype)(inputs.astype(compute_dtype))
        logits = logits.astype(jnp.float32)  # the sums that follow are in float32
        return weights @ optax.softmax_cross_entropy_with_integer_labels(logits, labels) / B

    @jax.jit
    def step(model, state, batch):
        value, gradients = jax.value_and_grad(loss)(model, batch)
        updates, state = adam.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, value

    first_model = model = cast(init_state()[0], parameter_dtype)
    state, losses = adam.init(model), []
    for epoch in range(6):
        for batch in list(batches(*train_data, seed=epoch))[:-1]:  # the last one is padded
            model, state, value = step(model, state, batch)
            losses.append(float(value))
    return losses, first_model, model


runs = {
    "all in float32": train_in(jnp.float32, jnp.float32),
    "computed in bfloat16": train_in(jnp.float32, jnp.bfloat16),
    "parameters in bfloat16, too": train_in(jnp.bfloat16, jnp.bfloat16),
}
curves = {name: losses for name, (losses, _, _) in runs.items()}
lesson_13.loss_by_dtype(curves)

_, first_model, last_model = runs["parameters in bfloat16, too"]
first_weights = np.abs(first_model.hidden.kernel[...])
last_weights = np.abs(last_model.hidden.kernel[...])
is_large = first_weights > 1 / 8
has_changed = first_weights != last_weights
print(f"above 1/8: {is_large.mean():.0%} of the weights", end=", ")
print(f"{has_changed[is_large].mean():.0%} changed")
print(f"below 1/8: {has_changed[~is_large].mean():.0%} changed")

# %% [markdown]
# Why does the top curve fall so slowly? Because its *large weights* never move. Above 1/8, the step from one bfloat16 to
# the next is 1/1024. An update of Adam is about as long as the learning rate, 0.0003 here, whatever the gradient is.
# That's less than half of the step, so adding it changes nothing. In the six epochs not one of the weights that began
# above 1/8 has changed. The smaller ones have, because the steps between small numbers are smaller, too.
#
# Its Adam moments are in bfloat16 as well, because optax gives them the dtype of the parameters. If you saw only this
# curve, you'd blame your learning rate. The other two curves lie on top of each other.
#
# So compute in bfloat16, and **keep parameters, optimizer state and sums in float32**. float16 also takes two bytes, but
# its smallest positive number is 6e-8. Smaller gradients become 0, so people multiply the loss by a large number
# (PyTorch's `GradScaler` starts with 2¹⁶). bfloat16 goes down to 1e-38 and doesn't need that.
#
# On your CPU you see the rounding of bfloat16, but neither its memory nor its speed. XLA for CPUs in jax 0.10 converts to
# float32, multiplies, and rounds the result.
#
# ## Compute again instead of keeping
#
# The third way is **rematerialization**: don't keep the activations, compute them again in the backward pass. You wrap a
# layer in `jax.checkpoint`, and it keeps only its input. A *policy* says what else to keep, for example the results of
# matrix products, which are expensive to compute again.
#
# Here the layers are in a `lax.scan`, as in many large JAX models:


# %%
def layer(x, w):
    return jnp.tanh(jax.nn.silu(x @ w))


def make_gradient(layer):
    def loss(layers, batch):
        x, _ = lax.scan(lambda x, w: (layer(x, w), None), batch[0], layers)
        return jnp.square(x - batch[1]).sum()

    return jax.grad(loss)


variants = {
    "keep everything": layer,
    "keep products": jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable),
    "keep inputs": jax.checkpoint(layer),
}

# %% [markdown]
# A layer has one matrix product in the forward pass and two in the backward pass.
#
# **Predict:** one of the three variants needs a fourth product. Which one?

# %% tags=["prediction"]
products = {}
megabytes = {}
for name, variant in variants.items():
    gradient = make_gradient(variant)
    products[name] = str(jax.make_jaxpr(gradient)(layers, big_batch)).count("dot_general")
    megabytes[name] = temp_megabytes(compile_for_devices(gradient))
    print(f"{name:15s} {products[name]} products a layer, {megabytes[name]:4.1f} MB planned")

# %% tags=["proof"]
# The asserts behind all answers.
assert 6.3 < temp_megabytes(whole_batch) < 8
assert sum(equal_parts) / 2 == -5
assert sum(unequal_parts) / 2 == -6
assert work["neighbours"] > 3.5 * work["the whole batch"] > 3.4 * work["every_fourth"]
sizes = [temp_megabytes(program) for program in programs.values()]
assert sizes == sorted(sizes, reverse=True)
assert 1.6 < sizes[-1] < sizes[0] / 2
outputs = [program(layers, big_batch) for program in (programs[1], programs[16])]
np.testing.assert_allclose(*outputs, rtol=1e-3, atol=1e-3 * np.abs(outputs[0]).max())
assert after_update == 1
float32_loss, mixed_loss, bfloat16_loss = (np.mean(losses[-20:]) for losses in curves.values())
assert abs(mixed_loss / float32_loss - 1) < 0.02
assert bfloat16_loss > 1.3 * float32_loss
assert not has_changed[is_large].any()
assert has_changed[~is_large].mean() > 0.9
assert 12 < temp_megabytes(scans["neighbours"]) < 12.5
assert temp_megabytes(scans["every_fourth"]) < 0.6 * temp_megabytes(whole_batch)
scan_text = scans["every_fourth"].as_text()
assert [(each.kind, each.runs) for each in collectives(scan_text)] == [("all-reduce", 4)]
assert [(each.kind, each.runs) for each in communication] == [("all-reduce", 1)]
assert list(products.values()) == [3, 3, 4]
assert megabytes["keep inputs"] < megabytes["keep products"] < megabytes["keep everything"]

# %% [markdown]
# <details><summary>Answer</summary>
#
# *Keep inputs*. It needs the least memory, but each layer computes four products, which is a third more work. *Keep
# products* computes three, because it repeats only the cheap functions after each product.
#
# </details>
#
# Why 39.4 MB, when twelve layers took 7.1 MB at the beginning? A scan saves more: these layers have two functions after
# the product, and JAX hands six arrays of each layer to the backward loop.
#
# And why the loop? If you write the twelve layers out, XLA for CPUs in jax 0.10.2 sees that the same product appears
# twice, computes it once, and keeps the result. Then *keep inputs* takes 12.3 MB instead of 18.6. In jax 0.12.0.1 it
# takes 7.1.
#
# So which way comes first? Start with bfloat16, because it makes a GPU faster, too. Then accumulate, because that computes
# nothing twice. Recompute when the micro-batches get too small to keep the GPU busy, or when not even one example fits.
#
# ## Exercises
#
# Solutions, with reasons: [solutions/13_more_batch_than_memory.py](solutions/13_more_batch_than_memory.py).
#
# 1. `global_gradient` (10 minutes): the gradient under `shard_map`, with one all-reduce. It runs with the check on, as in
#    lesson 10, and the mapped axis is `"data"`. `loss(w, x)` is a mean over the rows of x. You get this device's rows `x`
#    `[b, D]`, and `w`, which is the same on all devices. Return the gradient for `w` of the mean over *all* devices' rows.
#    Call `loss` with b / K rows at a time, and communicate once. <details><summary>Hint</summary>Your program has it for
#    sums. Cast w first. Then a scan, or a Python loop, over <code>x.reshape(K, -1, D)</code>, and one pmean at the
#    end.</details>
# 2. `join_rows` (5 minutes): you've cut a batch with `every_fourth`, and your network has turned the micro-batches into
#    logits `[K, B / K, C]`. Return them as `[B, C]` in the order of the batch. No row may leave its device.
#    <details><summary>Hint</summary>Undo the cut, step by step: first the swap, then the reshape.</details>
# 3. `fixed_gradient` (5 minutes, find the mistake): padding has weight 0. `broken_gradient` should return the gradient for
#    `w` of `sum(weights * (x @ w - y) ** 2) / sum(weights)` over all micro-batches. It does so only if every
#    micro-batch has the same amount of padding. x is `[K, rows, D]`, y and weights are `[K, rows]`.
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
# - Add up the sums of K micro-batches, and divide once. Under jit, cut with `reshape(-1, K)` and a swap, so that every
#   device works on every micro-batch. In a `shard_map`, cut as you like, and all-reduce once, after the loop.
# - Accumulation and rematerialization save memory, cost time, and leave the gradients the same. The exception is batch
#   norm: with accumulation it sees only the micro-batch.
# - Compute in bfloat16. Keep parameters, optimizer state and sums in float32.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `K` | `--accumulate` | [config.py](../pmapdp/config.py) |
# | `add_up`, without its `psum` | `gradient_sums`, with the same cut | [steps/shared.py](../pmapdp/steps/shared.py) |
# | `accumulate`, with the `shard_map` | `accumulated_sums` | [steps/jit.py](../pmapdp/steps/jit.py) |
# | bfloat16 | `--dtype bfloat16` | [config.py](../pmapdp/config.py) |
#
# **With pmap** a device has only its own rows anyway. So the loop goes into your step as it is, without `shard_map` and
# without the cast, and lesson 05's `pmean` comes after it. That's `python -m pmapdp.train --strategy pmap --accumulate 4`.
#
# To read on: JAX on [rematerialization](https://docs.jax.dev/en/latest/notebooks/autodiff_remat.html), and the
# [scaling book on training](https://jax-ml.github.io/scaling-book/training/). Next, your run survives a kill:
# [14 Survive a kill](14_survive_a_kill.ipynb).

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
# # 20. Fit a larger network
#
# In lesson 13 you cut the batch until it fit. What if a single example is already too much? The parameters of GPT-2
# small take 2 GB with their gradients and Adam's moments. The activations of its twelve blocks need another 2.5 GB, for
# one text of 1,024 tokens. You'll save most of that by wrapping one function, and then store numbers in two bytes instead
# of four. After that you'll use two bytes in the wrong place, and watch a third of the weights freeze without an error.
#
# **You will** see what a backward pass keeps, recompute activations with `jax.checkpoint`, compute in bfloat16, say which
# numbers must stay in float32, and know what to try first when memory runs out. 25 minutes, 45 with exercises.
#
# **This lesson is a branch.** Do [13 Train with more batch than memory](13_more_batch_than_memory.ipynb) first, and take it
# if your activations don't fit, or if your GPU should compute in bfloat16.

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_20

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## What does the backward pass keep?
#
# Start with a network that's small enough to count: lesson 13's twelve layers of width 128, and 1,024 examples. This
# time the layers run in a `lax.scan`, as in many large JAX models. If each layer keeps one array `[1024, 128]` of
# float32, that's 12 x 1,024 x 128 x 4 bytes, or 6.3 MB.
#
# How many does a layer keep? You can count them, because `jax.vjp` runs the forward pass and returns the backward pass
# as a function. This function is a pytree, and its leaves are the arrays that have been kept.

# %%
random = np.random.default_rng(0)
layers = random.normal(0, 128**-0.5, (12, 128, 128)).astype(np.float32)
inputs, targets = random.normal(size=(2, 1024, 128)).astype(np.float32)


def layer(x, w):
    return jnp.tanh(jax.nn.silu(x @ w))


def make_loss(layer):
    def loss(layers):
        x, _ = lax.scan(lambda x, w: (layer(x, w), None), inputs, layers)
        return jnp.square(x - targets).sum()

    return loss


def count_kept(loss):
    """Count the arrays [1024, 128] that the backward pass keeps for each layer."""
    _, backward = jax.vjp(loss, layers)
    shapes = [leaf.shape for leaf in jax.tree.leaves(backward)]
    return shapes.count((12, 1024, 128))


kept = {"keep everything": count_kept(make_loss(layer))}
print(kept)

# %% [markdown]
# Six arrays for one line of code: the layer's input, and five that the derivatives of `silu` and `tanh` need. jax 0.12
# keeps four of these, so five arrays in all.
#
# ## Compute again instead of keeping
#
# Do you have to keep them all? From the layer's input you can compute the others again. That's called
# **rematerialization**. If you wrap the layer in `jax.checkpoint`, JAX keeps only its input, besides the weights, which
# you hold in memory regardless. When the backward pass arrives at the layer, it first repeats the layer's forward pass.
# PyTorch's `torch.utils.checkpoint` does the same.
#
# And there's a way in between: a *policy* says what to keep besides the input, for example the results of matrix
# products.

# %%
policy = jax.checkpoint_policies.dots_saveable
variants = {
    "keep everything": layer,
    "keep products": jax.checkpoint(layer, policy=policy),
    "keep inputs": jax.checkpoint(layer),
}

# %% [markdown]
# Without `jax.checkpoint`, a layer takes three matrix products: one in the forward pass and two in the backward pass.
#
# **Predict:** one of the three variants needs a fourth product. Which one?


# %% tags=["prediction"]
products = {}
megabytes = {}
for name, variant in variants.items():
    loss = make_loss(variant)
    kept[name] = count_kept(loss)
    products[name] = str(jax.make_jaxpr(jax.grad(loss))(layers)).count("dot_general")
    plan = jax.jit(jax.grad(loss)).lower(layers).compile().memory_analysis()
    megabytes[name] = plan.temp_size_in_bytes / 1e6
    print(f"{name:15s} arrays: {kept[name]}, products: {products[name]}, {megabytes[name]:4.1f} MB")

# %% [markdown]
# <details><summary>Answer</summary>
#
# *Keep inputs*. It keeps one array of each layer, so it needs the least memory, but it repeats the product, which is a
# third more work. *Keep products* keeps two arrays, and repeats only the cheap functions after the product.
#
# </details>
#
# Does a third more work take a third more time? In [Chen et al., 2016](https://arxiv.org/abs/1604.06174), about that: a
# residual network of 1,000 layers trained in 7 GB instead of 48, for 30 % more running time. This lesson's CPU can't
# tell you how long your GPU will take, so time it there.
#
# ## The blocks of GPT-2
#
# [gpt2.py](../pmapdp/lessons/programs/gpt2.py) has one block of GPT-2 in a dozen lines: attention with twelve heads,
# and two layers after it. The next cell compiles the gradient of all twelve for a single sequence, as it is and with
# `jax.checkpoint` around each block. Nothing runs, because the compiler's plan needs only the shapes. The plan leaves
# out the logits, whose 1,024 x 50,257 scores are another 0.2 GB, and their gradient, which takes as much.
#
# A block's input is 1,024 x 768 numbers in float32, which are 3.1 MB, so twelve inputs are 38 MB.
#
# **Predict:** if only these inputs are kept, will the plan be near 38 MB?


# %% tags=["prediction"]
from pmapdp.lessons.programs import gpt2


def gigabytes_planned(block):
    gradient = jax.jit(jax.grad(gpt2.make_loss(block)))
    plan = gradient.lower(gpt2.WEIGHTS, gpt2.sequence(jnp.float32)).compile().memory_analysis()
    return plan.temp_size_in_bytes / 1e9


gigabytes = {
    "keep everything": gigabytes_planned(gpt2.block),
    "keep inputs": gigabytes_planned(jax.checkpoint(gpt2.block)),
}
lesson_20.memory_of_gpt2(gigabytes, inputs=12 * 1024 * 768 * 4 / 1e9)
lesson_20.in_the_backward_pass()

# %% [markdown]
# <details><summary>Answer</summary>
#
# No, it's near 280 MB. To go back through a block, JAX first repeats its forward pass and keeps everything in it. That's
# over 200 MB, but only for one block at a time, because the other eleven keep nothing but their inputs. The second picture
# has six blocks, at the moment when the backward pass is at the fourth.
#
# </details>
#
# About half of what a block keeps is attention's arrays `[12, 1024, 1024]`, which grow with the square of the text's
# length. *Flash attention* never stores them, because it computes them in pieces, and again in the backward pass. On
# NVIDIA GPUs you get it from `jax.nn.dot_product_attention(..., implementation="cudnn")`, which wants float16 or
# bfloat16. Lesson 19's program doesn't ask for it, because it also runs on CPUs.
#
# ## Two bytes for a number
#
# You now keep fewer numbers. You can also make each of them smaller:

# %%
lesson_20.number_formats()

# %% [markdown]
# The exponent's bits give a number its range, and the fraction's bits its precision. So a bfloat16 has the range of a
# float32, but only 8 significant bits instead of 24, counting the leading 1 that isn't stored.
#
# What do you get for giving up so much precision? First, memory. `gpt2.kept_bytes` adds up the arrays that `jax.vjp`
# keeps of GPT-2. It leaves out the float32 weights, which you hold in memory regardless.
#
# **Predict:** a number now takes half the bytes. Does the backward pass keep half the bytes, too?

# %% tags=["prediction"]
kept_gigabytes = {}
for dtype in (jnp.float32, jnp.bfloat16):
    by_dtype = {name: kept / 1e9 for name, kept in gpt2.kept_bytes(dtype).items()}
    kept_gigabytes[dtype] = by_dtype
    parts = ", ".join(f"{name} {kept:.2f}" for name, kept in by_dtype.items())
    print(f"computed in {dtype.__name__}: {sum(by_dtype.values()):.2f} GB ({parts})")

# %% [markdown]
# <details><summary>Answer</summary>
#
# No, it keeps only about a quarter less. The network casts to float32 before its softmax and in its norms, so what they
# keep stays in four bytes. And 0.17 GB are new: copies of the weights in bfloat16, which the products need. They don't
# grow with the batch, so with many texts you save about a third.
#
# </details>
#
# That's what JAX keeps. The compiler may add arrays of its own, so its plan for this CPU gets larger with bfloat16 in
# jax 0.10, and smaller in 0.12.
#
# The second gain is speed. On one H200, pmapdp trained ResNet-18 with 40,700 images a second in float32, and with
# 78,200 in bfloat16 ([Speed](../docs/speed.md#on-a-gpu)). Even the float32 run used TF32 products: on such a GPU, JAX
# rounds the inputs of each product to [TF32](https://docs.jax.dev/en/latest/jax.lax.html#jax.lax.Precision), which has
# 11 significant bits. We haven't measured full float32.
#
# ## Which numbers need four bytes?
#
# Are 8 bits of precision enough for a parameter? Let it be 1 and its update 0.001, both in bfloat16. The next number
# after 1 is 1 + 1/128.
#
# **Predict:** what's the parameter after the update?

# %% tags=["prediction"]
after_update = jnp.bfloat16(1) + jnp.bfloat16(0.001)
print("1 + 0.001 =", after_update)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Still 1. The update is less than half of the gap to the next number, so it rounds away.
#
# </details>
#
# That's why parameters need float32. Activations don't, because each step makes them anew, so their rounding errors don't
# pile up over the training. A Flax layer with `dtype=jnp.bfloat16` does exactly this: it keeps its parameters in float32,
# and casts them and its inputs to bfloat16 when it computes.
#
# But a network also adds inside one step. A matrix product sums 768 terms, and the loss sums over all examples. Do
# these sums get stuck, too? Let's add up 4,096 ones in two ways.

# %%
ones = jnp.ones(4096, jnp.bfloat16)
running_total = jnp.bfloat16(0)
for number in ones:
    running_total = running_total + number
print("jnp.sum:", ones.sum(), "| a running total:", running_total)

# %% [markdown]
# The running total gets stuck at 256. There, the next number is 258, so 256 + 1 rounds back to 256. `jnp.sum` adds in
# float32, and rounds only its result.
#
# So it's your own running totals that you have to watch. `jnp.mean`, `jax.nn.softmax` and Optax's losses add in
# float32, too, and so does a product of bfloat16 matrices on a GPU or TPU. But what they return is rounded to 8 bits: a
# loss of 8.3178 would come out as 8.3125. That's why the program below casts its logits to float32.
#
# ## The program so far, and what changes
#
# You start from [program/13_accumulate.py](program/13_accumulate.py). Its network is too small to gain anything, but in
# a large one you'd change the same lines: each layer gets a dtype, and one of them is recomputed.
#
# Around a Flax layer, use `nnx.remat` instead of `jax.checkpoint`, because some layers change themselves when they're
# called. `jax.checkpoint` works on a copy of the layer, so these changes are lost without an error: the running mean of
# `nnx.BatchNorm` never moves, and `nnx.Dropout` draws the same mask each time. `nnx.remat` keeps the changes.
#
# include the difference of 13_accumulate.py and 20_fit.py
#
# A micro-batch's gradient is computed in bfloat16, and then cast to float32, because the backward pass of a cast to
# bfloat16 is a cast to float32. From there on, all sums over micro-batches and devices are in float32. Lesson 13's
# program ended with a loss of 0.2486, and of 0.3540 on the test data. How far off is this one?

# %% tags=["take-home"]
# include program/20_fit.py

# %% [markdown]
# Less than 0.001, which is the rounding of bfloat16.
#
# ## The mistake: parameters in bfloat16
#
# You've seen a parameter of 1 get stuck. But your weights are smaller than 1, so why not store them in bfloat16 and
# save even more? `dtypes.train` in [dtypes.py](../pmapdp/lessons/programs/dtypes.py) trains your network on one device,
# with parameters of one dtype and products of another. Adam's moments stay in float32, so that nothing else differs.
# The learning rate is a tenth of the program's, chosen to show the mistake.
#
# Adam usually moves a weight by about the learning rate, 0.0003, or less. Between 1/8 and 1/4, neighbouring bfloat16 numbers
# are 1/1024 apart. Between 1/32 and 1/16 they're 1/4096 apart.
#
# **Predict:** in the run with parameters in bfloat16, which weights never change?

# %% tags=["prediction"]
from pmapdp.lessons.programs import dtypes

runs = {
    "all in float32": dtypes.train(Network, jnp.float32, jnp.float32),
    "computed in bfloat16": dtypes.train(Network, jnp.float32, jnp.bfloat16),
    "parameters in bfloat16": dtypes.train(Network, jnp.bfloat16, jnp.bfloat16),
}
curves = {name: losses for name, (losses, _, _) in runs.items()}
lesson_20.loss_by_dtype(curves)

_, first_model, last_model = runs["parameters in bfloat16"]
first_weights = np.abs(first_model.hidden.kernel[...])
last_weights = np.abs(last_model.hidden.kernel[...])
is_large = first_weights > 1 / 8
has_changed = first_weights != last_weights
for name, group in {"above": is_large, "below": ~is_large}.items():
    share, changed = group.mean(), has_changed[group].mean()
    print(f"{share:.0%} of the weights began {name} 1/8: {changed:.0%} of them changed")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The large ones. Above 1/8, the update is smaller than half the gap, so it rounds away. In six epochs not one of the weights
# that began above 1/8 has moved.
#
# </details>
#
# There's no error and no NaN. The loss just falls more slowly, and if you saw only this curve, you'd blame your
# learning rate. The other two curves lie on top of each other.
#
# With the program's rate of 0.003 the large weights move, too, and the loss comes within 10 % of float32's. So the
# mistake may hide until the rate decays, or the weights grow.
#
# Every number that you add to again and again can get stuck like this. Compute in bfloat16, and **keep parameters,
# optimizer state and sums in float32**.
#
# What about float16? Below 6e-5 it loses bits, and below about 3e-8 it becomes 0. Gradients do get that small. So
# people multiply the loss by a large number and divide the gradients by it, as you'll do in exercise 2. A bfloat16
# keeps its 8 bits down to 1e-38.
#
# ## When memory runs out
#
# If the activations don't fit, try these in order, and stop as soon as they do:
#
# 1. **Compute in bfloat16.** The backward pass keeps fewer bytes, down to half, and a GPU can get faster.
# 2. **Use flash attention** if your texts are long, because then attention's arrays are the largest.
# 3. **Accumulate**, as in lesson 13, if a device has more than one example at a time. It computes nothing twice, but
#    tiny micro-batches don't keep a GPU busy.
# 4. **Recompute.** If a single example is too much, this is what's left. First keep the products, then only the inputs,
#    then the inputs of groups of layers, as in exercise 3.
#
# If the parameters, gradients and moments don't fit, none of these helps. Then you split the state:
# [16 Born sharded](16_born_sharded.ipynb).

# %% tags=["proof"]
# The asserts behind all answers and numbers.
assert kept["keep everything"] == (5 if jax.__version__ >= "0.12" else 6)
assert (kept["keep products"], kept["keep inputs"]) == (2, 1)
assert list(products.values()) == [3, 3, 4]
array_megabytes = 12 * 1024 * 128 * 4 / 1e6
for name, count in kept.items():
    assert 0 < megabytes[name] - count * array_megabytes < 2
gradients = [jax.grad(make_loss(variant))(layers) for variant in variants.values()]
for gradient in gradients[1:]:
    np.testing.assert_allclose(gradient, gradients[0], atol=1e-4 * np.abs(gradients[0]).max())
totals = [sum(by_dtype.values()) for by_dtype in kept_gigabytes.values()]
measured = (2.41, 1.76) if jax.__version__ >= "0.12" else (2.56, 1.84)
np.testing.assert_allclose(totals, measured, atol=0.01)
copies = 2 * sum(weight.size for weight in gpt2.WEIGHTS.values()) / 1e9
assert round(copies, 2) == 0.17
assert 0.33 < 1 - (totals[1] - copies) / totals[0] < 0.36  # without the copies
assert (ones.sum(), running_total) == (4096, 256)
assert jnp.bfloat16(256) + jnp.bfloat16(1) == 256
assert round(np.log(4096), 4) == 8.3178
assert jax.nn.logsumexp(jnp.zeros(4096, jnp.bfloat16)) == 8.3125
assert gigabytes["keep everything"] > 2.5
assert 0.25 < gigabytes["keep inputs"] < 0.3
assert after_update == 1
float32_loss, mixed_loss, bfloat16_loss = (np.mean(losses[-20:]) for losses in curves.values())
assert abs(mixed_loss / float32_loss - 1) < 0.02
assert bfloat16_loss > 1.3 * float32_loss
assert 0.3 < is_large.mean() < 0.4
assert not has_changed[is_large].any()
assert has_changed[~is_large].mean() > 0.9

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/20_fit_a_larger_network.py](solutions/20_fit_a_larger_network.py).
#
# 1. `fixed_mean` (5 minutes, find the mistake): `broken_mean` should return the mean of the gradients of K micro-batches,
#    which come in bfloat16, as `[K, D]`. With many micro-batches it's much too small. Return the mean in float32, to
#    within 0.01 %. <details><summary>Hint</summary>Which dtype should the total have?</details>
# 2. `scaled_gradient` (5 minutes): `loss(w)` computes in float16, and w is float16, too. Its gradient is so small that
#    float16 makes 0 of it. Return the gradient in float32: let `jax.grad` work on a loss that's `scale` times as large.
#    <details><summary>Hint</summary>The order matters: first float32, then divide.</details>
# 3. `in_groups` (10 minutes): the output of all L layers, `x = layer(x, w)` for each w of `layers` `[L, D, D]`. Keep even
#    less: wrap `group_size` layers at a time in one `jax.checkpoint`, so that the backward pass keeps L / group_size
#    arrays of the shape of x. L is divisible by `group_size`.
#    <details><summary>Hint</summary>A function of x and of some layers, which runs them in a scan or a loop. Checkpoint
#    it, and run it over <code>layers.reshape(-1, group_size, D, D)</code>.</details>


# %%
from pmapdp.lessons.checks import check


def broken_mean(gradients):
    total = jnp.zeros(gradients.shape[1], jnp.bfloat16)
    for gradient in gradients:
        total = total + gradient
    return (total / len(gradients)).astype(jnp.float32)


def fixed_mean(gradients):
    """The mean `[D]` in float32."""
    ...  # your code: 1 to 4 lines


def scaled_gradient(loss, w, scale):
    """The gradient for w in float32."""
    ...  # your code: 2 lines


def in_groups(layer, layers, x, group_size):
    """The output of all layers."""
    ...  # your code: 4 to 7 lines


for exercise in (fixed_mean, scaled_gradient, in_groups):
    check("20_fit_a_larger_network", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - `jax.checkpoint` keeps a function's inputs and computes the rest again: about a third more work, much less memory,
#   and the same gradient. Around a Flax layer use `nnx.remat`.
# - Compute in bfloat16. Keep parameters, optimizer state, softmax, norms, loss and sums in float32.
# - When memory runs out: bfloat16, flash attention, micro-batches, recomputing, in this order.
#
# In pmapdp, `--dtype bfloat16` computes as your program does: [job.py](../pmapdp/job.py) gives the dtype to `build_model`.
# Wrap the layers of [your own model](../docs/custom.md) in `nnx.remat` yourself. **With pmap** the same lines work. A layer
# that communicates, such as lesson 07's batch norm, does so again when it's recomputed.
#
# To read on: JAX on [rematerialization](https://docs.jax.dev/en/latest/notebooks/autodiff_remat.html), and [Mixed
# Precision Training](https://arxiv.org/abs/1710.03740), which scales the loss. Next, back on the course:
# [14 Survive a kill](14_survive_a_kill.ipynb).

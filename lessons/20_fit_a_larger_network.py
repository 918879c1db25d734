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
# In lesson 13 you cut the batch until it fit. What if not even one example fits? GPT-2 small has 124 million parameters,
# which take 2 GB with their gradients and Adam's moments. Its activations take another 2 GB *for each sequence of 1,024
# tokens*, even without the logits. Five new lines shrink them in two ways: they compute activations again
# instead of keeping them, and store a number in two bytes instead of four. In your small program there's nothing to gain
# yet, so you'll measure the gain in a deeper network. Then you'll use two bytes in the wrong place,
# and watch a third of the weights freeze without an error.
#
# **You will** recompute activations with `jax.checkpoint`, see what a backward pass keeps, compute in bfloat16, and say
# which numbers must stay in float32. 20 minutes, 40 with exercises. This is an appendix to [13 Train with more batch than
# memory](13_more_batch_than_memory.ipynb), which you need first. The best moment for it is just after 13, because
# [16 Born sharded](16_born_sharded.ipynb) and [19 Train a small GPT](19_train_a_small_gpt.ipynb) use what it explains.

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
# Take one device, 1,024 examples, and a network of twelve layers of width 128, which run in a `lax.scan` as in many large
# JAX models. If every layer keeps one array `[1024, 128]` of float32, that's 12 x 1,024 x 128 x 4 bytes, or 6.3 MB. But
# does a layer keep only one? JAX can tell you, because `jax.vjp` runs the forward pass and returns the backward pass as a
# function, and this function is a pytree. Its leaves are the arrays that have been kept.

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
# Six arrays for one line of code: the input, and what the derivatives of `silu` and `tanh` need. So expect about 6 x 6.3 =
# 38 MB. With jax 0.12 it's five arrays.
#
# ## Compute again instead of keeping
#
# From the layer's input all the others can be computed again, which is called **rematerialization**. Wrap a layer in
# `jax.checkpoint`, and only its input is kept. When the backward pass arrives at the layer, it repeats the layer's forward
# pass first. PyTorch has the same in `torch.utils.checkpoint`.
#
# A *policy* says what else to keep, for example the results of matrix products, which take long to compute again:

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
def megabytes_planned(gradient):
    memory = jax.jit(gradient).lower(layers).compile().memory_analysis()
    return memory.temp_size_in_bytes / 1e6


products = {}
megabytes = {}
for name, variant in variants.items():
    loss = make_loss(variant)
    kept[name] = count_kept(loss)
    products[name] = str(jax.make_jaxpr(jax.grad(loss))(layers)).count("dot_general")
    megabytes[name] = megabytes_planned(jax.grad(loss))
    print(f"{name:15s} arrays a layer: {kept[name]}, products a layer: {products[name]}")
lesson_20.memory_and_products(megabytes, products)

# %% [markdown]
# <details><summary>Answer</summary>
#
# *Keep inputs*. It keeps one array of each layer, so it needs the least memory, but it repeats the product, which is a
# third more work. *Keep products* keeps two arrays, and repeats only the cheap functions after the product.
#
# </details>
#
# What does that do for GPT-2? In two-byte numbers, which come next, a layer keeps about 90 MB for each sequence, by the
# formula of [Korthikanti et al.](https://arxiv.org/abs/2205.05198) for plain attention. Only 1.6 MB of that is the
# layer's input. With twelve layers, 1.1 GB become 19 MB, and 90 MB more for the one layer that's just being repeated. A
# checkpoint of the layers doesn't shrink the logits, though: 1,024 x 50,257 numbers of 4 bytes are another 206 MB for each
# sequence.
#
# ## Two bytes for a number
#
# The other way is to make each number smaller:

# %%
lesson_20.number_formats()

# %% [markdown]
# The exponent's bits give a number its range, and the fraction's bits its precision. So a bfloat16 goes as far as a
# float32, but it has only 8 significant bits instead of 24, counting the leading 1 that isn't stored. In return,
# activations take half the memory, and an A100 does up to 312 TFLOP/s instead of 156 in TF32 or 19.5 in float32.
#
# Are 8 bits enough? Let a parameter be 1 and its update 0.001, both in bfloat16. The next number after 1 is 1 + 1/128.
#
# **Predict:** what's the parameter after the update?

# %% tags=["prediction"]
after_update = jnp.bfloat16(1) + jnp.bfloat16(0.001)
print("1 + 0.001 =", after_update)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Still 1. The update is less than half of the step to the next number, so rounding takes it away.
#
# </details>
#
# That's why parameters need float32. Activations don't, because nobody adds small numbers to them a thousand times. A Flax
# layer with `dtype=jnp.bfloat16` knows the difference: it keeps its parameters in float32, and casts them and its inputs to
# bfloat16 when it computes.
#
# ## The program so far, and what changes
#
# You start from [program/13_accumulate.py](program/13_accumulate.py). Everything that changes for both ways:
#
# include the difference of 13_accumulate.py and 20_fit.py
#
# The gradients arrive in float32, because a cast's derivative casts back to the dtype that it came from, and so the sums
# over micro-batches and devices are in float32, too. Before these changes, the loss ended at 0.2486 on the training set
# and at 0.3540 on the test set.

# %% tags=["take-home"]
# include program/20_fit.py

# %% [markdown]
# Both losses have moved by less than 0.001. `jax.checkpoint` has no part in that, because it computes the same numbers
# again. What you see is the rounding of bfloat16.
#
# Your CPU shows you this rounding, but it saves neither memory nor time, because XLA for CPUs in jax 0.10 converts to
# float32, multiplies, and rounds the result.
#
# ## The mistake: parameters in bfloat16
#
# If two bytes are enough for activations, why not store the parameters in bfloat16, too, and save even more? Train your
# network in three ways and see, on one device and with a small learning rate.


# %%
def train_in(parameter_dtype, compute_dtype):
    """The loss of every update, and the model before and after."""
    model = Network(nnx.Rngs(0))
    model.hidden.dtype = model.output.dtype = compute_dtype
    model = first_model = jax.tree.map(lambda w: w.astype(parameter_dtype), model)
    adam = optax.adam(3e-4)
    adam_state = adam.init(model)

    @jax.jit
    def step(model, adam_state, batch):
        gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
        gradients = jax.tree.map(lambda g: g / B, gradients)
        updates, adam_state = adam.update(gradients, adam_state, model)
        return optax.apply_updates(model, updates), adam_state, sums["loss"] / B

    losses = []
    for epoch in range(6):
        for batch in list(batches(*train_data, seed=epoch))[:-1]:  # the last one is padded
            model, adam_state, loss = step(model, adam_state, batch)
            losses.append(float(loss))
    return losses, first_model, model


# %% [markdown]
# Adam usually moves a weight by about the learning rate, 0.0003, or less, however large the gradient is. After a sudden
# large gradient it can be about three times as much. The step from one bfloat16 to the next is 1/1024 above 1/8, a quarter
# of that above 1/32, and so on.
#
# **Predict:** in the run with parameters in bfloat16, which weights never change?

# %% tags=["prediction"]
runs = {
    "all in float32": train_in(jnp.float32, jnp.float32),
    "computed in bfloat16": train_in(jnp.float32, jnp.bfloat16),
    "parameters in bfloat16, too": train_in(jnp.bfloat16, jnp.bfloat16),
}
curves = {name: losses for name, (losses, _, _) in runs.items()}
lesson_20.loss_by_dtype(curves)

_, first_model, last_model = runs["parameters in bfloat16, too"]
first_weights = np.abs(first_model.hidden.kernel[...])
last_weights = np.abs(last_model.hidden.kernel[...])
is_large = first_weights > 1 / 8
has_changed = first_weights != last_weights
for name, group in {"above": is_large, "below": ~is_large}.items():
    share, changed = group.mean(), has_changed[group].mean()
    print(f"{share:.0%} of the weights began {name} 1/8: {changed:.0%} of them changed")

# %% tags=["proof"]
# The asserts behind all answers and numbers.
assert kept["keep everything"] == 6 or jax.__version__ >= "0.12"
assert (kept["keep products"], kept["keep inputs"]) == (2, 1)
assert list(products.values()) == [3, 3, 4]
array_megabytes = 12 * 1024 * 128 * 4 / 1e6
for name, count in kept.items():
    assert 0 < megabytes[name] - count * array_megabytes < 2
gradients = [jax.grad(make_loss(variant))(layers) for variant in variants.values()]
for gradient in gradients[1:]:
    np.testing.assert_allclose(gradient, gradients[0], atol=1e-4 * np.abs(gradients[0]).max())
sequence, width, heads = 1024, 768, 12  # of GPT-2 small
layer_bytes = sequence * width * (34 + 5 * heads * sequence / width)
assert round(layer_bytes / 1e6) == 90
assert round(12 * layer_bytes / 1e9, 1) == 1.1
# In float32 all of it is twice as large, but for the masks of dropout.
layer_bytes_float32 = sequence * width * (66 + 9 * heads * sequence / width)
assert round(12 * layer_bytes_float32 / 1e9, 1) == 2.0
assert round(12 * 2 * sequence * width / 1e6) == 19
assert round(4 * sequence * 50_257 / 1e6) == 206
assert after_update == 1
float32_loss, mixed_loss, bfloat16_loss = (np.mean(losses[-20:]) for losses in curves.values())
assert abs(mixed_loss / float32_loss - 1) < 0.02
assert bfloat16_loss > 1.3 * float32_loss
assert 0.3 < is_large.mean() < 0.4
assert not has_changed[is_large].any()
assert has_changed[~is_large].mean() > 0.9

# %% [markdown]
# <details><summary>Answer</summary>
#
# The large ones. Above 1/8 a usual update is less than half of the step to the next number, so adding it changes nothing.
# In six epochs not one of the weights that began above 1/8 has moved. Smaller weights have moved, because the steps between
# small numbers are smaller, too.
#
# </details>
#
# There's no error and no NaN. The loss just falls more slowly, and if you saw only this curve, you'd blame your learning
# rate. Adam's moments are in bfloat16 as well, because Optax gives them the dtype of the parameters. The other two curves
# lie on top of each other. So compute in bfloat16, and **keep parameters, optimizer state and sums in float32**.
#
# What about float16, which also takes two bytes? Its smallest positive number is 6e-8, and smaller gradients become 0. So
# people multiply the loss by a large number, and divide the gradients by it. PyTorch's `GradScaler` starts with 2¹⁶.
# bfloat16 goes down to 1e-38 and doesn't need that.
#
# ## Which way comes first?
#
# Start with bfloat16, because it makes a GPU faster, too. Then accumulate, as in lesson 13, because that computes nothing
# twice. Recompute when the micro-batches get too small to keep the GPU busy, or when not even one example fits. If the
# *parameters* don't fit, none of the three helps: split the state, as in [16 Born sharded](16_born_sharded.ipynb).
#
# ## Exercises
#
# Solutions, with reasons: [solutions/20_fit_a_larger_network.py](solutions/20_fit_a_larger_network.py).
#
# 1. `fixed_mean` (5 minutes, find the mistake): `broken_mean` should return the mean of the gradients of K micro-batches,
#    which come in bfloat16, as `[K, D]`. With many micro-batches it's much too small. Return the mean in float32, to
#    within 1 %. <details><summary>Hint</summary>What's 256 + 1 in bfloat16?</details>
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
#   and the same gradient.
# - Compute in bfloat16. Keep parameters, optimizer state and sums in float32.
# - The leaves of `jax.vjp`'s backward function are what your backward pass keeps.
#
# In pmapdp, `--dtype bfloat16` computes as your program does ([config.py](../pmapdp/config.py)). The built-in networks are
# small, so they recompute nothing. In a [model of your own](../docs/custom.md), you wrap its layers yourself, or use
# Flax's `nnx.remat`. **With pmap** nothing changes, because neither way sends anything.
#
# To read on: JAX on [rematerialization](https://docs.jax.dev/en/latest/notebooks/autodiff_remat.html), and
# [Mixed Precision Training](https://arxiv.org/abs/1710.03740), which scales the loss. To look things up, use the
# [list of lessons](README.md).

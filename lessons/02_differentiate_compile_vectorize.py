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
# # 02. Differentiate, compile, vectorize
#
# After this lesson you can replace a hand-written backward pass by `jax.grad`, compile a function with `jax.jit` and time
# it honestly, and turn a function of one example into one of a batch with `jax.vmap`.
#
# About 25 minutes · before: [01 Train a network in NumPy](01_train_a_network_in_numpy.ipynb) · next:
# [03 Train with Flax and Optax](03_train_with_flax_and_optax.ipynb)
#
# JAX is three things: NumPy's functions on any device (`jax.numpy`), a compiler (XLA), and **transformations**, which
# take a function and return a function. They can be stacked: the compiled, vectorized gradient of a function is
# `jit(vmap(grad(f)))`. Lesson 04 adds one more to the stack, `pmap`.

# %%
import time

import drawing
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from checks import check

from pmapdp import devices
from pmapdp.models import numpy_mlp as numpy_network
from pmapdp.registry import load_data

devices.simulate(8)
drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
data = load_data(DATASET)
x = data.train.inputs.reshape(-1, 784).astype(np.float32) / 255  # [n, D]
labels = data.train.labels  # [n]

# %% [markdown]
# ## grad: from a function to its derivative
#
# The smallest case that one can check in the head: f(x) = x^3 has the derivatives 3 x^2, 6 x and 6. `jax.grad` returns a
# function, so it can be applied again. **Predict** the three values at x = 2.


# %%
def cube(x):
    return x**3


first = jax.grad(cube)
second = jax.grad(first)
third = jax.grad(second)
print(cube(2.0), first(2.0), second(2.0), third(2.0))
assert (first(2.0), second(2.0), third(2.0)) == (12, 12, 6)

# %% [markdown]
# The same for a curve. `tanh` was the usual activation before the ReLU; where its slope is 0, a network learns nothing.

# %%
points = jnp.linspace(-3, 3, 121)
f, curves = jnp.tanh, []
figure, axes = plt.subplots(figsize=(7, 2.2))
for order in range(4):
    curves.append(jax.vmap(f)(points))
    axes.plot(points, curves[-1], color=drawing.DEVICE_COLOURS[order], label=["tanh", "1st", "2nd", "3rd"][order])
    f = jax.grad(f)
axes.legend(labelcolor="linecolor", loc="right", bbox_to_anchor=(1.15, 0.5))
plt.show()
np.testing.assert_allclose(curves[1], 1 - np.tanh(points) ** 2, atol=1e-6)

# %% [markdown]
# ## The gradient of a network
#
# The network of the blog "JAX for PyTorch users": three linear layers from 784 inputs to 10 classes, weights scaled
# by 0.01, in `jax.numpy` only. In lesson 01 you wrote its backward pass. Now `grad` does, for a list of pairs of
# arrays: any nesting of lists, tuples and dictionaries will do, which JAX calls a **pytree**.


# %%
def predict(parameters, x):  # [B, D] to [B, C]
    for weights, bias in parameters[:-1]:
        x = jnp.maximum(x @ weights + bias, 0)
    weights, bias = parameters[-1]
    return x @ weights + bias


def loss(parameters, x, labels):
    log_p = jax.nn.log_softmax(predict(parameters, x))
    return -jnp.take_along_axis(log_p, labels[:, None], axis=1).mean()


in_numpy = numpy_network.initialise((784, 512, 512, 10), seed=0, scale=1e-2)
parameters = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), in_numpy)
gradients = jax.grad(loss)(parameters, x[:32], labels[:32])  # <- new: no backward pass
print(jax.tree.map(jnp.shape, gradients))

# %% [markdown]
# Is it the gradient of lesson 01? NumPy computed in float64, JAX here in float32, which keeps about seven digits.

# %%
by_hand = numpy_network.backward(in_numpy, numpy_network.forward(in_numpy, x[:32].astype(float)), labels[:32])
for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(by_hand), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-7)
print("equal within 0.1 %")

# %% [markdown]
# ## jit: trace once, compile, run
#
# `jax.jit` calls your Python function once with stand-ins that have a shape and a type and no values, notes every operation
# (**tracing**), compiles the notes, and from then on runs the result. Python is not involved any more. **Predict:** how
# often does this print?

# %%
traces = []


@jax.jit
def step(parameters, x, labels):  # <- changed: compiled
    traces.append(x.shape)
    print("tracing with x", x.shape)
    value, gradients = jax.value_and_grad(loss)(parameters, x, labels)
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), value


for size in (32, 32, 32, 29, 32):
    _, value = step(parameters, x[:size], labels[:size])
assert traces == [(32, 784), (29, 784)]

# %% [markdown]
# Twice: once for each shape. A ragged last batch costs a second compilation, one reason why pmapdp pads it to the
# full size, with weight 0 (lesson 07).
#
# **A failure on purpose.** While tracing there are no values, so Python cannot decide by them:


# %%
@jax.jit
def clipped(x):
    if x > 1:
        return 1.0
    return x


try:
    clipped(3.0)
except jax.errors.TracerBoolConversionError as error:
    print(type(error).__name__ + ":", str(error).split("\n")[0])

right = jax.jit(lambda x: jnp.where(x > 1, 1.0, x))  # <- changed: both branches, then choose
assert right(3.0) == 1
assert right(0.5) == 0.5

# %% [markdown]
# ## Timing honestly
#
# JAX returns before the work is done (**asynchronous dispatch**), and the first call compiles. So: call once to warm up,
# and wait with `block_until_ready` at the end. **Predict** the order of the four times.


# %%
def milliseconds(function, wait, repeats=20):
    started = time.perf_counter()
    for _ in range(repeats):
        result = function(parameters, x[:128], labels[:128])
    if wait:
        jax.block_until_ready(result)
    seconds = time.perf_counter() - started
    jax.block_until_ready(result)
    return 1000 * seconds / repeats


def by_python(parameters, x, labels):
    return jax.grad(loss)(parameters, x, labels)


print(devices.describe(jax.devices()[:1]))
print(f"first call, compiling:    {milliseconds(step, wait=True, repeats=1):8.2f} ms")
print(f"compiled, not waiting:    {milliseconds(step, wait=False):8.2f} ms, which is no time of the work")
print(f"compiled:                 {milliseconds(step, wait=True):8.2f} ms")
jax.block_until_ready(by_python(parameters, x[:128], labels[:128]))
print(f"operation by operation:   {milliseconds(by_python, wait=True, repeats=5):8.2f} ms")

# %% [markdown]
# ## vmap: write it for one example
#
# `predict_one` takes one image `[D]`. `jax.vmap` makes it a function of a batch, without a loop: the products of a
# vector and a matrix become one product of matrices. `in_axes=(None, 0)` says: the parameters are the same for all,
# the images have one more axis, in front. You will meet the same words again at `pmap`.


# %%
def predict_one(parameters, image):  # [D] to [C]
    return predict(parameters, image[None])[0]


logits = jax.vmap(predict_one, in_axes=(None, 0))(parameters, x[:32])
print(predict_one(parameters, x[0]).shape, "for one,", logits.shape, "for 32")
np.testing.assert_allclose(logits, predict(parameters, x[:32]), atol=1e-5)

axes = drawing.canvas(15, 4.4)
drawing.box(axes, 0, 0.2, "image [D]", width=2.6)
drawing.arrow(axes, (2.6, 0.6), (4.0, 0.6))
drawing.box(axes, 4.0, 0.2, "predict_one", width=3.4)
drawing.arrow(axes, (7.4, 0.6), (8.8, 0.6))
drawing.box(axes, 8.8, 0.2, "logits [C]", width=2.6)
for row in range(3):
    drawing.box(axes, 0, 1.6 + row, f"image {row}", device=row, width=2.6)
    drawing.arrow(axes, (2.6, 2.0 + row), (4.0, 3.0), device=row)
    drawing.arrow(axes, (9.6, 3.0), (11.0, 2.0 + row), device=row)
    drawing.box(axes, 11.0, 1.6 + row, f"logits {row}", device=row, width=2.6)
drawing.box(axes, 4.0, 2.5, "vmap(predict_one,\n in_axes=(None, 0))", width=5.6, height=1.0)
plt.show()

# %% [markdown]
# Stacked: the gradient of **each** example. The mean over the examples is the gradient of the mean loss. Data
# parallelism is this fact: whoever has some of the examples can compute a part of the mean.


# %%
def loss_one(parameters, image, label):
    return loss(parameters, image[None], label[None])


per_example = jax.jit(jax.vmap(jax.grad(loss_one), in_axes=(None, 0, 0)))(parameters, x[:32], labels[:32])
print("one gradient an example:", per_example[2][0].shape, "| of the mean:", gradients[2][0].shape)
for each, mean in zip(jax.tree.leaves(per_example), jax.tree.leaves(gradients), strict=True):
    np.testing.assert_allclose(each.mean(0), mean, atol=1e-6)

# %% [markdown]
# ## Exercises
#
# **1. `gradient_length`**: from a function `f` of one array, make the function that returns the Euclidean length of the
# gradient of f. <details><summary>Hint</summary>Return a function. <code>jnp.linalg.norm</code>.</details>
#
# **2. `pairwise`**: all distances between the rows of `a` `[m, D]` and those of `b` `[n, D]`, an array `[m, n]`, with two
# `vmap`s of a function of two rows. <details><summary>Hint</summary>The inner one maps over b alone:
# <code>in_axes=(None, 0)</code>.</details>
#
# **3. `relu_power`**: x to the power `n` where x is positive, else 0, so that it works under `jit` and `grad`, `n` a Python
# number. <details><summary>Hint</summary><code>jnp.where</code>.</details>


# %%
def gradient_length(f):
    """The function x -> length of the gradient of f at x."""
    ...  # your code: 1 or 2 lines


def pairwise(a, b):
    """Euclidean distances `[m, n]`."""
    ...  # your code: 2 or 3 lines


def relu_power(x, n):
    """x**n where x > 0, else 0; x is an array."""
    ...  # your code: 1 line


for exercise in (gradient_length, pairwise, relu_power):
    check("02_differentiate_compile_vectorize", exercise.__name__, exercise)

# %% [markdown]
# Solutions: [solutions/02_differentiate_compile_vectorize.py](solutions/02_differentiate_compile_vectorize.py)
#
# ## Take away
#
# - `grad`, `jit` and `vmap` turn functions into functions, and stack.
# - `jit` traces once for each shape and type; what happens in Python happens while tracing.
# - The gradient of a mean is the mean of gradients. Warm up and wait before you time.
#
# In pmapdp the loss and its sums are in [objective.py](../pmapdp/loss.py), and `value_and_grad` is called in
# [steps/body.py](../pmapdp/steps/shared.py).

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
# After this lesson you can replace a hand-written backward pass by `jax.grad`, compile a function with `jax.jit`, time
# it honestly, and turn a function of one example into a function of a batch with `jax.vmap`.
#
# About 30 minutes · before: [01 Train a network in NumPy](01_train_a_network_in_numpy.ipynb) · next:
# [03 Train with Flax and Optax](03_train_with_flax_and_optax.ipynb)
#
# JAX has three parts: the functions of NumPy for any device (`jax.numpy`), a compiler (XLA), and **transformations**. A
# transformation takes a function and returns a function, so transformations can be combined: `jit(vmap(grad(f)))` is a
# compiled function that computes the gradient of f for each example of a batch. Lesson 04 adds one more transformation,
# `pmap`.

# %%
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp import devices
from pmapdp.registry import load_data
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_02

drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
data = load_data(DATASET)
x = data.train.inputs.reshape(-1, 784).astype(np.float32) / 255  # [n, D]
labels = data.train.labels  # [n]

# %% [markdown]
# ## grad: from a function to its derivative
#
# `jax.grad(f)` is the function that returns the gradient of f with respect to its first argument. f must return one
# number, such as a loss. Begin with a case that you can check in your head: f(x) = x³ has the derivatives 3 x², 6 x
# and 6. `grad` returns a function, so it can be applied again. **Predict** the four values at x = 2.


# %%
def cube(x):
    return x**3


first = jax.grad(cube)
second = jax.grad(first)
third = jax.grad(second)
print(cube(2.0), first(2.0), second(2.0), third(2.0))
assert (first(2.0), second(2.0), third(2.0)) == (12, 12, 6)

# %% [markdown]
# The values are 8, 12, 12 and 6. Now draw the derivatives of `tanh`, which was the usual activation before the ReLU.
# (`vmap` applies a function of one number to all points. It is explained below.) **Predict:** where is the first
# derivative near 0?

# %%
points, f, curves = jnp.linspace(-3, 3, 121), jnp.tanh, []
for _ in range(4):
    curves.append(jax.vmap(f)(points))
    f = jax.grad(f)
lesson_02.curves(points, curves)
np.testing.assert_allclose(curves[1], 1 - np.tanh(points) ** 2, atol=1e-6)

# %% [markdown]
# The first derivative is 1 - tanh², as it should be. It is near 0 where tanh is near 1 or -1, and there a network
# learns slowly.
#
# ## Arrays never change
#
# A JAX array is immutable: unlike a NumPy array or a PyTorch tensor, it cannot be changed in place. The reason is that
# transformations need **pure** functions: the result depends on the arguments alone, and nothing else changes. Instead
# of `x[1] = 10`, write `x.at[1].set(10)`, which returns a new array. **Predict** the four arrays that the next cell
# prints.

# %%
numbers = jnp.zeros(3)
try:
    numbers[1] = 10
except TypeError as error:
    print("TypeError:", str(error).split(".")[0])
changed = numbers.at[1].set(10)  # a new array
twice = changed.at[jnp.array([1, 1])].add(1)
of_numpy = np.array(changed)
of_numpy[[1, 1]] += 1
print(numbers, changed, twice, "| NumPy:", of_numpy)
assert (numbers[1], twice[1], of_numpy[1]) == (0, 12, 11)

# %% [markdown]
# The old array is unchanged. With a repeated index, `.at[].add` adds twice, and NumPy's `+=` only once. Inside `jit`,
# the compiler avoids the copy if the old array is not needed any more.
#
# ## The gradient of a network
#
# The next network has three linear layers, from 784 inputs to 10 classes. In lesson 01 you wrote the backward pass. Now
# `grad` does it. The parameters are a list of pairs of arrays again, but any nesting of lists, tuples and dictionaries
# would do. JAX calls such a nesting a **pytree**, and `jax.tree.map` applies a function to each of its arrays.


# %%
def predict(parameters, x):  # [B, D] to [B, C]
    for weights, bias in parameters[:-1]:
        x = jnp.maximum(x @ weights + bias, 0)
    weights, bias = parameters[-1]
    return x @ weights + bias


def loss(parameters, x, labels):
    log_p = jax.nn.log_softmax(predict(parameters, x))
    return -jnp.take_along_axis(log_p, labels[:, None], axis=1).mean()


random, sizes = np.random.default_rng(0), itertools.pairwise((784, 512, 512, 10))
parameters = [(jnp.float32(0.01 * random.normal(size=(m, k))), jnp.zeros(k)) for m, k in sizes]
gradients = jax.grad(loss)(parameters, x[:32], labels[:32])  # <- new: no backward pass
print(jax.tree.map(jnp.shape, gradients))

# %% [markdown]
# The gradients are nested like the parameters. Compare them with a backward pass that follows lesson 01's three rules.
# JAX computes in float32 unless you ask for more. This keeps about seven digits, so the tolerance is 0.1 %.


# %%
def backward(parameters, x, labels):
    activations = [x]
    for weights, bias in parameters[:-1]:
        activations.append(jnp.maximum(activations[-1] @ weights + bias, 0))
    g = (jax.nn.softmax(predict(parameters, x)) - jax.nn.one_hot(labels, 10)) / len(x)  # rule 1
    gradients = []
    for (weights, _), h in zip(reversed(parameters), reversed(activations), strict=True):
        gradients.append((h.T @ g, g.sum(0)))  # rule 2
        g = (g @ weights.T) * (h > 0)  # rules 2 and 3
    return gradients[::-1]


by_hand = backward(parameters, x[:32], labels[:32])
for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(by_hand), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-7)
print("grad equals the backward pass by hand within 0.1 %")

# %% [markdown]
# They are equal. So from here on, `grad` writes the backward pass.
#
# ## jit: trace once, compile, run
#
# In the first call, `jax.jit` runs your Python function with **tracers** in place of arrays. A tracer has a shape and a
# type, but no values. JAX records every operation (**tracing**) and compiles the record. Later calls run the compiled
# program, without Python. **Predict:** how often does the next cell print "tracing"?

# %%
traces = []


@jax.jit
def step(parameters, x, labels):  # <- changed: compiled
    traces.append(x.shape)
    print("tracing with x", x.shape)
    value, gradients = jax.value_and_grad(loss)(parameters, x, labels)  # <- new: loss and gradients
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), value


for size in (32, 32, 32, 29, 32):
    _, value = step(parameters, x[:size], labels[:size])
assert traces == [(32, 784), (29, 784)]

# %% [markdown]
# Twice, once for each shape. A smaller last batch costs a second compilation. This is one reason why pmapdp pads it to
# the full size, with examples of weight 0 (lesson 03).
#
# ## What jit captures
#
# Python code runs only while JAX traces. So a compiled function keeps the value that a global variable had at that
# time. **Predict** the second line.

# %%
rate = 0.1


@jax.jit
def shrink(w):
    return w - rate * w


print("rate 0.1:", shrink(1.0))
rate = 0.5
print("rate 0.5:", shrink(1.0))
assert np.isclose(shrink(1.0), 0.9)

shrink_by = jax.jit(lambda w, rate: w - rate * w)  # <- changed: an argument
assert np.isclose(shrink_by(1.0, 0.5), 0.5)

# %% [markdown]
# The compiled function still uses 0.1. So everything that changes must be an argument: learning rates, parameters, and
# also what a method reads from `self`.
#
# ## How it fails
#
# While JAX traces, arrays have no values, so Python's `if` cannot look at them:


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

right = jax.jit(lambda x: jnp.where(x > 1, 1.0, x))  # <- changed: compute both, then choose
assert right(3.0) == 1
assert right(0.5) == 0.5

# %% [markdown]
# The first function raises an error. `jnp.where` computes both branches and then chooses. (`jax.lax.cond` computes only
# one of them.) Shapes are known during tracing, so an `if` on a shape is fine.
#
# ## Random keys
#
# PyTorch draws random numbers from a global state, and each draw changes it. JAX has no such state, because the result
# of a pure function depends on its arguments alone. So you pass the state yourself: it is called a **key**. The same
# key gives the same numbers. To get other numbers, make new keys from it, with `split` or with `fold_in(key, number)`.
# **Predict** which of the four draws are equal.

# %%
key = jax.random.key(0)
one, _ = jax.random.split(key)
keys = {"key": key, "key again": key, "split": one, "fold_in": jax.random.fold_in(key, 7)}
draws = {}
for name, each in keys.items():
    draws[name] = jax.random.normal(each, 2)
    print(f"{name:9s}", draws[name])
assert (draws["key"] == draws["key again"]).all()
assert (draws["key"] != draws["split"]).all()

# %% [markdown]
# The first two are equal. So use each key for one draw only. `fold_in` is handy in a training loop:
# `fold_in(key, step)` is a new key for every step, and a run that resumes after a stop gets the same keys again.
#
# ## Timing honestly
#
# Two things spoil a measurement. The first call compiles. And JAX returns before the work is done (**asynchronous
# dispatch**), as PyTorch does on a GPU. So call the function once before you measure, and wait with `block_until_ready`
# before you read the clock. **Predict** the order of the four times.


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
print(f"compiled, not waiting:    {milliseconds(step, wait=False):8.2f} ms (measures only the launch)")
print(f"compiled:                 {milliseconds(step, wait=True):8.2f} ms")
jax.block_until_ready(by_python(parameters, x[:128], labels[:128]))
print(f"operation by operation:   {milliseconds(by_python, wait=True, repeats=5):8.2f} ms")

# %% [markdown]
# The first call takes longest, because it compiles. The second time is the shortest, but it only says how long it takes
# to start the work. Without `jit` (the last line), a call takes longer than with it, because Python starts each
# operation separately.
#
# ## vmap: write it for one example
#
# `predict_one` takes one image `[D]`. `jax.vmap` turns it into a function of a batch, without a loop: the products of a
# vector and a matrix become one product of two matrices. `in_axes` has one entry for each argument. `None` says that
# all examples share the parameters, and 0 says that the images are stacked along axis 0. `pmap` has the same option.


# %%
def predict_one(parameters, image):  # [D] to [C]
    return predict(parameters, image[None])[0]


logits = jax.vmap(predict_one, in_axes=(None, 0))(parameters, x[:32])
print(predict_one(parameters, x[0]).shape, "for one,", logits.shape, "for 32")
np.testing.assert_allclose(logits, predict(parameters, x[:32]), atol=1e-5)
lesson_02.vectorized()

# %% [markdown]
# Everything has one colour, because `vmap` runs on one device.
#
# Now combine the three transformations, and compute the gradient of **each** example. The mean of these gradients is
# the gradient of the mean loss. Data parallelism rests on this fact: each device can compute the gradients of its own
# examples, and only the mean needs all devices.


# %%
def loss_one(parameters, image, label):
    return loss(parameters, image[None], label[None])


per_example = jax.jit(jax.vmap(jax.grad(loss_one), in_axes=(None, 0, 0)))(parameters, x[:32], labels[:32])
print("one gradient for each example:", per_example[2][0].shape, "| of the mean:", gradients[2][0].shape)
for each, mean in zip(jax.tree.leaves(per_example), jax.tree.leaves(gradients), strict=True):
    np.testing.assert_allclose(each.mean(0), mean, atol=1e-6)

# %% [markdown]
# There is one gradient for each of the 32 examples. Their mean agrees with the gradient of the mean loss within 1e-6.
#
# ## Exercises
#
# Solutions, with reasons:
# [solutions/02_differentiate_compile_vectorize.py](solutions/02_differentiate_compile_vectorize.py).
#
# 1. `relu_power` (5 minutes): x to the power `n` where x is positive, else 0. It must work under `jit` and `grad`; `n`
#    is a Python number. <details><summary>Hint</summary><code>jnp.where</code>. The derivative of the branch that is
#    not chosen must be finite, too.</details>
# 2. `clipped_mean_gradient` (10 minutes): clip the gradient of each example to a length of at most `limit`, then take
#    the mean over the examples. This is the main step of training with differential privacy. The length of a gradient
#    is the square root of the sum of the squares of *all* its entries, over all arrays of the pytree. `loss_one` is a
#    function of (parameters, image, label). <details><summary>Hint</summary>Write a function that returns the clipped
#    gradient of one example, then <code>vmap</code> it, then take means with <code>jax.tree.map</code>.</details>
# 3. `mended_shift` (find the mistake): `broken_shift` should move an image down and to the right, each by a random
#    number of pixels from -2 to 2. But only five of the 25 possible shifts ever occur. The next cell shows it: it
#    shifts one pixel 60 times, and adds up the images. Write the function correctly.
#    <details><summary>Hint</summary>How often is the key used?</details>


# %%
def broken_shift(key, image):  # [H, W]
    down = jax.random.randint(key, (), -2, 3)
    right = jax.random.randint(key, (), -2, 3)
    return jnp.roll(image, (down, right), axis=(0, 1))


dot = jnp.zeros((7, 7)).at[3, 3].set(1)
print(sum(broken_shift(jax.random.fold_in(key, number), dot) for number in range(60)).astype(int))


# %%
def relu_power(x, n):
    """x**n where x > 0, else 0; x is an array."""
    ...  # your code: 1 line


def clipped_mean_gradient(loss_one, parameters, x, labels, limit):
    """Mean of the examples' gradients, each clipped to the length `limit`; nested like `parameters`."""
    ...  # your code: 6 to 8 lines


def mended_shift(key, image):
    """The image `[H, W]`, rolled down and to the right, by two independent numbers from -2 to 2."""
    ...  # your code: 3 to 4 lines


for exercise in (relu_power, clipped_mean_gradient, mended_shift):
    check("02_differentiate_compile_vectorize", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - `grad`, `jit` and `vmap` turn functions into functions, and can be combined.
# - `jit` traces once for each shape and type. Python runs only then, so everything that changes must be an argument,
#   also the key of random numbers.
# - The gradient of a mean is the mean of the gradients.
#
# In pmapdp, `value_and_grad` is called in [steps/shared.py](../src/pmapdp/steps/shared.py), with the cross-entropy of
# [loss.py](../src/pmapdp/loss.py). To read on:
# [JAX: the sharp bits](https://docs.jax.dev/en/latest/notebooks/Common_Gotchas_in_JAX.html),
# [key concepts](https://docs.jax.dev/en/latest/key-concepts.html). Next:
# [03 Train with Flax and Optax](03_train_with_flax_and_optax.ipynb).

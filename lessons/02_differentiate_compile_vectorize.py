# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02. Differentiate, compile, vectorize
#
# Three things drive newcomers to JAX mad: a `print` in the training step, an `if`, and a learning rate that they change
# in their notebook. None of the three does what it does in PyTorch, and one idea explains them all. JAX runs your Python
# function on stand-ins in place of arrays, and writes down what happens to them.
#
# That's also where JAX's power comes from. Out of what it has written down, it makes the derivative, a compiled program,
# or a function for a whole batch from one for a single example. You'll use all three here, and walk into the traps on
# purpose.
#
# **You will** use `grad`, `jit` and `vmap`, say what the compiler sees of your function, and pass random keys by hand.
# 27 minutes, 47 with exercises. You need NumPy, and an idea of what a gradient is ([01 Train a network in
# NumPy](01_train_a_network_in_numpy.ipynb)).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp.lessons.pictures import lesson_02

# %% [markdown]
# ## grad: from a function to its derivative
#
# `jax.grad(f)` is a new function, the derivative of `f` with respect to its first argument. `f` must return a single
# number, such as a loss. Take `jax.value_and_grad(f)` if you want that number as well. The derivative is a function
# like any other, so you can take `grad` of it again. Here's x³, with its formula hidden in a loop.
#
# **Predict:** can JAX still differentiate it, and what are the first and the second derivative at x = 2?


# %% tags=["prediction"]
def cube(x):
    product = 1.0
    for _ in range(3):
        product = product * x
    return product


first = jax.grad(cube)
second = jax.grad(first)
print(cube(2.0), first(2.0), second(2.0))

# %% [markdown]
# <details><summary>Answer</summary>
#
# It does: 3 x² = 12, and 6 x = 12. JAX needs no formula, and never sees the loop. It writes down three multiplications,
# and knows the derivative of a multiplication.
#
# </details>
#
# ## Your program, without a backward pass
#
# You start from [program/01_numpy.py](program/01_numpy.py), a network of two layers in NumPy, with a backward pass by
# hand. `jax.grad` takes the place of that backward pass. JAX can follow only its own operations, so whatever you
# differentiate must call `jnp` in place of `np`. You also want sums for your metrics, so `loss_sums` returns two things.
# With `has_aux=True`, `grad` differentiates the first and hands back the second untouched.
#
# The model is a dictionary of arrays. JAX calls it a **pytree**: dictionaries, lists and tuples of arrays, nested as
# deeply as you like. The gradient is a pytree of the same structure, so `jax.tree.map` can walk through both and pair
# each weight with its gradient. Here it is with numbers in place of arrays: `jax.tree.map(lambda w, g: w - 0.1 * g,
# {"W": 5, "b": 1}, {"W": 10, "b": 0})` is `{"W": 4.0, "b": 1.0}`.
#
# That's all you need to write the new training step yourself, before you see it below.
#
# 1. `update_model` (5 minutes): one step of gradient descent. `loss_sums(model, batch)` returns two things, the loss,
#    *summed* over the batch, and a dictionary of sums, in which `sums["count"]` is the number of examples. Step against
#    the gradient of the *mean* loss, with the learning rate `rate`, and return the new model and the sums. The model may
#    be any pytree. <details><summary>Hint</summary><code>jax.grad(loss_sums, has_aux=True)</code> is a function of the
#    model and the batch that returns two things.</details>

# %%
from pmapdp.lessons.checks import check


def update_model(loss_sums, model, batch, rate):
    """The new model, and the sums of this batch."""
    ...  # your code: 2 or 3 lines


verdict = check("02_differentiate_compile_vectorize", "update_model", update_model)

# %% [markdown]
# In the program this function is called `train_step`.
#
# <details><summary>Solution, and all that changes in the program</summary>
#
# include the difference of 01_numpy.py and 02_jax.py
#
# </details>
#
# The new program has no backward pass, and yet it prints the NumPy program's losses and accuracies. On your machine a
# last digit may differ, because each machine adds in its own order, and rounds:

# %% tags=["take-home"]
# include program/02_jax.py

# %% [markdown]
# ## jit: compile a step
#
# The program hands both steps to `jax.jit`. What does `jit` do to a function? You see it best on a tiny one. The line
# `@jax.jit` above a function is short for `function = jax.jit(function)` below it.
#
# **Predict:** you call `double` three times. How many times does "Python sees" appear?


# %% tags=["prediction"]
@jax.jit
def double(x):
    print("Python sees", x)
    return 2 * x


print(double(1.0), double(2.0), double(3.0))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Once, and what Python sees isn't 1.0. It's a **tracer**, a stand-in that has a shape and a type but no value.
#
# </details>
#
# In the first call, JAX runs your Python code with tracers in place of arrays, writes down every operation that they
# meet, and compiles the list. From then on, arrays of the same shapes and types go straight to the compiled program, and
# your Python code is left out. To see the values in every call, write `jax.debug.print`, which becomes one of the
# operations.

# %%
lesson_02.trace()

# %% [markdown]
# Now the same with your `train_step`, on batches of different sizes. Python code runs only while JAX traces, so each entry
# in `traced` is one compilation. To time a call you have to wait for its result, because JAX returns before it has
# computed anything. Without `jax.block_until_ready` you'd time how fast Python hands out work: on our machine, a matrix
# product of 200 ms then seems to take 0.2 ms. The last bar is a call without `jit`, in which Python starts each operation
# by itself.
#
# **Predict:** which of the five calls with `jit` will be slow?


# %% tags=["prediction"]
def time_call(step, *arguments):
    start = time.perf_counter()
    jax.block_until_ready(step(*arguments))
    return time.perf_counter() - start


traced = []


@jax.jit
def watched_step(model, batch):
    traced.append(len(batch[1]))  # Python comes here only when JAX traces
    return train_step(model, batch)


inputs, labels = train_data[0][:128], train_data[1][:128]
batch_sizes = [128, 128, 128, 8, 128]
seconds = [time_call(watched_step, model, (inputs[:n], labels[:n])) for n in batch_sizes]
print("traced for batches of", traced)
with jax.disable_jit():  # the best of three, because each operation compiles in the first
    calls = [time_call(train_step, model, (inputs, labels)) for _ in range(3)]
lesson_02.calls(batch_sizes, seconds, min(calls))

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first, and the fourth, because it has a new shape. A new dtype would have the same effect, and so would a Python
# number in place of an array: `double(1.0)`, `double(jnp.float32(3))` and `double(1)` are traced once each. The small
# last batch of an epoch therefore costs you a second compilation, until you pad it in lesson 03.
#
# </details>
#
# ## What JAX writes down
#
# The list of operations is called a **jaxpr**, and `jax.make_jaxpr` shows it to you. Below are five layers, each only a
# tanh, once in a Python loop and once with `lax.scan`, which you'll need in later lessons. `scan` repeats a function
# that takes a state and an input, and returns a new state and an output. Our layer only changes the state x. It reads
# nothing else and emits nothing, hence `_` and `None`.
#
# **Predict:** how many times does `tanh` appear in each jaxpr?


# %% tags=["prediction"]
def loop_over_layers(x):
    for _ in range(5):
        x = jnp.tanh(x)
    return x


def scan_over_layers(x):
    return lax.scan(lambda x, _: (jnp.tanh(x), None), x, length=5)[0]


for function in (loop_over_layers, scan_over_layers):
    print(jax.make_jaxpr(function)(jnp.ones(3)).pretty_print(use_color=False))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Five times, and once. If you write a hundred layers as a Python loop, the compiler gets a hundred layers. With `scan` it
# gets one.
#
# </details>
#
# ## Trap 1: asking for a value
#
# A tracer has no value, so while JAX traces your function, nothing in the function may ask for one.
#
# **Predict:** which of these three raise an error under `jit`?


# %% tags=["prediction"]
def python_if(x):
    return 1.0 if x > 1 else x


def jnp_where(x):
    return jnp.where(x > 1, 1.0, x)


def numpy_tanh(x):
    return np.tanh(x)


for function in (python_if, jnp_where, numpy_tanh):
    print(f"{function.__name__}: {lesson_02.result_or_error(jax.jit(function), 3.0)}\n")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `python_if` and `numpy_tanh`. An `if` asks for a value that isn't there, and NumPy tries to turn the tracer into an
# array. In place of `if` use `jnp.where`, which computes both branches and picks, and in place of `np.tanh` use
# `jnp.tanh`. For a flag such as `training`, `jax.jit(f, static_argnums=1)` makes the second argument static. Then JAX
# compiles once for each of its values, and `if` may look at it.
#
# </details>
#
# ## Trap 2: a global variable
#
# This trap is worse, because it raises no error. A compiled function reads a global variable, and you change the
# variable later.
#
# **Predict:** which number does the second line print?

# %% tags=["prediction"]
rate = 0.1


@jax.jit
def shrink(w):
    return w - rate * w


print("rate 0.1:", shrink(1.0))
rate = 0.5
print("rate 0.5:", shrink(1.0))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Still 0.9. JAX read `rate` while it traced, so 0.1 is built into the compiled program.
#
# </details>
#
# If a number has to change, pass it as an argument. Where a lesson replaces a global variable on purpose, it calls
# `jax.clear_caches()`, which makes JAX trace everything again.
#
# **Whatever changes from step to step must be an argument.** Your program's `RATE` is a global variable as well.
# That's fine as long as it never changes. If you change it in a notebook, run the cell that defines the step again.
#
# Functions that keep to this rule are called **pure**: their result depends on their arguments alone, and they change
# nothing else. JAX transforms pure functions, but it doesn't check that yours is one.
#
# ## Trap 3: random numbers
#
# Networks need random numbers, for dropout for example. NumPy's generator keeps a hidden state, which is one more
# global variable. Under `jit` it would be read once, while JAX traces, and then your dropout would drop the same units in
# every step. So in JAX you pass the random state yourself, as a **key**. A key always gives the same numbers. For other
# numbers you make other keys, with `split` or with `fold_in(key, number)`.

# %%
key = jax.random.key(0)
keys = {"key": key, "split": jax.random.split(key)[0], "fold_in": jax.random.fold_in(key, 7)}
for name, one_key in keys.items():
    print(f"{name:8s}", jax.random.normal(one_key, 2), jax.random.normal(one_key, 2))

# %% [markdown]
# Use a key **once**, for one draw or for one split, because otherwise your random numbers aren't independent. Under `with
# jax.debug_key_reuse(True):` JAX refuses to draw from a key twice.
#
# There's one exception: you may call `fold_in` on one key many times, with a new number each time. That's how you train:
# keep one key for the whole run, and call `fold_in(key, step)` in each step. A run that you resume then gets the same keys
# again. Never split that key as well, because `split(key)[0]` and `fold_in(key, 0)` are the same key, and
# `debug_key_reuse` doesn't notice.
#
# <details><summary>More surprises, if you come from NumPy or PyTorch</summary>
#
# 1. Arrays never change, because a function that changes its arguments isn't pure. So `x[1] = 10` is an error, and
#    `x.at[1].set(10)` returns a new array.
# 2. JAX computes in **float32** unless you ask for more with `jax.config.update("jax_enable_x64", True)`. A float64
#    array from NumPy becomes float32 without a warning.
# 3. An index beyond the end raises no error. `jnp.arange(3)[10]` is 2, the last element, and if you write beyond the
#    end, nothing happens.
# 4. `jnp.where(x > 0, jnp.sqrt(x), 0.0)` is 0 at x = -1, but its gradient there is NaN: `grad` goes through both
#    branches, the root has no slope at -1, and 0 times NaN is NaN. Choose a safe number first:
#    `jnp.sqrt(jnp.where(x > 0, x, 1.0))`.
# 5. If your loss is NaN, run the step under `with jax.debug_nans(True):`. Under `jit` it stops at the operation that made
#    the first NaN, and under `pmap` it only says that there was one.
#
# </details>
#
# ## vmap: write it for one example
#
# Your step returns one gradient for the whole batch. What if you want the gradient of *each* example, to see whether
# they agree? Write the loss of one example, and let `jax.vmap` turn it into a function for many, without a loop.
# `in_axes` has an entry for each argument: `None` for the model, which all examples share, and `0` for the inputs and
# the labels, which are stacked along axis 0. Since each transformation returns a function, you can combine them: `jit`
# of `vmap` of `grad` is a compiled function that returns 128 gradients.
#
# **Predict:** you take the mean of 128 gradients, and the gradient of the mean loss. How far apart are the two?


# %% tags=["prediction"]
def loss_one(model, inputs, label):  # [64], []
    return loss_sums(model, (inputs[None], label[None]))[0]


per_example_grad = jax.jit(jax.vmap(jax.grad(loss_one), in_axes=(None, 0, 0)))
example_grads = per_example_grad(init_model(), inputs, labels)
mean_loss_grad = jax.grad(lambda model: loss_sums(model, (inputs, labels))[0] / 128)(init_model())
print("128 gradients of W1:", example_grads["W1"].shape)
print("largest difference:", abs(example_grads["W1"].mean(0) - mean_loss_grad["W1"]).max())
lesson_02.gradients(example_grads["b1"], mean_loss_grad["b1"])

# %% [markdown]
# <details><summary>Answer</summary>
#
# They're equal, up to rounding: **the gradient of a mean is the mean of the gradients**. In the picture, each dot is
# one example's gradient, for the biases of two hidden units. Many dots line up at 0, because a unit whose ReLU is off
# for an example gets the gradient 0. The examples disagree widely, and yet their mean, the cross, lies exactly in the
# circle, the gradient of the mean loss. That's why data parallelism works: each device computes the gradients of its own
# examples, and only their mean needs all devices.
#
# </details>

# %% tags=["proof"]
# The asserts behind the answers.
assert (first(2.0), second(2.0)) == (12, 12)
assert traced == [128, 8]
types_traced = []
double_type = jax.jit(lambda x: types_traced.append(type(x)) or 2 * x)
for number in (1.0, 2.0, jnp.float32(3), jnp.float32(4), 1, 2):
    double_type(number)
assert len(types_traced) == 3
square = jnp.ones((2000, 2000))
product = jax.jit(jnp.matmul)
product(square, square).block_until_ready()  # compiled
start = time.perf_counter()
unfinished = product(square, square)
launch_seconds = time.perf_counter() - start
assert launch_seconds < time_call(product, square, square)
assert str(jax.make_jaxpr(loop_over_layers)(jnp.ones(3))).count("= tanh") == 5
assert str(jax.make_jaxpr(scan_over_layers)(jnp.ones(3))).count("= tanh") == 1
assert "Error" in lesson_02.result_or_error(jax.jit(python_if), 3.0)
assert lesson_02.result_or_error(jax.jit(jnp_where), 3.0) == "1.0"
assert "Error" in lesson_02.result_or_error(jax.jit(numpy_tanh), 3.0)
stepped = jax.tree.map(lambda w, g: w - 0.1 * g, {"W": 5, "b": 1}, {"W": 10, "b": 0})
assert stepped == {"W": 4, "b": 1}
assert np.isclose(shrink(1.0), 0.9)
random = np.random.default_rng(0)
add_noise = jax.jit(lambda x: x + random.normal())
assert add_noise(0.0) == add_noise(0.0)  # NumPy drew once, while JAX traced
assert len({float(jax.random.normal(one_key)) for one_key in keys.values()}) == 3
assert keys["split"] == jax.random.fold_in(key, 0)
numbers = jnp.zeros(3)
assert numbers.dtype == jnp.asarray(np.zeros(3)).dtype == jnp.float32
assert numbers.at[1].set(10)[1] == 10
assert jnp.arange(3)[10] == 2
assert (numbers.at[10].set(1) == numbers).all()  # writing beyond the end
root_or_0 = jax.grad(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0))
safe_root_or_0 = jax.grad(lambda x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0))
assert (np.isnan(root_or_0(-1.0)), safe_root_or_0(-1.0)) == (True, 0)
for name, gradient in mean_loss_grad.items():
    np.testing.assert_allclose(example_grads[name].mean(0), gradient, atol=1e-6)

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons:
# [solutions/02_differentiate_compile_vectorize.py](solutions/02_differentiate_compile_vectorize.py).
#
# 2. `clipped_mean_gradient` (10 minutes): clip the gradient of each example to a length of at most `limit`, then take
#    the mean over the examples. Training with differential privacy does this. The length of a gradient is the square
#    root of the sum of the squares of *all* its entries, over all arrays of the pytree. `loss_one` is a function of
#    (parameters, image, label). <details><summary>Hint</summary>Write a function that returns the clipped gradient of
#    one example, then <code>vmap</code> it, then take means with <code>jax.tree.map</code>.</details>
# 3. `fixed_shift` (5 minutes, find the mistake): `broken_shift` should move an image down and to the right, each by a
#    random number of pixels from -2 to 2. But only five of the 25 shifts ever occur, as the next cell shows: it shifts
#    one pixel 60 times, and sums the images. <details><summary>Hint</summary>How many times is the key used?</details>


# %%
def broken_shift(key, image):  # [H, W]
    down = jax.random.randint(key, (), -2, 3)
    right = jax.random.randint(key, (), -2, 3)
    return jnp.roll(image, (down, right), axis=(0, 1))


dot = jnp.zeros((7, 7), int).at[3, 3].set(1)
shift_keys = jax.random.split(jax.random.key(1), 60)
print(jax.vmap(broken_shift, in_axes=(0, None))(shift_keys, dot).sum(0))


def clipped_mean_gradient(loss_one, parameters, x, labels, limit):
    """Mean of the examples' gradients, each clipped to the length `limit`, as a pytree."""
    ...  # your code: 6 to 8 lines


def fixed_shift(key, image):
    """The image `[H, W]`, rolled down and to the right, by two independent numbers from -2 to 2."""
    ...  # your code: 3 to 4 lines


for exercise in (clipped_mean_gradient, fixed_shift):
    check("02_differentiate_compile_vectorize", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - `grad`, `jit` and `vmap` turn functions into functions, so you can combine them.
# - `jit` runs your Python code once for each combination of shapes and types, with tracers that have no values. Whatever
#   changes must therefore be an argument, random keys included.
# - The gradient of a mean is the mean of the gradients.
#
# In pmapdp, the loss is in [loss.py](../pmapdp/loss.py). To read on:
# [JAX: the sharp bits](https://docs.jax.dev/en/latest/notebooks/Common_Gotchas_in_JAX.html). Next, nobody writes layers
# by hand: [03 Train with Flax and Optax](03_train_with_flax_and_optax.ipynb).

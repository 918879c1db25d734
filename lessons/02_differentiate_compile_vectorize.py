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
# in their notebook. In a compiled step none of the three behaves as in PyTorch. One idea explains why: JAX doesn't run
# your function on arrays. It runs it on stand-ins, records each operation, and compiles the record.
#
# **You will** use `grad`, `jit` and `vmap`, say what the compiler sees of your function, and pass random keys by hand.
# 25 minutes, 45 with exercises. You need NumPy, and to know what a gradient is, for example from
# [01](01_train_a_network_in_numpy.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp.lessons.pictures import lesson_02

# %% [markdown]
# ## grad: the derivative of a function
#
# `jax.grad(f)` is a new function, the derivative of `f` with respect to its first argument. `f` must return a single
# number, such as a loss. If you want that number as well, call `jax.value_and_grad(f)`.
#
# Your model isn't a number but a dictionary of arrays. JAX calls that a **pytree**: dictionaries, lists and tuples of
# arrays, nested in any way. The gradient has the same structure, so `jax.tree.map` can pair each weight with its
# gradient. Do you want to return more than the loss? Use `has_aux=True`: JAX differentiates the first result and returns
# the second as it is.


# %%
def cube(x):
    return x * x * x


print(cube(1.0), jax.grad(cube)(1.0), jax.grad(jax.grad(cube))(1.0))  # x³, 3 x² and 6 x


def loss_and_count(model):
    return 10 * model["W"] + 20 * model["b"], 1


weights = {"W": 5.0, "b": 1.0}
slopes, count = jax.grad(loss_and_count, has_aux=True)(weights)
moved = jax.tree.map(lambda w, g: w - 0.1 * g, weights, slopes)
print(jax.tree.map(float, slopes), "| moved:", jax.tree.map(float, moved))

# %% [markdown]
# ## Your program, without a backward pass
#
# You start from [program/01_numpy.py](program/01_numpy.py). `jax.grad` takes the place of its backward pass. JAX can
# follow only its own operations, so whatever you differentiate must call `jnp` in place of `np`. A JAX array never
# changes: `x[0] = 1` raises a TypeError, and `x.at[0].set(1)` makes a new array.
#
# 1. `update_model` (5 minutes): one step of gradient descent, with the learning rate `rate`. `loss_sums(model, batch)`
#    returns the loss, *summed* over the batch, and a dictionary of sums, in which `sums["count"]` is the number of
#    examples. Step against the gradient of the *mean* loss, and return the new model, which may be any pytree, and the
#    sums. <details><summary>Hint</summary><code>jax.grad(loss_sums, has_aux=True)</code> is a function of the model and
#    the batch that returns two things.</details>

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
# The next cell is the whole program, so you can skip its code. It prints the NumPy program's losses and accuracies, up
# to rounding. The cell below it trains for one epoch, with your `update_model` if the check has accepted it. You should
# see the test loss of epoch 0 again.

# %% tags=["take-home"]
# include program/02_jax.py

# %%
if verdict.solved:
    train_step = jax.jit(lambda model, batch: update_model(loss_sums, model, batch, RATE))
model = init_model()
for batch in batches(*train_data, seed=0):
    model, _ = train_step(model, batch)
print("test:", report([eval_step(model, batch) for batch in batches(*test_data, seed=0)]))
print("with", "your" if verdict.solved else "the program's own", "train_step")

# %% [markdown]
# ## jit: compile a step
#
# The program compiles its steps with `jax.jit`. See what that does to a tiny function.
#
# **Predict:** you call the new function three times. How many times does "Python sees" appear?


# %% tags=["prediction"]
def double(x):
    print("Python sees", x)
    return 2 * x


jit_double = jax.jit(double)
for x in (1.0, 2.0, 3.0):
    print("result:", jit_double(x))
lesson_02.trace()

# %% [markdown]
# <details><summary>Answer</summary>
#
# Once. What Python sees is a stand-in, called a **tracer**, which has a shape and a type but no value.
#
# </details>
#
# In the first call, JAX writes down every operation that the tracer meets, and compiles the list. From then on,
# arguments of the same shapes and types go straight to the compiled program, and your Python code is left out. The `~`
# marks a Python number, and `jnp.float32(1)`, which has another type, would make JAX trace again. To see the values in
# every call, write `jax.debug.print`, which becomes one of the operations.
#
# `grad` and `vmap` run your function on tracers, too, but in every call. Under `grad` a tracer carries a value, and
# follows the derivative along. Under `vmap` it looks like a single number and stands for all rows.
#
# Now time your `train_step` on batches of different sizes. `watched_step`, which calls it, isn't compiled yet. JAX
# returns before the result is ready, so you wait for it yourself, with `jax.block_until_ready`.
#
# **Predict:** which of the five calls will be slow?

# %% tags=["prediction"]
traced = []


@jax.jit
def watched_step(model, batch):
    traced.append(len(batch[1]))  # Python comes here only when JAX traces
    return train_step(model, batch)


inputs, labels = train_data[0][:128], train_data[1][:128]
for rows in (128, 128, 128, 8, 128):
    start = time.perf_counter()
    jax.block_until_ready(watched_step(model, (inputs[:rows], labels[:rows])))
    print(f"{rows:3d} rows: {1000 * (time.perf_counter() - start):6.1f} ms")
print("traced for batches of", traced)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first, and the fourth, because it has a new shape. So the small last batch of an epoch costs you a second
# compilation, until you pad it in lesson 03.
#
# </details>
#
# ## What JAX writes down
#
# The list of operations is called a **jaxpr**, and `jax.make_jaxpr` shows it to you. A Python loop over five layers, each
# only a tanh, becomes five operations, and a loop over a hundred becomes a hundred. `lax.scan` writes down a single
# round, which feeds its result into the next. A round may also read an input and store an output. We need neither, so
# we write `_` and `None`.


# %%
def loop_over_layers(x):
    for _ in range(5):
        x = jnp.tanh(x)
    return x


def scan_over_layers(x):
    return lax.scan(lambda x, _: (jnp.tanh(x), None), x, length=5)[0]


for function in (loop_over_layers, scan_over_layers):
    print(jax.make_jaxpr(function)(jnp.ones(3)).pretty_print(use_color=False))

# %% [markdown]
# ## Trap 1: asking for a value
#
# Under `jit` a tracer has no value, so nothing in your function may ask for one.
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
# `python_if` and `numpy_tanh`. An `if` asks for a value that isn't there, and NumPy wants to turn the tracer into an array.
# Write `jnp.tanh`, and `jnp.where`, which computes both branches before it picks one. `vmap` refuses `python_if` as well,
# and `grad` on its own accepts it. A flag such as `training` may stay in an `if` if it's static: `jax.jit(f, static_argnums=1)`
# compiles once for each value of the second argument.
#
# </details>
#
# <details><summary>If a gradient is NaN</summary>
#
# The branch that `jnp.where` doesn't pick can spoil a gradient. At 0, the slope of the root is infinite, and
# `jnp.where(x > 0, jnp.sqrt(x), 0.0)` has the gradient NaN. So guard the root as well:
# `jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0)`. `with jax.debug_nans(True):` stops at the operation that
# made the first NaN.
#
# </details>
#
# ## Trap 2: a global variable
#
# A compiled function reads a global variable, and you change it between two calls.
#
# **Predict:** which rate does each of the three calls use?

# %% tags=["prediction"]
rate = 0.1


@jax.jit
def shrink(w):
    return w - rate * w


print(shrink(1.0))
rate = 0.5
print(shrink(1.0))
print(shrink(jnp.ones(3)))

# %% [markdown]
# <details><summary>Answer</summary>
#
# 0.1, 0.1 and 0.5. JAX reads `rate` while it traces, so 0.1 is built into the compiled program. The third call has a new
# shape, so JAX traces again and finds 0.5, without a warning.
#
# </details>
#
# **Whatever changes from step to step must be an argument.** To try another `RATE`, change it in the program's cell and
# run that cell again. A function is **pure** if its result depends on its arguments alone and it changes nothing else.
# JAX doesn't check that yours is.
#
# ## Trap 3: random numbers
#
# NumPy's random generator hides its state. In JAX you pass the state as an argument, called a **key**. A key always gives
# the same numbers, so for fresh ones you make a new key with `fold_in(key, number)`.
#
# **Predict:** you call each of the two functions three times. Which of them gives you three different numbers?

# %% tags=["prediction"]
random = np.random.default_rng(0)


@jax.jit
def numpy_noise(x):
    return x + random.normal()


@jax.jit
def jax_noise(x, key):
    return x + jax.random.normal(key)


key = jax.random.key(0)
for step in range(3):
    print(numpy_noise(0.0), jax_noise(0.0, jax.random.fold_in(key, step)))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only `jax_noise`. NumPy draws while JAX traces, so its number is built into the compiled program, as the rate was, and
# your dropout would drop the same units in every update.
#
# </details>
#
# If two draws use the same key, they aren't independent. So keep one base key for the whole run, and never draw from it or
# split it. Derive each step's key with `fold_in(key, step)`, and `split` the derived key if a step makes several draws.
# Under `with jax.debug_key_reuse(True):` JAX catches two draws from one key, but not the rest of this rule.
#
# ## vmap: write it for one example
#
# What if you want the gradient of *each* example? Write a function of one example, and `jax.vmap` makes each operation
# work on all examples at once. How can a function that sees one example compute a mean over all of them? Give the axis
# that `vmap` maps over a name, and call `lax.pmean` with this name.


# %%
def minus_mean(x):  # one number
    return x - lax.pmean(x, "data")


print(jax.vmap(minus_mean, axis_name="data")(jnp.array([1.0, 2, 6])))

# %% [markdown]
# Now with gradients. `gradients_one` takes the gradient of one example's loss, and then the mean over all examples.
# `in_axes=(None, 0, 0)` says that all examples share the model, and each has its own row of inputs and label. `None` in
# `out_axes` says that the mean is the same for all examples, so `vmap` returns it once.
#
# **Predict:** `pmean` takes the mean of 128 gradients, and of their counts, which are all 1. How far is this mean from
# the gradient of the mean loss?


# %% tags=["prediction"]
def gradients_one(model, inputs, label):  # [64], []
    batch = inputs[None], label[None]  # of one example
    gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
    own_gradients = gradients
    gradients, count = lax.pmean((gradients, sums["count"]), "data")
    return own_gradients, jax.tree.map(lambda g: g / count, gradients)


mapped = jax.vmap(gradients_one, in_axes=(None, 0, 0), out_axes=(0, None), axis_name="data")
example_grads, mean_grad = jax.jit(mapped)(init_model(), inputs, labels)
mean_loss_grad = jax.grad(lambda model: loss_sums(model, (inputs, labels))[0] / 128)(init_model())
print("largest difference:", abs(mean_grad["W1"] - mean_loss_grad["W1"]).max())
lesson_02.gradients(example_grads["b1"], mean_loss_grad["b1"])

# %% [markdown]
# <details><summary>Answer</summary>
#
# They're equal, up to rounding: **the gradient of a mean is the mean of the gradients**. In the picture, each dot is
# one example's gradient, for the biases of two hidden units. The dots disagree, and yet their mean is the gradient of
# the mean loss.
#
# </details>
#
# That's why eight devices can share a batch: only the mean needs all of them. In lesson 05, `pmap` takes the place of
# `vmap`, and each device has a part of the batch. The line with `lax.pmean` stays as it is. There the counts differ,
# because the last batch doesn't fill all devices.
#
# ## Exercises
#
# [Solutions, with reasons](solutions/02_differentiate_compile_vectorize.py)
#
# 2. `clipped_mean_gradient` (10 minutes): clip the gradient of each example to a length of at most `limit`, then take
#    the mean over the examples, as training with differential privacy does. The length is the square root of the sum of
#    all squares, over all arrays of the pytree. `loss_one` takes (parameters, image, label).
#    <details><summary>Hint</summary>Write a function that returns one example's clipped gradient, <code>vmap</code> it,
#    and take means with <code>jax.tree.map</code>.</details>
# 3. `fixed_shift` (5 minutes, find the mistake): `broken_shift` should roll an image down and to the right, each by a
#    random number of pixels from -2 to 2. But only five of the 25 shifts ever occur. <details><summary>Hint</summary>How
#    many times is the key used?</details>


# %%
def broken_shift(key, image):  # [H, W]
    down = jax.random.randint(key, (), -2, 3)
    right = jax.random.randint(key, (), -2, 3)
    return jnp.roll(image, (down, right), axis=(0, 1))


def clipped_mean_gradient(loss_one, parameters, x, labels, limit):
    """Mean of the examples' gradients, each clipped to the length `limit`, as a pytree."""
    ...  # your code: 6 to 8 lines


def fixed_shift(key, image):
    """The image `[H, W]`, rolled down and to the right, by two independent numbers from -2 to 2."""
    ...  # your code: 3 to 4 lines


for exercise in (clipped_mean_gradient, fixed_shift):
    check("02_differentiate_compile_vectorize", exercise.__name__, exercise)

# %% tags=["proof"]
# The asserts behind the answers. You can skip this cell.
assert (jax.grad(cube)(1.0), jax.grad(jax.grad(cube))(1.0)) == (3, 6)
assert traced == [128, 8]
assert str(jax.make_jaxpr(loop_over_layers)(jnp.ones(3))).count("= tanh") == 5
assert str(jax.make_jaxpr(scan_over_layers)(jnp.ones(3))).count("= tanh") == 1
assert "Error" in lesson_02.result_or_error(jax.jit(python_if), 3.0)
assert lesson_02.result_or_error(jax.jit(jnp_where), 3.0) == "1.0"
assert "Error" in lesson_02.result_or_error(jax.jit(numpy_tanh), 3.0)
np.testing.assert_allclose((shrink(1.0), *shrink(jnp.ones(3))), (0.9, 0.5, 0.5, 0.5))
assert len({float(numpy_noise(0.0)) for _ in range(3)}) == 1
assert len({float(jax_noise(0.0, jax.random.fold_in(key, step))) for step in range(3)}) == 3
assert jit_double(1.0) == 2
assert example_grads["W1"].shape == (128, 64, 32)
assert (slopes, count, moved) == ({"W": 10, "b": 20}, 1, {"W": 4, "b": -1})
mapped_minus_mean = jax.vmap(minus_mean, axis_name="data")
assert mapped_minus_mean(jnp.array([1.0, 2, 6])).tolist() == [-2, -1, 3]
assert jnp.zeros(2).at[0].set(1).tolist() == [1, 0]
for name, gradient in mean_loss_grad.items():
    np.testing.assert_allclose(example_grads[name].mean(0), gradient, atol=1e-6)
    np.testing.assert_allclose(mean_grad[name], gradient, atol=1e-6)

# %% [markdown]
# ## Take away
#
# - `jit` runs your Python code once for each combination of shapes and types, with tracers that have no values. So
#   whatever changes must be an argument, even the random key.
# - The gradient of a mean is the mean of the gradients. `lax.pmean` takes it over the axis that you've named, here of
#   examples, and soon of devices.
#
# In pmapdp, your `loss_sums` is `cross_entropy` in [loss.py](../pmapdp/loss.py). It returns only the sums, and the
# training steps call it as `task.loss_sums`. To read on:
# [transformations](https://docs.jax.dev/en/latest/101/transformations.html), and [why float64 becomes
# float32](https://docs.jax.dev/en/latest/101/default_dtypes.html). Next, nobody writes layers by hand: [03 Train with
# Flax and Optax](03_train_with_flax_and_optax.ipynb).

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
# In lesson 01 you derived a backward pass for two layers. A transformer has hundreds, and whenever you changed one
# you'd have to start over. In this lesson the backward pass disappears from your program, because JAX derives it. Then
# you'll compile your training step, and it takes less than a tenth of the time that JAX needs operation by operation.
# For a network as small as yours, that's no gain over lesson 01's NumPy, but it will be for larger ones. JAX asks one thing in return: your
# functions must be **pure**. A pure function's result depends on its arguments alone, and the function changes nothing
# else. If yours isn't pure, you'll get strange errors, and sometimes no error at all. We'll walk into these traps on
# purpose.
#
# **You will** use `grad`, `jit` and `vmap`, say what the compiler sees of your function, and pass random keys by hand.
# 28 minutes, 48 with exercises. You need NumPy, and an idea of what a gradient is ([01 Train a network in
# NumPy](01_train_a_network_in_numpy.ipynb)).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp.lessons.pictures import lesson_02


def time_call(function, *arguments):
    """Return the seconds that one call takes, until its result is there."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))  # JAX returns before the work is done
    return time.perf_counter() - start


def result_or_error(function, x):
    """Return the function's result as text. If JAX refuses, return the first line of the error."""
    try:
        return str(function(x))
    except jax.errors.JAXTypeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


# %% [markdown]
# ## grad: from a function to its derivative
#
# `jax.grad(f)` is a new function: the derivative of f with respect to its first argument. f must return one number,
# such as a loss. If you want that number as well, take `jax.value_and_grad(f)`. The derivative is a function, too, so
# you can take `grad` of it again.
#
# **Predict:** f(x) = x³ has the derivatives 3 x², 6 x and 6. Which four numbers do you get at x = 2?


# %% tags=["prediction"]
def cube(x):
    return x**3


first = jax.grad(cube)
second = jax.grad(first)
third = jax.grad(second)
print(cube(2.0), first(2.0), second(2.0), third(2.0))

# %% [markdown]
# <details><summary>Answer</summary>
#
# 8, 12, 12 and 6.
#
# </details>
#
# ## Your program, without a backward pass
#
# You start from lesson 01's program, [program/01_numpy.py](program/01_numpy.py). In everything we differentiate, `np`
# becomes `jnp`. `jax.grad` replaces `backward`, so you can delete that function. `grad` wants a loss, but you also want
# the sums for the metrics. That's why `loss_sums` returns both, and why we set `has_aux=True`: now `grad`
# differentiates only the loss, and hands you the sums as they are.
#
# include the difference of 01_numpy.py and 02_jax.py
#
# The model is still a dictionary of arrays. JAX calls it a **pytree**: dictionaries, lists and tuples of arrays, nested
# as deeply as you like. The gradient is a pytree of the same structure, so `jax.tree.map` can pair each weight with its
# gradient. With numbers in place of arrays, `jax.tree.map(lambda w, g: w - 0.1 * g, {"W": 5, "b": 1}, {"W": 10, "b":
# 0})` gives you `{"W": 4.0, "b": 1.0}`.
#
# Here's the new program, to take home. Nobody has derived its gradients by hand, and yet it prints lesson 01's losses
# and accuracies:

# %% tags=["take-home"]
# include program/02_jax.py

# %% [markdown]
# If a last digit differs on your machine, that's rounding: float32 rounds after every addition, and your machine may
# add in a different order.
#
# ## jit: trace once, then run without Python
#
# Your program passes both of its steps to `jax.jit`, the second transformation. When you call a jitted function for the
# first time, JAX runs your Python code with **tracers** in place of arrays. A tracer has a shape and a type, but no
# values. JAX writes down every operation it meets, and compiles the list. The next call with the same shapes and types
# runs the compiled program, and your Python code isn't touched any more.

# %%
lesson_02.trace()

# %% [markdown]
# Let's give our `train_step` five batches, and then one more without `jit`. The line `@jax.jit` above a function is
# short for `function = jax.jit(function)` below it. `time_call`, in the first cell, waits for the result before it
# reads the clock, because JAX returns before the work is done.
#
# **Predict:** how many times is "tracing" printed?


# %% tags=["prediction"]
@jax.jit
def verbose_step(model, batch):
    print("tracing with inputs of shape", batch[0].shape)
    return train_step(model, batch)


inputs, labels = train_data[0][:128], train_data[1][:128]
batch_sizes = [128, 128, 128, 8, 128]
seconds = [time_call(verbose_step, model, (inputs[:n], labels[:n])) for n in batch_sizes]
with jax.disable_jit():  # the best of three, because each operation compiles in the first
    plain_seconds = min(time_call(train_step, model, (inputs, labels)) for _ in range(3))
lesson_02.calls(batch_sizes, seconds, plain_seconds)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Twice, once for each shape, and a new dtype would cost a third time. Once it's compiled, the step takes a small
# fraction of the time that it takes without `jit`, because Python no longer starts one operation after the other.
# Compiling, however, takes as long as hundreds of calls. That makes the small last batch of an epoch expensive, and in
# lesson 03 you'll pad it.
#
# </details>
#
# ## What the compiler sees
#
# The list of operations is called a **jaxpr**, and `jax.make_jaxpr` shows it to you. Here are five layers, once in a
# Python loop and once with `lax.scan`. `scan` repeats a function that takes a state and an input, and returns a new
# state and an output. Our layer is just a tanh, with no input and no output, hence `_` and `None`.
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
# Five times, and once. JAX doesn't see your loop, only the operations that the loop performs. With a Python loop over a
# hundred layers the compiler gets a hundred layers, and with `scan` it gets one.
#
# </details>
#
# ### Trap 1: print
#
# Python's `print` isn't an array operation, so no jaxpr contains it. That's why `verbose_step` printed only while JAX
# traced it. To print values from a compiled function, use `jax.debug.print`.
#
# ### Trap 2: no values
#
# A tracer has no values, so nothing in your function may ask for one while JAX traces it.
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
    print(f"{function.__name__}: {result_or_error(jax.jit(function), 3.0)}\n")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `python_if` and `numpy_tanh`. `if` asks for a value that isn't there, and NumPy wants to turn the tracer into an
# array. In place of `if` use `jnp.where`, which computes both branches and picks. In place of `np.tanh` use `jnp.tanh`.
# If an argument has only a few values, such as a flag for training, declare it static with `jax.jit(f,
# static_argnums=1)`: JAX then compiles once for each value, and `if` may look at it.
#
# </details>
#
# ### Trap 3: a global variable
#
# The worst trap raises no error. A compiled function reads a global variable, and later you change the variable.
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
# Still 0.9. JAX read `rate` while it traced, so 0.1 is built into the compiled program. **Whatever changes from step to
# step must be an argument.** Your program's `RATE` is a global variable, too, and that's fine as long as it never
# changes. If you change it in a notebook, run the cell that defines the step again.
#
# </details>
#
# ## Three surprises
#
# If you come from NumPy or PyTorch, these three `print`s may surprise you. The array in the second has three elements.
#
# **Predict:** does the second raise an error?

# %% tags=["prediction"]
print(jnp.arange(3.0).dtype, "from", np.arange(3.0).dtype)
print(jnp.arange(3)[10])
numbers = jnp.zeros(3)
copy = numbers.at[1].set(10)  # in place of numbers[1] = 10
print(numbers, copy)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No, none of them does.
#
# 1. JAX computes in **float32** unless you ask for more with `jax.config.update("jax_enable_x64", True)`. A float64
#    array from NumPy becomes float32 without a warning. You're warned only if you write `dtype="float64"` yourself.
# 2. If you read beyond the end, you get the last element, because a compiled program on a GPU can't raise an error. If
#    you write beyond the end, nothing happens. Look at your indices twice.
# 3. Arrays never change, because a function that changes its arguments isn't pure. So `x.at[i].set(v)` returns a new
#    array. Inside `jit`, the compiler avoids the copy if nobody needs the old one.
#
# </details>
#
# <details><summary>And if your loss is NaN?</summary>
#
# Run your step under `with jax.debug_nans(True):`. A compiled function that returns a NaN then runs again, operation by
# operation, and stops at the first NaN, with a traceback to your line. In `p * jnp.log(p)` at p = 0, for example, it
# stops at the multiplication, because 0 times -inf is NaN.
#
# </details>
#
# ## Random numbers need a key
#
# `np.random.normal()` changes a hidden state, and a pure function mustn't do that. In JAX you pass the state yourself,
# as a **key**. For new numbers you make new keys, with `split` or with `fold_in(key, number)`.
#
# **Predict:** which two of these four draws are equal?

# %% tags=["prediction"]
key = jax.random.key(0)
new_key = jax.random.split(key)[0]
step_key = jax.random.fold_in(key, 7)
keys = {"key": key, "key again": key, "split": new_key, "fold_in": step_key}
draws = {name: jax.random.normal(one_key, 2) for name, one_key in keys.items()}
for name, draw in draws.items():
    print(f"{name:9s}", draw)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first two, because the same key always gives the same numbers. So in your own code use a key **once**, for one
# draw or for one split, or your random numbers aren't independent. Under `with jax.debug_key_reuse(True):` JAX refuses
# a key that was used before, and so does the check of your third exercise.
#
# A training run is the exception. Keep one key for all of it, and call `fold_in(key, step)` in each step, so that a run
# that you resume gets the same keys again. Don't split that key as well: `split(key)[0]` and `fold_in(key, 0)` are the
# same key.
#
# </details>
#
# ## vmap: write it for one example
#
# With the third transformation you can forget the batch. You write a function for one example, and `jax.vmap` turns it
# into a function for many, without a loop. `in_axes` has an entry for each argument: here `None` for the model, which
# all examples share, and `0` for the inputs and the labels, which are stacked along axis 0.
#
# Because transformations combine, `jit` of `vmap` of `grad` is a compiled function that returns the gradient of *each*
# example, and you'll call it on the first 128 examples. If you know `torch.func` from PyTorch, you've seen the idea.
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

# %% tags=["proof"]
# The asserts behind the answers, and behind the introduction.
assert 10 * min(seconds) < plain_seconds
assert seconds[3] > 50 * min(seconds)
assert (first(2.0), second(2.0), third(2.0)) == (12, 12, 6)
assert str(jax.make_jaxpr(loop_over_layers)(jnp.ones(3))).count("= tanh") == 5
assert str(jax.make_jaxpr(scan_over_layers)(jnp.ones(3))).count("= tanh") == 1
assert "Error" in result_or_error(jax.jit(python_if), 3.0)
assert result_or_error(jax.jit(jnp_where), 3.0) == "1.0"
assert "Error" in result_or_error(jax.jit(numpy_tanh), 3.0)
stepped = jax.tree.map(lambda w, g: w - 0.1 * g, {"W": 5, "b": 1}, {"W": 10, "b": 0})
assert stepped == {"W": 4, "b": 1}
assert np.isclose(shrink(1.0), 0.9)
assert jnp.arange(3.0).dtype == jnp.float32
assert jnp.arange(3)[10] == 2
assert (numbers.at[10].set(1) == 0).all()  # writing beyond the end
assert numbers[1] == 0
assert (draws["key"] == draws["key again"]).all()
assert len({float(draw[0]) for draw in draws.values()}) == 3
for name, gradient in mean_loss_grad.items():
    np.testing.assert_allclose(example_grads[name].mean(0), gradient, atol=1e-6)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They're equal, up to rounding: **the gradient of a mean is the mean of the gradients**. In the picture, each dot is
# one example's gradient with respect to the biases of two hidden units. The dots are scattered widely, and many line up
# at 0, because a unit whose ReLU was off for an example gets the gradient 0. Their mean is the cross, and it lies in
# the middle of the circle, the gradient of the mean loss. That's why data parallelism works: each device can compute
# the gradients of its own examples, and only the mean needs them all.
#
# </details>
#
# ## Exercises
#
# Solutions, with reasons:
# [solutions/02_differentiate_compile_vectorize.py](solutions/02_differentiate_compile_vectorize.py).
#
# 1. `relu_power` (5 minutes): x to the power `n` where x is positive, else 0. It must work under `jit` and `grad`, and
#    where x isn't positive, the derivative must be 0, too. `n` is a positive Python number, such as 2 or 0.5.
#    <details><summary>Hint</summary><code>jnp.where</code>. The derivative of the branch that isn't chosen must be
#    finite, too.</details>
# 2. `clipped_mean_gradient` (10 minutes): clip the gradient of each example to a length of at most `limit`, then take
#    the mean over the examples. Training with differential privacy does this. The length of a gradient is the square
#    root of the sum of the squares of *all* its entries, over all arrays of the pytree. `loss_one` is a function of
#    (parameters, image, label). <details><summary>Hint</summary>Write a function that returns the clipped gradient of
#    one example, then <code>vmap</code> it, then take means with <code>jax.tree.map</code>.</details>
# 3. `fixed_shift` (5 minutes, find the mistake): `broken_shift` should move an image down and to the right, each by a
#    random number of pixels from -2 to 2. But only five of the 25 shifts ever occur, as the next cell shows: it shifts
#    one pixel 60 times, and sums the images. <details><summary>Hint</summary>How many times is the key used?</details>


# %%
from pmapdp.lessons.checks import check


def broken_shift(key, image):  # [H, W]
    down = jax.random.randint(key, (), -2, 3)
    right = jax.random.randint(key, (), -2, 3)
    return jnp.roll(image, (down, right), axis=(0, 1))


dot = jnp.zeros((7, 7), int).at[3, 3].set(1)
shift_keys = jax.random.split(jax.random.key(1), 60)
print(jax.vmap(broken_shift, in_axes=(0, None))(shift_keys, dot).sum(0))


def relu_power(x, n):
    """x**n where x > 0, else 0; x is an array."""
    ...  # your code: 1 line


def clipped_mean_gradient(loss_one, parameters, x, labels, limit):
    """Mean of the examples' gradients, each clipped to the length `limit`, as a pytree."""
    ...  # your code: 6 to 8 lines


def fixed_shift(key, image):
    """The image `[H, W]`, rolled down and to the right, by two independent numbers from -2 to 2."""
    ...  # your code: 3 to 4 lines


for exercise in (relu_power, clipped_mean_gradient, fixed_shift):
    check("02_differentiate_compile_vectorize", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - `grad`, `jit` and `vmap` turn functions into functions, so you can combine them.
# - `jit` runs your Python code once for each shape, with tracers. So whatever changes must be an argument, random keys
#   included.
# - The gradient of a mean is the mean of the gradients.
#
# In pmapdp, the loss is in [loss.py](../pmapdp/loss.py). To read on:
# [JAX: the sharp bits](https://docs.jax.dev/en/latest/notebooks/Common_Gotchas_in_JAX.html). Next, nobody writes layers
# by hand: [03 Train with Flax and Optax](03_train_with_flax_and_optax.ipynb).

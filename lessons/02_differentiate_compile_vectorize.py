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
# After this lesson you can let `jax.grad` write the backward pass, compile a function with `jax.jit` and say what the
# compiled program contains, find a NaN in it, time it honestly, and turn a function of one example into a function of a
# batch with `jax.vmap`.
#
# About 35 minutes · you need NumPy, and an idea of what a gradient is
# ([01 Train a network in NumPy](01_train_a_network_in_numpy.ipynb), if you have never written one) · next:
# [03 Train with Flax and Optax](03_train_with_flax_and_optax.ipynb)
#
# JAX has three parts: the functions of NumPy for any device (`jax.numpy`), a compiler (XLA), and **transformations**. A
# transformation takes a function and returns a function, so transformations can be combined: `jit(vmap(grad(f)))` is a
# compiled function that computes the gradient of f for each example of a batch. Lesson 04 adds one more transformation,
# `pmap`.

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp.lessons import digits  # scans of handwritten digits as NumPy arrays

x, labels = digits.load().train  # [n, 64] float32, [n] int32

# %% [markdown]
# ## grad: from a function to its derivative
#
# `jax.grad(f)` is the function that returns the gradient of f with respect to its first argument. f must return one
# number, such as a loss. Begin with a case that you can check in your head: f(x) = x³ has the derivatives 3 x², 6 x
# and 6. `grad` returns a function, so it can be applied again. **Predict** the four values at x = 2.


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
# The values are 8, 12, 12 and 6.
#
# </details>
#
# ## Arrays never change
#
# A JAX array is immutable: unlike a NumPy array or a PyTorch tensor, it cannot be changed in place. The reason is that
# transformations need **pure** functions: the result depends on the arguments alone, and nothing else changes. Instead
# of `x[1] = 10`, write `x.at[1].set(10)`, which returns a new array. **Predict** the four arrays that the next cell
# prints.

# %% tags=["prediction"]
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

# %% [markdown]
# <details><summary>Answer</summary>
#
# The old array is unchanged. With a repeated index, `.at[].add` adds twice, and NumPy's `+=` only once. Inside `jit`,
# the compiler avoids the copy if the old array is not needed any more.
#
# </details>
#
# ## The gradient of a network
#
# The parameters of the next network are a list of pairs of arrays, but any nesting of lists, tuples and dictionaries
# would do. JAX calls such a nesting a **pytree**. `grad` returns a gradient that is nested in the same way, and
# `jax.tree.map` applies a function to each array. Is the gradient g right? Move all parameters a little along it, by a
# thousandth of g, forward and back. The slope of the loss in this direction must be the sum of the squares of g, within
# 1 % in float32.


# %%
def predict(parameters, x):  # [B, D] to [B, C]
    (W1, b1), (W2, b2) = parameters
    return jnp.maximum(x @ W1 + b1, 0) @ W2 + b2


def loss(parameters, x, labels):
    log_p = jax.nn.log_softmax(predict(parameters, x))
    return -jnp.take_along_axis(log_p, labels[:, None], axis=1).mean()


random = np.random.default_rng(0)
shapes = (((64, 32), (32,)), ((32, 10), (10,)))
parameters = [tuple(0.1 * random.normal(size=shape).astype(np.float32) for shape in layer) for layer in shapes]
gradients = jax.grad(loss)(parameters, x[:32], labels[:32])  # no backward pass to write
print(jax.tree.map(jnp.shape, gradients))


def moved(size):
    return jax.tree.map(lambda p, g: p + size * g, parameters, gradients)


slope = (loss(moved(1e-3), x[:32], labels[:32]) - loss(moved(-1e-3), x[:32], labels[:32])) / 2e-3
squares = sum((g**2).sum() for g in jax.tree.leaves(gradients))
print(f"slope {slope:.4f}, sum of the squares of the gradient {squares:.4f}")
np.testing.assert_allclose(slope, squares, rtol=1e-2)

# %% [markdown]
# The two numbers agree. So from here on, `grad` writes the backward pass.
#
# ## jit: trace once, compile, run
#
# In the first call, `jax.jit` runs your Python function with **tracers** in place of arrays. A tracer has a shape and a
# type, but no values. JAX records every operation (**tracing**) and compiles the record. Later calls run the compiled
# program, without Python. **Predict:** how often does the next cell print "tracing"?

# %% tags=["prediction"]
from pmapdp.lessons.pictures import lesson_02

lesson_02.trace()


@jax.jit
def step(parameters, x, labels):  # <- changed: compiled
    print("tracing with x", x.shape)
    value, gradients = jax.value_and_grad(loss)(parameters, x, labels)  # <- new: loss and gradients
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), value


for size in (32, 32, 32, 29, 32):
    _, value = step(parameters, x[:size], labels[:size])

# %% [markdown]
# <details><summary>Answer</summary>
#
# Twice, once for each shape. A smaller last batch costs a second compilation. This is one reason why lesson 03 pads it
# to the full size.
#
# </details>
#
# ## What a trace records
#
# `jax.make_jaxpr(f)` shows the record, which is called a **jaxpr**. The next two functions apply a layer five times:
# with a Python loop, and with `lax.scan`, which takes a function from (state, input) to (new state, output).
# **Predict:** how often does `tanh` stand in each record? And where is the `print`?


# %% tags=["prediction"]
def by_loop(w, x):
    for number in range(5):
        print("layer", number)
        x = jnp.tanh(x @ w)
    return x


def by_scan(w, x):
    def layer(x, _):
        return jnp.tanh(x @ w), None  # the new state, and no output

    return lax.scan(layer, x, None, length=5)[0]


square, row = jnp.eye(3) * 0.5, jnp.ones(3)
for function in (by_loop, by_scan):
    jaxpr = jax.make_jaxpr(function)(square, row)
    print(f"{function.__name__}: tanh stands {str(jaxpr).count('= tanh')} times")
print(jaxpr.pretty_print(use_color=False))

# %% [markdown]
# <details><summary>Answer</summary>
#
# The Python loop is unrolled: five `tanh`, and a program that takes longer to compile with every round. `scan` records
# its body once. `print` is no operation on arrays, so it is not in the record: it runs while JAX traces, and never
# again.
#
# </details>
#
# While JAX traces, arrays have shapes and no values. **Predict:** which of these two calls fail under `jit`?


# %% tags=["prediction"]
def power(x, n):
    result = 1.0
    for _ in range(n):
        result = result * x
    return result


def clipped(x):
    return 1.0 if x > 1 else x


for function, arguments in ((power, (2.0, 3)), (clipped, (3.0,))):
    try:
        jax.jit(function)(*arguments)
    except jax.errors.JAXTypeError as error:
        print(f"{function.__name__}: {type(error).__name__}: {str(error).splitlines()[0]}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both fail: Python's `range` and `if` would have to look at the value of a tracer. There are two cures. Declare the
# argument **static**, `jax.jit(power, static_argnums=1)`: then `jit` compiles once for each *value*. Or stay with
# arrays, `jnp.where(x > 1, 1.0, x)`: it computes both branches and then chooses. (`lax.cond` computes only one of
# them.)
#
# </details>
#
# Static arguments are for what changes rarely: a shape, a number of layers, "training or evaluation". What changes in
# each step must be an ordinary argument. That includes the learning rate: a compiled function keeps the value that a
# global variable had while JAX traced. **Predict** the second line.

# %% tags=["prediction"]
rate = 0.1


@jax.jit
def shrink(w):
    return w - rate * w


print("rate 0.1:", shrink(1.0))
rate = 0.5
print("rate 0.5:", shrink(1.0))

shrink_by = jax.jit(lambda w, rate: w - rate * w)  # <- changed: an argument

# %% [markdown]
# <details><summary>Answer</summary>
#
# The compiled function still uses 0.1.
#
# </details>
#
# ## How it fails: a NaN
#
# To see a value inside a compiled function, use `jax.debug.print`: it is a part of the record, and prints in every
# call. To find where a NaN comes from, run the function once more under `jax.debug_nans(True)`: JAX then checks every
# result, and raises an error at the operation that made the first NaN. **Predict:** which line of `entropy` makes it?


# %% tags=["prediction"]
@jax.jit
def entropy(p):
    jax.debug.print("p = {}", p)
    logarithm = jnp.log(p)
    terms = p * logarithm
    return -terms.sum()


sure = jnp.array([1.0, 0.0])
print("entropy:", entropy(sure))

import traceback

try:
    with jax.debug_nans(True):
        entropy(sure)
except FloatingPointError as error:
    frames = traceback.extract_tb(error.__traceback__)
    (line,) = {frame.line for frame in frames if frame.name == "entropy" and "ipykernel" in frame.filename}
    print(f"FloatingPointError in the line `{line}`: {str(error).splitlines()[0]}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# log(0) is minus infinity, which is no NaN. 0 times minus infinity is one. When a compiled function returns a NaN, JAX
# runs it again operation by operation, as the message says, to find the first one. That is slow, so switch it on only
# to search.
#
# </details>
#
# ## Random keys
#
# PyTorch draws random numbers from a global state, and each draw changes it. JAX has no such state, because the result
# of a pure function depends on its arguments alone. So you pass the state yourself: it is called a **key**. The same
# key gives the same numbers. To get other numbers, make new keys from it, with `split` or with `fold_in(key, number)`.
# **Predict** which of the four draws are equal.

# %% tags=["prediction"]
key = jax.random.key(0)
one, _ = jax.random.split(key)
keys = {"key": key, "key again": key, "split": one, "fold_in": jax.random.fold_in(key, 7)}
draws = {}
for name, each in keys.items():
    draws[name] = jax.random.normal(each, 2)
    print(f"{name:9s}", draws[name])

# %% tags=["proof"]
# The asserts behind the answers so far.
assert (first(2.0), second(2.0), third(2.0)) == (12, 12, 6)
assert (numbers[1], twice[1], of_numpy[1]) == (0, 12, 11)
np.testing.assert_allclose(by_scan(square, row), jax.jit(by_loop)(square, row), rtol=1e-6)
static = jax.jit(power, static_argnums=1)
chosen = jax.jit(lambda x: jnp.where(x > 1, 1.0, x))
assert (static(2.0, 3), static(2.0, 4), chosen(3.0), chosen(0.5)) == (8, 16, 1, 0.5)
assert np.isclose(shrink(1.0), 0.9)
assert np.isclose(shrink_by(1.0, 0.5), 0.5)
assert line == "terms = p * logarithm"
assert (draws["key"] == draws["key again"]).all()
assert (draws["key"] != draws["split"]).all()

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first two are equal. So use each key for one draw only. `fold_in` is handy in a training loop:
# `fold_in(key, step)` is a new key for every step, and a run that resumes after a stop gets the same keys again.
#
# </details>
#
# ## Timing honestly
#
# Two things spoil a measurement. The first call compiles. And JAX returns before the work is done (**asynchronous
# dispatch**), as PyTorch does on a GPU. So call the function once before you measure, and wait with `block_until_ready`
# before you read the clock. **Predict** the order of the four times.


# %% tags=["prediction"]
import time

from pmapdp import devices  # describes the machine

large = jnp.asarray(np.random.default_rng(2).normal(size=(512, 512)).astype(np.float32))


def chain(w):  # ten products
    for _ in range(10):
        w = jnp.tanh(w @ large)
    return w


def milliseconds(function, wait, calls=5):
    """The fastest of some calls, because other programs disturb the clock."""
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        result = function(large)
        if wait:
            jax.block_until_ready(result)
        times.append(time.perf_counter() - started)
        jax.block_until_ready(result)
    return 1000 * min(times)


compiled = jax.jit(chain)
print(devices.describe(jax.devices()[:1]))
print(f"first call, compiling:    {milliseconds(compiled, wait=True, calls=1):8.2f} ms")
print(f"compiled, not waiting:    {milliseconds(compiled, wait=False):8.2f} ms (measures only the launch)")
print(f"compiled, waiting:        {milliseconds(compiled, wait=True):8.2f} ms")
print(f"operation by operation:   {milliseconds(chain, wait=True):8.2f} ms")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first call takes longest, because it compiles. The second time only says how long it takes to start the work.
# Without `jit` (the last line), Python starts each operation separately. That costs little beside large products as
# here, and much beside small ones.
#
# </details>
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
# Now combine everything, in a cell that runs alone. It trains a network without any library of layers: one compiled
# call makes all updates of an epoch with `lax.scan`. At the end, `vmap` of `grad` computes the gradient of **each**
# example. The mean of these gradients is the gradient of the mean loss. Data parallelism rests on this fact: each
# device can compute the gradients of its own examples, and only the mean needs all devices.

# %% tags=["take-home"]
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def init(key, sizes):
    """A pytree of parameters: a list of (weights, bias)."""
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [(jax.random.normal(key, (m, k)) / jnp.sqrt(m), jnp.zeros(k)) for key, m, k in shapes]


def predict(parameters, x):  # [..., D] to [..., C]
    *hidden, (W, b) = parameters
    for W_hidden, b_hidden in hidden:
        x = jnp.maximum(x @ W_hidden + b_hidden, 0)
    return x @ W + b


def loss_one(parameters, x, label):  # [D], [] to []
    return -jax.nn.log_softmax(predict(parameters, x))[label]


def loss(parameters, x, labels):  # [B, D], [B] to []
    return jax.vmap(loss_one, in_axes=(None, 0, 0))(parameters, x, labels).mean()


@jax.jit
def train_epoch(parameters, batches, rate):
    """The parameters after one update for each of the stacked batches `[updates, B, D]`, `[updates, B]`; the losses."""

    def step(parameters, batch):
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        return jax.tree.map(lambda p, g: p - rate * g, parameters, gradients), value

    return lax.scan(step, parameters, batches)


random = np.random.default_rng(0)
cloud_labels = random.integers(0, 10, 840)
clouds = (2 * random.normal(size=(10, 8))[cloud_labels] + random.normal(size=(840, 8))).astype(np.float32)
test_x, test_labels = clouds[640:], cloud_labels[640:]  # your own arrays in their place
cloud_parameters = init(jax.random.key(0), (8, 32, 10))
for epoch in range(10):
    order = np.random.default_rng([1, epoch]).permutation(640)
    batches = clouds[order].reshape(20, 32, 8), cloud_labels[order].reshape(20, 32)
    cloud_parameters, losses = train_epoch(cloud_parameters, batches, 0.1)
accuracy = (jax.jit(predict)(cloud_parameters, test_x).argmax(1) == test_labels).mean()
print(f"mean loss of the last epoch {losses.mean():.3f}, test accuracy {accuracy:.3f}")
assert accuracy > 0.85

some = clouds[:32], cloud_labels[:32]
per_example = jax.jit(jax.vmap(jax.grad(loss_one), in_axes=(None, 0, 0)))(cloud_parameters, *some)
of_mean = jax.grad(loss)(cloud_parameters, *some)
print("one gradient for each example:", per_example[0][0].shape, "| of the mean:", of_mean[0][0].shape)
for each, mean in zip(jax.tree.leaves(per_example), jax.tree.leaves(of_mean), strict=True):
    np.testing.assert_allclose(each.mean(0), mean, atol=1e-5)

# %% [markdown]
# There is one gradient for each of the 32 examples. Their mean agrees with the gradient of the mean loss within 1e-5.
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
# 3. `fixed_shift` (find the mistake): `broken_shift` should move an image down and to the right, each by a random
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

from pmapdp.lessons.checks import check


def relu_power(x, n):
    """x**n where x > 0, else 0; x is an array."""
    ...  # your code: 1 line


def clipped_mean_gradient(loss_one, parameters, x, labels, limit):
    """Mean of the examples' gradients, each clipped to the length `limit`; nested like `parameters`."""
    ...  # your code: 6 to 8 lines


def fixed_shift(key, image):
    """The image `[H, W]`, rolled down and to the right, by two independent numbers from -2 to 2."""
    ...  # your code: 3 to 4 lines


for exercise in (relu_power, clipped_mean_gradient, fixed_shift):
    check("02_differentiate_compile_vectorize", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - `grad`, `jit` and `vmap` turn functions into functions, and can be combined.
# - `jit` traces once for each shape and type, and for each value of a static argument. Python runs only then, so
#   everything that changes must be an argument, also the key of random numbers.
# - The gradient of a mean is the mean of the gradients.
#
# In pmapdp, the loss is in [loss.py](../pmapdp/loss.py), and `value_and_grad` is called in
# [steps/shared.py](../pmapdp/steps/shared.py). To read on:
# [JAX: the sharp bits](https://docs.jax.dev/en/latest/notebooks/Common_Gotchas_in_JAX.html),
# [debugging](https://docs.jax.dev/en/latest/201/debugging.html),
# [JAX 101](https://docs.jax.dev/en/latest/101/index.html). Next:
# [03 Train with Flax and Optax](03_train_with_flax_and_optax.ipynb).

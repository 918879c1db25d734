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
# # 03. Train with Flax and Optax
#
# After this lesson you can write the training loop that you know from PyTorch in JAX: a model, batches, an optimizer
# with a schedule and clipping, one compiled step, a validation set, and a test accuracy at the end. Lesson 05 adds one
# line to this program, and then it trains on eight devices.
#
# About 35 minutes · you need [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb) · next:
# [04 Map over devices](04_map_over_devices.ipynb)
#
# Flax has the layers, and Optax has the optimizers. The four steps are the same as in PyTorch.
#
# | step | PyTorch | JAX |
# | --- | --- | --- |
# | model | `nn.Module` | `nnx.Module` of [Flax](https://flax.readthedocs.io) |
# | data | `DataLoader` | anything that gives NumPy arrays |
# | optimizer, schedule, clipping | `optim.Adam`, `lr_scheduler`, `clip_grad_norm_` | one chain of [Optax](https://optax.readthedocs.io) |
# | train and validate | `loss.backward()`, `optimizer.step()` | one compiled function |

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.lessons import digits  # scans of handwritten digits as NumPy arrays

data = digits.load()
print("train", data.train[0].shape, "| validation", data.validation[0].shape, "| test", data.test[0].shape)

# %% [markdown]
# An image is a row of D = 64 numbers from 0 to 1. You train with the first part. You choose everything (the network,
# the learning rate, when to stop) by the second part. You use the test set once, at the end, because a number by which
# you have chosen something is too good.
#
# ## Step 1: the model
#
# A Flax NNX module looks like one of PyTorch: layers are attributes, and `__call__` is the forward pass. The initial
# weights come from a seed that you pass in, because JAX has no global random state.
#
# **Predict:** how many parameters does a network with 64 inputs, 64 hidden units and 10 classes have?


# %% tags=["prediction"]
class Network(nnx.Module):
    def __init__(self, features, classes, rngs):
        self.hidden = nnx.Linear(features, 64, rngs=rngs)
        self.logits = nnx.Linear(64, classes, rngs=rngs)

    def __call__(self, x):  # [B, D] to [B, C]
        return self.logits(nnx.relu(self.hidden(x)))


model = Network(64, 10, nnx.Rngs(0))
count = sum(leaf.size for leaf in jax.tree.leaves(model))
print(count, "parameters")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The two weight matrices hold 64 x 64 and 64 x 10 numbers, and the biases 64 and 10.
#
# </details>
#
# `jax.tree.leaves` could take the module because since Flax 0.12 **a module is a pytree**, like the nested lists of
# lesson 02. So everything that JAX does with a pytree of parameters, it does with a module: `grad`, `jit`,
# `jax.tree.map`, and `jax.device_put`. **Predict:** what does `jax.grad` return here?


# %% tags=["prediction"]
def mean_loss(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


x, y = data.train[0][:32], data.train[1][:32]
loss, gradients = jax.value_and_grad(mean_loss)(model, x, y)
print(f"loss {loss:.3f}; the gradients are a {type(gradients).__name__}")
print("the gradient of its first kernel:", gradients.hidden.kernel.shape)

# %% tags=["proof"]
# The asserts behind the answers so far.
assert count == 64 * 64 + 64 + 64 * 10 + 10
assert isinstance(gradients, Network)

# %% [markdown]
# <details><summary>Answer</summary>
#
# A `Network` whose arrays are gradients. (A module with batch norm or dropout also holds arrays that are not
# parameters. Lesson 07 shows how to separate them.)
#
# </details>
#
# ## Step 2: the data
#
# JAX takes NumPy arrays, so a batch iterator is a few lines: a shuffled order, cut into pieces. One thing is different
# from PyTorch. A smaller last batch would make `jit` compile a second program (lesson 02), and with eight devices it
# might not divide by eight. So the last batch is **padded** to the full size, and each row has a **weight**: 1 for an
# example, 0 for padding. No example is dropped.


# %%
def batches(data, size, seed=None):
    """Batches (x, y, weights) of `size` rows, shuffled if there is a seed; every example occurs once."""
    x, y = data
    n, padding = len(x), -len(x) % size
    order = np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)
    rows = np.append(order, np.zeros(padding, int))
    weights = np.append(np.ones(n, np.float32), np.zeros(padding, np.float32))
    for start in range(0, n, size):
        part = slice(start, start + size)
        yield x[rows[part]], y[rows[part]], weights[part]


first_epoch = list(batches(data.train, 64, seed=0))
rows, examples = len(first_epoch[-1][2]), int(first_epoch[-1][2].sum())
print(len(first_epoch), "batches; the last has", rows, "rows and", examples, "examples")
assert sum(weights.sum() for _, _, weights in first_epoch) == len(data.train[0])

# %% [markdown]
# A PyTorch `DataLoader` works, too, if you give it a
# [`collate_fn`](https://docs.pytorch.org/docs/stable/data.html#working-with-collate-fn) that returns NumPy arrays and
# adds the weights. Two things go wrong silently.
# [`ToTensor`](https://docs.pytorch.org/vision/stable/generated/torchvision.transforms.ToTensor.html) has already
# divided by 255, so do not divide again. And PyTorch's images are `[B, C, H, W]`, where Flax wants `[B, H, W, C]`.
#
# ## Step 3: the optimizer
#
# An Optax optimizer is a pair of pure functions. `init(params)` makes its state, which for Adam is two running averages
# for each parameter. `update(gradients, state, params)` returns what to add to the parameters, and the new state. A
# schedule is a function from the number of updates to the learning rate. `optax.chain` runs several transformations of
# the gradients one after the other, here clipping and then Adam.
#
# A case that you can check in your head. Adam keeps an average of the gradients and one of their squares. It corrects
# both for having started at 0, so after one gradient g they are exactly g and g². The update is the learning rate times
# the first average, divided by the square root of the second plus epsilon = 1e-8. In the first update this is g / |g|:
# each parameter moves by the learning rate. **Predict:** which two of the following five do not?

# %% tags=["prediction"]
adam = optax.adam(3e-3)
five = jnp.array([0.001, 1000.0, -1.0, 1e-8, 0.0])
update, _ = adam.update(five, adam.init(five))
print("gradient:    ", five)
print("first update:", update)

# %% tags=["proof"]
# The asserts behind the answer.
np.testing.assert_allclose(update, [-3e-3, -3e-3, 3e-3, -1.5e-3, 0], rtol=1e-4)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The last two. Where the gradient is as small as epsilon, the update is half the learning rate, and where the gradient
# is 0, the update is 0.
#
# </details>
#
# ## Step 4: the loss and the step
#
# The loss that we differentiate is the *sum* over the examples, each multiplied by its weight, so padding does not
# count. Beside it, the function returns three sums as metrics: of the losses, of the right answers, and of the weights,
# which is the number of examples.


# %%
def loss_sums(model, batch):
    """The sum of the losses of a batch, and a dictionary of sums."""
    x, y, weights = batch
    logits = model(x)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    right = logits.argmax(-1) == y
    sums = {"loss": (weights * losses).sum(), "right": (weights * right).sum(), "count": weights.sum()}
    return sums["loss"], sums


# %% [markdown]
# The step does what `zero_grad`, `backward` and `step` do together in PyTorch. It changes nothing in place: the old
# model and the old optimizer state are arguments, and the new ones are results. `has_aux=True` says that `loss_sums`
# returns a pair of which only the first element is differentiated.

# %%
from pmapdp.lessons.pictures import lesson_03

lesson_03.step()


def train_step(model, optimizer_state, batch):
    (_, sums), gradients = jax.value_and_grad(loss_sums, has_aux=True)(model, batch)
    gradients = jax.tree.map(lambda g: g / sums["count"], gradients)  # of the mean over the examples
    updates, optimizer_state = adam.update(gradients, optimizer_state, model)
    return optax.apply_updates(model, updates), optimizer_state, sums


# %% [markdown]
# Is it right? Most Flax programs train in another way: `nnx.Optimizer` combines the optimizer with the model, and
# `nnx.jit` compiles a function that changes the model, as PyTorch does. You will meet this form in the documentation of
# Flax. Train five updates in both ways. The parameters must be equal within 1e-5, in float32.

# %%
of_nnx = Network(64, 10, nnx.Rngs(0))
nnx_optimizer = nnx.Optimizer(of_nnx, adam, wrt=nnx.Param)


@nnx.jit
def nnx_step(model, nnx_optimizer, x, y):
    gradients = nnx.grad(mean_loss)(model, x, y)
    nnx_optimizer.update(model, gradients)  # changes the model, as optimizer.step() does in PyTorch


compiled_step = jax.jit(train_step)
ours, optimizer_state = model, adam.init(model)
for batch in first_epoch[:5]:  # full batches, without padding
    ours, optimizer_state, _ = compiled_step(ours, optimizer_state, batch)
    nnx_step(of_nnx, nnx_optimizer, *batch[:2])
for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(of_nnx), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
print("five updates: equal within 1e-5")

# %% [markdown]
# They are equal. This course uses the pure form, because you can map it over devices, compare it, and save what goes in
# and what comes out.
#
# ## The program
#
# Here is all of it in one cell, which runs without the cells above. Three things are new.
#
# * `donate_argnums=(0, 1)` lets XLA write the new model and the new optimizer state into the memory of the old ones.
#   Without it, both are in memory at the same time.
# * JAX returns before a step is computed (lesson 02). If you read the loss in each step, Python waits for it, and
#   cannot prepare the next batch meanwhile. So the loop keeps the sums as arrays on the device, and reads them once an
#   epoch.
# * The evaluation adds up sums over all batches and divides once, so it counts each example exactly once.


# %% tags=["take-home"]
import math

import jax
import numpy as np
import optax
from flax import nnx


class Network(nnx.Module):
    def __init__(self, features, classes, rngs):
        self.hidden = nnx.Linear(features, 64, rngs=rngs)
        self.logits = nnx.Linear(64, classes, rngs=rngs)

    def __call__(self, x):  # [B, D] to [B, C]
        return self.logits(nnx.relu(self.hidden(x)))


def batches(data, size, seed=None):
    """Batches (x, y, weights) of `size` rows, shuffled if there is a seed; every example occurs once."""
    x, y = data
    n, padding = len(x), -len(x) % size
    order = np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)
    rows = np.append(order, np.zeros(padding, int))
    weights = np.append(np.ones(n, np.float32), np.zeros(padding, np.float32))
    for start in range(0, n, size):
        part = slice(start, start + size)
        yield x[rows[part]], y[rows[part]], weights[part]


def loss_sums(model, batch):
    """The sum of the losses of a batch, and a dictionary of sums."""
    x, y, weights = batch
    logits = model(x)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    right = logits.argmax(-1) == y
    sums = {"loss": (weights * losses).sum(), "right": (weights * right).sum(), "count": weights.sum()}
    return sums["loss"], sums


def make_steps(optimizer):
    """The compiled training step and evaluation step."""

    def train_step(model, optimizer_state, batch):
        (_, sums), gradients = jax.value_and_grad(loss_sums, has_aux=True)(model, batch)
        gradients = jax.tree.map(lambda g: g / sums["count"], gradients)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
        return optax.apply_updates(model, updates), optimizer_state, sums

    def eval_step(model, batch):
        return loss_sums(model, batch)[1]

    return jax.jit(train_step, donate_argnums=(0, 1)), jax.jit(eval_step)


def means(history):
    """Mean loss and accuracy over all examples of a list of sums; waits until they are computed."""
    history = jax.device_get(history)
    total = {name: sum(sums[name] for sums in history) for name in ("loss", "right", "count")}
    return total["loss"] / total["count"], total["right"] / total["count"]


def train(model, data, validation, epochs, batch_size=64):
    """The trained model, and a function that gives the mean loss and the accuracy on a data set."""
    schedule = optax.cosine_decay_schedule(1e-2, epochs * math.ceil(len(data[0]) / batch_size))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    train_step, eval_step = make_steps(optimizer)
    optimizer_state = optimizer.init(model)

    def evaluate(trained, examples):
        return means([eval_step(trained, batch) for batch in batches(examples, batch_size)])

    for epoch in range(epochs):
        history = []
        for batch in batches(data, batch_size, seed=epoch):
            model, optimizer_state, sums = train_step(model, optimizer_state, batch)
            history.append(sums)
        train_loss, _ = means(history)
        loss, accuracy = evaluate(model, validation)
        print(f"epoch {epoch + 1:2d}: train loss {train_loss:.3f}, validation {loss:.3f}, accuracy {accuracy:.3f}")
    return model, evaluate


def clouds(n, seed):
    """n points in ten overlapping clouds, and the numbers of their clouds. Put your own arrays in its place."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, n)
    centres = np.random.default_rng(0).normal(size=(10, 64))
    return (centres[labels] + 1.5 * random.normal(size=(n, 64))).astype(np.float32), labels.astype(np.int32)


model, evaluate = train(Network(64, 10, nnx.Rngs(0)), clouds(1200, seed=1), clouds(237, seed=2), epochs=5)
loss, accuracy = evaluate(model, clouds(360, seed=3))
print(f"test accuracy {accuracy:.3f}")
assert accuracy > 0.9

# %% [markdown]
# Now the digits: the same functions, other arrays. **Predict:** what accuracy do 4,810 parameters reach on scans of 8 x
# 8 pixels?

# %% tags=["prediction"]
digit_model, evaluate = train(Network(64, 10, nnx.Rngs(0)), data.train, data.validation, epochs=15)
loss, accuracy = evaluate(digit_model, data.test)
print(f"test accuracy {accuracy:.3f} on {len(data.test[0])} digits that the program never saw")

# %% tags=["proof"]
# The asserts behind the answer.
assert abs(accuracy - 0.969) < 0.01  # lesson 05 asserts the same on eight devices; rounding may turn one or two of 360

# %% [markdown]
# <details><summary>Answer</summary>
#
# More than nineteen of twenty digits are right.
#
# </details>
#
# ## How it fails
#
# `train` donates the model that you give it. **Predict** what happens when you use that model afterwards.

# %% tags=["prediction"]
first = Network(64, 10, nnx.Rngs(0))
trained, _ = train(first, data.train, data.validation, epochs=1)
try:
    outcome = str(np.asarray(first.hidden.kernel[...]))
except Exception as error:
    outcome = f"{type(error).__name__}: {error}"
print(outcome.split("\n")[0])

# %% tags=["proof"]
# The asserts behind the answer.
assert outcome.startswith("RuntimeError: Array has been deleted")

# %% [markdown]
# <details><summary>Answer</summary>
#
# JAX knows that the array was donated, and raises an error. The cure is a habit: give the result the name of the
# argument, as in `model, optimizer_state, sums = train_step(model, optimizer_state, batch)`.
#
# </details>
#
# ## Exercises
#
# Solutions, with reasons: [solutions/03_train_with_flax_and_optax.py](solutions/03_train_with_flax_and_optax.py).
#
# 1. `decayed` (3 minutes): return the pytree `params` with every array multiplied by `factor`, except biases, which are
#    the arrays with one axis. <details><summary>Hint</summary><code>jax.tree.map</code> and
#    <code>array.ndim</code>.</details>
# 2. `make_step` (10 minutes): the training step. Return a function `step(model, optimizer_state, x, y)`. It returns
#    `(model, optimizer_state, loss)` after one update, where the loss is the mean squared error of the model's outputs.
#    It must work with any Flax module that has only parameters, and with any Optax optimizer.
#    <details><summary>Hint</summary>An inner function of <code>model</code> alone returns the loss;
#    <code>jax.value_and_grad</code> of it; then <code>optimizer.update</code> and
#    <code>optax.apply_updates</code>.</details>
# 3. `fixed_loss` (find the mistake): the next cell fits a straight line to points that lie exactly on a line. It
#    raises no error, and the loss falls. But the loss stops at the variance of the targets instead of 0. Find the
#    mistake in `broken_loss`, and write it correctly. <details><summary>Hint</summary>Print the shape of
#    <code>predictions - targets</code>.</details>


# %%
def broken_loss(predictions, targets):  # [B, 1] and [B]
    return ((predictions - targets) ** 2).mean()


points = jnp.linspace(-1, 1, 50)
targets, line = 3 * points, jnp.full((1, 1), -2.0)
for number in range(201):
    loss, slope = jax.value_and_grad(lambda line: broken_loss(points[:, None] @ line, targets))(line)
    if number % 100 == 0:
        print(f"update {number:3d}: loss {loss:.3f}, slope {line[0, 0]:.3f} instead of 3")
    line = line - 0.3 * slope
print(f"variance of the targets: {targets.var():.3f}")

# %%
from pmapdp.lessons.checks import check


def decayed(params, factor):
    """The same pytree with smaller weights and the same biases."""
    ...  # your code: 1 line


def make_step(optimizer):
    """A function (model, optimizer_state, x, y) -> (model, optimizer_state, loss)."""
    ...  # your code: about 8 lines


def fixed_loss(predictions, targets):
    """Mean squared error of predictions `[B, 1]` and targets `[B]`."""
    ...  # your code: 1 line


for exercise in (decayed, make_step, fixed_loss):
    check("03_train_with_flax_and_optax", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - A Flax module is a pytree: `grad`, `jit`, `device_put` and `optax.apply_updates` take it as it is.
# - A training step is a pure function from (model, optimizer state, batch) to (new model, new optimizer state, sums).
# - Pad the last batch, give padding the weight 0, add up sums, and divide once. Then every example counts once.
#
# In pmapdp, this step is in [steps/single.py](../pmapdp/steps/single.py), which takes the sums and the update from
# [steps/shared.py](../pmapdp/steps/shared.py). The batches are in [data/batches.py](../pmapdp/data/batches.py).
# To read on: [Flax NNX basics](https://flax.readthedocs.io/en/latest/nnx_basics.html),
# [Optax's getting started](https://optax.readthedocs.io/en/latest/getting_started.html). Next:
# [04 Map over devices](04_map_over_devices.ipynb).

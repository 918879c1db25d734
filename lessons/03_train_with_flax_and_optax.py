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
# # 03. Train with Flax and Optax
#
# In PyTorch, `optimizer.step()` changes your model in place. In JAX nothing changes in place, so who keeps the model,
# and where does Adam keep its averages? You keep both. They go into the training step as arguments, come out as
# results, and together they're called the **state**. You'll write such a step here, and a program of a hundred lines
# around it. The rest of the course changes that program a few lines at a time: with fifteen new lines, in lessons 04
# and 05, it trains on eight devices.
#
# **You will** write a training step without side effects, with Flax NNX and Optax, and count every example exactly
# once. 21 minutes, 39 with exercises. You need
# [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.lessons.pictures import lesson_03

# %% [markdown]
# ## The last batch is ragged
#
# Lesson 02 has left you something to repair. 5,000 examples in batches of 128 make 39 full batches, and 8 examples are
# left over. If you hand these 8 to the step as they are, `jit` compiles a second program, and if it were 7, you
# couldn't even split them over 8 devices. So we **pad** the last batch to 128 rows, and give each row a **weight**: 1
# for an example, 0 for padding.
#
# Try it with three examples, whose losses are 2, 2 and 5, so their mean is 3. We add one row of padding. The network
# can't tell that this row is padding, and computes a loss for it, too, say 2.
#
# **Predict:** what's the mean over all four rows?

# %% tags=["prediction"]
losses, weights = np.array([2.0, 2, 5, 2]), np.array([1.0, 1, 1, 0])
print("mean of the rows:", losses.mean())
print("sum of weight times loss, over the sum of the weights:", weights @ losses / weights.sum())

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2.75, because the padding pulls it down. You get 3 if you multiply each loss by its weight, add up, and divide by the
# sum of the weights, which is the number of real examples.
#
# </details>
#
# ## First change: every example counts once
#
# You start from [program/02_jax.py](program/02_jax.py), whose network is still written by hand:
#
# include the difference of 02_jax.py and 03_padded.py
#
# `np.resize` fills the last batch with copies of its own rows, and their weight 0 keeps the copies out of every sum.
# `loss_sums` still returns **sums and a count**, not means. If you add up both over all batches of an epoch, and divide
# once, every example counts exactly once. Later you'll add up over devices in the same way.
#
# The other changes prepare for what's coming:
#
# - The step's first argument is now called `state`. So far that's only the model.
# - `place_state` and `place_batch` put arrays on the one device you have. In lesson 04 they'll put them on eight.
# - `donate_argnums=0` hands the old state's memory to the new one. More about that below.
# - `report` fetches all sums of an epoch at once. JAX returns before a step is computed, so Python can prepare the next
#   batch while the device works. If you read the loss in the loop, Python has to wait for it.
#
# If the padding really counts for nothing, the program must print lesson 02's losses and accuracies. On the machine
# that made this page every digit is the same:

# %% tags=["take-home"]
# include program/03_padded.py

# %% [markdown]
# ## The same step in PyTorch and in JAX
#
# Now the libraries. Here's a training step in PyTorch:
#
# ```python
# optimizer.zero_grad()
# loss = cross_entropy(model(inputs), labels)
# loss.backward()           # puts the gradients into the parameters
# optimizer.step()          # changes the parameters, and the averages inside the optimizer
# ```
#
# And here's one in JAX, in which `loss` is a function of the model and the batch:
#
# ```python
# gradients = jax.grad(loss)(model, batch)
# updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
# model = optax.apply_updates(model, updates)
# ```
#
# It's a little more to type, because you pass the state in and out. In return, the step is a pure function, which you
# can compile, run on eight devices, and compare with another version, number by number.

# %%
lesson_03.step()

# %% [markdown]
# ## The model is a pytree
#
# Nobody wants to build a transformer out of dictionaries. A Flax module looks like a PyTorch module: layers are
# attributes, and `__call__` is the forward pass. Only the seed is new, because JAX has no global random state that the
# initial weights could come from.


# %%
class Network(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.output = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, inputs):
        return self.output(nnx.relu(self.hidden(inputs)))


model = Network(nnx.Rngs(0))

# %% [markdown]
# A module is a pytree, like the dictionary that it replaces. JAX finds the arrays inside, so you can hand a whole module
# to `jax.grad`.
#
# **Predict:** what does `jax.grad` return for a module, a list of arrays, a dictionary, or something else?

# %% tags=["prediction"]
gradients = jax.grad(lambda model, inputs: model(inputs).mean())(model, jnp.ones((128, 64)))
print(type(gradients).__name__)
for path, array in jax.tree.leaves_with_path(gradients):
    print(jax.tree_util.keystr(path), array.shape)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Another `Network`, with a gradient where each parameter was. Both have the same structure, so `jax.tree.map` can walk
# through them together. The paths end in `.value`, because Flax wraps each array in an `nnx.Param`. You get the array
# itself with `model.hidden.kernel[...]`.
#
# </details>
#
# This works as long as all arrays of the module are parameters. Batch norm has others, and lesson 07 separates them.
#
# ## The optimizer is two functions
#
# An optimizer has a state, too, which a pure function has to pass in and out. So in Optax it's a pair of functions.
# `init` makes its state, and `update` turns gradients and the old state into updates and the new state. Adam's state is
# two running averages for each parameter, and a count of the updates. Plain SGD has nothing to remember.
#
# **Predict:** the parameter is 1, the gradient is 2, and the learning rate is 0.1. What does `update` return for SGD?

# %% tags=["prediction"]
sgd = optax.sgd(0.1)
update, _ = sgd.update(jnp.array(2.0), sgd.init(jnp.array(1.0)))
print("update:", update, "| new parameter:", optax.apply_updates(jnp.array(1.0), update))

# %% [markdown]
# <details><summary>Answer</summary>
#
# -0.2. An update is what you *add* to the parameter, so it has the minus sign already.
#
# </details>
#
# Always pass the model to `update`, too. SGD and Adam don't need it, but `optax.adamw` does, because it makes all weights
# a bit smaller in each update.
#
# ## Second change: layers and an optimizer from a library
#
# Now put the two into the program. `Network` replaces the dictionary and `forward`, and Adam replaces `w - RATE * g`.
# The state becomes a pair: the model, and the optimizer's state.
#
# include the difference of 03_padded.py and 03_flax.py
#
# The data, the loop and the report stay as they were, because none of them looks inside the state. This is the program
# to take home:

# %% tags=["take-home"]
# include program/03_flax.py

# %% [markdown]
# The losses are new, because the optimizer and the initial weights are. Remember the last line: from now on the program
# will run on more and more devices, and it should always end like this. Only for this comparison it prints the test
# loss after each epoch. To decide when to stop, you'd take a validation set, so that the test set stays unseen.
#
# ## Two states in memory?
#
# A step that returns a new state seems to need twice the memory: the old state is still there while the new one is
# written. That's why the program donates the old one with `donate_argnums=0`, and XLA may write over it.
#
# **Predict:** with Adam, a state is the model and two averages of the same size. How many times the model's size do the
# old and the new state take together, without donation and with it?

# %% tags=["prediction"]
memory = lesson_03.state_memory(train_step, state, place_batch(batch))
lesson_03.states(memory)

# %% tags=["proof"]
# The asserts behind the answers so far.
assert weights @ losses / weights.sum() == 3
assert isinstance(gradients, type(model))
assert update == np.float32(-0.2)
model_kilobytes = sum(array.nbytes for array in jax.tree.leaves(state[0])) / 1000
for (old, new), times in zip(memory.values(), (6, 3), strict=True):
    np.testing.assert_allclose((old + new) / model_kilobytes, times, rtol=0.02)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Six times, because each of the two states is three times as large as the model. With donation three times, because both
# states use the same memory, one after the other.
#
# </details>
#
# ## How it fails: the old state
#
# What's left of the old state after the step? We keep a name for it, and look.

# %%
import traceback

old_state = place_state(init_state())
new_state, _ = train_step(old_state, place_batch(next(batches(*train_data, seed=0))))
try:
    print(old_state[0].hidden.kernel[...])
except RuntimeError as error:
    print(traceback.format_exception_only(error)[0])
assert jax.tree.leaves(old_state)[0].is_deleted()

# %% [markdown]
# The array has been deleted, because its memory belongs to the new state now. A habit protects you: write
# `state, sums = train_step(state, batch)`, and the dead state has no name.
#
# <details><summary>Why most Flax code you'll meet looks different</summary>
#
# Flax has its own `jit` and `grad`, and an optimizer that changes the model in place, as PyTorch's does:
#
# ```python
# optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
#
# @nnx.jit
# def train_step(model, optimizer, batch):
#     gradients = nnx.grad(loss)(model, batch)
#     optimizer.update(model, gradients)
# ```
#
# This computes the same updates, and the check of exercise 2 compares your step with it. The course uses the pure form,
# because you can map it over devices and test it against another version.
#
# </details>
#
# ## Exercises
#
# Solutions, with reasons: [solutions/03_train_with_flax_and_optax.py](solutions/03_train_with_flax_and_optax.py).
#
# 1. `decay_weights` (3 minutes): return the pytree `params` with every array multiplied by `factor`, except biases,
#    which are the arrays with one axis. <details><summary>Hint</summary><code>jax.tree.map</code> and
#    <code>array.ndim</code>.</details>
# 2. `make_step` (10 minutes): the training step. Return a function `step(model, optimizer_state, x, y)`. It returns
#    `(model, optimizer_state, loss)` after one update, and the loss is the mean squared error of the model's outputs.
#    It must work with any Flax module that has only parameters, and with any Optax optimizer.
#    <details><summary>Hint</summary>Write an inner function of <code>model</code> that returns the loss, take
#    <code>jax.value_and_grad</code> of it, then <code>optimizer.update</code> and
#    <code>optax.apply_updates</code>.</details>
# 3. `fixed_loss` (5 minutes, find the mistake): the next cell fits a straight line to points that lie exactly on a
#    line. There's no error, and the loss falls. But it stops at the variance of the targets instead of 0. Find the
#    mistake in `broken_loss`, and write it correctly. <details><summary>Hint</summary>Print the shape of
#    <code>predictions - targets</code>.</details>


# %%
def broken_loss(predictions, targets):  # [B, 1] and [B]
    return ((predictions - targets) ** 2).mean()


def line_loss(line):
    return broken_loss(points[:, None] @ line, targets)


points = jnp.linspace(-1, 1, 50)
targets, line = 3 * points, jnp.full((1, 1), -2.0)
loss_and_gradient = jax.jit(jax.value_and_grad(line_loss))
for number in range(201):
    loss, gradient = loss_and_gradient(line)
    if number % 100 == 0:
        print(f"update {number:3d}: loss {loss:.3f}, slope {line[0, 0]:.3f} instead of 3")
    line = line - 0.3 * gradient
print(f"variance of the targets: {targets.var():.3f}")

# %%
from pmapdp.lessons.checks import check


def decay_weights(params, factor):
    """The same pytree with smaller weights and the same biases."""
    ...  # your code: 1 line


def make_step(optimizer):
    """A function (model, optimizer_state, x, y) -> (model, optimizer_state, loss)."""
    ...  # your code: about 8 lines


def fixed_loss(predictions, targets):
    """Mean squared error of predictions `[B, 1]` and targets `[B]`."""
    ...  # your code: 1 line


for exercise in (decay_weights, make_step, fixed_loss):
    check("03_train_with_flax_and_optax", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - A training step is a pure function: old state and batch in, new state and sums out.
# - A Flax module is a pytree, so `grad`, `jit`, `device_put` and `optax.apply_updates` take it as it is. An optimizer is
#   a function from its old state to its new one.
# - Pad the last batch with weight 0, sum losses and weights over all batches, and divide once. Then every example
#   counts once.
#
# In pmapdp, this step is [steps/single.py](../pmapdp/steps/single.py). The two lines with `jax.grad` and
# `optimizer.update` are in [steps/shared.py](../pmapdp/steps/shared.py), where all four training steps find them, and
# the batches are in [data/batches.py](../pmapdp/data/batches.py). Lesson 14 saves the state with Orbax. To read on:
# [Flax NNX basics](https://flax.readthedocs.io/en/latest/nnx_basics.html) and
# [Optax's getting started](https://optax.readthedocs.io/en/latest/getting_started.html). Next, more devices:
# [04 Map over devices](04_map_over_devices.ipynb).

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
# and where does Adam keep its averages? They go into the training step as arguments and come out as results. In this
# lesson you'll write such a step: first with the weights that you have, so that every example counts exactly once, and
# then with layers from Flax and an optimizer from Optax. You end up with a program of a hundred lines. The rest of the
# course changes it a few lines at a time: with sixteen new lines, in lessons 04 and 05, it trains on eight devices.
#
# **You will** write a training step without side effects, count every example exactly once, use Flax NNX and Optax, and
# see when your network begins to memorize. 23 minutes, 41 with exercises. You need [02 Differentiate, compile,
# vectorize](02_differentiate_compile_vectorize.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.lessons.pictures import lesson_03

# %% [markdown]
# ## The same step, twice
#
# Here's a training step in PyTorch:
#
# ```python
# optimizer.zero_grad()
# loss = cross_entropy(model(inputs), labels)
# loss.backward()           # puts the gradients into the parameters
# optimizer.step()          # changes the parameters, and the averages inside the optimizer
# ```
#
# And here's a step in JAX, as it will look at the end of this lesson. `loss` is a function of the model and the batch:
#
# ```python
# gradients = jax.grad(loss)(model, batch)
# updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
# model = optax.apply_updates(model, updates)
# ```
#
# Whatever an update changes is called the **state**: here the model, and what the optimizer remembers. You pass it in
# and get it back, which is a little more to type. In return, the step is a pure function. You can compile it, run it on
# eight devices, and compare it with another version, number by number.

# %%
lesson_03.step()

# %% [markdown]
# ## The last batch is ragged
#
# Before the libraries come, there's something to repair. 5,000 examples in batches of 128 make 39 full batches, and 8
# examples are left over. You don't want to drop these 8. But a batch of another size makes `jit` compile a second
# program, and later you couldn't split 8 rows over 16 devices at all. That's why we **pad** the last batch to 128 rows,
# and give each row a **weight**: 1 for an example, 0 for padding. These weights have nothing to do with the weights of
# the network.
#
# Let's do three examples in our heads. Their losses are 2, 2 and 5, so the mean is 3. We add one row of padding. The
# network doesn't know that it's padding and computes a loss for it, too, say 2.
#
# **Predict:** what's the mean over all four rows?

# %% tags=["prediction"]
losses, weights = np.array([2.0, 2, 5, 2]), np.array([1.0, 1, 1, 0])
print("mean of the rows:", losses.mean())
print("sum of weight times loss, over the sum of the weights:", weights @ losses / weights.sum())

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2.75, because the padding pulls it down. To get 3, multiply each loss by its weight, sum, and divide by the sum of the
# weights, which is the number of real examples.
#
# </details>
#
# ## First step: every example counts once
#
# You start from [program/02_jax.py](program/02_jax.py). The network is still written by hand, and this is what changes:
#
# include the difference of 02_jax.py and 03_padded.py
#
# `np.resize` fills the last batch with copies of its own rows, and their weight 0 keeps the copies out of every sum.
# `loss_sums` still returns **sums and a count**, not means. If you sum both over all batches of an epoch and divide
# once, every example counts exactly once. Later you'll sum over devices in the same way.
#
# The other changes prepare what's to come:
#
# - The step's first argument is now called `state`. So far that's only the model.
# - `place_state` and `place_batch` put arrays on the one device you have. In lesson 04 they'll put them on eight.
# - `donate_argnums=0` lets XLA write the new state over the old one, so you don't hold two states in memory.
# - `report` fetches all sums of an epoch at once, with `jax.device_get`. JAX returns before a step is computed, so
#   Python prepares the next batch while the device works. If you read the loss in the loop, Python has to wait for it.
#
# If the padding really counts for nothing, the program must print lesson 02's losses and accuracies. On the machine
# that made this page every digit is the same:

# %% tags=["take-home"]
# include program/03_padded.py

# %% [markdown]
# ## The model is a pytree
#
# Nobody wants to write a transformer out of dictionaries, so let's take layers from a library. A Flax module looks like
# a PyTorch module: layers are attributes, and `__call__` is the forward pass. Only the seed is new. JAX has no global
# random state that the initial weights could come from, so you pass a seed in.


# %%
class Network(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.output = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, inputs):
        return self.output(nnx.relu(self.hidden(inputs)))


model = Network(nnx.Rngs(0))

# %% [markdown]
# Your step takes any pytree as a model. Since Flax 0.11 a module is one, like the dictionary that it replaces: JAX
# finds the arrays inside by itself, so you can hand a whole module to `jax.grad`.
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
# An optimizer can't keep anything to itself either. So in Optax it's a pair of functions: `init` makes its state, and
# `update` turns gradients and the old state into updates and the new state. Adam's state is two running averages for
# each parameter, and a count of the updates. Plain SGD has nothing to remember.
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
# Pass the model to `update` as well, even though SGD and Adam don't need it. `optax.adamw` does, because it makes all
# weights a bit smaller in each update. If you always pass it, your step runs with any optimizer.
#
# You can chain optimizers: `optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))` clips the gradients and then
# hands them to Adam. In place of a learning rate you can pass a schedule, a function from the number of the update to
# the rate, such as `optax.cosine_decay_schedule(3e-3, 200)`.
#
# ## Second step: layers and an optimizer from a library
#
# Now put the two into the program. `Network` replaces the dictionary and `forward`, and Adam replaces `w - RATE * g`.
# The state becomes a pair: the model, and the optimizer's state.
#
# include the difference of 03_padded.py and 03_flax.py
#
# The data, the loop and the report stay as they were, because none of them looks inside the state. Take this cell home:
# it needs no other file.

# %% tags=["take-home"]
# include program/03_flax.py

# %% [markdown]
# Adam and Flax's initial weights lead to other losses than plain gradient descent did. Remember the last line: from now
# on the program will run on more and more devices, and it should always end like this.
#
# ## When to stop
#
# Sums and counts let you measure exactly, so let's measure something. The clouds overlap: even if you knew the ten
# centres, you'd classify only 92 % of the training points correctly. We train six times as long, and watch a
# **validation set**, 1,000 more points that we don't train on.
#
# **Predict:** the training loss keeps falling. Does the validation accuracy fall, and does the validation loss?


# %% tags=["prediction"]
def evaluate(state, data):
    """Mean loss and accuracy over all examples of a data set."""
    all_sums = [eval_step(state, place_batch(batch)) for batch in batches(*data, seed=0)]
    totals = {name: float(sum(sums[name] for sums in all_sums)) for name in all_sums[0]}
    return totals["loss"] / totals["count"], totals["correct"] / totals["count"]


validation_data = make_clouds(1_000, seed=3)
state = place_state(init_state())
curve = []
for epoch in range(30):
    for batch in batches(*train_data, seed=epoch):
        state, _ = train_step(state, place_batch(batch))
    curve.append((*evaluate(state, train_data), *evaluate(state, validation_data)))
curve = np.array(curve)  # [epochs, 4]
lesson_03.learning_curve(curve)

# %% tags=["proof"]
# The asserts behind the answers so far.
assert weights @ losses / weights.sum() == 3
assert isinstance(gradients, type(model))
assert update == np.float32(-0.2)
assert 3 < curve[:, 2].argmin() < 12  # the validation loss is lowest early ...
assert curve[-1, 2] > 1.2 * curve[:, 2].min()  # ... and rises from there
assert curve[-1, 1] > 0.95 > curve[-1, 3]
assert abs(curve[-1, 3] - curve[curve[:, 2].argmin(), 3]) < 0.02  # the accuracy hardly changes
centres = np.random.default_rng(0).normal(size=(10, 64))
distances = np.linalg.norm(train_data[0][:, None] - centres, axis=-1)
assert round((distances.argmin(1) == train_data[1]).mean(), 2) == 0.92

# %% [markdown]
# <details><summary>Answer</summary>
#
# The accuracy stays where it is, and the loss turns after a few epochs and *rises*. On the training points the network
# even passes the 92 % that the true centres would give you, so it has begun to memorize them. On new points it's
# correct about as often as before, but when it's wrong, it's more and more sure of itself, and the loss punishes that.
#
# </details>
#
# So stop where the validation loss is lowest, and keep the test set for the end, because a number that you've tuned on
# looks better than it is. Our program prints its test loss after every epoch only so that you can compare the
# program's versions.
#
# ## How it fails: the old state
#
# `train_step` donates its state, so what's left of the old one after the step? We keep a name for it, and look.

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
# The array has been deleted, because its memory went to the new state. A habit protects you: write
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
# It computes the same updates, and the check of exercise 2 compares your step with it. This course uses the pure form,
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

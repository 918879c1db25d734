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
# You know this loop from PyTorch: forward, backward, step, repeat. In lesson 02 you wrote it in bare JAX, with weights
# in a dictionary and plain gradient descent, and nobody wants to write a transformer like that. So in this lesson
# you'll take layers from Flax and an optimizer from Optax, and end up with a program of a hundred lines. The rest of
# the course changes this program a few lines at a time. In lesson 05, sixteen new lines make it train on eight devices.
#
# **You will** write a complete training program with Flax NNX and Optax, count every example exactly once, and read a
# learning curve. 20 minutes, 40 with exercises. You need
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
# ## The same loop, twice
#
# Here's the step in PyTorch:
#
# ```python
# optimizer.zero_grad()
# loss = loss_function(model(inputs), labels)
# loss.backward()           # puts the gradients into the parameters
# optimizer.step()          # changes the parameters
# ```
#
# And here it is in JAX:
#
# ```python
# gradients = jax.grad(loss_function)(model, inputs, labels)
# updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
# model = optax.apply_updates(model, updates)
# ```
#
# In PyTorch the model, its gradients and the optimizer change in place. In JAX nothing changes, so whatever the next
# step needs comes in as an argument and goes out as a result: the model and the optimizer's state. That's a little more
# typing, but it makes the rest of this course easy, because a function without side effects is easy to handle. You can
# compile it, run it on eight devices, save what goes in and out, and compare it with another version, number by number.

# %%
lesson_03.step()

# %% [markdown]
# ## The model is a pytree
#
# A Flax module looks like a PyTorch module: layers are attributes, and `__call__` is the forward pass. Only the seed is
# new. You pass it in, because JAX has no global random state that the initial weights could come from.


# %%
class Network(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.output = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, inputs):
        return self.output(nnx.relu(self.hidden(inputs)))


model = Network(nnx.Rngs(0))

# %% [markdown]
# Since Flax 0.11 a module is also a **pytree**, like the dictionary of lesson 02. JAX finds the arrays in it by itself,
# so you can hand a whole module to `jax.grad`.
#
# **Predict:** what does `jax.grad` return here, a list of arrays, a dictionary, or something else?

# %% tags=["prediction"]
gradients = jax.grad(lambda model, inputs: model(inputs).mean())(model, jnp.ones((128, 64)))
print(type(gradients).__name__)
for path, array in jax.tree.leaves_with_path(gradients):
    print(jax.tree_util.keystr(path), array.shape)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Another `Network`, with a gradient where each parameter was. Because the two are nested alike, `jax.tree.map` can
# combine them. (Flax wraps each array in an `nnx.Param`, so the paths end in `.value`. You get the array itself by
# `model.hidden.kernel[...]`.)
#
# </details>
#
# A module with batch norm or dropout also holds arrays that aren't parameters. Lesson 07 separates them.
#
# ## The optimizer is two functions
#
# An Optax optimizer is a pair of functions: `init` makes its state, and `update` turns gradients into updates. Adam's
# state is two running averages for each parameter, and a count of the updates. Plain SGD's state is empty.
#
# **Predict:** the gradient is 2 and the learning rate is 0.1. What does `update` return for SGD?

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
# `update` also gets the model, because some optimizers look at it: `optax.adamw` makes all weights a bit smaller in each
# update, so it has to know them. SGD and Adam work without the model. But pass it always, and your step runs with any
# optimizer.
#
# You can also chain several such pairs: `optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))` clips the
# gradients and then hands them to Adam. Here `schedule` is a function that gets the number of the update and returns
# the learning rate, such as `optax.cosine_decay_schedule(3e-3, 200)`.
#
# ## The last batch is ragged
#
# 5,000 examples in batches of 128 make 39 full batches, and 8 examples are left over. A batch of a different size would
# make `jit` compile a second program (lesson 02), and you can't split 8 rows over 16 devices at all. But you don't want
# to drop the 8 either. So we **pad** the last batch to 128 rows and give each row a **weight**: 1 for an example, 0 for
# padding. (It has nothing to do with the weights of the network.)
#
# Here's a case that fits in your head. Three examples have the losses 2, 2 and 5, so their mean is 3. A row of padding
# gets a loss, too, here 2.
#
# **Predict:** what's the mean over all four rows?

# %% tags=["prediction"]
losses, weights = np.array([2.0, 2, 5, 2]), np.array([1.0, 1, 1, 0])
print("mean of the rows:", losses.mean())
print("sum of weight times loss, over the sum of the weights:", weights @ losses / weights.sum())

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2.75, because the padding pulls it down. To get 3, multiply by the weights, add up, and divide by the sum of the
# weights, which is the number of real examples.
#
# </details>
#
# That's why the program's `loss_sums` returns **sums and a count**, not means. You can add up sums over all the batches
# of an epoch and divide once, and then every example has counted exactly once. In lesson 04 you'll add them up over
# devices in the same way.
#
# ## The program
#
# You start from lesson 02's program, [program/02_jax.py](program/02_jax.py). This is what changes:
#
# include the difference of 02_jax.py and 03_flax.py
#
# Four things in it may surprise you:
#
# - `np.resize` fills the last batch up with copies of its own rows. Their weight 0 keeps them out of every sum.
# - `place_state` and `place_batch` do next to nothing yet. They put arrays on the one device you have, and in lesson 04
#   they'll put them on eight.
# - `donate_argnums=0` lets XLA write the new state over the old one, so you don't hold two states in memory.
# - The loop doesn't look at `sums` until the epoch is over, because JAX returns before a step is computed: while the
#   device works, Python already prepares the next batch. If you printed the loss in every step, Python would have to
#   wait for it.
#
# Take this cell home: it needs no other file.

# %% tags=["take-home"]
# include program/03_flax.py

# %% [markdown]
# ## The learning curve
#
# The clouds overlap, so even if you knew the ten centres, you'd get only 92 % of the points right. Still, the loss on
# the training data has fallen in every epoch. Let's train six times as long, and watch a third data set that we don't
# train on, the **validation set**. Here it is, with a function that evaluates the network on any data set:


# %%
def evaluate(state, data):
    """Mean loss and accuracy over all examples of a data set."""
    all_sums = [eval_step(state, place_batch(batch)) for batch in batches(*data, seed=0)]
    totals = {name: float(sum(sums[name] for sums in all_sums)) for name in all_sums[0]}
    return totals["loss"] / totals["count"], totals["correct"] / totals["count"]


validation_data = make_clouds(1_000, seed=3)

# %% [markdown]
# **Predict:** does the validation loss keep falling, too?

# %% tags=["prediction"]
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
assert isinstance(gradients, type(model))
assert update == np.float32(-0.2)
assert 3 < curve[:, 2].argmin() < 12  # the validation loss is lowest early ...
assert curve[-1, 2] > 1.2 * curve[:, 2].min()  # ... and rises from there
assert curve[-1, 1] > 0.95 > curve[-1, 3]

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. After a few epochs it turns and rises, while the training loss goes on falling. The training accuracy even passes
# 92 %, and that's all you'd get on these 5,000 points if you knew the ten centres. So the network has begun to learn its
# points by heart. On new points it's right about as often as before. But when it's wrong, it's more and more sure of itself, and the loss punishes that.
#
# </details>
#
# So stop where the validation loss is lowest. Make all your choices (when to stop, how large the network is, which
# learning rate) with the validation set, and **touch the test set once, at the end.** A number that you've tuned on
# looks better than it is. (Our program prints its test loss after every epoch, but we make no choice with it. It's
# there so that you can compare the program's versions.)
#
# ## How it fails
#
# `train_step` donates its state.
#
# **Predict:** what do you get if you use the old state after the step?

# %% tags=["prediction"]
old_state = place_state(init_state())
new_state, _ = train_step(old_state, place_batch(next(batches(*train_data, seed=0))))
try:
    print(old_state[0].hidden.kernel[...])
except RuntimeError as error:
    print(f"RuntimeError: {error}")

# %% tags=["proof"]
# The asserts behind the answer.
assert jax.tree.leaves(old_state)[0].is_deleted()

# %% [markdown]
# <details><summary>Answer</summary>
#
# An error, because the array has been deleted: its memory went to the new state. The cure is a habit: give the result
# the name of the argument, as in `state, sums = train_step(state, batch)`. Then you can't reach the old state by
# mistake.
#
# </details>
#
# <details><summary>Most Flax code you'll meet looks different</summary>
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
# It computes the same updates. (The check of exercise 2 compares your step with it.) This course uses the pure form,
# because you can map it over devices, test it against another version, and save its state.
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
# - A Flax module is a pytree, so `grad`, `jit`, `device_put` and `optax.apply_updates` take it as it is.
# - A training step is a pure function: old state and batch in, new state and sums out.
# - Pad the last batch with weight 0, add up sums and counts, and divide once. Then every example counts once.
#
# In pmapdp, this step is [steps/single.py](../pmapdp/steps/single.py), and the batches are in
# [data/batches.py](../pmapdp/data/batches.py). Lesson 14 saves the state with Orbax. To read on:
# [Flax NNX basics](https://flax.readthedocs.io/en/latest/nnx_basics.html) and
# [Optax's getting started](https://optax.readthedocs.io/en/latest/getting_started.html). Next, more devices:
# [04 Map over devices](04_map_over_devices.ipynb).

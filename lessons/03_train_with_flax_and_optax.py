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
# In PyTorch, `optimizer.step()` changes your model in place. JAX's arrays never change, so who keeps the model, and
# where does Adam keep its averages? You keep both. They go into the training step as arguments and come out as results,
# and together they're called the **state**. That's the first change to your program. The second one is smaller: all
# batches get the same size, because eight devices can't share a batch of seven. After that, fifteen new lines in
# lessons 04 and 05 are enough to train on eight devices.
#
# **You will** write a training step without side effects, with Flax NNX and Optax, and count every example exactly
# once. 21 minutes, 41 with exercises. You need [02 Differentiate, compile,
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
# ## The same step in PyTorch and in JAX
#
# You start from [program/02_jax.py](program/02_jax.py), with layers and updates written by hand. Flax has layers, and
# Optax has optimizers. How do they fit into a step that changes nothing? In PyTorch, a training step looks like this:
#
# ```python
# optimizer.zero_grad()
# loss = cross_entropy(model(inputs), labels)
# loss.backward()           # puts the gradients into the parameters
# optimizer.step()          # changes the parameters, and the averages inside the optimizer
# ```
#
# In JAX, `loss` is a function of the model and the batch, and the step becomes:
#
# ```python
# gradients = jax.grad(loss)(model, batch)
# updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
# model = optax.apply_updates(model, updates)
# ```
#
# You pass the state in and out. In return, the step is a pure function, so you can compile it, run it on eight devices,
# and compare it with another version, number by number.

# %%
lesson_03.step()

# %% [markdown]
# ## The model is a pytree
#
# A Flax module looks like a PyTorch module: layers are attributes, and `__call__` is the forward pass. You pass it a seed,
# because JAX has no global random state that the initial weights could come from. A list of layers must be an `nnx.List`,
# and the page [From PyTorch to Flax](../docs/pytorch.md) has the other differences.


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
# **Predict:** you give `jax.grad` a module. What comes back: a list of arrays, a dictionary, or something else?

# %% tags=["prediction"]
gradients = jax.grad(lambda model, inputs: model(inputs).mean())(model, jnp.ones((128, 64)))
print(type(gradients).__name__)
for path, array in jax.tree.leaves_with_path(gradients):
    print(jax.tree_util.keystr(path), array.shape)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Another `Network`, with a gradient where each parameter was. The paths end in `.value`, because Flax wraps each array in
# an `nnx.Param`, and `model.hidden.kernel[...]` is the array itself.
#
# </details>
#
# This works as long as all arrays of the module are parameters. Dropout also holds a random key, which `jax.grad`
# refuses with an error. Batch norm also holds running averages. `jax.grad` treats them as parameters and doesn't tell
# you. Their gradient is 0, so with this step they'd stay at their initial values. Lesson 07 separates the two.
#
# ## The optimizer is two functions
#
# Adam needs a memory: two running averages for each parameter, of the gradient and of its square, and a count of the
# updates. A pure function can't keep them, so an Optax optimizer is two functions. `init` makes the optimizer's state.
# `update` takes the gradients and the old state, and returns updates and the new state. Plain SGD keeps no memory, so
# it's easy to check by hand.
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
# Always pass the model to `update`, too. SGD and Adam don't need it, but `optax.adamw` does, because it shrinks all
# weights a bit in each update.
#
# ## The program, first step: Flax and Optax
#
# 1. `update_state` (10 minutes): lesson 02's `update_model`, with an optimizer. `state` is now the pair `(model,
#    optimizer_state)`. `loss_sums(model, batch)` and `sums["count"]` are as before. Make one update with the gradient of
#    the *mean* loss, leave the old state as it is, and return the new one and the sums. Any Flax module that has only
#    parameters must work, and any Optax optimizer. <details><summary>Hint</summary>Five lines: take the state apart, call
#    <code>jax.grad</code> with <code>has_aux=True</code>, divide the gradients by the count, call
#    <code>optimizer.update</code> and <code>optax.apply_updates</code>.</details>

# %%
from pmapdp.lessons.checks import check


def update_state(loss_sums, optimizer, state, batch):
    """One update: the new state `(model, optimizer_state)`, and the sums of this batch."""
    ...  # your code: 5 lines


update_verdict = check("03_train_with_flax_and_optax", "update_state", update_state)

# %% [markdown]
# In the program, your `update_state` becomes `train_step`, `Network` replaces the dictionary and `forward`, and Adam
# replaces `w - RATE * g`.
#
# <details><summary>Solution, and all that Flax and Optax change</summary>
#
# include the difference of 02_jax.py and 03_ragged.py
#
# </details>
#
# ## The last batch is ragged
#
# One thing still stands between this step and eight devices. 5,000 examples in batches of 128 make 39 full batches, and
# 8 examples are left over. For these 8, `jit` compiles a second program, as you saw in lesson 02. And if it were 7, you
# couldn't cut the batch into eight equal parts. So we **pad** the last batch to 128 rows with some of its own examples,
# and give each row a **weight**: 1 for an example, 0 for padding.
#
# The network can't tell that a row is padding, so it computes a loss for that row, too. Say you have seven examples in
# batches of four rows, and the last row repeats the 8:
#
# | batch | losses | weights |
# | --- | --- | --- |
# | first | 1, 0, 1, 0 | 1, 1, 1, 1 |
# | second | 8, 2, 2, 8 | 1, 1, 1, 0 |
#
# The mean over the seven examples is 14 / 7 = 2.
#
# **Predict:** which of these is 2?
#
# - A: the mean over all eight rows.
# - B: the mean of the two batches' means, in which padding doesn't count.
# - C: the sum of weight times loss over all rows, divided by the sum of the weights.

# %% tags=["prediction"]
losses = np.array([[1.0, 0, 1, 0], [8, 2, 2, 8]])  # two batches
weights = np.array([[1.0, 1, 1, 1], [1, 1, 1, 0]])
totals = (weights * losses).sum(1)
counts = weights.sum(1)
print("A:", losses.mean(), "| B:", (totals / counts).mean(), "| C:", totals.sum() / counts.sum())
lesson_03.shares(losses, weights)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only C. A counts the 8 twice. In B, an example in the small batch counts more than one in the full batch, as the heights
# of the bars show. So return **sums and a count** from each batch, not means. Add up both over all batches, and
# divide once at the end. Later you'll add up over devices in the same way.
#
# </details>
#
# ## The program, second step: batches of one size
#
# 2. `pad_rows` (5 minutes): `rows` are the numbers of a batch's examples, between 1 and `B` of them. Return two arrays
#    of length `B`. The first begins with `rows` and is filled up with any row numbers that exist. The second holds the
#    weights. Use floats: with two boolean arrays, `weights @ correct` is one True or False, not a count.
#    <details><summary>Hint</summary>Compare <code>np.arange(B)</code> with the number of examples.
#    <code>np.resize</code> repeats an array until it's long enough.</details>


# %%
def pad_rows(rows, B):
    """`B` row numbers that begin with `rows`, and the weights: 1 for an example, 0 for padding."""
    ...  # your code: 2 or 3 lines


verdict = check("03_train_with_flax_and_optax", "pad_rows", pad_rows)

# %% [markdown]
# In the program, `batches` pads its rows as `pad_rows` does, and `loss_sums` multiplies the losses, now from Optax, by
# the weights. Padding doesn't move the model, because its loss is multiplied by 0, so its gradient is 0. That needs
# finite losses, and layers that don't mix rows.
#
# <details><summary>Solution, and what prepares for eight devices</summary>
#
# include the difference of 03_ragged.py and 03_flax.py
#
# </details>
#
# `place_state` and `place_batch` put arrays on the one device you have, and in lesson 04 they'll put them on eight.
# JAX returns before a step is finished, so Python can prepare the next batch while the device works. If you read the
# loss in the loop, Python has to wait for it. So `report` fetches all sums at once, at the end of the epoch.
#
# The next cell is the program to take home, and you can skip its code. It prints what
# [03_ragged.py](program/03_ragged.py) prints without padding, up to rounding. Remember the last line: from now on the
# program will run on more and more devices, and it should always end like this, up to the last digit or two. The cell below
# it trains for one epoch, with your `update_state` if the check has accepted it. You should see the test loss of epoch
# 0 again.

# %% tags=["take-home"]
# include program/03_flax.py

# %%
if update_verdict.solved:

    def your_step(state, batch):
        return update_state(loss_sums, optimizer, state, batch)

    train_step = jax.jit(your_step, donate_argnums=0)
state = place_state(init_state())
for batch in batches(*train_data, seed=0):
    state, _ = train_step(state, place_batch(batch))
test_sums = [eval_step(state, place_batch(batch)) for batch in batches(*test_data, seed=0)]
print("test:", report(test_sums))
print("with", "your" if update_verdict.solved else "the program's own", "train_step")

# %% [markdown]
# ## How it fails: the old state
#
# Without donation, the old state and the new one are in memory at the same time. With `donate_argnums=0`, the new one
# takes the old one's place. So what's left of the old state after the step? Hold on to it, and try to read it.

# %%
import traceback

old_state = place_state(init_state())
new_state, _ = train_step(old_state, place_batch(next(batches(*train_data, seed=0))))
try:
    print(old_state[0].hidden.kernel[...])
except RuntimeError as error:
    print(traceback.format_exception_only(error)[0])

# %% [markdown]
# The array has been deleted, because its memory belongs to the new state now. If you always write
# `state, sums = train_step(state, batch)`, you can't touch the old state by accident.
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
# This computes the same updates, and the check of `update_state` compares your step with it.
#
# </details>
#
# ## Find the mistake
#
# A `Network` with one output returns predictions of shape `[B, 1]`, while your targets are `[B]`. The next cell fits a
# straight line to points that lie exactly on a line. There's no error, and the loss falls. But it stops at the variance
# of the targets instead of 0.


# %%
def broken_loss(predictions, targets):  # [B, 1] and [B]
    return ((predictions - targets) ** 2).mean()


def line_loss(line):
    return broken_loss(points[:, None] @ line, targets)


points = jnp.linspace(-1, 1, 50)
targets = 3 * points
line = jnp.full((1, 1), -2.0)
loss_and_gradient = jax.jit(jax.value_and_grad(line_loss))
for number in range(201):
    loss, gradient = loss_and_gradient(line)
    if number % 100 == 0:
        print(f"update {number:3d}: loss {loss:.3f}, slope {line[0, 0]:.3f} instead of 3")
    line = line - 0.3 * gradient
print(f"variance of the targets: {targets.var():.3f}")

# %% [markdown]
# 3. `fixed_loss` (5 minutes): find the mistake in `broken_loss`, and write it correctly.
#    <details><summary>Hint</summary>Print the shape of <code>predictions - targets</code>.</details>
#
# [Solutions of all three, with reasons](solutions/03_train_with_flax_and_optax.py)


# %%
def fixed_loss(predictions, targets):
    """Mean squared error of predictions `[B, 1]` and targets `[B]`."""
    ...  # your code: 1 line


verdict = check("03_train_with_flax_and_optax", "fixed_loss", fixed_loss)

# %% tags=["proof"]
# The asserts behind the answers. You can skip this cell.
assert (losses.mean(), (totals / counts).mean(), totals.sum() / counts.sum()) == (2.75, 2.25, 2)
assert type(gradients).__name__ == "Network"
assert update == np.float32(-0.2)
assert (jnp.ones(3, bool) @ jnp.ones(3, bool)).dtype == bool
assert jax.tree.leaves(old_state)[0].is_deleted()

# %% [markdown]
# ## Take away
#
# - A training step is a pure function: old state and batch in, new state and sums out.
# - A Flax module is a pytree, so `grad`, `jit`, `device_put` and `optax.apply_updates` take it as it is. An optimizer is
#   two functions, and you keep its state.
# - Pad the last batch with weight 0, sum losses and weights over all batches, and divide once, so that every example
#   counts once.
#
# In pmapdp, `place_state`, `place_batch`, `train_step` and `eval_step` are in
# [steps/single.py](../pmapdp/steps/single.py). The lines with `jax.grad` and `optimizer.update` are in
# [steps/shared.py](../pmapdp/steps/shared.py), where all four training steps find them. To read on: [Flax NNX
# basics](https://flax.readthedocs.io/en/latest/nnx_basics.html) and [Optax's getting
# started](https://optax.readthedocs.io/en/latest/getting_started.html). Next, more devices: [04 Map over
# devices](04_map_over_devices.ipynb).

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
# After this lesson you can read and write a training program in JAX. You write it twice: first in the style of most
# Flax programs, then with a pure function as the training step, which is the form that later runs on many devices.
#
# About 30 minutes · before: [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb) · next:
# [04 Map over devices](04_map_over_devices.ipynb)
#
# Flax has the layers, and Optax has the optimizers. The four steps are the same as in PyTorch.
#
# | step | PyTorch | JAX |
# | --- | --- | --- |
# | model | `nn.Module` | `nnx.Module` of [Flax](https://flax.readthedocs.io) |
# | data | `DataLoader` | anything that gives NumPy arrays |
# | optimizer and schedule | `optim.Adam`, `lr_scheduler` | `optax.adam(schedule)` of [Optax](https://optax.readthedocs.io) |
# | train and validate | `loss.backward()`, `optimizer.step()` | one compiled function |

# %%
import inspect
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp import devices
from pmapdp.data.batches import Batches
from pmapdp.models.mlp import MLP
from pmapdp.registry import load_data
from pmapdp.state import Task, create_state
from pmapdp.steps import make_steps, single
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_03

drawing.setup()
DATASET = "digits"  # "mnist" for the larger one

# %% [markdown]
# ## Step 1: the model
#
# A Flax NNX module looks like one of PyTorch: layers are attributes, and `__call__` is the forward pass. The initial
# weights come from a seed that you pass in, because JAX has no global random state.
#
# **Predict:** how many parameters does a network with 784 inputs, 32 hidden units and 10 classes have?


# %%
class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(784, 32, rngs=rngs)
        self.logits = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, images):  # uint8 [B, 28, 28, 1] to [B, 10]
        x = images.reshape(len(images), -1).astype(jnp.float32) / 255
        return self.logits(nnx.relu(self.hidden(x)))


model = Network(nnx.Rngs(0))
count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
print(count, "parameters")
assert count == 784 * 32 + 32 + 32 * 10 + 10

# %% [markdown]
# The two weight matrices hold 784 x 32 and 32 x 10 numbers, and the biases 32 and 10.
#
# ## Step 2: the data
#
# A training loop needs the examples in a shuffled order. `Batches` of this project computes the order from the seed,
# the epoch and the step alone, so a run that was stopped can resume in the middle of an epoch (lesson 14). It drops no
# example: the last batch of an epoch is padded to the full size. Every batch has `weights`, which are 1 for an example
# and 0 for padding.

# %%
data = load_data(DATASET)
batches = Batches(data.train, 64, shuffle_seed=0)
last = list(batches.epoch(0))[-1]
print(f"{batches.steps} batches; the last: images {last.inputs.shape}, {last.examples} of them with weight 1")
assert sum(batch.examples for batch in batches.epoch(0)) == len(data.train.labels)

# %% [markdown]
# The last batch holds 29 examples and 35 rows of padding. JAX takes any NumPy array, so a PyTorch `DataLoader` works
# too: pass `images.numpy()`, transposed from `[B, C, H, W]` to `[B, H, W, C]`, which is the order of Flax.
#
# ## Step 3: optimizer and schedule
#
# An Optax optimizer is a pair of pure functions. `init(params)` makes its state, which for Adam is two running averages
# for each parameter. `update(gradients, state, params)` returns what to add to the parameters, and the new state. A
# schedule is a function from the number of updates to the learning rate.
#
# A case that you can check in your head: Adam divides the average of the gradients by their typical size plus epsilon =
# 1e-8. In the first update, both are the size of the first gradient, so a parameter moves by the learning rate. The
# next cell has five gradients. **Predict:** which two do not move their parameter by the learning rate?

# %%
epochs = 10
schedule = optax.cosine_decay_schedule(3e-3, epochs * batches.steps)
optimizer = optax.adam(schedule)

gradient = jnp.array([0.001, 1000.0, -1.0, 1e-8, 0.0])
update, _ = optimizer.update(gradient, optimizer.init(gradient))
print("gradient:    ", gradient)
print("first update:", update)
np.testing.assert_allclose(update, [-3e-3, -3e-3, 3e-3, -1.5e-3, 0], rtol=1e-4)

# %% [markdown]
# The last two. Where the gradient is as small as epsilon, the update is half the learning rate, and where the gradient
# is 0, the update is 0.
#
# ## Step 4a: train, as most Flax programs do
#
# `nnx.Optimizer` combines an Optax optimizer with a model. `nnx.jit` compiles a function that changes the model, and
# `nnx.value_and_grad` differentiates with respect to the model. You will meet this form in the documentation of Flax
# and in most programs. Here it runs for five updates.

# %%
nnx_optimizer = nnx.Optimizer(model, optax.adam(schedule), wrt=nnx.Param)


@nnx.jit
def nnx_step(model, nnx_optimizer, images, labels):
    def mean_loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    loss, gradients = nnx.value_and_grad(mean_loss)(model)
    nnx_optimizer.update(model, gradients)  # changes the model, as optimizer.step() does in PyTorch
    return loss


first_five = [batch for batch, _ in zip(batches.epoch(0), range(5), strict=False)]
for batch in first_five:
    print(f"loss {nnx_step(model, nnx_optimizer, batch.inputs, batch.labels):.3f}")

# %% [markdown]
# The loss falls. A compiled program cannot really change a Python object: `nnx.jit` passes the model's arrays in as
# arguments, takes the new arrays back as results, and writes them into your object.
#
# In this course you will do that yourself, which takes two more lines. The reason is that you need the arrays, and not
# the object, to place them on devices, to map a step over devices, and to write a checkpoint.
#
# `nnx.split` takes a module apart. Its **structure** (Flax calls it `graphdef`) has no arrays and never changes. Its
# **state** has nothing but arrays. `nnx.merge` puts the two together again, inside the compiled function.

# %%
structure, state = nnx.split(Network(nnx.Rngs(0)))
params = nnx.to_pure_dict(state)
print(jax.tree.map(jnp.shape, params))
lesson_03.split_and_merge()

# %% [markdown]
# The parameters are plain nested dictionaries now, a pytree like the one of lesson 02.
#
# ## Step 4b: train, with a pure function
#
# First the loss. It differs from the one above: it is the *sum* over the examples, and each example is multiplied by
# its weight, so padding does not count. Beside the loss, the function returns three sums as metrics: of the losses, of
# the right answers, and of the examples. The module exists only inside this function.


# %%
def make_loss_sums(structure):
    def loss_sums(params, batch):
        logits = nnx.merge(structure, params)(batch.inputs)  # <- new
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        correct = logits.argmax(-1) == batch.labels
        sums = {"loss": losses, "correct": correct, "count": jnp.ones_like(losses)}
        sums = {name: (batch.weights * values).sum() for name, values in sums.items()}
        return sums["loss"], sums

    return loss_sums


# %% [markdown]
# Then the step. One function does what `zero_grad`, `backward` and `step` do together in PyTorch. It mutates nothing:
# the old state is an argument, and the new state is a result. `has_aux=True` says that `loss_sums` returns a pair, and
# that only its first element is differentiated. `make_train_step` gets the structure and the optimizer as arguments, so
# the compiled function does not depend on a global variable that could change later (lesson 02).
#
# `donate_argnums=0` lets XLA write the new state into the memory of the old one. Without it, both are in memory at the
# same time.


# %%
def make_train_step(structure, optimizer):
    loss_sums = make_loss_sums(structure)

    def train_step(state, batch):
        params, optimizer_state = state
        (_, sums), gradients = jax.value_and_grad(loss_sums, has_aux=True)(params, batch)
        gradients = jax.tree.map(lambda g: g / sums["count"], gradients)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), sums  # <- new: the new state

    return train_step


train_step = jax.jit(make_train_step(structure, optimizer), donate_argnums=0)
eval_step = jax.jit(make_loss_sums(structure))

# %% [markdown]
# Does this step train in the same way as the first one? Make five updates from the same seed on the same batches. The
# parameters must be those of the module above, within 1e-5 in float32.

# %%
state = jax.device_put((params, optimizer.init(params)))
for batch in first_five:
    state, sums = train_step(state, batch)
pairs = zip(jax.tree.leaves(state[0]), jax.tree.leaves(nnx.state(model, nnx.Param)), strict=True)
for ours, of_nnx in pairs:
    np.testing.assert_allclose(ours, of_nnx, rtol=0, atol=1e-5)
print(f"after five updates: loss {sums['loss'] / sums['count']:.3f}, parameters equal within 1e-5")

# %% [markdown]
# The parameters are equal. Now train for ten epochs, and validate on the test set every third epoch. **Predict:** what
# accuracy do 25,450 parameters reach on small scans of digits?

# %%
test_batch = Batches(data.test, len(data.test.labels)).take(np.arange(len(data.test.labels)))
params = nnx.to_pure_dict(nnx.state(Network(nnx.Rngs(0)), nnx.Param))
state = jax.device_put((params, optimizer.init(params)))
started, first_params = time.perf_counter(), state[0]
for epoch in range(epochs):
    for batch in batches.epoch(epoch):
        state, sums = train_step(state, batch)
    if epoch % 3 == 0:
        _, test = eval_step(state[0], test_batch)
        last, accuracy = sums["loss"] / sums["count"], test["correct"] / test["count"]
        print(f"epoch {epoch + 1:2d}: loss of the last batch {last:.3f}, test accuracy {accuracy:.3f}")
print(f"{time.perf_counter() - started:.1f} s on {devices.describe(jax.devices()[:1])}")
assert test["count"] == len(data.test.labels)
assert accuracy > 0.9

# %% [markdown]
# The accuracy is over 90 % after ten epochs.
#
# ## How it fails
#
# The first update donated the first state, so its memory has been used again. **Predict** what happens when you read
# it.

# %%
try:
    print(np.asarray(first_params["hidden"]["kernel"]))
except RuntimeError as error:
    print(type(error).__name__ + ":", str(error).split("\n")[0])
else:
    raise AssertionError("a donated array was accepted")

# %% [markdown]
# JAX knows that the array was donated, and raises an error. The cure is a habit: write
# `state, sums = train_step(state, batch)`, which replaces the old state at once.
#
# ## The same in pmapdp
#
# In pmapdp, a `Task` holds what is trained, here the network `MLP` and the optimizer.
# `make_steps("single", task, devices)` returns five functions: two place the state and a batch on the devices, two
# train and evaluate, and one fetches the state back. Give your own step the same network, and compare the parameters
# after five updates, again within 1e-5.

# %%
task = Task(MLP, optimizer)
steps = make_steps("single", task, jax.devices()[:1])
theirs = steps.place_state(create_state(task))

my_step = jax.jit(make_train_step(task.model_structure(), optimizer))  # <- changed: another network
mine = jax.device_put((create_state(task).params, create_state(task).optimizer_state))
for batch in first_five:
    theirs, _ = steps.train_step(theirs, steps.place_batch(batch))
    mine, _ = my_step(mine, batch)
for a, b in zip(jax.tree.leaves(mine[0]), jax.tree.leaves(steps.fetch(theirs).params), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
print("five updates: equal within 1e-5")

# %% [markdown]
# Your step and the step of pmapdp make the same updates.
#
# ## Exercises
#
# Solutions, with reasons: [solutions/03_train_with_flax_and_optax.py](solutions/03_train_with_flax_and_optax.py).
#
# 1. `decayed` (3 minutes): return the pytree `params` with every array multiplied by `factor`, except biases, which are
#    the arrays with one axis. <details><summary>Hint</summary><code>jax.tree.map</code> and
#    <code>array.ndim</code>.</details>
# 2. `make_step` (10 minutes): the training step. Return a pure function `step(params, optimizer_state, x, y)`. It
#    returns `(params, optimizer_state, loss)` after one update, where the loss is the mean squared error of the
#    module's outputs. It must work with any module and any Optax optimizer. <details><summary>Hint</summary>An inner
#    function of <code>params</code> alone returns the loss; <code>jax.value_and_grad</code> of it; then
#    <code>optimizer.update</code> and <code>optax.apply_updates</code>.</details>
# 3. `mended_loss` (find the mistake): the next cell fits a straight line to points that lie exactly on a line. It
#    raises no error, and the loss falls. But the loss stops at the variance of the targets instead of 0. Find the
#    mistake in `broken_loss`, and write it correctly. <details><summary>Hint</summary>Print the shape of
#    <code>predictions - targets</code>.</details>


# %%
def broken_loss(predictions, targets):  # [B, 1] and [B]
    return ((predictions - targets) ** 2).mean()


points = jnp.linspace(-1, 1, 50)
targets, line = 3 * points, jnp.full((1, 1), -2.0)
for update in range(201):
    loss, gradient = jax.value_and_grad(lambda line: broken_loss(points[:, None] @ line, targets))(line)
    if update % 100 == 0:
        print(f"update {update:3d}: loss {loss:.3f}, slope {line[0, 0]:.3f} instead of 3")
    line = line - 0.3 * gradient
print(f"variance of the targets: {targets.var():.3f}")


# %%
def decayed(params, factor):
    """The same pytree with smaller weights and the same biases."""
    ...  # your code: 1 line


def make_step(structure, optimizer):
    """A function (params, optimizer_state, x, y) -> (params, optimizer_state, loss)."""
    ...  # your code: about 8 lines


def mended_loss(predictions, targets):
    """Mean squared error of predictions `[B, 1]` and targets `[B]`."""
    ...  # your code: 1 line


for exercise in (decayed, make_step, mended_loss):
    check("03_train_with_flax_and_optax", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - A training step is a pure function from (state, batch) to (new state, metrics). Such a function can be compiled,
#   mapped over devices, and tested.
# - `nnx.jit` hides the split and the merge. Do them yourself when you need the arrays, for example to place them.
# - Keep sums and counts instead of means, and donate the old state.
#
# This step is in [steps/single.py](../src/pmapdp/steps/single.py), printed below. Its parts are in
# [steps/shared.py](../src/pmapdp/steps/shared.py): `gradient_sums` is the first half of your `train_step`, and `update` the
# second. To read on: [Flax NNX basics](https://flax.readthedocs.io/en/latest/nnx_basics.html),
# [Optax's introduction](https://optax.readthedocs.io/en/latest/getting_started.html). Next:
# [04 Map over devices](04_map_over_devices.ipynb).

# %%
print(inspect.getsource(single.make_steps))

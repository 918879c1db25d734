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
# After this lesson you can write the four steps of training that you know from PyTorch in JAX: model, data, optimizer and
# schedule, train and validate.
#
# About 25 minutes · before: [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb) · next:
# [04 Map over devices](04_map_over_devices.ipynb)
#
# | step | PyTorch | here |
# | --- | --- | --- |
# | model | `nn.Module` | `nnx.Module` of Flax |
# | data | `DataLoader` | any NumPy arrays; `Batches` |
# | optimizer and schedule | `optim.Adam`, `lr_scheduler` | `optax.adam(schedule)` |
# | train and validate | `loss.backward()`, `optimizer.step()` | one compiled function: state in, state out |

# %%
import inspect
import time

import drawing
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from checks import check
from flax import nnx

from pmapdp import devices
from pmapdp.data.batches import Batches
from pmapdp.loss import metric_sums
from pmapdp.models.mlp import MLP
from pmapdp.registry import MODELS, load_data
from pmapdp.state import Task, create_state
from pmapdp.steps import make_steps, single

devices.simulate(8)
drawing.setup()
DATASET = "digits"  # "mnist" for the larger one

# %% [markdown]
# ## Step 1: the model
#
# A Flax NNX module looks like PyTorch's: layers are attributes, `__call__` is the forward pass. Random numbers come from
# an explicit seed, never from a hidden state. **Predict:** how many parameters have 784-32-10?


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
# JAX' transformations want functions of arrays, not objects that change. So we take the module apart: `nnx.split` gives its
# **structure** (no arrays, fixed) and its **state** (arrays, changes); `nnx.merge` puts them together inside the
# compiled function. As plain dictionaries the parameters are a pytree like the one of lesson 02.

# %%
structure, state = nnx.split(model)
params = nnx.to_pure_dict(state)
print(jax.tree.map(jnp.shape, params))


def predict(params, images):
    return nnx.merge(structure, params)(images)


axes = drawing.canvas(17, 4.2)
drawing.box(axes, 0, 1.6, "nnx.Module", width=3)
drawing.box(axes, 5.2, 0.2, "structure, fixed", width=3.8)
drawing.box(axes, 5.2, 3.0, "params, a pytree", device=0, width=3.8)
drawing.arrow(axes, (3, 1.8), (5.2, 0.7))
drawing.arrow(axes, (3, 2.2), (5.2, 3.3), device=0)
axes.text(3.3, 2.0, "split")
drawing.box(axes, 11.4, 1.5, "compiled step:\nmerge, grad, update", width=5.4, height=1.1)
drawing.arrow(axes, (9, 0.7), (11.4, 1.8))
drawing.arrow(axes, (9, 3.3), (11.4, 2.4), device=0)
drawing.arrow(axes, (14, 2.6), (9.0, 3.7), device=0)
axes.text(11.6, 3.6, "new params")
plt.show()

# %% [markdown]
# ## Step 2: the data
#
# A training loop needs arrays in a shuffled order. `Batches` gives the order as a pure function of (seed, epoch,
# step), so a run can stop and go on (lesson 10). The last batch is padded to the full shape, and `weights` says which
# rows count.

# %%
data = load_data(DATASET)
batches = Batches(data.train, 64, shuffle_seed=0)
last = list(batches.epoch(0))[-1]
print(f"{batches.steps} batches an epoch; the last one: images {last.inputs.shape}, {int(last.weights.sum())} of them count")
assert sum(batch.examples for batch in batches.epoch(0)) == len(data.train.labels)

# %% [markdown]
# A PyTorch `DataLoader` works too: JAX takes any NumPy array. This cell is optional; it needs torchvision.

# %%
try:
    from torch.utils.data import DataLoader
    from torchvision.transforms.functional import pil_to_tensor, to_pil_image
except ImportError:
    print('torchvision is not installed, which is fine; pip install "pmapdp[torchvision]" brings it')
else:
    pairs = [(pil_to_tensor(to_pil_image(image)), label) for image, label in zip(*data.test, strict=True)]
    images, classes = next(iter(DataLoader(pairs, batch_size=64, shuffle=True)))
    print(predict(params, images.numpy().transpose(0, 2, 3, 1)).shape, "logits from a DataLoader's batch")

# %% [markdown]
# ## Step 3: optimizer and schedule
#
# An Optax optimizer is two pure functions. `init(params)` makes its state, for Adam two averages for each parameter.
# `update(gradients, state, params)` returns what to add. A schedule is a function of the number of updates. **The smallest
# case:** Adam's very first step has the length of the learning rate, whatever the gradient. Check it:

# %%
epochs = 10
schedule = optax.cosine_decay_schedule(3e-3, epochs * batches.steps)
optimizer = optax.adam(schedule)
for gradient in (0.001, 1000.0):
    update, _ = optimizer.update(jnp.asarray(gradient), optimizer.init(jnp.asarray(0.0)))
    print(f"gradient {gradient:8.3f}: first step {update:.6f}")
    np.testing.assert_allclose(update, -3e-3, rtol=1e-4)

# %% [markdown]
# ## Step 4: train and validate
#
# One function does what `zero_grad`, `backward` and `step` do together. All that changes goes in and comes out.
# `donate_argnums` lets XLA write the new state where the old one was, which saves a copy. The loss is summed over the
# examples and divided by their number, so that padding does not count.


# %%
def train_step(state, batch):  # <- new: the whole update is one pure function
    params, optimizer_state = state

    def summed_loss(params):
        sums = metric_sums(predict(params, batch.inputs), batch)
        return sums.loss, sums

    (_, sums), gradients = jax.value_and_grad(summed_loss, has_aux=True)(params)
    gradients = jax.tree.map(lambda g: g / sums.count, gradients)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return (optax.apply_updates(params, updates), optimizer_state), sums


compiled = jax.jit(train_step, donate_argnums=0)  # <- new


@jax.jit
def eval_step(params, batch):
    return metric_sums(predict(params, batch.inputs), batch)


# %%
state = (params, optimizer.init(params))
test_batch = Batches(data.test, len(data.test.labels)).take(np.arange(len(data.test.labels)))
started = time.perf_counter()
for epoch in range(epochs):
    for batch in batches.epoch(epoch):
        state, sums = compiled(state, batch)
    if epoch % 3 == 0:
        test = eval_step(state[0], test_batch)
        print(f"epoch {epoch + 1:2d}: last batch {sums.loss / sums.count:.3f}, test {test.correct / test.count:.3f}")
print(f"{time.perf_counter() - started:.1f} s on {devices.describe(jax.devices()[:1])}, compiling included")
assert test.count == len(data.test.labels)
assert test.correct / test.count > 0.9

# %% [markdown]
# **A failure on purpose.** The first `state` was donated: its memory holds something else now. JAX knows, and refuses:

# %%
try:
    print(np.asarray(params["hidden"]["kernel"]))
except RuntimeError as error:
    print(type(error).__name__ + ":", str(error).split("\n")[0])
else:
    raise AssertionError("a donated array was accepted")

# %% [markdown]
# ## The same in pmapdp
#
# `Task` holds the model's name and the optimizer, `make_steps("single", ...)` returns five functions, of which one is the
# `train_step`. Is it the same step? Give our function pmapdp's network and compare five updates, in float32.

# %%
task = Task(MLP, optimizer)
steps = make_steps("single", task, jax.devices()[:1])
structure = nnx.split(nnx.eval_shape(lambda: MODELS["mlp"](rngs=nnx.Rngs(0))))[0]  # <- changed: another network
theirs = steps.place_state(create_state(task))
mine = jax.device_put((create_state(task).params, optimizer.init(create_state(task).params)))
again = jax.jit(train_step)
for batch, _ in zip(batches.epoch(0), range(5), strict=False):
    theirs, _ = steps.train_step(theirs, steps.place_batch(batch))
    mine, _ = again(mine, batch)
for a, b in zip(jax.tree.leaves(mine[0]), jax.tree.leaves(steps.fetch(theirs).params), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
print("five updates: equal within 1e-6")

# %% [markdown]
# ## Exercises
#
# **1. `momentum_step`**: gradient descent with momentum by hand, for one array: velocity = 0.9 * velocity + gradient, then
# parameter = parameter - rate * velocity. Return (parameter, velocity).
# <details><summary>Hint</summary>Pure: change neither argument in place.</details>
#
# **2. `warmup`**: a schedule: rises from 0 to `peak` in `steps` updates in a straight line, then stays. It must work under
# `jit`. <details><summary>Hint</summary><code>jnp.minimum</code>, or <code>optax.linear_schedule</code>.</details>
#
# **3. `decayed`**: `params`, a pytree, with every array multiplied by `factor`, except biases: arrays with one axis.
# <details><summary>Hint</summary><code>jax.tree.map</code> and <code>array.ndim</code>.</details>


# %%
def momentum_step(parameter, velocity, gradient, rate):
    """(new parameter, new velocity)"""
    ...  # your code: 2 lines


def warmup(peak, steps):
    """A function of the number of updates made."""
    ...  # your code: 1 line


def decayed(params, factor):
    """The same pytree with smaller weights and the same biases."""
    ...  # your code: 1 line


for exercise in (momentum_step, warmup, decayed):
    check("03_train_with_flax_and_optax", exercise.__name__, exercise)

# %% [markdown]
# Solutions: [solutions/03_train_with_flax_and_optax.py](solutions/03_train_with_flax_and_optax.py)
#
# ## Take away
#
# - A training step is a pure function: (state, batch) to (state, metrics). That is what can be compiled, and mapped.
# - Split a module into structure and arrays; merge inside the compiled function.
# - Keep sums and counts. Donate the old state.
#
# This step lives in [steps/single.py](../pmapdp/steps/single.py), its parts in [steps/body.py](../pmapdp/steps/shared.py):

# %%
print(inspect.getsource(single.make_steps))

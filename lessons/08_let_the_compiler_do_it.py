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
# # 08. Let the compiler do it
#
# After this lesson you can write the data-parallel trainer with `jit` and `NamedSharding`: make a mesh, place arrays on it,
# draw where they lie, and read from the compiled program what the compiler added.
#
# About 25 minutes · before: [07 Batch norm, dropout and metrics](07_batch_norm_dropout_and_metrics.ipynb) · next:
# [09 Three ways side by side](09_three_ways_side_by_side.ipynb)
#
# With pmap you wrote the program of *one device*, and said where the devices talk. Now the other way round: write the program
# of *the whole batch*, as for a single device, and only say where its arrays lie. The compiler splits the work and finds out
# where devices must talk.

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
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices
from pmapdp.collectives import collectives
from pmapdp.data.batches import Batches
from pmapdp.models.cnn import CNN
from pmapdp.registry import load_data
from pmapdp.state import Task, create_state
from pmapdp.steps import jit as jit_steps
from pmapdp.steps import make_steps

drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
chosen = devices.choose(8)
print(devices.describe(chosen))

# %% [markdown]
# ## Mesh, PartitionSpec, NamedSharding
#
# A **mesh** is an array of devices whose axes have names. A **PartitionSpec** says for each axis of an array along which mesh
# axis it is cut, or not at all. The two together are a **NamedSharding**. **Predict** the shape of device 3's part of
# a `[16, 4]` array under each of the three specs.

# %%
mesh = Mesh(np.array(chosen), ("data",))
x = np.arange(64, dtype=np.float32).reshape(16, 4)
for spec in (PartitionSpec("data"), PartitionSpec(), PartitionSpec(None, None)):
    placed = jax.device_put(x, NamedSharding(mesh, spec))
    part = placed.addressable_shards[3]
    print(f"{spec!s:24s} global {placed.shape}, on {part.device}: {part.data.shape}, rows {part.index[0]}")
assert placed.shape == (16, 4)
np.testing.assert_array_equal(jax.device_put(x, NamedSharding(mesh, PartitionSpec("data"))), x)

# %% [markdown]
# The array keeps its global shape `[16, 4]`: there is no device axis. That is the difference to pmap. JAX can draw it;
# `P("data")` cuts the rows, and with a mesh of two axes the columns can be cut too:

# %%
split, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
jax.debug.visualize_array_sharding(jax.device_put(x, split), use_color=False)
grid = Mesh(np.array(chosen).reshape(4, 2), ("data", "model"))

axes = drawing.canvas(18, 5.4)
specs = ((mesh, PartitionSpec("data")), (mesh, PartitionSpec()), (grid, PartitionSpec("data", "model")))
for column, (where, spec) in enumerate(specs):
    placed = jax.device_put(x, NamedSharding(where, spec))
    left = 6.4 * column
    axes.text(left + 2.2, 0.3, str(spec).replace("PartitionSpec", "P"), ha="center")
    for shard in placed.addressable_shards if spec else placed.addressable_shards[:1]:
        rows, columns = shard.index
        top, first = rows.start or 0, columns.start or 0
        height, width = shard.data.shape
        name = f"device {shard.device.id}" if spec else "all,\non each device"
        drawing.box(
            axes, left + 1.1 * first, 0.7 + 0.28 * top, name, device=shard.device.id if spec else None,
            width=1.1 * width - 0.08, height=0.28 * height - 0.06,
        )
plt.show()

# %% [markdown]
# ## A function of sharded arrays
#
# Now a computation on a split array. **Predict:** who must talk for each of these three?

# %%
placed = jax.device_put(x, split)
for name, function in (
    ("2 * x + 1", lambda x: 2 * x + 1),  # each row alone
    ("x.sum()", lambda x: x.sum()),  # all rows together
    ("x.sum(1)", lambda x: x.sum(1)),  # each row alone
):
    compiled = jax.jit(function).lower(placed).compile()
    found = collectives(compiled.as_text()) or "nobody"
    print(f"{name:10s} result {jax.jit(function)(placed).sharding.spec!s:22s} talks: {found}")
assert float(jax.jit(jnp.sum)(placed)) == x.sum() == 63 * 64 / 2

# %% [markdown]
# ## The training step
#
# A linear classifier, so that the step fits on the screen. It is the step of a single device: no axis name, no `psum`, the loss
# is a mean over the whole batch. Only the arguments are placed, and `out_shardings` says how the result is to lie.

# %%
data = load_data(DATASET)
images = data.train.inputs[:512].reshape(512, -1).astype(np.float32) / 255
labels = data.train.labels[:512]


def step(W, images, labels):  # [784, 10], [B, 784], [B]
    def loss(W):
        return optax.softmax_cross_entropy_with_integer_labels(images @ W, labels).mean()

    return W - 0.1 * jax.grad(loss)(W)


W = jax.device_put(np.zeros((784, 10), np.float32), whole)  # <- new: replicated
batch = jax.device_put((images, labels), split)  # <- new: split along the examples
compiled = jax.jit(step, out_shardings=whole)  # <- new: the result whole on every device
program = compiled.lower(W, *batch).compile()
print("in the source:", "psum" in inspect.getsource(step), "| in the compiled program:", collectives(program.as_text()))
assert [(each.kind, each.count) for each in collectives(program.as_text())] == [("all-reduce", 1)]

# %% [markdown]
# No collective in the source, one all-reduce in the program. The compiler saw that each device has the gradient of its own
# rows only, that the result must be whole everywhere, and that a sum over the split axis gets it there. The same function on
# one device, unchanged, is the proof:

# %%
alone = jax.jit(step)(np.zeros((784, 10), np.float32), images, labels)
together = compiled(W, *batch)
difference = float(np.abs(np.asarray(alone) - np.asarray(together)).max())
print(f"largest difference {difference:.1e}; each device holds {together.addressable_shards[5].data.shape}")
assert difference < 1e-6

# %% [markdown]
# The way of the data: what you place, and what the compiler adds.

# %%
axes = drawing.canvas(18, 5.4)
for x_text, heading in ((0.9, "W, whole"), (4.7, "batch, split"), (8.9, "its gradient"), (13.2, "by the compiler")):
    axes.text(x_text, 0.3, heading, ha="center")
for d in range(4):
    y = 0.8 + 1.1 * d
    drawing.box(axes, 0, y, "W", device=d, width=1.8)
    drawing.box(axes, 3.2, y, f"rows {64 * d} ...", device=d, width=3.0)
    drawing.box(axes, 8, y, f"g{d}", device=d)
    drawing.arrow(axes, (6.2, y + 0.4), (8, y + 0.4), device=d)
    drawing.arrow(axes, (9.8, y + 0.4), (12, 2.8), device=d)
    drawing.arrow(axes, (14.6, 2.8), (16, y + 0.4), device=d)
    drawing.box(axes, 16, y, "new W", device=d)
drawing.box(axes, 12, 2.3, "all-reduce", width=2.6, height=1.0)
plt.show()

# %% [markdown]
# **A failure on purpose.** A batch of 500 does not divide by 8. `device_put` refuses. pmapdp pads the batch with rows of
# weight 0 (lesson 07) before it places it.

# %%
try:
    jax.device_put(images[:500], split)
except ValueError as error:
    print("ValueError:", str(error)[:120], "...")
else:
    raise AssertionError("500 rows were split over 8 devices")

# %% [markdown]
# The other classic is silent: forget to place the batch, and it lies whole on one device. The result is right, and seven
# devices do nothing for you. **Look at shardings before you measure.**

# %%
forgotten = jnp.asarray(images)
print(forgotten.sharding, "| placed:", batch[0].sharding.spec)
assert len(forgotten.sharding.device_set) == 1
assert len(batch[0].sharding.device_set) == 8

# %% [markdown]
# ## The real trainer
#
# pmapdp's `jit` strategy is this, with the real network and optimizer. Five steps of the CNN, equal to the single device
# within 1e-5 in float32 (gradient descent; sums in another order differ by rounding):

# %%
results, program_of = {}, {}
for strategy, count in (("single", 1), ("jit", 8)):
    task = Task(CNN, optax.sgd(0.05))
    steps = make_steps(strategy, task, chosen[:count])
    batches = Batches(data.train, 100, devices=count, shuffle_seed=0)  # 100 does not divide by 8 either
    state = steps.place_state(create_state(task))
    for host, _ in zip(batches.epoch(0), range(5), strict=False):
        started = time.perf_counter()
        state, sums = jax.block_until_ready(steps.train_step(state, steps.place_batch(host)))
        seconds = time.perf_counter() - started
    results[strategy] = steps.fetch(state).params
    program_of[strategy] = collectives(steps.train_step.lower(state, steps.place_batch(host)).compile().as_text())
    print(f"{strategy:6s} on {devices.describe(chosen[:count])}: {1000 * seconds:.1f} ms for the last step")
for a, b in zip(*map(jax.tree.leaves, results.values()), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
print(program_of)
assert [each.kind for each in program_of["jit"]] == ["all-reduce"]

# %% [markdown]
# No speed-up: the eight devices share the cores that one device had alone, and there are eight copies of the update.
#
# ## Exercises
#
# **1. `place`**: put `batch`, a dictionary of arrays with the examples along axis 0, split over the axis "data" of `mesh`.
# <details><summary>Hint</summary><code>jax.device_put</code> takes a whole pytree.</details>
#
# **2. `rows_on`**: the rows of a one-axis array of numbers that lie on `device`, as a NumPy array.
# <details><summary>Hint</summary><code>addressable_shards</code>; each has a device and data.</details>
#
# **3. `mean_image`**: the mean over axis 0 of a split array `[B, D]`, whole on every device of its mesh. Do not gather it.
# <details><summary>Hint</summary><code>x.sharding.mesh</code>, and jit with out_shardings.</details>


# %%
def place(batch, mesh):
    """The batch, split along the examples."""
    ...  # your code: 1 line


def rows_on(x, device):
    """Device's part of x."""
    ...  # your code: 1 or 2 lines


def mean_image(x):
    """[D], replicated."""
    ...  # your code: 2 lines


for exercise in (place, rows_on, mean_image):
    check("08_let_the_compiler_do_it", exercise.__name__, exercise)

# %% [markdown]
# Solutions: [solutions/08_let_the_compiler_do_it.py](solutions/08_let_the_compiler_do_it.py)
#
# ## Take away
#
# - Write the program of the whole batch; say where arrays lie; the compiler adds the collectives.
# - A sharded array has its global shape. `x.sharding` tells the truth, and so does the compiled program.
# - Shardings change where things are computed, never what.
#
# In pmapdp this is [steps/jit.py](../pmapdp/steps/jit.py); where it places things:

# %%
source = inspect.getsource(jit_steps.make_steps)
print(source[: source.index("    def train_step")])

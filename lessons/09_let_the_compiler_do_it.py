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
# # 09. Let the compiler do it
#
# After this lesson you can write a data-parallel training step with `jit` and `NamedSharding`: build a mesh, place
# arrays on it, say where the results go, and read from the compiled program what the compiler added. You can also
# tell when the compiler did *not* split the work.
#
# About 30 minutes · you need [04 Map over devices](04_map_over_devices.ipynb) and [05 Average
# gradients](05_average_gradients.ipynb) · previous: [08 Keep dropout and metrics
# exact](08_keep_dropout_and_metrics_exact.ipynb) · next: [10 Three ways side by
# side](10_three_ways_side_by_side.ipynb)
#
# With `pmap` you wrote the program of *one device*, and called `psum` where the devices had to communicate. With
# `jit` you write the program of *the global batch*, exactly as for a single device, and say on which devices its
# arrays are placed. The compiler splits the work and inserts the communication.

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices  # simulates devices (lesson 00) and describes them

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"
chosen = jax.devices()
print(devices.describe(chosen), "| jax", jax.__version__)

# %% [markdown]
# ## Mesh, PartitionSpec, NamedSharding
#
# Lesson 04 introduced them. A **mesh** is an array of devices whose axes have names. A **PartitionSpec** names, for
# each axis of an array, the mesh axis over which it is split; an axis without a name is not split. A mesh and a spec
# together are a **NamedSharding**, which says which slice of an array each device holds.
#
# **Predict:** which shape does device 3's shard of a `[16, 4]` array have under each of the two specs?

# %% tags=["prediction"]
mesh = Mesh(np.array(chosen), ("data",))
split = NamedSharding(mesh, PartitionSpec("data"))
replicated = NamedSharding(mesh, PartitionSpec())
x = np.arange(64, dtype=np.float32).reshape(16, 4)
for sharding in (split, replicated):
    placed = jax.device_put(x, sharding)
    shard = placed.addressable_shards[3]
    print(f"{sharding.spec!s:23s} the array {placed.shape}, its shard on {shard.device} {shard.data.shape}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# If the rows are split, device 3 holds two of them, `[2, 4]`; if the array is replicated, it holds all 16. The array
# itself keeps the shape `[16, 4]` in both cases: unlike with `pmap`, there is no device axis.
#
# </details>
#
# The pictures show which rows and columns each device holds. On the right the mesh has two axes, and the columns are
# split too.

# %%
from pmapdp.lessons.pictures import lesson_09

grid = Mesh(np.array(chosen).reshape(4, 2), ("data", "model"))
both = NamedSharding(grid, PartitionSpec("data", "model"))
lesson_09.shards([jax.device_put(x, sharding) for sharding in (split, replicated, both)])

# %% [markdown]
# ## Computing with sharded arrays
#
# Any function of `jax.numpy` takes a sharded array. Where a result needs rows of several devices, the compiler
# inserts a collective. **Predict:** which of these three functions need a collective?

# %% tags=["prediction"]
from pmapdp.compare.collectives import collectives  # lists the collectives in the text of a compiled program

placed = jax.device_put(x, split)
needed = {}
for name, function in (
    ("2 * x + 1", lambda x: 2 * x + 1),
    ("x.sum(1)", lambda x: x.sum(1)),
    ("x.sum(0)", lambda x: x.sum(0)),
):
    compiled = jax.jit(function).lower(placed).compile()
    needed[name] = [each.kind for each in collectives(compiled.as_text())]
    print(f"{name:10s} result {compiled.output_shardings.spec!s:22s} collectives: {needed[name]}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the sum over the split axis needs one. The other two compute each row separately, so their results stay split
# by rows.
#
# </details>
#
# ## The training step
#
# A linear classifier keeps the step short. It is the step of a single device: it has no axis name and no `psum`, and
# its loss is the mean over the global batch. Only the three marked lines make it data-parallel. **Predict:** which
# collectives does the compiler insert, and how many bytes do they carry?

# %% tags=["prediction"]
import inspect

import optax

from pmapdp.registry import load_data  # the digits: images of 28 x 28 pixels, and labels

data = load_data("digits")  # "mnist" for the larger one
images = data.train.inputs[:512].reshape(512, -1).astype(np.float32) / 255
labels = data.train.labels[:512]


def step(W, images, labels):  # [784, 10], [B, 784], [B]
    def loss(W):
        return optax.softmax_cross_entropy_with_integer_labels(images @ W, labels).mean()

    return W - 0.1 * jax.grad(loss)(W)


W = jax.device_put(np.zeros((784, 10), np.float32), replicated)  # <- new: a copy on every device
batch = jax.device_put((images, labels), split)  # <- new: an eighth of the examples on each device
compiled_step = jax.jit(step, out_shardings=replicated)  # <- new: the result is to be on every device
program = compiled_step.lower(W, *batch).compile()
found = collectives(program.as_text())
print("psum in the source:", "psum" in inspect.getsource(step), "| in the program:", *found)

# %% tags=["proof"]
# The asserts behind the answers so far.
assert jax.device_put(x, split).addressable_shards[3].data.shape == (2, 4)
assert jax.device_put(x, replicated).addressable_shards[3].data.shape == (16, 4)
assert needed == {"2 * x + 1": [], "x.sum(1)": [], "x.sum(0)": ["all-reduce"]}
np.testing.assert_array_equal(jax.jit(lambda x: x.sum(0))(placed), x.sum(0))
assert [(each.kind, each.count, each.bytes) for each in found] == [("all-reduce", 1, 4 * 784 * 10)]

# %% [markdown]
# <details><summary>Answer</summary>
#
# The source has no collective, and the compiled program has one all-reduce, of the size of the gradient. Here is why.
# The gradient is a sum over the examples, which are split. So each device computes the sum over its own examples. The
# result must be replicated, so these sums must be added over all devices.
#
# </details>

# %%
lesson_09.training_step()

# %% [markdown]
# Now compare it with the same function on one device. The tolerance is 1e-6 in float32, because the examples are
# added up in another order.

# %%
alone = jax.jit(step)(np.zeros((784, 10), np.float32), images, labels)
together = compiled_step(W, *batch)
difference = float(np.abs(np.asarray(alone) - np.asarray(together)).max())
print(f"largest difference {difference:.1e}; device 5 holds W as {together.addressable_shards[5].data.shape}")
assert difference < 1e-6

# %% [markdown]
# ## Two mistakes with the batch
#
# `jit` runs where its arguments are *committed* (lesson 04). `device_put` with a device or a sharding commits an
# array. A NumPy array, or one that `jnp.asarray` made, is not committed, and `jit` chooses where to place it.
# **Predict** what happens when you forget to place the batch, and when you place it on device 0. The cell also prints
# the work of each device, in floating-point operations, as the compiler counts them.

# %% tags=["prediction"]
first_device = jax.device_put((images, labels), chosen[0])
ways = {"split": batch, "NumPy": (images, labels), "jnp.asarray": (jnp.asarray(images), jnp.asarray(labels))}
work = {}
for name, arguments in ways.items():
    program = compiled_step.lower(W, *arguments).compile()
    work[name] = program.cost_analysis()["flops"]
    found, spec = [each.kind for each in collectives(program.as_text())], program.input_shardings[0][1].spec
    print(f"{name:12s} batch becomes {spec!s:11s} {work[name] / 1e6:4.1f} MFLOP a device, {found}")
try:
    outcome = str(compiled_step(W, *first_device))
except Exception as error:
    outcome = f"{type(error).__name__}: {error}"
print("device 0    ", " ".join(outcome.split())[:100], "...")

# %% tags=["proof"]
# The asserts behind the answer.
assert outcome.startswith("ValueError: Received incompatible devices")
assert work["NumPy"] == work["jnp.asarray"]
assert 7.5 < work["NumPy"] / work["split"] < 8.5

# %% [markdown]
# <details><summary>Answer</summary>
#
# The batch on device 0 is an error, which you cannot overlook. The uncommitted batch is worse: `jit` *replicates* it.
# The result is right, but each of the eight devices computes all 512 examples, and no all-reduce is needed. Eight
# devices then take as long as one. So look at the shardings or count the collectives once, in every program.
#
# </details>
#
# ## Two ways to avoid it
#
# Either place every batch with `device_put`, as above. Or name `in_shardings`, which tell `jit` where each argument
# must be placed: a host array is then split on its way in, and an array that is committed to another placement raises
# an error. `out_shardings` alone say nothing about the arguments, as you have just seen.

# %%
import re

strict_step = jax.jit(step, in_shardings=(replicated, split, split), out_shardings=replicated)
program = strict_step.lower(W, images, labels).compile()  # NumPy arrays
print("NumPy        ", program.input_shardings[0][1].spec, [each.kind for each in collectives(program.as_text())])
assert program.cost_analysis()["flops"] == work["split"]
np.testing.assert_array_equal(strict_step(W, images, labels), together)
refused = {
    "device 0": first_device,
    "replicated": jax.device_put((images, labels), replicated),
    "500 rows": (images[:500], labels[:500]),
}
for name, wrong in refused.items():
    try:
        strict_step(W, *wrong)
        raise AssertionError(f"{name} was accepted")
    except ValueError as error:
        message = re.sub(r"NamedSharding\(.*?memory_kind=\w+\)", "...", " ".join(str(error).split()))
        print(f"{name:12s} ValueError:", message[:94], "...")

# %% [markdown]
# The NumPy batch is split, and the step has its all-reduce again. The last line shows one more rule: 500 rows do not
# divide by 8. pmapdp pads such a batch with examples of weight 0 (lesson 08) before it places it.
#
# In short: `in_shardings` and `device_put` say where arguments are placed, and `out_shardings` says where results are
# placed. Without `out_shardings` the compiler chooses. Place large batches with `device_put` before the step needs
# them: it returns at once, so the copy overlaps with the previous step.
#
# ## The step in pmapdp
#
# [steps/jit.py](../pmapdp/steps/jit.py) is this step for any model, loss and optimizer. Its `place_batch` places
# each batch with `device_put`, and its step names `out_shardings` alone: give it placed batches only.

# %%
from pmapdp.steps import jit as jit_steps  # make_strategy: the five functions of the strategy "jit"

print(inspect.getsource(jit_steps.make_strategy))

# %% [markdown]
# There is no axis and no `pmean`. Is it right, and is the work really split? The next cell makes five updates of an
# MLP, and compares them with a single device (plain gradient descent, float32, tolerance 1e-5). The batches have 100
# examples, so on 8 devices they are padded to 104. **Predict:** how many operations does each of the eight devices
# compute, compared with the single one?

# %% tags=["prediction"]
from pmapdp.data.batches import Batches  # cuts epochs into batches, padded with examples of weight 0
from pmapdp.models.mlp import MLP
from pmapdp.state import Task, build, create_state  # a built model with its optimizer; parameters and optimizer state
from pmapdp.steps import STRATEGIES  # name -> function that makes the five functions of a strategy

results, flops = {}, {}
for strategy, count in (("single", 1), ("jit", 8)):
    task = Task(build(MLP), optax.sgd(0.05))
    steps = STRATEGIES[strategy](task, chosen[:count])
    batches = Batches(data.train, 100, devices=count, shuffle_seed=0)
    state = steps.place_state(create_state(task))
    for host, _ in zip(batches.epoch(0), range(5), strict=False):
        placed = steps.place_batch(host)
        flops[strategy] = steps.train_step.lower(state, placed).compile().cost_analysis()["flops"]
        state, sums = steps.train_step(state, placed)
    results[strategy] = steps.fetch(state).params
    print(f"{strategy:6s} on {devices.describe(chosen[:count])}: {flops[strategy] / 1e6:.0f} MFLOP on each device")

# %% tags=["proof"]
# The asserts behind the answer.
for a, b in zip(*map(jax.tree.leaves, results.values()), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
assert 6 < flops["single"] / flops["jit"] < 8

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both agree, and each of the eight computes about an eighth. (Not quite: there is padding, and every device updates
# all parameters.) Simulated devices share the cores of one machine, so their times tell nothing about real ones. Work
# and bytes do.
#
# </details>
#
# ## Take it home
#
# The next cell needs nothing from above and nothing from pmapdp: a Flax model, Optax with clipping, donated state,
# batches placed ahead, metrics that are read once an epoch, and an evaluation that counts every example. Copy it into
# an empty notebook, and put your own model and data in.

# %% tags=["take-home"]
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

BATCH, EPOCHS = 256, 4  # the batch divides by the number of devices
mesh = Mesh(np.array(jax.devices()), ("data",))
replicated = NamedSharding(mesh, PartitionSpec())
split = NamedSharding(mesh, PartitionSpec("data"))


class Net(nnx.Module):
    def __init__(self, features, classes, rngs):
        self.hidden = nnx.Linear(features, 128, rngs=rngs)
        self.logits = nnx.Linear(128, classes, rngs=rngs)

    def __call__(self, x):
        return self.logits(nnx.relu(self.hidden(x)))


def loss(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))


def update(model, optimizer_state, x, y):  # the program of the global batch
    value, gradients = jax.value_and_grad(loss)(model, x, y)
    changes, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return optax.apply_updates(model, changes), optimizer_state, value


def correct(model, x, y, weights):
    return jnp.sum(weights * (model(x).argmax(1) == y))


# These three lines make it data-parallel: they say where the arguments are placed, and where the results.
places = (replicated, replicated, split, split)
train_step = jax.jit(update, in_shardings=places, out_shardings=replicated, donate_argnums=(0, 1))
count_correct = jax.jit(correct, in_shardings=(replicated, split, split, split), out_shardings=replicated)

random = np.random.default_rng(0)  # put your own arrays in place of these
inputs = random.normal(size=(12_000, 32)).astype(np.float32)
targets = (inputs @ random.normal(size=(32, 10))).argmax(1).astype(np.int32)
train, test = (inputs[:10_000], targets[:10_000]), (inputs[10_000:], targets[10_000:])


def placed_batches(epoch):
    """Batches on the devices. The examples that fill no batch have their turn in another epoch's order."""
    order = np.random.default_rng([0, epoch]).permutation(len(train[0]))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        rows = order[start : start + BATCH]
        yield jax.device_put((train[0][rows], train[1][rows]), split)  # returns at once, before the copy is done


def accuracy(model):
    """Over every example of the test set: the last batch is padded with examples of weight 0."""
    total = 0
    for start in range(0, len(test[0]), BATCH):
        x, y = test[0][start : start + BATCH], test[1][start : start + BATCH]
        missing = BATCH - len(x)
        weights = np.pad(np.ones(len(x), np.float32), (0, missing))
        total += count_correct(model, np.pad(x, ((0, missing), (0, 0))), np.pad(y, (0, missing)), weights)
    return float(total) / len(test[0])


model = jax.device_put(Net(inputs.shape[1], int(targets.max()) + 1, nnx.Rngs(0)), replicated)
optimizer_state = jax.device_put(optimizer.init(model), replicated)
for epoch in range(EPOCHS):
    losses = []
    for batch in placed_batches(epoch):
        model, optimizer_state, value = train_step(model, optimizer_state, *batch)
        losses.append(value)  # an array on the devices: nothing waits for it here
    print(f"epoch {epoch}: loss {np.mean(jax.device_get(losses)):.3f}, test accuracy {accuracy(model):.3f}")
assert accuracy(model) > 0.9
program = train_step.lower(model, optimizer_state, *batch).compile().as_text()
assert len(jax.devices()) == 1 or "all-reduce" in program, "the batch is not split"

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/09_let_the_compiler_do_it.py](solutions/09_let_the_compiler_do_it.py).
#
# 1. `make_trainer` (10 minutes): the data-parallel step. You get `loss(params, batch)`, a mean over the examples of
#    the batch. Return a jitted step `(params, batch) -> (params, loss)` of gradient descent with learning rate 0.1.
#    Both arguments are pytrees of host arrays. Each device of `mesh` must compute only its share of the batch, and
#    the results must be replicated. <details><summary>Hint</summary>Write the step for one device with
#    <code>jax.value_and_grad</code> and <code>jax.tree.map</code>. In <code>in_shardings</code> and
#    <code>out_shardings</code> one sharding stands for a whole pytree.</details>
# 2. `fixed_evaluation` (find the mistake): `broken_evaluation` returns a jitted function whose result is right, but
#    each of eight devices evaluates all examples. Write it so that each device evaluates its share of the examples.
#    <details><summary>Hint</summary>One sharding for <code>in_shardings</code> counts for all three
#    arguments.</details>


# %%
from pmapdp.lessons.checks import check


def broken_evaluation(mesh):
    replicated = NamedSharding(mesh, PartitionSpec())

    def accuracy(W, images, labels):
        return ((images @ W).argmax(1) == labels).mean()

    return jax.jit(accuracy, in_shardings=replicated, out_shardings=replicated)


def make_trainer(loss, mesh):
    """A jitted step: (params, batch) to (params, loss)."""
    ...  # your code: 6 to 9 lines


def fixed_evaluation(mesh):
    """A jitted function: (W, images, labels) to the accuracy."""
    ...  # your code: 5 to 6 lines


for exercise in (make_trainer, fixed_evaluation):
    check("09_let_the_compiler_do_it", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Write the program of the global batch, place the arrays, and let the compiler insert the collectives.
# - Shardings decide where something is computed, and do not change the result. So you notice a replicated batch only
#   by the work that each device does.
# - `device_put` places a batch, or `in_shardings` splits it and refuses a misplaced one; `out_shardings` only says
#   where results are placed.
#
# The code is in [steps/jit.py](../pmapdp/steps/jit.py). To read on: [Distributed arrays and automatic
# parallelization](https://docs.jax.dev/en/latest/201/sharding.html) and the [JAX scaling book on
# sharding](https://jax-ml.github.io/scaling-book/sharding/). Next: [10 Three ways side by
# side](10_three_ways_side_by_side.ipynb).

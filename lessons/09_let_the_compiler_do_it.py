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
# After this lesson you can write a data-parallel training step with `jit` and `NamedSharding`: build a mesh, place arrays
# on it, say where the results go, and read from the compiled program what the compiler added. You can also tell when the
# compiler did *not* split the work.
#
# About 30 minutes · before: [08 Keep dropout and metrics exact](08_keep_dropout_and_metrics_exact.ipynb) ·
# next: [10 Three ways side by side](10_three_ways_side_by_side.ipynb)
#
# With `pmap` you wrote the program of *one device*, and called `psum` where the devices had to communicate. With `jit`
# you write the program of *the global batch*, exactly as for a single device, and say on which devices its arrays are
# placed. The compiler splits the work and inserts the communication.

# %%
import inspect
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices
from pmapdp.compare.collectives import collectives
from pmapdp.data.batches import Batches
from pmapdp.models.mlp import MLP
from pmapdp.registry import load_data
from pmapdp.state import Task, create_state
from pmapdp.steps import jit as jit_steps
from pmapdp.steps import make_steps
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_09

drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
chosen = devices.choose(8)
print(devices.describe(chosen))

# %% [markdown]
# ## Mesh, PartitionSpec, NamedSharding
#
# Lesson 04 introduced them. A **mesh** is an array of devices whose axes have names. A **PartitionSpec** names, for each
# axis of an array, the mesh axis over which it is split; an axis without a name is not split. A mesh and a spec together
# are a **NamedSharding**, which says which slice of an array each device holds.
#
# **Predict:** which shape does device 3's shard of a `[16, 4]` array have under each of the two specs?

# %%
mesh = Mesh(np.array(chosen), ("data",))
split = NamedSharding(mesh, PartitionSpec("data"))
replicated = NamedSharding(mesh, PartitionSpec())
x = np.arange(64, dtype=np.float32).reshape(16, 4)
for sharding in (split, replicated):
    placed = jax.device_put(x, sharding)
    shard = placed.addressable_shards[3]
    print(f"{sharding.spec!s:23s} the array {placed.shape}, its shard on {shard.device} {shard.data.shape}")
assert jax.device_put(x, split).addressable_shards[3].data.shape == (2, 4)
assert jax.device_put(x, replicated).addressable_shards[3].data.shape == (16, 4)

# %% [markdown]
# If the rows are split, device 3 holds two of them, `[2, 4]`; if the array is replicated, it holds all 16. The array itself
# keeps the shape `[16, 4]` in both cases: unlike with `pmap`, there is no device axis. The pictures show which rows and columns
# each device holds. On the right the mesh has two axes, and the columns are split too.

# %%
grid = Mesh(np.array(chosen).reshape(4, 2), ("data", "model"))
both = NamedSharding(grid, PartitionSpec("data", "model"))
lesson_09.shards([jax.device_put(x, sharding) for sharding in (split, replicated, both)])

# %% [markdown]
# ## Computing with sharded arrays
#
# Any function of `jax.numpy` takes a sharded array. Where a result needs rows of several devices, the compiler inserts a
# collective. (`collectives` finds them in the text of the compiled program, as in lesson 06.) **Predict:** which of these
# three functions need a collective?

# %%
placed = jax.device_put(x, split)
for name, function in (
    ("2 * x + 1", lambda x: 2 * x + 1),
    ("x.sum(1)", lambda x: x.sum(1)),
    ("x.sum(0)", lambda x: x.sum(0)),
):
    compiled = jax.jit(function).lower(placed).compile()
    found = [each.kind for each in collectives(compiled.as_text())]
    print(f"{name:10s} result {compiled.output_shardings.spec!s:22s} collectives: {found}")
    assert found == (["all-reduce"] if name == "x.sum(0)" else [])
np.testing.assert_array_equal(jax.jit(lambda x: x.sum(0))(placed), x.sum(0))

# %% [markdown]
# Only the sum over the split axis needs one. The other two compute each row separately, so their results stay split by rows.
#
# ## The training step
#
# A linear classifier keeps the step short. It is the step of a single device: it has no axis name and no `psum`, and its
# loss is the mean over the global batch. Only the three marked lines make it data-parallel. **Predict:** which collectives
# does the compiler insert, and how many bytes do they carry?

# %%
data = load_data(DATASET)
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
assert [(each.kind, each.count, each.bytes) for each in found] == [("all-reduce", 1, 4 * 784 * 10)]

# %% [markdown]
# The source has no collective, and the compiled program has one all-reduce, of the size of the gradient. Here is why. The
# gradient is a sum over the examples, which are split. So each device computes the sum over its own examples. The result
# must be replicated, so these sums must be added over all devices.

# %%
lesson_09.training_step()

# %% [markdown]
# Now compare it with the same function on one device. The tolerance is 1e-6 in float32, because the examples are added up
# in another order.

# %%
alone = jax.jit(step)(np.zeros((784, 10), np.float32), images, labels)
together = compiled_step(W, *batch)
difference = float(np.abs(np.asarray(alone) - np.asarray(together)).max())
print(f"largest difference {difference:.1e}; device 5 holds W as {together.addressable_shards[5].data.shape}")
assert difference < 1e-6

# %% [markdown]
# ## Two mistakes: one is an error, one is silent
#
# `jit` runs where its arguments are *committed* (lesson 00). `device_put` with a device or a sharding commits an array. A
# NumPy array, or one that `jnp.asarray` made, is not committed, and `jit` chooses where to place it. **Predict** what
# happens when you forget to place the batch, and when you place it on device 0. The cell also prints the work of each
# device, in floating-point operations, as the compiler counts them.

# %%
first_device = jax.device_put((images, labels), chosen[0])
ways = {"split": batch, "NumPy": (images, labels), "jnp.asarray": (jnp.asarray(images), jnp.asarray(labels))}
work = {}
for name, arguments in ways.items():
    program = compiled_step.lower(W, *arguments).compile()
    work[name] = program.cost_analysis()["flops"]
    found, spec = [each.kind for each in collectives(program.as_text())], program.input_shardings[0][1].spec
    print(f"{name:12s} batch becomes {spec!s:11s} {work[name] / 1e6:4.1f} MFLOP a device, {found}")
try:
    compiled_step(W, *first_device)
    raise AssertionError("a batch on device 0 was accepted")
except ValueError as error:
    print("device 0     ValueError:", " ".join(str(error).split())[:88], "...")
assert work["NumPy"] == work["jnp.asarray"]
assert 7.5 < work["NumPy"] / work["split"] < 8.5

# %% [markdown]
# The batch on device 0 is an error, which you cannot overlook. The uncommitted batch is worse: `jit` *replicates* it. The
# result is right, but each of the eight devices computes all 512 examples, and no all-reduce is needed. Eight devices then
# take as long as one. So look at the shardings or count the collectives once, in every program.
#
# ## The cure: in_shardings
#
# `in_shardings` tells `jit` where each argument must be placed. A host array is then split on its way in, and an array that
# is committed to another placement raises an error.

# %%
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
# placed. Without `out_shardings` the compiler chooses. Place large batches with `device_put` before the step needs them,
# so that the copy overlaps with the previous step. That is what pmapdp does.
#
# ## The step in pmapdp
#
# [steps/jit.py](../src/pmapdp/steps/jit.py) is this step for any model, loss and optimizer. Compare it with the pmap step at
# the end of lesson 05.

# %%
print(inspect.getsource(jit_steps.make_steps))

# %% [markdown]
# There is no axis and no `pmean`, and the gradients are divided by the count of the global batch. `donate_argnums=0`
# (lesson 03) lets the new state reuse the memory of the old one. Five updates of an MLP must agree with a single device
# within 1e-5 (float32, plain gradient descent). The batches have 100 examples, so on 8 devices there is padding.

# %%
results = {}
for strategy, count in (("single", 1), ("jit", 8)):
    task = Task(MLP, optax.sgd(0.05))
    steps = make_steps(strategy, task, chosen[:count])
    batches = Batches(data.train, 100, devices=count, shuffle_seed=0)
    state, seconds = steps.place_state(create_state(task)), []
    for host, _ in zip(batches.epoch(0), range(5), strict=False):
        placed = steps.place_batch(host)
        started = time.perf_counter()
        state, sums = jax.block_until_ready(steps.train_step(state, placed))
        seconds.append(time.perf_counter() - started)
    results[strategy] = steps.fetch(state).params
    print(f"{strategy:6s} on {devices.describe(chosen[:count])}: {1000 * np.median(seconds[1:]):.0f} ms a step")
for a, b in zip(*map(jax.tree.leaves, results.values()), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)

# %% [markdown]
# Both agree. There is no speed-up: the eight simulated devices share the cores that the single device had to itself.
#
# ## Exercises
#
# Solutions, with reasons: [solutions/09_let_the_compiler_do_it.py](solutions/09_let_the_compiler_do_it.py).
#
# 1. `make_trainer` (10 minutes): the data-parallel step. You get `loss(params, batch)`, a mean over the examples of the
#    batch. Return a compiled step `(params, batch) -> (params, loss)` of gradient descent with learning rate 0.1. Both
#    arguments are pytrees of host arrays. Each device of `mesh` must compute only its share of the batch, and the results
#    must be replicated. <details><summary>Hint</summary>Write the step for one device with
#    <code>jax.value_and_grad</code> and <code>jax.tree.map</code>. In <code>in_shardings</code> and
#    <code>out_shardings</code> one sharding stands for a whole pytree.</details>
# 2. `mended_evaluation` (find the mistake): `broken_evaluation` returns a function whose result is right, but on eight
#    devices it takes as long as on one. Write it so that each device evaluates its share of the examples.
#    <details><summary>Hint</summary>One sharding for <code>in_shardings</code> counts for all three
#    arguments.</details>


# %%
def broken_evaluation(mesh):
    replicated = NamedSharding(mesh, PartitionSpec())

    def accuracy(W, images, labels):
        return ((images @ W).argmax(1) == labels).mean()

    return jax.jit(accuracy, in_shardings=replicated, out_shardings=replicated)


def make_trainer(loss, mesh):
    """A compiled step: (params, batch) to (params, loss)."""
    ...  # your code: 6 to 9 lines


def mended_evaluation(mesh):
    """A compiled function: (W, images, labels) to the accuracy."""
    ...  # your code: 5 to 6 lines


for exercise in (make_trainer, mended_evaluation):
    check("09_let_the_compiler_do_it", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Write the program of the global batch, place the arrays, and let the compiler insert the collectives.
# - Shardings decide where something is computed, and do not change the result. So you notice a replicated batch only by
#   the work that each device does.
# - `in_shardings` splits host arrays and refuses misplaced ones; `out_shardings` says where results are placed.
#
# The code is in [steps/jit.py](../src/pmapdp/steps/jit.py). To read on:
# [Distributed arrays and automatic parallelization](https://docs.jax.dev/en/latest/201/sharding.html) and the
# [JAX scaling book on sharding](https://jax-ml.github.io/scaling-book/sharding/). Next:
# [10 Three ways side by side](10_three_ways_side_by_side.ipynb).

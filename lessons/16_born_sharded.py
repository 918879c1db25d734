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
# # 14. Create state that is born sharded
#
# After this lesson you can create a model and its optimizer state directly in shards, and restore a checkpoint in the same
# way, so that no device ever holds the whole state. You can also split the state over the devices of data parallelism (ZeRO;
# its stage 3 is also called FSDP), and say how much memory that saves between two steps and at the peak of a step.
#
# About 35 minutes · before: [15 Split the model](15_split_the_model.ipynb) · next:
# [17 Train with many processes](17_many_processes.ipynb)

# %%
import inspect
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import P, lax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from pmapdp import devices
from pmapdp.compare.collectives import collectives
from pmapdp.data.batches import Batches
from pmapdp.models.dot_relu_dot import DotReluDot, make_task
from pmapdp.models.mlp import MLP
from pmapdp.registry import load_data
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.checksums import checksum
from pmapdp.sharding.fit import fit_layout
from pmapdp.sharding.layout import Layout, bytes_on_a_device
from pmapdp.sharding.split_step import make_steps
from pmapdp.state import Task, create_state, initial_state
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_16

drawing.setup()
chosen = devices.choose(8)
mesh = Mesh(np.array(chosen).reshape(2, 4), ("data", "model"))
print(devices.describe(chosen), "|", mesh)

# %% [markdown]
# ## An abstract model
#
# A model that does not fit on one device cannot be created on one device first. So begin with shapes. `nnx.eval_shape`
# traces the constructor without computing anything: the result has shapes and types, and takes no memory. The smallest case
# is a `[4, 8]` kernel whose axes have **logical names** (lesson 15). Flax keeps the names with the parameter, as
# `out_sharding`. `eager_sharding=False` tells Flax not to place the array by them, because they are not the names of mesh axes.


# %%
def build():
    kernel = nnx.initializers.lecun_normal()(jax.random.key(0), (4, 8))
    return nnx.Param(kernel, out_sharding=("features", "hidden"), eager_sharding=False)


abstract = nnx.eval_shape(build)
print(type(abstract.get_value()).__name__, abstract.shape, abstract.get_metadata("out_sharding"))
assert not isinstance(abstract.get_value(), jax.Array)

rules = {"features": None, "hidden": "model"}  # logical name -> mesh axis
sharding = NamedSharding(mesh, P(*(rules[name] for name in abstract.get_metadata("out_sharding"))))
print(sharding.spec, "a device will hold", sharding.shard_shape(abstract.shape))
assert sharding.shard_shape(abstract.shape) == (4, 2)

# %% [markdown]
# The abstract kernel gives its shape and its names; the rules turn the names into a sharding. So the author of a model need not
# know your machine: for another mesh you change the rules, and the model stays as it is.
#
# ## Created in shards
#
# Names alone place nothing. The next cell takes the network of Flax's guide to scaling up, which has two matrices of
# 1024 x 1024, and creates it in three ways. The third is new: a compiled constructor with `out_shardings`. From pmapdp it
# borrows `fit_layout(...).state`, which turns names into shardings as above, for every array of the train state. The
# compiler plans all memory ahead, and `memory_analysis` shows its plan. **Predict:** on how many devices is the first
# matrix in each of the three ways? And how much less memory does a device need if the state is created in shards?

# %%
task = make_task(1024)
layout = fit_layout(chosen, task, (1024,), mesh="data=2,model=4", layout="model")
shardings = layout.state(task)  # a NamedSharding for every array of the state, found from the abstract model


def planned(program):
    """MB on a device: at rest (the arguments), and at the peak (temporary arrays and new results are added)."""
    plan = program.memory_analysis()
    own_results = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return plan.argument_size_in_bytes / 1e6, (plan.argument_size_in_bytes + plan.temp_size_in_bytes + own_results) / 1e6


plain = DotReluDot(1024, rngs=nnx.Rngs(0))  # it has the names
moved = jax.device_put(plain.first[...], shardings.params["first"])  # created on one device, then split
born = jax.jit(initial_state, static_argnums=0, out_shardings=shardings)(task)  # <- new: created in shards
for name, x in (("names alone", plain.first[...]), ("moved", moved), ("born sharded", born.params["first"])):
    print(f"{name:12s} devices: {len(x.sharding.device_set)}, shards {x.addressable_shards[0].data.shape}")
np.testing.assert_array_equal(born.params["first"], plain.first[...])
created = {}
for name, place in (("replicated", layout.replicated), ("in shards", shardings)):
    program = jax.jit(initial_state, static_argnums=0, out_shardings=place).lower(task).compile()
    created[name] = planned(program)[1]
    print(f"created {name:10s} with at most {created[name]:4.1f} MB on a device")
assert abs(created["replicated"] / created["in shards"] - 4) < 0.1
jax.debug.visualize_array_sharding(born.params["second"], use_color=False)

# %% [markdown]
# With names alone, the matrix is on one device; the other two are on all eight. All three have the same numbers, to the bit,
# because each device generates its own part of one random sequence. *Moved* needs a device that can hold the full matrix for a
# moment. For a large model there is no such device. Created in shards, the state needs a quarter of the memory on each device,
# because the axis *model* has four devices. The drawing shows which rows of the second matrix each device holds. Adam's two
# moments are placed like the parameters to which they belong.
#
# ## ZeRO: split what is only a copy
#
# In data parallelism all devices hold equal parameters and equal optimizer state. **ZeRO** (Rajbhandari et al.,
# [2020](https://arxiv.org/abs/1910.02054)) splits these copies over the devices:
#
# - **Stage 1** splits the optimizer state. Each device updates its share of the parameters, and an all-gather completes them.
# - **Stage 3**, which PyTorch calls FSDP, splits the parameters too. Each device gathers them when it needs them.
#
# (Stage 2 splits the gradients, which in this lesson exist only during the step.) The picture shows what a device does during a
# step, without ZeRO and with it.

# %%
lesson_16.zero_over_time()

# %% [markdown]
# Compare the bytes on one device *at rest*, between two steps, and at the *peak* of a step. At rest, stage 3 on eight
# devices should keep an eighth. At the peak there are also gradients, gathered parameters and activations. **Predict:**
# is the peak an eighth, too?

# %%
data, mlp = load_data("digits"), Task(MLP, optax.adam(1e-3))
host, start = next(Batches(data.train, 64, devices=8).epoch(0)), create_state(mlp)
layouts, peak, rows = {}, {}, {}
for name in ("none", "optimizer", "parameters"):
    layouts[name] = fit_layout(chosen, mlp, (28, 28, 1), shard_state=name)
    way = make_steps("jit", mlp, chosen, layouts[name])
    state = way.place_state(start)
    rest, peak[name] = planned(way.train_step.lower(state, way.place_batch(host)).compile())
    kept = [bytes_on_a_device(tree) / 1e6 for tree in (state.params, state.optimizer_state)]
    rows[name] = [*kept, peak[name] - rest]
    print(f"{name:10s} at rest {sum(kept):5.2f} MB, at the peak {peak[name]:5.2f} MB")
    share = {"none": 1, "optimizer": (1 + 2 / 8) / 3, "parameters": 1 / 8}[name]
    assert abs(sum(kept) / (3 * 4 * 0.669_706) - share) < 0.001
assert 0.4 < peak["parameters"] / peak["none"] < 0.6
lesson_16.bytes_on_a_device(rows)

# %% [markdown]
# No: at rest it is an eighth, and at the peak about half. The step of pmapdp gathers *all* parameters before the forward pass, and
# computes all gradients before it splits them. So during a step a device still has one full copy of each. (Arrays with no
# axis that divides by 8, such as the bias of the ten classes, stay replicated.)
#
# To lower the peak too, gather each layer just before it is used, and drop it afterwards. `jax.checkpoint` makes the
# backward pass gather the layer once more, so that the gathered layer is not kept from the forward pass. Here is a layer in
# both forms. We will stack 16 such layers of 512 x 512.

# %%
line = Mesh(np.array(chosen), ("data",))
split, replicated = NamedSharding(line, P(None, "data")), NamedSharding(line, P())  # W is [layers, rows, columns]
W = np.random.default_rng(0).normal(0, 512**-0.5, (16, 512, 512)).astype(np.float32)
x = np.ones((64, 512), np.float32)


def loss_of(layer, W, x):
    return jnp.square(lax.scan(layer, x, W)[0]).mean()


def layer(x, w):
    return jnp.tanh(x @ w), None


@jax.checkpoint
def gathered_layer(x, w):
    return layer(x, lax.with_sharding_constraint(w, replicated))  # <- new: gathered here, and not kept


# %% [markdown]
# We compile a step of gradient descent in three ways: with replicated weights, with weights that are all gathered
# first, and with weights that are gathered layer by layer. **Predict:** which one has the highest peak?

# %%
LOSSES = {
    "replicated": (replicated, lambda W, x: loss_of(layer, W, x)),
    "gather all first": (split, lambda W, x: loss_of(layer, lax.with_sharding_constraint(W, replicated), x)),
    "gather by layer": (split, lambda W, x: loss_of(gathered_layer, W, x)),
}
peaks, updated = {}, {}
for name, (place, loss) in LOSSES.items():
    options = {"in_shardings": (place, NamedSharding(line, P("data"))), "out_shardings": place, "donate_argnums": 0}
    step = jax.jit(lambda W, x, loss=loss: W - 0.1 * jax.grad(loss)(W, x), **options)
    rest, peaks[name] = planned(step.lower(W, x).compile())
    updated[name] = np.asarray(step(jax.device_put(W, place), x))
    print(f"{name:16s} at rest {rest:5.1f} MB, at the peak {peaks[name]:5.1f} MB")
for name in LOSSES:
    np.testing.assert_allclose(updated[name], updated["replicated"], rtol=0, atol=1e-6)
assert peaks["gather by layer"] < 0.3 * peaks["replicated"] < peaks["replicated"] < peaks["gather all first"]

# %% [markdown]
# "Gather all first" has a higher peak than no ZeRO at all. Only gathering layer by layer keeps the promise of stage 3. So
# look at the peak, and not only at the bytes at rest.
#
# ## ZeRO-1 by hand
#
# An all-reduce is a **reduce-scatter** (each device gets the sum of its shard) followed by an **all-gather** (each gets all
# shards). The update of stage 1 goes in between. The smallest case has 8 weights on 8 devices. Every number in the gradient of
# device d is d, so the sum over the devices is 28. **Predict:** what is the new weight of device 0?

# %%
w, gradients = np.arange(8, dtype=np.float32), np.repeat(np.arange(8, dtype=np.float32), 8)


def all_reduced(w, g):
    return w - 0.1 * lax.psum(g, "data")


def in_shards(w, g):
    shard = lax.psum_scatter(g, "data", tiled=True)  # <- changed: [1], the sum for this device's weight
    mine = lax.dynamic_slice_in_dim(w, lax.axis_index("data"), 1) - 0.1 * shard  # <- changed: its update
    return lax.all_gather(mine, "data", tiled=True)  # <- changed: [8] again


def on_devices(f):
    return jax.jit(jax.shard_map(f, mesh=line, in_specs=(P(), P("data")), out_specs=P(), check_vma=False))


for f in (all_reduced, in_shards):
    kinds = [each.kind for each in collectives(on_devices(f).lower(w, gradients).compile().as_text())]
    print(f"{f.__name__:12s} {np.asarray(on_devices(f)(w, gradients)).round(2)} by {kinds}")
    np.testing.assert_allclose(on_devices(f)(w, gradients), w - 2.8, rtol=1e-6)

# %% [markdown]
# The first weight was 0 and is now -2.8, and both ways give the same result. With the second, each device updated one weight
# instead of eight, so it needs the optimizer state of that one only.
# [sharding/zero.py](../src/pmapdp/sharding/zero.py) does this for pmap and shard_map. Under jit, stages 1 and 3 only need other
# shardings. Here are three updates of pmapdp's step in each way, compared with one device (float32, tolerance 1e-5).
# **Predict:** which collectives does each of them need?

# %%
results, trained = {}, {}
momentum = Task(MLP, optax.sgd(0.1, momentum=0.9))
start = create_state(momentum)
WAYS = [("none", "jit"), ("optimizer", "jit"), ("parameters", "jit"), ("optimizer", "shard_map"), ("optimizer", "pmap")]
for name, strategy in (("one device", "single"), *WAYS):
    N = 1 if strategy == "single" else 8
    way = make_steps(strategy, momentum, chosen[:N], layouts.get(name))
    state = way.place_state(start)
    for host, _ in zip(Batches(data.train, 100, devices=N, shuffle_seed=0).epoch(0), range(3), strict=False):
        batch = way.place_batch(host)
        state, sums = way.train_step(state, batch)
    results[name, strategy], trained[name, strategy] = way.fetch(state), (way, state, batch)
    found = collectives(way.train_step.lower(state, batch).compile().as_text())
    print(f"{name:10s} {strategy:9s}", ", ".join(f"{each.count} {each.kind}" for each in found) or "no collective")
for end in results.values():
    for a, b in zip(*map(jax.tree.leaves, (end, results["one device", "single"])), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)

# %% [markdown]
# Under jit, the compiler for CPUs uses an all-reduce, and each device then keeps only its shard of the result. The compilers
# for GPUs and TPUs replace such a pair by a reduce-scatter. With pmap and shard_map we asked for a reduce-scatter, and got one
# for each array that is split. Their all-reduce is for the metrics and for the bias of the ten classes, which does not divide
# by 8.
#
# **A failure on purpose.** The gradient is to be clipped to length 1, and each device holds a shard of it. So each clips its
# shard. **Predict:** how long is the result for eight equal shards?


# %%
def broken_clip(g):
    return g / jnp.maximum(1, optax.tree.norm(g))


by_shards = jax.shard_map(broken_clip, mesh=line, in_specs=P("data"), out_specs=P("data"))
gradient = jnp.full(8, 5.0)
lengths = [float(jnp.linalg.norm(f(gradient))) for f in (broken_clip, by_shards)]
print(f"length on one device {lengths[0]:.3f}, on eight {lengths[1]:.3f}")
np.testing.assert_allclose(lengths, [1, np.sqrt(8)], rtol=1e-6)

# %% [markdown]
# On eight devices the result is the square root of 8 times too long. Where the shards differ, it also points in another
# direction. You will repair it in exercise 3. Under jit this cannot happen, because there the norm is that of the global
# array.
#
# ## Restored in shards
#
# A checkpoint is restored in the same way as a model is created: from shapes and shardings. Each device reads only its shards,
# and the mesh may differ from that of the run that wrote the checkpoint. Here we save the state that was born sharded, and
# restore it on one device and on three meshes.

# %%
with TemporaryDirectory() as folder:
    checkpoints = Checkpoints(Path(folder) / "checkpoints")
    checkpoints.save(0, born, {})
    checkpoints.wait()
    targets = {"one device": SingleDeviceSharding(chosen[0])}
    for size in ("data=2,model=4", "data=4,model=2", "data=8,model=1"):
        targets[size] = fit_layout(chosen, task, (1024,), mesh=size, layout="model").state(task)
    for name, target in targets.items():
        found = checkpoints.read(0, task, target).state
        shape, held = found.params["first"].addressable_shards[0].data.shape, bytes_on_a_device(found)
        print(f"{name:15s} shards {shape}, {held / 1e6:.1f} MB on a device")
        assert checksum(found) == checksum(born)
    checkpoints.close()

# %% [markdown]
# All four hold the same bits (the checksum is over the full state), and the more devices *model* has, the less each holds.
#
# ## What it costs
#
# Finally, the time of a step. We time the five ways in turn, so that other programs disturb them alike. **Predict:** does ZeRO make
# a step slower here?

# %%
times = {key: [] for key in WAYS}
for _ in range(6):
    for key in WAYS:
        way, state, batch = trained[key]
        clock = time.perf_counter()
        state, _ = jax.block_until_ready(way.train_step(state, batch))
        times[key].append(1000 * (time.perf_counter() - clock))
        trained[key] = way, state, batch
print(devices.describe(chosen), "| mlp, 100 examples an update")
for (name, strategy), found in times.items():
    print(f"{name:10s} {strategy:9s} median {np.median(found):4.0f} ms ({min(found):.0f} to {max(found):.0f})")

# %% [markdown]
# The five take about the same time: simulated devices share one memory and the same cores, so these times say little about real
# devices. There, ZeRO-1 sends as many bytes as an all-reduce does. ZeRO-3 layer by layer sends half as many again, because it
# gathers the parameters twice, in the forward and in the backward pass.
#
# ## Exercises
#
# **1. `born_in_place`** (2 minutes): return the array that `build()` makes, with the sharding `sharding`, such that no device
# ever holds all of it.
# <details><summary>Hint</summary>Compile it, and say how the result is to be sharded.</details>
#
# **2. `zero_step`** (10 minutes): ZeRO-1 with momentum, in `shard_map` over the axis "data". Every device gets the weights `w`
# `[D]`, its own gradient `g` `[D]`, and its shard `m` `[D / N]` of the momentum. The gradient of the update is the *mean* over
# the devices. Return `(w, m)` after one update: `m = 0.9 * m + gradient`, `w = w - 0.1 * m`.
# <details><summary>Hint</summary>psum_scatter, divided by N; the update of the shard; all_gather with tiled=True.</details>
#
# **3. `mended_clip`** (5 minutes): find the mistake in `broken_clip` above, and write it correctly. In `shard_map` over the axis
# "data", `g` is this device's shard of the gradient. Clip the length of the full gradient to 1.
# <details><summary>Hint</summary>Squares can be added over devices, lengths cannot.</details>


# %%
def born_in_place(build, sharding):
    """The array that build() makes, in shards."""
    ...  # your code: 1 line


def zero_step(w, g, m):
    """(w [D], m [D / N]) after one update."""
    ...  # your code: 5 or 6 lines


def mended_clip(g):
    """This device's shard of the clipped gradient."""
    ...  # your code: 2 lines


for exercise in (born_in_place, zero_step, mended_clip):
    check("16_born_sharded", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/16_born_sharded.py](solutions/16_born_sharded.py)
#
# ## Take away
#
# - Shapes first, then shardings, then numbers: `eval_shape`, a table of rules, `jit(..., out_shardings=...)`.
# - ZeRO-1 is a reduce-scatter, the update of a shard, and an all-gather. ZeRO-3 lowers the peak only if it gathers layer by layer.
# - Once the gradients are split, whatever needs all of them, such as their norm, needs a `psum`.
#
# The code is in [sharding/split_step.py](../src/pmapdp/sharding/split_step.py) and [sharding/zero.py](../src/pmapdp/sharding/zero.py);
# the flags are `--mesh`, `--layout` and `--shard-state`. The function that gives every array of a train state its sharding is
# printed below. Read on: [Flax's guide to scaling up](https://flax.readthedocs.io/en/latest/guides/flax_gspmd.html) (its
# program is `python -m pmapdp.train nnx-mesh`), and [the scaling book on
# training](https://jax-ml.github.io/scaling-book/training/). Next: [17 Train with many processes](17_many_processes.ipynb).

# %%
print(inspect.getsource(Layout.state))

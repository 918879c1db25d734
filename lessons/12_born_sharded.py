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
# # 12. Born sharded
#
# After this lesson you can make a model, its optimizer state and a restored checkpoint in parts, so that no device ever holds
# the whole; name axes instead of devices; and split state that is only a copy of itself (ZeRO, fully sharded data
# parallelism).
#
# About 25 minutes · before: [11 Split the model](11_split_the_model.ipynb) · next:
# [13 Train with many processes](13_many_processes.ipynb)
#
# A model that does not fit on one device must not be made on one device first.

# %%
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import drawing
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from checks import check
from flax import nnx
from jax import P, lax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from pmapdp import devices
from pmapdp.collectives import collectives
from pmapdp.data.batches import Batches
from pmapdp.models.mlp import MLP
from pmapdp.registry import load_data
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.checksums import checksum
from pmapdp.sharding.fit import fit_layout
from pmapdp.sharding.layout import bytes_on_a_device
from pmapdp.sharding.nnx_guide import DotReluDot, make_task
from pmapdp.sharding.split_step import make_steps
from pmapdp.state import Task, create_state, initial_state

drawing.setup()
chosen = devices.choose(8)
mesh = Mesh(np.array(chosen).reshape(2, 4), ("data", "model"))
print(devices.describe(chosen), "|", mesh)

# %% [markdown]
# ## An abstract model
#
# `nnx.eval_shape` runs the constructor without computing: what comes out has shapes and types, and no memory. The smallest
# case, a `[4, 8]` kernel whose axes have **logical names**: what they stand for, not where they lie. `eager_sharding=False`
# says to Flax that these are not axes of a mesh.


# %%
def build():
    kernel = nnx.initializers.lecun_normal()(jax.random.key(0), (4, 8))
    return nnx.Param(kernel, out_sharding=("features", "hidden"), eager_sharding=False)


abstract = nnx.eval_shape(build)
print(type(abstract.get_value()).__name__, abstract.shape, abstract.get_metadata("out_sharding"))
assert not isinstance(abstract.get_value(), jax.Array)

rules = {"features": None, "hidden": "model"}  # the table: logical name -> mesh axis
place = NamedSharding(mesh, P(*(rules[name] for name in abstract.get_metadata("out_sharding"))))
print(place.spec, "a device will hold", place.shard_shape(abstract.shape))
assert place.shard_shape(abstract.shape) == (4, 2)

# %% [markdown]
# Why names? The model can be written by somebody who does not know your machine; another mesh is another table. Mesh axes
# in the model are fine for a model that you run in one way.
#
# ## Made in parts
#
# Names alone move nothing. **Predict** where the two matrices of Flax' guide to scaling up (1024 x 1024 each) lie in the
# three cases, and what is the largest array that device 0 ever holds.

# %%
task = make_task(1024)
layout = fit_layout(chosen, task, (1024,), mesh="data=2,model=4", layout="model")
places = layout.state(task)  # a NamedSharding for every array of the state, from the abstract model


def largest_array(function, out_shardings):
    """Numbers in the largest array of the compiled program of one device."""
    program = jax.jit(function, static_argnums=0, out_shardings=out_shardings).lower(task).compile().as_text()
    return max(int(np.prod([int(n) for n in s.split(",") if n])) for s in re.findall(r"[fsu]\d+\[([\d,]*)\]", program))


plain = DotReluDot(1024, rngs=nnx.Rngs(0))  # it has the names
moved = jax.device_put(plain.first[...], places.params["first"])  # whole on one device, then cut
born = create_state(task, places)  # <- new: jax.jit(initial_state, out_shardings=places)(task)
for name, x in (("names alone", plain.first[...]), ("moved", moved), ("born sharded", born.params["first"])):
    print(f"{name:12s} on {len(x.sharding.device_set)} devices, parts {x.addressable_shards[0].data.shape}")
for path, leaf in jax.tree.leaves_with_path(born):
    wanted = dict(jax.tree.leaves_with_path(places))[path]
    assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim)
np.testing.assert_array_equal(born.params["first"], plain.first[...])
sizes = largest_array(initial_state, layout.replicated), largest_array(initial_state, places)
print(f"largest array while it is made: whole {sizes[0]:,}, in parts {sizes[1]:,}")
assert sizes == (1024 * 1024, 1024 * 1024 // 4)
jax.debug.visualize_array_sharding(born.params["second"], use_color=False)

# %% [markdown]
# The same numbers, to the bit: JAX' random generator gives each device its part of one sequence. *Moved* needs a
# device that can hold the whole for a moment, and that is what a large model does not have. Adam's two moments lie as
# their parameters do.
#
# ## State that is only a copy
#
# In data parallelism all devices hold equal parameters and equal optimizer state. **ZeRO** (Rajbhandari et al., "ZeRO", SC
# 2020) asks: why? Stage 1 cuts the optimizer state over the *data* axis; fully sharded data parallelism (stage 3) the
# parameters too, and gathers each when it is used. With Adam a parameter has two moments: **predict** the share of
# the bytes that a device keeps, with 8 devices, in both.

# %%
mlp = Task(MLP, optax.adam(1e-3))
WAYS = {"none": {}, "optimizer": {"shard_state": "optimizer"}, "parameters": {"shard_state": "parameters"},
        "model 4x2": {"mesh": "data=4,model=2", "layout": "model"},
        "both": {"mesh": "data=4,model=2", "layout": "model", "shard_state": "parameters"}}  # fmt: skip
layouts, held = {}, {}
for name, options in WAYS.items():
    layouts[name] = fit_layout(chosen, mlp, (28, 28, 1), **options)
    state = create_state(mlp, layouts[name].state(mlp))
    held[name] = [bytes_on_a_device(tree) / 1e6 for tree in (state.params, state.optimizer_state)]
    print(f"{name:10s} {sum(held[name]) / sum(held['none']):.3f} of the bytes")
assert sum(held["optimizer"]) / sum(held["none"]) < 0.43  # (1 + 2/8) / 3
assert sum(held["parameters"]) / sum(held["none"]) < 0.15  # 1/8

figure, axes = plt.subplots()
axes.barh(list(held), [params for params, _ in held.values()], color=drawing.DEVICE_COLOURS[0], label="parameters")
axes.barh(list(held), [moments for _, moments in held.values()], left=[params for params, _ in held.values()],
          color=drawing.DEVICE_COLOURS[1], label="optimizer state")  # fmt: skip
axes.set_xlabel("MB on one device (mlp, Adam, 8 devices)")
axes.invert_yaxis()
axes.legend()
plt.show()

# %% [markdown]
# ## Who needs what, when
#
# An all-reduce is a **reduce-scatter** (each device gets the sum of its part) and an **all-gather** (each gets all parts).
# The update fits in between, on a part. By hand, for 8 weights on 8 devices, with the gradient of device d equal to d
# everywhere; the sum is 28:

# %%
line = Mesh(np.array(chosen), ("data",))
w, gradients = np.arange(8, dtype=np.float32), np.repeat(np.arange(8, dtype=np.float32), 8)


def all_reduced(w, g):
    return w - 0.1 * lax.psum(g, "data")


def in_parts(w, g):
    part = lax.psum_scatter(g, "data", tiled=True)  # <- changed: [1], the sum of this device's part
    mine = lax.dynamic_slice_in_dim(w, lax.axis_index("data"), 1) - 0.1 * part  # <- changed: the update of a part
    return lax.all_gather(mine, "data", tiled=True)  # <- changed: [8] again


def on_devices(f):
    return jax.jit(jax.shard_map(f, mesh=line, in_specs=(P(), P("data")), out_specs=P(), check_vma=False))


for f in (all_reduced, in_parts):
    found = on_devices(f)(w, gradients)
    print(f"{f.__name__:12s} {found} by", *[e.kind for e in collectives(on_devices(f).lower(w, gradients).compile().as_text())])
    np.testing.assert_allclose(found, w - 2.8, rtol=1e-6)

# %% [markdown]
# Equal. Each device has updated one weight instead of eight, and needs the moments of one. That is
# [steps/split_optimizer.py](../pmapdp/sharding/zero.py), for pmap and `shard_map`. In `jit` it is shardings
# again: the optimizer state has others. Three updates of the real trainer, against one device:

# %%
data, results, trained = load_data("digits"), {}, {}
sgd = Task(MLP, optax.sgd(0.1, momentum=0.9))  # its state is one moment a parameter
for name, strategy in (("one device", "single"), ("none", "jit"), ("optimizer", "jit"), ("parameters", "jit"),
                       ("optimizer", "shard_map"), ("optimizer", "pmap")):  # fmt: skip
    way = make_steps(strategy, sgd, chosen[: 1 if strategy == "single" else 8], layouts.get(name))
    state = create_state(sgd, way.state_sharding)
    batches = Batches(data.train, 100, devices=1 if strategy == "single" else 8, shuffle_seed=0)
    for host, _ in zip(batches.epoch(0), range(3), strict=False):
        state, sums = way.train_step(state, batch := way.place_batch(host))
    results[name, strategy] = way.fetch(state)
    trained[name, strategy] = way, state, batch
    kinds = [f"{each.count} {each.kind}" for each in collectives(way.train_step.lower(state, batch).compile().as_text())]
    print(f"{name:10s} {strategy:9s}", ", ".join(kinds) or "nobody talks")
for end in results.values():
    for a, b in zip(*map(jax.tree.leaves, (end, results["one device", "single"])), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)

# %% [markdown]
# On CPU the compiler writes `jit`'s reduce-scatter as an all-reduce of which a part is used; on GPU and TPU it has a
# pass that joins the two. Ours for pmap and `shard_map` needs one of each: on CPU
# [steps/packing.py](../pmapdp/cpu/packing.py) puts all arrays into one, since every exchange waits for the slowest device.
#
# **A failure on purpose.** Clip the gradient to length 1 where each device has a part of it. **Predict** the length of what
# comes out, for eight equal parts.


# %%
def clipped(g):
    return g / jnp.maximum(1, optax.tree.norm(g))  # this device's norm, not that of all


by_parts = jax.shard_map(clipped, mesh=line, in_specs=P("data"), out_specs=P("data"))
gradient = jnp.full(8, 5.0)
print(f"whole: length {jnp.linalg.norm(clipped(gradient)):.3f}; by parts: length {jnp.linalg.norm(by_parts(gradient)):.3f}")
np.testing.assert_allclose(jnp.linalg.norm(by_parts(gradient)), np.sqrt(8), rtol=1e-6)

# %% [markdown]
# Too long by the root of N, and in another direction where parts differ. Whatever looks at *all* parameters needs a psum
# once they are cut. In `jit` this cannot happen: the norm there is that of the whole array.
#
# ## Restored in parts
#
# A checkpoint is read like a model is made: from shapes and places. No concrete state is needed, and each device reads its
# parts only.

# %%
with TemporaryDirectory() as folder:
    checkpoints = Checkpoints(Path(folder) / "checkpoints")
    checkpoints.save(0, born, {})
    checkpoints.wait()
    targets = {"one device": SingleDeviceSharding(chosen[0])}
    for size in ("data=2,model=4", "data=4,model=2", "data=8,model=1"):
        there = fit_layout(chosen, task, (1024,), mesh=size, layout="model")
        targets[size] = there.state(task)
    for name, target in targets.items():
        found = checkpoints.read(0, task, target).state
        first = found.params["first"]
        print(f"{name:15s} parts {first.addressable_shards[0].data.shape}, {bytes_on_a_device(found) / 1e6:.1f} MB on a device")
        assert checksum(found) == checksum(born)
    checkpoints.close()

# %% [markdown]
# ## What it costs
#
# A step in milliseconds, the strategies taking turns. There is one machine under all devices, so bytes are saved here on paper
# only; on real devices the gathers use the links between them.

# %%
times = {key: [] for key in trained if key[0] != "one device"}
for _ in range(8):
    for key in times:
        way, state, batch = trained[key]
        clock = time.perf_counter()
        state, _ = jax.block_until_ready(way.train_step(state, batch))
        times[key].append(1000 * (time.perf_counter() - clock))
        trained[key] = way, state, batch
print(devices.describe(chosen), "| mlp, 100 examples an update")
for (name, strategy), found in times.items():
    print(f"{name:10s} {strategy:9s} median {np.median(found):4.0f} ms ({min(found):.0f} to {max(found):.0f})")

# %% [markdown]
# ## Exercises
#
# 1. `born_in_place`: the result of `build()`, an array, made where `sharding` says and never whole.
#    <details><summary>Hint</summary>Compile it, and say how the result is to lie.</details>
# 2. `update_in_parts`: in `shard_map` with the axis "data": weights `[D]`, whole, and this device's gradient `[D]`. Return
#    this device's part of `w - 0.1 * (sum of the gradients)`, `[D / N]`. <details><summary>Hint</summary>psum_scatter, and
#    the part of w that begins at axis_index times its length.</details>
# 3. `whole_norm`: in the same place: the length of a vector of which each device has the part `g`.
#    <details><summary>Hint</summary>Squares can be added up, lengths cannot.</details>


# %%
def born_in_place(build, sharding):
    """The array build() makes, in parts."""
    ...  # your code: 1 line


def update_in_parts(w, g):
    """[D / N]."""
    ...  # your code: 2 or 3 lines


def whole_norm(g):
    """[], equal on all devices."""
    ...  # your code: 1 line


for exercise in (born_in_place, update_in_parts, whole_norm):
    check("12_born_sharded", exercise.__name__, exercise)

# %% [markdown]
# Solutions: [solutions/12_born_sharded.py](solutions/12_born_sharded.py)
#
# ## Take away
#
# - Shapes first, then places, then numbers: `eval_shape`, a table of rules, `jit(..., out_shardings=...)`.
# - A copy on every device is a choice. Reduce-scatter, update, all-gather costs what an all-reduce costs.
# - A part knows nothing of the others: norms and means over parameters need a sum over devices.
#
# In pmapdp this is [sharding.py](../pmapdp/sharding/layout.py); `--mesh`, `--layout` and `--shard-state` are its flags, and
# `python -m pmapdp.train nnx-mesh` is the program of Flax' guide.

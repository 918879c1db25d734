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
# # 16. Create state that is born sharded
#
# After this lesson you can create a model and its optimizer state directly in shards, and restore a checkpoint in the
# same way, so that no device ever holds the whole state. You can also split the state over the devices of data
# parallelism (ZeRO; its stage 3 is also called FSDP), and say how much memory that saves between two steps and at the
# peak of a step.
#
# About 35 minutes · you need [06 Communicate between devices](06_communicate_between_devices.ipynb) (reduce-scatter and
# all-gather), [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb) and [13 More batch than
# memory](13_more_batch_than_memory.ipynb) (rematerialization) · previous: [15 Split the
# model](15_split_the_model.ipynb) · next: [17 Train with many processes](17_many_processes.ipynb)

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax
from jax.sharding import Mesh, NamedSharding

from pmapdp import devices  # simulates devices (lesson 00) and describes them

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"
chosen = jax.devices()
mesh = Mesh(np.array(chosen).reshape(2, 4), ("data", "model"))
print(devices.describe(chosen), "| jax", jax.__version__)

# %% [markdown]
# ## An abstract model
#
# A model that does not fit on one device cannot be created on one device first. So begin with shapes.
# `nnx.eval_shape` traces the constructor without computing anything: the result has shapes and types, and takes no
# memory. The smallest case is a `[4, 8]` kernel whose axes have **logical names**, which say what an axis means and
# not where it goes. Flax keeps the names with the parameter, as `out_sharding`.

# %%
from flax import nnx


def kernel(**how):
    numbers = nnx.initializers.lecun_normal()(jax.random.key(0), (4, 8))
    return nnx.Param(numbers, out_sharding=("features", "hidden"), **how)


abstract = nnx.eval_shape(lambda: kernel(eager_sharding=False))
print(type(abstract.get_value()).__name__, abstract.shape, abstract.get_metadata("out_sharding"))
assert not isinstance(abstract.get_value(), jax.Array)

rules = {"features": None, "hidden": "model"}  # logical name -> mesh axis
sharding = NamedSharding(mesh, P(*(rules[name] for name in abstract.get_metadata("out_sharding"))))
print(sharding.spec, "a device will hold", sharding.shard_shape(abstract.shape))
assert sharding.shard_shape(abstract.shape) == (4, 2)

# %% [markdown]
# The abstract kernel gives its shape and its names; the rules turn the names into a sharding. So the author of a
# model need not know your machine: for another mesh you change the rules.
#
# Flax can apply the rules itself. **Predict:** where does it place the kernel without a mesh, and under
# `jax.set_mesh` with rules?

# %% tags=["prediction"]
print("eager_sharding=False:", kernel(eager_sharding=False)[...].sharding)
try:
    kernel()
    raise AssertionError("names without a mesh were accepted")
except ValueError as error:
    print("no mesh:", str(error)[:72], "...")
with jax.set_mesh(mesh), nnx.logical_axis_rules(tuple(rules.items())):
    by_rules = kernel()[...].sharding
    print("mesh and rules:", by_rules.spec)

# %% tags=["proof"]
# The asserts behind the answer.
assert by_rules.is_equivalent_to(sharding, 2)

# %% [markdown]
# <details><summary>Answer</summary>
#
# With `eager_sharding=False` names alone place nothing: the kernel is on one device. Otherwise Flax wants a mesh, and
# then places the array by the names. Both ways have their use. (Optimizer state of a Flax model keeps the names, too:
# `optax.adam(1e-3).init(model)[0].mu` has them.)
#
# </details>
#
# ## Created in shards
#
# The next cell takes a network of two matrices of 1024 x 1024 with Adam, and creates it in three ways. The third is
# new: a compiled constructor with `out_shardings`. **Predict:** on how many devices is the first matrix in each of
# the three ways? And how much less memory does a device need if the state is created in shards?

# %% tags=["prediction"]
import optax

optimizer = optax.adam(1e-3, eps=1e-5)  # with the usual 1e-8 it enlarges rounding errors of tiny gradients


def create():
    """The parameters, and Adam's two moments of each."""
    keys = jax.random.split(jax.random.key(0), 2)
    names = "first", "second"
    params = {name: jax.random.normal(key, (1024, 1024)) / 32 for name, key in zip(names, keys, strict=True)}
    return params, optimizer.init(params)


def planned(compiled):
    """MB on a device: at rest (the arguments), and at the peak (temporary arrays and new results are added)."""
    plan = compiled.memory_analysis()
    own_results = plan.output_size_in_bytes - plan.alias_size_in_bytes
    rest = plan.argument_size_in_bytes
    return rest / 1e6, (rest + plan.temp_size_in_bytes + own_results) / 1e6


everywhere = NamedSharding(mesh, P())
abstract_params, abstract_state = jax.eval_shape(create)
of_params = {"first": NamedSharding(mesh, P(None, "model")), "second": NamedSharding(mesh, P("model", None))}
of_state = optax.tree_map_params(  # what Adam keeps for a parameter is placed as that is; its counter is replicated
    optimizer, lambda _, sharding: sharding, abstract_state, of_params, transform_non_params=lambda _: everywhere
)
plain, _ = create()
moved = jax.device_put(plain, of_params)  # created on one device, then split
born, born_state = jax.jit(create, out_shardings=(of_params, of_state))()  # <- new: created in shards
for name, params in (("plain", plain), ("moved", moved), ("born sharded", born)):
    placed, shard = params["first"].sharding.device_set, params["first"].addressable_shards[0].data.shape
    print(f"{name:12s} devices: {len(placed)}, shards {shard}")
created = {}
for name, place in (("replicated", everywhere), ("in shards", (of_params, of_state))):
    created[name] = planned(jax.jit(create, out_shardings=place).lower().compile())[1]
    print(f"created {name:10s} with at most {created[name]:4.1f} MB on a device")

# %% tags=["proof"]
# The asserts behind the answer.
np.testing.assert_array_equal(born["first"], plain["first"])
assert born_state[0].mu["first"].sharding.is_equivalent_to(of_params["first"], 2)
assert 3.5 < created["replicated"] / created["in shards"] < 4.5

# %% [markdown]
# <details><summary>Answer</summary>
#
# *Plain* is on one device, the other two on all eight. All three have the same numbers, to the bit, because each
# device generates its own part of one random sequence. *Moved* needs a device that can hold the full matrix for a
# moment. For a large model there is no such device. Created in shards, the state needs a quarter of the memory,
# because the axis *model* has four devices.
#
# </details>
#
# ## ZeRO: split what is only a copy
#
# In data parallelism all devices hold equal parameters and equal optimizer state. **ZeRO** (Rajbhandari et al.,
# [2020](https://arxiv.org/abs/1910.02054)) splits these copies over the devices:
#
# - **Stage 1** splits the optimizer state. Each device updates its share of the parameters, and an all-gather
#   completes them.
# - **Stage 2** also keeps only a share of the gradients after the reduce-scatter.
# - **Stage 3**, which PyTorch calls FSDP, splits the parameters too. Each device gathers them when it needs them.
#
# The picture shows what a device does during a step. An all-reduce is drawn as long as a reduce-scatter and an
# all-gather together.

# %%
from pmapdp.lessons.pictures import lesson_16

lesson_16.zero_over_time()

# %% [markdown]
# Under jit these stages are nothing but shardings. `fully_sharded` below splits the longest axis of each array that
# divides by 8. Compare the bytes on one device *at rest*, between two steps, and at the *peak* of a step. At rest,
# stage 3 on eight devices should keep an eighth. At the peak there are also gradients, gathered parameters and
# activations. **Predict:** is the peak an eighth, too?

# %% tags=["prediction"]
line = Mesh(np.array(chosen), ("data",))
split, replicated = NamedSharding(line, P("data")), NamedSharding(line, P())
SHAPES = {"W1": (784, 512), "W2": (512, 512), "W3": (512, 10)}


def fully_sharded(tree):
    """The sharding of each array: its longest axis that divides by the devices is split."""

    def of(array):
        axes = [axis for axis, size in enumerate(array.shape) if size % line.size == 0]
        if not axes:
            return replicated
        longest = max(axes, key=lambda axis: array.shape[axis])
        return NamedSharding(line, P(*[None] * longest, "data"))

    return jax.tree.map(of, tree)


def loss(params, x, y):
    hidden = jax.nn.relu(jax.nn.relu(x @ params["W1"]) @ params["W2"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["W3"], y).mean()


def step(params, state, x, y):
    changes, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)
    return optax.apply_updates(params, changes), state


random = np.random.default_rng(0)
x, y = random.normal(size=(64, 784)).astype(np.float32), random.integers(0, 10, 64)
start = {name: random.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for name, shape in SHAPES.items()}
start = start, jax.device_get(optimizer.init(start))
everything = jax.tree.map(lambda _: replicated, start)
PLACES = {
    "replicated": everything,
    "optimizer state split": (everything[0], fully_sharded(start[1])),
    "all split": fully_sharded(start),
}
rest, peak, after = {}, {}, {}
for name, places in PLACES.items():
    options = {"in_shardings": (*places, split, split), "out_shardings": places, "donate_argnums": (0, 1)}
    compiled = jax.jit(step, **options).lower(*start, x, y).compile()
    rest[name], peak[name] = planned(compiled)
    after[name] = compiled(*jax.device_put(start, places), *jax.device_put((x, y), split))[0]
    print(f"{name:21s} at rest {rest[name]:5.2f} MB, at the peak {peak[name]:5.2f} MB")
lesson_16.bytes_on_a_device(rest, peak)

# %% tags=["proof"]
# The asserts behind the answer.
for name in SHAPES:
    for params in after.values():
        np.testing.assert_allclose(params[name], jax.jit(step)(*start, x, y)[0][name], rtol=0, atol=1e-5)
assert abs(rest["all split"] / rest["replicated"] - 1 / 8) < 0.01
assert 0.4 < peak["all split"] / peak["replicated"] < 0.6

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: at rest it is an eighth, and at the peak about half. During the step this program has gathered parameters and
# full gradients. All three give the update of one device (float32, tolerance 1e-5).
#
# </details>
#
# ## The peak: gather layer by layer
#
# To lower the peak too, gather each layer just before it is used, and drop it afterwards. A `lax.scan` over stacked
# layers makes that possible: its body sees one layer at a time. We compile a step of Adam on 16 layers of 512 x 512
# in six ways. The policy is that of lesson 13. **Predict:** which way has the lowest peak, and what does
# `jax.checkpoint` cost?

# %% tags=["prediction"]
W = np.random.default_rng(0).normal(0, 512**-0.5, (16, 512, 512)).astype(np.float32)
x = np.ones((64, 512), np.float32)
columns = NamedSharding(line, P(None, "data"))  # W is [layers, rows, columns]: a share of each layer


def layer(x, w):
    return jnp.tanh(x @ w), None


def gathered_layer(x, w):
    return layer(x, lax.with_sharding_constraint(w, replicated))


def loss_with(layer, around=lambda W: W):
    return lambda W, x: jnp.square(lax.scan(layer, x, around(W))[0]).mean()


keep_products = jax.checkpoint(gathered_layer, policy=jax.checkpoint_policies.dots_saveable)
LOSSES = {
    "replicated": (replicated, loss_with(layer)),
    "all gathered first": (columns, loss_with(layer, lambda W: lax.with_sharding_constraint(W, replicated))),
    "gathered in the layer": (columns, loss_with(gathered_layer)),
    "... with jax.checkpoint": (columns, loss_with(jax.checkpoint(gathered_layer))),
    "... that keeps products": (columns, loss_with(keep_products)),
    "left to the compiler": (columns, loss_with(layer)),
}
peaks, products, gathers, updated = {}, {}, {}, {}
for name, (place, loss_of) in LOSSES.items():

    def adam_step(W, state, x, loss_of=loss_of):
        changes, state = optimizer.update(jax.grad(loss_of)(W, x), state, W)
        return optax.apply_updates(W, changes), state

    moments = optimizer.init(W)
    counter = {"transform_non_params": lambda _: replicated}
    places = place, optax.tree_map_params(optimizer, lambda _, p=place: p, moments, **counter)
    shardings = {"in_shardings": (*places, split), "out_shardings": places}
    compiled = jax.jit(adam_step, **shardings, donate_argnums=(0, 1)).lower(W, moments, x).compile()
    rest_here, peaks[name] = planned(compiled)
    products[name] = str(jax.make_jaxpr(jax.grad(loss_of))(W, x)).count("dot_general")
    gathers[name] = len([line for line in compiled.as_text().splitlines() if " all-gather(" in line])
    updated[name] = np.asarray(compiled(*jax.device_put((W, moments), places), jax.device_put(x, split))[0])
    print(
        f"{name:24s} at rest {rest_here:4.1f} MB, peak {peaks[name]:4.1f} MB, "
        f"{products[name]} products and {gathers[name]} all-gathers"
    )

# %% tags=["proof"]
# The asserts behind the answer.
for W_after in updated.values():
    np.testing.assert_allclose(W_after, updated["replicated"], rtol=0, atol=1e-5)
assert list(products.values()) == [3, 3, 3, 4, 3, 3]
assert list(gathers.values()) == [0, 1, 1, 2, 2, 2]
assert peaks["left to the compiler"] < peaks["... that keeps products"] < 0.5 * peaks["gathered in the layer"]
assert peaks["gathered in the layer"] < 0.6 * peaks["all gathered first"] < peaks["replicated"]

# %% [markdown]
# <details><summary>Answer</summary>
#
# - *All gathered first* keeps all layers gathered. Here that still beats replication, because Adam's moments are
#   split; with plain SGD it would be worse than no ZeRO at all.
# - *Gathered in the layer* still keeps every gathered layer until the backward pass. The constraint makes the
#   gathered layer a value of the program, and what the backward pass needs is kept.
# - `jax.checkpoint` gathers it a second time, and by default also computes the product again: 4 products for 3. With
#   a policy that keeps products it only gathers again, at nearly the same peak.
# - *Left to the compiler*, the shard is kept and gathered where it is used: the lowest peak of all. So write no
#   gather by hand where you need none, scan over the layers, and look at the peak.
#
# </details>
#
# ## ZeRO-1 by hand
#
# An all-reduce is a **reduce-scatter** (each device gets the sum of its shard) followed by an **all-gather** (each
# gets all shards). The update of stage 1 goes in between. The smallest case has 8 weights on 8 devices. Every number
# in the gradient of device d is d, so the sum over the devices is 28. **Predict:** what is the new weight of device
# 0?

# %% tags=["prediction"]
from pmapdp.compare.collectives import collectives  # lists the collectives in the text of a compiled program

w, gradients = np.arange(8, dtype=np.float32), np.repeat(np.arange(8, dtype=np.float32), 8)


def all_reduced(w, g):
    return w - 0.1 * lax.psum(g, "data")


def in_shards(w, g):
    shard = lax.psum_scatter(g, "data", tiled=True)  # <- changed: [1], the sum for this device's weight
    mine = lax.dynamic_slice_in_dim(w, lax.axis_index("data"), 1) - 0.1 * shard  # <- changed: its update
    return lax.all_gather(mine, "data", tiled=True)  # <- changed: [8] again


def on_devices(f):
    return jax.jit(jax.shard_map(f, mesh=line, in_specs=(P(), P("data")), out_specs=P(), check_vma=False))


both = []
for f in (all_reduced, in_shards):
    both.append(np.asarray(on_devices(f)(w, gradients)))
    kinds = [each.kind for each in collectives(on_devices(f).lower(w, gradients).compile().as_text())]
    print(f"{f.__name__:12s} {both[-1].round(2)} by {kinds}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first weight was 0 and is now -2.8, and both ways give the same result. With the second, each device updated one
# weight instead of eight, so it needs the optimizer state of that one only.
# [sharding/zero.py](../pmapdp/sharding/zero.py) does this for pmap and shard_map. (Under jit, XLA for CPUs
# all-reduces, and each device keeps its shard of the result. XLA for GPUs and TPUs has a pass that makes a
# reduce-scatter of such a pair.)
#
# </details>
#
# **A failure on purpose.** The gradient is to be clipped to length 1, and each device holds a shard of it. So each
# clips its shard. **Predict:** how long is the result for eight equal shards?


# %% tags=["prediction"]
def broken_clip(g):
    return g / jnp.maximum(1, optax.tree.norm(g))


by_shards = jax.shard_map(broken_clip, mesh=line, in_specs=P("data"), out_specs=P("data"))
gradient = jnp.full(8, 5.0)
lengths = [float(jnp.linalg.norm(f(gradient))) for f in (broken_clip, by_shards)]
print(f"length on one device {lengths[0]:.3f}, on eight {lengths[1]:.3f}")

# %% tags=["proof"]
# The asserts behind the answers so far.
for new in both:
    np.testing.assert_allclose(new, w - 2.8, rtol=1e-6)
np.testing.assert_allclose(lengths, [1, np.sqrt(8)], rtol=1e-6)

# %% [markdown]
# <details><summary>Answer</summary>
#
# On eight devices the result is the square root of 8 times too long. Where the shards differ, it also points in
# another direction. You will repair it in exercise 3. Under jit this cannot happen, because there the norm is that of
# the global array.
#
# </details>
#
# ## Restored in shards
#
# A checkpoint is restored in the same way as a model is created: from shapes and shardings. Each device reads only
# its shards, and the mesh may differ from that of the run that wrote the checkpoint. Here we save the state that was
# born sharded, and restore it on one device and on three meshes.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

targets = {"one device": dict.fromkeys(born, SingleDeviceSharding(chosen[0]))}
for shape in ((2, 4), (4, 2), (1, 8)):
    other = Mesh(np.array(chosen).reshape(shape), ("data", "model"))
    specs = {"first": P(None, "model"), "second": P("model", None)}
    targets[f"mesh {shape}"] = {name: NamedSharding(other, spec) for name, spec in specs.items()}
with TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(Path(folder) / "state", born)
    checkpointer.wait_until_finished()
    for name, target in targets.items():
        shapes = jax.tree.map(lambda a, place: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), born, target)
        restored = checkpointer.restore(Path(folder) / "state", shapes)
        held = sum(a.addressable_shards[0].data.nbytes for a in restored.values())
        shard = restored["first"].addressable_shards[0].data.shape
        print(f"{name:12s} shards {shard}, {held / 1e6:.1f} MB on a device")
        for parameter, array in restored.items():
            np.testing.assert_array_equal(array, born[parameter])

# %% [markdown]
# All four hold the same bits, and the more devices *model* has, the less each holds.
#
# What does it cost? ZeRO-1 sends as many bytes as an all-reduce does. ZeRO-3 sends half as many again, because it
# gathers the parameters twice, in the forward and in the backward pass. (Times of simulated devices would say nothing
# about real ones.)
#
# ## Take it home
#
# The next cell needs nothing from above and nothing from pmapdp: a Flax model with Adam, born fully sharded, trained
# and evaluated. The step is that of lesson 09; only the shardings differ.

# %% tags=["take-home"]
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

BATCH, EPOCHS, WIDTH, LAYERS = 512, 3, 256, 4  # batch and width divide by the number of devices
mesh = Mesh(np.array(jax.devices()), ("data",))
replicated = NamedSharding(mesh, PartitionSpec())
split = NamedSharding(mesh, PartitionSpec("data"))

random = np.random.default_rng(0)  # put your own arrays in place of these
inputs = random.normal(size=(20_000, 32)).astype(np.float32)
labels = (inputs @ random.normal(size=(32, 10))).argmax(1).astype(np.int32)
train, test = (inputs[:18_005], labels[:18_005]), (inputs[18_005:], labels[18_005:])


class Net(nnx.Module):
    def __init__(self, features, classes, rngs):
        self.first = nnx.Linear(features, WIDTH, rngs=rngs)
        self.layers = nnx.Param(jax.random.normal(rngs.params(), (LAYERS, WIDTH, WIDTH)) * WIDTH**-0.5)
        self.last = nnx.Linear(WIDTH, classes, rngs=rngs)

    def __call__(self, x):
        def layer(x, w):  # one layer at a time, so that one layer at a time is gathered
            return x + nnx.relu(x @ w), None

        x, _ = lax.scan(layer, self.first(x), self.layers[...])
        return self.last(x)


def fully_sharded(tree):
    """The sharding of each array: its longest axis that divides by the devices is split."""

    def of(array):
        axes = [axis for axis, size in enumerate(array.shape) if size % mesh.size == 0]
        if not axes:
            return replicated
        longest = max(axes, key=lambda axis: array.shape[axis])
        return NamedSharding(mesh, PartitionSpec(*[None] * longest, "data"))

    return jax.tree.map(of, tree)


optimizer = optax.adam(2e-3)


def create():
    model = Net(inputs.shape[1], int(labels.max()) + 1, nnx.Rngs(0))
    return model, optimizer.init(model)


def loss(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def update(model, optimizer_state, x, y):
    value, gradients = jax.value_and_grad(loss)(model, x, y)
    changes, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return optax.apply_updates(model, changes), optimizer_state, value


model_places, state_places = fully_sharded(jax.eval_shape(create))
model, optimizer_state = jax.jit(create, out_shardings=(model_places, state_places))()  # no device ever holds all of it
train_step = jax.jit(
    update,
    in_shardings=(model_places, state_places, split, split),
    out_shardings=(model_places, state_places, replicated),
    donate_argnums=(0, 1),
)
held = sum(array.addressable_shards[0].data.nbytes for array in jax.tree.leaves((model, optimizer_state)))
total = sum(array.nbytes for array in jax.tree.leaves((model, optimizer_state)))
print(f"a device holds {held / total:.1%} of the state")

predict = jax.jit(lambda model, x: model(x).argmax(1), in_shardings=(model_places, split))


def accuracy(model):
    """Over all test examples. Rows of padding make their number divide by the devices; they are cut off again."""
    missing = -len(test[0]) % mesh.size
    guesses = predict(model, np.pad(test[0], ((0, missing), (0, 0))))
    return (np.asarray(guesses)[: len(test[0])] == test[1]).mean()


for epoch in range(EPOCHS):
    order = np.random.default_rng([1, epoch]).permutation(len(train[0]))
    for start in range(0, len(order) - BATCH + 1, BATCH):  # what fills no batch has its turn in another epoch
        rows = order[start : start + BATCH]
        model, optimizer_state, value = train_step(model, optimizer_state, train[0][rows], train[1][rows])
    print(f"epoch {epoch + 1}: loss {float(value):.3f}, test accuracy {accuracy(model):.3f}")
assert accuracy(model) > 0.85

# %% [markdown]
# ## Exercises
#
# **1. `born_in_place`** (2 minutes): return the array that `build()` makes, with the sharding `sharding`, such that
# no device ever holds all of it.
# <details><summary>Hint</summary>Compile it, and say how the result is to be sharded.</details>
#
# **2. `zero_step`** (10 minutes): ZeRO-1 with momentum, in `shard_map` over the axis "data". Every device gets the
# weights `w` `[D]`, its own gradient `g` `[D]`, and its shard `m` `[D / N]` of the momentum. The gradient of the
# update is the *mean* over the devices. Return `(w, m)` after one update: `m = 0.9 * m + gradient`,
# `w = w - 0.1 * m`. Do without an all-reduce.
# <details><summary>Hint</summary>psum_scatter, divided by N; the update of the shard; all_gather with
# tiled=True.</details>
#
# **3. `fixed_clip`** (5 minutes): find the mistake in `broken_clip` above, and write it correctly. In `shard_map`
# over the axis "data", `g` is this device's shard of the gradient. Clip the length of the full gradient to 1.
# <details><summary>Hint</summary>Squares can be added over devices, lengths cannot.</details>


# %%
from pmapdp.lessons.checks import check


def born_in_place(build, sharding):
    """The array that build() makes, in shards."""
    ...  # your code: 1 line


def zero_step(w, g, m):
    """(w [D], m [D / N]) after one update."""
    ...  # your code: 5 or 6 lines


def fixed_clip(g):
    """This device's shard of the clipped gradient."""
    ...  # your code: 2 lines


for exercise in (born_in_place, zero_step, fixed_clip):
    check("16_born_sharded", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/16_born_sharded.py](solutions/16_born_sharded.py)
#
# ## Take away
#
# - Shapes first, then shardings, then numbers: `eval_shape`, a table of rules, `jit(..., out_shardings=...)`.
# - ZeRO-1 is a reduce-scatter, the update of a shard, and an all-gather. ZeRO-3 lowers the peak only if each layer is
#   gathered by itself.
# - Once the gradients are split, whatever needs all of them, such as their norm, needs a `psum`.
#
# The code is in [sharding/split_step.py](../pmapdp/sharding/split_step.py) and
# [sharding/zero.py](../pmapdp/sharding/zero.py); the flags are `--mesh`, `--layout` and `--shard-state`. The
# function that gives every array of a train state its sharding is `MeshLayout.state` in
# [sharding/layout.py](../pmapdp/sharding/layout.py). Read on: [Flax's guide to scaling
# up](https://flax.readthedocs.io/en/latest/guides/flax_gspmd.html) (its program is
# `python -m pmapdp.train nnx-mesh`), and [the scaling book on
# training](https://jax-ml.github.io/scaling-book/training/). Next: [17 Train with many
# processes](17_many_processes.ipynb).

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
# # 13. Split the model
#
# After this lesson you can split a network over devices by tensor parallelism, predict which collectives the compiler inserts,
# and change the layout in the middle of a run.
#
# About 30 minutes · before: [14 A real training run](14_a_real_training_run.ipynb) · next:
# [16 Born sharded](16_born_sharded.ipynb)
#
# So far each device held the whole model. A model that is too large for one device must be split as well. With `jit`, only
# the shardings change, and the step stays as it is. This lesson compares three layouts:
#
# - **data**: *data parallelism*. Only the examples are split.
# - **model**: *tensor parallelism*. The hidden units are split too, so each device holds some columns of the first matrix and
#   the matching rows of the second.
# - **spatial**: *spatial parallelism*. The features of an input are split as well. For an image these are its rows, so each
#   device gets a part of every image.
#
# Letters: B examples in the global batch, D features, H hidden units, C classes. As in lesson 09, `collectives` of pmapdp
# lists the collectives in the text of a compiled program.

# %%
import inspect
import textwrap
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import P, lax
from jax.sharding import Mesh, NamedSharding

from pmapdp import devices
from pmapdp.compare.collectives import collectives
from pmapdp.data.batches import Batches
from pmapdp.errors import UserError
from pmapdp.models.mlp import MLP
from pmapdp.registry import load_data
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.checksums import checksum
from pmapdp.sharding.fit import fit_layout
from pmapdp.sharding.layout import Layout
from pmapdp.sharding.split_step import make_steps
from pmapdp.state import Task, create_state
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_15

drawing.setup()
chosen = devices.choose(8)
mesh = Mesh(np.array(chosen).reshape(2, 2, 2), ("data", "feature", "model"))
print(devices.describe(chosen), "|", mesh)

# %% [markdown]
# ## Two ways to split a product
#
# In `y = x @ w` two axes are *kept*: the rows of x and the columns of w. One axis is *summed over*: the columns of x, which
# are the rows of w. (JAX calls it the *contracting* dimension.) Either kind of axis can be split. The smallest case:
# `[1, 2, 3, 4]` times a column of four ones is 10, and with two such columns it is 10 twice. First we split the four
# features in two, and then the two columns of w. **Predict:** what is the sum of each half of the features, and which of the
# two splits needs a collective?

# %%
x, ones = np.float32([[1, 2, 3, 4]]), np.ones((4, 2), np.float32)
kinds = []
for name, x_spec, w_spec in (
    ("summed over", P(None, "feature"), P("feature", None)),
    ("kept", P(), P(None, "model")),
):
    arguments = jax.device_put(x, NamedSharding(mesh, x_spec)), jax.device_put(ones, NamedSharding(mesh, w_spec))
    shapes = [each.addressable_shards[0].data.shape for each in arguments]
    product = jax.jit(jnp.matmul, out_shardings=NamedSharding(mesh, P(None, w_spec[1])))
    kinds.append([each.kind for each in collectives(product.lower(*arguments).compile().as_text())])
    print(f"{name:12s} a device holds x {shapes[0]} and w {shapes[1]}; collectives: {kinds[-1]}")
    np.testing.assert_array_equal(product(*arguments), [[10, 10]])
assert kinds == [["all-reduce"], []]
assert x[0, :2].sum() + x[0, 2:].sum() == 3 + 7 == 10

# %% [markdown]
# Where the axis that is summed over is split, the devices hold the partial sums 3 and 7, and an **all-reduce** adds them.
# Where a kept axis is split, no communication is needed.
#
# ## Three layouts of one network
#
# The network is `relu(x @ W1) @ W2`, on a mesh of 2 x 2 x 2 devices. We give each axis of each array a *logical name*, which
# says what the axis means. A layout is then a table of rules from logical names to mesh axes. A rule may name several mesh
# axes. An axis without a rule is not split.

# %%
B, D, H, C = 64, 784, 512, 10
NAMES = {
    "x": ("batch", "features"),
    "W1": ("features", "hidden"),
    "h": ("batch", "hidden"),
    "W2": ("hidden", "classes"),
    "y": ("batch", "classes"),
}
RULES = {
    "data": {"batch": ("data", "feature", "model")},
    "model": {"batch": ("data", "feature"), "hidden": "model"},
    "spatial": {"batch": "data", "features": "feature", "hidden": "model"},
}
SHAPES = {"x": (B, D), "W1": (D, H), "h": (B, H), "W2": (H, C), "y": (B, C)}


def sharding_of(layout, name):
    """The sharding of the array `name`: each of its axes as the rules of the layout say."""
    return NamedSharding(mesh, P(*(RULES[layout].get(axis) for axis in NAMES[name])))


lesson_15.layouts(RULES, SHAPES, sharding_of)

# %% [markdown]
# Each large rectangle is an array, and its name and the shape of a shard are above it. Each box is a shard, with the colour
# and the number of the first device that holds it. For each of the two products, look whether the axis that it sums over is
# split. **Predict:** how many all-reduces does the forward pass have in each layout?

# %%
random = np.random.default_rng(0)
data = load_data("digits")
images, labels = data.train.inputs[:B].reshape(B, D).astype(np.float32) / 255, data.train.labels[:B]
weights = {
    "W1": random.normal(0, 0.05, (D, H)).astype(np.float32),
    "W2": random.normal(0, 0.05, (H, C)).astype(np.float32),
}


def forward(weights, x):
    return jax.nn.relu(x @ weights["W1"]) @ weights["W2"]


def put(layout):
    """Weights and inputs, placed as the layout says."""
    placed = {name: jax.device_put(weights[name], sharding_of(layout, name)) for name in weights}
    return placed, jax.device_put(images, sharding_of(layout, "x"))


counts = {}
for layout in RULES:
    program = jax.jit(forward, out_shardings=sharding_of(layout, "y")).lower(*put(layout)).compile().as_text()
    counts[layout] = [(each.kind, each.count, each.bytes) for each in collectives(program)]
    print(f"{layout:8s} collectives: {counts[layout]}")
assert counts["data"] == []
assert counts["model"] == [("all-reduce", 1, 4 * (B // 4) * C)]  # y, of the 16 examples on a device
assert counts["spatial"] == [("all-reduce", 2, 4 * (B // 2) * (H // 2 + C))]  # half of h, then y

# %% [markdown]
# There is none in *data*, one in *model* and two in *spatial*. In *model*, `h @ W2` sums over H, which is split. One
# all-reduce serves two matrices: W1 is split along its columns and W2 along its rows, so the activation between them can stay
# split (Shoeybi et al., ["Megatron-LM"](https://arxiv.org/abs/1909.08053)). In *spatial*, `x @ W1` also sums over a split
# axis, D.
#
# ## The training step
#
# The step is that of lesson 09. Only its shardings change with the layout. We compare five updates with one device
# (float32, tolerance 1e-5, because the sums are added up in another order). **Predict:** under *data*, each device
# all-reduces the gradients of all weights. How much of that does it all-reduce under *model*?


# %%
def step(weights, x, labels):
    def loss(weights):
        return optax.softmax_cross_entropy_with_integer_labels(forward(weights, x), labels).mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


alone = weights
for _ in range(5):
    alone = jax.jit(step)(alone, images, labels)
steps, reduced = {}, {}
for layout in RULES:
    placed, x = put(layout)
    y = jax.device_put(labels, NamedSharding(mesh, P(RULES[layout]["batch"])))
    out = {name: sharding_of(layout, name) for name in weights}
    steps[layout] = jax.jit(step, out_shardings=out)  # <- changed
    found = collectives(steps[layout].lower(placed, x, y).compile().as_text())
    for _ in range(5):
        placed = steps[layout](placed, x, y)
    for name in weights:
        np.testing.assert_allclose(placed[name], alone[name], rtol=0, atol=1e-5)
    held = sum(w.addressable_shards[0].data.nbytes for w in placed.values())
    reduced[layout] = sum(each.bytes for each in found if each.kind == "all-reduce")
    print(f"{layout:8s} a device holds {held / 1e6:.2f} MB of weights and all-reduces {reduced[layout] / 1e6:.2f} MB")
assert reduced["data"] == 4 * (D * H + H * C)
assert 0.5 < reduced["model"] / reduced["data"] < 0.51
assert 0.25 < reduced["spatial"] / reduced["data"] < 0.35

# %% [markdown]
# Under *model*, each device holds half of the weights, so it all-reduces half as many bytes of gradients. Under *spatial* it
# holds a quarter of W1, but it must also all-reduce activations of the hidden layer. Which layout is cheaper depends on
# the size of the weights compared with the size of the batch.
#
# **A failure on purpose.** Split W2 along its columns, like W1. The result is still right. **Predict:** what must the
# program then do with `h`, which is split along H?

# %%
placed, x = put("model")
placed["W2"] = jax.device_put(weights["W2"], NamedSharding(mesh, P(None, "model")))  # <- changed: columns
out = NamedSharding(mesh, P(RULES["model"]["batch"], "model"))
wasteful = jax.jit(forward, out_shardings=out)
found = collectives(wasteful.lower(placed, x).compile().as_text())
print(*found)
assert [(each.kind, each.bytes) for each in found] == [("all-gather", 4 * (B // 4) * H)]
np.testing.assert_allclose(wasteful(placed, x), forward(weights, images), rtol=0, atol=1e-5)

# %% [markdown]
# Every device gathers all of `h` for its 16 examples, which is 16 x 512 numbers. An all-reduce of 16 x 10 numbers would do.
# Nothing warns you, so read the collectives of the program.
#
# pmapdp takes a mesh and a layout by name, and checks them against the model. Here are three that do not fit: 512 hidden units
# on 3 devices, a mesh axis that splits nothing, and two axes of one array on the same mesh axis.

# %%
task = Task(MLP, optax.sgd(0.1))
for count, options in (
    (6, {"mesh": "data=2,model=3", "layout": "model"}),
    (8, {"mesh": "data=4,model=2"}),
    (8, {"mesh": "data=4,model=2", "layout": "hidden=model,embed=model"}),
):
    try:
        fit_layout(chosen[:count], task, (28, 28, 1), **options)
        raise AssertionError("it was not refused")
    except UserError as error:
        print(textwrap.fill(f"error: {error}", 110), "\n")

# %% [markdown]
# Each message says what does not fit, and what would.
#
# ## One run through all three
#
# The models of pmapdp name their axes ([models/mlp.py](../src/pmapdp/models/mlp.py)), and `--mesh` and `--layout` choose
# the rules. A checkpoint holds global arrays, so a run can resume in another layout than the one in which it was
# stopped. Here one run makes two updates in each layout, with a checkpoint in between. **Predict:** how much does its last
# state differ from that of a run on one device?

# %%
LAYOUTS = (
    {},
    {"mesh": "data=4,model=2", "layout": "model"},
    {"mesh": "data=2,feature=2,model=2", "layout": "spatial"},
)
order = Batches(data.train, B, shuffle_seed=0)
batches = [batch for batch, _ in zip(order.epoch(0), range(6), strict=False)]
single, start = make_steps("single", task, chosen[:1]), create_state(task)
state = single.place_state(start)
for batch in batches:
    state, _ = single.train_step(state, single.place_batch(batch))

with TemporaryDirectory() as folder:
    checkpoints = Checkpoints(Path(folder) / "checkpoints")
    checkpoints.save(0, start, {})
    after = checksum(start)
    for number, options in enumerate(LAYOUTS):
        layout = fit_layout(chosen, task, (28, 28, 1), **options)
        way = make_steps("jit", task, chosen, layout)
        checkpoints.wait()
        restored = checkpoints.read(2 * number, task, way.state_sharding).state  # <- read in this layout's shards
        before = checksum(restored)
        assert before == after  # the last layout's, to the bit
        for batch in batches[2 * number : 2 * number + 2]:
            restored, sums = way.train_step(restored, way.place_batch(batch))
        checkpoints.save(2 * number + 2, restored, {})
        after = checksum(restored)
        print(f"{layout.text}: from {before:08x} to {after:08x}, loss {sums.loss / sums.count:.4f}")
    checkpoints.close()
ends = jax.device_get((state, restored))
difference = max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, ends), strict=True))
print(f"largest difference to one device: {difference:.1e}")
assert difference < 1e-5

# %% [markdown]
# It differs by rounding alone. Each layout starts with the checksum with which the one before it ended: the state was
# restored to the bit.
#
# Finally, the time of a step. Eight simulated devices share the cores of this machine, so *data* is the slowest here: each of
# the eight all-reduces and updates a full copy of the weights. Eight real devices do that at the same time, and another layout
# may be the fastest on them.

# %%
for layout in RULES:
    (w, x), y = put(layout), jax.device_put(labels, NamedSharding(mesh, P(RULES[layout]["batch"])))
    seconds = []
    for _ in range(8):
        clock = time.perf_counter()
        w = jax.block_until_ready(steps[layout](w, x, y))
        seconds.append(time.perf_counter() - clock)
    print(f"{layout:8s} median {1000 * np.median(seconds[1:]):.1f} ms on {devices.describe(chosen)}")

# %% [markdown]
# ## Exercises
#
# **1. `split_in_pairs`** (3 minutes): return the PartitionSpecs of W1 `[D, H]` and W2 `[H, C]` such that each of the two devices
# of the mesh axis `"model"` holds half of each matrix, and the forward pass needs a single all-reduce.
# <details><summary>Hint</summary>The axis that the two matrices share is H.</details>
#
# **2. `two_layers`** (10 minutes): the whole lesson, by hand. Write tensor parallelism in `shard_map` over the axis "model".
# `x` `[B, D]` is replicated, `W1` `[D, h]` holds this device's columns, and `W2` `[h, C]` its rows. Return
# `relu(x @ W1) @ W2` of the full matrices on every device, with a single collective.
# <details><summary>Hint</summary>The ReLU works on each hidden unit alone. Which product sums over a split axis?</details>
#
# **3. `mended_layer`** (5 minutes): find the planted mistake. `broken_layer` is the second layer with a bias, in the same
# `shard_map`: `h` `[B, h]` and `W2` `[h, C]` hold this device's hidden units, and `bias` `[C]` is replicated. On one device it
# is right. On four it raises no error, and its result is wrong. Write it correctly.
# <details><summary>Hint</summary>Let h be 0, and compute the result in your head.</details>


# %%
def broken_layer(h, W2, bias):
    return lax.psum(h @ W2 + bias, "model")


def split_in_pairs():
    """(spec of W1, spec of W2)."""
    ...  # your code: 1 line


def two_layers(x, W1, W2):
    """[B, C], the same on every device."""
    ...  # your code: 1 or 2 lines


def mended_layer(h, W2, bias):
    """[B, C], the same on every device."""
    ...  # your code: 1 line


for exercise in (split_in_pairs, two_layers, mended_layer):
    check("15_split_the_model", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/15_split_the_model.py](solutions/15_split_the_model.py)
#
# ## Take away
#
# - A product that is split along a kept axis needs no communication. If it is split along the axis that is summed over, it
#   needs an all-reduce.
# - Split the first matrix along its columns and the next along its rows. Then one all-reduce serves both.
# - Model and step stay as they are. Logical names and rules make a layout, and a run can resume in any layout.
#
# [sharding/layout.py](../src/pmapdp/sharding/layout.py) does for every array what `sharding_of` did here; its central function is
# printed below (`split` belongs to the next lesson). The notation of the rules is in
# [sharding/notation.py](../src/pmapdp/sharding/notation.py). Read on: [the scaling book on sharded
# matrices](https://jax-ml.github.io/scaling-book/sharding/). Next: [16 Born sharded](16_born_sharded.ipynb).

# %%
print(inspect.getsource(Layout.array))

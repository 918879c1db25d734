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

# %% [markdown]
# # 11. Split the model
#
# After this lesson you can cut a network over devices in three ways, from data to model to spatial parallelism, predict which
# collective the compiler puts where, and go from one layout to another in the middle of a training run.
#
# About 25 minutes · before: [10 A real training run](10_a_real_training_run.ipynb) · next:
# [12 Born sharded](12_born_sharded.ipynb)
#
# Until here each device held the whole model. A model that is too large for one device must be cut itself. With `jit` only
# the shardings change: the step stays what it is.
#
# Letters: B examples in the global batch, D features, H hidden units, C classes.

# %%
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
from jax import P
from jax.sharding import Mesh, NamedSharding

from pmapdp import devices
from pmapdp.collectives import collectives
from pmapdp.data.batches import Batches
from pmapdp.errors import UserError
from pmapdp.models.mlp import MLP
from pmapdp.registry import load_data
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.checksums import checksum
from pmapdp.sharding.fit import fit_layout
from pmapdp.sharding.split_step import make_steps
from pmapdp.state import Task, create_state

drawing.setup()
chosen = devices.choose(8)
mesh = Mesh(np.array(chosen).reshape(2, 2, 2), ("data", "feature", "model"))
print(devices.describe(chosen), "|", mesh)

# %% [markdown]
# ## Two ways to cut a product
#
# `y = x @ w` can be cut along an axis that is *kept* (rows of x, columns of w), or along the one that is *summed over*. The
# smallest case: `[1, 2, 3, 4]` times four ones is 10. Cut the four features in two. **Predict** what each half comes to, and
# who must talk. Then cut the columns of w instead.

# %%
x, ones = np.float32([[1, 2, 3, 4]]), np.ones((4, 2), np.float32)
for name, x_spec, w_spec in (
    ("features, summed over", P(None, "feature"), P("feature", None)),
    ("columns, kept", P(), P(None, "model")),
):
    parts = jax.device_put(x, NamedSharding(mesh, x_spec)), jax.device_put(ones, NamedSharding(mesh, w_spec))
    product = jax.jit(jnp.matmul, out_shardings=NamedSharding(mesh, P(None, w_spec[1])))
    program = product.lower(*parts).compile().as_text()
    print(f"{name:22s} a device holds x {parts[0].addressable_shards[0].data.shape}, w {parts[1].addressable_shards[0].data.shape};",
          "talks:", [each.kind for each in collectives(program)] or "nobody")
    np.testing.assert_array_equal(product(*parts), [[10, 10]])
assert x[0, :2].sum() + x[0, 2:].sum() == 3 + 7 == 10

# %% [markdown]
# The sum over a cut axis has parts 3 and 7 on different devices: an **all-reduce** adds them. A kept axis needs nobody.
#
# ## Three layouts of one network
#
# A network of two layers, `relu(x @ W1) @ W2`, on one mesh of 2 x 2 x 2 devices. Rules go from logical names of axes to
# axes of the mesh; a name may take several of them.

# %%
B, D, H, C = 64, 784, 512, 10
NAMES = {"x": ("batch", "features"), "W1": ("features", "hidden"), "h": ("batch", "hidden"), "W2": ("hidden", "classes"),
         "y": ("batch", "classes")}  # fmt: skip
RULES = {
    "data": {"batch": ("data", "feature", "model")},
    "model": {"batch": ("data", "feature"), "hidden": "model"},
    "spatial": {"batch": "data", "features": "feature", "hidden": "model"},
}
SHAPES = {"x": (B, D), "W1": (D, H), "h": (B, H), "W2": (H, C), "y": (B, C)}


def placed(layout, name):
    """The sharding of the array `name`: each of its axes as the rules of the layout say."""
    return NamedSharding(mesh, P(*(RULES[layout].get(axis) for axis in NAMES[name])))


axes = drawing.canvas(22, 9.6)
for row, layout in enumerate(RULES):
    top = 0.6 + 3.1 * row
    axes.text(0, top + 1.2, layout, weight="bold")
    for column, name in enumerate(NAMES):
        left, sharding = 3 + 3.9 * column, placed(layout, name)
        axes.text(left + 1.5, top - 0.12, f"{name} {sharding.shard_shape(SHAPES[name])}", ha="center", fontsize=8)
        (n, m), drawn = SHAPES[name], set()
        for device, (rows, columns) in sharding.devices_indices_map(SHAPES[name]).items():
            (r0, r1, _), (c0, c1, _) = rows.indices(n), columns.indices(m)
            if (r0, c0) not in drawn:  # a part that several devices hold, in the colour of the first
                drawing.box(axes, left + 3 * c0 / m, top + 2.2 * r0 / n, str(device.id) if r1 - r0 > n // 8 else "",
                            device=device.id, width=3 * (c1 - c0) / m - 0.05, height=2.2 * (r1 - r0) / n - 0.05)  # fmt: skip
            drawn.add((r0, c0))
plt.show()

# %% [markdown]
# Each picture is a whole array; each box is a part, with the first device that holds it, and above is the shape of a part.
# **Look at the axis that is summed over**: in *model*, `h` is cut along H and so is `W2`; in *spatial*, `x` and `W1` are both
# cut along D too. **Predict** the number of all-reduces of the forward pass in each row.

# %%
random = np.random.default_rng(0)
data = load_data("digits")
images, labels = data.train.inputs[:B].reshape(B, D).astype(np.float32) / 255, data.train.labels[:B]
weights = {"W1": random.normal(0, 0.05, (D, H)).astype(np.float32), "W2": random.normal(0, 0.05, (H, C)).astype(np.float32)}


def forward(weights, x):
    return jax.nn.relu(x @ weights["W1"]) @ weights["W2"]


def put(layout):
    """Weights and inputs where the layout has them."""
    return ({name: jax.device_put(weights[name], placed(layout, name)) for name in weights},
            jax.device_put(images, placed(layout, "x")))  # fmt: skip


counts = {}
for layout in RULES:
    program = jax.jit(forward, out_shardings=placed(layout, "y")).lower(*put(layout)).compile().as_text()
    counts[layout] = [(each.kind, each.count, each.bytes) for each in collectives(program)]
    print(f"{layout:8s}", counts[layout] or "nobody talks")
assert counts["data"] == []
assert counts["model"] == [("all-reduce", 1, 4 * B * C // 4)]  # y, of the 16 examples that a device has
assert counts["spatial"] == [("all-reduce", 2, 4 * (B // 2) * (H // 2 + C))]  # a half of h, then y

# %% [markdown]
# In *model* one all-reduce serves two matrices, since W1 is cut along its columns and W2 along its rows: the
# activation between them never has to be whole (Shoeybi et al., "Megatron-LM", arXiv:1909.08053). In *spatial* the
# first product is a sum over devices as well.
#
# ## The training step
#
# Unchanged from lesson 08. The proof is one device; the compiled program shows what each layout costs.


# %%
def step(weights, x, labels):
    def loss(weights):
        return optax.softmax_cross_entropy_with_integer_labels(forward(weights, x), labels).mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


alone = weights
for _ in range(5):
    alone = jax.jit(step)(alone, images, labels)
steps = {}
for layout in RULES:
    placed_weights, x = put(layout)
    y = jax.device_put(labels, NamedSharding(mesh, P(RULES[layout]["batch"])))
    steps[layout] = jax.jit(step, out_shardings={name: placed(layout, name) for name in weights})  # <- the only change
    program = steps[layout].lower(placed_weights, x, y).compile().as_text()
    for _ in range(5):
        placed_weights = steps[layout](placed_weights, x, y)
    for name in weights:
        np.testing.assert_allclose(placed_weights[name], alone[name], rtol=0, atol=1e-5)
    held = sum(w.addressable_shards[0].data.nbytes for w in placed_weights.values())
    print(f"{layout:8s} a device holds {held / 1e6:.2f} MB of weights;", *collectives(program))

# %% [markdown]
# Equal to one device within 1e-5 (float32, sums in another order). From *data* to *model* the gradients that are added up are
# halves; from *model* to *spatial* they are quarters of W1. Activations come on top: what is cheaper depends on the
# size of the weights against the size of the batch.
#
# **A failure on purpose.** Cut W2 along its columns, as W1. The result is right. **Predict** what the program has to do with
# `h`, which is cut along H.

# %%
wide = np.zeros((H, 16), np.float32)  # 16 classes, since 10 columns are for 2 devices only
layout = "model"
(placed_weights, x), columns = put(layout), NamedSharding(mesh, P(None, "model"))
wrong = jax.jit(lambda w, v, x: jax.nn.relu(x @ w) @ v, out_shardings=NamedSharding(mesh, P(RULES[layout]["batch"], "model")))
found = collectives(wrong.lower(placed_weights["W1"], jax.device_put(wide, columns), x).compile().as_text())
print(*found)
assert [each.kind for each in found] == ["all-gather"]

# %% [markdown]
# All of `h` is gathered on every device, 16 x 512 numbers instead of a sum of 16 x 10. Nothing warns you: read the program.
# Other mistakes pmapdp refuses, each in a sentence:

# %%
task = Task(MLP, optax.sgd(0.1))
for options in ({"mesh": "data=2,model=3", "layout": "model"}, {"mesh": "data=4,model=2"},
                {"mesh": "data=4,model=2", "layout": "hidden=model,embed=model"}):  # fmt: skip
    try:
        fit_layout(chosen[: 6 if "3" in options["mesh"] else 8], task, **options)
        raise AssertionError("it was not refused")
    except UserError as error:
        print("error:", error, "\n")

# %% [markdown]
# ## One run through all three
#
# pmapdp's models name their axes ([models/mlp.py](../pmapdp/models/mlp.py)), and `--mesh` and `--layout` say the rest. A
# checkpoint holds whole arrays in parts, so each layout goes on where another stopped. **Predict** how far the end is from
# a run on one device.

# %%
LAYOUTS = ({}, {"mesh": "data=4,model=2", "layout": "model"},
           {"mesh": "data=2,feature=2,model=2", "layout": "spatial"})  # fmt: skip
order = Batches(data.train, B, shuffle_seed=0)
batches = [batch for batch, _ in zip(order.epoch(0), range(6), strict=False)]
single = make_steps("single", task, chosen[:1])
state = create_state(task, single.state_sharding)
for batch in batches:
    state, _ = single.train_step(state, single.place_batch(batch))

with TemporaryDirectory() as folder:
    checkpoints = Checkpoints(Path(folder) / "checkpoints")
    checkpoints.save(0, create_state(task), {})
    for number, options in enumerate(LAYOUTS):
        layout = fit_layout(chosen, task, (28, 28, 1), **options)
        way = make_steps("jit", task, chosen, layout)
        checkpoints.wait()
        restored = checkpoints.read(2 * number, task, way.state_sharding).state  # straight into its parts
        start = checksum(restored)
        for batch in batches[2 * number : 2 * number + 2]:
            restored, sums = way.train_step(restored, way.place_batch(batch))
        checkpoints.save(2 * number + 2, restored, {})
        print(f"{layout.text}: from {start:08x} to {checksum(restored):08x}, loss {sums.loss / sums.count:.4f}")
    checkpoints.close()
difference = max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, jax.device_get((state, restored))), strict=True))
print(f"largest difference to one device: {difference:.1e}")
assert difference < 1e-5

# %% [markdown]
# Each start has the number of the end before it: no bit is lost on the way. Now the time of a step; eight simulated
# devices share this machine's cores, so read it as "no layout is absurd", not as a ranking.

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
# 1. `cut_in_pairs`: the PartitionSpecs of W1 `[D, H]` and W2 `[H, C]` such that every device holds a half of each (mesh axis
#    `"model"`), and one all-reduce is enough. <details><summary>Hint</summary>The axis between them is H.</details>
# 2. `product_of_parts`: in `shard_map`, x `[B, d]` and w `[d, H]` are this device's features. Return the whole product.
#    <details><summary>Hint</summary>A sum over devices; the axis is called "feature".</details>
# 3. `part_shape`: the shape of a part, from the whole shape, one mesh axis name (or None) for each axis, and the sizes of the
#    mesh axes as a dictionary. <details><summary>Hint</summary>Divide where there is a name.</details>


# %%
def cut_in_pairs():
    """(spec of W1, spec of W2)."""
    ...  # your code: 1 line


def product_of_parts(x, w):
    """[B, H], whole on every device."""
    ...  # your code: 1 line


def part_shape(shape, names, sizes):
    """A tuple of as many numbers as `shape`."""
    ...  # your code: 1 or 2 lines


for exercise in (cut_in_pairs, product_of_parts, part_shape):
    check("11_split_the_model", exercise.__name__, exercise)

# %% [markdown]
# Solutions: [solutions/11_split_the_model.py](solutions/11_split_the_model.py)
#
# ## Take away
#
# - A product cut along a kept axis needs nobody; cut along the axis that is summed over, it needs an all-reduce.
# - Cut the first matrix along its columns and the next along its rows: one all-reduce for the two.
# - Model and step stay; names of axes and rules make a layout, and checkpoints go from one to any other.
#
# In pmapdp this is [sharding.py](../pmapdp/sharding/layout.py), with the rules of [layout.py](../pmapdp/sharding/notation.py). Next:
# [12 Born sharded](12_born_sharded.ipynb).

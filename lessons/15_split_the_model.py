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
# # 15. Split the model
#
# After this lesson you can split a network over devices by tensor parallelism, predict which collectives the compiler
# inserts forward and backward, and change the layout in the middle of a run.
#
# About 35 minutes · you need [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb), and for the exercises
# `shard_map` from [10 Three ways side by side](10_three_ways_side_by_side.ipynb) · previous: [14 A real training
# run](14_a_real_training_run.ipynb) · next: [16 Born sharded](16_born_sharded.ipynb)
#
# So far each device held the whole model. A model that is too large for one device must be split as well. With `jit`,
# only the shardings change, and the step stays as it is. This lesson compares three layouts:
#
# - **data**: *data parallelism*. Only the examples are split.
# - **model**: *tensor parallelism*. The hidden units are split too, so each device holds some columns of the first
#   matrix and the matching rows of the second.
# - **two axes**: *2-D tensor parallelism*. The features of the input are split as well, over a mesh axis of their
#   own.
#
# Letters: B examples in the global batch, D features, H hidden units, C classes.

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
mesh = Mesh(np.array(chosen).reshape(2, 2, 2), ("data", "feature", "model"))
print(devices.describe(chosen), "| jax", jax.__version__)

# %% [markdown]
# ## Two ways to split a product
#
# In `y = x @ w` two axes are *kept*: the rows of x and the columns of w. One axis is *summed over*: the columns of x,
# which are the rows of w. (JAX calls it the *contracting* dimension.) Either kind of axis can be split. The smallest
# case: `[1, 2, 3, 4]` times a column of four ones is 10, and with two such columns it is 10 twice. First we split the
# four features in two, and then the two columns of w. **Predict:** what is the sum of each half of the features, and
# which of the two splits needs a collective?

# %% tags=["prediction"]
from pmapdp.compare.collectives import collectives  # lists the collectives in the text of a compiled program

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

# %% tags=["proof"]
# The asserts behind the answer.
np.testing.assert_array_equal(product(*arguments), [[10, 10]])
assert kinds == [["all-reduce"], []]
assert x[0, :2].sum() + x[0, 2:].sum() == 3 + 7 == 10

# %% [markdown]
# <details><summary>Answer</summary>
#
# Where the axis that is summed over is split, the devices hold the partial sums 3 and 7, and an **all-reduce** adds
# them. Where a kept axis is split, no communication is needed.
#
# </details>
#
# ## Three layouts of one network
#
# The network is `relu(x @ W1) @ W2`, on a mesh of 2 x 2 x 2 devices. Each axis of each array gets a *logical name*,
# which says what the axis means: "batch", "features", "hidden" or "classes". A layout is a table. It says over which
# axes of the mesh a name is split. A name that is not in the table is not split.

# %%
from pmapdp.lessons.pictures import lesson_15

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
    "two axes": {"batch": "data", "features": "feature", "hidden": "model"},
}
SHAPES = {"x": (B, D), "W1": (D, H), "h": (B, H), "W2": (H, C), "y": (B, C)}


def sharding_of(layout, name):
    """The sharding of the array `name`: each of its axes as the rules of the layout say."""
    return NamedSharding(mesh, P(*(RULES[layout].get(axis) for axis in NAMES[name])))


lesson_15.layouts(RULES, SHAPES, sharding_of)

# %% [markdown]
# Each large rectangle is an array, and its name and the shape of a shard are above it. Each box is a shard, with the
# colour and the number of the first device that holds it. For each of the two products, look whether the axis that it
# sums over is split. **Predict:** how many all-reduces does the forward pass have in each layout?

# %% tags=["prediction"]
from pmapdp.registry import load_data  # the digits: images of 28 x 28 pixels, and labels

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

# %% tags=["proof"]
# The asserts behind the answer.
assert counts["data"] == []
assert counts["model"] == [("all-reduce", 1, 4 * (B // 4) * C)]  # y, of the 16 examples on a device
assert counts["two axes"] == [("all-reduce", 2, 4 * (B // 2) * (H // 2 + C))]  # half of h, then y

# %% [markdown]
# <details><summary>Answer</summary>
#
# There is none in *data*, one in *model* and two in *two axes*. In *model*, `h @ W2` sums over H, which is split. W1
# is split along its columns and W2 along its rows, so the activation between them can stay split, and the pair needs
# a single all-reduce in the forward pass (Shoeybi et al., ["Megatron-LM"](https://arxiv.org/abs/1909.08053)). In *two
# axes*, `x @ W1` also sums over a split axis, D.
#
# </details>
#
# The backward pass of a pair needs one as well, because the gradient of its input sums over H. Only the first pair
# needs none: its input is the data. **Predict:** how many all-reduces of activations has a training step with one,
# two and three such pairs?

# %% tags=["prediction"]
line = Mesh(np.array(chosen[:4]), ("model",))
columns, rows, everywhere = (NamedSharding(line, spec) for spec in (P(None, "model"), P("model", None), P()))


def squared(pairs, x):
    for first, second in pairs:
        x = x + jnp.tanh(x @ first) @ second
    return jnp.square(x).mean()


activations = jax.device_put(np.ones((32, 64), np.float32), everywhere)
of_pairs = {}
for pairs in (1, 2, 3):
    matrices = [(np.ones((64, 256), np.float32) / 64, np.ones((256, 64), np.float32) / 256)] * pairs
    placed = jax.device_put(matrices, [(columns, rows)] * pairs)
    found = []
    for function in (squared, jax.value_and_grad(squared)):
        text = jax.jit(function).lower(placed, activations).compile().as_text()
        found.append(sum(each.bytes for each in collectives(text) if each.kind == "all-reduce") // activations.nbytes)
    of_pairs[pairs] = found
    print(f"pairs {pairs}: {found[0]} all-reduces of [32, 64] forward, {found[1]} forward and backward")

# %% tags=["proof"]
# The asserts behind the answer.
for pairs, found in of_pairs.items():
    assert found == [pairs, 2 * pairs - 1]

# %% [markdown]
# <details><summary>Answer</summary>
#
# L pairs need L all-reduces forward and L - 1 backward: the first pair's input needs no gradient here. With a layer before
# the first pair, such as an embedding, it's L backward. Each has the size of the activations, and the next product waits
# for it. So tensor parallelism wants the fastest links, such as those within a node.
#
# </details>
#
# ## The training step
#
# The step is that of lesson 09. Only its shardings change with the layout. We compare five updates with one device
# (float32, tolerance 1e-5, because the sums are added up in another order). **Predict:** under *data*, each device
# all-reduces the gradients of all weights. How much of that does it all-reduce under *model*?

# %% tags=["prediction"]
import optax


def step(weights, x, labels):
    def loss(weights):
        return optax.softmax_cross_entropy_with_integer_labels(forward(weights, x), labels).mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


alone = weights
for _ in range(5):
    alone = jax.jit(step)(alone, images, labels)
steps, reduced, after = {}, {}, {}
for layout in RULES:
    placed, x = put(layout)
    y = jax.device_put(labels, NamedSharding(mesh, P(RULES[layout]["batch"])))
    out = {name: sharding_of(layout, name) for name in weights}
    steps[layout] = jax.jit(step, out_shardings=out)  # <- changed
    found = collectives(steps[layout].lower(placed, x, y).compile().as_text())
    for _ in range(5):
        placed = steps[layout](placed, x, y)
    after[layout] = placed
    held = sum(w.addressable_shards[0].data.nbytes for w in placed.values())
    reduced[layout] = sum(each.bytes for each in found if each.kind == "all-reduce")
    print(f"{layout:8s} a device holds {held / 1e6:.2f} MB of weights and all-reduces {reduced[layout] / 1e6:.2f} MB")

# %% tags=["proof"]
# The asserts behind the answer.
for trained in after.values():
    for name in weights:
        np.testing.assert_allclose(trained[name], alone[name], rtol=0, atol=1e-5)
assert reduced["data"] == 4 * (D * H + H * C)
assert 0.5 < reduced["model"] / reduced["data"] < 0.51
assert 0.25 < reduced["two axes"] / reduced["data"] < 0.35

# %% [markdown]
# <details><summary>Answer</summary>
#
# Under *model*, each device holds half of the weights, so it all-reduces half as many bytes of gradients. Under *two
# axes* it holds a quarter of W1, but it must also all-reduce activations of the hidden layer. Which layout is cheaper
# depends on the size of the weights compared with the size of the batch.
#
# </details>
#
# **A failure on purpose.** Split W2 along its columns, like W1. The result is still right. **Predict:** what must the
# program then do with `h`, which is split along H?

# %% tags=["prediction"]
placed, x = put("model")
placed["W2"] = jax.device_put(weights["W2"], NamedSharding(mesh, P(None, "model")))  # <- changed: columns
out = NamedSharding(mesh, P(RULES["model"]["batch"], "model"))
wasteful = jax.jit(forward, out_shardings=out)
found = collectives(wasteful.lower(placed, x).compile().as_text())
print(*found)

# %% tags=["proof"]
# The asserts behind the answer.
assert [(each.kind, each.bytes) for each in found] == [("all-gather", 4 * (B // 4) * H)]
np.testing.assert_allclose(wasteful(placed, x), forward(weights, images), rtol=0, atol=1e-5)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Every device gathers all of `h` for its 16 examples, which is 16 x 512 numbers. An all-reduce of 16 x 10 numbers
# would do. Nothing warns you, so read the collectives of the program.
#
# </details>
#
# ## Split images: halos
#
# A convolution needs the pixels beside each pixel. If the rows of an image are split over devices, which is called
# *spatial parallelism*, each device needs the edge rows of its neighbours, a **halo**. The compiler inserts that
# exchange. **Predict:** 8 images of 32 x 32 pixels with 4 channels, rows split over 4 devices, a kernel of 3 x 3. How
# many rows of pixels does a device receive?

# %% tags=["prediction"]
pixels = random.normal(size=(8, 32, 32, 4)).astype(np.float32)
kernel = random.normal(size=(3, 3, 4, 4)).astype(np.float32)
by_rows = NamedSharding(Mesh(np.array(chosen[:4]), ("rows",)), P(None, "rows"))


def convolve(images, kernel):
    return lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


split_convolution = jax.jit(convolve, out_shardings=by_rows)
placed = jax.device_put(pixels, by_rows), jax.device_put(kernel, NamedSharding(by_rows.mesh, P()))
found = collectives(split_convolution.lower(*placed).compile().as_text())
print(*found, "| one row of 8 images has", 4 * 8 * 32 * 4, "bytes")

# %% tags=["proof"]
# The asserts behind the answer.
assert [(each.kind, each.count, each.bytes) for each in found] == [("collective-permute", 2, 2 * 4 * 8 * 32 * 4)]
np.testing.assert_allclose(split_convolution(*placed), convolve(pixels, kernel), rtol=0, atol=1e-4)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two: one row from each neighbour.
#
# </details>
#
# ## One run through all three layouts
#
# The arrays of a program are global, whatever their shardings. So a run can change its layout between two updates:
# place the weights anew. Here one run makes two updates in each layout. **Predict:** how much does its end differ
# from that of a run on one device?

# %% tags=["prediction"]
running = weights
for layout in RULES:
    running = jax.device_put(running, {name: sharding_of(layout, name) for name in weights})  # <- new: another layout
    x = jax.device_put(images, sharding_of(layout, "x"))
    y = jax.device_put(labels, NamedSharding(mesh, P(RULES[layout]["batch"])))
    for _ in range(2):
        running = steps[layout](running, x, y)
    print(f"{layout:8s} W1 in shards of {running['W1'].addressable_shards[0].data.shape}")
single = weights
for _ in range(6):
    single = jax.jit(step)(single, images, labels)
difference = max(float(np.abs(np.asarray(running[name]) - np.asarray(single[name])).max()) for name in weights)
print(f"largest difference to one device: {difference:.1e}")

# %% tags=["proof"]
# The asserts behind the answer.
assert difference < 1e-5

# %% [markdown]
# <details><summary>Answer</summary>
#
# It differs by rounding alone. A checkpoint holds global arrays as well, so pmapdp resumes a run in another layout in
# the same way. Its models name their axes ([models/mlp.py](../pmapdp/models/mlp.py)), and
# `--mesh data=4,model=2 --layout model` chooses the rules. (What this lesson calls *two axes* is `--layout spatial`
# there.)
#
# </details>
#
# ## Take it home
#
# The next cell needs nothing from above and nothing from pmapdp. It trains a residual network whose blocks are pairs
# of matrices, split over the mesh axis "model", while the examples are split over "data". To try other layouts,
# change `RULES`.

# %% tags=["take-home"]
import os

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

BATCH, EPOCHS, WIDTH, HIDDEN, BLOCKS = 512, 3, 64, 256, 3
mesh = Mesh(np.array(jax.devices()).reshape(-1, 2), ("data", "model"))
RULES = {"batch": "data", "hidden": "model"}  # logical name -> mesh axis; a name without a rule is not split
NAMES = {"first": (None, "width"), "up": ("width", "hidden"), "down": ("hidden", "width"), "last": ("width", None)}


def sharding(*names):
    """Of an array whose axes have these logical names."""
    return NamedSharding(mesh, PartitionSpec(*(RULES.get(name) for name in names)))


random = np.random.default_rng(0)  # put your own arrays in place of these
inputs = random.normal(size=(20_000, 32)).astype(np.float32)
labels = (inputs @ random.normal(size=(32, 10))).argmax(1).astype(np.int32)
train, test = (inputs[:18_005], labels[:18_005]), (inputs[18_005:], labels[18_005:])
features, classes = inputs.shape[1], int(labels.max()) + 1


def create(key):
    """The parameters; those of the blocks have their blocks along a first axis."""
    keys = dict(zip(NAMES, jax.random.split(key, 4), strict=True))
    return {
        "first": jax.random.normal(keys["first"], (features, WIDTH)) * features**-0.5,
        "up": jax.random.normal(keys["up"], (BLOCKS, WIDTH, HIDDEN)) * WIDTH**-0.5,
        "down": jax.random.normal(keys["down"], (BLOCKS, HIDDEN, WIDTH)) * HIDDEN**-0.5,
        "last": jax.random.normal(keys["last"], (WIDTH, classes)) * WIDTH**-0.5,
    }


def forward(params, x):
    x = x @ params["first"]
    for up, down in zip(params["up"], params["down"], strict=True):
        x = x + jax.nn.relu(x @ up) @ down  # columns, then rows: one all-reduce for the two products
    return x @ params["last"]


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(forward(params, x), y).mean()


optimizer = optax.adam(1e-3)


def update(params, optimizer_state, x, y):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    changes, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return optax.apply_updates(params, changes), optimizer_state, value


params = create(jax.random.key(0))
optimizer_state = optimizer.init(params)
of_params = {name: sharding(*[None] * (params[name].ndim - 2), *axes) for name, axes in NAMES.items()}
of_state = optax.tree_map_params(  # Adam's moments are placed like the parameters, its counter is replicated
    optimizer, lambda _, place: place, optimizer_state, of_params, transform_non_params=lambda _: sharding()
)
params, optimizer_state = jax.device_put((params, optimizer_state), (of_params, of_state))
places = (of_params, of_state, sharding("batch"), sharding("batch"))
results = (of_params, of_state, sharding())
train_step = jax.jit(update, in_shardings=places, out_shardings=results, donate_argnums=(0, 1))

predict = jax.jit(lambda params, x: forward(params, x).argmax(1), in_shardings=(of_params, sharding("batch")))


def accuracy(params):
    """Over all test examples. Rows of padding make their number divide by the devices; they are cut off again."""
    missing = -len(test[0]) % mesh.size
    guesses = predict(params, np.pad(test[0], ((0, missing), (0, 0))))
    return (np.asarray(guesses)[: len(test[0])] == test[1]).mean()


print(f"{dict(mesh.shape)}: up {params['up'].shape} in shards of {params['up'].addressable_shards[0].data.shape}")
for epoch in range(EPOCHS):
    order = np.random.default_rng([1, epoch]).permutation(len(train[0]))
    for start in range(0, len(order) - BATCH + 1, BATCH):  # what fills no batch has its turn in another epoch
        rows = order[start : start + BATCH]
        params, optimizer_state, value = train_step(params, optimizer_state, train[0][rows], train[1][rows])
    print(f"epoch {epoch + 1}: loss {float(value):.3f}, test accuracy {accuracy(params):.3f}")
assert accuracy(params) > 0.85

# %% [markdown]
# ## Exercises
#
# **1. `split_in_pairs`** (3 minutes): return the PartitionSpecs of W1 `[D, H]` and W2 `[H, C]` such that each of the
# two devices of the mesh axis `"model"` holds half of each matrix, and the forward pass needs a single all-reduce.
# <details><summary>Hint</summary>The axis that the two matrices share is H.</details>
#
# **2. `two_layers`** (10 minutes): the whole lesson, by hand. Write tensor parallelism in `shard_map` over the axis
# "model". `x` `[B, D]` is replicated, `W1` `[D, h]` holds this device's columns, and `W2` `[h, C]` its rows. Return
# `relu(x @ W1) @ W2` of the full matrices on every device, with a single collective.
# <details><summary>Hint</summary>The ReLU works on each hidden unit alone. Which product sums over a split
# axis?</details>
#
# **3. `fixed_layer`** (5 minutes): find the planted mistake. `broken_layer` is the second layer with a bias, in the
# same `shard_map`: `h` `[B, h]` and `W2` `[h, C]` hold this device's hidden units, and `bias` `[C]` is replicated. On
# one device it is right. On four it raises no error, and its result is wrong. Write it correctly for any number of
# devices.
# <details><summary>Hint</summary>Let h be 0, and compute the result in your head.</details>


# %%
from pmapdp.lessons.checks import check


def broken_layer(h, W2, bias):
    return lax.psum(h @ W2 + bias, "model")


def split_in_pairs():
    """(spec of W1, spec of W2)."""
    ...  # your code: 1 line


def two_layers(x, W1, W2):
    """[B, C], the same on every device."""
    ...  # your code: 1 or 2 lines


def fixed_layer(h, W2, bias):
    """[B, C], the same on every device."""
    ...  # your code: 1 line


for exercise in (split_in_pairs, two_layers, fixed_layer):
    check("15_split_the_model", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/15_split_the_model.py](solutions/15_split_the_model.py)
#
# ## Take away
#
# - A product that is split along a kept axis needs no communication. If it is split along the axis that is summed
#   over, it needs an all-reduce.
# - Split the first matrix along its columns and the next along its rows. L such pairs need L all-reduces forward and
#   L backward, or L - 1 if nothing before the first pair is trained.
# - Model and step stay as they are. Logical names and rules make a layout, and a run can resume in any layout.
#
# [sharding/layout.py](../pmapdp/sharding/layout.py) does for every array what `sharding_of` did here, in
# `MeshLayout.array`; `parse_layout` in the same file reads the rules. Read
# on: [the scaling book on sharded matrices](https://jax-ml.github.io/scaling-book/sharding/). Next:
# [16 Born sharded](16_born_sharded.ipynb).

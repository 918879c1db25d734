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
# One weight matrix of GPT-3 is 12,288 x 49,152. In float32, with its gradient and Adam's moments, it takes 9.7 GB, and
# the model has 192 matrices of this size. No device can hold 1.9 TB, so you'll split the matrices themselves. It takes
# about twenty new lines, none of them in the training step, and the compiler adds the communication. Learn to predict
# it, because a matrix that's split the wrong way raises no error: you get the correct result, just slowly.
#
# **You will** split a network by tensor parallelism, predict its all-reduces forward and backward, split attention by
# heads, and say when this sends less than data parallelism. 29 minutes, 49 with exercises. You need [09 Let the
# compiler do it](09_let_the_compiler_do_it.ipynb), and `shard_map` from [10 Three ways side by
# side](10_three_ways_side_by_side.ipynb) for the exercises.

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_15

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## Three ways to split a product
#
# Which axis should you split? In `x @ w`, x is `[B, D]` and w is `[D, H]`. The result keeps B and H, and sums over D.
# You can split any of the three:
#
# - **B**, the rows of x. That's data parallelism.
# - **D**, the columns of x and the rows of w.
# - **H**, the columns of w.
#
# Try each of them on two devices, with B = 2, D = 4 and H = 2. Because w is all ones, `[1, 2, 3, 4]` gives `[10, 10]`.
# If you split B or H, the result may stay split along the same axis. If you split D, the result has no such axis, so
# both devices should hold all of it.
#
# **Predict:** in which of the three cases do the devices have to communicate?

# %% tags=["prediction"]
from pmapdp.collectives import collectives

two_devices = Mesh(jax.devices()[:2], ("model",))
x = np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]])
w = np.ones((4, 2))


def place(*axes):
    return NamedSharding(two_devices, PartitionSpec(*axes))


def read_collectives(jitted, *args):
    """Compile, and look for the operations by which devices communicate."""
    return collectives(jitted.lower(*args).compile().as_text())


cases = {  # the shardings of x [B, D], of w [D, H] and of the result [B, H]
    "B": (place("model", None), place(), place("model", None)),
    "D": (place(None, "model"), place("model", None), place()),
    "H": (place(), place(None, "model"), place(None, "model")),
}
kinds = {}
for axis, (x_sharding, w_sharding, result_sharding) in cases.items():
    product = jax.jit(
        jnp.matmul, in_shardings=(x_sharding, w_sharding), out_shardings=result_sharding
    )
    kinds[axis] = [found.kind for found in read_collectives(product, x, w)]
    print(f"{axis} is split: {np.asarray(product(x, w)).tolist()}, collectives {kinds[axis]}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only if D is split. Of the first 10, one device has 1 + 2 = 3 and the other has 3 + 4 = 7, and an **all-reduce** sums
# the two. If B or H is split, each device computes two of the four results from start to finish.
#
# </details>
#
# ## Columns, then rows
#
# A network multiplies twice in a row: `h = relu(x @ W1)`, then `y = h @ W2`, with W1 `[D, H]` and W2 `[H, C]`. What if
# you split **H** in both? The first product keeps H, so each device computes its own hidden units and sends nothing.
# The relu works on each unit alone, so it doesn't need the other device either. Only the second product sums over H,
# and that takes one all-reduce.
#
# ```python
# W1: PartitionSpec(None, "model")   # [D, H]: columns
# W2: PartitionSpec("model", None)   # [H, C]: rows
# ```
#
# This is **tensor parallelism** as in [Megatron-LM](https://arxiv.org/abs/1909.08053), with one all-reduce for two
# products. On a mesh with two axes you can combine it with data parallelism. In the picture, the upper row is data
# parallelism alone, and the lower row is the combination. Each box is a shard, labelled with the devices that hold it.
# Above each array is the shape of one shard.

# %%
B, D, H, C = 64, 784, 512, 10
SHAPES = {"x": (B, D), "W1": (D, H), "h": (B, H), "W2": (H, C), "y": (B, C)}
P = PartitionSpec
data_specs = {"x": P("data"), "W1": P(), "h": P("data"), "W2": P(), "y": P("data")}
both_specs = {
    "x": P("data"),
    "W1": P(None, "model"),
    "h": P("data", "model"),
    "W2": P("model", None),
    "y": P("data"),
}
layouts = {
    "data": (Mesh(jax.devices(), ("data",)), data_specs),
    "data and model": (Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model")), both_specs),
}
lesson_15.layouts(layouts, SHAPES)

# %% [markdown]
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py), and give it the layout in the lower row. Here's everything that
# changes:
#
# include the difference of 09_jit.py and 15_split.py
#
# - The mesh has two axes. Its four groups of two devices split the batch, and the two devices of a group split the
#   hidden units.
# - `SPECS` says which parameters are split, and how.
# - `jax.eval_shape` finds shapes and paths without computing anything, and `jax.jit(init_state, out_shardings=...)`
#   makes the state right where it belongs. Lesson 16 explains both.

# %% tags=["take-home"]
# include program/15_split.py

# %% [markdown]
# The losses are lesson 09's within 1e-3, even though each device holds only half of the first kernel.
#
# Adam's moments are split like their parameter, because their paths end in its name, too. If you misspell a name in
# `SPECS`, no path ends in it, and its arrays are simply replicated, without an error. So check the names in your own
# programs as well:

# %%
paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)]
for name in SPECS:
    matches = [path for path in paths if path.endswith(f".{name}.value")]
    print(*matches)
    assert len(matches) == 3, f"{name}: a parameter has two moments, and here are {matches}"

# %% tags=["proof"]
# The asserts behind the text above.
totals = jax.tree.map(lambda *sums: float(sum(sums)), *jax.device_get(train_sums))
assert abs(totals["loss"] / totals["count"] - 0.2486) < 1e-3
assert abs(totals["correct"] / totals["count"] - 0.9184) < 2e-3

# %% [markdown]
# ## The backward pass
#
# A training step also goes backward, and there the products sum over other axes. The gradient for W1 is `x.T @ dh`,
# `[D, B]` times `[B, H]`. It sums over B, so splitting H costs nothing. The gradient for x is `dh @ W1.T`, `[B, H]`
# times `[H, D]`. It sums over H, which costs a second all-reduce, unless nothing before the pair is trained.
#
# To count them, put several pairs in a row after an embedding that you train, too, and split H over eight devices. Now
# x is `[B, D]` before and after each pair.

# %%
lesson_15.pair()
mesh = Mesh(jax.devices(), ("model",))
replicated = NamedSharding(mesh, PartitionSpec())
columns = NamedSharding(mesh, PartitionSpec(None, "model"))
rows = NamedSharding(mesh, PartitionSpec("model", None))


def loss(params, x):  # x is [B, 32]
    x = x @ params["embedding"]  # [B, D]
    for W1, W2 in params["pairs"]:
        x = x + jnp.tanh(x @ W1) @ W2  # the hidden units are [B, H]
    return jnp.square(x).sum()


def count_all_reduces(function, pairs):
    """Count the all-reduces of activations when eight devices split every pair."""
    params = {"embedding": np.ones((32, 128), np.float32)}
    params["pairs"] = [(np.ones((128, 512), np.float32), np.ones((512, 128), np.float32))] * pairs
    shardings = {"embedding": replicated, "pairs": [(columns, rows)] * pairs}
    jitted = jax.jit(function, in_shardings=(shardings, replicated))
    batch = np.ones((64, 32), np.float32)
    sent = sum(found.bytes for found in read_collectives(jitted, params, batch))
    # XLA may merge several into one message, so divide by the bytes of an activation [64, 128].
    return sent // (64 * 128 * 4)


# %% [markdown]
# **Predict:** how many all-reduces does a training step need for three pairs, forward and backward together?

# %% tags=["prediction"]
counts = {}
for pairs in (1, 2, 3):
    forward = count_all_reduces(loss, pairs)
    total = count_all_reduces(jax.value_and_grad(loss), pairs)
    counts[pairs] = [forward, total]
    print(f"pairs: {pairs} | all-reduces forward: {forward} | forward and backward: {total}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Six: one for each pair forward, and one for each pair backward.
#
# </details>
#
# While one of these all-reduces is running, the devices mostly wait, because the next layer needs the sum. That's why
# people only use tensor parallelism where links are fast, between the GPUs of one machine or between neighbouring TPUs.
#
# ## Attention: split the heads
#
# How would you split a transformer's attention? The heads don't depend on each other until the end, so give each device
# some of them: split the matrix that makes the queries, keys and values along the heads, and split the output matrix by
# its rows.


# %%
def attention(params, x):  # [B, T, D]
    qkv = jnp.einsum("btd,dhk->bthk", x, params["qkv"])
    q, k, v = jnp.split(qkv, 3, axis=-1)  # each is [B, T, heads, D / heads]
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5)
    return jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape) @ params["out"]


# %% [markdown]
# **Predict:** eight heads on eight devices. How many all-reduces does the forward pass have?

# %% tags=["prediction"]
params = {"qkv": np.ones((128, 8, 48), np.float32), "out": np.ones((128, 128), np.float32)}
shardings = {"qkv": columns, "out": rows}  # columns: the second axis, which are the heads
block = jax.jit(attention, in_shardings=(shardings, replicated), out_shardings=replicated)
attention_collectives = read_collectives(block, params, np.ones((4, 16, 128), np.float32))
print(*(f"{found.kind}s: {found.count}" for found in attention_collectives))

# %% [markdown]
# <details><summary>Answer</summary>
#
# One, for the output matrix, because its product sums over all heads. Attention has the same shape as the pair: columns
# (the heads), then rows (the output matrix).
#
# </details>
#
# ## When does it send less?
#
# If your model fits on one device, should you still split it? Data parallelism all-reduces the gradients, whose size
# has nothing to do with the batch. Tensor parallelism all-reduces activations, which grow with the batch, because every
# device works on all the examples. So at some batch size the two send the same number of bytes.
#
# Take a layer of GPT-3 on eight devices. D is 12,288, attention has 96 heads, and a sequence is 2,048 tokens ([Brown et
# al., 2020](https://arxiv.org/abs/2005.14165), table 2.1). The layer has 4 D² weights in its attention and 8 D² in its
# pair. Each token is a row of x, so T tokens have activations `[T, D]`. Compiling only takes shapes, so you can compile a
# layer of this size even on your laptop.
#
# **Predict:** at how many tokens T do both send the same number of bytes? You know how many all-reduces of `[T, D]`
# tensor parallelism needs for the attention and the pair, forward and backward.


# %% tags=["prediction"]
def layer_loss(params, x):  # [sequences, 2048, D]
    x = x + attention(params, x)
    x = x + jax.nn.gelu(x @ params["W1"]) @ params["W2"]
    return jnp.square(x).sum()


gpt_D = 12_288
shapes = {
    "qkv": (gpt_D, 96, 3 * gpt_D // 96),
    "out": (gpt_D, gpt_D),
    "W1": (gpt_D, 4 * gpt_D),
    "W2": (4 * gpt_D, gpt_D),
}
gpt_params = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
batch_split = NamedSharding(mesh, PartitionSpec("model"))  # the eight devices of the mesh
gpt_layouts = {
    "tensor parallelism": ({"qkv": columns, "out": rows, "W1": columns, "W2": rows}, replicated),
    "data parallelism": (dict.fromkeys(shapes, replicated), batch_split),
}
sequences = (8, 128, 2048)
bytes_sent = {name: [] for name in gpt_layouts}
for name, layout in gpt_layouts.items():
    gradient = jax.grad(layer_loss, argnums=(0, 1))
    jitted = jax.jit(gradient, in_shardings=layout, out_shardings=layout)
    for count in sequences:
        gpt_x = jax.ShapeDtypeStruct((count, 2_048, gpt_D), np.float32)
        (found,) = read_collectives(jitted, gpt_params, gpt_x)
        bytes_sent[name].append(found.bytes)
lesson_15.bytes_by_batch(sequences, bytes_sent)
tensor_bytes, data_bytes = bytes_sent.values()
crossover = sequences[0] * data_bytes[0] / tensor_bytes[0]
print(f"the same number of bytes for {crossover:g} sequences, or {crossover * 2048:,.0f} tokens")

# %% [markdown]
# <details><summary>Answer</summary>
#
# At 36,864. There are four all-reduces of T D numbers, two for the attention and two for the pair, and there are 12 D²
# gradients. So 4 T D equals 12 D² when T is 3 D, which is 18 sequences.
#
# </details>
#
# The dotted line is the batch that GPT-3 was trained with, 3.2 million tokens. There tensor parallelism alone would
# send 87 times as many bytes as data parallelism. Data parallelism can also hide its all-reduces, because the last
# layers' gradients are ready while the backward pass is still working on the first layers.
#
# That's why people combine the two for models that large, as your program does. Tensor parallelism splits the matrices
# inside a small group of devices with fast links, because a layer wouldn't fit on one device. Data parallelism splits
# the batch over many such groups, whose links may be slower.
#
# ## The mistake: columns, then columns
#
# What if you split both matrices by columns: H in W1 `[D, H]`, and C in W2 `[H, C]`? Each device still holds half of
# each matrix, and the result is the same.
#
# **Predict:** h is split along H. What does a device still need for its columns of the second product?

# %% tags=["prediction"]
random = np.random.default_rng(0)
x, W1, W2 = (random.normal(size=SHAPES[name]).astype(np.float32) for name in ("x", "W1", "W2"))


def forward(x, W1, W2):
    return jax.nn.relu(x @ W1) @ W2


W2_shardings = {
    "columns, then rows": place("model", None),
    "columns, then columns": place(None, "model"),
}
traffic = {}
results = {}
for name, W2_sharding in W2_shardings.items():
    in_shardings = (place(), place(None, "model"), W2_sharding)
    program = jax.jit(forward, in_shardings=in_shardings, out_shardings=place())
    results[name] = program(x, W1, W2)
    (traffic[name],) = read_collectives(program, x, W1, W2)
    print(f"{name:22s} {traffic[name].kind} of {traffic[name].bytes:,} bytes")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The other half of h, because a column of W2 needs all the hidden units. XLA gathers h `[B, H]` on both devices, and
# then it gathers the result `[B, C]`, too. With rows, an all-reduce of `[B, C]` was enough.
#
# </details>
#
# The difference is so large here because C is only 10. In a transformer, h is four times as wide as the result. So take
# one of the pairs from above, and count a whole training step in activations `[B, D]`. Columns, then rows, all-reduces
# two of them. Columns, then columns, gathers 4 + 1 = 5 going forward and all-reduces 5 going backward. An all-reduce
# sends everything twice, so that's 15 to 4, almost four times as much in every layer. Nothing warns you unless you look
# at the collectives.

# %% tags=["proof"]
# The asserts behind the answers.
assert kinds == {"B": [], "D": ["all-reduce"], "H": []}
assert counts == {1: [1, 2], 2: [2, 4], 3: [3, 6]}
assert [(found.kind, found.count) for found in attention_collectives] == [("all-reduce", 1)]
assert tensor_bytes == [4 * 4 * count * 2_048 * gpt_D for count in sequences]
assert data_bytes == [4 * 12 * gpt_D**2] * len(sequences)
assert crossover == 3 * gpt_D / 2_048 == 18
assert round(3.2e6 / (3 * gpt_D)) == 87

np.testing.assert_allclose(*results.values(), rtol=1e-3, atol=1e-2)
rows_traffic, columns_traffic = traffic.values()
assert rows_traffic.kind == "all-reduce"
assert columns_traffic.kind == "all-gather"
assert columns_traffic.bytes > 40 * rows_traffic.bytes

pair = {"embedding": np.ones((32, 128), np.float32)}
pair["pairs"] = [(np.ones((128, 512), np.float32), np.ones((512, 128), np.float32))]
activations = {}
for name, W2_sharding in {"rows": rows, "columns": columns}.items():
    layout = {"embedding": replicated, "pairs": [(columns, W2_sharding)]}
    options = {"in_shardings": (layout, replicated), "out_shardings": (replicated, layout)}
    step = jax.jit(jax.value_and_grad(loss), **options)
    found = read_collectives(step, pair, np.ones((64, 32), np.float32))
    # The embedding adds half an activation, once, which the division leaves out.
    activations[name] = {each.kind: each.bytes // (64 * 128 * 4) for each in found}
assert activations == {"rows": {"all-reduce": 2}, "columns": {"all-reduce": 5, "all-gather": 5}}

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/15_split_the_model.py](solutions/15_split_the_model.py).
#
# 1. `split_in_pairs` (5 minutes): return the PartitionSpecs of W1 `[D, H]` and W2 `[H, C]`, so that each of two devices
#    of the mesh axis `"model"` holds half of each matrix, and the forward pass needs a single all-reduce.
#    <details><summary>Hint</summary>Which axis do the two matrices share?</details>
# 2. `two_layers` (10 minutes): tensor parallelism by hand, in `shard_map` over the axis `"model"`. `x` `[B, D]` is
#    replicated, `W1` `[D, h]` holds this device's columns, and `W2` `[h, C]` its rows. Return `relu(x @ W1) @ W2` of
#    the whole matrices on every device, with a single collective. <details><summary>Hint</summary>The relu works on
#    each hidden unit alone. Which product sums over a split axis?</details>
# 3. `fixed_layer` (5 minutes, find the mistake): `broken_layer` is the second layer with a bias, in the same
#    `shard_map`: `h` `[B, h]` and `W2` `[h, C]` hold this device's hidden units, and `bias` `[C]` is replicated. On one
#    device the result is correct. On four it's wrong, and there's no error. <details><summary>Hint</summary>Let
#    <code>h</code> be 0, and compute the result in your head.</details>

# %%
from jax import lax

from pmapdp.lessons.checks import check


def broken_layer(h, W2, bias):
    return lax.psum(h @ W2 + bias, "model")


def split_in_pairs():
    """(spec of W1, spec of W2)."""
    ...  # your code: 1 line


def two_layers(x, W1, W2):
    """`[B, C]`, the same on every device."""
    ...  # your code: 1 or 2 lines


def fixed_layer(h, W2, bias):
    """`[B, C]`, the same on every device."""
    ...  # your code: 1 line


for exercise in (split_in_pairs, two_layers, fixed_layer):
    check("15_split_the_model", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - `[B, D]` times `[D, H]`: split B or H, and the devices don't have to communicate. Split D, and they need an
#   all-reduce. The backward pass sums over other axes, so check its products, too.
# - Columns, then rows: one all-reduce for a pair forward, and one backward if something before the pair is trained.
#   Attention works in the same way if you split it by heads.
# - Tensor parallelism sends activations, data parallelism sends gradients. A GPT-3 layer breaks even at 3 D tokens. A
#   wrong split only shows in the collectives.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `SPECS` | `--strategy jit --layout model`, with axes that the models name | [sharding/flags.py](../pmapdp/sharding/flags.py), [models/mlp.py](../pmapdp/models/mlp.py) |
# | `shard` | `MeshLayout.array_sharding` | [sharding/layout.py](../pmapdp/sharding/layout.py) |
# | the mesh of 4 x 2 | `--strategy jit --mesh data=4,model=2` | [sharding/flags.py](../pmapdp/sharding/flags.py) |
#
# To read on: [the scaling book on sharded matrices](https://jax-ml.github.io/scaling-book/sharding/). Next, stop
# keeping a copy of the state on every device: [16 Born sharded](16_born_sharded.ipynb).

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
# the model has 192 matrices of this size. No device can hold that, so you'll split the matrices themselves. It takes about
# twenty new lines, none of them in the training step, and the compiler works out who has to talk to whom. But you should
# be able to predict its answer, because a matrix that's split the wrong way raises no error. The result is correct, and
# the program is slow.
#
# **You will** split a network by tensor parallelism, predict its all-reduces forward and backward, split attention by heads,
# and say when all this sends less than data parallelism. 30 minutes, 50 with exercises. You need
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb), and `shard_map` from
# [10 Three ways side by side](10_three_ways_side_by_side.ipynb) for the exercises.

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
# Which axis should you cut? Look at `x @ w`, where x is `[B, D]` and w is `[D, H]`. The result keeps B and H, and sums over
# D. You can split any of the three:
#
# - **B**, the rows of x. That's data parallelism.
# - **D**, the columns of x and the rows of w.
# - **H**, the columns of w.
#
# Try each of them on two devices, with B = 2, D = 4 and H = 2. Because w is a matrix of ones, `[1, 2, 3, 4]` gives
# `[10, 10]`.
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
# Only if D is split. Of the first 10, one device has 1 + 2 = 3 and the other one 3 + 4 = 7, and an **all-reduce** sums
# the two. If B or H is split, each device computes two of the four results from beginning to end.
#
# </details>
#
# ## Columns, then rows
#
# A network multiplies twice in a row: `h = relu(x @ W1)`, then `y = h @ W2`. The shapes are `[D, H]` for W1 and `[H, C]` for
# W2. What if you split **H** in both? The first product keeps H, so each device computes its own hidden units, and sends
# nothing. The relu works on each unit alone, so it needs no other device either. Only the second product sums over H, and
# needs one all-reduce.
#
# ```python
# W1: PartitionSpec(None, "model")   # [D, H]: columns
# W2: PartitionSpec("model", None)   # [H, C]: rows
# ```
#
# One all-reduce for two products: this is **tensor parallelism** as in
# [Megatron-LM](https://arxiv.org/abs/1909.08053). On a mesh with two axes you can combine it with data parallelism. The
# upper row of the picture is data parallelism alone, and the lower row is the combination. Each box is a shard, with the
# numbers of the devices that hold it, and a stack has a card for each device that holds the same shard. The title above an
# array is the shape of one shard.

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
# You start from [program/09_jit.py](program/09_jit.py), and give it the layout of the lower row. Everything that changes:
#
# include the difference of 09_jit.py and 15_split.py
#
# - The mesh has two axes. Its four groups of two devices split the batch, and the two devices of a group split the hidden
#   units.
# - `SPECS` says which parameters are split, and how. `shard` looks for their names at the end of each array's path. A
#   kernel's own path ends with `hidden.kernel.value`, and the path of its first moment in Adam's state with
#   `mu.hidden.kernel.value`, so the moment is split as its parameter is.
# - `jax.eval_shape` finds shapes and paths without computing anything, and `jax.jit(init_state, out_shardings=...)`
#   makes the state where it belongs. Lesson 16 explains both.
# - If you misspell a name in `SPECS`, its array is simply replicated, without an error. That's why the last line prints
#   what a device holds.

# %% tags=["take-home"]
# include program/15_split.py

# %% tags=["proof"]
# The asserts behind the next text.
totals = jax.tree.map(lambda *sums: float(sum(sums)), *jax.device_get(train_sums))
assert abs(totals["loss"] / totals["count"] - 0.2486) < 1e-3
assert abs(totals["correct"] / totals["count"] - 0.9184) < 2e-3
paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)]
assert any(path.endswith("mu.hidden.kernel.value") for path in paths)

# %% [markdown]
# The losses are lesson 09's within 1e-3, although each device holds only half of the first kernel. The accuracies may
# differ a little more, because rounding can tip an example from one class to another.
#
# ## The backward pass
#
# A training step also goes backward, and there the products sum over other axes. Leave data parallelism aside for a
# moment, and split H over eight devices. The gradient for W1 is `x.T @ dh`, `[D, B]` times `[B, H]`. It sums over B, which
# isn't split, so no device needs another one. The gradient for x is `dh @ W1.T`, `[B, H]` times `[H, D]`. It sums over H,
# so there's a second all-reduce at the other end of the pair, unless nothing before the pair is trained.
#
# Next, put several pairs in a row, after an embedding that's trained, too. Now x is `[B, D]` before and after each pair,
# with D = 128 and H = 512.

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


def count_bytes(function, pairs, B):
    """The bytes that are all-reduced when eight devices split every pair."""
    params = {"embedding": np.ones((32, 128), np.float32)}
    params["pairs"] = [(np.ones((128, 512), np.float32), np.ones((512, 128), np.float32))] * pairs
    shardings = {"embedding": replicated, "pairs": [(columns, rows)] * pairs}
    jitted = jax.jit(function, in_shardings=(shardings, replicated))
    batch = np.ones((B, 32), np.float32)
    return sum(found.bytes for found in read_collectives(jitted, params, batch))


# %% [markdown]
# **Predict:** how many all-reduces of activations does a training step need for three pairs, forward and backward
# together?

# %% tags=["prediction"]
activation = 64 * 128 * 4  # bytes of [64, 128] in float32
counts = {}
for pairs in (1, 2, 3):
    forward = count_bytes(loss, pairs, B=64) // activation
    total = count_bytes(jax.value_and_grad(loss), pairs, B=64) // activation
    counts[pairs] = [forward, total]
    print(f"pairs: {pairs} | all-reduces forward: {forward} | forward and backward: {total}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Six: one for each pair forward, and one for each pair backward.
#
# </details>
#
# While one of these all-reduces is running, the devices mostly wait, because the next layer needs the sum as its input.
# That's why people use tensor parallelism only where links are fast, between the GPUs of one machine or between
# neighbouring TPUs.
#
# ## Attention: split the heads
#
# How would you split the attention of a transformer? Its heads don't depend on each other until the end, so give each
# device some of them: split the matrix that makes queries, keys and values along the heads, and the output matrix by its
# rows.


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
# One, for the output matrix, because its product sums over all heads. Attention is a pair, too.
#
# </details>
#
# ## When does it send less?
#
# If your model fits on a device, should you still split it? That depends on the batch. Data parallelism all-reduces the
# gradients, whose size has nothing to do with the batch, but tensor parallelism all-reduces activations, which grow with
# it, because every device works on all B examples. Take two of the pairs above on eight devices, with D = 128 and H = 4 D.
# Each pair has 2 D H = 8 D² weights, and data parallelism all-reduces a gradient for each of them. Tensor parallelism
# all-reduces B D numbers twice for each pair.
#
# **Predict:** for which batch size B do both send the same number of bytes?

# %% tags=["prediction"]
sizes = (32, 64, 128, 256, 512, 1024, 2048)
weights = 2 * 2 * 128 * 512 + 32 * 128  # two pairs and the embedding
bytes_sent = {
    "tensor parallelism": [count_bytes(jax.grad(loss), pairs=2, B=B) for B in sizes],
    "data parallelism": [4 * weights] * len(sizes),
}
lesson_15.bytes_by_batch(sizes, bytes_sent)

# %% [markdown]
# <details><summary>Answer</summary>
#
# At about 512: 2 B D is 8 D² if B is 4 D. With a smaller batch, tensor parallelism sends less.
#
# </details>
#
# Now a real model. GPT-3 has D = 12,288, 96 heads and sequences of 2,048 tokens ([Brown et al.,
# 2020](https://arxiv.org/abs/2005.14165), table 2.1). A layer has 4 D² weights in its attention and 8 D² in its pair. To
# these products a sequence is 2,048 examples. Compiling needs only shapes, so you can compile such a layer even here, once
# with tensor and once with data parallelism.
#
# **Predict:** for how many sequences does a layer of GPT-3 send the same number of bytes in both ways?


# %% tags=["prediction"]
def layer_loss(params, x):  # [B, T, D]
    x = x + attention(params, x)
    x = x + jax.nn.gelu(x @ params["W1"]) @ params["W2"]
    return jnp.square(x).sum()


gpt_D, sequences = 12_288, 8
shapes = {
    "qkv": (gpt_D, 96, 3 * gpt_D // 96),
    "out": (gpt_D, gpt_D),
    "W1": (gpt_D, 4 * gpt_D),
    "W2": (4 * gpt_D, gpt_D),
}
gpt_params = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
gpt_x = jax.ShapeDtypeStruct((sequences, 2_048, gpt_D), np.float32)
batch_split = NamedSharding(mesh, PartitionSpec("model"))  # the eight devices of the mesh
gpt_shardings = {
    "tensor": ({"qkv": columns, "out": rows, "W1": columns, "W2": rows}, replicated),
    "data": (dict.fromkeys(shapes, replicated), batch_split),
}
gpt_bytes = {}
for name, layout in gpt_shardings.items():
    gradient = jax.grad(layer_loss, argnums=(0, 1))
    jitted = jax.jit(gradient, in_shardings=layout, out_shardings=layout)
    (found,) = read_collectives(jitted, gpt_params, gpt_x)
    gpt_bytes[name] = found.bytes
    print(f"{name} parallelism, {sequences} sequences: {found.kind} of {found.bytes / 1e9:.2f} GB")
crossover = sequences * gpt_bytes["data"] / gpt_bytes["tensor"]
print(f"the same number of bytes for {crossover:g} sequences")

# %% [markdown]
# <details><summary>Answer</summary>
#
# For 18. A layer has 12 D² weights, and four all-reduces of B D numbers: forward and backward, for the attention and for
# the pair. So B is 3 D, or 36,864 tokens, or 18 sequences. If an activation takes half as many bytes as a gradient, as it
# may in mixed precision, it's 36 sequences.
#
# </details>
#
# GPT-3 was trained with 3.2 million tokens in an update, 87 times as many, so tensor parallelism alone would send 87 times
# as many bytes as data parallelism. Data parallelism also has an advantage that no count of bytes shows: it can send the
# gradients of the last layers while the backward pass is still working on the first ones.
#
# That's why models that large combine the two, as your program does. Tensor parallelism splits the matrices inside a small
# group of devices with fast links, because a layer wouldn't fit on one device, and data parallelism splits the batch over
# many such groups, whose links may be slower.
#
# ## The mistake: columns, then columns
#
# What if you split both matrices by their columns: H in W1 `[D, H]`, and C in W2 `[H, C]`? Each device still holds half of
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

# %% tags=["proof"]
# The asserts behind all answers so far.
assert kinds == {"B": [], "D": ["all-reduce"], "H": []}
assert counts == {1: [1, 2], 2: [2, 4], 3: [3, 6]}
assert [(found.kind, found.count) for found in attention_collectives] == [("all-reduce", 1)]
np.testing.assert_allclose(bytes_sent["tensor parallelism"], [4 * 4 * B * 128 for B in sizes])
fifth_bytes = [series[4] for series in bytes_sent.values()]  # where the curves meet
np.testing.assert_allclose(*fifth_bytes, rtol=0.02)
assert gpt_bytes["tensor"] == 4 * 4 * sequences * 2_048 * gpt_D
assert gpt_bytes["data"] == 4 * 12 * gpt_D**2
assert crossover == 3 * gpt_D / 2_048 == 18
assert round(3.2e6 / (3 * gpt_D)) == 87

np.testing.assert_allclose(*results.values(), rtol=1e-3, atol=1e-2)
rows_traffic, columns_traffic = traffic.values()
assert rows_traffic.kind == "all-reduce"
assert columns_traffic.kind == "all-gather"
assert columns_traffic.bytes > 40 * rows_traffic.bytes

# %% [markdown]
# <details><summary>Answer</summary>
#
# The other half of h, because a column of W2 needs all hidden units. XLA gathers h `[B, H]` on both devices, and then it
# gathers the result `[B, C]`, too. With rows, an all-reduce of `[B, C]` was enough.
#
# </details>
#
# The difference is so large here because C is only 10. In a transformer, h is four times as wide as the result. Gathering
# both sends 4 + 1 = 5 parts, and an all-reduce of the result sends one part twice, so the wrong split sends 5 / 2 times as
# much. It does so in every layer, and nothing warns you, unless you look at the collectives.
#
# ## Exercises
#
# Solutions, with reasons: [solutions/15_split_the_model.py](solutions/15_split_the_model.py).
#
# 1. `split_in_pairs` (5 minutes): return the PartitionSpecs of W1 `[D, H]` and W2 `[H, C]`, so that each of two devices of the
#    mesh axis `"model"` holds half of each matrix, and the forward pass needs a single all-reduce.
#    <details><summary>Hint</summary>Which axis do the two matrices share?</details>
# 2. `two_layers` (10 minutes): tensor parallelism by hand, in `shard_map` over the axis `"model"`. `x` `[B, D]` is replicated,
#    `W1` `[D, h]` holds this device's columns, and `W2` `[h, C]` its rows. Return `relu(x @ W1) @ W2` of the whole matrices on
#    every device, with a single collective. <details><summary>Hint</summary>The relu works on each hidden unit alone. Which
#    product sums over a split axis?</details>
# 3. `fixed_layer` (5 minutes, find the mistake): `broken_layer` is the second layer with a bias, in the same `shard_map`: `h`
#    `[B, h]` and `W2` `[h, C]` hold this device's hidden units, and `bias` `[C]` is replicated. On one device the result is
#    correct. On four there's no error, and the result is wrong. <details><summary>Hint</summary>Let <code>h</code> be 0, and compute the
#    result in your head.</details>

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
# - `[B, D]` times `[D, H]`: split B or H, and the devices needn't communicate. Split D, and they need an all-reduce. The
#   backward pass sums over other axes, so check its products, too.
# - Columns, then rows: one all-reduce for a pair forward, and one backward if something before the pair is trained. Attention
#   is a pair, too, if you split it by heads.
# - Tensor parallelism sends activations, data parallelism sends gradients. A layer of GPT-3 breaks even at 3 D tokens. A wrong
#   split shows only in the collectives.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `SPECS` | `--strategy jit --layout model`, with axes that the models name | [sharding/flags.py](../pmapdp/sharding/flags.py), [models/mlp.py](../pmapdp/models/mlp.py) |
# | `shard` | `MeshLayout.array_sharding` | [sharding/layout.py](../pmapdp/sharding/layout.py) |
# | the mesh of 4 x 2 | `--strategy jit --mesh data=4,model=2` | [sharding/flags.py](../pmapdp/sharding/flags.py) |
#
# To read on: [the scaling book on sharded matrices](https://jax-ml.github.io/scaling-book/sharding/). Next, stop
# keeping a copy of the state on every device: [16 Born sharded](16_born_sharded.ipynb).

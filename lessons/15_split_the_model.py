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
# the model has 192 matrices of this size. Up to now every device held the whole model, and no device can hold this one.
# In this lesson you'll split the matrices themselves. Your program needs twenty new lines for it, none of them in
# the training step, and the compiler finds out which devices have to communicate. You'll learn to predict that, because
# a matrix that's split the wrong way still gives the right result, only more slowly.
#
# **You will** split a network by tensor parallelism, predict its all-reduces forward and backward, split attention by heads,
# and say when all this sends less than data parallelism. 25 minutes, 45 with exercises. You need
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
# ## Two ways to split a product
#
# Look at `x @ w`. The columns of x and the rows of w are *summed over*. The rows of x and the columns of w are *kept*: they're
# axes of the result. You can split either kind.
#
# `[1, 2, 3, 4]` times a 4 x 2 matrix of ones is `[10, 10]`. We have two devices. First we split the axis that's summed over, so
# each device has two of the four numbers and two rows of w. Then we split w by its columns, and both devices have all of x.
#
# **Predict:** in which of the two cases do the devices have to communicate?

# %% tags=["prediction"]
from pmapdp.compare.collectives import collectives  # reads the collectives from a compiled program

two = Mesh(jax.devices()[:2], ("model",))


def place(*axes):
    return NamedSharding(two, PartitionSpec(*axes))


x, w = np.array([[1.0, 2, 3, 4]]), np.ones((4, 2))
cases = {
    "summed over": (place(None, "model"), place("model", None), place()),
    "kept": (place(), place(None, "model"), place(None, "model")),
}
kinds = {}
for name, (of_x, of_w, of_result) in cases.items():
    product = jax.jit(jnp.matmul, in_shardings=(of_x, of_w), out_shardings=of_result)
    kinds[name] = [each.kind for each in collectives(product.lower(x, w).compile().as_text())]
    print(f"{name:12s} result {np.asarray(product(x, w))}, collectives {kinds[name]}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# In the first. The devices compute 1 + 2 = 3 and 3 + 4 = 7 (for each column), and an **all-reduce** adds the two. In the
# second case each device computes one of the two 10s, and nothing is missing.
#
# </details>
#
# ## Columns, then rows
#
# A network has products in a row: `h = relu(x @ W1)`, then `y = h @ W2`. Split W1 by its columns. Then `h` is split by its
# hidden units, without any communication, and the relu doesn't mind. Now split W2 by its *rows*: these are the same hidden
# units. So each device multiplies its part of `h` with its rows of W2, and one all-reduce adds up the results.
#
# ```python
# W1: PartitionSpec(None, "model")   # columns
# W2: PartitionSpec("model", None)   # rows
# ```
#
# **One all-reduce for two products.** This is **tensor parallelism** as in
# [Megatron-LM](https://arxiv.org/abs/1909.08053). You can combine it with data parallelism on a mesh with two axes.
# The picture shows eight devices: with data parallelism alone in the upper row, and with both in the lower one. Each
# box is a shard, and the numbers are the devices that hold it. If several devices hold the same shard, you see a stack
# with a card for each of them. The label above an array gives its name and the shape of one shard.

# %%
SHAPES = {"x": (64, 784), "W1": (784, 512), "h": (64, 512), "W2": (512, 10), "y": (64, 10)}
four_by_two = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
layouts = {  # a mesh, and which of its axes splits what
    "data": (Mesh(jax.devices(), ("data",)), {"rows": "data"}),
    "data and model": (four_by_two, {"rows": "data", "H": "model"}),
}
AXES = {
    "x": ("rows", "D"),
    "W1": ("D", "H"),
    "h": ("rows", "H"),
    "W2": ("H", "C"),
    "y": ("rows", "C"),
}


def sharding_of(layout, array):
    mesh, rules = layouts[layout]
    return NamedSharding(mesh, PartitionSpec(*(rules.get(axis) for axis in AXES[array])))


lesson_15.layouts(layouts, SHAPES, sharding_of)

# %% [markdown]
# What about the backward pass? Here's the pair once more, with the gradients flowing back. The gradient for `x` is a
# product that sums over the hidden units, and they're split. So there's an all-reduce at the other end of the pair,
# too. It's needed only if some layer before the pair is trained, because only then do you need the gradient for `x`.

# %%
lesson_15.pair()

# %% [markdown]
# **Predict:** a network has an embedding that's trained, and then three such pairs. How many all-reduces of activations
# does a training step need, forward and backward together?

# %% tags=["prediction"]
eight = Mesh(jax.devices(), ("model",))
whole = NamedSharding(eight, PartitionSpec())
columns = NamedSharding(eight, PartitionSpec(None, "model"))
rows = NamedSharding(eight, PartitionSpec("model", None))


def loss(params, x):
    x = x @ params["embedding"]
    for first, second in params["pairs"]:
        x = x + jnp.tanh(x @ first) @ second
    return jnp.square(x).sum()


def compile_pairs(function, pairs, B=64):
    params = {"embedding": np.ones((32, 128), np.float32)}
    params["pairs"] = [(np.ones((128, 512), np.float32), np.ones((512, 128), np.float32))] * pairs
    places = {"embedding": whole, "pairs": [(columns, rows)] * pairs}
    batch = jax.ShapeDtypeStruct((B, 32), np.float32)
    return jax.jit(function, in_shardings=(places, whole)).lower(params, batch).compile().as_text()


counts = {}
for pairs in (1, 2, 3):
    both = [collectives(compile_pairs(f, pairs)) for f in (loss, jax.value_and_grad(loss))]
    # An activation is [64, 128] in float32.
    counts[pairs] = [sum(each.bytes for each in found) // (64 * 128 * 4) for found in both]
    forward, with_backward = counts[pairs]
    print(
        f"pairs: {pairs} | all-reduces forward: {forward} | forward and backward: {with_backward}"
    )

# %% tags=["proof"]
# The asserts behind the answers so far.
assert kinds == {"summed over": ["all-reduce"], "kept": []}
assert counts == {1: [1, 2], 2: [2, 4], 3: [3, 6]}

# %% [markdown]
# <details><summary>Answer</summary>
#
# Six: one for each pair forward, and one for each pair backward. (If nothing before the first pair were trained, it
# would be five, because the first pair wouldn't need its backward all-reduce.)
#
# </details>
#
# The next layer can't start until its input has been added up, so it's hard to hide these all-reduces behind
# computation. That's why people keep tensor parallelism where links are fast: between the GPUs of one machine, or
# between neighbouring TPUs.
#
# ## Attention: split the heads
#
# A transformer has attention, too. Its heads work independently, so give each device some of the heads: split the matrices
# that make queries, keys and values by their columns, and the output matrix by its rows.
#
# **Predict:** eight heads on eight devices. How many all-reduces does the forward pass have?


# %% tags=["prediction"]
def attention(params, x):  # [B, T, 128]
    # Queries, keys and values are [B, T, heads, 16].
    q, k, v = ((x @ params[name]).reshape(*x.shape[:2], 8, 16) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / 4)
    return jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape) @ params["out"]


params = {name: np.eye(128, dtype=np.float32) for name in ("q", "k", "v", "out")}
places = {"q": columns, "k": columns, "v": columns, "out": rows}
block = jax.jit(attention, in_shardings=(places, whole), out_shardings=whole)
of_attention = collectives(
    block.lower(params, np.ones((4, 16, 128), np.float32)).compile().as_text()
)
print(*of_attention)

# %% tags=["proof"]
# The asserts behind the answer.
assert [(each.kind, each.count) for each in of_attention] == [("all-reduce", 1)]

# %% [markdown]
# <details><summary>Answer</summary>
#
# One, for the output matrix, which sums over all heads. Attention is a pair like the others.
#
# </details>
#
# ## When does it send less?
#
# Data parallelism all-reduces the gradients, whose size doesn't depend on the batch. Tensor parallelism all-reduces
# activations, which grow with it. Take two pairs of 128 x 512 and 512 x 128 on eight devices. Data parallelism
# all-reduces one gradient for each of their 262,144 weights. Tensor parallelism needs two all-reduces of `[B, 128]`
# for each pair. (B is the whole batch, because now every device works on all the examples.)
#
# **Predict:** for which batch size B do both send the same number of bytes?

# %% tags=["prediction"]
sizes = (32, 64, 128, 256, 512, 1024, 2048)
sent = {
    "tensor parallelism": [],
    "data parallelism": [4 * (2 * 2 * 128 * 512 + 32 * 128)] * len(sizes),
}
for B in sizes:
    found = collectives(compile_pairs(jax.grad(loss), 2, B))
    sent["tensor parallelism"].append(sum(each.bytes for each in found))
lesson_15.bytes_by_batch(sizes, sent)

# %% tags=["proof"]
# The asserts behind the answer.
np.testing.assert_allclose(sent["tensor parallelism"], [4 * 4 * B * 128 for B in sizes])
np.testing.assert_allclose(sent["tensor parallelism"][4], sent["data parallelism"][4], rtol=0.02)

# %% [markdown]
# <details><summary>Answer</summary>
#
# At about 512: four all-reduces of 512 x 128 numbers make 262,144. With a smaller batch, tensor parallelism sends less.
#
# </details>
#
# But it also matters when the bytes are sent. Data parallelism can send the gradients of the last layers while the
# backward pass is still working on the first ones. With tensor parallelism, the next layer has to wait. So people use
# tensor parallelism if a layer doesn't fit, or if the per-device batch would become tiny, and only over as many devices
# as are joined by fast links. (*Sequence parallelism* also splits the activations between the pairs, along the tokens:
# a reduce-scatter and an all-gather take the place of each all-reduce.)
#
# ## The mistake: columns, then columns
#
# Suppose you split both matrices by their columns. Each device still holds half of each matrix, and the result is
# right.
#
# **Predict:** `h` is split by its hidden units. What does a device still need for its columns of the second product?

# %% tags=["prediction"]
random = np.random.default_rng(0)
x, W1, W2 = (random.normal(size=SHAPES[name]).astype(np.float32) for name in ("x", "W1", "W2"))


def forward(x, W1, W2):
    return jax.nn.relu(x @ W1) @ W2


on_columns, on_rows = place(None, "model"), place("model", None)
traffic, results = {}, {}
for name, of_W2 in {"columns, then rows": on_rows, "columns, then columns": on_columns}.items():
    program = jax.jit(forward, in_shardings=(place(), on_columns, of_W2), out_shardings=place())
    results[name] = program(x, W1, W2)
    (traffic[name],) = collectives(program.lower(x, W1, W2).compile().as_text())
    print(f"{name:22s} {traffic[name].kind} of {traffic[name].bytes:,} bytes")

# %% tags=["proof"]
# The asserts behind the answer.
np.testing.assert_allclose(*results.values(), rtol=1e-3, atol=1e-2)
good, bad = traffic.values()
assert good.kind == "all-reduce"
assert bad.kind == "all-gather"
assert bad.bytes > 40 * good.bytes

# %% [markdown]
# <details><summary>Answer</summary>
#
# The other half of `h`, because a column of W2 needs all hidden units. So XLA gathers `h` on both devices, 64 x 512
# numbers, and in the end it gathers the result, too. With rows, an all-reduce of 64 x 10 numbers was enough. Nothing
# warns you, and in a deep network you'd pay for it in every layer. So read the collectives of your program.
#
# </details>
#
# ## The program so far, and what changes
#
# include program/09_jit.py
#
# Everything that changes for tensor parallelism:
#
# include the difference of 09_jit.py and 15_split.py
#
# - The mesh has two axes. The batch is split over four groups of devices, and each group of two splits the hidden units.
# - `SPECS` says which parameters are split, and how. `shard` looks for their names in the path of each array. Adam's moments
#   have the parameters' names in their paths, so they're split in the same way.
# - `jax.eval_shape` finds shapes and paths without computing anything, and `jax.jit(init_state, out_shardings=...)`
#   makes the state where it belongs. Lesson 16 explains both.
# - The function `train_step` hasn't changed. Only the shardings that you give to `jax.jit` are new.
#
# Lesson 09's program ended with loss 0.2486, accuracy 0.9184, and 0.3540 and 0.8730 on the test set.
#
# **Predict:** what does this one end with?

# %% tags=["prediction", "take-home"]
# include program/15_split.py

# %% [markdown]
# <details><summary>Answer</summary>
#
# With the same numbers, up to rounding in the last digit, although each device holds only half of the first kernel. A
# sharding decides which device computes what. It doesn't change the result.
#
# </details>
#
# A checkpoint doesn't tie you to a layout, either: it holds whole arrays, so you can save it on this mesh and resume
# on a different one. You'll do that in lesson 16.
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
#    `[B, h]` and `W2` `[h, C]` hold this device's hidden units, and `bias` `[C]` is replicated. On one device it's right. On
#    four it raises no error, and the result is wrong. <details><summary>Hint</summary>Let <code>h</code> be 0, and compute the
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
# - A product needs no communication if you split a kept axis, and an all-reduce if you split the axis that's summed
#   over. The products of the backward pass sum over other axes, so look at them, too.
# - Columns, then rows: one all-reduce for a pair forward, and one backward if something before the pair is trained. Attention
#   is a pair, too, if you split it by heads.
# - Tensor parallelism sends activations, data parallelism sends gradients. A wrong split shows only in the collectives.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `SPECS` | `--layout model`; the models name their axes | [sharding/layout.py](../pmapdp/sharding/layout.py), [models/mlp.py](../pmapdp/models/mlp.py) |
# | `shard` | `MeshLayout.array` | [sharding/layout.py](../pmapdp/sharding/layout.py) |
# | the mesh of 4 x 2 | `--mesh data=4,model=2` | [sharding/layout.py](../pmapdp/sharding/layout.py) |
#
# To read on: [the scaling book on sharded matrices](https://jax-ml.github.io/scaling-book/sharding/). Next, stop
# keeping a copy of the state on every device: [16 Born sharded](16_born_sharded.ipynb).

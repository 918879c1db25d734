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
# # 11. Use explicit sharding
#
# After this lesson you can make shardings part of the types of your arrays, read them while a function is traced,
# resolve what JAX refuses, train a Flax model that way, and decide when to prefer it to the automatic sharding of
# lesson 09.
#
# About 30 minutes · you need [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb) · previous: [10 Three ways
# side by side](10_three_ways_side_by_side.ipynb) · next: [12 Port a pmap program](12_port_a_pmap_program.ipynb)
#
# In lesson 09 the compiler chose the shardings of all arrays between the arguments and the results. You saw its
# choices only in the compiled program. On a mesh with *Explicit* axes, JAX itself derives the sharding of every
# intermediate array while it traces your function. Where more than one sharding is possible, it raises an error, and
# you say which one you want.

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax
from jax.sharding import AxisType, Mesh

from pmapdp import devices  # simulates devices (lesson 00) and describes them

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"
chosen = jax.devices()
print(devices.describe(chosen), "| jax", jax.__version__)

# %% [markdown]
# ## A mesh with Explicit axes
#
# `jax.make_mesh` makes Explicit axes by default. (`Mesh(...)` makes Auto ones; that is why the earlier lessons used
# it.) `jax.set_mesh` makes a mesh the current one. Then a `PartitionSpec` alone, for short `P`, is enough to place an
# array. `jax.typeof` gives the type of an array, with its sharding. The type of `x` below is `float32[16@data,4]`: 16
# rows, split over the mesh axis "data", of 4 columns each. **Predict:** what is the type of `2 * x`, of `x.sum(1)` and
# of `x.sum(0)`?

# %% tags=["prediction"]
mesh = jax.make_mesh((8,), ("data",))
jax.set_mesh(mesh)

x = jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), P("data"))
for name, array in (("x", x), ("2 * x", 2 * x), ("x.sum(1)", x.sum(1)), ("x.sum(0)", x.sum(0))):
    print(f"{name:9s} {jax.typeof(array)}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `2 * x` and `x.sum(1)` stay split as x is. `x.sum(0)` sums over the split axis and is replicated, so it needs an
# all-reduce. Inside `jit` this works in the same way: the types are known while the function is traced.
#
# </details>
#
# ## Types through a network
#
# The picture shows the types of a network on a mesh of two axes. The examples are split over the axis "data", and the
# hidden units over the axis "model".

# %%
from pmapdp.lessons.pictures import lesson_11

lesson_11.types()

# %% [markdown]
# For one of the two products JAX cannot derive how the result is to be sharded, so we have to say it. **Predict:**
# for which one, and why?

# %% tags=["prediction"]
from pmapdp.compare.collectives import collectives  # lists the collectives in the text of a compiled program
from pmapdp.registry import load_data  # the digits: images of 28 x 28 pixels, and labels

data = load_data("digits")
images = data.train.inputs[:512].reshape(512, 784).astype(np.float32) / 255
labels = data.train.labels[:512]
random = np.random.default_rng(0)
W1, W2 = random.normal(0, 0.05, (784, 64)).astype(np.float32), random.normal(0, 0.1, (64, 10)).astype(np.float32)


@jax.jit
def forward(x, W1, W2):
    hidden = jax.nn.relu(x @ W1)
    logits = jnp.matmul(hidden, W2, out_sharding=P("data", None))  # <- new
    types.extend(map(str, map(jax.typeof, (hidden, logits))))
    return logits


types = []
with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"))):
    placed = jax.device_put(images, P("data")), jax.device_put(W1, P(None, "model")), jax.device_put(W2, P("model"))
    found = collectives(forward.lower(*placed).compile().as_text())
    logits = np.asarray(forward(*placed))
print(*types, *found, sep="\n")

# %% tags=["proof"]
# The asserts behind the answers so far.
assert mesh.axis_types == (AxisType.Explicit,)
assert Mesh(np.array(chosen), ("data",)).axis_types == (AxisType.Auto,)
assert str(jax.typeof(2 * x)) == "float32[16@data,4]"
assert str(jax.typeof(x.sum(0))) == "float32[4]"
assert types == ["float32[512@data,64@model]", "float32[512@data,10]"]
assert [each.kind for each in found] == ["all-reduce"]
np.testing.assert_allclose(logits, np.maximum(images @ W1, 0) @ W2, rtol=0, atol=1e-4)

# %% [markdown]
# <details><summary>Answer</summary>
#
# For the second one, because it sums over the hidden units, which are split. The line with `out_sharding` is also the
# one that needs the all-reduce. The types were known while JAX traced the function, before anything was compiled.
#
# </details>
#
# ## What it refuses, and why
#
# Here are three operations whose result could be sharded in several ways: a product that sums over a split axis, a
# sum of two arrays that are split along different axes, and one row of a split array. **Predict:** which shardings
# could each result have?

# %% tags=["prediction"]
import textwrap

columns = jax.device_put(np.ones((4, 16), np.float32), P(None, "data"))
square = np.arange(256, dtype=np.float32).reshape(16, 16)
by_row, by_column = jax.device_put(square, P("data", None)), jax.device_put(square, P(None, "data"))
errors = {}
for name, function in (
    ("columns @ x", lambda: columns @ x),
    ("by_row + by_column", lambda: by_row + by_column),
    ("x[0]", lambda: x[0]),
):
    try:
        function()
        raise AssertionError(f"{name} was accepted")
    except Exception as error:
        errors[name], message = type(error).__name__, " ".join(str(error).split())
    print(f"{name:18s} {errors[name]}: {textwrap.shorten(message, 80, placeholder=' ...')}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# - `columns @ x` could be replicated (by an all-reduce) or split (by a reduce-scatter).
# - `by_row + by_column` could be split by row or by column. One mesh axis cannot split both axes of the result.
# - The row `x[0]` is on one device. A sharding covers all devices of the mesh, so the result has to be replicated, or
#   split again.
#
# </details>
#
# In each case you say what you want. `out_sharding` says how a result is sharded. `jax.reshard` changes the sharding
# of an array, for which the devices may have to communicate. **Predict:** which collective changes a split by columns
# into a split by rows?

# %% tags=["prediction"]
replicated = jnp.matmul(columns, x, out_sharding=P())
scattered = jnp.matmul(columns, by_row, out_sharding=P(None, "data"))
total = by_row + jax.reshard(by_column, P("data", None))
first = x.at[0].get(out_sharding=P())
for name, array in (("replicated", replicated), ("scattered", scattered), ("total", total), ("first row", first)):
    print(f"{name:10s} {jax.typeof(array)}")
program = jax.jit(lambda y: jax.reshard(y, P("data", None))).lower(by_column).compile()
print("reshard from columns to rows:", *collectives(program.as_text()))

# %% [markdown]
# <details><summary>Answer</summary>
#
# An all-to-all: each device sends a different piece to every other device.
#
# </details>
#
# ## What of a Flax model works, and what raises
#
# A layer that treats each example by itself, or that sums over the examples, has only one possible sharding, so it
# works unchanged. A layer that *indexes* an array by a sharded one, or that loops over zeros of its own, does not.
# The next cell calls layers of Flax, and other operations that a training step may contain, on arrays whose first
# axis is split. **Predict:** which of them raise?

# %% tags=["prediction"]
import optax
from flax import nnx

rngs, table = nnx.Rngs(0), np.ones((10, 8), np.float32)
rows = jax.device_put(np.ones((16, 8), np.float32), P("data"))
squares = jax.device_put(np.ones((16, 8, 8, 1), np.float32), P("data"))
sequences = jax.device_put(np.ones((16, 5, 8), np.float32), P("data"))
tokens = jax.device_put(np.ones((16, 5), np.int32), P("data"))
CALLS = {
    "Linear": lambda: nnx.Linear(8, 4, rngs=rngs)(rows),
    "Conv": lambda: nnx.Conv(1, 4, (3, 3), rngs=rngs)(squares),
    "BatchNorm": lambda: nnx.BatchNorm(8, rngs=rngs)(rows),
    "LayerNorm": lambda: nnx.LayerNorm(8, rngs=rngs)(rows),
    "Dropout": lambda: nnx.Dropout(0.5, rngs=rngs)(rows),
    "max_pool": lambda: nnx.max_pool(squares, (2, 2), (2, 2)),
    "MultiHeadAttention": lambda: nnx.MultiHeadAttention(2, 8, rngs=rngs, decode=False)(sequences),
    "cross entropy": lambda: optax.softmax_cross_entropy_with_integer_labels(rows, tokens[:, 0]),
    "Embed": lambda: nnx.Embed(10, 8, rngs=rngs)(tokens),
    "RNN": lambda: nnx.RNN(nnx.GRUCell(8, 4, rngs=rngs))(sequences),
    "rows[:10]": lambda: rows[:10],
    "sort by examples": lambda: jnp.sort(rows, axis=0),
    "reshape(4, -1)": lambda: rows.reshape(4, -1, 8),
}
raised = {}
for name, call in CALLS.items():
    try:
        print(f"{name:19s}{jax.typeof(call())}")
    except Exception as error:
        raised[name] = type(error).__name__
        print(f"{name:19s}{raised[name]}: {textwrap.shorten(str(error), 80, placeholder=' ...')}")

# %% tags=["proof"]
# The asserts behind the answers so far.
assert set(errors.values()) == {"ShardingTypeError"}
np.testing.assert_array_equal(total, 2 * square)
np.testing.assert_array_equal(first, np.arange(4))
assert [each.kind for each in collectives(program.as_text())] == ["all-to-all"]
assert list(raised) == ["Embed", "RNN", "rows[:10]", "sort by examples", "reshape(4, -1)"]
assert raised["Embed"] == "ShardingTypeError"
np.testing.assert_array_equal(jnp.asarray(table).at[tokens].get(out_sharding=P("data")), table[np.asarray(tokens)])

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first eight work. `Embed` looks rows of a table up by sharded tokens, and wants to know how the result is placed: call
# it as `embed(tokens, out_sharding=P("data"))`, which does what the folded cell shows. A recurrent layer starts its loop
# with zeros that aren't split: give it an `initial_carry` that is. (The last line of the table refuses the cut into
# micro-batches that multiplies the work, lesson 13.)
#
# </details>
#
# ## The data-parallel step, once more
#
# The step of lesson 09 works as it is: the types of the arguments are enough. The gradient has the type of `W`, which
# is replicated, so it needs an all-reduce. We only add an assert. It is checked while the function is traced, and
# costs nothing when the program runs. We compare the update with one by hand (float32, tolerance 1e-6).

# %%
W = jnp.zeros((784, 10))


@jax.jit
def step(W, x, y):
    assert jax.typeof(x).sharding.spec[0] == "data", f"the batch is not split: {jax.typeof(x)}"  # <- new

    def loss(W):
        return optax.softmax_cross_entropy_with_integer_labels(x @ W, y).mean()

    return W - 0.1 * jax.grad(loss)(W)


batch = jax.device_put((images, labels), P("data"))
found = collectives(step.lower(W, *batch).compile().as_text())
print(jax.typeof(step(W, *batch)), "|", *found)
assert [(each.kind, each.bytes) for each in found] == [("all-reduce", 4 * 7840)]
logits = images @ np.zeros((784, 10), np.float32)
gradient = images.T @ (np.full((512, 10), 0.1, np.float32) - np.eye(10, dtype=np.float32)[labels]) / 512  # by hand
np.testing.assert_allclose(step(W, *batch), -0.1 * gradient, rtol=0, atol=1e-6)

# %% [markdown]
# **A failure on purpose.** The silent mistake of lesson 09 was a batch that nobody placed, so that every device
# computed all of it. Here the assert catches the mistake.

# %%
try:
    step(W, images, labels)
    raise RuntimeError("the batch was accepted")
except AssertionError as error:
    print("AssertionError:", error)

# %% [markdown]
# ## shard_map inside
#
# Explicit sharding and `shard_map` work together: inside `shard_map` the axis is *Manual*, and you write the program
# of one device. The mesh is the current one, so you need not name it. `jax.smap` is `shard_map` over one axis. It
# takes `in_axes` and `out_axes` as pmap does, but its arrays have no device axis: `in_axes=0` splits axis 0 of the
# array. **Predict:** what are the shapes of the two results?

# %% tags=["prediction"]
summed = jax.shard_map(lambda x: lax.psum(x.sum(0), "data"), in_specs=P("data"), out_specs=P())(x)
per_device = jax.smap(lambda x: x.sum(keepdims=True), in_axes=0, out_axes=0, axis_name="data")(x.sum(1))
print(jax.typeof(summed), np.asarray(summed), "|", jax.typeof(per_device), np.asarray(per_device))

# %% tags=["proof"]
# The asserts behind the answer.
np.testing.assert_array_equal(summed, x.sum(0))
np.testing.assert_array_equal(per_device, np.arange(64).reshape(8, -1).sum(1))

# %% [markdown]
# <details><summary>Answer</summary>
#
# The sum over all devices is replicated, and the sums of the single devices are split.
#
# </details>
#
# ## When to prefer it
#
# Is a step with Explicit axes faster? We compile the same step with Auto axes, and compare what the two programs do.

# %%
programs = {}
for kind in (AxisType.Auto, AxisType.Explicit):
    with jax.set_mesh(jax.make_mesh((8,), ("data",), axis_types=(kind,))):
        arrays = jax.device_put((np.zeros((784, 10), np.float32), images, labels), (P(), P("data"), P("data")))

        def update(W, x, y):
            return W - 0.1 * jax.grad(lambda W: jnp.square(x @ W - y[:, None]).mean())(W)

        plain = jax.jit(update, out_shardings=P())
        program = plain.lower(*arrays).compile()
    programs[kind] = collectives(program.as_text()), program.cost_analysis()["flops"]
    print(f"{kind.name:8s}", *programs[kind][0], f"{programs[kind][1] / 1e6:.2f} MFLOP on a device")
assert programs[AxisType.Auto] == programs[AxisType.Explicit]

# %% [markdown]
# No: where both give the same shardings, the devices do the same work. So speed is no reason for one or the other.
#
# | you want | use |
# | --- | --- |
# | data parallelism of an existing model | Auto axes (lesson 09): no change in the model, and every library works |
# | to know every sharding, or an error where one is not as planned | Explicit axes |
# | a model split over several axes, where a wrong choice of the compiler is costly | Explicit axes |
# | to write the collectives yourself | `shard_map`, inside either |
#
# Explicit axes have a price: you write `out_sharding` or `jax.reshard` wherever an array is indexed, cut or sorted along a
# split axis. For code that you don't want to change, such as a library's layer, JAX has a way out:
# `jax.sharding.auto_axes` makes the axes Auto inside one function. pmapdp uses Auto axes everywhere
# ([steps/jit.py](../pmapdp/steps/jit.py)), so that models stay free of shardings.
#
# ## Take it home
#
# The next cell needs nothing from above and nothing from pmapdp. A Flax model with an embedding is trained under a
# mesh with an Explicit axis. An unsplit batch, or a gradient that is not replicated, is an error before anything
# runs.

# %% tags=["take-home"]
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import P

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

BATCH, EPOCHS = 512, 5  # the batch divides by the number of devices
mesh = jax.make_mesh((jax.device_count(),), ("data",))  # makes Explicit axes
jax.set_mesh(mesh)


class Embedding(nnx.Embed):
    def __call__(self, tokens):  # or call nnx.Embed with out_sharding=P("data")
        return self.embedding[...].at[tokens].get(out_sharding=P("data"))


class Net(nnx.Module):
    def __init__(self, vocabulary, width, classes, rngs):
        self.embedding = Embedding(vocabulary, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.hidden = nnx.Linear(width, width, rngs=rngs)
        self.logits = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, tokens):  # [B, length]
        x = self.norm(self.embedding(tokens).mean(1))
        return self.logits(nnx.relu(self.hidden(x)))


def loss(model, tokens, labels):
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens), labels).mean()


optimizer = optax.adam(1e-2)


def train_step(model, optimizer_state, tokens, labels):
    for array in (tokens, labels):
        assert jax.typeof(array).sharding.spec[0] == "data", f"the batch is not split: {jax.typeof(array)}"
    value, gradients = jax.value_and_grad(loss)(model, tokens, labels)
    for gradient in jax.tree.leaves(gradients):
        assert jax.typeof(gradient).sharding.is_fully_replicated, f"not all-reduced: {jax.typeof(gradient)}"
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return optax.apply_updates(model, updates), optimizer_state, value


train_step = jax.jit(train_step, donate_argnums=(0, 1))

random = np.random.default_rng(0)  # put your own arrays in place of these
tokens = random.integers(0, 100, (10_000, 20))
labels = np.stack([(tokens % 4 == c).sum(1) for c in range(4)], 1).argmax(1)  # the most frequent remainder
train, test = (tokens[:9_003], labels[:9_003]), (tokens[9_003:], labels[9_003:])
predict = jax.jit(lambda model, tokens: model(tokens).argmax(1))


def accuracy(model):
    """Over all test examples. Rows of padding make their number divide by the devices; they are cut off again."""
    missing = -len(test[0]) % mesh.size
    guesses = predict(model, jax.device_put(np.pad(test[0], ((0, missing), (0, 0))), P("data")))
    return (np.asarray(guesses)[: len(test[0])] == test[1]).mean()


model = jax.device_put(Net(int(tokens.max()) + 1, 32, int(labels.max()) + 1, nnx.Rngs(0)), P())
optimizer_state = jax.device_put(optimizer.init(model), P())
for epoch in range(EPOCHS):
    order = np.random.default_rng([1, epoch]).permutation(len(train[0]))
    for start in range(0, len(order) - BATCH + 1, BATCH):  # what fills no batch has its turn in another epoch
        rows = order[start : start + BATCH]
        batch = jax.device_put((train[0][rows], train[1][rows]), P("data"))
        model, optimizer_state, value = train_step(model, optimizer_state, *batch)
    print(f"epoch {epoch + 1}: loss {float(value):.3f}, test accuracy {accuracy(model):.3f}")
assert accuracy(model) > 0.9

# %% [markdown]
# ## Exercises
#
# Each runs under a mesh with the Explicit axis "data".
#
# **1. `typed`** (3 minutes): return the spec of the *result* of `function(x)`, without computing it: a PartitionSpec.
# <details><summary>Hint</summary><code>jax.eval_shape</code> gives a result's shape and sharding.</details>
#
# **2. `fixed_gram`** (5 minutes): find the planted mistake. `broken_gram` is right with Auto axes. Here JAX refuses
# it, for `x` `[B@data, D]`. Return the `[D, D]` matrix, replicated. No device may receive other devices' rows of x.
# <details><summary>Hint</summary>Which axis does the product sum over? Say how the result is to be sharded.</details>
#
# **3. `normalized_step`** (10 minutes): make one gradient step for `w` `[D]`, which is replicated. The loss is the
# mean of `(z @ w - y) ** 2`, and the learning rate is 0.1. Here z is x `[B@data, D]` with normalized columns: each
# column minus its mean, divided by its standard deviation, both over the *global* batch. Return the new `w`. Raise an
# AssertionError for a batch that is not split.
# <details><summary>Hint</summary>It is the program of one device. Only the assert knows of shardings.</details>


# %%
from pmapdp.lessons.checks import check


def broken_gram(x):
    return x.T @ x


def typed(function, x):
    """The PartitionSpec of function(x)."""
    ...  # your code: 1 line


def fixed_gram(x):
    """[D, D], replicated."""
    ...  # your code: 1 line


def normalized_step(w, x, y):
    """The new w [D]."""
    ...  # your code: 4 or 5 lines


for exercise in (typed, fixed_gram, normalized_step):
    check("11_explicit_sharding", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/11_explicit_sharding.py](solutions/11_explicit_sharding.py)
#
# ## Take away
#
# - With Explicit axes a sharding is part of a type: `jax.typeof` shows it while a function is traced.
# - Where a result could be sharded in several ways, JAX raises an error: choose with `out_sharding` or `jax.reshard`.
# - An assert on a type turns a silent replication into an error, at no cost.
#
# pmapdp has no file for this: its steps use Auto axes, as the table says. Read on:
# [Distributed arrays](https://docs.jax.dev/en/latest/201/sharding.html) in JAX's documentation, whose examples use
# Explicit axes, and [the scaling book](https://jax-ml.github.io/scaling-book/jax-stuff/) on programming TPUs in JAX.
# Next: [12 Port a pmap program](12_port_a_pmap_program.ipynb).

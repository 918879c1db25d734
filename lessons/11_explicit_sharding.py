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
# Lesson 09's loose step took a batch that nobody had placed. The loss was correct, all eight devices did all of the work,
# and no error told you. `in_shardings` guards the arguments of a step, but what happens to the arrays *inside* it? Under
# `jit` the compiler decides where they go, and you have to dig in its output to see what it decided. Change ten lines,
# and the sharding becomes part of an array's *type*, which you can print and assert at any line of your step. Where JAX has
# no rule for a sharding, it raises an error that asks you for one. At the end you'll use the types to move an all-reduce
# out of a loop.
#
# **You will** read shardings as types, answer when JAX asks for one, sum gradients with a single all-reduce, and decide
# when all this is worth it. 30 minutes, 53 with exercises. You need
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np
from jax import P  # short for PartitionSpec

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_11

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## Types with a sharding
#
# `Mesh(...)`, which you've used so far, makes an *Auto* axis, over which the compiler decides. `jax.make_mesh` makes an
# *Explicit* axis, by default since jax 0.9. `jax.set_mesh` makes the mesh the current one for all cells that follow. From
# then on a spec alone is enough to place an array, and the spec becomes part of the array's type, which `jax.typeof`
# shows:

# %%
jax.set_mesh(jax.make_mesh((8,), ("data",)))
x = jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), P("data"))
print(jax.typeof(x))

# %% [markdown]
# Read it from the left: 16 rows, split over the mesh axis "data", and 4 columns that aren't split. Results have such types,
# too, and JAX knows them while it traces, before there are any numbers.
#
# **Predict:** what are the types of `2 * x`, of `x.sum(1)` and of `x.sum(0)`?


# %% tags=["prediction"]
@jax.jit
def print_types(x):
    results = {"2 * x": 2 * x, "x.sum(1)": x.sum(1), "x.sum(0)": x.sum(0)}
    for name, result in results.items():
        print(f"{name:9s} {jax.typeof(result)}")
    return results


results = print_types(x)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `2 * x` is `float32[16@data,4]` and `x.sum(1)` is `float32[16@data]`: they stay split, as `x` is. `x.sum(0)` is a
# plain `float32[4]`, replicated. It sums over the split axis, which takes an all-reduce.
#
# </details>
#
# Every operation has a rule like these, which takes the types of the arguments and gives the type of the result.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). Everything that changes:
#
# include the difference of 09_jit.py and 11_explicit.py
#
# - `jit` no longer needs shardings, because the arguments carry them in their types.
# - `loss_sums` asserts that the inputs are split. Both `train_step` and `eval_step` call it, so both refuse a batch that
#   isn't.
# - `weights @ losses` becomes a sum. You'll see why when JAX asks its first question.
#
# Each device does what it did before, so the losses are lesson 09's. The last line prints the type of the inputs.

# %% tags=["take-home"]
# include program/11_explicit.py

# %% [markdown]
# ## The mistake, caught by your assert
#
# Your `jit` has no `in_shardings` any more, so the quiet mistake of lesson 09 is possible again. Make it: pass a batch that
# nobody has placed.

# %%
host_batch = next(batches(*train_data, seed=0))  # NumPy arrays, on no device yet
refusals = []
for step in (train_step, eval_step):
    try:
        step(state, host_batch)
    except AssertionError as error:
        refusals.append(str(error))
        print("AssertionError:", error)

# %% [markdown]
# In `float32[128,64]` no axis is split. It's *your* assert that complains, and you need it, because to JAX this is a
# replicated batch, which you might have wanted. The assert runs while JAX traces the step, so it costs nothing once the
# step is compiled.
#
# The types also tell you where your step communicates. In the next picture each colour is a device. Stripes are rows on
# different devices, and a stack of eight cards is an array that every device holds whole.
#
# **Predict:** the last of six arrays is the gradient of `hidden.kernel`. Stripes, or a stack?

# %% tags=["prediction"]
batch = place_batch(host_batch)
model = state[0]
hidden = nnx.relu(model.hidden(batch[0]))
gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
arrays = {
    "inputs": batch[0],
    "hidden": hidden,
    "logits": model.output(hidden),
    "hidden.kernel": model.hidden.kernel[...],
    "output.kernel": model.output.kernel[...],
    "gradient of hidden.kernel": gradients.hidden.kernel[...],
}
lesson_11.shardings(arrays, arrows=((0, 1), (1, 2), (3, 1), (4, 2), (2, 5)))  # by number

# %% [markdown]
# <details><summary>Answer</summary>
#
# A stack, because a gradient has the type of its parameter, and the kernel is replicated. The gradient sums over 128
# examples that are split, so the all-reduce happens here.
#
# </details>
#
# ## Where JAX asks
#
# Where there's no rule, JAX doesn't guess. It raises an error and asks you. Take a matrix of 16 x 16, once split
# by rows, `P("data", None)`, and once by columns, `P(None, "data")`. JAX refuses `columns @ rows` and `rows + columns`.
#
# **Predict:** name two shardings that each result could have.

# %% tags=["prediction"]
import textwrap

square = np.arange(256, dtype=np.float32).reshape(16, 16)
rows = jax.device_put(square, P("data", None))
columns = jax.device_put(square, P(None, "data"))


def show_error(name, function):
    """Print the error that a function raises, and return its class, or None."""
    try:
        print(f"{name} works: {jax.typeof(function())}")
    except Exception as error:
        kind = type(error).__name__
        print(textwrap.fill(f"{name} raises a {kind}: {error}", 100), end="\n\n")
        return kind


errors = [
    show_error("columns @ rows", lambda: columns @ rows),
    show_error("rows + columns", lambda: rows + columns),
]

# %% [markdown]
# <details><summary>Answer</summary>
#
# - The product sums over the split axis, so each device has a part of every sum. Once the parts are summed, the result
#   can be replicated, or split by rows, or by columns.
# - The sum of the two can be split by rows or by columns, but not both ways, because a mesh axis can split only one
#   dimension of an array. One of the two matrices has to move.
#
# </details>
#
# Each choice means different communication, so JAX leaves it to you. Now you also see why `weights @ losses` had to go:
# if both factors of a product are split along the summed axis, JAX asks, even when the result is one number. Where there
# is a rule, JAX communicates without a word: for `.sum()`, as you saw with `x.sum(0)`, and for `columns @ square`, in
# which only one factor is split.
#
# To answer, pass `out_sharding`, which says how you want the result. If you already have an array, `jax.reshard` changes
# its sharding.

# %%
answers = {
    "matmul, P()": jnp.matmul(columns, rows, out_sharding=P()),
    'matmul, P("data")': jnp.matmul(columns, rows, out_sharding=P("data")),
    "rows + reshard(columns)": rows + jax.reshard(columns, P("data", None)),
}
for name, answer in answers.items():
    print(f"{name:24s} {jax.typeof(answer)}")

# %% [markdown]
# ## A mesh of 4 x 2
#
# With one mesh axis you can follow the shardings in your head. With two you'll be glad of the types. Put the eight devices
# in four rows of two, along the axes "data" and "model", and split the inputs over "data". Both matrices are split over
# "model", the first by columns and the second by rows, so that each device holds half of each.
#
# **Predict:** what's the type of `hidden`, the result of the first product?

# %% tags=["prediction"]
with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"))):
    inputs = jax.device_put(host_batch[0], P("data"))
    W1 = jax.device_put(np.ones((64, 32), np.float32), P(None, "model"))
    W2 = jax.device_put(np.ones((32, 10), np.float32), P("model"))
    hidden = nnx.relu(inputs @ W1)
    logits = jnp.matmul(hidden, W2, out_sharding=P("data"))
    print("hidden:", jax.typeof(hidden), "| logits:", jax.typeof(logits))

# %% [markdown]
# <details><summary>Answer</summary>
#
# `float32[128@data,32@model]`: split both ways, so a device holds 32 rows and 16 columns of it. The second product sums
# over the columns of `hidden`, which are on two devices, so JAX would ask. `P("data")` is the answer: you want the sum,
# split by rows only, and each pair of devices all-reduces. Lesson 15 builds on this.
#
# </details>
#
# ## What works unchanged?
#
# Do you now have to annotate every layer? Not most of Flax's: `Linear`, `Conv`, `BatchNorm`, `LayerNorm`, `Dropout`,
# `max_pool` and `MultiHeadAttention` work unchanged, because only one type is possible for their results.
#
# Others need your help. `embed(tokens)` looks up rows of a table, and can't tell how you want its result split, so you
# answer with an argument: `embed(tokens, out_sharding=P("data"))`. A library's layer may not have that argument. Then use
# `auto_axes`, which hands the decision back to the compiler inside one function:
#
# ```python
# call_layer = jax.sharding.auto_axes(lambda layer, x: layer(x), out_sharding=P("data"))
# embedded = call_layer(embed, tokens)
# ```
#
# Pass everything that holds arrays as an argument, the layer included.
#
# ## Sum the gradients of micro-batches
#
# If a batch doesn't fit into memory, you can cut it into *micro-batches*. You compute the gradient of each, one after the
# other, and their sum is the gradient of the batch. Lesson 13 is about that, and here you need only this much. The devices
# would have to communicate only once, at the end, to sum what they've collected.
#
# Take your network and four micro-batches of 32 rows, so that each device has four rows of every micro-batch.
# `accumulate` sums the gradients in a loop, and `collectives` counts in the compiled program how often a collective runs.
# The sum has the sharding `spec`, which is at first `P()`, replicated like your parameters.
#
# **Predict:** how often does an all-reduce run?

# %% tags=["prediction"]
from jax import lax

from pmapdp.collectives import collectives

micro_batches = [x.reshape(4, 32, *x.shape[1:]) for x in host_batch]
micro_batches = jax.device_put(micro_batches, P(None, "data"))


def loss(model, batch):
    return loss_sums(model, batch)[0]


def accumulate(model, micro_batches, spec):
    """The sum of the gradients of all micro-batches. In the loop it has the spec `spec`."""

    def add(total, batch):
        gradients = jax.grad(loss)(model, batch)
        return jax.tree.map(jnp.add, total, gradients), None

    zeros = jax.reshard(jax.tree.map(jnp.zeros_like, model), spec)
    total, _ = lax.scan(add, zeros, micro_batches)
    return jax.reshard(total, P())


def run_accumulate(model, spec):
    """Return the gradients, and the number of times that an all-reduce runs."""
    jitted = jax.jit(lambda model, batches: accumulate(model, batches, spec))
    program = jitted.lower(model, micro_batches).compile()
    (found,) = collectives(program.as_text())
    print(f"{found.kind} of {found.bytes:,} bytes, runs: {found.runs}")
    return program(model, micro_batches), found.runs


model = jax.device_put(Network(nnx.Rngs(0)), P())
replicated_gradients, replicated_runs = run_accumulate(model, P())

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four times. A gradient has the type of its parameter, which is replicated, so JAX sums it over the devices in each round
# of the loop. Each time it sums all 2,410 gradients. XLA has a pass that can move an all-reduce out of a loop. On CPUs it
# doesn't, and we haven't tried it on GPUs, so count on your own machine.
#
# </details>
#
# To communicate once, you need parameters of another type. It holds the same numbers as a replicated one, but it promises
# that the gradient is *still to be reduced*: each device keeps its own part of the sum until you ask for the total. Two
# types belong together:
#
# | a parameter that is | holds | so its gradient is | which holds |
# | --- | --- | --- | --- |
# | replicated, `float32[64,32]` | the same on all devices | replicated | the sum, on all devices |
# | *reduced*, `float32[64,32]{R:data}` | the same on all devices | *unreduced*, `float32[64,32]{U:data}` | each device's own part of the sum |
#
# `jax.reshard` turns a replicated array into a reduced one without sending anything, because both hold the same numbers.
# Resharding an *unreduced* array to a replicated one is the all-reduce. These types are new and may change. We tested this
# section with jax 0.10.2 and 0.12.
#
# Try one by hand. Device d holds the input d, and the weight is 1.
#
# **Predict:** what does device 3 hold of the gradient, before and after the last `reshard`?

# %% tags=["prediction"]
x = jax.device_put(np.arange(8, dtype=np.float32).reshape(8, 1), P("data"))
w = jax.reshard(jnp.ones((1, 1)), P(reduced={"data"}))
gradient = jax.grad(lambda w: (x @ w).sum())(w)
reduced_gradient = jax.reshard(gradient, P())
parts = [shard.data.item() for shard in gradient.addressable_shards]
print(f"w is {jax.typeof(w)}, its gradient {jax.typeof(gradient)}")
print(f"before: {parts}, after: {reduced_gradient.item()} everywhere")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Before, it holds 3, the gradient of its own row. After, it holds 28, as all devices do: 0 + 1 + ... + 7.
#
# </details>
#
# Now reshard the network's parameters to reduced, and start the sum of their gradients as unreduced. One obstacle remains,
# the bias of `nnx.Linear`. JAX has a rule for split rows *times* a reduced kernel, but none for split rows *plus* a
# reduced bias. `linear` makes one row of biases for each example, and splits those rows. Each device keeps its own, so
# nothing is sent.
#
# **Predict:** how often does an all-reduce run now, and of how many bytes?

# %% tags=["prediction"]
def linear(layer, inputs):
    """Compute what `nnx.Linear` does, also with a reduced bias."""
    outputs = inputs @ layer.kernel
    bias_rows = jnp.broadcast_to(layer.bias[...], outputs.shape)
    return outputs + jax.reshard(bias_rows, P("data"))


class ReducedNetwork(Network):
    def __call__(self, inputs):
        return linear(self.output, nnx.relu(linear(self.hidden, inputs)))


unreduced = P(unreduced={"data"})
reduced_model = jax.reshard(ReducedNetwork(nnx.Rngs(0)), P(reduced={"data"}))
unreduced_gradients, unreduced_runs = run_accumulate(reduced_model, unreduced)
lesson_11.all_reduces_over_time()

# %% tags=["proof"]
# The asserts behind the answers so far, and one update with lesson 09's step on an Auto axis.
from jax.sharding import AxisType, auto_axes


def plain_loss_sums(model, batch):
    """Lesson 09's `loss_sums`, without an assert."""
    inputs, labels, weights = batch
    logits = model(inputs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    correct = logits.argmax(-1) == labels
    sums = {"loss": weights @ losses, "correct": weights @ correct, "count": weights.sum()}
    return sums["loss"], sums


def plain_step(state, batch):
    """Lesson 09's step."""
    model, optimizer_state = state
    gradients, sums = jax.grad(plain_loss_sums, has_aux=True)(model, batch)
    gradients = jax.tree.map(lambda g: g / sums["count"], gradients)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return (optax.apply_updates(model, updates), optimizer_state), sums


def update_once(step, axis_type):
    """The model after one update, and the operations of each device."""
    with jax.set_mesh(jax.make_mesh((8,), ("data",), axis_types=(axis_type,))):
        state, batch = jax.device_put(init_state(), P()), jax.device_put(host_batch, P("data"))
        program = jax.jit(step, out_shardings=P()).lower(state, batch).compile()
        (model, _), _ = program(state, batch)
        return jax.device_get(model), program.cost_analysis()["flops"]


auto_model, auto_work = update_once(plain_step, AxisType.Auto)
explicit_model, explicit_work = update_once(train_step.__wrapped__, AxisType.Explicit)
for a, b in zip(jax.tree.leaves(auto_model), jax.tree.leaves(explicit_model), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
assert np.isclose(auto_work, explicit_work, rtol=0.02)
assert mesh.axis_types == (AxisType.Explicit,)
assert len(refusals) == 2
assert all("float32[128,64]" in refusal for refusal in refusals)
assert {name: str(jax.typeof(result)) for name, result in results.items()} == {
    "2 * x": "float32[16@data,4]",
    "x.sum(1)": "float32[16@data]",
    "x.sum(0)": "float32[4]",
}
assert str(jax.typeof(hidden)) == "float32[128@data,32@model]"
assert str(jax.typeof(logits)) == "float32[128@data,10]"
hidden_in_numpy = np.maximum(host_batch[0] @ np.asarray(W1), 0)
np.testing.assert_allclose(logits, hidden_in_numpy @ np.asarray(W2), rtol=1e-4)
assert str(jax.typeof(arrays["gradient of hidden.kernel"])) == "float32[64,32]"
assert errors == ["ShardingTypeError"] * 2
assert str(jax.typeof(columns @ square)) == "float32[16,16]"
try:
    run_accumulate(jax.reshard(model, P(reduced={"data"})), unreduced)  # with nnx.Linear
    bias_error = ""
except Exception as error:
    bias_error = type(error).__name__
assert bias_error == "ShardingTypeError"
assert {name: str(jax.typeof(answer)) for name, answer in answers.items()} == {
    "matmul, P()": "float32[16,16]",
    'matmul, P("data")': "float32[16@data,16]",
    "rows + reshard(columns)": "float32[16@data,16]",
}
np.testing.assert_array_equal(answers["rows + reshard(columns)"], 2 * square)
embed = nnx.Embed(10, 8, rngs=nnx.Rngs(0))
tokens = jax.device_put(np.ones((16, 5), np.int32), split)
try:
    refused = embed(tokens)
except Exception:  # of another class in jax 0.12
    refused = None
assert refused is None
call_layer = auto_axes(lambda layer, x: layer(x), out_sharding=P("data"))
embedded = embed(tokens, out_sharding=P("data"))
np.testing.assert_array_equal(call_layer(embed, tokens), embedded)
assert str(jax.typeof(gradient)) == "float32[1,1]{U:data}"
assert parts == [0, 1, 2, 3, 4, 5, 6, 7]
assert reduced_gradient.item() == 28
try:
    cosine = jnp.cos(gradient)
except Exception:  # of another class in jax 0.12
    cosine = None
assert cosine is None
assert (replicated_runs, unreduced_runs) == (4, 1)
whole_gradients = jax.grad(loss)(model, batch)
for found in (replicated_gradients, unreduced_gradients):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(whole_gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Once, after the loop, with as many bytes as each of the four had: 9,640 for 2,410 gradients in float32.
#
# </details>
#
# Both runs found the gradient of the whole batch within 1e-4, which the folded cell checks. And if you forget the last
# `reshard`? JAX lets you sum unreduced arrays, because the parts of a sum can be summed in any order. But `jnp.cos` of one
# raises an error while JAX traces, because the cosine of a sum isn't the sum of the cosines. So reshard before you hand
# the gradients to Optax.
#
# ## When is it worth it?
#
# Explicit axes don't make your step faster. In the folded cell one update on an Auto axis gives the same model within
# 1e-6, and each device does the same number of operations within 2 %. What you get is a step without surprises.
#
# | you want | use |
# | --- | --- |
# | data parallelism for a model that you have | Auto axes (lesson 09): libraries work unchanged, but check the batch once |
# | to know every sharding, and an error where JAX has no rule for one | Explicit axes |
# | a model split over several axes, where a wrong guess is expensive (lesson 15) | Explicit axes |
# | to choose when gradients are summed over the devices | reduced parameters, or `shard_map` (lesson 13) |
#
# pmapdp uses Auto axes everywhere ([steps/jit.py](../pmapdp/steps/jit.py)), so that your model needs no shardings in
# it.
#
# ## Exercises
#
# Each runs under a mesh with the Explicit axis "data". Solutions, with reasons:
# [solutions/11_explicit_sharding.py](solutions/11_explicit_sharding.py).
#
# 1. `fixed_gram` (5 minutes, find the mistake): `broken_gram` works with Auto axes, but here JAX asks. `x` is `[B@data,
#    D]`. Return the `[D, D]` matrix, replicated. No device may get the other devices' rows.
#    <details><summary>Hint</summary>Which axis does the product sum over? Say how you want the result.</details>
# 2. `normalized_step` (10 minutes): one gradient step for `w` `[D]`, which is replicated. The loss is the mean of `(z @
#    w - y) ** 2`, and the learning rate is 0.1. z is `x` `[B@data, D]` with normalized columns: each column minus its
#    mean, divided by its standard deviation, both over the global batch. Raise an AssertionError for a batch that isn't
#    split. <details><summary>Hint</summary>It's the program of one device. Only the assert mentions a sharding.</details>
# 3. `sum_gradients` (8 minutes): `w` `[D, C]` is replicated, and `xs` `[K, B@data, D]` are K micro-batches. Return the
#    sum of the gradients of `loss(w, xs[k])` for `w`, replicated, with a single all-reduce of `[D, C]` numbers.
#    <details><summary>Hint</summary>Two casts before a <code>lax.scan</code>, and a <code>jax.reshard</code> after
#    it.</details>

# %%
from pmapdp.lessons.checks import check


def broken_gram(x):
    return x.T @ x


def fixed_gram(x):
    """[D, D], replicated."""
    ...  # your code: 1 line


def normalized_step(w, x, y):
    """The new w [D]."""
    ...  # your code: 4 or 5 lines


def sum_gradients(loss, w, xs):
    """The sum of the gradients [D, C], replicated."""
    ...  # your code: 4 lines


for exercise in (fixed_gram, normalized_step, sum_gradients):
    check("11_explicit_sharding", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - With Explicit axes, the sharding is part of the type. `jax.typeof` shows it, and an assert on it costs nothing.
# - Where JAX has no rule for a sharding, it raises an error. Answer with `out_sharding`, `jax.reshard`, or `auto_axes`.
# - A gradient has the type of its parameter. If the parameter is reduced, the gradient stays unreduced until you
#   reshard it. So you choose when the all-reduce runs.
#
# To read on: [Distributed arrays](https://docs.jax.dev/en/latest/201/sharding.html) and [Autodiff and
# sharding](https://docs.jax.dev/en/latest/301/sharding-ad.html) in JAX's documentation. Next, a program of 2022: [12
# Port a pmap program](12_port_a_pmap_program.ipynb).

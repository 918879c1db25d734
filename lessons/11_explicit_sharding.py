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
# In lesson 09 you forgot to place a batch. The result was correct, but all eight devices did all of the work, and
# nobody told you. Under `jit` the compiler chooses where arrays go, and you only see its choice if you go and look. In
# this lesson you'll change eleven lines, and the sharding becomes part of an array's *type*, which you can print even
# while JAX traces your function. JAX won't find the forgotten batch for you, because you might have wanted a replicated
# one. But now *you* can find it, with one assert. And at the end, types will do what XLA's compiler for CPUs doesn't:
# you'll compute a gradient in four parts, and send it once instead of four times.
#
# **You will** read shardings as types, fix what JAX refuses, run Flax layers that need one more argument, add up
# gradients with a single all-reduce, and decide when this is worth it. 33 minutes, 56 with exercises. You need [09 Let
# the compiler do it](09_let_the_compiler_do_it.ipynb).

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
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). Everything that changes:
#
# include the difference of 09_jit.py and 11_explicit.py
#
# - `jax.make_mesh` makes a mesh whose axis is *Explicit*. In versions before jax 0.9, pass
#   `axis_types=(AxisType.Explicit,)`. `Mesh(...)`, which you've used so far, makes an *Auto* axis. `jax.set_mesh`
#   makes the new mesh the current one, for everything that follows in this notebook. In a program that needs the mode
#   only for a while, write `with jax.set_mesh(mesh):`.
# - `jit` no longer needs shardings, because the arguments carry them in their types.
# - `loss_sums` asserts that the inputs are split, so `train_step` and `eval_step` both refuse a batch that isn't.
#   `place_batch` splits the labels and weights with the inputs.
# - `weights @ losses` becomes a sum, for a reason that you'll see below.
#
# It does the same work in the same places, so it prints lesson 09's losses, which ended with loss 0.2486, accuracy
# 0.9184, and 0.3540 and 0.8730 on the test set. Only the last line is new. It prints the type of the inputs.

# %% tags=["take-home"]
# include program/11_explicit.py

# %% [markdown]
# `float32[128@data,64]` says that the 128 rows are split over the mesh axis "data".
#
# ## The mistake, caught by your assert
#
# Let's forget to place the batch again. In lesson 09, without `in_shardings`, every device then computed the whole
# batch, and JAX said nothing.

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
# Look at the type in these messages, `float32[128,64]`: no axis is split. The assert runs while JAX traces the step, so
# it costs nothing once the step is compiled. But you need it: to JAX, a batch that isn't split is a replicated one, and
# that's fine. Without the assert the step would run, and every device would compute the whole batch, as in lesson 09.
#
# ## Types with a sharding
#
# `jax.typeof` shows the type of any array, also inside a function that's being traced. Here's an array of 16 rows and 4
# columns, split by rows: its type is `float32[16@data,4]`.
#
# The cell below prints while JAX traces, before anything runs.
#
# **Predict:** what are the types of `2 * x`, of `x.sum(1)` and of `x.sum(0)`?


# %% tags=["prediction"]
@jax.jit
def print_types(x):
    results = {"2 * x": 2 * x, "x.sum(1)": x.sum(1), "x.sum(0)": x.sum(0)}
    for name, result in results.items():
        print(f"{name:9s} {jax.typeof(result)}")
    return results


results = print_types(jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), split))

# %% [markdown]
# <details><summary>Answer</summary>
#
# `2 * x` is `float32[16@data,4]` and `x.sum(1)` is `float32[16@data]`: they stay split, as `x` is. `x.sum(0)` is a
# plain `float32[4]`, replicated. It adds up over the split axis, so it needs an all-reduce.
#
# </details>
#
# So each operation has a rule that derives the type of its result from the types of its arguments. Let's look at what
# these rules make of your program, for six of its arrays.
#
# In the picture a colour is a device. Stripes are rows on different devices, and a stack of eight cards is an array
# that every device holds whole.
#
# **Predict:** the last of the six arrays is the gradient of `hidden.kernel`. Is it split, or is it a stack?

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
# It's a stack, because a gradient has the type of its parameter, and the kernel is replicated. But the gradient is a
# sum over the 128 examples, and they're split. So this is where your step needs its all-reduce.
#
# </details>
#
# ## Where JAX asks
#
# Sometimes there's more than one good answer, and then JAX doesn't pick one. Take a matrix of 16 x 16, once split by
# rows and once by columns. The entries of a spec belong to the array's axes, in order, so `P(None, "data")` splits the
# columns, and axes without an entry aren't split. Because you've called `set_mesh`, a spec alone is enough now, and you
# don't need a `NamedSharding`. JAX refuses `columns @ rows`, `rows + columns` and `rows[0]`.
#
# **Predict:** name two shardings that each of the three results could have.

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
    show_error("rows[0]", lambda: rows[0]),
]

# %% [markdown]
# <details><summary>Answer</summary>
#
# - The product adds up over the split axis, so each device has a part of every sum. The result can be replicated, or
#   split by rows, or by columns. It could even stay *unreduced*: then each device keeps its part of every sum, and you
#   add the parts up later.
# - `rows` is split by rows and `columns` by columns. Their sum can't be split both ways, because a mesh axis can split
#   only one dimension of an array. So you have to change one of them.
# - Row 0 is on one device. A sharding covers all devices of the mesh, so the row has to be replicated, or split along
#   its 16 columns.
#
# </details>
#
# Each choice means different communication, so JAX leaves it to you. That's also why `weights @ losses` had to go: if
# both factors of a product are split along the axis that it adds up, JAX asks, even though this result is a single
# number. If only one factor is split, or if you call `.sum()`, there's just one possible type, so JAX adds the
# communication without asking. Nor does JAX ask in the backward pass, because a gradient has its parameter's type.
#
# You answer with `out_sharding`, which says how you want the result. And if you already have an array, `jax.reshard`
# changes its sharding.

# %%
answers = {
    "matmul, P()": jnp.matmul(columns, rows, out_sharding=P()),
    'matmul, P("data")': jnp.matmul(columns, rows, out_sharding=P("data")),
    "matmul, unreduced": jnp.matmul(columns, rows, out_sharding=P(unreduced={"data"})),
    "rows + reshard(columns)": rows + jax.reshard(columns, P("data", None)),
    "rows.at[0].get": rows.at[0].get(out_sharding=P()),
}
for name, answer in answers.items():
    print(f"{name:24s} {jax.typeof(answer)}")

# %% [markdown]
# The third type is new: `{U:data}` means *unreduced* over the axis "data". You'll need it below.
#
# ## A mesh of 4 x 2
#
# With one axis you can follow the shardings in your head. Types help most if a mesh has several. Here the eight devices
# stand in four rows of two, along the axes "data" and "model". The inputs are split over "data". The first matrix is
# split by columns over "model", and the second one by rows, so each device holds half of each matrix.
#
# **Predict:** what's the type of `hidden`, the result of the first product? And why does the second product need
# `out_sharding`?

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
# `float32[128@data,32@model]`: split both ways, so a device holds 32 rows and 16 columns of it. The second product adds
# up over those columns, which are on two devices. JAX asks, and `P("data")` answers that you want the sum, split by
# rows only. So each pair of devices all-reduces. Lesson 15 builds on this.
#
# </details>
#
# ## What works unchanged?
#
# Most Flax layers work on each example separately, or add up over all of them, so their result has just one possible
# type. These work unchanged: `Linear`, `Conv`, `BatchNorm`, `LayerNorm`, `Dropout`, `max_pool` and
# `MultiHeadAttention`.
#
# Others need your help. Let's try three calls on arrays whose 16 rows are split. `embed(tokens)` looks up rows of a
# table, `jnp.sort(matrix, axis=0)` sorts each column, and `jnp.sort(matrix, axis=1)` sorts each row.
#
# **Predict:** which one works?

# %% tags=["prediction"]
embed = nnx.Embed(10, 8, rngs=nnx.Rngs(0))
tokens = jax.device_put(np.ones((16, 5), np.int32), split)
matrix = jax.device_put(np.ones((16, 8), np.float32), split)
sort_errors = [
    show_error("embed(tokens)", lambda: embed(tokens)),
    show_error("jnp.sort(matrix, axis=0)", lambda: jnp.sort(matrix, axis=0)),
    show_error("jnp.sort(matrix, axis=1)", lambda: jnp.sort(matrix, axis=1)),
]

# %% [markdown]
# <details><summary>Answer</summary>
#
# The last one, because each row is on one device. Sorting a column would have to move numbers between devices. And
# `Embed` can't tell how you want its rows split.
#
# </details>
#
# `Embed` takes your answer as an argument: `embed(tokens, out_sharding=P("data"))`. For everything else there's
# `auto_axes`. It makes the axes Auto inside one function, as in lesson 09, and you only say how the result is sharded:
#
# ```python
# sort_columns = jax.sharding.auto_axes(lambda x: jnp.sort(x, axis=0), out_sharding=P("data"))
# call_layer = jax.sharding.auto_axes(lambda layer, x: layer(x), out_sharding=P("data"))
# ```
#
# The second line works for any library's layer that you can't change: `call_layer(embed, tokens)`. Pass everything that
# holds arrays as an argument, the layer included.
#
# ## One all-reduce for four gradients
#
# If a batch doesn't fit into memory, you cut it into *micro-batches*, compute one gradient after the other, and add
# them up (lesson 13). You need the sum over the devices only once, at the end. But as you saw, a gradient has the type
# of its parameter. The parameters are replicated, so JAX must all-reduce *every* micro-batch's gradient.
#
# The way out is a parameter of another type. Two types belong together:
#
# | a parameter that is | holds | so its gradient is | which holds |
# | --- | --- | --- | --- |
# | replicated, `float32[64,32]` | the same on all devices | replicated | the sum, on all devices |
# | *reduced*, `float32[64,32]{R:data}` | the same on all devices | *unreduced*, `float32[64,32]{U:data}` | each device's own part of the sum |
#
# So reduced and replicated arrays differ in their type, and not in their numbers. `jax.reshard` turns one into the
# other, and sends nothing. But if you reshard an *unreduced* array, that's your all-reduce. These types are young. What
# you see here we ran with jax 0.10.2 and 0.12.
#
# First a case that you can do in your head: device d holds the input d, and the weight is 1.
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
# Now your network, with four micro-batches of 32 rows. The batch is cut on the host, so each device has four rows of
# every micro-batch. `accumulate` adds up their gradients in a loop.
#
# **Predict:** at first the parameters are replicated. How often does an all-reduce run?


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
    return jax.reshard(total, P())  # if they're unreduced, this is the all-reduce


def run_accumulate(model, spec):
    """The gradients, and how often an all-reduce runs."""
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
# Four times, once in each round of the loop. Each time it sums all 2,410 gradients. XLA for CPUs doesn't move it out of
# the loop. XLA has a pass that can, and we haven't tried it on GPUs. So count on your own machine, as the cell above
# does.
#
# </details>
#
# Cast the parameters to reduced, and the sum of their gradients to unreduced. That should do it, but it doesn't.

# %%
unreduced = P(unreduced={"data"})
reduced_model = jax.reshard(model, P(reduced={"data"}))
errors.append(show_error("accumulate", lambda: run_accumulate(reduced_model, unreduced)))

# %% [markdown]
# That's the trap: `nnx.Linear` can't add a reduced bias. The layer's product is fine, because JAX has a rule for split
# rows times a reduced kernel. But JAX has no rule for split rows *plus* a reduced bias, so the message advises you to
# split the bias over "data" as well. That can't work for a bias alone: the sum has the axes [rows, features], "data"
# splits the rows already, and no mesh axis can split two axes of an array. But you can first copy the bias into a row
# for each example, and then split *those rows*. Each device keeps its own rows, so nothing is sent.
#
# **Predict:** how often does an all-reduce run now, and of how many bytes?


# %% tags=["prediction"]
def linear(layer, inputs):
    """What `nnx.Linear` computes, also with a reduced bias."""
    outputs = inputs @ layer.kernel
    bias_rows = jnp.broadcast_to(layer.bias[...], outputs.shape)
    return outputs + jax.reshard(bias_rows, P("data"))


class ReducedNetwork(Network):
    def __call__(self, inputs):
        return linear(self.output, nnx.relu(linear(self.hidden, inputs)))


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
assert errors == ["ShardingTypeError"] * 4
assert {name: str(jax.typeof(answer)) for name, answer in answers.items()} == {
    "matmul, P()": "float32[16,16]",
    'matmul, P("data")': "float32[16@data,16]",
    "matmul, unreduced": "float32[16,16]{U:data}",
    "rows + reshard(columns)": "float32[16@data,16]",
    "rows.at[0].get": "float32[16]",
}
np.testing.assert_array_equal(answers["rows + reshard(columns)"], 2 * square)
assert [error is None for error in sort_errors] == [False, False, True]
sort_columns = auto_axes(lambda x: jnp.sort(x, axis=0), out_sharding=P("data"))
assert str(jax.typeof(sort_columns(matrix))) == "float32[16@data,8]"
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
# Both runs found the gradient of the whole batch within 1e-4, which the folded cell checks. And JAX checks your types
# while it traces. You may add up unreduced arrays, because the parts of a sum can be added in any order. But `jnp.cos`
# of an unreduced gradient raises an error, because the cosine of a sum isn't the sum of the cosines. So reshard first,
# and then hand the gradients to Optax.
#
# ## When is it worth it?
#
# The folded cell also makes one update with lesson 09's step on an Auto axis. The models agree within 1e-6, and each
# device does the same number of operations within 2 %. So Explicit axes don't make this step faster, but they make it
# predictable. They pay off where the compiler doesn't find the better plan, as it didn't in the loop above.
#
# | you want | use |
# | --- | --- |
# | data parallelism for a model that you have | Auto axes (lesson 09): libraries work unchanged, but check the batch once |
# | to know every sharding, and an error if JAX's rules don't settle it | Explicit axes |
# | a model split over several axes, where a wrong guess is expensive (lesson 15) | Explicit axes |
# | Explicit axes everywhere except in one function | `auto_axes` around it |
# | to choose when gradients are added up over the devices | reduced parameters, or `shard_map` (lesson 13) |
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
#    <details><summary>Hint</summary>Which axis does the product add up over? Say how you want the result.</details>
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
# - If JAX's rules don't settle a sharding, JAX raises an error. Answer with `out_sharding`, `jax.reshard`, or
#   `auto_axes`.
# - A gradient has the type of its parameter. If the parameter is reduced, the gradient stays unreduced until you
#   reshard it. So you choose when the all-reduce runs.
#
# To read on: [Distributed arrays](https://docs.jax.dev/en/latest/201/sharding.html) and [Autodiff and
# sharding](https://docs.jax.dev/en/latest/301/sharding-ad.html) in JAX's documentation. Next, a program from 2022: [12
# Port a pmap program](12_port_a_pmap_program.ipynb).

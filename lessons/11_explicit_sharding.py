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
# Twice in this course a step was wrong, and nothing told you. In lesson 05 you left out `pmean`, and eight devices trained
# eight different networks. In lesson 09 nobody had placed the batch, so every device did the work of all eight. Both times
# you were wrong about where your numbers were: on which device, and summed over the devices or not. Your program had no
# way to say what you believed, so JAX couldn't contradict you. Change ten lines, and it can. The sharding becomes part of
# an array's **type**, which you can print and assert at any line of your step. And if you decide yourself when your
# gradients are summed, JAX refuses a step that forgets to sum them.
#
# **You will** read shardings as types, answer when JAX asks for one, recognize a sum that isn't finished, and get the
# gradients of four micro-batches with a single all-reduce. 29 minutes, 55 with exercises. You need
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
# Most operations have a rule like these, which takes the types of the arguments and gives the type of the result.
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
# ## Lesson 09's mistake, and your assert
#
# Your `jit` has lost its `in_shardings`, so the quiet mistake of lesson 09 is possible again. Make it: pass a batch that
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
# step is compiled. Your steps were compiled epochs ago. The assert fired nevertheless, because a batch of another type
# makes JAX trace again. So it also finds a single replicated batch in the middle of a run.
#
# ## Where your step communicates
#
# The types also show you the all-reduce. In the next picture each colour is a device. Stripes are rows on different
# devices, and a stack of eight cards is an array that every device holds whole.
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
# For the gradient JAX knew what you'd want. Where it can't know, it raises an error instead of guessing. Take a matrix of
# 16 x 16, once split by columns and once by rows. Each device holds two columns of the first and two rows of the second,
# and their product is a whole 16 x 16 matrix. The result of `columns @ rows` is the sum of these eight matrices.
#
# **Predict:** where could this sum be afterwards? Name two shardings.

# %% tags=["prediction"]
import textwrap

square = np.arange(256, dtype=np.float32).reshape(16, 16)
columns = jax.device_put(square, P(None, "data"))
rows = jax.device_put(square, P("data", None))
try:
    columns @ rows
except Exception as error:
    question = f"{type(error).__name__}: {error}"
    print(textwrap.fill(question, 100))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Replicated, or split by rows, or split by columns. Each needs different communication, so JAX leaves the choice to you.
#
# </details>
#
# Now you also see why `weights @ losses` had to go: both factors of this product are split along the summed axis, so JAX
# asks, even though the result is one number. For `.sum()` there is a rule, as you saw with `x.sum(0)`.
#
# You answer with `out_sharding`. Besides the three answers above there's a fourth one, *not yet*:

# %%
specs = {"P()": P(), 'P("data")': P("data"), 'P(unreduced={"data"})': P(unreduced={"data"})}
answers = {name: jnp.matmul(columns, rows, out_sharding=spec) for name, spec in specs.items()}
for name, answer in answers.items():
    print(f"{name:22s} {jax.typeof(answer)}")

unfinished = answers['P(unreduced={"data"})']
print("the sum of two:", jax.typeof(unfinished + unfinished))
try:
    jnp.cos(unfinished)
except Exception as error:
    print(f"{type(error).__name__}: {error}")

# %% [markdown]
# Read `{U:data}` as *unreduced over "data"*: each device keeps its own matrix, and the all-reduce is still to come. It
# comes when you call `jax.reshard(answer, P())`: a reshard from unreduced to `P()` is the `psum` that you know from
# lesson 05.
#
# Until then you can do little with such an array. JAX has a rule for the sum of two, because the parts of a sum can be
# added in any order. For most other operations there's none, and for some there can't be: the cosine of a sum isn't the
# sum of the cosines. Newer versions tell these cases apart. In jax 0.10.2 even `-unfinished` raises the error that
# `jnp.cos` raised, while 0.12 computes `-unfinished`, and calls `cos` a non-linear operation. We tested this lesson with
# both versions, and the types may go on changing.
#
# ## A gradient that isn't summed yet
#
# Can a gradient have this type? Yes, if you mark its parameter as *reduced*. A reduced array holds the same numbers as a
# replicated one. Only its gradient is different, because the two types belong together:
#
# | a parameter that is | holds | so its gradient is | which holds |
# | --- | --- | --- | --- |
# | replicated, `float32[64,32]` | the same on all devices | replicated | the sum, on all devices |
# | *reduced*, `float32[64,32]{R:data}` | the same on all devices | *unreduced*, `float32[64,32]{U:data}` | each device's own part of the sum |
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
# ## Lesson 05's mistake, refused
#
# The eight parts are what lesson 05's devices had before `pmean`. There you forgot the all-reduce, and each device took a
# step of its own. Forget it again: with a learning rate of 1, subtract the gradient as it is.
#
# **Predict:** if JAX let you, what would the weight be on device 3?

# %% tags=["prediction"]
try:
    print(w - gradient)
except Exception as error:
    objection = f"{type(error).__name__}: {error}"
    print(textwrap.fill(objection, 100))

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1 - 3 = -2, and another number on each of the others. JAX doesn't let it come to that. In jax 0.10.2 there's no rule for
# subtracting an unreduced array. Since 0.12 there is one, and the error says what's wrong: `gradient` is unreduced while
# `w` is not, so reshard it first.
#
# </details>
#
# Your program's training step stops, too, if you pass it a model with reduced parameters. It doesn't get as far as the
# subtraction, because the line that divides the gradients by `count` already raises an error: a `NotImplementedError` in
# jax 0.10.2, and a `ValueError` in 0.12.
#
# With replicated parameters you can't make this mistake, because JAX inserts the all-reduce: it sums each gradient over
# the devices as soon as it's computed. Why would you ever want to do that yourself? Because as soon as possible can be more often than necessary.
#
# ## Four micro-batches, one all-reduce
#
# If a batch doesn't fit into memory, you can cut it into *micro-batches*. You compute the gradient of each, one after the
# other, and their sum is the gradient of the batch. Lesson 13 is about that, and here you need only this much. The devices
# would have to communicate just once, at the end.
#
# Take your network and four micro-batches of 32 rows, so that each device has four rows of every micro-batch.
# `accumulate` sums their gradients in a loop, in which the sum has the sharding `spec`. `run_accumulate` compiles it, and
# counts how often a collective runs.
#
# A reduced model has one obstacle, the bias of `nnx.Linear`. JAX has a rule for split rows *times* a reduced kernel, but
# none for split rows *plus* a reduced bias. `linear` makes one row of biases for each example, and splits those rows. Each
# device keeps its own, so nothing is sent.

# %%
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


def linear(layer, inputs):
    """Compute what `nnx.Linear` does, also with a reduced bias."""
    outputs = inputs @ layer.kernel
    bias_rows = jnp.broadcast_to(layer.bias[...], outputs.shape)
    return outputs + jax.reshard(bias_rows, P("data"))


class ReducedNetwork(Network):
    def __call__(self, inputs):
        return linear(self.output, nnx.relu(linear(self.hidden, inputs)))


# %% [markdown]
# **Predict:** how often does an all-reduce run if the parameters are replicated, and how often if they're reduced?

# %% tags=["prediction"]
model = jax.device_put(Network(nnx.Rngs(0)), P())
replicated_gradients, replicated_runs = run_accumulate(model, P())

unreduced = P(unreduced={"data"})
reduced_model = jax.reshard(ReducedNetwork(nnx.Rngs(0)), P(reduced={"data"}))
unreduced_gradients, unreduced_runs = run_accumulate(reduced_model, unreduced)
lesson_11.all_reduces_over_time()

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four times, and once. A replicated parameter has a replicated gradient, so JAX sums it over the devices in each round of
# the loop. With reduced parameters the devices add up their own parts, and the last `reshard` is the only all-reduce. Each
# all-reduce has 9,640 bytes, for 2,410 gradients in float32.
#
# </details>
#
# Both runs found the gradient of the whole batch within 1e-4, which the folded cell below checks. XLA has a pass that can
# move an all-reduce out of a loop. On CPUs it doesn't, and we haven't tried it on GPUs, so count on your own machine.

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


def error_name(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:  # the asserts name the class
        return type(error).__name__


assert error_name(train_step, state, jax.device_put(host_batch, P())) == "AssertionError"
assert len(refusals) == 2
assert all("float32[128,64]" in refusal for refusal in refusals)
assert {name: str(jax.typeof(result)) for name, result in results.items()} == {
    "2 * x": "float32[16@data,4]",
    "x.sum(1)": "float32[16@data]",
    "x.sum(0)": "float32[4]",
}
assert str(jax.typeof(arrays["gradient of hidden.kernel"])) == "float32[64,32]"
assert question.startswith("ShardingTypeError")
linear_model = jax.reshard(model, P(reduced={"data"}))  # with nnx.Linear
assert error_name(run_accumulate, linear_model, unreduced) == "ShardingTypeError"
assert {name: str(jax.typeof(answer)) for name, answer in answers.items()} == {
    "P()": "float32[16,16]",
    'P("data")': "float32[16@data,16]",
    'P(unreduced={"data"})': "float32[16,16]{U:data}",
}
twice = jax.reshard(unfinished + unfinished, P())
np.testing.assert_allclose(twice, 2 * square @ square, rtol=1e-5)
embed = nnx.Embed(10, 8, rngs=nnx.Rngs(0))
tokens = jax.device_put(np.ones((16, 5), np.int32), split)
assert error_name(embed, tokens) == "ShardingTypeError"
call_layer = auto_axes(lambda layer, x: layer(x), out_sharding=P("data"))
embedded = embed(tokens, out_sharding=P("data"))
np.testing.assert_array_equal(call_layer(embed, tokens), embedded)
assert str(jax.typeof(gradient)) == "float32[1,1]{U:data}"
assert parts == [0, 1, 2, 3, 4, 5, 6, 7]
assert reduced_gradient.item() == 28
no_rule = "NotImplementedError"  # jax 0.10.2, and after it what 0.12 raises
assert error_name(jnp.cos, unfinished) in (no_rule, "ShardingTypeError")
assert error_name(jnp.negative, unfinished) in (no_rule, None)
assert objection.startswith((no_rule, "ShardingTypeError: rhs is unreduced while lhs is not"))
reduced_state = reduced_model, optimizer.init(model)
assert error_name(train_step, reduced_state, batch) in (no_rule, "ValueError")
assert (replicated_runs, unreduced_runs) == (4, 1)
whole_gradients = jax.grad(loss)(model, batch)
for found in (replicated_gradients, unreduced_gradients):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(whole_gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)

# %% [markdown]
# ## When is it worth it?
#
# Explicit axes don't make your step faster. In the folded cell one update on an Auto axis gives the same model within
# 1e-6, and each device does the same number of operations within 2 %. What you get is a step without surprises.
#
# What does it cost? You have to help the layers in which JAX asks. Most of Flax's need no help: `Linear`, `Conv`,
# `BatchNorm`, `LayerNorm`, `Dropout`, `max_pool` and `MultiHeadAttention` work unchanged with a split batch. But
# `embed(tokens)`, which looks up rows of a table, wants to know how to split them: `embed(tokens, out_sharding=P("data"))`.
# For a layer without such an argument, `auto_axes` hands the decision back to the compiler:
#
# ```python
# call_layer = jax.sharding.auto_axes(lambda layer, x: layer(x), out_sharding=P("data"))
# embedded = call_layer(embed, tokens)
# ```
#
# | you want | use |
# | --- | --- |
# | data parallelism for a model that you have | Auto axes (lesson 09): libraries work unchanged, but check the batch once |
# | to know every sharding, and an error where JAX has no rule for one | Explicit axes |
# | a model split over several axes, where a wrong guess is expensive (exercise 1, lesson 15) | Explicit axes |
# | to choose when gradients are summed over the devices | reduced parameters, or `shard_map` (lesson 13) |
#
# pmapdp uses Auto axes everywhere ([steps/jit.py](../pmapdp/steps/jit.py)), so that your model needs no shardings in
# it.
#
# ## Exercises
#
# Each runs under a mesh with Explicit axes. Solutions, with reasons:
# [solutions/11_explicit_sharding.py](solutions/11_explicit_sharding.py).
#
# 1. `fixed_logits` (8 minutes, find the mistake): here the mesh has two axes, "data" and "model", of two devices each. `x`
#    is `[B@data, D]`, and both matrices are split over "model": `W1` is `[D, H@model]`, and `W2` is `[H@model, C]`. Write
#    down the type of each intermediate result, and you'll see where JAX has to ask. Return the logits, `[B@data, C]`. Each
#    device keeps its rows of the batch and its part of the matrices.
#    <details><summary>Hint</summary>The second product sums over the columns of the first one's result. Which axis are
#    they split over?</details>
# 2. `normalized_step` (10 minutes): one gradient step for `w` `[D]`, which is replicated. The loss is the mean of `(z @
#    w - y) ** 2`, and the learning rate is 0.1. z is `x` `[B@data, D]` with normalized columns: each column minus its
#    mean, divided by its standard deviation, both over the global batch. Raise an AssertionError for a batch that isn't
#    split, and let each device keep its rows. <details><summary>Hint</summary>It's the program of one device. Only the assert mentions a sharding.</details>
# 3. `sum_gradients` (8 minutes): `w` `[D, C]` is replicated, and `xs` `[K, B@data, D]` are K micro-batches. Return the
#    sum of the gradients of `loss(w, xs[k])` for `w`, replicated, with a single all-reduce of `[D, C]` numbers.
#    <details><summary>Hint</summary>Two casts before a <code>lax.scan</code>, and a <code>jax.reshard</code> after
#    it.</details>

# %%
from pmapdp.lessons.checks import check


def broken_logits(x, W1, W2):
    return nnx.relu(x @ W1) @ W2


def fixed_logits(x, W1, W2):
    """The logits [B, C], split over "data" alone."""
    ...  # your code: 1 or 2 lines


def normalized_step(w, x, y):
    """The new w [D]."""
    ...  # your code: 4 or 5 lines


def sum_gradients(loss, w, xs):
    """The sum of the gradients [D, C], replicated."""
    ...  # your code: 4 lines


for exercise in (fixed_logits, normalized_step, sum_gradients):
    check("11_explicit_sharding", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - With Explicit axes, the sharding is part of the type. `jax.typeof` shows it, and an assert on it costs nothing.
# - Where JAX has no rule for a sharding, it raises an error. Answer with `out_sharding`, `jax.reshard`, or `auto_axes`.
# - `{U:data}` is a sum that isn't finished, and JAX refuses to treat it as a finished one. A reshard to `P()` finishes
#   it, as `psum` does. A reduced parameter has such a
#   gradient, so you choose when its all-reduce runs.
#
# To read on: [Distributed arrays](https://docs.jax.dev/en/latest/201/sharding.html) and [Autodiff and
# sharding](https://docs.jax.dev/en/latest/301/sharding-ad.html) in JAX's documentation. Next, a program of 2022: [12
# Port a pmap program](12_port_a_pmap_program.ipynb).

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
# A network with one output predicts numbers of shape `[128, 1]`, and your targets have the shape `[128]`. Subtract one
# from the other, and JAX makes it `[128, 128]`: it compares every prediction with every target, and tells you nothing.
# With explicit sharding that's an error if both are split over the devices. Change eleven lines of your program, and the
# sharding becomes part of an array's **type**, which you can print and check on any line of your step.
#
# For data parallelism alone lesson 09's `jit` is enough, and [pmapdp](../pmapdp/steps/jit.py) uses it, too. Take explicit
# sharding if you'd rather have an error than a guess of the compiler, or if you want to decide yourself when gradients
# are summed.
#
# **You will** read shardings as types, answer when JAX asks you for one, and recognize a sum that isn't finished.
# 24 minutes, 50 with exercises. The last part is optional, and without it you need 18 or 36. Read [09 Let the compiler do
# it](09_let_the_compiler_do_it.ipynb) first.

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
# The `Mesh(...)` you've used so far makes *Auto* axes: the compiler decides how arrays are split over them.
# `jax.make_mesh` makes *Explicit* axes, by default since jax 0.9, and there you decide. `jax.set_mesh` makes the mesh
# the current one for all cells that follow, so a spec is enough to place an array, and the spec becomes part of the
# array's type. Let's begin with a mesh of 4 x 2, so that you can split rows and columns:

# %%
jax.set_mesh(jax.make_mesh((4, 2), ("data", "model")))
x = jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), P("data", "model"))
print(jax.typeof(x))

# %% [markdown]
# That's 16 rows, split in four over "data", and 4 columns, split in two over "model". Results have such types, too, and
# JAX knows them while it traces, before there are any numbers.
#
# **Predict:** what's the type of `x.sum(1)`, the sum of each row?


# %% tags=["prediction"]
@jax.jit
def print_types(x):
    results = {"2 * x": 2 * x, "x.sum(1)": x.sum(1), "x.sum()": x.sum()}
    for name, result in results.items():
        print(f"{name:9s} {jax.typeof(result)}")
    return results


results = print_types(x)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `float32[16@data]`. The rows stay split over "data". Two devices share each row, and they add up their halves of its
# sum, so nothing is split over "model" any more. `x.sum()` is a plain `float32[]`: all eight devices get the sum.
#
# </details>
#
# ## A mistake that JAX refuses
#
# Here's the subtraction from above, with 16 predictions that are all correct, so the mean squared error should be 0.
# First we pass NumPy arrays, and then we split both over "data":


# %%
import textwrap


def mean_squared_error(predictions, targets):
    return jnp.square(predictions - targets).mean()


targets = np.arange(16, dtype=np.float32)  # [B]
predictions = targets[:, None]  # [B, 1]
print("not split:", mean_squared_error(predictions, targets))
try:
    mean_squared_error(*jax.device_put((predictions, targets), P("data")))
except Exception as error:
    refusal = f"{type(error).__name__}: {error}"
    print(textwrap.fill(refusal, 100))

# %% [markdown]
# Without a sharding you get 42.5, the mean of 16 x 16 squares, and with lesson 09's Auto axes, too. On an Explicit axis JAX
# works out the type of the difference first. Both its rows and its columns would be split over "data", and no array can
# be split over the same devices twice. So you notice that you meant `predictions[:, 0] - targets`. If only the predictions
# are split, there's no error, and you get 42.5 again. So check that *every* array of a batch is split.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py), and these lines change:
#
# include the difference of 09_jit.py and 11_explicit.py
#
# - The mesh is back to one axis. To run the cells above again, begin with the one that makes the 4 x 2 mesh.
# - `jit` needs no shardings now, because the type of each placed array already has one.
# - `loss_sums` raises an error if an array of the batch isn't split. Both steps call it, so both are guarded.
# - `weights @ losses` becomes a sum. You'll see why when JAX asks its first question.
#
# The losses are lesson 09's.

# %% tags=["take-home"]
# include program/11_explicit.py

# %% [markdown]
# ## Lesson 09's mistake, and your check
#
# In lesson 09, `in_shardings` was your guard. When we left it out, the whole batch went to every device, and all eight
# did the same work. Now you've deleted it yourself. So pass a batch of NumPy arrays, without `place_batch`:

# %%
host_batch = next(batches(*train_data, seed=0))  # NumPy arrays, on no device yet
refusals = []
for step in (train_step, eval_step):
    try:
        step(state, host_batch)
    except TypeError as error:
        refusals.append(str(error))
        print("TypeError:", error)

# %% [markdown]
# Only your own check complains. To JAX this is a replicated batch, which is allowed. So if the batch is all you worry
# about, lesson 09's guard is as good:
#
# | what you pass or write | 09: `in_shardings`, Auto axis | this program |
# | --- | --- | --- |
# | a batch of NumPy arrays | is split on its way in | error from your check |
# | a batch that's placed, but not split | error from `jit` | error from your check |
# | `[128, 1]` minus `[128]`, both split | 128 x 128 differences | error from JAX |
#
# Adding `in_shardings` to this program doesn't help: it splits a host batch, but inside the step the type is still
# `float32[128,64]`. Your check runs while JAX traces, and costs nothing once the step is compiled. A batch of another type
# makes JAX trace again, so a single wrong batch is caught even in the middle of a run.
#
# ## Where your step communicates
#
# The types also show you the all-reduce. In the next picture each colour is a device. Stripes are rows on different
# devices, and a stack of cards is an array that every device holds whole.
#
# **Predict:** the last of the six arrays is the gradient of `hidden.kernel`. Stripes, or a stack?

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
# A stack, because the gradient of a replicated parameter is replicated, too. But it's a sum over 128 examples, and these
# are on different devices, so this is where the all-reduce has to be.
#
# </details>
#
# ## Should JAX add now, or later?
#
# For the gradient JAX knew what you'd want. Sometimes it can't know. Take two vectors that are split over the devices:
# `a` is 0, 1, ..., 7, and `b` is all ones. Each device multiplies its own pair of numbers, and `a @ b` is the sum of
# the eight products, 28.

# %%
a = jax.device_put(np.arange(8, dtype=np.float32), P("data"))
b = jax.device_put(np.ones(8, np.float32), P("data"))
try:
    a @ b
except Exception as error:
    question = f"{type(error).__name__}: {error}"
    print(textwrap.fill(question, 100))

# %% [markdown]
# An all-reduce could give every device the sum. Or the sum could wait, and each device keeps its own part until you need
# it. JAX won't choose for you, so it raises an error. That's why `weights @ losses` became a sum: it's a product of two
# split vectors, too, and `.sum()` always all-reduces. You answer with `out_sharding`. Below, every device gets the sum in
# `total`, and in `parts` the sum waits.
#
# **Predict:** which number does device 3 hold in `parts`?

# %% tags=["prediction"]
total = jnp.matmul(a, b, out_sharding=P())
parts = jnp.matmul(a, b, out_sharding=P(unreduced={"data"}))
lesson_11.values_by_device(("total", total), ("parts", parts))
print("parts + parts is", jax.typeof(parts + parts))

# %% [markdown]
# <details><summary>Answer</summary>
#
# 3, its own product, 3 x 1. In `total` it holds 28, like all the others.
#
# </details>
#
# `{U:data}` means *unreduced over "data"*: each device has its own number, and the all-reduce is still to come. It
# comes when you call `jax.reshard(parts, P())`, which does what `psum` did in lesson 05. Until then JAX refuses what would
# be wrong when the parts are added later. `parts + parts` is allowed, but `jnp.cos(parts)` isn't, because the cosine of a
# sum isn't the sum of the cosines. JAX refuses some correct things, too, such as `parts / 8` and `parts * 0.5`, so
# reshard a sum before you divide it by the count.
#
# ## What it costs
#
# Your step doesn't get faster, because each device computes what it computed before. The price is that you sometimes have
# to name the sharding of a result. Everyday lines raise an error if they work along a split axis: `x[0]`, `x[:8]`,
# `x.cumsum(0)`, `jnp.sort(x, 0)`, and `logp[jnp.arange(B), labels]`. In place of the last one, write
# `jnp.take_along_axis(logp, labels[:, None], 1)`, which works. Most Flax layers need no help with a split batch: `Linear`,
# `Conv`, `BatchNorm`, `LayerNorm`, `Dropout`, `max_pool` and `MultiHeadAttention` work unchanged. But `embed(tokens)`
# raises an error until you write `embed(tokens, out_sharding=P("data"))`. If a layer has no such argument, let the compiler
# decide inside it. Pass the layer as an argument, because closing over the layer raises an error:
#
# ```python
# call = jax.sharding.auto_axes(lambda layer, x: layer(x), out_sharding=P("data"))
# result = call(embed, tokens)
# ```
#
# ## Exercises
#
# Both run under a mesh with Explicit axes. Solutions, with reasons:
# [solutions/11_explicit_sharding.py](solutions/11_explicit_sharding.py).
#
# 1. `fixed_logits` (8 minutes, find the mistake): the mesh has two axes, "data" and "model", of two devices each. `x` is
#    `[B@data, D]`, `W1` is `[D, H@model]`, and `W2` is `[H@model, C]`. Write down the type of each intermediate result,
#    and you'll see where JAX has to ask. Return the logits, `[B@data, C]`. Each device keeps its rows of the batch and
#    its part of the matrices. <details><summary>Hint</summary>The second product sums over the columns of the first
#    one's result. Which axis are they split over?</details>
# 2. `normalized_step` (10 minutes): one gradient step for `w` `[D]`, which is replicated. The loss is the mean of
#    `(z @ w - y) ** 2`, and the learning rate is 0.1. z is `x` `[B@data, D]`, each column minus its mean and divided by
#    its standard deviation, both over the global batch. Assert that the rows of x are split, and let each device
#    keep its rows. <details><summary>Hint</summary>It's the program of one device. Only the assert mentions a
#    sharding.</details>

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


for exercise in (fixed_logits, normalized_step):
    check("11_explicit_sharding", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - With Explicit axes, the sharding is part of the type. Check it yourself, because JAX allows a batch that isn't split.
# - If JAX has no rule for a sharding, it raises an error. Answer with `out_sharding`, `jax.reshard`, or `auto_axes`.
# - `{U:data}` is a sum that isn't finished, and a reshard to `P()` finishes it.
#
# To read on: [Distributed arrays](https://docs.jax.dev/en/latest/201/sharding.html) and [Autodiff and
# sharding](https://docs.jax.dev/en/latest/301/sharding-ad.html) in JAX's documentation. Next, a program from 2022: [12
# Port a pmap program](12_port_a_pmap_program.ipynb).
#
# **The lesson ends here.** The rest is optional, and easier after lesson 13. You'll decide when gradients are summed.
#
# ## Optional: sum the gradients once
#
# Can a gradient be unreduced, like `parts`? Yes, if you mark its parameter as *reduced*, `{R:data}`. A reduced array has
# the same values as a replicated one. Only `jax.grad` treats it differently, and leaves its gradient unsummed. Take a weight
# that's 1 on every device, and the input d on device d. If the weight is replicated, its gradient
# is 28 on every device. If it's reduced, its gradient is d on device d, as in lesson 05 before `pmean`.
#
# If you then forget the all-reduce, JAX refuses `w + gradient`, and the updates of Optax, too. With a replicated weight
# you can't forget it, because JAX sums each gradient as soon as it's computed. But for the micro-batches of lesson 13,
# once at the end is enough. Here are four micro-batches of 32 rows, and your network's two kernels without the biases.
# `accumulate` adds up the gradients in a loop, and `spec` is the sharding of the running total.

# %%
from functools import partial

from jax import lax

from pmapdp.collectives import collectives

micro_batches = [x.reshape(4, 32, *x.shape[1:]) for x in host_batch]
micro_batches = jax.device_put(micro_batches, P(None, "data"))


def loss(kernels, batch):
    inputs, labels, _ = batch  # the first batch is full, so all weights are 1
    hidden_kernel, output_kernel = kernels
    logits = nnx.relu(inputs @ hidden_kernel) @ output_kernel
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).sum()


@partial(jax.jit, static_argnums=2)
def accumulate(kernels, micro_batches, spec):
    """The sum of the gradients of all micro-batches."""

    def add(total, batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(kernels, batch)), None

    zeros = jax.reshard(jax.tree.map(jnp.zeros_like, kernels), spec)
    total, _ = lax.scan(add, zeros, micro_batches)
    return jax.reshard(total, P())


def count_all_reduces(kernels, spec):
    """Count how often the compiled `accumulate` runs its all-reduce."""
    program = accumulate.lower(kernels, micro_batches, spec).compile()
    (found,) = collectives(program.as_text())
    return found.runs


# %% [markdown]
# **Predict:** how often does an all-reduce run if the kernels are replicated?

# %% tags=["prediction"]
kernels = arrays["hidden.kernel"], arrays["output.kernel"]
replicated_runs = count_all_reduces(kernels, P())

reduced_kernels = jax.reshard(kernels, P(reduced={"data"}))
reduced_runs = count_all_reduces(reduced_kernels, P(unreduced={"data"}))

print("with replicated kernels:", replicated_runs, "| with reduced kernels:", reduced_runs)
lesson_11.all_reduces_over_time()

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four times, once in each round of the loop. With reduced kernels each device adds up its own parts, and the last
# `reshard` is the only all-reduce.
#
# </details>
#
# Both find the gradient of the whole batch within 1e-4. We counted on CPUs. XLA has a pass that can move an all-reduce
# out of a loop, so count on your own machine. And we left out the biases for a reason: JAX can't add a reduced bias to
# split rows, so `Linear` refuses one. This part of JAX is young, and version 0.10 has no rule even for `-parts`.
#
# 3. `sum_gradients` (8 minutes): `w` `[D, C]` is replicated, and `xs` `[K, B@data, D]` are K micro-batches. Return the
#    sum of the gradients of `loss(w, xs[k])` for `w`, replicated, with a single all-reduce of `[D, C]` numbers. Take one
#    micro-batch after the other, so that the activations of only one are in memory.
#    <details><summary>Hint</summary>Two casts before a <code>lax.scan</code>, and a <code>jax.reshard</code> after
#    it.</details>

# %%
def sum_gradients(loss, w, xs):
    """The sum of the gradients [D, C], replicated."""
    ...  # your code: 4 lines


verdict = check("11_explicit_sharding", "sum_gradients", sum_gradients)

# %% tags=["proof"]
# The asserts behind the answers.
def sum_of_products(w):
    return (rows @ w).sum()


rows = a.reshape(8, 1)  # row d is on device d
replicated_gradient = jax.grad(sum_of_products)(jax.reshard(jnp.ones(1), P()))
w = jax.reshard(jnp.ones(1), P(reduced={"data"}))
gradient = jax.grad(sum_of_products)(w)


def error_name(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:  # the asserts name the class
        return type(error).__name__


def device_values(array):
    return [shard.data.item() for shard in array.addressable_shards]


no_rule = "NotImplementedError"
types = [str(jax.typeof(result)) for result in results.values()]
assert types == ["float32[16@data,4@model]", "float32[]", "float32[16@data]"]  # jit sorts the names
for place in (P(), P(None, "data"), jax.devices()[0]):
    inputs, *others = host_batch
    wrong_batch = (jax.device_put(inputs, place), *others)
    assert error_name(train_step, state, wrong_batch) == "TypeError"
for position in range(3):  # one array of the batch isn't split
    wrong_batch = list(batch)
    wrong_batch[position] = host_batch[position]
    assert error_name(train_step, state, wrong_batch) == "TypeError"
assert refusals == 2 * ["the batch is not split: float32[128,64]"]
split_on_entry = jax.jit(lambda x: jax.typeof(x).sharding.spec[0] == "data", in_shardings=P("data"))
assert not split_on_entry(host_batch[0])
assert refusal.startswith("ShardingTypeError: sub operation")
split_predictions = jax.device_put(predictions, P("data"))
assert mean_squared_error(split_predictions, targets) == 42.5
logp, labels = arrays["logits"], batch[1]
for refused in (
    lambda: logp[0],
    lambda: logp[:8],
    lambda: logp.cumsum(0),
    lambda: jnp.sort(logp, 0),
    lambda: logp[jnp.arange(B), labels],
):
    assert error_name(refused) == "ShardingTypeError"
picked = jnp.take_along_axis(logp, labels[:, None], 1)[:, 0]
np.testing.assert_array_equal(picked, np.asarray(logp)[np.arange(B), np.asarray(labels)])
with jax.set_mesh(jax.sharding.Mesh(jax.devices(), ("data",))):  # its axis is Auto
    auto_error = jax.jit(mean_squared_error, in_shardings=P("data"))(predictions, targets)
    assert auto_error == 42.5
assert str(jax.typeof(arrays["gradient of hidden.kernel"])) == "float32[64,32]"
assert question.startswith("ShardingTypeError")
assert [str(jax.typeof(answer)) for answer in (total, parts)] == ["float32[]", "float32[]{U:data}"]
assert device_values(total) == [28] * 8
assert device_values(parts) == [0, 1, 2, 3, 4, 5, 6, 7]
assert device_values(jax.reshard(parts + parts, P())) == [56] * 8
assert error_name(jnp.cos, parts) in (no_rule, "ShardingTypeError")  # jax 0.10.2, 0.12
eighth = jax.reshard(jnp.float32(1 / 8), P(reduced={"data"}))
assert device_values(jax.reshard(parts * eighth, P())) == [3.5] * 8
for refused in (lambda: parts / 8, lambda: parts * 0.5):
    assert error_name(refused) is not None
assert str(jax.typeof(w)) == "float32[1]{R:data}"
assert str(jax.typeof(gradient)) == "float32[1]{U:data}"
assert device_values(gradient) == [0, 1, 2, 3, 4, 5, 6, 7]
assert device_values(replicated_gradient) == device_values(jax.reshard(gradient, P())) == [28] * 8
assert error_name(jnp.add, w, gradient) == "ShardingTypeError"


def update(optimizer):
    updates, _ = optimizer.update(gradient, optimizer.init(w), w)
    return optax.apply_updates(w, updates)


assert error_name(update, optax.sgd(1.0)) == "ShardingTypeError"
assert error_name(update, optax.adam(1.0)) == no_rule
assert (host_batch[2] == 1).all()
assert (replicated_runs, reduced_runs) == (4, 1)
whole_gradients = jax.grad(loss)(kernels, batch)
for some_kernels, spec in ((kernels, P()), (reduced_kernels, P(unreduced={"data"}))):
    found = accumulate(some_kernels, micro_batches, spec)
    for actual, expected in zip(found, whole_gradients, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)
reduced_model = jax.reshard(model, P(reduced={"data"}))
assert error_name(reduced_model, batch[0]) == "ShardingTypeError"
assert error_name(jnp.negative, parts) in (no_rule, None)  # jax 0.10.2, 0.12

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
# In this lesson you'll get an error. Change eleven lines of your program, and the sharding becomes part of an array's
# **type**, which you can print and check on any line of your step.
#
# For data parallelism alone lesson 09's `jit` is enough, and [pmapdp](../pmapdp/steps/jit.py) uses it, too. Use explicit
# sharding when you'd rather get an error than let the compiler guess. In lesson 13 a wrong `reshape` will silently give each
# device four times the work, and with explicit sharding it's an error.
#
# **You will** read shardings as types, see which mistakes JAX now refuses and which it doesn't, and tell JAX the output
# sharding when it can't work it out. 24 minutes, 50 with exercises. The last part is optional, and without it you need 17
# or 35. Read [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb) first.

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
# ## A mistake that nobody reports
#
# Here's that subtraction, with 16 predictions that are all correct. So the mean squared error should be 0. First we
# compute it on one device, and then on eight, the way lesson 09 does:

# %%
from jax.sharding import Mesh, NamedSharding


def mean_squared_error(predictions, targets):
    return jnp.square(predictions - targets).mean()


targets = np.arange(16, dtype=np.float32)  # [B]
predictions = targets[:, None]  # [B, 1]
split = NamedSharding(Mesh(jax.devices(), ("data",)), P("data"))
split_error = jax.jit(mean_squared_error, in_shardings=split)
print("one device:", mean_squared_error(predictions, targets))
print("eight devices:", split_error(predictions, targets))

# %% [markdown]
# You get 42.5, the mean of 16 x 16 squares, and no error. Both arrays are split over the devices, but the compiler just
# picks some sharding for their difference.
#
# ## Make the sharding part of the type
#
# With the mesh from lesson 09 the compiler decides how results are split. JAX calls the axis of this mesh *Auto*. The
# alternative is *Explicit*. With an Explicit axis JAX works out the sharding of each result by fixed rules, and raises an
# error if no rule applies. `jax.make_mesh` makes Explicit axes, by default since jax 0.9.
#
# `jax.set_mesh` makes this mesh the current one for all cells that follow. So you can place an array by a spec alone, and
# `jax.typeof` shows you its type:

# %%
import textwrap

jax.set_mesh(jax.make_mesh((8,), ("data",)))
split_arrays = jax.device_put((predictions, targets), P("data"))
print(*[jax.typeof(array) for array in split_arrays])
try:
    mean_squared_error(*split_arrays)
except Exception as error:
    refusal = f"{type(error).__name__}: {error}"
    print(textwrap.fill(refusal, 100))

# %% [markdown]
# `16@data` means 16 rows that are split over "data". The difference would have its rows *and* its columns split over
# "data", and no array can be split over the same devices twice. So you notice that you meant `predictions[:, 0] - targets`.
# If only the predictions are split, there's no error, and you get 42.5 again. So check that *every* array of a batch is
# split.
#
# All results have such types, and JAX knows them while it traces, before there are any numbers. Let's take an array of 16
# rows, two on each device.
#
# **Predict:** `x.sum(0)` sums each column of `x`, and `x.sum(1)` sums each row. Which of the two is still split?


# %% tags=["prediction"]
@jax.jit
def print_types(x):
    results = {"2 * x": 2 * x, "x.sum(0)": x.sum(0), "x.sum(1)": x.sum(1)}
    for name, result in results.items():
        print(f"{name:8s} {jax.typeof(result)}")
    return results


results = print_types(jax.device_put(np.ones((16, 4), np.float32), P("data")))

# %% [markdown]
# <details><summary>Answer</summary>
#
# `x.sum(1)`. Each device has complete rows, so it sums them by itself, and the 16 sums stay where their rows are. But a
# column has numbers on all devices. So an all-reduce adds them up, and then every device has all four sums: `float32[4]`.
#
# </details>
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py), and these lines change:
#
# include the difference of 09_jit.py and 11_explicit.py
#
# - `jit` needs no shardings now, because the type of each placed array already has one.
# - `loss_sums` raises an error if an array of the batch isn't split. Both steps call it, so both are guarded.
# - `weights @ losses` becomes a sum. You'll see why when JAX asks its first question.
#
# You get the same losses as in lesson 09.

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
# Only your own check complains, because to JAX this is a replicated batch, which is allowed. So if the batch is all you
# worry about, lesson 09's guard is as good:
#
# | what you pass or write | 09: `in_shardings`, Auto axis | this program |
# | --- | --- | --- |
# | a batch of NumPy arrays | is split on its way in | error from your check |
# | a batch that's placed, but not split | error from `jit` | error from your check |
# | `[128, 1]` minus `[128]`, both split | 128 x 128 differences | error from JAX |
#
# Your check runs while JAX traces, so it costs nothing once the step is compiled. A batch of another type makes JAX trace
# again, so a single wrong batch is caught even in the middle of a run.
#
# ## Where your step communicates
#
# No type mentions an all-reduce, but the types tell you where your step needs one. In the next picture each colour is a
# device. Stripes are rows on different devices, and a stack of cards is an array that every device holds whole.
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
# are on different devices, so this is where the all-reduce has to be, and where we've drawn it.
#
# </details>
#
# ## When JAX asks you
#
# For the gradient JAX had a rule. For the product of two split vectors it has none. Let `a` be 0, 1, ..., 7, one number on
# each device, and `b` all ones, so `a @ b` is 28:

# %%
a = jax.device_put(np.arange(8, dtype=np.float32), P("data"))
b = jax.device_put(np.ones(8, np.float32), P("data"))
try:
    a @ b
except Exception as error:
    question = f"{type(error).__name__}: {error}"
    print(textwrap.fill(question, 100))

# %% [markdown]
# Each device can multiply its own two numbers. But should an all-reduce add up the eight products at once, or should they
# wait on their devices? JAX doesn't guess, so it asks you for an `out_sharding`. With `P()` every device gets the sum:

# %%
total = jnp.matmul(a, b, out_sharding=P())
print(total, jax.typeof(total))

# %% [markdown]
# That's why your program no longer has `weights @ losses`, which is a product of two split vectors, too. It has a sum
# instead, and for a sum JAX has a rule: it all-reduces.
#
# ## What it costs
#
# Your step doesn't get faster, because each device computes what it computed before. But some everyday lines raise an
# error, and you have to rewrite them. Here `x`, `logp`, `labels` and `tokens` are split along their first axis:
#
# | raises an error | what to write |
# | --- | --- |
# | `x[0]`, `x[:8]`, `x.cumsum(0)`, `jnp.sort(x, 0)` | `x = jax.reshard(x, P())` before it: an all-gather, which copies all rows to every device |
# | `logp[jnp.arange(B), labels]` | `jnp.take_along_axis(logp, labels[:, None], 1)` |
# | `embed(tokens)` | `embed(tokens, out_sharding=P("data"))` |
#
# Most Flax layers take a split batch as it is: `Linear`, `Conv`, `BatchNorm`, `LayerNorm`, `Dropout`, `max_pool` and
# `MultiHeadAttention`. If a layer raises an error and has no `out_sharding`, let the compiler decide inside it. Pass the
# layer as an argument, and don't close over it:
#
# ```python
# call = jax.sharding.auto_axes(lambda layer, x: layer(x), out_sharding=P("data"))
# result = call(layer, x)
# ```
#
# ## Exercises
#
# Both run under a mesh with Explicit axes. Solutions, with reasons:
# [solutions/11_explicit_sharding.py](solutions/11_explicit_sharding.py).
#
# 1. `fixed_logits` (8 minutes, find the mistake): four devices form a mesh of 2 x 2, with the axes "data" and "model", so
#    that the matrices can be split, too. `x` is `[B@data, D]`, `W1` is `[D, H@model]`, and `W2` is `[H@model, C]`. Write
#    down the type of each intermediate result, and you'll see where JAX has to ask. Return the logits, `[B@data, C]`. Each
#    device keeps its rows of the batch and its part of the matrices. <details><summary>Hint</summary>The second product
#    sums over the columns of the first one's result. Which axis are they split over?</details>
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
# - With Explicit axes, the sharding is part of an array's type, and JAX works out the type of every result.
# - JAX refuses what it has no rule for, but it allows a batch that isn't split. So check that yourself.
# - If JAX asks, answer with `out_sharding`, `jax.reshard` or `auto_axes`.
#
# To read on: [Distributed arrays](https://docs.jax.dev/en/latest/201/sharding.html) and [Autodiff and
# sharding](https://docs.jax.dev/en/latest/301/sharding-ad.html) in JAX's documentation. Next, a program from 2022: [12
# Port a pmap program](12_port_a_pmap_program.ipynb).
#
# **The lesson ends here.** The rest is optional. Come back after lesson 13.
#
# ## Optional: let a sum wait
#
# In lesson 13 your `shard_map` added up the gradients of four micro-batches before it all-reduced them. Can types do that,
# too? Yes, because you may leave a sum unfinished. Take `a @ b` again, and let the products wait on their devices:
#
# **Predict:** which number does device 3 hold in `parts`?

# %% tags=["prediction"]
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
# The `U` in `{U:data}` means *unreduced*: the all-reduce over "data" is still to come. You ask for it with
# `jax.reshard(parts, P())`. Until then you can add two such arrays, but you can't take their cosine,
# because the cosine of a sum isn't the sum of the cosines. JAX refuses some correct things, too, such as `parts / 8`. So
# reshard a sum before you divide it by the count.
#
# ## A gradient that waits
#
# Can a gradient be unreduced, too? Yes, if you mark its parameter as *reduced*:
#
# | in the type | each device holds |
# | --- | --- |
# | `{R:data}`: a reduced parameter | the whole value, as if replicated |
# | `{U:data}`: its unreduced gradient | its own part of a sum |
#
# For example, let a weight be 1, and let device d have the input d. A replicated weight gets the gradient 28 on every
# device. A reduced one gets d on device d, as in lesson 05 before the `pmean`. Forget the all-reduce, and JAX refuses to
# add this gradient to the weight.
#
# Now the four micro-batches, with your network's two kernels and without its biases, because `Linear` refuses a reduced
# bias. `accumulate` adds up the gradients in a loop, and `spec` is the sharding of the running total.

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
# With replicated kernels an all-reduce runs four times, as it did with `every_fourth` in lesson 13.
#
# **Predict:** how often does it run with reduced kernels and an unreduced total?

# %% tags=["prediction"]
kernels = arrays["hidden.kernel"], arrays["output.kernel"]
replicated_runs = count_all_reduces(kernels, P())

reduced_kernels = jax.reshard(kernels, P(reduced={"data"}))
reduced_runs = count_all_reduces(reduced_kernels, P(unreduced={"data"}))

print("with replicated kernels:", replicated_runs, "| with reduced kernels:", reduced_runs)
lesson_11.all_reduces_in_order()

# %% [markdown]
# <details><summary>Answer</summary>
#
# Once. Each device adds up its own parts, and the last `reshard` is the only all-reduce. The picture shows the order, not
# measured times.
#
# </details>
#
# Both find the gradient of the whole batch within 1e-4. We counted on CPUs, so count on your own machine, too. This part
# of JAX is young: version 0.10 has no rule even for `-parts`.
#
# 3. `sum_gradients` (8 minutes): `w` `[D, C]` is replicated, and `xs` `[K, B@data, D]` are K micro-batches. Return the
#    sum of the gradients of `loss(w, xs[k])` for `w`, replicated, with a single all-reduce of `[D, C]` numbers. Take one
#    micro-batch after the other in a scan, so that the activations of only one are in memory.
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
assert types == ["float32[16@data,4]", "float32[4]", "float32[16@data]"]
for place in (P(), P(None, "data"), jax.devices()[0]):
    inputs, *others = host_batch
    wrong_batch = (jax.device_put(inputs, place), *others)
    assert error_name(train_step, state, wrong_batch) == "TypeError"
for position in range(3):  # one array of the batch isn't split
    wrong_batch = list(batch)
    wrong_batch[position] = host_batch[position]
    assert error_name(train_step, state, wrong_batch) == "TypeError"
assert refusals == 2 * ["the batch is not split: float32[128,64]"]
assert refusal.startswith("ShardingTypeError: sub operation")
split_predictions = jax.device_put(predictions, P("data"))
assert mean_squared_error(split_predictions, targets) == 42.5
logp, labels = arrays["logits"], batch[1]
whole_logp = jax.reshard(logp, P())
for everyday_line in (
    lambda x: x[0],
    lambda x: x[:8],
    lambda x: x.cumsum(0),
    lambda x: jnp.sort(x, 0),
):
    assert error_name(everyday_line, logp) == "ShardingTypeError"
    expected = everyday_line(jnp.asarray(np.asarray(logp)))
    np.testing.assert_allclose(everyday_line(whole_logp), expected, rtol=0, atol=1e-4)
assert error_name(lambda: logp[jnp.arange(B), labels]) == "ShardingTypeError"
picked = jnp.take_along_axis(logp, labels[:, None], 1)[:, 0]
np.testing.assert_array_equal(picked, np.asarray(logp)[np.arange(B), np.asarray(labels)])
assert mean_squared_error(predictions, targets) == split_error(predictions, targets) == 42.5
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

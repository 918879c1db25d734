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
# eight different networks. In lesson 09 nobody had placed the batch, so every device did the work of all eight. Your
# program never said where each array was supposed to live, so JAX had nothing to check. Change ten lines, and it
# does. The sharding becomes part of an array's **type**, which you can print and assert at any line of your step. And
# if you decide yourself when your gradients are summed, JAX refuses a step that forgets to sum them.
#
# **You will** read shardings as types, answer when JAX asks for one, recognize a sum that isn't finished, and get the
# gradients of four micro-batches with a single all-reduce. 26 minutes, 52 with exercises. You need
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
# `Mesh(...)`, which you've used so far, makes *Auto* axes, over which the compiler decides. `jax.make_mesh` makes
# *Explicit* axes, by default since jax 0.9, and `jax.set_mesh` makes the mesh the current one for all cells that follow.
# From then on a spec is enough to place an array, and it becomes part of the array's type. Here the mesh is 4 x 2, so
# that you can split rows and columns:

# %%
jax.set_mesh(jax.make_mesh((4, 2), ("data", "model")))
x = jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), P("data", "model"))
print(jax.typeof(x))

# %% [markdown]
# Read it from the left: 16 rows, split in four over "data", and 4 columns, split in two over "model". Results have such
# types, too, and JAX knows them while it traces, before there are any numbers.
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
# `float32[16@data]`. The rows stay split over "data". The two devices that share a row exchange their parts of its sum, so
# nothing is split over "model" any more. For `x.sum()`, a plain `float32[]`, all eight devices do that.
#
# </details>
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). Everything that changes:
#
# include the difference of 09_jit.py and 11_explicit.py
#
# - The mesh has one axis again, because only the batch is split.
# - `jit` no longer needs shardings, because the arguments carry them in their types.
# - `loss_sums` asserts that the inputs are split. Both `train_step` and `eval_step` call it, so both are guarded.
# - `weights @ losses` becomes a sum. You'll see why when JAX asks its first question.
#
# The losses are lesson 09's.

# %% tags=["take-home"]
# include program/11_explicit.py

# %% [markdown]
# ## Lesson 09's mistake, and your assert
#
# Without `in_shardings`, the quiet mistake of lesson 09 is possible again. Make it: pass a batch that nobody has placed.

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
# It's *your* assert that complains, and you need it, because to JAX this is a replicated batch, which you might have
# wanted. The assert runs while JAX traces, so it costs nothing once the step is compiled. A batch of another type makes
# JAX trace again, so the assert even finds a single wrong batch in the middle of a run.
#
# ## Where your step communicates
#
# The types also show you the all-reduce. In the next picture each colour is a device. Stripes are rows on different
# devices, and a stack of cards is an array that every device holds whole.
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
# A stack, because a gradient has the type of its parameter, and the kernel is replicated. It sums over 128 examples that
# are split, so here is the all-reduce.
#
# </details>
#
# ## Where JAX asks
#
# For the gradient JAX knew what you'd want. Where it can't know, it raises an error. Take a matrix of 16 x 16, once split by
# columns and once by rows. Each device multiplies its two columns by its two rows. That gives a full 16 x 16 matrix, but
# `columns @ rows` is the sum of all eight.
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
# `weights @ losses` has the same problem: both vectors are split along the axis that it sums over, so JAX raises the same
# error. For `.sum()` there is a rule, as you saw.
#
# You answer with `out_sharding`. Besides the three answers above there's a fourth one, *not yet*:

# %%
specs = P(), P("data"), P(unreduced={"data"})
answers = [jnp.matmul(columns, rows, out_sharding=spec) for spec in specs]
for answer in answers:
    print(jax.typeof(answer))

unfinished = answers[-1]
print("the sum of two:", jax.typeof(unfinished + unfinished))

# %% [markdown]
# Read `{U:data}` as *unreduced over "data"*: each device keeps its own matrix, and the all-reduce is still to come. It
# comes when you call `jax.reshard(answer, P())`, which is the `psum` that you know from lesson 05. Until then you may add
# two such arrays, because the parts of a sum can be added in any order. But their cosine is an error, as it should be: the cosine
# of a sum isn't the sum of the cosines.
#
# ## A gradient that isn't summed yet
#
# Can a gradient have this type? Yes, if you mark its parameter as *reduced*. A reduced array, `{R:data}`, holds the same
# numbers as a replicated one, and only its gradient is different:
#
# | a parameter that is | has a gradient that is | which holds |
# | --- | --- | --- |
# | replicated, `float32[64,32]` | replicated | the sum, on all devices |
# | *reduced*, `float32[64,32]{R:data}` | *unreduced*, `float32[64,32]{U:data}` | each device's own part of the sum |
#
# Try one by hand. Device d holds the input d, and the weight is 1.
#
# **Predict:** what does device 3 hold of `gradient`, before it's resharded?

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
# 3, the gradient of its own row. After the reshard it holds 28, as all devices do: 0 + 1 + ... + 7.
#
# </details>
#
# ## Lesson 05's mistake, refused
#
# The eight parts are what lesson 05's devices had before `pmean`. Forget the all-reduce again, and let the loss *grow*, to
# keep the update short: add the gradient as it is.
#
# **Predict:** if JAX let you, what would the weight be on device 3?

# %% tags=["prediction"]
try:
    print(w + gradient)
except Exception as error:
    objection = f"{type(error).__name__}: {error}"
    print(textwrap.fill(objection, 100))

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1 + 3 = 4, and another number on each of the others. JAX doesn't let it come to that: `gradient` is unreduced while `w`
# is not.
#
# </details>
#
# The updates of `optax.sgd` and `optax.adam` are refused, too. Adam's error doesn't explain itself: it ends with "Please
# file an issue", because JAX has no rule for the square of an unreduced array. Reshard the gradients before the optimizer.
#
# With replicated parameters you can't make this mistake, because JAX sums each gradient over the devices as soon as it's
# computed. Then why do it yourself? Because JAX sums right away, every time, and sometimes once at the end is enough.
#
# ## The gradient of four micro-batches
#
# If a batch doesn't fit into memory, you can cut it into *micro-batches*, compute the gradient of one after the other, and
# add them up (lesson 13). Take your network and four micro-batches of 32 rows. `accumulate` adds up their gradients in a
# loop, and `spec` is the sharding of the running total. It also counts how often an all-reduce runs.
#
# There's one snag: JAX can't add a reduced bias to split rows, as `nnx.Linear` does. So `linear` copies the bias once for
# each example and splits the copies. Nothing is sent.

# %%
from jax import lax

from pmapdp.collectives import collectives

micro_batches = [x.reshape(4, 32, *x.shape[1:]) for x in host_batch]
micro_batches = jax.device_put(micro_batches, P(None, "data"))


def loss(model, batch):
    return loss_sums(model, batch)[0]


def accumulate(model, spec):
    """The sum of all gradients, and how often an all-reduce runs."""

    @jax.jit
    def sum_gradients(model, micro_batches):
        def add(total, batch):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(model, batch)), None

        zeros = jax.reshard(jax.tree.map(jnp.zeros_like, model), spec)
        total, _ = lax.scan(add, zeros, micro_batches)
        return jax.reshard(total, P())

    program = sum_gradients.lower(model, micro_batches).compile()
    (found,) = collectives(program.as_text())
    print(f"{found.kind}, runs: {found.runs}")
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
# **Predict:** how often does an all-reduce run if the parameters are replicated?

# %% tags=["prediction"]
model = jax.device_put(Network(nnx.Rngs(0)), P())
replicated_gradients, replicated_runs = accumulate(model, P())

unreduced = P(unreduced={"data"})
reduced_model = jax.reshard(ReducedNetwork(nnx.Rngs(0)), P(reduced={"data"}))
unreduced_gradients, unreduced_runs = accumulate(reduced_model, unreduced)
lesson_11.all_reduces_over_time()

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four times. A replicated parameter has a replicated gradient, so JAX sums it over the devices in each round of the loop.
# With reduced parameters the devices add up their own parts, and the last `reshard` is the only all-reduce.
#
# </details>
#
# Both runs found the gradient of the whole batch within 1e-4. We've counted on CPUs. XLA has a pass that can move an
# all-reduce out of a loop, so count on your own machine.

# %% tags=["proof"]
# The asserts behind the answers so far.
def error_name(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:  # the asserts name the class
        return type(error).__name__


no_rule = "NotImplementedError"
types = [str(jax.typeof(result)) for result in results.values()]
assert types == ["float32[16@data,4@model]", "float32[]", "float32[16@data]"]  # jit sorts the names
assert error_name(train_step, state, jax.device_put(host_batch, P())) == "AssertionError"
assert len(refusals) == 2
assert all("float32[128,64]" in refusal for refusal in refusals)
assert str(jax.typeof(arrays["gradient of hidden.kernel"])) == "float32[64,32]"
assert question.startswith("ShardingTypeError")
types = [str(jax.typeof(answer)) for answer in answers]
assert types == ["float32[16,16]", "float32[16@data,16]", "float32[16,16]{U:data}"]
twice = jax.reshard(unfinished + unfinished, P())
np.testing.assert_allclose(twice, 2 * square @ square, rtol=1e-5)
assert error_name(jnp.cos, unfinished) in (no_rule, "ShardingTypeError")  # jax 0.10.2, 0.12
assert str(jax.typeof(gradient)) == "float32[1,1]{U:data}"
assert (parts, reduced_gradient.item()) == ([0, 1, 2, 3, 4, 5, 6, 7], 28)
assert objection.startswith("ShardingTypeError: rhs is unreduced while lhs is not")


def update(optimizer):
    updates, _ = optimizer.update(gradient, optimizer.init(w), w)
    return optax.apply_updates(w, updates)


assert error_name(update, optax.sgd(1.0)) == "ShardingTypeError"
assert error_name(update, optax.adam(1.0)) == no_rule
linear_model = jax.reshard(model, P(reduced={"data"}))  # with nnx.Linear
assert error_name(accumulate, linear_model, unreduced) == "ShardingTypeError"
assert (replicated_runs, unreduced_runs) == (4, 1)
whole_gradients = jax.tree.leaves(jax.grad(loss)(model, batch))
for found in (replicated_gradients, unreduced_gradients):
    for a, b in zip(jax.tree.leaves(found), whole_gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)

# %% [markdown]
# ## When is it worth it?
#
# Explicit axes don't make your step faster: each device computes what it computed on an Auto axis. What you get is a step
# without surprises. The price: for some layers you have to tell JAX the sharding of the result. Most of Flax's need no
# help: `Linear`, `Conv`, `BatchNorm`, `LayerNorm`, `Dropout`, `max_pool` and `MultiHeadAttention` work unchanged with a split batch. But
# `embed(tokens)`, which looks up rows of a table, wants to know how to split them: `embed(tokens, out_sharding=P("data"))`.
# For a layer without such an argument, `jax.sharding.auto_axes` hands the decision back to the compiler.
#
# So for data parallelism keep Auto axes, as pmapdp does ([steps/jit.py](../pmapdp/steps/jit.py)), and check the batch once.
# The rest of this course doesn't use Explicit axes either: lessons 15, 16 and 19 split models and states on Auto axes, and
# lesson 13 sums gradients once with `shard_map`. Explicit axes are for you if you'd rather have an error than a silent
# guess of the compiler.
#
# ## Exercises
#
# Each runs under a mesh with Explicit axes. Solutions, with reasons:
# [solutions/11_explicit_sharding.py](solutions/11_explicit_sharding.py).
#
# 1. `fixed_logits` (8 minutes, find the mistake): here the mesh has two axes, "data" and "model", of two devices each. `x`
#    is `[B@data, D]`, `W1` is `[D, H@model]`, and `W2` is `[H@model, C]`. Write down the type of each intermediate result,
#    and you'll see where JAX has to ask. Return the logits, `[B@data, C]`. Each device keeps its rows of the batch and its
#    part of the matrices.
#    <details><summary>Hint</summary>The second product sums over the columns of the first one's result. Which axis are
#    they split over?</details>
# 2. `normalized_step` (10 minutes): one gradient step for `w` `[D]`, which is replicated. The loss is the mean of
#    `(z @ w - y) ** 2`, and the learning rate is 0.1. z is `x` `[B@data, D]`, each column minus its mean and divided by
#    its standard deviation, both over the global batch. Raise an AssertionError for a batch that isn't split, and let each
#    device keep its rows. <details><summary>Hint</summary>It's the program of one device. Only the assert mentions a
#    sharding.</details>
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
# - `{U:data}` is a sum that isn't finished. A reduced parameter has such a gradient, and a reshard to `P()` finishes it.
#
# To read on: [Distributed arrays](https://docs.jax.dev/en/latest/201/sharding.html) and [Autodiff and
# sharding](https://docs.jax.dev/en/latest/301/sharding-ad.html) in JAX's documentation. Next, a program of 2022: [12
# Port a pmap program](12_port_a_pmap_program.ipynb).

# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 09. Let the compiler do it
#
# In lesson 05 you wrote an all-reduce. Now delete it. Delete `pmap`, too, and the reshape to `[N, b, ...]`. What's left
# is lesson 03's step for one device, and yet it trains on eight. The compiler sees where your arrays are and puts the
# all-reduce in for you. But there's one quiet way to get it wrong: you pay for eight devices and get the speed of one,
# and the losses look perfect.
#
# **You will** write a data-parallel step with `jax.jit` and shardings, find the compiler's all-reduce, and notice when
# the batch isn't split. 21 minutes, 36 with exercises. You need [05 Average gradients](05_average_gradients.ipynb).
# Without pmap, [00](00_meet_your_devices.ipynb) and [03 Train with Flax and Optax](03_train_with_flax_and_optax.ipynb)
# are enough.

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_09

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## The program so far, and what you delete
#
# You start from [program/05_pmap.py](program/05_pmap.py). Here's everything that changes:
#
# include the difference of 05_pmap.py and 09_jit.py
#
# With `pmap` you wrote what *one device* does with its part. With `jit` you write what happens to the *global batch*,
# as if there were just one device. The sums in `loss_sums` are now sums over all 128 examples, so there's nothing left
# to average. `in_shardings` says where the arguments are: the state on every device, the batch split. `out_shardings`
# says where you want the results. If you know PyTorch's DTensor, `replicated` is its `Replicate()` and `split` is its
# `Shard(0)`.
#
# <details><summary>Do you come straight from lesson 03, without pmap?</summary>
#
# Then skip the difference above, which only takes away what lesson 05 has added. This is what's new since lesson 03:
#
# include the difference of 03_flax.py and 09_jit.py
#
# Two of the lines simulate eight devices, as in lesson 00. For the others you need four words:
#
# - A **mesh** is an array of devices with named axes. Ours is a row of eight devices, and its axis is called `"data"`.
# - A **partition spec** says how to cut an array. `PartitionSpec("data")` cuts the first axis into eight parts, one for
#   each device: the array is split. `PartitionSpec()` cuts nothing, so each device gets all of it: the array is
#   replicated.
# - A `NamedSharding` is a mesh with a partition spec, and `jax.device_put(x, sharding)` puts an array there.
# - An array that you've placed like that is **committed**. One that nobody has placed, such as a NumPy array, is
#   **uncommitted**, and JAX moves it to where it's needed.
#
# An **all-reduce** sums an array over all devices and gives the sum to each of them.
#
# </details>
#
# Compare its losses with lesson 05's:

# %% tags=["take-home"]
# include program/09_jit.py

# %% [markdown]
# They agree, up to rounding in the last digits, and there's no `pmean` in sight.
#
# Most of the course starts from this version. Under `jit` you can use plain `nnx.BatchNorm`, with its `mask` for the
# padding, because there a layer sees the global batch. But keep lesson 07's `nnx.grad` and `nnx.update`. With
# `jax.grad` the new running averages would silently be lost, and an `nnx.Dropout` with its random state raises a
# `TypeError`.
#
# ## How does the compiler know?
#
# Let's take something smaller: an array of 16 rows, split over eight devices, and three functions of it.

# %%
rows = jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), split)
functions = {
    "2 * x + 1": lambda x: 2 * x + 1,
    "x.sum(1)": lambda x: x.sum(1),
    "x.sum(0)": lambda x: x.sum(0),
}


def all_reduces(program):  # their lines, without the details at the end
    lines = [line for line in program.as_text().splitlines() if " all-reduce(" in line]
    return [line.partition(", channel_id")[0].strip() for line in lines]


# %% [markdown]
# JAX can give you a compiled program as text, and `all_reduces` finds the all-reduces in it.
#
# **Predict:** for which of the three functions do the devices have to communicate?

# %% tags=["prediction"]
communication = {}
for name, function in functions.items():
    program = jax.jit(function).lower(rows).compile()
    communication[name] = all_reduces(program)
    print(f"{name:10s} is placed as {program.output_shardings.spec}")
    for line in communication[name]:
        print(" ", line)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only for `x.sum(0)`, because it sums rows that are on different devices. Each device sums its own two rows, and an
# all-reduce sums the eight results. You see the all-reduce's line above: it takes and returns an `f32[4]`, four numbers
# in float32. The other two functions work row by row, so their results stay where the rows are.
#
# </details>
#
# That's how the compiler knows. It starts from the shardings that you give it, works out one for every other array, and
# adds communication wherever an operation needs numbers from other devices. JAX's pages call this *sharding
# propagation*, and the part of the compiler that does it Shardy.
#
# Your gradient is a sum over the examples, and the examples are split, so it needs an all-reduce for the same reason.
# The metric sums need one, too.
#
# **Predict:** there are four arrays of gradients and three sums. How many all-reduces does the compiled step have?

# %% tags=["prediction"]
import textwrap

program = train_step.lower(state, place_batch(batch)).compile()
step_all_reduces = all_reduces(program)
for line in step_all_reduces:
    print(textwrap.fill(line, 100))

# %% [markdown]
# <details><summary>Answer</summary>
#
# One. The part before `all-reduce(` lists its seven results: the gradients of two kernels, transposed, and of two
# biases, and the three sums. XLA for CPUs has merged them into one message, because every message costs some time,
# however short it is. On GPUs and TPUs you may see several.
#
# </details>
#
# Here's one update on eight devices. You wrote a step for the global batch. The compiler turned it into the coloured
# boxes, what each device does with its part, and added the box in the middle.

# %%
lesson_09.training_step()

# %% [markdown]
# ## The quiet mistake
#
# Suppose you leave out `in_shardings`, and you also forget to place the batch. An array that nobody has placed is
# *uncommitted*, and `jit` chooses where it goes. Here's a step without `in_shardings`, and four ways to pass it a
# batch:

# %%
# `__wrapped__` is your function before jit. This time it gets no in_shardings.
loose_step = jax.jit(train_step.__wrapped__, out_shardings=replicated)
host_batch = next(batches(*train_data, seed=0))  # inputs, labels and weights as NumPy arrays
cases = {
    "all three are placed": place_batch(host_batch),
    "none is placed": host_batch,
    "none, as jnp arrays": jax.tree.map(jnp.asarray, host_batch),
    "only the inputs are": (place_batch(host_batch[0]), *host_batch[1:]),
}

# %% [markdown]
# Let's compile the step for each of them, and ask the compiler how many operations each device will do.
#
# **Predict:** for which of the first three does each device compute only its own 16 rows? You can't work out the last
# one, because there the compiler has a choice.

# %% tags=["prediction"]
work = {}
for name, batch in cases.items():
    work[name] = loose_step.lower(state, batch).compile().cost_analysis()["flops"]
lesson_09.work_by_device(work)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only for the first. The state is on eight devices, so all eight run the step. If nothing says that the batch is split,
# every device gets the whole batch and computes the whole gradient. That's 1.4 million operations on each device, as
# many as a single device needs for the whole batch, instead of 0.2 million. Nobody has to communicate, and the gradient
# is correct, but your eight devices are no faster than one.
#
# In the last case one of the arrays is split, and this compiler splits the others to match. Another version might
# choose differently, so don't count on it.
#
# Even with a split batch a device does more than an eighth of the work, because every device runs Adam on all the
# parameters. In lesson 16 you'll split Adam's work, too.
#
# </details>
#
# Can you see the mistake in the numbers? Here's one update with each of the four batches, compared with lesson 03's
# step on one device. They must all agree within 1e-5, in float32.

# %%
state_1, _ = jax.device_get(jax.jit(train_step.__wrapped__)(jax.device_get(state), host_batch))
for name, batch in cases.items():
    state_8, _ = jax.device_get(loose_step(state, batch))
    differences = jax.tree.map(lambda a, b: np.abs(a - b).max(), state_1, state_8)
    difference = max(jax.tree.leaves(differences))
    print(f"{name:20s} differs by {difference:.0e}")
    assert difference < 1e-5

# %% [markdown]
# No number shows the mistake, so you have to prevent it. Set `in_shardings`, as your program does, and a host array is
# split on its way in. Or place every batch yourself. There's a third way: inside a step,
# `jax.lax.with_sharding_constraint(x, split)` demands that x is split at this point. Here's the loose step with one
# such line, called with the batch that nobody has placed.
#
# **Predict:** will each device do 0.2 or 1.4 million operations?


# %% tags=["prediction"]
def constrained_step(state, batch):
    batch = jax.lax.with_sharding_constraint(batch, split)
    return train_step.__wrapped__(state, batch)


program = jax.jit(constrained_step, out_shardings=replicated).lower(state, host_batch).compile()
operations = program.cost_analysis()["flops"]
(_, batch_shardings), _ = program.input_shardings
print(f"{operations / 1e6:.1f} million; the inputs go in as {batch_shardings[0].spec}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 0.2 million. Propagation works backwards, too: because the batch has to be split inside the step, the compiler splits
# it on its way in. A line like this helps when you know a better layout than the compiler would choose, as you will in
# lessons 16 and 19.
#
# </details>
#
# In a new program, check once that the batch is split, with `assert place_batch(batch)[0].sharding == split`. And what
# if you've put a batch on device 0 yourself? Then it's committed there, but your program's step wants it split:

# %%
try:
    train_step(state, jax.device_put(host_batch, jax.devices()[0]))
except ValueError as error:
    refusal = f"ValueError: {error}"
    print(textwrap.fill(refusal, 100))
assert refusal.startswith("ValueError")

# %% [markdown]
# That's the good case, because you notice the mistake. JAX also refuses a batch that you've replicated over the mesh,
# and a batch of 100 rows, because 100 isn't divisible by 8. That can't happen in your program, where `batches` pads the
# last batch to 128 rows.
#
# Neither `place_batch` nor `train_step` waits for the devices. While the devices compute, Python already picks the rows
# of the next batch and sends them.

# %% tags=["proof"]
# The asserts behind the answers.
from flax import nnx

norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
for grad, keeps_averages in ((jax.grad, False), (nnx.grad, True)):
    grad(lambda norm: norm(rows, use_running_average=False).sum())(norm)
    assert (norm.mean[...] != 0).all() == keeps_averages
dropout_layer = nnx.Dropout(0.1, rngs=nnx.Rngs(0))
try:
    jax.grad(lambda dropout_layer: dropout_layer(rows).sum())(dropout_layer)
    refused = False
except TypeError:
    refused = True
assert refused
assert [len(lines) for lines in communication.values()] == [0, 0, 1]
assert len(step_all_reduces) == 1
assert step_all_reduces[0].partition(" all-reduce(")[0].count("f32[") == 7
assert work["none is placed"] == work["none, as jnp arrays"] > 4 * work["all three are placed"]
assert work["only the inputs are"] < 1.5 * work["all three are placed"]
assert operations == work["all three are placed"]
assert batch_shardings[0].spec == PartitionSpec("data")
(_, batch_shardings), _ = train_step.lower(state, host_batch).compile().input_shardings
assert batch_shardings[0].spec == PartitionSpec("data")
assert place_batch(host_batch)[0].sharding == split

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/09_let_the_compiler_do_it.py](solutions/09_let_the_compiler_do_it.py).
#
# 1. `make_trainer` (10 minutes): the data-parallel step. You get `loss(params, batch)`, a mean over the examples of the
#    batch. Return a jitted step `(params, batch) -> (params, loss)` of gradient descent with learning rate 0.1. Both
#    arguments are pytrees of host arrays. Each device of `mesh` must compute only its share of the batch, and the
#    results must be replicated. <details><summary>Hint</summary>Write the step for one device with
#    <code>jax.value_and_grad</code> and <code>jax.tree.map</code>. In <code>in_shardings</code> and
#    <code>out_shardings</code> one sharding stands for a whole pytree.</details>
# 2. `fixed_evaluation` (5 minutes, find the mistake): `broken_evaluation` returns a jitted function. Its result is
#    correct, but each of the eight devices evaluates all the examples. Rewrite it so that each device evaluates its
#    share. <details><summary>Hint</summary>If you pass one sharding as <code>in_shardings</code>, it applies to all
#    three arguments.</details>


# %%
from pmapdp.lessons.checks import check


def broken_evaluation(mesh):
    replicated = NamedSharding(mesh, PartitionSpec())

    def accuracy(W, images, labels):
        return ((images @ W).argmax(1) == labels).mean()

    return jax.jit(accuracy, in_shardings=replicated, out_shardings=replicated)


def make_trainer(loss, mesh):
    """A jitted step: (params, batch) to (params, loss)."""
    ...  # your code: 6 to 9 lines


def fixed_evaluation(mesh):
    """A jitted function: (W, images, labels) to the accuracy."""
    ...  # your code: 5 to 6 lines


for exercise in (make_trainer, fixed_evaluation):
    check("09_let_the_compiler_do_it", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Write the step for the global batch, say where the arrays are, and leave the communication to the compiler.
# - Shardings change where the work happens, not the result (apart from rounding). So no number shows that a
#   batch isn't split. Check its `sharding` once.
# - `in_shardings` splits arrays that nobody has placed, and raises an error if you placed them another way. Without
#   it, the compiler decides where unplaced arrays go.
#
# In pmapdp this is [steps/jit.py](../pmapdp/steps/jit.py). Here are the lines that matter:
#
# include 09_jit.py beside steps/jit.py
# jax.device_put(state | jax.device_put(state
# jax.device_put(batch | place(batch
# jax.grad( | = compute_sums(
# train_step = | train_step =
#
# pmapdp's step sets only `out_shardings`, because its loop places every batch with `place_batch`, two ahead, in a
# thread. And the rest of your program:
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `jax.grad(...)` and `optimizer.update(...)` | `gradient_sums`, which is `compute_sums` without micro-batches, and `update` | [steps/shared.py](../pmapdp/steps/shared.py) |
# | `loss_sums` | `cross_entropy`, which returns `MetricSums` | [loss.py](../pmapdp/loss.py) |
# | `batches` | `Batches` | [data/batches.py](../pmapdp/data/batches.py) |
# | the loop | `train` | [train.py](../pmapdp/train.py) |
#
# To read on: the [JAX scaling book on sharding](https://jax-ml.github.io/scaling-book/sharding/). Next, the same step
# with pmap, jit and shard_map: [10 Three ways side by side](10_three_ways_side_by_side.ipynb).

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
# # 10. Three ways side by side
#
# You've written the same training step twice: with `pmap`, where you say what each device does, and with `jit`, where
# the compiler works that out. There's a third way, `shard_map`: you pass global arrays, as with jit, but your function
# sees one device's rows, as with pmap. Since jax 0.8, pmap itself is built on it. You'll need `shard_map` to port a
# pmap program, or to control what the devices send. It has a trap that raises no error, and you'll walk into it on
# purpose.
#
# **You will** write the step with `shard_map`, see the trap and the ways around it, and choose between pmap, jit and
# shard_map. 20 minutes, 35 with exercises. You need [05 Average gradients](05_average_gradients.ipynb) and
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import textwrap

import jax
import numpy as np
from jax import lax

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_10

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## Three ways in one picture
#
# The three differ in what you pass, in how much of it your function sees, and in who sums the gradients. The picture
# has four devices, each in its own colour. The global batch has B rows, with b of them on each device. One box has a
# question mark, and this lesson fills it in.

# %%
lesson_10.three_ways()

# %% [markdown]
# `shard_map` cuts the global arrays the way `in_specs` says, runs your function once on each device, and puts the
# results together the way `out_specs` says. These are the specs of a training step: the state is on every device, the
# batch is split along the mesh axis "data", and the result is on every device again.

# %%
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(jax.devices(), ("data",))
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec()}

# %% [markdown]
# ## How much of the batch does your loss see?
#
# Let's take the smallest case: one weight `w`, and the numbers 0 to 15, two on each of eight devices. The loss is the
# mean of `w * x`. At w = 1 the loss is 7.5. Its gradient is the mean of `x`, so that's 7.5, too. `loss` records the
# shape of the `x` that it receives, because that's where the three differ.


# %%
def loss(w, x):
    shapes.append(x.shape)
    return (w * x).mean()


def averaged_loss(w, x):
    return lax.pmean(loss(w, x), "data")


def map_over_devices(function, check_vma=True):  # with the program's specs: w replicated, x split
    return jax.jit(jax.shard_map(function, mesh=mesh, **specs, check_vma=check_vma))


def device_values(result):
    return [float(shard.data) for shard in result.addressable_shards]


w, x = np.float32(1), np.arange(16, dtype=np.float32)
shapes = []
parallel_loss = jax.pmap(averaged_loss, "data", in_axes=(None, 0), out_axes=None)
pmap_loss = parallel_loss(w, x.reshape(8, 2))
jit_loss = jax.jit(loss, in_shardings=(replicated, split))(w, x)
shard_map_loss = map_over_devices(averaged_loss)(w, x)
print(f"pmap: {shapes[0]}, result {pmap_loss}")
print(f"jit: {shapes[1]}, result {jit_loss}")
print(f"shard_map: {shapes[2]}, result {shard_map_loss}")

# %% [markdown]
# Under pmap and shard_map the loss sees two numbers, so it takes a `pmean` to get the global mean. Under jit it sees all
# 16.
#
# ## And your gradient?
#
# The gradient should be 7.5, too. Under pmap you took the gradient of this device's loss, and then averaged it over the
# devices. Here's the same line under `shard_map`.
#
# **Predict:** the devices' own gradients have the mean 7.5. What do you get?


# %% tags=["prediction"]
def average_gradient(w, x):  # as under pmap
    return lax.pmean(jax.grad(loss)(w, x), "data")


checked_gradients = {"average_gradient": device_values(map_over_devices(average_gradient)(w, x))}
print(checked_gradients["average_gradient"])
lesson_10.trap()

# %% [markdown]
# <details><summary>Answer</summary>
#
# 60 on every device, the sum of the eight gradients. That's eight times too large, and there's no error. The `pmean`
# averages eight equal sums, so it changes nothing.
#
# </details>
#
# The culprit is `check_vma`, which is on by default. Despite its name, it changes gradients. **vma** stands for *varying
# manual axes*: JAX now tracks which values vary from device to device. `x` does, and `w` doesn't. Before the two are
# multiplied, JAX casts `w` to a value that varies. In the forward pass this cast hands one weight to eight devices. In
# the backward pass eight gradients come back to one weight, so the backward of this cast is a sum, a `psum`. That's the
# all-reduce that you never see. pmap runs your step in a `shard_map` with the check off, and that's why the same line
# was correct in lesson 05.
#
# <details><summary>The cast, and the all-reduce you didn't write, in a jaxpr</summary>
#
# `jax.make_jaxpr(map_over_devices(jax.grad(loss)))(w, x)` begins with a `pvary`, JAX's cast of `w`, and ends with the
# all-reduce. `V:data` marks what varies:
#
# ```
# c:f32[]{V:data} = pvary[axes=('data',)] a
# ...
# m:f32[] = psum_invariant[axes=('data',)] l
# ```
#
# </details>
#
# ## Ways around it
#
# Once you know that `jax.grad` sums, you can let it. Average the *loss*, and each gradient shrinks to an eighth, so
# their sum is the mean. That's correct only if all devices have equally many examples, as here.
#
# Or you stop `jax.grad` from summing. You make the cast yourself, before `jax.grad`: `lax.pcast(w, "data",
# to="varying")` says that from here on, each device has a `w` of its own. Then there's nothing to sum, and your `pmean`
# averages eight different gradients, as under pmap. The cast only relabels `w`, so it's free.
#
# You can also switch the check off. Then JAX doesn't track what varies, and `jax.grad` sums nothing. Here are all three
# functions, with and without the check.
#
# **Predict:** which of the three is wrong without the check?


# %% tags=["prediction"]
def average_loss(w, x):
    return jax.grad(averaged_loss)(w, x)


def cast_first(w, x):
    w = lax.pcast(w, "data", to="varying")
    return lax.pmean(jax.grad(loss)(w, x), "data")


unchecked_gradients = {}
for function in (average_gradient, average_loss, cast_first):
    name = function.__name__
    checked_gradients[name] = device_values(map_over_devices(function)(w, x))
    unchecked_gradients[name] = device_values(map_over_devices(function, check_vma=False)(w, x))
    print(f"{name} with the check: {checked_gradients[name][0]} on each device")
    print(f"{name} without: {unchecked_gradients[name]}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `average_loss`. Nothing averages its gradient now, so each device ends up with the mean of its own two numbers. That
# was mistake 2 in lesson 05. The other two call `pmean` on the gradient, so they get 7.5.
#
# </details>
#
# So far `jax.grad` was *inside* the `shard_map`. Now differentiate the whole mapped loss from outside:

# %%
outside = {}
for check_vma in (True, False):
    mapped_loss = map_over_devices(averaged_loss, check_vma)
    outside[check_vma] = jax.grad(mapped_loss)(w, x)
    print(f"check_vma={check_vma}: {outside[check_vma]}")

# %% [markdown]
# From outside there's one weight and one loss, as under jit, so there's no trap. Now you can fill in the question mark
# of the picture: `jax.grad` sums the gradients, or you do, after a cast or without the check. Here are all the ways. In
# this table, `loss` is a device's own mean:
#
# | | with the check (default) | `check_vma=False` |
# | --- | --- | --- |
# | `pmean(grad(loss))`, as under pmap | **60, eight times too large** | correct |
# | `grad(pmean(loss))` | correct | **not averaged**: each device has its own |
# | `pcast`, then `pmean(grad(loss))` | correct | correct |
# | `grad` outside, of `shard_map(pmean(loss))` | correct | correct |
#
# **If your loss all-reduces its own result, don't cast: use `jax.grad` alone**, with the check. Cast `w` and average
# the gradient of `averaged_loss`, and you get 0.94 in place of 7.5. That's eight times too small, and again there's no
# error. A batch norm inside the model is fine: cast as usual.
#
# Your program casts anyway, because then the all-reduce is a line of its own. You decide what goes into it, such as
# gradients together with the count, and when it runs. In lesson 13 you'll put it behind a loop.
#
# ## Why you want the check
#
# Why not switch the check off for good? Because it finds a mistake that pmap doesn't. In lesson 05 you forgot the
# all-reduce, and nobody noticed. Forget it again, first without the check and then with it.


# %%
def forget_pmean(w, x):
    w = lax.pcast(w, "data", to="varying")
    return jax.grad(loss)(w, x)


wrong_gradients = device_values(map_over_devices(forget_pmean, check_vma=False)(w, x))
print("without the check:", wrong_gradients)
try:
    map_over_devices(forget_pmean)(w, x)
except ValueError as error:
    refusal = str(error)
    for line in f"with the check: {refusal}".splitlines():
        print(textwrap.fill(line, 100))

# %% [markdown]
# Without the check you get eight different gradients under one name. With the check, JAX notices before anything runs.
# `out_specs` promises that all devices return the same thing, and JAX sees that this gradient varies. So **keep the
# check on in new code, and cast first.**
#
# <details><summary>Why does pmapdp turn the check off?</summary>
#
# Because it has to run *your* model, and the check refuses some models that are perfectly fine. `nnx.RNN`, for example,
# loops over time and starts from zeros, which are equal on all devices. After one step the state varies. A scan must
# return the type that it started with, and "varying" is part of the type, so JAX refuses. In your own program you'd pass
# `initial_carry=lax.pcast(zeros, "data", to="varying")`, but pmapdp can't do that inside a layer of yours. So its
# [steps/shard_map.py](../pmapdp/steps/shard_map.py) has `check_vma=False` and pmap's `pmean`, and its tests compare
# every update with one device's, on one to eight devices.
#
# </details>
#
# ## The program so far
#
# Now take all this to training. You start from [program/05_pmap.py](program/05_pmap.py) again, because `shard_map` runs
# pmap's step:
#
# include the difference of 05_pmap.py and 10_shard_map.py
#
# - The reshape to `[N, b, ...]` is gone, because `in_specs` does the cutting.
# - `jax.shard_map` inside `jax.jit` takes the place of `jax.pmap`.
# - `lax.pcast` casts the whole model, so that the `pmean` below does the averaging.
#
# The step does the same thing as in lesson 05, so the program prints the same losses, up to rounding.

# %% tags=["take-home"]
# include program/10_shard_map.py

# %% [markdown]
# ## Proof on a ragged batch
#
# Don't trust the losses: Adam hides a gradient that's eight times too large, as you saw in lesson 05. So compare the
# program's gradient with one device's, on the epoch's last batch. Device 0 has its eight examples, and the other seven
# devices have nothing but padding. After the first update, Adam's first moment is 0.1 times the gradient, so you can
# read the program's gradient from its state. The two must agree within 1e-5, in float32.

# %%
*_, last_batch = batches(*train_data, seed=0)
(_, (adam, _)), _ = train_step(place_state(init_state()), place_batch(last_batch))
gradients = jax.tree.map(lambda mean: mean / 0.1, jax.device_get(adam.mu))

total, sums = jax.grad(loss_sums, has_aux=True)(init_state()[0], last_batch)  # one device's
expected = jax.tree.map(lambda g: g / sums["count"], total)
difference = optax.tree.norm(jax.tree.map(np.subtract, gradients, jax.device_get(expected)))
print(f"the program's gradient and one device's differ by {difference:.0e}")
assert difference < 1e-5

# %% [markdown]
# [`pmapdp.verify`](../docs/verify.md) makes such a comparison for your own step, and you'll use it in [lesson
# 12](12_port_a_pmap_program.ipynb).
#
# ## The three, side by side
#
# Here's where your three programs differ. A dash means that you write nothing, and `P` is short for `PartitionSpec`. The
# rest of a step is the same: `jax.grad` of `loss_sums`, a division by the count, and Adam.
#
# | | pmap (05) | shard_map (10) | jit (09) |
# | :-- | :-- | :-- | :-- |
# | the batch | `[8, 16, 64]` | `[128, 64]` | `[128, 64]` |
# | the step sees | `[16, 64]` | `[16, 64]` | `[128, 64]` |
# | keep `jax.grad` from summing | - | `local = lax.pcast(`<br>`model, "data",`<br>`to="varying")` | - |
# | **all-reduce** | `lax.pmean((gradients,`<br>`sums["count"]),`<br>`"data")` | `lax.pmean((gradients,`<br>`sums["count"]),`<br>`"data")` | - (the compiler's) |
# | metric sums | `lax.psum(sums, "data")` | `lax.psum(sums, "data")` | `sums` |
# | where arrays are | `in_axes=(None, 0)`<br>`out_axes=None` | `in_specs=`<br>`(P(), P("data"))`<br>`out_specs=P()` | `in_shardings=`<br>`(replicated, split)`<br>`out_shardings=replicated` |
#
# So `shard_map` is pmap's step plus a cast, on jit's arrays.
#
# `python -m pmapdp.compare --dtype float64 --html page.html` trains a small CNN on one device and in all three ways.
# In a minute or more it writes a page with the code, the arrays, the proof, and nine mistakes that raise no error. The
# page's code has `psum` where yours has `pmean`. Both are correct, because N cancels. Here are the main rows:
#
# ![The main rows of the page: a column each for single, pmap, shard_map and jit, with a yellow bar where the gradients
# are summed](../docs/pictures/compare.png)
#
# All three give the same result, so choose by what you want to write:
#
# | you want | use | because |
# | --- | --- | --- |
# | a new data-parallel trainer | `jit` | there's no all-reduce to forget, and stock layers see the global batch |
# | parameters split over devices | `jit` | only the shardings change (lessons 15 and 16) |
# | to see or decide what devices send | `shard_map` | each device's values are yours, you write the collectives, and it works inside `jit` |
# | to keep an old pmap program running | `pmap`, then port it | pmap is maintained, but gets nothing new (lesson 12) |
# | to learn what each device does | `pmap` | it adds one idea to the program of one device |

# %% tags=["proof"]
# The asserts behind the answers.
assert pmap_loss == jit_loss == shard_map_loss == 7.5
assert shapes[:3] == [(2,), (16,), (2,)]
assert checked_gradients["average_gradient"] == [60.0] * 8
assert checked_gradients["average_loss"] == checked_gradients["cast_first"] == [7.5] * 8
assert unchecked_gradients["average_gradient"] == unchecked_gradients["cast_first"] == [7.5] * 8
assert len(set(unchecked_gradients["average_loss"])) == len(set(wrong_gradients)) == 8
assert outside == {True: 7.5, False: 7.5}


def cast_averaged(w, x):  # the loss all-reduces its own result
    w = lax.pcast(w, "data", to="varying")
    return lax.pmean(jax.grad(averaged_loss)(w, x), "data")


assert device_values(map_over_devices(cast_averaged)(w, x)) == [7.5 / 8] * 8


def centred_loss(w, x):  # the mean of batch norm, inside the model
    hidden = w * x
    return ((hidden - lax.pmean(hidden.mean(), "data")) ** 2).mean()


def cast_centred(w, x):
    w = lax.pcast(w, "data", to="varying")
    return lax.pmean(jax.grad(centred_loss)(w, x), "data")


assert device_values(map_over_devices(cast_centred)(w, x)) == [2 * x.var()] * 8
assert "can't be statically inferred" in refusal
jaxpr = jax.make_jaxpr(map_over_devices(jax.grad(loss)))(w, x).pretty_print(use_color=False)
assert "f32[]{V:data} = pvary[axes=('data',)] a" in jaxpr
assert "psum_invariant[axes=('data',)]" in jaxpr
program = train_step.lower(place_state(init_state()), place_batch(last_batch)).compile().as_text()
assert program.count(" all-reduce(") == 1

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/10_three_ways_side_by_side.py](solutions/10_three_ways_side_by_side.py).
#
# 1. `fixed_gradient` (5 minutes, find the mistake): `broken_gradient` is correct under pmap. But here it runs inside a
#    `shard_map` with the check on, over the axis `"data"`. Return the gradient of the mean over all devices, which all
#    have the same number of examples.
#    <details><summary>Hint</summary>There are several correct ways. One that you haven't seen divides the sum that
#    <code>jax.grad</code> returns.</details>
# 2. `make_step` (10 minutes): the whole lesson. You get `loss(params, x, y)`, the mean over the examples it's given,
#    and an Optax optimizer. Return a compiled step `(params, optimizer_state, x, y) -> (params, optimizer_state, loss)`
#    with `shard_map` over the axis `"data"` of `mesh`. `x` and `y` are global arrays without padding, cut into equal
#    parts, and all results are replicated.
#    <details><summary>Hint</summary>Start from your program. One spec, <code>PartitionSpec()</code>, stands for
#    a whole pytree.</details>

# %%
from pmapdp.lessons.checks import check


def broken_gradient(loss, w, x):
    return lax.pmean(jax.grad(loss)(w, x), "data")


def fixed_gradient(loss, w, x):
    """The gradient of the mean loss over all devices, for any tree `w` and `x` `[b, ...]`."""
    ...  # your code: 1 or 2 lines


def make_step(loss, optimizer, mesh):
    """A compiled step: (params, optimizer_state, x, y) to (params, optimizer_state, loss)."""
    ...  # your code: 6 to 9 lines


for exercise in (fixed_gradient, make_step):
    check("10_three_ways_side_by_side", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - `shard_map` takes jit's arrays and runs pmap's step.
# - With the check on, `jax.grad` inside a `shard_map` already sums the gradient of a replicated weight over the
#   devices. Cast first, and average gradients and count, as under pmap.
# - The check finds a forgotten all-reduce before anything runs. Without it, compare one update with one device's.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `train_step`, with `pcast` | `train_step`, with `check_vma=False` | [steps/shard_map.py](../pmapdp/steps/shard_map.py) |
# | `place_state`, `place_batch`, `eval_step` | the same names | [steps/shard_map.py](../pmapdp/steps/shard_map.py) |
# | `jax.grad`, `optimizer.update` | `gradient_sums`, `update`, for all four steps | [steps/shared.py](../pmapdp/steps/shared.py) |
#
# To read on: JAX's pages on [shard_map](https://docs.jax.dev/en/latest/201/shard-map.html) and on
# [the new pmap](https://docs.jax.dev/en/latest/migrate_pmap.html). Next:
# [11 Use explicit sharding](11_explicit_sharding.ipynb), or [12 Port a pmap program](12_port_a_pmap_program.ipynb), if
# you have one.

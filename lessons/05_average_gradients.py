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
# # 05. Average gradients
#
# Your program can test a network on eight devices, but it still trains on one. In this lesson you'll change nine lines,
# two of them inside the training step, and all eight devices train the same network. Then you'll break the program in
# three ways. None of them raises an error, and most of them print numbers that you'd believe, so it's better to meet
# them here first.
#
# **You will** train on eight devices with `jax.pmap`, show that one device gets the same result, and recognize an
# all-reduce that's missing or wrong. 33 minutes, 48 with exercises. You need
# [03 Train with Flax and Optax](03_train_with_flax_and_optax.ipynb) and
# [04 Map over devices](04_map_over_devices.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_05

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## Four examples, two devices
#
# Let's do it by hand first. The model is one number `w`, it predicts `w * x`, and the loss of an example is
# `(w * x - y)² / 2`. At `w = 0` the gradient of an example is simply `-x * y`, so you can check everything in your
# head. Our four examples have the gradients -2, -2, -5 and -7.
#
# Now device 0 gets the first two examples, and device 1 gets the last two.
#
# **Predict:** what mean gradient does each device find? And what's the mean of the two?


# %% tags=["prediction"]
def squared_loss(w, x, y):
    return jnp.mean((w * x - y) ** 2) / 2


x, y = np.array([1.0, 2, 1, 1]), np.array([2.0, 1, 5, 7])
xs, ys = x.reshape(2, 2), y.reshape(2, 2)  # [devices, examples on each]

one_device = jax.grad(squared_loss)(0.0, x, y)
local = jax.pmap(jax.grad(squared_loss), in_axes=(None, 0, 0))(0.0, xs, ys)
print("one device:", one_device, "| two devices:", local, "| their mean:", local.mean())

# %% [markdown]
# <details><summary>Answer</summary>
#
# Device 0 finds -2, device 1 finds -6, and their mean is -4. One device with all four examples finds -4, too.
#
# </details>
#
# That's all there is to data parallelism, as long as every device has the same number of examples. Each device averages
# its gradient with everyone else's, so they all make the same update, the one for the whole batch. That keeps the
# copies of the model equal, so you never have to send the model again.
#
# Inside a mapped function, "average with everyone else" is one line:
#
# ```python
# gradients = lax.pmean(gradients, "data")
# ```
#
# This is an **all-reduce**: all devices arrive at this line, and all of them leave it with the same average. `"data"`
# is the name of the axis that `pmap` splits, and you choose it with `axis_name="data"`. The mesh axis has the same
# name, but `pmap` doesn't use it.
#
# If you've used PyTorch's `DistributedDataParallel` (DDP), it did this for you, hidden in `loss.backward()`. In JAX
# it's a line in your own step, so you can see it, move it, and also leave it out by accident.
#
# ## Three examples, two devices
#
# Now take the last example away. Device 0 still has two examples, with the gradients -2 and -2, but device 1 has only
# one, with -5.
#
# **Predict:** what's the mean of the two means now, and what should it be?


# %% tags=["prediction"]
def mean_of_means(total, count):
    return lax.pmean(total / count, "data")


def mean_of_sums(total, count):
    total, count = lax.pmean((total, count), "data")
    return total / count  # divide once, after the all-reduce


totals, counts = np.array([-4.0, -5.0]), np.array([2.0, 1.0])  # of the two devices
for average in (mean_of_means, mean_of_sums):
    print(average.__name__, jax.pmap(average, axis_name="data")(totals, counts))

# %% [markdown]
# <details><summary>Answer</summary>
#
# The mean of the three gradients is -3. But the mean of the two means is (-2 - 5) / 2 = -3.5, because device 1's only
# example counts as much as both examples of device 0. The second function is correct.
#
# </details>
#
# What we want is the total gradient divided by the total count. Sum both over the devices and divide. You may also
# average both: N cancels. The rule is to **all-reduce gradients and counts, and divide once.** We write `lax.pmean`,
# because you'll find it in most pmap programs.
#
# The last batch of an epoch is hardly ever full, so we pad it, and some devices get more padding than others. That's
# why our program works with sums and counts, and not with means. DDP doesn't protect you here: if each process takes
# the mean loss of its own examples, and some processes have fewer than others, DDP gives you -3.5, too.
#
# Now it's your turn. The picture below shows one update, and you write the all-reduce in its middle.
#
# 1. `global_gradient` (5 minutes): the gradient of the mean loss over all *valid* examples of all devices. The model is
#    linear: it predicts `x @ w`. Each device has its own `x` `[b, D]`, `y` `[b]` and `weights` `[b]`, which are 0 for
#    padding, and a device may hold nothing but padding. Start from the sum over this device's examples, which is
#    `x.T @ (weights * (x @ w - y))`. <details><summary>Hint</summary>As in <code>mean_of_sums</code>: divide after the
#    all-reduce.</details>

# %%
from pmapdp.lessons.checks import check


def global_gradient(w, x, y, weights):
    """Gradient `[D]` over all devices' examples; `weights` `[b]` are 0 for padding."""
    ...  # your code: 3 or 4 lines


lesson_05.data_parallel_step()
verdict = check("05_average_gradients", "global_gradient", global_gradient)

# %% [markdown]
# ## The program so far
#
# You start from [program/04_evaluate.py](program/04_evaluate.py), which already has a mesh, places the state replicated
# and the batch split, and tests with `pmap`. Here's everything that changes:
#
# include the difference of 04_evaluate.py and 05_pmap.py
#
# - `train_step` gets its all-reduce: gradients and count are averaged over the devices, and then divided. The host adds
#   up the metrics of many batches, so for them we need true sums, which only `psum` gives.
# - `jax.pmap` takes the place of `jax.jit`, and compiles the function as `jit` did. The axis `None` means: every
#   device has all of it. That's the state, on its way in and out. The batch is split along its first axis, `0`.
# - The state is placed once, before the loop, and stays on the devices. So `copies` is gone.
#
# Compared with lesson 03's program for one device, only fifteen lines are new.
#
# ## Your program, on eight devices
#
# Take the whole program home: copy the cell into an empty file, put in your own data and network, and it trains on all
# the GPUs or TPUs of your machine. If you have none, it simulates eight devices. Until you've read lessons 07 on batch
# norm and 08 on dropout, stick to layers that treat each example alone and draw no random numbers.
#
# B must be divisible by the number of devices, because each of them gets an equal part. With B = 128 on three GPUs, the
# `x.reshape` in `place_batch` stops with `ValueError: cannot reshape array of size 8192 into shape (3,newaxis,64)`,
# which doesn't mention B. For a clearer message, put this line below the mesh in your copy:
#
# ```python
# assert B % mesh.size == 0, f"B = {B} is not divisible by {mesh.size} devices"
# ```
#
# **Predict:** on one device, the program ended with a training loss of 0.25 and an accuracy of 0.87 on the test set. Do
# eight devices end with the same numbers, to the last digit?

# %% tags=["prediction", "take-home"]
# include program/05_pmap.py

# %% [markdown]
# <details><summary>Answer</summary>
#
# With the same numbers, but not to the last digit. The additions come in a different order, and each addition rounds.
# Every device sums the gradients of its own 16 examples, and then the eight sums are added. When the notebooks were
# built, the test accuracy after epoch 1 was 0.8430 in lesson 03's and 0.8440 in this one: rounding decided one example
# in 1,000. In float64 the numbers that the two programs print agree to about fourteen digits, and a test in this
# repository checks that they do.
#
# </details>
#
# ## Proof: update by update
#
# Four printed digits are a weak proof, so let's compare every update with lesson 03's step, `one_device_step`. We run
# both from the same start on the 40 batches of an epoch. The last batch has only eight examples, so device 0 gets all
# of them, and the other seven devices get nothing but padding. SGD replaces Adam, because Adam divides by the size of
# the gradient, and magnifies rounding where gradients are tiny.

# %%
epoch_batches = list(batches(*train_data, seed=0))
split_batches = [place_batch(batch) for batch in epoch_batches]


def one_device_step(state, batch):
    model, optimizer_state = state
    gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
    gradients = jax.tree.map(lambda g: g / sums["count"], gradients)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return (optax.apply_updates(model, updates), optimizer_state), sums


def train(step, state, data):
    """The state after the batches of `data`, and the metric sums of every update."""
    all_sums = []
    for batch in data:
        state, sums = step(state, batch)
        all_sums.append(sums)
    return state, all_sums


def batch_losses(all_sums):
    """The mean loss of each batch."""
    return np.array([sums["loss"] / sums["count"] for sums in jax.device_get(all_sums)])


def distance(model, other):
    """The length of the difference of two models, each seen as one long vector."""
    model, other = jax.device_get((model, other))
    return optax.tree.norm(jax.tree.map(np.subtract, model, other))


def copies(array):
    """Each device's copy of a replicated array: [N, ...]."""
    return np.stack([shard.data for shard in array.addressable_shards])


optimizer = optax.sgd(0.1)
jax.clear_caches()  # the compiled steps have read the old optimizer: trap 2 of lesson 02
(model_1, _), sums_1 = train(jax.jit(one_device_step), init_state(), epoch_batches)
(model_8, _), sums_8 = train(train_step, place_state(init_state()), split_batches)
print(f"the model moved by {distance(model_1, init_state()[0]):.3f}")
print(f"one device and eight differ by {distance(model_1, model_8):.0e}")
lesson_05.loss_curves(batch_losses(sums_1), batch_losses(sums_8))
assert distance(model_1, model_8) < 1e-5
assert all((copies(array) == copies(array)[0]).all() for array in jax.tree.leaves(model_8))

# %% [markdown]
# One epoch moved the model by 3, and the two results differ by less than a millionth. float32 has seven digits, so
# that's about as good as it gets. The eight copies of the model are equal to the last bit.
#
# ## Mistake 1: a mean of means
#
# Now break the all-reduce. `make_step` is your program's step, but you choose the function that averages and divides.
# `run` is your program's loop, for two epochs.


# %%
def make_step(average):
    def step(state, batch):
        model, optimizer_state = state
        gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
        gradients = average(gradients, sums["count"])
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
        return (optax.apply_updates(model, updates), optimizer_state), lax.psum(sums, "data")

    return jax.pmap(step, "data", in_axes=(None, 0), out_axes=None)


def run(step):
    """Two epochs of the program: print its lines, and return each batch's loss, [epoch, batch]."""
    state, losses = place_state(init_state()), []
    for epoch in range(2):
        data = [place_batch(batch) for batch in batches(*train_data, seed=epoch)]
        state, train_sums = train(step, state, data)
        test_sums = [eval_step(state, place_batch(batch)) for batch in batches(*test_data, seed=0)]
        print(f"epoch {epoch}: {report(train_sums)} | test: {report(test_sums)}")
        losses.append(batch_losses(train_sums + test_sums))
    return np.array(losses)


def divide(gradients, count):
    return jax.tree.map(lambda g: g / count, gradients)


optimizer = optax.adam(3e-3)  # as in the program
jax.clear_caches()

# %% [markdown]
# You've already met the first mistake, with three examples: it divides before the all-reduce. In each epoch 39 batches
# are full, and for them a mean of means is correct. In the 40th, seven devices have a count of 0.
#
# **Predict:** which of the printed numbers is the first that looks wrong?


# %% tags=["prediction"]
def mean_of_mean_gradients(gradients, count):
    return lax.pmean(divide(gradients, count), "data")


mean_losses = run(make_step(mean_of_mean_gradients))

# %% [markdown]
# <details><summary>Answer</summary>
#
# The test loss of epoch 0, which is NaN, and so is every loss after it. Seven devices divide 0 by 0 in the last batch,
# and `pmean` hands their NaN to everyone. The training loss of epoch 0 is still fine, because a step computes its loss
# before it updates the model.
#
# </details>
#
# You might be tempted to "repair" the NaN by dividing by at least 1. Then nothing looks wrong any more. But in the last
# batch seven devices now have the gradient 0, so the mean of the eight is an eighth of what it should be.
#
# ## Mistake 2: averaging the loss
#
# The gradient of the mean loss is what you want, so why not average the loss, and let `jax.grad` do the rest? Take the
# four examples on two devices again. Device 0's own gradient is -2, device 1's is -6, and you want -4.
#
# **Predict:** what do the two devices get?


# %% tags=["prediction"]
def averaged_loss(w, x, y):
    return lax.pmean(squared_loss(w, x, y), "data")


averaged = jax.pmap(jax.value_and_grad(averaged_loss), "data", in_axes=(None, 0, 0))(0.0, xs, ys)
print("loss:", averaged[0], "| gradient:", averaged[1])

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both get the correct loss, but their gradients are -2 and -6, each device's own. Under `pmap`, `jax.grad`
# differentiates the sum of what *all* devices return, with respect to this device's own copy of `w`. Each device
# returns (L0 + L1) / 2, so the sum of the returns is L0 + L1. Only L0 uses device 0's copy of `w`.
#
# </details>
#
# So average the gradients, not the loss. Otherwise you train as if the `pmean` weren't there. Here's what that does to
# your program on the 39 full batches, where each device now divides its own gradient by its own count. In the picture
# below, each curve is the first weight of the output layer on one device, and the dashed curve is the same weight with
# `pmean`.


# %%
def local_mean_gradients(gradients, count):
    return divide(gradients, count)


local_step = make_step(local_mean_gradients)
wrong_state, right_state = place_state(init_state()), place_state(init_state())
wrong_curves, right_curves = [], []
for batch in split_batches[:-1]:
    wrong_state, _ = local_step(wrong_state, batch)
    right_state, _ = train_step(right_state, batch)
    wrong_curves.append(copies(wrong_state[0].output.kernel[...])[:, 0, 0])
    right_curves.append(copies(right_state[0].output.kernel[...])[:, 0, 0])
kernel = wrong_state[0].output.kernel[...]
print("JAX says that all copies are equal:", kernel.is_fully_replicated)
lesson_05.drift(np.array(wrong_curves), np.array(right_curves))

# %% [markdown]
# You now have eight models, each trained on an eighth of the data, and your checkpoint would save just one of them. JAX
# can't warn you, because with `out_axes=None` you promised that all devices return the same thing, and
# `is_fully_replicated` only repeats your promise: it reads the sharding, not the numbers. All you'd see is a loss that
# falls more slowly, until a ragged batch turns seven of the eight models into NaN.
#
# ## Mistake 3: a sum for a mean
#
# The third step sums the gradients with `psum`, but still averages the count. That makes the gradient eight times too
# large on every device, so there's no drift and no NaN.
#
# **Predict:** compare the two runs below. Will you see the mistake in the losses?


# %% tags=["prediction"]
def sum_over_mean_count(gradients, count):
    return divide(lax.psum(gradients, "data"), lax.pmean(count, "data"))


correct_losses = run(train_step)
sum_losses = run(make_step(sum_over_mean_count))

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. Adam divides the gradient by its own size, so the factor cancels almost completely. You'd only notice it if you
# clip the gradients, or if a gradient is nearly 0. With SGD, the factor acts like a learning rate that's eight times
# too high, or 64 times on 64 devices. So don't judge by the loss.
#
# </details>
#
# ## One test for all three
#
# How could you have known? **Compare with one device, with SGD and with a padded batch**, as we did for the correct
# step. Here's that comparison for all of them, after the 39 full batches and after all 40.
#
# **Predict:** which steps pass as long as every batch is full?


# %% tags=["prediction"]
def repaired_mean_of_means(gradients, count):  # no 0 / 0
    return lax.pmean(divide(gradients, jnp.maximum(count, 1)), "data")


steps = {"the program's step": train_step, "1. mean of means": make_step(mean_of_mean_gradients)}
steps["1. repaired"] = make_step(repaired_mean_of_means)
steps["2. no all-reduce"] = local_step
steps["3. sum for a mean"] = make_step(sum_over_mean_count)
optimizer = optax.sgd(0.1)
jax.clear_caches()
distances = {name: [] for name in steps}
for count in (39, 40):
    (expected, _), _ = train(jax.jit(one_device_step), init_state(), epoch_batches[:count])
    for name, step in steps.items():
        (model, _), _ = train(step, place_state(init_state()), split_batches[:count])
        distances[name].append(distance(model, expected))
for name, (full, padded) in distances.items():
    print(f"{name:18s} off by {full:.0e} after 39 batches, by {padded:.0e} after 40")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The program's step, and both means of means. Only the padded batch exposes the two means of means: one is NaN, and the
# other is off by 0.3, a tenth of the distance that the model has moved. The sum for a mean fails at once, because SGD
# doesn't hide the factor. `pmapdp.verify` makes this comparison for your own step, and says what differs.
#
# </details>
#
# If you forget the `psum` of the evaluation, `out_axes=None` returns what device 0 has, and the accuracy looks reasonable.
# Only the count tells you, with 128 test examples instead of 1,000, so print it once.

# %% tags=["proof"]
# The asserts behind the answers.
assert one_device == -4
assert local.tolist() == [-2, -6]
assert averaged[0].tolist() == [squared_loss(0.0, x, y)] * 2
assert averaged[1].tolist() == [-2, -6]
assert np.isfinite(mean_losses[0, :40]).all()  # training
assert np.isnan(mean_losses[0, 40:]).all()  # test
assert np.isnan(mean_losses[1]).all()
assert kernel.is_fully_replicated
assert np.unique(copies(kernel)[:, 0, 0]).size == 8
np.testing.assert_allclose(sum_losses, correct_losses, atol=1e-4)
optimizer = optax.adam(3e-3)
two_epochs = split_batches + [place_batch(batch) for batch in batches(*train_data, seed=1)]
_, repaired_sums = train(steps["1. repaired"], place_state(init_state()), two_epochs)
repaired_losses = batch_losses(repaired_sums).reshape(2, 40)
np.testing.assert_allclose(repaired_losses.mean(1), correct_losses[:, :40].mean(1), atol=0.03)
(local_model, _), local_sums = train(local_step, place_state(init_state()), split_batches)
assert batch_losses(local_sums).mean() > correct_losses[0, :40].mean() + 0.05
assert np.isnan(copies(local_model.output.kernel[...])[:, 0, 0]).sum() == 7
for name, passes in {
    "the program's step": (True, True),
    "1. mean of means": (True, False),
    "1. repaired": (True, False),
    "2. no all-reduce": (False, False),
    "3. sum for a mean": (False, False),
}.items():
    assert tuple(error < 1e-5 for error in distances[name]) == passes
assert np.isnan(distances["1. mean of means"][1])
assert 0.1 < distances["1. repaired"][1] < 1
forgetful_eval = jax.pmap(
    lambda state, batch: loss_sums(state[0], batch)[1], "data", in_axes=(None, 0), out_axes=None
)
test_totals = {}
for name, evaluation in (("with psum", eval_step), ("without psum", forgetful_eval)):
    test_sums = [evaluation(state, place_batch(batch)) for batch in batches(*test_data, seed=0)]
    totals = jax.tree.map(lambda *sums: float(sum(sums)), *jax.device_get(test_sums))
    test_totals[name] = totals
for name, *expected in (("with psum", 1_000, 0.35, 0.87), ("without psum", 128, 0.48, 0.84)):
    totals = test_totals[name]
    count = totals["count"]
    shown = (count, totals["loss"] / count, totals["correct"] / count)
    np.testing.assert_allclose(shown, expected, atol=0.006)

# %% [markdown]
# ## Which batch size do you set?
#
# B is the global batch, while with DDP you set the per-device batch. So you get the same result on 1, 2 or 8 devices,
# with the same learning rate. If you want B to grow with the devices, [lesson 21](21_choose_a_batch_size.ipynb) says
# how far, and what to do with the learning rate.
#
# ## Your step in pmapdp
#
# You can now read pmapdp's trainer, because you've written its step. Here are your lines beside pmapdp's:
#
# include 05_pmap.py beside steps/pmap.py
# jax.grad( | gradient_sums(
# lax.pmean( | lax.pmean(
# lax.psum(sums | lax.psum(sums
# train_step = | train_step =
#
# Read the file from top to bottom. `AXIS` is the name `"data"`, `task` holds what never changes, such as the optimizer,
# and `model_state` is what batch norm keeps (lesson 07). All four training steps differentiate and update in the same
# way, so your lines with `jax.grad` and `optimizer.update` are in [steps/shared.py](../pmapdp/steps/shared.py).
#
# ## Exercises
#
# Your functions run on each device, inside `pmap`, and the mapped axis is `"data"`. Solutions, with reasons:
# [solutions/05_average_gradients.py](solutions/05_average_gradients.py).
#
# 2. `step` (5 minutes): a whole update of the linear model, by SGD with learning rate 0.1. All devices have the same
#    number of examples, without padding. <details><summary>Hint</summary>The local mean gradient is
#    <code>x.T @ (x @ w - y) / len(y)</code>. Average it before you use it.</details>
# 3. `fixed_clipping` (5 minutes, find the mistake): `broken_clipping` should clip the gradient of the global batch to a
#    length of at most 1. It raises no error, all copies agree, and on one device it's correct. On several it isn't.
#    <details><summary>Hint</summary>Which gradient should have a length of at most 1?</details>

# %%
def broken_clipping(gradient):  # [D], the mean over this device's examples
    length = jnp.sqrt((gradient**2).sum())
    clipped = gradient / jnp.maximum(length, 1)
    return lax.pmean(clipped, "data")


def step(w, x, y):
    """Parameters `[D]` after one step on `[b, D]` and `[b]` of each device."""
    ...  # your code: 2 to 3 lines


def fixed_clipping(gradient):
    """The global batch's gradient `[D]`, with a length of at most 1."""
    ...  # your code: 2 to 3 lines


for exercise in (step, fixed_clipping):
    check("05_average_gradients", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Split the batch, compute gradients where the examples are, average them with one `lax.pmean`, and every device makes
#   the same update, the one that a single device would make on the whole batch.
# - Average sums and counts, and divide once, because means of means are wrong as soon as a batch is ragged.
# - A wrong all-reduce raises no error. So compare updates with one device's, with SGD and with a padded batch.
#
# The rest of your program is in pmapdp, too:
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `loss_sums` | `cross_entropy`, which returns `MetricSums` | [loss.py](../pmapdp/loss.py) |
# | `state`, a pair | `TrainState` | [state.py](../pmapdp/state.py) |
# | `batches` | `Batches` | [data/batches.py](../pmapdp/data/batches.py) |
# | the loop | `train` | [train.py](../pmapdp/train.py) |
#
# To read on: [PyTorch's notes on DDP](https://docs.pytorch.org/docs/stable/notes/ddp.html). Next comes what your new
# line costs: [06 Communicate between devices](06_communicate_between_devices.ipynb).

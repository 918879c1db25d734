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
# # 21. Choose a batch size
#
# On one device, your program trains with 16 examples an update. On 64 devices it can take 1,024. Will it then need 64
# times fewer updates? For the network of this course it's about ten times fewer. You can predict the order of magnitude
# before you rent a single device, because the answer is hidden in gradients that your program computes anyway.
#
# **You will** measure the gradient noise scale, estimate the largest batch that still pays off, and change the learning
# rate with the batch. 18 minutes, 43 with exercises.
#
# **This lesson is a branch** that no later lesson needs. You need [10 Three ways side by
# side](10_three_ways_side_by_side.ipynb). How fast more devices are is the question of [18 Measure and
# predict](18_measure_and_predict.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import numpy as np

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_21
from pmapdp.lessons.programs import noise

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## Signal and noise
#
# Start with a network of a single weight. For half of the examples its gradient is 3, and for the other half -1. The
# gradient that you're after is the mean over all of them, G = 1. But if you draw one example, the square of its
# gradient is 9 or 1, so 5 on average. Of these, 1 is signal. The other 4 are the variance of one example's
# gradient: noise.
#
# The mean of B examples keeps the whole signal, but only a B-th of the noise. Call the signal's squared length |G|², and
# the variance of one example's gradient S, summed over all weights. Then the squared length of a batch's gradient is on
# average
#
# ```
# |G|² + S / B
# ```
#
# With four examples that's 1 + 4/4 = 2, and signal and noise are equal. With a hundred it's 1.04. The batch size at which
# the two are equal, S / |G|², is called the **gradient noise scale** ([McCandlish et al.,
# 2018](https://arxiv.org/abs/1812.06162)). For the single weight it's 4.
#
# Nobody tells you S and G of your own network. But if you have the squared length for two batch sizes, you have two
# equations. With data parallelism, each update gives you both: a device's own gradient, and the average of all.
#
# **Predict:** the squared length is 9 on average for a device's 16 examples, and 2 for the 128 examples of eight devices.
# How large is the noise scale?

# %% tags=["prediction"]
S = (9 - 2) / (1 / 16 - 1 / 128)
squared_G = 2 - S / 128
print(f"S = {S:.0f}, |G|² = {squared_G:.0f}, noise scale {S / squared_G:.0f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 128. Subtract |G|² + S / 128 = 2 from |G|² + S / 16 = 9: S / 16 - S / 128 = 7, which makes S = 128. In the batch of 128,
# S / B is then 1, which leaves 1 for |G|².
#
# </details>
#
# ## The program so far, and what changes
#
# You start from [program/10_shard_map.py](program/10_shard_map.py), because its step already holds both gradients, before
# and after `lax.pmean`:
#
# include the difference of 10_shard_map.py and 21_noise.py
#
# - `own` is the mean over the device's b examples, and `gradients` the mean over all B.
# - `noise_scale` solves the two equations, with means over an epoch. A single update is so noisy that its |G|² may even
#   come out negative.
# - On one device the two gradients are the same, so the program needs at least two. If you have a single GPU, let the CPU
#   simulate eight.
#
# **Predict:** does the noise scale rise or fall from epoch to epoch?

# %% tags=["prediction", "take-home"]
# include program/21_noise.py

# %% [markdown]
# <details><summary>Answer</summary>
#
# It rises, from 145 in the first epoch to thousands in the last. At the beginning everything is wrong, and all examples
# pull the network in much the same direction. Later the network knows what they have in common, so G gets short, and each
# device is left with the peculiarities of its own 16 examples.
#
# </details>
#
# Is the estimate any good? Train for two epochs again, and measure S and |G|² directly three times, from the gradients of
# all 5,000 examples one by one. The curve is the estimate from 20 updates at a time.

# %%
state, lengths, direct = place_state(init_state()), [], {}
for epoch in range(2):
    direct[len(lengths)] = noise.measure_directly(loss_sums, state[0], *train_data)
    for batch in list(batches(*train_data, seed=epoch))[:-1]:
        state, sums = train_step(state, place_batch(batch))
        lengths.append(sums)
direct[len(lengths)] = noise.measure_directly(loss_sums, state[0], *train_data)
smoothed = [noise_scale(lengths[k - 20 : k]) for k in range(20, len(lengths) + 1)]
both_epochs = noise_scale(lengths)
lesson_21.noise_scale(smoothed, {n: S / G for n, (S, G) in direct.items()}, both_epochs)

# %% [markdown]
# The middle dot lies on the curve. The outer two show what averages over 20 updates miss: measured directly, the noise
# scale grows from 60 to 2,205.
#
# For a plan you need one number. The dashed line, 193, is the mean S of both epochs over their mean |G|², in which the
# long gradients of the first updates count most. The plain mean of the curve is more than twice as large, so take the 193
# as an order of magnitude.
#
# ## How many updates?
#
# McCandlish et al. derive from the same picture how many updates a batch size needs: some minimum, and more if the
# gradients are noisy. Their noise scale also has the second derivatives of the loss in it, and S / |G|² is a simple
# stand-in.
#
# ```
# updates = minimum x (1 + noise scale / B)
# ```
#
# The next cell tries it on real training runs, to a test loss of 0.5, about where two epochs had brought your program.
# The formula is for SGD, so these runs use SGD, although the 193 comes from a run with Adam. Each of five batch sizes
# gets nine learning rates and three seeds, and the best rate's mean over the seeds counts. Every update gets fresh
# examples. The curve in the picture starts at the first dot, and then follows the formula with 193.
#
# **Predict:** your batch is as large as the noise scale already. If the formula holds, by what factor can the updates
# still fall, with as many devices as you like?

# %% tags=["prediction"]
model = init_state()[0]
measured, best_rates, test_losses = {}, {}, {}
for size, most in {16: 160, 32: 100, 64: 60, 256: 30, 1024: 20}.items():
    data = noise.draw_batches(make_clouds, size, most)
    losses = noise.sgd_losses(loss_sums, model, data, test_data, noise.RATES)
    measured[size], best_rates[size] = noise.fewest_updates(losses, target=0.5)
    test_losses[size] = losses
    print(f"B = {size}: {measured[size]:.0f} updates, learning rate {best_rates[size]:.2f}")
lesson_21.updates_by_batch_size(measured, both_epochs)

# %% [markdown]
# <details><summary>Answer</summary>
#
# By a factor of 2. At B = noise scale you need 1 + 1 times the minimum, and no batch needs less than the minimum.
#
# </details>
#
# The runs agree with the formula to within a quarter. From 16 to 1,024 examples it promises 11 times fewer updates, and
# here it's 10. Some of that is luck, because the noise scale grows while you train: to a test loss of 0.7 the same runs
# need 7 times fewer updates, and to 0.45 it's 15.
#
# Fewer updates aren't free, because you compute B examples for each:
#
# | B | updates | examples |
# | --- | --- | --- |
# | 16 | 13 times the minimum | 1.1 times the minimum |
# | 193, the noise scale | 2 times | 2 times |
# | 1,024 | 1.2 times | 6.3 times |
#
# Well below the noise scale, more devices buy you time at nearly no cost. Well above it, you pay for examples that tell
# you hardly anything.
#
# ## The mistake: the batch grows, and the learning rate doesn't fit
#
# In these runs the best rate grew with the batch, because a less noisy gradient deserves a larger step. By how much should
# you raise yours from 16 examples to 1,024? Three answers are common: not at all, 64 times by the *linear rule* of [Goyal
# et al., 2017](https://arxiv.org/abs/1706.02677), or 8 times by the square root. The paper on the noise scale has a
# fourth: 11 times here, the factor by which the updates fall.
#
# **Predict:** which of the four diverges?

# %% tags=["prediction"]
factors = {"the same": 1, "8 times, the root": 8, "11 times": 11, "64 times": 64}
rates = best_rates[16] * np.array(list(factors.values()))
data = noise.draw_batches(make_clouds, 1024, 50)
curves = noise.sgd_losses(loss_sums, model, data, test_data, rates).mean(1)
lesson_21.learning_rates(dict(zip(factors, np.asarray(curves), strict=True)))

# %% [markdown]
# <details><summary>Answer</summary>
#
# 64 times the rate. Less noise allows larger steps only until the noise is small beside the signal, and 1,024 is far above
# the noise scale. Even with a warm-up over 40 updates, the loss ends as NaN.
#
# </details>
#
# Eight times and eleven times are both fine here. The old rate is the mistake that you don't see: its curve is smooth, but
# it needs about five times as many updates.
#
# All of this holds for SGD. With Adam, the square root is the usual advice ([Malladi et al.,
# 2022](https://arxiv.org/abs/2205.10287)).

# %% tags=["proof"]
# The asserts behind all answers.
assert 140 < noise_scale(lengths[:39]) < 150
assert noise_scale(train_sums[:-1]) > 2000
assert any(noise_scale([sums]) < 0 for sums in lengths)
by_direct = {n: S / G for n, (S, G) in direct.items()}
assert (round(by_direct[0]), round(by_direct[78])) == (60, 2205)
assert abs(smoothed[29] / by_direct[39] - 1) < 0.3
assert round(both_epochs) == 193
assert 2 < np.mean(smoothed) / both_epochs < 3
large = [sums["large"] for sums in lengths]
assert np.mean(large[:39]) > 3 * np.mean(large[39:])
S_0, G_0 = direct[0]  # compared with estimates for the same parameters
fixed = [
    train_step(place_state(init_state()), place_batch(batch))[1]
    for batch in list(batches(*train_data, seed=9))[:-1]
]
np.testing.assert_allclose(noise_scale(fixed), S_0 / G_0, rtol=0.1)
minimum = measured[16] / (1 + both_epochs / 16)
for size, updates in measured.items():
    np.testing.assert_allclose(minimum * (1 + both_epochs / size), updates, rtol=0.25)
assert 10.5 < (1 + both_epochs / 16) / (1 + both_epochs / 1024) < 11.5
assert 9.5 < measured[16] / measured[1024] < 10.5
for target, times_fewer in {0.7: 7, 0.45: 15}.items():
    few, many = (noise.fewest_updates(test_losses[B], target)[0] for B in (16, 1024))
    assert round(few / many) == times_fewer
same, root, eleven, linear = np.asarray(curves)
assert max(root[9:].max(), eleven[9:].max()) < 0.5
assert np.argmax(same < 0.5) > 35
assert not np.any(linear < 2)
long_data = noise.draw_batches(make_clouds, 1024, 80)
warmed = noise.sgd_losses(loss_sums, model, long_data, test_data, rates[-1:], warm_up=40)
assert np.isnan(warmed[..., -1]).all()

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/21_choose_a_batch_size.py](solutions/21_choose_a_batch_size.py).
#
# 1. `fixed_noise_scale` (5 minutes, find the mistake): `small` and `large` are arrays with the squared lengths over b and
#    over B examples, one number for each update. `broken_noise_scale` should estimate one noise scale from all of them.
#    Sometimes its result is negative.
#    <details><summary>Hint</summary>What does a quotient do when |G|² is nearly 0 in one update?</details>
# 2. `squared_lengths` (10 minutes): inside `pmap`, on the axis "data", `gradients` is a pytree with the mean gradient of
#    this device's examples. Return two numbers, the same on every device: the mean of the devices' squared lengths, and
#    the squared length of the devices' mean.
#    <details><summary>Hint</summary>One <code>lax.pmean</code> for each, but in a different place.
#    <code>optax.tree.norm(tree, squared=True)</code> adds up all leaves.</details>
# 3. `best_device_count` (10 minutes): each device takes `b` examples, and `seconds` is a dictionary: `seconds[N]` is the
#    time of an update on N devices, communication included. Return the N with which training to the same loss takes the
#    least time.
#    <details><summary>Hint</summary>You don't need to know the minimum number of updates.</details>


# %%
from pmapdp.lessons.checks import check


def broken_noise_scale(small, large, b, B):
    S = (small - large) / (1 / b - 1 / B)
    return np.mean(S / (large - S / B))


def fixed_noise_scale(small, large, b, B):
    """One noise scale from all updates."""
    ...  # your code: 3 or 4 lines


def squared_lengths(gradients):
    """The mean squared length of the devices' gradients, and the squared length of their mean."""
    ...  # your code: 3 lines


def best_device_count(noise_scale, b, seconds):
    """The N that trains in the least time."""
    ...  # your code: 1 to 4 lines


for exercise in (fixed_noise_scale, squared_lengths, best_device_count):
    check("21_choose_a_batch_size", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - A batch's gradient has the squared length |G|² + S / B on average. With data parallelism, each update gives you two
#   batch sizes, and so |G|² and S.
# - The noise scale S / |G|² is a good batch size. Well below it, twice the batch needs half the updates, and well above
#   it, nearly as many as before.
# - Raise the learning rate with the batch, but by less once the batch is far above the noise scale.
#
# pmapdp doesn't measure the noise scale, so this program is yours to keep. With pmap its new lines are the same.
#
# To read on: [Slower or worse?](../docs/slower_or_worse.md), if a large batch lets you down.

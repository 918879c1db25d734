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
# before you rent a single device, because the answer is hidden in gradients that your program computes anyway, and
# eight simulated devices are enough to see it. At the end you compare your prediction with 135 training runs.
#
# **You will** measure the gradient noise scale, estimate the largest batch that still pays off, and change the learning
# rate with the batch without losing the run. 23 minutes, 48 with exercises.
#
# **This lesson is a branch.** You need [10 Three ways side by side](10_three_ways_side_by_side.ipynb), and no later lesson
# needs this one. Take it when you're about to buy or rent more devices. The best moment is after
# [18 Measure and predict](18_measure_and_predict.ipynb), which asks how fast they are.

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
# With four examples that's 1 + 4/4 = 2, and signal and noise are equal. With a hundred it's 1.04, so the last ninety have
# told you little. The batch size at which the two are equal, S / |G|², is called the **gradient noise scale**
# ([McCandlish et al., 2018](https://arxiv.org/abs/1812.06162)). For the single weight it's 4.
#
# Nobody tells you G and S of your own network. But if you have the squared length for two batch sizes, you have two
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
# 128. The two squared lengths are |G|² + S / 16 = 9 and |G|² + S / 128 = 2. Subtract them: S / 16 - S / 128 = 7, which makes
# S = 128. In the batch of 128, S / B is then 1, which leaves 1 for |G|².
#
# </details>
#
# ## The program so far, and what changes
#
# You start from [program/10_shard_map.py](program/10_shard_map.py), because its step already holds both gradients, before
# and after `lax.pmean`. Everything that changes:
#
# include the difference of 10_shard_map.py and 21_noise.py
#
# - `own` is the mean over the device's b examples, and `gradients` the mean over all B. The devices all-reduce one more
#   number.
# - One device has only one of the two gradients, so the program stops and names the way out.
# - `noise_scale` solves the two equations, with means over many updates. A single update is so noisy that its |G|² may even
#   come out negative.
# - The last batch of an epoch is padded. It has fewer than B examples, so it's left out.

# %% tags=["take-home"]
# include program/21_noise.py

# %% [markdown]
# The losses are lesson 10's, because the update itself hasn't changed. Now look at the gradients behind the noise
# scale. The next cell takes one batch, before the first update and after the last one, and compares each device's
# gradient with G, the mean gradient of all 5,000 examples. The cosine of the angle between the two is 1 if they point
# in the same direction, and 0 if they stand at a right angle.
#
# **Predict:** do the eight gradients point more towards G at the beginning or at the end?

# %% tags=["prediction"]
first_batch = next(batches(*train_data, seed=0))
models = {"before the first update": init_state()[0], "after the last update": state[0]}
cosines = {
    name: noise.cosines(loss_sums, model, first_batch, train_data) for name, model in models.items()
}
lesson_21.directions(cosines)

# %% [markdown]
# <details><summary>Answer</summary>
#
# At the beginning. Everything is still wrong then, and all examples pull the network in much the same direction. Later
# the network knows what they have in common, and each device is left with the peculiarities of its own 16 examples. Even
# the average of all eight, the diamond, is then mostly noise.
#
# </details>
#
# So the noise scale grows while you train. Is the estimate any good, though? Train once more for two epochs, and measure S
# and |G|² directly three times, from the gradients of all 5,000 examples one by one. The curve is the estimate from
# 20 updates at a time.

# %%
state, lengths, direct = place_state(init_state()), [], {}
for epoch in range(2):
    direct[len(lengths)] = noise.measure_directly(loss_sums, state[0], *train_data)
    for batch in list(batches(*train_data, seed=epoch))[:-1]:
        state, sums = train_step(state, place_batch(batch))
        lengths.append(sums)
direct[len(lengths)] = noise.measure_directly(loss_sums, state[0], *train_data)
smoothed = [noise_scale(lengths[k - 20 : k]) for k in range(20, len(lengths) + 1)]
so_far = noise_scale(lengths)
lesson_21.noise_scale(smoothed, {n: S / G for n, (S, G, _) in direct.items()}, so_far)

# %% [markdown]
# The middle dot lies on the curve, but the outer two show what the curve misses. Measured directly, the noise scale grows
# 37-fold in these two epochs, from 60 to 2,205. Each value of the curve averages 20 updates, so it grows only about
# tenfold.
#
# For a plan you still want one number, and it depends on how you average. Three ways to do it:

# %%
estimates = {
    "all updates of the first epoch": noise_scale(lengths[:39]),
    "all updates of both epochs": so_far,
    "the plain mean of the curve": np.mean(smoothed),
}
for name, estimate in estimates.items():
    print(f"{name}: {estimate:.0f}")

# %% [markdown]
# An update with a long gradient counts more in the first two estimates, and the early gradients are long. In the third,
# every update counts the same. None of the three is the correct one, so you know your noise scale only to within a factor
# of two or three. This lesson goes on with 193, the dashed line, as one choice among them.
#
# ## How many updates?
#
# McCandlish et al. derive from the same picture how many updates a batch size needs: at least some minimum, and more if
# the gradients are noisy. Their exact noise scale weighs S and |G|² with the Hessian, the second derivatives of the loss.
# S / |G|² is their simple proxy for it, which needs only gradients.
#
# ```
# updates = minimum x (1 + noise scale / B)
# ```
#
# At B = noise scale you need twice the minimum. Far below, doubling B halves the updates. Far above, doubling B changes
# hardly anything.
#
# The next cell tries the formula on real training runs. They train to a test loss of 0.5, about where two epochs had
# brought your program. The paper's formula is for SGD, so the runs use SGD, although the 193 comes from your program's
# run with Adam. Each of five batch sizes gets nine learning rates and three seeds, and what counts is the best rate's
# mean over the seeds. Every update gets fresh examples, as if the data never ended. The curve in the picture isn't
# fitted to the dots: it starts at the first one, and then follows the formula with 193.
#
# **Predict:** take 190 for the noise scale. By what factor do the updates fall from B = 16 to B = 190, if the formula
# holds? And by what factor from B = 190 to infinity?

# %% tags=["prediction"]
model = init_state()[0]
measured, best_rates, test_losses = {}, {}, {}
for batch_size, most in {16: 160, 32: 100, 64: 60, 256: 30, 1024: 20}.items():
    data = noise.draw_batches(make_clouds, batch_size, most)
    losses = noise.sgd_losses(loss_sums, model, data, test_data, noise.RATES)
    measured[batch_size], best_rates[batch_size] = noise.fewest_updates(losses, target=0.5)
    test_losses[batch_size] = losses
for batch_size, updates in measured.items():
    print(f"B = {batch_size}: {updates:.0f} updates, learning rate {best_rates[batch_size]:.2f}")
lesson_21.updates_by_batch_size(measured, so_far)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1 + 190 / 16 is about 13, and 1 + 190 / 190 is 2, so going from 16 to 190 saves a factor of 6.5. Going on forever saves
# only another factor of 2.
#
# The runs agree with the formula to within a quarter. From 16 to 1,024 examples it promises 11 times fewer updates, and
# here it's 10. The dotted line is what you hope for when you rent 64 devices.
#
# </details>
#
# How much of this agreement is luck? Put the two other estimates into the formula, too. And because the noise scale grows
# while you train, it must matter where you stop. Ask the same runs for a loss that's easier to reach, and for a harder one:

# %%
predicted = {}
for name, estimate in estimates.items():
    predicted[name] = (1 + estimate / 16) / (1 + estimate / 1024)
    print(f"with {estimate:.0f}, the formula says {predicted[name]:.1f} times fewer updates")

factors_of = {}
for target in (0.7, 0.5, 0.45):
    few, _ = noise.fewest_updates(test_losses[16], target)
    many, _ = noise.fewest_updates(test_losses[1024], target)
    factors_of[target] = few / many
    print(f"to a test loss of {target}: {few / many:.1f} times fewer updates")

# %% [markdown]
# Some of it is luck: the plain mean of the curve would have promised twice the factor that you measured.
#
# An easy target needs only the early updates, with their small noise scale, so large batches help less. For a hard
# target they help more. All three factors are within a factor of two of the formula's 11, and far from 64. Take the
# formula as an order of magnitude: it tells you that 64 devices won't save you 64 times, and about how many they will.
#
# Fewer updates aren't free. You compute B examples for each, so look at both sides of the bill:
#
# | B | updates | examples |
# | --- | --- | --- |
# | 16 | 13 times the minimum | 1.1 times the minimum |
# | 193, the noise scale | 2 times | 2 times |
# | 1,024 | 1.2 times | 6.3 times |
#
# Well below the noise scale, more devices buy you time at nearly no cost. Well above it, you pay for examples that tell
# you hardly anything. So the noise scale is a good batch size, and a few times as much is for people in a hurry.
#
# ## The mistake: the batch grows, and the learning rate doesn't fit
#
# Look at the rates that the cell printed. The best one grew with the batch, because a less noisy gradient deserves a
# larger step. By how much should you change yours, if you go from 16 examples to 1,024? Three answers are common: not at
# all, as many times as the batch (the *linear rule* of [Goyal et al., 2017](https://arxiv.org/abs/1706.02677), who add a
# warm-up), or by the square root. The paper on the noise scale has a fourth: by the same factor by which the updates
# fall, here 11.
#
# **Predict:** which of the four diverges, and which is needlessly slow?

# %% tags=["prediction"]
factors = {"the same": 1, "8 times, the root": 8, "11 times": 11, "64 times": 64}
rates = best_rates[16] * np.array(list(factors.values()))
data = noise.draw_batches(make_clouds, 1024, 50)
curves = noise.sgd_losses(loss_sums, model, data, test_data, rates).mean(1)
lesson_21.learning_rates(dict(zip(factors, np.asarray(curves), strict=True)))

# %% [markdown]
# <details><summary>Answer</summary>
#
# With 64 times the rate, the loss only grows. Goyal's warm-up, which raises the rate in equal steps over the first
# updates, doesn't save it: with 20 or with 40 such updates, the loss still ends as NaN. The linear rule holds below the
# noise scale, where the updates also fall linearly, and 1,024 is far above. The same rate as before is needlessly slow.
# It gives a smooth curve, so nothing looks wrong, but it needs about five times as many updates as the other two. Eight
# times and eleven times are both fine here.
#
# </details>
#
# All of this holds for SGD with a tuned rate. With Adam, which divides by the size of the gradients, the square root is
# the usual advice ([Malladi et al., 2022](https://arxiv.org/abs/2205.10287)). Take every such number as the middle of a
# range to try.

# %% tags=["proof"]
# The asserts behind all answers.
assert (S, squared_G) == (128, 1)
before, after = (np.asarray(each) for each in cosines.values())
assert before[:8].mean() > 0.4 > 0.2 > after[:8].mean()
assert after[8] ** 2 < 0.1  # the share of the average's squared length that points towards G
by_direct = {n: S / G for n, (S, G, _) in direct.items()}
assert abs(smoothed[29] / by_direct[39] - 1) < 0.3  # over the 20 updates around the middle
assert 8 < smoothed[-1] / smoothed[0] < 13
assert any(noise_scale([sums]) < 0 for sums in lengths)
assert by_direct[78] / by_direct[0] > 9
assert round(so_far) == 193
early, late = (np.mean([sums["large"] for sums in part]) for part in np.split(np.array(lengths), 2))
assert early > 3 * late
S_0, G_0, _ = direct[0]  # compared with estimates for parameters that don't move either
fixed = [
    train_step(place_state(init_state()), place_batch(batch))[1]
    for batch in list(batches(*train_data, seed=9))[:-1]
]
np.testing.assert_allclose(noise_scale(fixed), S_0 / G_0, rtol=0.1)
minimum = measured[16] / (1 + so_far / 16)
for batch_size, updates in measured.items():
    np.testing.assert_allclose(minimum * (1 + so_far / batch_size), updates, rtol=0.25)
assert 10.5 < (1 + so_far / 16) / (1 + so_far / 1024) < 11.5
assert 9.5 < measured[16] / measured[1024] < 10.5
assert factors_of[0.7] < factors_of[0.5] < factors_of[0.45]
assert all(11 / 2 < factor < 11 * 2 for factor in factors_of.values())
assert (round(by_direct[0]), round(by_direct[78])) == (60, 2205)
same, root, eleven, linear = np.asarray(curves)
assert max(root[9:].max(), eleven[9:].max()) < 0.5
assert np.argmax(same < 0.5) > 35
assert not np.any(linear < 2)
long_data = noise.draw_batches(make_clouds, 1024, 80)
for warm_up in (20, 40):
    warmed = noise.sgd_losses(loss_sums, model, long_data, test_data, rates[-1:], warm_up)
    assert np.isnan(warmed[..., -1]).all()
np.testing.assert_allclose(list(estimates.values()), [145, 193, 498], rtol=0.02)
np.testing.assert_allclose(list(predicted.values()), [8.8, 11.0, 21.6], atol=0.3)

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/21_choose_a_batch_size.py](solutions/21_choose_a_batch_size.py).
#
# 1. `fixed_noise_scale` (5 minutes, find the mistake): `small` and `large` are arrays with the squared lengths over b and
#    over B examples, one number for each update. `broken_noise_scale` should estimate one noise scale from all of them.
#    Sometimes its result is negative. <details><summary>Hint</summary>What does a quotient do when |G|² is nearly
#    0 in one update?</details>
# 2. `squared_lengths` (10 minutes): you're inside `pmap`, on the axis "data". `gradients` is a pytree with the mean
#    gradient of this device's examples. Return two numbers, the same on every device: the mean of the devices' squared
#    lengths, and the squared length of the devices' mean. <details><summary>Hint</summary>One
#    <code>lax.pmean</code> for each, but in a different place. <code>optax.tree.norm(tree, squared=True)</code> adds up
#    all leaves.</details>
# 3. `best_device_count` (10 minutes): each device takes `b` examples, and `seconds` is a dictionary: `seconds[N]` is the
#    time of an update on N devices, communication included. Return the N with which training to the same loss takes the
#    least time.
#    <details><summary>Hint</summary>The time is the number of updates times the seconds of one. You don't need
#    the minimum.</details>


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
# - A batch's gradient has the squared length |G|² + S / B on average. Two batch sizes give you |G|² and S, and with
#   data parallelism, each update gives you both. The estimate is good to a factor of two or three.
# - Well below the noise scale S / |G|², twice the batch needs half the updates. Well above it, nearly as many as before.
# - If you change the batch, change the learning rate with it, by the root of the batch's factor or by the factor by which
#   the updates fall. Try both, because a rate that's too high diverges.
#
# pmapdp doesn't measure the noise scale, so the lines of this lesson are yours to keep. **With pmap** they're the same,
# because your step has its own gradient before `lax.pmean`. Whether 64 devices also compute 64 times as many examples a
# second is the question of [18 Measure and predict](18_measure_and_predict.ipynb), and exercise 3 joins the two.
#
# To read on: [McCandlish et al.](https://arxiv.org/abs/1812.06162), who measure the noise scale from MNIST to Dota, and
# [Slower or worse?](../docs/slower_or_worse.md) if a large batch lets you down.

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
# Suppose that each device takes 16 examples. With one device your batch has 16, and with 64 devices it has 1,024. Will
# 64 times fewer updates be enough then? For the network of this course, it's only about ten times fewer. You can predict
# that roughly before you rent a single device, because the answer is hidden in gradients that your program computes anyway.
#
# **You will** measure the gradient noise scale, estimate the largest batch that still pays off, choose a number of devices,
# and change the learning rate with the batch. 21 minutes, 46 with exercises.
#
# **This lesson is a branch** that no later lesson needs. You need [10 Three ways side by
# side](10_three_ways_side_by_side.ipynb), and it helps to have read [18 Measure and predict](18_measure_and_predict.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import numpy as np
import optax

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_21
from pmapdp.lessons.programs import noise

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## Signal and noise
#
# Start with a network of a single weight. For half of the examples its gradient is 3, and for the other half -1. What
# you're after is the mean over all of them, G = 1. But if you draw one example, the square of its gradient is 9 or 1, so 5
# on average. Of this, 1 is signal. The other 4 are the variance of one example's gradient: noise.
#
# If you take the mean of B examples, the signal stays, but much of the noise cancels, because the variance of a mean is a
# B-th of one example's. Call the signal's squared length |G|², and the variance of one example's gradient S, summed over
# all weights. Then the squared length of a batch's gradient is on average
#
# ```
# |G|² + S / B
# ```
#
# For the single weight that's 5 with one example, 2 with four, and 1.04 with a hundred. Check it:

# %%
random = np.random.default_rng(0)
for size in (1, 4, 100):
    gradients = random.choice([3, -1], (100_000, size)).mean(1)
    print(f"B = {size}: {np.mean(gradients**2):.2f}")

# %% [markdown]
# With four examples, 1 is signal and 1 is noise. The batch size at which both are equal, S / |G|², is called the
# **gradient noise scale** ([McCandlish et al., 2018](https://arxiv.org/abs/1812.06162)).
#
# Nobody tells you S and G of your own network. But the squared lengths for two batch sizes give you two equations, and with
# data parallelism you get both in each update: one from a device's own gradient, and one from the average of all devices.
#
# **Predict:** the squared length is 9 on average for a device's 16 examples, and 2 for the 128 examples of eight devices.
# How large is the noise scale?

# %% tags=["prediction"]
S = (9 - 2) / (1 / 16 - 1 / 128)
squared_G = 2 - S / 128
print(f"noise scale {S / squared_G:.0f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 128. Subtract |G|² + S / 128 = 2 from |G|² + S / 16 = 9: S / 16 - S / 128 = 7, so S = 128. Then S / 128 is 1, which
# leaves 1 for |G|².
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
# - `noise_scale` solves the two equations, with means over many updates, because from a single one |G|² may even come out
#   negative.
# - After each epoch the program prints two noise scales: one of the epoch, and one of all epochs so far.
#
# **Predict:** does the epoch's own noise scale rise or fall from epoch to epoch?

# %% tags=["prediction", "take-home"]
# include program/21_noise.py

# %% [markdown]
# <details><summary>Answer</summary>
#
# It rises, from 145 in the first epoch to thousands. At the beginning everything is wrong, and all examples pull in much
# the same direction. Later the network has learned what they have in common. So G gets short, and what's left is whatever
# is special about each device's 16 examples.
#
# </details>
#
# Is the estimate any good? Train for two epochs again, and measure S and |G|² directly three times, from the gradients of
# all 5,000 examples one by one. The curve in the picture is estimated from 20 updates at a time.

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
by_direct = {n: S / G for n, (S, G) in direct.items()}
lesson_21.noise_scale(smoothed, by_direct, both_epochs)

# %% [markdown]
# The middle dot lies on the curve. At the ends, at 60 and 2,205, an average over 20 updates can't follow the fast change.
#
# For a plan you need one number: "so far", at the loss you want to reach. After two epochs, at a loss of about 0.5, it's
# 193, the dashed line. It grows slowly, because the first updates have the longest gradients and count most. The last
# epoch's own 8,498 exceeds your whole data set, so late in training no batch you can make is too large.
#
# ## How many updates?
#
# From S and G, McCandlish et al. also derive how many updates a batch size needs: some minimum, and more if the gradients
# are noisy. Their exact noise scale also has the curvature of the loss in it, but usually S / |G|² is near it.
#
# ```
# updates = minimum x (1 + noise scale / B)
# ```
#
# Try it on real training runs, with SGD, for which it was derived. Your 193 was measured with Adam, so it's only a stand-in
# for SGD's own number. It belongs to a loss of 0.5, so that's our target. Each of five batch sizes gets nine learning rates
# and three seeds, and the best rate's mean over the seeds counts ([noise.py](../pmapdp/lessons/programs/noise.py)). In the
# picture, both curves are the formula, anchored at the first dot: one for the updates, one for the examples in them.
#
# **Predict:** suppose that your batch already equals the noise scale. With unlimited devices, how many times fewer
# updates would be enough?

# %% tags=["prediction"]
model = init_state()[0]
measured, best_rates, test_losses = {}, {}, {}
for size, most in {16: 160, 32: 100, 64: 60, 256: 30, 1024: 20}.items():
    data = noise.draw_batches(make_clouds, size, most)
    losses = noise.train(loss_sums, model, data, test_data, noise.RATES)
    measured[size], best_rates[size] = noise.fewest_updates(losses, noise.RATES, target=0.5)
    test_losses[size] = losses
    print(f"B = {size}: {measured[size]:.0f} updates, learning rate {best_rates[size]:.2f}")
lesson_21.updates_and_examples(measured, both_epochs)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two times fewer. At B = noise scale you need 1 + 1 times the minimum, and no batch needs less than the minimum.
#
# </details>
#
# With three seeds, the runs agree with the formula to within a quarter. From 16 to 1,024 examples it promises 11 times fewer
# updates, and here it's 10. The noise scale grows while you train, so down to a loss of 0.7 it's only 7 times fewer, and
# down to 0.45 it's 15 times.
#
# And fewer updates aren't free, because each of them takes B examples: updates are your time, and examples your money. On
# the left of the picture, twice the devices need nearly half the updates. On the right, nearly every further example is
# wasted. At the noise scale, both curves are at twice their minimum.
#
# ## The mistake: the batch grows, and the learning rate doesn't fit
#
# In these runs the best rate grew with the batch, because a less noisy gradient deserves a larger step. If you go from 16
# examples to 1,024, by how much should you raise yours? Three answers are common: not at all, 8 times by the square root,
# or 64 times by the *linear rule*, with which [Goyal et al., 2017](https://arxiv.org/abs/1706.02677) trained on up to 8,192
# images at a time. The paper on the noise scale has a fourth:
#
# ```
# rate = largest / (1 + noise scale / B)
# ```
#
# From 16 to 32 examples, the formula's rate grows 1.9 times, which is nearly the linear rule. From 16 to 1,024 it grows only
# 11 times. In your runs the best rate grew 8 times, from 0.14 to 1.13, which happens to be the root. But each rate you tried
# is 1.4 times the one before, so 11 times was the very next one.
#
# **Predict:** which of the four diverges?

# %% tags=["prediction"]
factors = {"the same": 1, "8 times, the root": 8, "11 times": 11, "64 times": 64}
rates = best_rates[16] * np.array(list(factors.values()))
data = noise.draw_batches(make_clouds, 1024, 50)
curves = noise.train(loss_sums, model, data, test_data, rates).mean(1)
lesson_21.learning_rates(dict(zip(factors, np.asarray(curves), strict=True)))

# %% [markdown]
# <details><summary>Answer</summary>
#
# 64 times. Noise isn't to blame, because the run diverges with the gradient of all 5,000 examples, too. The loss is
# *curved*, like a valley. If a step is too long, it ends higher up on the other side, where the gradient is longer, and so
# is the next step. Even after a warm-up the loss ends as NaN.
#
# </details>
#
# Eight and eleven times are fine here. The mistake that you don't see is to keep the old rate: its curve is smooth, but it
# needs five times the updates.
#
# ## And with Adam?
#
# The formulas are for SGD, but your program trains with Adam. So try that, too:

# %%
adam = {}
for size, most in {16: 120, 64: 50, 1024: 20}.items():
    fresh = noise.draw_batches(make_clouds, size, most)
    losses = noise.train(loss_sums, model, fresh, test_data, noise.ADAM_RATES, optax.adam)
    adam[size], rate = noise.fewest_updates(losses, noise.ADAM_RATES, target=0.5)
    print(f"B = {size}: {adam[size]:.0f} updates, learning rate {rate:.3f}")

# %% [markdown]
# Again the formula with 193 holds to within a quarter. But the best rate grows only 3 times, where the usual advice for
# Adam, the square root ([Malladi et al., 2022](https://arxiv.org/abs/2205.10287)), says 8.
#
# ## From the number to a decision
#
# How many devices would you rent for this network, with 16 examples on each?
#
# 1. **Read the noise scale** "so far" when the loss is about what you want. Here it's 193.
# 2. **Divide it by a device's examples**: 193 / 16 is 12. Up to 12 devices pay off, so rent a machine with 8 of them, for a
#    batch of 128.
# 3. **Compare with an offer** of 64 devices. By the formula, 8 devices need 2.5 times the minimum of updates, and 64 need
#    1.2 times. So 64 devices finish at most 2.1 times sooner, and you pay for 3.8 times the examples.
# 4. **Raise the learning rate**, with SGD by the formula above, and with Adam at most by the square root.
# 5. **Check it.** Train with both batches down to one loss. If the larger one doesn't save the updates that you predicted,
#    try other rates, and then go back to the smaller one.
#
# On more devices an update also takes longer. Exercise 3 adds that.

# %% tags=["proof"]
# The asserts behind all answers.
assert noise_scale(train_sums[:-1]) > 2000
assert [round(noise_scale(full_batches[:n])) for n in (39, 78, 195)] == [145, 193, 303]
assert any(noise_scale([sums]) < 0 for sums in lengths)
assert (round(by_direct[0]), round(by_direct[78])) == (60, 2205)
assert abs(smoothed[29] / by_direct[39] - 1) < 0.3
assert round(both_epochs) == 193
large = [sums["large"] for sums in lengths]
assert np.mean(large[:39]) > 3 * np.mean(large[39:])
S_0, G_0 = direct[0]  # compared with estimates for the same parameters
fixed = [
    train_step(place_state(init_state()), place_batch(batch))[1]
    for batch in list(batches(*train_data, seed=9))[:-1]
]
np.testing.assert_allclose(noise_scale(fixed), S_0 / G_0, rtol=0.1)
for updates in (measured, adam):
    minimum = updates[16] / (1 + both_epochs / 16)
    predicted = [minimum * (1 + both_epochs / size) for size in updates]
    np.testing.assert_allclose(predicted, list(updates.values()), rtol=0.25)
from_8_to_64 = (1 + both_epochs / 128) / (1 + both_epochs / 1024)  # devices of 16 examples
assert (round(from_8_to_64, 1), round(8 / from_8_to_64, 1)) == (2.1, 3.8)
assert 10.5 < (1 + both_epochs / 16) / (1 + both_epochs / 1024) < 11.5
assert round((1 + both_epochs / 16) / (1 + both_epochs / 32), 1) == 1.9
assert 9.5 < measured[16] / measured[1024] < 10.5
assert round(best_rates[1024] / best_rates[16], 3) == 8
assert round(noise.RATES[1] / noise.RATES[0], 1) == 1.4
for target, times_fewer in {0.7: 7, 0.45: 15}.items():
    few, many = (noise.fewest_updates(test_losses[B], noise.RATES, target)[0] for B in (16, 1024))
    assert round(few / many) == times_fewer
same, root, eleven, linear = np.asarray(curves)
assert max(root[9:].max(), eleven[9:].max()) < 0.5
assert np.argmax(same < 0.5) > 35
assert not np.any(linear < 2)
warmed = noise.train(loss_sums, model, data, test_data, rates[-1:], warm_up=40)
assert np.isnan(warmed[..., -1]).all()
same_batch = [np.broadcast_to(x, (1, 50, *x.shape)) for x in train_data]
without_noise = noise.train(loss_sums, model, same_batch, test_data, rates[1:])
assert without_noise[0, 0, -1] < 0.5
assert np.isnan(without_noise[2, 0, -1])
assert 0.03 < rate < 0.035  # 0.011 with 16

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
# - A batch's gradient has the squared length |G|² + S / B on average. Data parallelism gives you two batch sizes in each
#   update, and so |G|² and S.
# - The noise scale S / |G|² is a good batch size. Well below it, twice the batch needs half the updates, and well above
#   it, nearly as many as before.
# - Raise the learning rate with the batch, but by less and less as you pass the noise scale.
#
# pmapdp doesn't measure the noise scale, so this program is yours to keep. With pmap its new lines are the same.
#
# To read on: [Slower or worse?](../docs/slower_or_worse.md), if a large batch lets you down.

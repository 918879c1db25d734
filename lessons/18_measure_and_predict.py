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
# # 18. Measure and predict
#
# Your program trains on one GPU, and somebody offers you 64. Should you take them? You'd like two answers before you pay:
# how many more examples a second would they compute, and how much more would your network learn from so many examples at
# once? You can find both without having the 64. The second answer is the one that most people forget, and at the end it
# decides.
#
# **You will** time a step without fooling yourself, predict the speed of many devices, see how wrong such a prediction can
# be, and measure how large a batch pays off. 25 minutes, 50 with exercises. You need
# [06 Communicate between devices](06_communicate_between_devices.ipynb),
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb), and for the last section
# [10 Three ways side by side](10_three_ways_side_by_side.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import timeit

import jax
import numpy as np
from jax import lax

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_18

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## What a clock sees
#
# Everything starts with the time of one step on one device. Put a clock around a call of a jitted function, and you can
# get three very different times. Which one would you publish?

# %%
lesson_18.three_durations()

# %% [markdown]
# The first call also traces and compiles. Later calls return before the result is there, because Python only *dispatches*
# the work, as PyTorch does on a GPU, and your step may then look a hundred times too fast. So warm up, wait for the result
# with `block_until_ready`, repeat, and report the median.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). Everything that changes, so that your program measures itself:
#
# include the difference of 09_jit.py and 18_measure.py
#
# - The loop times each epoch, and waits for the last update before it reads the clock.
# - `FLOPS` counts the floating-point operations of an update. A product of `[m, k]` and `[k, n]` takes 2 m k n of them,
#   and a layer takes three such products: one forward, one for the gradient of the weights, and one for the gradient of the
#   inputs, which the first layer doesn't need. Divide by the time and by the `PEAK` in your device's data sheet, and you
#   have the **model FLOPs utilization**, MFU. The 1e11 is only a round number for a CPU.
# - `describe` reads from the compiled step what each device computes and keeps. From the parameters it calculates how many
#   bytes are all-reduced, and how long that takes on a network that we assume: Ethernet of 10 Gbit/s, with 20
#   microseconds a message. Put your own network into `LATENCY` and `BANDWIDTH`.
#
# The compiler counts operations, too, in `cost_analysis()`. Beware of loops there: it counts the body of a `scan` once,
# however often it runs.
#
# **Predict:** the network has 2,410 parameters. Besides their gradients, three sums for the metrics are all-reduced. How
# many bytes is that on eight devices, and how many on 64?

# %% tags=["prediction", "take-home"]
# include program/18_measure.py

# %% [markdown]
# <details><summary>Answer</summary>
#
# 4 x (2,410 + 3) = 9,652 bytes, on any number of devices, because there's one gradient for each parameter.
#
# </details>
#
# Don't believe the milliseconds, because simulated devices share the cores of your machine. You can believe the counts.
#
# Is your one device busy at all? A **profile** shows what ran when. You record one with `jax.profiler.trace(folder)`, and
# open it in [ui.perfetto.dev](https://ui.perfetto.dev). Here's pmapdp's CNN on an H200, with jax 0.11.2.

# %%
lesson_18.trace_of_an_h200()

# %% [markdown]
# In each of the three updates the GPU computes for 0.12 ms, and for the other 1.4 ms it waits for Python, which the
# profiler slows down as well. Sixty-four GPUs would wait, too. So first make the batch larger, or put many updates into one call: your `train_step` takes a state and a
# batch and returns a state and sums, which is exactly the function that `lax.scan` wants. Here are ten updates in a call,
# and an epoch of them on one device.

# %%
step = train_step.__wrapped__  # the function before jit
one_update = jax.jit(step)
ten_updates = jax.jit(lambda state, batches: lax.scan(step, state, batches))
one_device = jax.devices()[0]
host_batches = list(batches(*train_data, seed=0))  # 40 batches
stacks = [jax.tree.map(lambda *x: np.stack(x), *host_batches[k : k + 10]) for k in range(0, 40, 10)]
singles, tens = jax.device_put((host_batches, stacks), one_device)


def train_epoch(update, epoch_batches):
    state = jax.device_put(init_state(), one_device)
    for batch in epoch_batches:
        state, _ = update(state, batch)
    return jax.block_until_ready(state)


calls = {"one update a call": (one_update, singles), "ten updates a call": (ten_updates, tens)}
for name, arguments in calls.items():
    train_epoch(*arguments)  # compiles
    seconds_of_9 = timeit.repeat("train_epoch(*arguments)", globals=globals(), number=1, repeat=9)
    # This compares two programs, so it takes the fastest of nine epochs.
    print(f"{name}: {1000 * min(seconds_of_9) / 40:.3f} ms an update")

# %% [markdown]
# The parameters come out the same. On the H200, without the profiler and with the data on the GPU, the CNN's update took
# 0.231 ms, and 0.113 ms with twenty of them in a call. What you
# pay is freedom: ten batches have to lie on the device beforehand, and you can save or stop only after ten updates.
#
# ## How much faster are 64?
#
# Now to the offer. In lesson 06's ring, each device sends 2 (N - 1) messages, each with an N-th of the n bytes. A message
# takes a fixed latency L, plus its bytes divided by the bandwidth W:
#
# ```
# seconds = 2 (N - 1) (L + n / (N W))
# ```
#
# With 4 devices, 4 MB, 1 microsecond and 1 GB/s, that's 6 messages of 1 MB: 6 ms and 6 microseconds. On 64 devices a ring
# needs 126 messages one after the other, and if they're small, nearly all the time is latency. That's why libraries like
# NCCL also know **trees**, in which a device sends about as many bytes in 2 log2(N) messages: 12 instead of 126.
#
# Does every step get longer by that time? Not if the devices compute while they send. The backward pass finds the last
# layer's gradient first, and this gradient can leave while the earlier layers are still being computed. PyTorch's
# `DistributedDataParallel` arranges such an **overlap** with its buckets. Under `jit` it depends on how many gradients XLA
# merges into one all-reduce.

# %%
lesson_18.overlap("one all-reduce", "an all-reduce for each layer")

# %% [markdown]
# Since you don't know how much will overlap, predict a **range**. At worst the step gets longer by the whole all-reduce. At
# best it gets longer only by what's left after the backward pass, which takes about two thirds of a step.
#
# **Predict:** say that an update with 128 examples takes 0.2 ms on one device. `describe` has printed how long a ring of
# 64 takes. How many times as many examples a second do 64 such devices compute in a ring, with 128 each?


# %% tags=["prediction"]
from pmapdp import scaling


def speedup_range(N, step, all_reduce):
    """N devices over one, from no overlap to full overlap."""
    left_over = max(0, all_reduce - 2 / 3 * step)
    return N * step / (step + all_reduce), N * step / (step + left_over)


all_reduce_ms, yours = {}, {}
for name, trees in {"ring": False, "trees": True}.items():
    network = scaling.Level(64, LATENCY, BANDWIDTH, trees)
    seconds = 2 * scaling.reduce_scatter(9652, 64, [network])  # the all-gather takes as long
    all_reduce_ms[name] = 1e3 * seconds
    yours[name] = speedup_range(64, 0.2, all_reduce_ms[name])
    low, high = yours[name]
    print(f"your network, {name} of {all_reduce_ms[name]:.3f} ms: {low:.1f} to {high:.1f} times")
resnet = speedup_range(64, 68.58, 1.63)  # ms on A100s with trees, from `python -m pmapdp.scaling`
print(f"ResNet-50, trees of 1.63 ms: {resnet[0]:.1f} to {resnet[1]:.1f} times")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Fewer than five: 64 x 0.2 / (0.2 + 2.5) is 4.7. Nearly all of the 2.5 ms is latency, 126 messages of 20 microseconds, and
# a backward pass of 0.13 ms can't hide it. Trees need a tenth of that time, so with them it's 28 to 40 times. ResNet-50
# computes hundreds of times longer, so 64 A100s lose at most 2.3 %.
#
# </details>
#
# The A100s have two networks, inside a node and between nodes, so [scaling.py](../pmapdp/scaling.py) calculates level by
# level. For your own model, call its `predict`, as [Speed](../docs/speed.md#predict-more-devices) shows.
#
# ## How wrong is it?
#
# Would you bet on these numbers? Hold them against runs that somebody made. [Goyal et
# al.](https://arxiv.org/abs/1706.02677) trained ResNet-50 on 8 P100 GPUs and on 256. [NVIDIA
# published](https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/Classification/ConvNets/resnet50v1.5) runs
# on one and on eight A100s, with 256 images on each. In mixed precision one A100 trained 2,470 images per second, so a step
# takes 104 ms, and the all-reduce of eight should take 0.65 ms.
#
# **Predict:** how much of its speed does each A100 lose at most, by this calculation? And do you believe it?

# %% tags=["prediction"]
# What's predicted without overlap and with full overlap, from the ms of a step in the smaller run
# and of the all-reduce, and what was found.
runs = {
    "256 P100 over 8": (*speedup_range(1, 232, 33), 0.9),
    "8 A100 over 1, TF32": (*speedup_range(1, 256 / 0.938, 0.65), 7248 / (8 * 938)),
    "8 A100 over 1, mixed": (*speedup_range(1, 256 / 2.470, 0.65), 16621 / (8 * 2470)),
}
lesson_18.predicted_against_found(runs)

# %% [markdown]
# <details><summary>Answer</summary>
#
# At most 0.6 %, because 0.65 ms of about 104 is no more. NVIDIA measured a loss of 16 %, and in TF32 3 % instead of 0.2 %.
# Both are far outside of the range. The 90 % of the P100s are inside, but so is anything from 88 to 100 %.
#
# </details>
#
# The calculation tells you whether *communication* can be a problem. It knows nothing of loading data, launching kernels,
# and waiting for the slowest device, so take its range as the best that you can get.
#
# ## How large a batch pays off?
#
# Suppose communication cost nothing. 64 devices with 128 examples each make a batch of 8,192. Is its gradient worth 64 times
# as much? A gradient is a signal with noise. Let |G|² be the squared length of the signal, and S the variance of one
# example's noise, summed over all parameters. A mean over B examples keeps S / B of the variance, so the squared length of
# a batch's gradient is |G|² + S / B on average.
#
# Once S / B is smaller than |G|², more examples hardly help. The two are equal at B = S / |G|², the **gradient noise
# scale**, which [McCandlish et al., 2018](https://arxiv.org/abs/1812.06162) call B_simple. To measure the noise scale you
# need two batch sizes, and data parallelism has both in every update: a device's own gradient, and the average.
#
# **Predict:** the squared length is 9 on average with a device's 16 examples, and 2 with all 128. How large is the noise
# scale?

# %% tags=["prediction"]
S = (9 - 2) / (1 / 16 - 1 / 128)
squared_G = 2 - S / 128
print(f"S = {S:.0f}, |G|² = {squared_G:.0f}, noise scale {S / squared_G:.0f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 128. The difference of 7 is S / 16 - S / 128 = 7 S / 128, so S is 128. And with 128 examples S / B is 1, which leaves 1
# for |G|².
#
# </details>
#
# In your program you get the two lengths from `shard_map`, which sees each device's own gradient:


# %%
@jax.jit
@jax.shard_map(mesh=mesh, in_specs=(replicated.spec, split.spec), out_specs=replicated.spec)
def noise_terms(model, batch):
    """S and |G|² from one batch."""
    b = B // mesh.size
    local = lax.pcast(model, "data", to="varying")  # or jax.grad adds up (lesson 10)
    own = jax.tree.map(lambda g: g / b, jax.grad(loss_sums, has_aux=True)(local, batch)[0])
    average = lax.pmean(own, "data")
    small = lax.pmean(optax.tree.norm(own, squared=True), "data")  # of b examples
    large = optax.tree.norm(average, squared=True)  # of B examples
    S = (small - large) / (1 / b - 1 / B)
    return S, large - S / B


# %% [markdown]
# Both numbers are noisy themselves. |G|² even comes out negative now and then, and more and more often as training goes
# on and the signal fades. So smooth both over many updates, divide *after* that, and stop before the noise drowns |G|². As a check, `measure_directly` computes the gradients of all 5,000 examples one by one.

# %%
from pmapdp.lessons.programs.noise import measure_directly

state, terms, direct = place_state(init_state()), [], {}
for epoch in range(2):
    direct[len(terms)] = measure_directly(loss_sums, state[0], *train_data)
    for batch in list(batches(*train_data, seed=epoch))[:-1]:  # the last one is padded
        terms.append(noise_terms(state[0], place_batch(batch)))
        state, _ = train_step(state, place_batch(batch))
direct[len(terms)] = measure_directly(loss_sums, state[0], *train_data)
smooth_S, smooth_G = (np.convolve(term, np.ones(20) / 20, "valid") for term in np.transpose(terms))
lesson_18.noise_scale(smooth_S / smooth_G, {n: S / G for n, (S, G) in direct.items()})

# %% tags=["proof"]
# The asserts behind all answers.
text = train_step.lower(state, place_batch(batch)).compile().as_text()
assert text.count(" all-reduce(") == 1
assert sum(leaf.size for leaf in jax.tree.leaves(state[0])) == 2410
singly, scanned = train_epoch(one_update, singles), train_epoch(ten_updates, tens)
for one, other in zip(jax.tree.leaves(singly), jax.tree.leaves(scanned), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
ring_ms = 2e3 * (64 - 1) * (LATENCY + 9652 / 64 / BANDWIDTH)  # the formula in the text
assert abs(all_reduce_ms["ring"] / ring_ms - 1) < 1e-9
assert round(ring_ms, 1) == 2.5
assert round(all_reduce_ms["trees"], 3) == 0.255
assert 4.6 < yours["ring"][0] < yours["ring"][1] < 5
assert 28 < yours["trees"][0] < yours["trees"][1] < 40
assert 62 < resnet[0] < resnet[1] == 64
share = scaling.RESNET_SHARES["float32"]
one, many = (
    scaling.predict(scaling.A100, N, 64, scaling.RESNET_PARAMETERS, scaling.RESNET_FLOPS, share)
    for N in (1, 64)
)
assert (round(1e3 * one.step, 2), round(1e3 * many.all_reduce, 2)) == (68.58, 1.63)
goyal, *nvidia = runs.values()
assert 0.87 < goyal[0] < goyal[2] < goyal[1] == 1
assert all(found < no_overlap - 0.03 for no_overlap, _, found in nvidia)
# Servers of 8 P100s with NVLink of 80 GB/s, which share a network card of 50 Gbit/s.
p100 = (
    scaling.Level(8, 1.9e-6, 80e9, trees=False),
    scaling.Level(64, 20e-6, 50e9 / 8 / 8, trees=False),
)
step_8 = 29 * 3600 / (90 * 1_281_167 / 256)  # 90 epochs took 29 hours, with 256 images a step
gradient_bytes = 4 * scaling.RESNET_PARAMETERS
scatter_8, scatter_256 = (scaling.reduce_scatter(gradient_bytes, N, p100) for N in (8, 256))
assert round(1000 * step_8) == 232
assert round(2000 * (scatter_256 - scatter_8)) == 33  # two reduce-scatters are an all-reduce
assert round(2000 * scaling.reduce_scatter(gradient_bytes, 8, scaling.A100.levels), 2) == 0.65
assert (S, squared_G) == (128, 1)
model = init_state()[0]  # the parameters don't move in this check
fixed = [noise_terms(model, place_batch(b)) for b in list(batches(*train_data, seed=9))[:-1]]
np.testing.assert_allclose(
    np.mean(fixed, 0), measure_directly(loss_sums, model, *train_data), rtol=0.1
)
measured = {n: S / G for n, (S, G) in direct.items()}
assert 50 < measured[0] < 70
assert 1000 < measured[78] < 4000
fewer_updates = (1 + 500 / 128) / (1 + 500 / 8192)
training_times = {
    name: [64 / speedup / fewer_updates for speedup in speedups] for name, speedups in yours.items()
}
assert 4.6 < fewer_updates < 4.7
assert 0.34 < training_times["trees"][1] < training_times["trees"][0] < 0.5
assert 2.7 < training_times["ring"][1] < training_times["ring"][0] < 3

# %% [markdown]
# The noise scale grows from 60 to about 2,000. As the network learns what the examples have in common, this common part of
# the gradient shrinks, and what's left is mostly noise. So a batch that's too large at the beginning may pay off later.
#
# ## Should you take them?
#
# By the same paper, a batch of B needs 1 + S / (|G|² B) times the minimum number of updates. Take 500, a noise scale from
# the middle of the picture: that's 4.9 times for B = 128, and 1.06 times for B = 8,192. (Our 5,000 examples would be too
# few for such a batch, so imagine a larger data set.) Your 64 devices would save nearly four of five updates, not 63
# of 64. Put both answers together:
#
# | | examples a second | updates needed | training time |
# | --- | --- | --- | --- |
# | one device, B = 128 | 1 | 1 | 1 |
# | 64 devices, B = 8,192, trees | 28 to 40 times | 1/4.6 | a third to a half |
# | 64 devices, B = 8,192, ring | 5 times | 1/4.6 | **three times as long** |
#
# For this network you'd pay for 64 devices and train two to three times as fast, or in a ring three times as slowly.
# ResNet-50 would lose only 2.3 % to communication, so there the noise scale alone decides. The formula holds for SGD with
# a tuned learning rate, so take its results as orders of magnitude.
#
# ## Exercises
#
# Solutions, with reasons: [solutions/18_measure_and_predict.py](solutions/18_measure_and_predict.py).
#
# 1. `fixed_timer` (5 minutes, find the mistakes): `broken_timer` should return how many seconds a call of the jitted
#    `function(x)` takes, until its result is there, and without compiling. `clock()` gives the time in seconds.
#    <details><summary>Hint</summary>There are two mistakes. The first picture shows both.</details>
# 2. `scan_flops` (10 minutes): how many operations does `lax.scan(layer, x, weights)` take, all rounds together?
#    `layer(x, w)` returns `(x, None)`. Let JAX count, to within 1 %. <details><summary>Hint</summary>The body counts
#    once. Count one layer and multiply, or let the compiler see all layers.</details>
# 3. `least_examples` (10 minutes): suppose a program overlaps its all-reduce with the backward pass. From how many examples
#    per device on is a ring all-reduce of `n` bytes over `N` devices no longer than the backward pass? An example takes
#    `seconds`, forward and backward, and the backward pass takes two thirds of that. Return a whole number, at least 1.
#    <details><summary>Hint</summary>Seconds of the ring over seconds of one example's backward pass, rounded
#    up. Try your answer with one device, too.</details>


# %%
from pmapdp.lessons.checks import check


def broken_timer(function, x, clock):
    start = clock()
    function(x)
    return clock() - start


def fixed_timer(function, x, clock):
    """Seconds of a call that doesn't compile, from its start until its result is there."""
    ...  # your code: 4 lines


def scan_flops(layer, x, weights):
    """Floating-point operations of the scan."""
    ...  # your code: 2 or 3 lines


def least_examples(n, N, latency, bandwidth, seconds):
    """Examples per device, a whole number."""
    ...  # your code: 2 lines


for exercise in (fixed_timer, scan_flops, least_examples):
    check("18_measure_and_predict", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Warm up, wait for the result, and don't time simulated devices.
# - Predict a range, from no overlap to full overlap, and take it as the best that you can get.
# - More examples a second isn't more learning. The noise scale, from the devices' own gradients, says how large a batch is
#   worth it.
#
# The calculation, with trees, is `predict` in [scaling.py](../pmapdp/scaling.py), and
# `python -m pmapdp.train --workdir runs/first --profile` records a profile. **With pmap** you have the device's own
# gradient anyway: take its squared length before your `pmean`, and again after it.
#
# To read on: JAX on [profiling](https://docs.jax.dev/en/latest/201/profiling.html), and the scaling book on
# [rooflines](https://jax-ml.github.io/scaling-book/roofline/). Next, all of the course in one program:
# [19 Train a small GPT](19_train_a_small_gpt.ipynb).

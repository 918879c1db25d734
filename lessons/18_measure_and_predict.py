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
# Your program trains on one GPU, and somebody offers you 64. How much faster would it be? Not 64 times, because the
# GPUs also have to communicate. But what's the best you could hope for? You can find out on the one you have: time a
# step, count what it would send, and calculate the rest. Two published runs then show how far off such a prediction can
# be.
#
# **You will** time a step without fooling yourself, predict the speed of 64 devices for a batch that grows and for one
# that doesn't, and say what to expect of real ones. 20 minutes, 45 with exercises. You need [06 Communicate between
# devices](06_communicate_between_devices.ipynb) and [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import numpy as np

from pmapdp import devices, scaling
from pmapdp.lessons.pictures import lesson_18

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## Two numbers
#
# Say that a step takes 3 ms on one device, and that 64 devices need 1 ms to sum their gradients. If each has a batch of
# its own, their step takes 4 ms, so each works at 3/4 of its speed, and together they're 64 x 3/4 = 48 times as fast as
# one.
#
# So you need two numbers, and the first is the time of *your* step. Put a clock around a call of a jitted function, and
# you can get three very different times. Which one would you publish?

# %%
lesson_18.three_durations()

# %% [markdown]
# The first call also traces and compiles. Later calls return before the result is there, because Python only
# *dispatches* the work, as PyTorch does on a GPU. If you don't wait, a step may look far too fast. So compile first,
# and wait with `block_until_ready`. And because a single call may be slow by accident, time many of them, and take
# the median. The **quartiles**, between which half of the times lie, show you how much they vary.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). Three functions are new:
#
# - `measure` returns the quartiles and the median of a step's time. For a step this small, a call takes Python longer
#   than the device computes, and more devices don't shorten the call. So `measure` puts ten steps into one call, with
#   `lax.scan`. That leaves out what the training loop needs as well, a call and a batch for each step.
# - `all_reduce_seconds` calculates the second number, the time to sum the gradients.
# - `speedup` puts the two together, as we did above. But devices may already sum the first gradients while the backward
#   pass works on the others, as in lesson 06. You don't know how much of the all-reduce will overlap, so you get two
#   limits. At worst, nothing overlaps. At best, the all-reduce hides behind the whole backward pass, for which we
#   assume two thirds of the step, and you pay only for the rest.
#
# include the difference of 09_jit.py and 18_measure.py

# %% tags=["take-home"]
# include program/18_measure.py

# %% [markdown]
# The first line has your step's time. If its quartiles are far apart, another program is probably using your cores. But
# a busy machine may also be slow all the time, so run the program several times and use the smallest median. From here
# on, everything starts from your median, `seconds`.
#
# ## How long does an all-reduce take?
#
# For the second number you know two algorithms from lesson 06. In the **ring**, each device sends many small pieces. In
# the **butterfly**, partners exchange everything, but only log2(N) times. A third one is **halving and doubling**:
# partners exchange half of their numbers, then a quarter, and so on, and gather the sums the same way back. Here's what
# one of eight devices sends. Each message costs a latency, which is grey, and then time for its bytes, which is blue.

# %%
lesson_18.three_all_reduces()

# %% [markdown]
# The butterfly is best for few bytes, and halving for many, so `all_reduce_seconds` takes the faster of the two. Your
# gradients and metric sums are only 9,652 bytes. For a message on Ethernet we assume a latency of 20 µs. That's a
# guess, and less than the 50 µs of lesson 06. In a ring, each of 64 devices sends 126 messages, one after the other.
#
# **Predict:** how long would that ring take: about 0.02, 0.2, or 2.5 ms?

# %% tags=["prediction"]
ring = 2 * (64 - 1) * (LATENCY + n / 64 / BANDWIDTH)
for name, all_reduce in {"ring": ring, "butterfly": all_reduce_seconds(n, 64)}.items():
    low, high = speedup(seconds, all_reduce, 64)
    print(f"{name:10s} {1e3 * all_reduce:.2f} ms, {low:.1f} to {high:.1f} times as fast")

# %% [markdown]
# <details><summary>Answer</summary>
#
# About 2.5 ms: 126 times 20 µs. The butterfly sends only 6 messages, which take 0.17 ms.
#
# </details>
#
# Before you believe the butterfly's speed-up, there are three catches:
#
# - XLA for CPUs merges your gradients into one all-reduce, so nothing overlaps. Expect the lower number.
# - Even the lower number is optimistic, because your communication library may not use this algorithm. NVIDIA's NCCL
#   [chooses between](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo) rings, trees, and
#   network switches that do the addition themselves. A tree sends the sums up to its root and back down, so it needs
#   about twice as many messages.
# - A slow step predicts a *better* speed-up: 15 for a step of 0.05 ms, but over 50 for 0.7 ms. So make the step fast
#   first.
#
# ## Keep your batch, or let it grow?
#
# "64 times as fast" can mean two things. Under **weak scaling** each device gets a batch like yours, as so far. Under
# **strong scaling** all 64 share your batch of 128, so each computes with 2 examples. At best, computing then takes a
# 64th of the time, but the all-reduce takes as long as before.
#
# The next cell compares your network with a larger one: a ResNet-50 on A100s, with 256 images in a batch. At the speed
# that NVIDIA publishes, its step takes 273 ms on one GPU. By [scaling.py](../pmapdp/scaling.py), which names its
# sources, 64 GPUs sum its 102 MB of gradients in 1.6 ms.
#
# **Predict:** your 64 devices share your batch of 128. If your step is short enough, they're slower than one device
# alone. How short must it be?

# %% tags=["prediction"]
RESNET_BYTES = 4 * 25_557_032  # its parameters in float32


def resnet_seconds(N):
    """An all-reduce of its gradients on N A100s."""
    return 2 * scaling.reduce_scatter(RESNET_BYTES, N, scaling.A100.levels)


def your_seconds(N):
    return all_reduce_seconds(n, N)


counts = [1, 2, 4, 8, 16, 32, 64]
steps = {"ResNet-50 on A100s": (256 / 938, resnet_seconds), "your network": (seconds, your_seconds)}
weak = {}
strong = {}
for name, (step, all_reduce) in steps.items():
    weak[name] = [speedup(step, all_reduce(N), N) for N in counts]
    strong[name] = [speedup(step / N, all_reduce(N), N) for N in counts]
lesson_18.efficiency_by_devices(counts, weak, strong)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Shorter than 0.17 ms. However many devices share the work, every update still needs an all-reduce of 0.17 ms.
#
# </details>
#
# Where a line is below 50 %, the all-reduce takes longer than the computing, so your devices mostly wait. For a
# ResNet-50 with a batch on each, 64 GPUs lose at most 0.6 %. If they share one batch, each computes for only 4.3 ms, on
# 4 images, so the 1.6 ms count. Without overlap they're 46 times as fast as one. That assumes that 4 images keep a GPU
# as busy as 256.
#
# So the offer is poor for your small network, and good for a ResNet-50, because its steps are long.
#
# ## How wrong is it?
#
# [NVIDIA](https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/Classification/ConvNets/resnet50v1.5)
# trained a ResNet-50 on one A100 and on eight of one machine, with 256 images on each. Their table calls this strong
# scaling, but with a batch on each it's weak.
#
# `scaling.py` calculates that eight A100s sum their gradients over NVLink in 0.65 ms. In TF32 a step takes 273 ms, so
# each should lose about 0.2 % of its speed. In mixed precision one A100 trains 2.6 times as fast, but its gradients are
# still in float32.
#
# **Predict:** in mixed precision, should the A100s lose less than 0.2 %, as much, or more?

# %% tags=["prediction"]
runs = {  # each one's part of the ideal speed: without overlap, with full overlap, and as found
    "8 A100s, TF32": (*speedup(256 / 938, resnet_seconds(8), 1), 7248 / (8 * 938)),
    "8 A100s, mixed precision": (*speedup(256 / 2470, resnet_seconds(8), 1), 16621 / (8 * 2470)),
}
lesson_18.predicted_against_found(runs)

# %% [markdown]
# <details><summary>Answer</summary>
#
# More, 0.6 %. The all-reduce still takes 0.65 ms, but the step now takes only 104 ms.
#
# </details>
#
# In TF32 the calculation is 3 % too high, but in mixed precision it's 18 %. On eight GPUs a step takes 10 ms longer in
# TF32, and 20 ms in mixed precision, though both send the same bytes. A likely cause is the data loader, because the
# host decodes real images, and eight GPUs want 16,621 of them a second. But only a profile of these runs could prove
# it.
#
# ## What to expect of real devices
#
# The calculation knows nothing about loading data, launching kernels, or waiting for the slowest device, so its number
# is a limit. If even the limit is poor, no tuning helps. If it's good, expect less.
#
# If your one GPU already waits for its host, all 64 would wait, too. A **profile** shows you that first. Record one
# with `jax.profiler.trace(folder)`, and open it in [ui.perfetto.dev](https://ui.perfetto.dev). Here's pmapdp's CNN on
# an H200, with jax 0.11.2.

# %%
lesson_18.trace_of_an_h200()

# %% [markdown]
# In each update the GPU computes for 0.12 ms, and then waits for the host. Without the profiler, which slows the host
# down, an update with 64 images took 1.1 ms, at 58,000 images a second ([Speed](../docs/speed.md#on-a-gpu)). So the GPU
# waits about nine tenths of the time.
#
# The cure is to put more work into a call. With 4,096 images an update took only twice as long, so the CNN trained on
# thirty times as many images a second. Or put ten updates into a call, as `measure` does.

# %% tags=["proof"]
# The asserts behind all answers.
from pmapdp.collectives import collectives

host_batch = next(batches(*train_data, seed=0))
program = train_step.lower(place_state(init_state()), place_batch(host_batch)).compile()
assert [(row.kind, row.bytes) for row in collectives(program.as_text())] == [("all-reduce", n)]
assert n == 9652
assert 0 < lower <= seconds <= upper
network = scaling.Level(64, LATENCY, BANDWIDTH)
assert abs(all_reduce_seconds(n, 64) / (6 * (LATENCY + n / BANDWIDTH)) - 1) < 1e-9  # 6 rounds
for N in (8, 64):
    half = scaling.reduce_scatter(1e6, N, [network])  # the all-gather takes as long
    assert abs(all_reduce_seconds(1e6, N) / (2 * half) - 1) < 1e-9
    assert all_reduce_seconds(n, N) < 2 * scaling.reduce_scatter(n, N, [network])
half_ring = scaling.reduce_scatter(n, 64, [network._replace(trees=False)])
assert abs(ring / (2 * half_ring) - 1) < 1e-9
assert [round(1e3 * all_reduce, 2) for all_reduce in (ring, your_seconds(64))] == [2.54, 0.17]
assert 126 * LATENCY / ring > 0.99
assert round(speedup(5e-5, your_seconds(64), 64)[0]) == 15
assert 50 < speedup(7e-4, your_seconds(64), 64)[0] < 55
shared_low, shared_high = strong["your network"][-1]
assert shared_low <= shared_high < seconds / your_seconds(64)
resnet, resnet_shared = weak["ResNet-50 on A100s"], strong["ResNet-50 on A100s"]
assert round(1 - resnet[-1][0] / 64, 3) == 0.006
assert np.round(resnet_shared[-1]).tolist() == [46, 64]
assert round(1e3 * 256 / 938 / 64, 1) == 4.3
assert round(1e3 * resnet_seconds(64), 1) == 1.6
assert RESNET_BYTES == 4 * scaling.RESNET_PARAMETERS
tf32, mixed = runs.values()
assert round(1e3 * resnet_seconds(8), 2) == 0.65
assert (round(tf32[0], 3), tf32[1], round(tf32[2], 3)) == (0.998, 1, 0.966)
assert (round(mixed[0], 3), mixed[1], round(mixed[2], 3)) == (0.994, 1, 0.841)
assert [round(run[0] / run[2] - 1, 2) for run in (tf32, mixed)] == [0.03, 0.18]
flat = scaling.Level(64, 4e-6, 25e9)
assert round(2e3 * scaling.reduce_scatter(RESNET_BYTES, 64, [flat]), 1) == 8.1
assert round(scaling.RESNET_SHARES["float32"], 2) == 0.15
on_one, on_eight = 256 / np.array([0.938, 2.470]), 8 * 256 / np.array([7.248, 16.621])
assert list(on_one.round()) == [273, 104]
assert list((on_eight - on_one).round()) == [10, 20]
assert speedup(1, 1, 64)[0] == 64 / 2  # 50 % without overlap
assert speedup(3, 1, 64)[0] == 48

# %% [markdown]
# ## Tomorrow, on your machine
#
# 1. **Time one device.** Put your model and data into [18_measure.py](program/18_measure.py), with the bandwidth from
#    your network's data sheet. For the latency, start from 20 µs on Ethernet and 4 µs on InfiniBand, which are guesses.
# 2. **Fill it.** Double the batch until the time doubles as well. Until then, one device isn't full.
# 3. **Count the levels.** The program knows one flat network, but 64 GPUs are usually eight machines with a faster
#    network inside each. For a ResNet-50 at 25 GB/s and 4 µs it predicts an all-reduce of 8.1 ms, not the 1.6 ms from
#    above. So replace `all_reduce_seconds` by a function like `resnet_seconds`, with a `scaling.Level` for each of your
#    networks.
# 4. **If even the upper end is below 32 for 64 devices, stop.** You need a larger batch on each device, as in
#    [lesson 21](21_choose_a_batch_size.ipynb), a faster network, or fewer devices.
# 5. **Before you say yes, rent two machines for an hour.** Copy `import time` and `measure` into lesson 17's program,
#    and these lines above its loop. They time a step of all devices, with as many examples on each as one had:
#
#    ```python
#    B = 128 * jax.device_count()
#    batch = place_batch(next(batches(*train_data, seed=0)))
#    print(measure(jax.jit(train_step, **options), state, batch))  # without donation, to call it often
#    ```
#
#    You predicted `seconds` plus what the all-reduce adds. If it takes longer, a profile shows why. `measure` leaves out
#    the calls and the input, so also time the updates of the loop's second epoch. Then delete these lines, or you'd go on
#    with the larger `B`.

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/18_measure_and_predict.py](solutions/18_measure_and_predict.py).
#
# 1. `fixed_timer` (5 minutes, find the mistakes): `broken_timer` should return how many seconds a call of the jitted
#    `function(x)` takes, until its result is there, and without compiling. `clock()` gives the time in seconds.
#    <details><summary>Hint</summary>There are two mistakes. The first picture shows both.</details>
# 2. `scan_flops` (10 minutes): a device that you don't have can't be timed, but you can count operations and divide by
#    the speed that it reaches. That's only a part of its peak, the *utilization* or MFU: 15 % for the ResNet-50 above,
#    in TF32. `jax.jit(f).lower(...).compile().cost_analysis()["flops"]` counts the operations of f. How many does
#    `lax.scan(layer, x, weights)` take, all rounds together, to 1 %? `layer(x, w)` returns `(x, None)`.
#    <details><summary>Hint</summary>JAX counts the body of a scan once, however often it runs.</details>
# 3. `least_examples` (10 minutes): a program overlaps a ring all-reduce of `n` bytes over `N` devices with its backward
#    pass. What's the smallest number of examples on each device, at least 1, for which the backward pass takes at least
#    as long? An example takes `seconds`, and two thirds of that are its backward pass.
#    <details><summary>Hint</summary>Divide the ring's seconds by the seconds of one example's backward pass, and round
#    up. Try one device, too.</details>


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
# - Compile first, wait for the result, and look at the spread. Measure one device, because simulated ones share your
#   cores.
# - Say which speed-up you mean: with a batch on each device, or with one batch in all.
# - A prediction knows communication alone, so it's optimistic. Check a good offer on two machines.
#
# In [scaling.py](../pmapdp/scaling.py), `predict` assumes no overlap, and adds Adam's update. Try it for [a
# GPT-2](../docs/speed.md#predict-more-devices). `python -m pmapdp.train --workdir runs/first --profile` records a
# profile.
#
# To read on: JAX on [profiling](https://docs.jax.dev/en/latest/201/profiling.html), and the scaling book on
# [rooflines](https://jax-ml.github.io/scaling-book/roofline/). Next, all of the course in one program: [19 Train a
# small GPT](19_train_a_small_gpt.ipynb).

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
# Your program trains on one GPU, and somebody offers you 64. How much faster would that be? Not 64 times: the GPUs also
# have to communicate. What's the best you could hope for? You can work that out with one device: time a step, count what
# it would send, and calculate the rest. Then you'll compare three such predictions with published runs. One is good, one
# comes close by luck, and one is far too optimistic.
#
# **You will** time a step without fooling yourself, predict the speed of 64 devices for a batch that grows and for one
# that doesn't, and say what to expect of real ones. 20 minutes, 45 with exercises. You need [06 Communicate between
# devices](06_communicate_between_devices.ipynb) and [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import numpy as np
from jax import lax

from pmapdp import devices, scaling
from pmapdp.lessons.pictures import lesson_18

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## What a clock sees
#
# Put a clock around a call of a jitted function, and you can get three very different times. Which one would you publish?

# %%
lesson_18.three_durations()

# %% [markdown]
# The first call also traces and compiles. Later calls return before the result is there, because Python only *dispatches*
# the work, as PyTorch does on a GPU. So a step may look a hundred times too fast. You want the third time: compile first,
# wait for the result with `block_until_ready`, and take the median of many calls.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py), and let it measure itself before it trains. Three functions are
# new:
#
# - `measure` times the step on one device. It puts ten steps into a call, with `lax.scan`. A step this small takes Python
#   longer to call than the device to compute, and the call neither gets shorter on N devices nor hides an all-reduce.
# - `all_reduce_seconds` takes the faster of two ways. In the **butterfly**, which you wrote in lesson 06, partners exchange
#   everything, log2(N) times. In **halving and doubling**, they exchange half of their numbers, then a quarter, and so on,
#   and gather the sums the same way back. That's twice as many messages, but only as many bytes as a ring sends. So the
#   butterfly is faster for few bytes, and halving for many. The ring never beats halving here: it sends as many bytes, in
#   2 (N - 1) messages.
# - `speedup` gives a **range**, because the all-reduce may run while the devices still compute. The lower end is without
#   overlap. At the upper end only what doesn't fit behind the backward pass, about two thirds of the step, costs time.
#
# include the difference of 09_jit.py and 18_measure.py

# %% tags=["take-home"]
# include program/18_measure.py

# %% [markdown]
# Your machine isn't mine, so your numbers differ. From here on, suppose that a step takes 0.05 ms on one device. What
# would lesson 06's ring cost you? Each of 64 devices sends 126 messages, one after the other, and each takes at least 20 µs.
#
# **Predict:** each device works on 128 examples. How many times as fast as one do 64 get through the data in a ring: about
# 60, 15, or 1 times?

# %% tags=["prediction"]
ring = 2 * (64 - 1) * (LATENCY + n / 64 / BANDWIDTH)
for name, all_reduce in {"ring": ring, "butterfly": all_reduce_seconds(n, 64)}.items():
    low, high = speedup(5e-5, all_reduce, 64)
    print(f"{name:10s} {1e3 * all_reduce:.2f} ms, {low:.1f} to {high:.1f} times as fast")

# %% [markdown]
# <details><summary>Answer</summary>
#
# About once: 64 devices are hardly faster than one. The ring takes 2.5 ms, and 64 x 0.05 / (0.05 + 2.5) is 1.2. A backward
# pass of 0.03 ms can't hide 2.5 ms.
#
# </details>
#
# The gradients are only 9,652 bytes, so nearly all of the ring's time is latency. The butterfly needs only 6 messages, and 64
# devices are then 15 to 17 times as fast as one. Expect 15, because XLA merges this network's gradients into one all-reduce,
# so nothing overlaps.
#
# ## Keep your batch, or let it grow?
#
# "64 times as fast" can mean two things. Under **weak scaling** each device gets a batch like yours, so 64 devices work on
# 64 x 128 examples at a time. Under **strong scaling** they share your batch of 128, and each computes with 2 examples. At
# best, computing shrinks to a 64th. The all-reduce doesn't shrink.
#
# The next cell draws both ranges as bands, for your network and for a ResNet-50 on A100s, with 256 images in a batch. The
# ResNet's step takes 273 ms on one GPU. Summing its 102 MB of gradients over 64 GPUs takes 1.6 ms, first inside each machine,
# then between machines. [scaling.py](../pmapdp/scaling.py) calculates that, and names the sources of its numbers. It leaves
# out the butterfly, which is slower for so many bytes.
#
# **Predict:** your 64 devices share your batch of 128. Are they still 15 times as fast as one?

# %% tags=["prediction"]
RESNET_BYTES = 4 * 25_557_032  # its parameters in float32


def resnet_seconds(N):
    """An all-reduce of its gradients on N A100s."""
    return 2 * scaling.reduce_scatter(RESNET_BYTES, N, scaling.A100.levels)


def your_seconds(N):
    return all_reduce_seconds(9652, N)


counts = [1, 2, 4, 8, 16, 32, 64]
steps = {"ResNet-50 on A100s": (256 / 938, resnet_seconds), "your network": (5e-5, your_seconds)}
weak = {}
strong = {}
for name, (step, all_reduce) in steps.items():
    weak[name] = [speedup(step, all_reduce(N), N) for N in counts]
    strong[name] = [speedup(step / N, all_reduce(N), N) for N in counts]
lesson_18.speedup_by_devices(counts, weak, strong)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No, they're *slower* than one. Two examples need 1 µs at best, and the all-reduce still takes 166 µs, more than the
# 50 µs of one device.
#
# </details>
#
# The point to find is where the all-reduce takes as long as the computing. Without overlap, N devices are then N / 2 times
# as fast as one. Beyond that point, they mostly wait. Your network is there with 4 devices, or with 2 if they share a batch.
# A ResNet-50 is nowhere near. With a batch on each, 64 GPUs lose at most 0.6 %. If they share one batch, you train 46 to 64
# times as fast as on one GPU, provided that 4 images keep a GPU as busy as 256.
#
# So the offer is poor for your small network, and good for a ResNet-50, because its steps are long. A growing batch gives
# you long steps, but may change how well you learn: [lesson 21](21_choose_a_batch_size.ipynb) shows how far it can grow.
#
# ## How wrong is it?
#
# Would you bet on this? Here are three published runs of ResNet-50. Only the last one is weak scaling, and it compares
# servers, so each of these counts as one device.
#
# - [NVIDIA](https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/Classification/ConvNets/resnet50v1.5)
#   trained on one and on eight A100s of one machine, in TF32, and calls that strong scaling: an update has 2,048 images
#   either way. [One GPU adds up eight
#   steps](https://github.com/NVIDIA/DeepLearningExamples/blob/master/PyTorch/Classification/ConvNets/configs.yml) of 256,
#   and eight GPUs share them. NVLink sums in 0.65 ms by `scaling.py`, and 256 images take 273 ms, so each of the eight
#   should lose at most 0.2 % of its speed.
# - NVIDIA did the same in mixed precision. One A100 then trains 2.6 times as fast, but its gradients stay in float32.
# - [Goyal et al.](https://arxiv.org/abs/1706.02677) went from one server of 8 P100s to 32. On one, 90 epochs took
#   [29 hours](https://developer.nvidia.com/blog/facebook-trains-imagenet-in-1-hour/), so a step of 256 images took 232 ms.
#   They sum by halving and doubling, over network cards of 6.25 GB/s. We assume 20 µs for each message.
#
# **Predict:** in mixed precision a step is shorter. Should the A100s lose less than 0.2 %, as much, or more?

# %% tags=["prediction"]
network_cards = [scaling.Level(32, LATENCY, 6.25e9)]
between_servers = 2 * scaling.reduce_scatter(RESNET_BYTES, 32, network_cards)
runs = {  # each one's part of the ideal speed: without overlap, with full overlap, and as found
    "8 A100s, TF32": (*speedup(256 / 938, resnet_seconds(8), 1), 7248 / (8 * 938)),
    "8 A100s, mixed precision": (*speedup(256 / 2470, resnet_seconds(8), 1), 16621 / (8 * 2470)),
    "32 servers of 8 P100s": (*speedup(0.232, between_servers, 1), 0.9),
}
lesson_18.predicted_against_found(runs)

# %% [markdown]
# <details><summary>Answer</summary>
#
# More, 0.6 %. The all-reduce still takes 0.65 ms, but the step now takes only 104 ms.
#
# </details>
#
# In TF32 the calculation is 3 points off, but in mixed precision it's 15. A step takes 10 ms longer on eight GPUs in TF32,
# and 20 ms in mixed precision, though both send the same bytes. A part of that is the optimizer: eight GPUs run it in every
# step, and one GPU only in every eighth.
#
# The P100s got 90 %. We predicted 88 to 100 %, but that fits by luck: Goyal et al. ran their all-reduce during the backward
# pass. If all of it was hidden, you'd expect 100 %, and their 10 % went somewhere else.
#
# ## What to expect of real devices
#
# The calculation knows nothing about loading data, launching kernels, or waiting for the slowest device. So its number is a
# limit, and what you should expect depends on what you find on *one* device:
#
# | on one device | expect of N devices |
# | --- | --- |
# | the all-reduce would take longer than the step | at most 3/4 of N, and less than half of N without overlap. It's a poor offer, whatever you tune. |
# | the step takes many times as long, and the device is busy | less than the upper end. How much less, only a run shows: the runs above lost 3 to 16 %. |
# | the device waits for the host | that N devices wait, too. Give it more to do first. |
#
# How would you notice the last one? A **profile** shows what ran when. You record one with `jax.profiler.trace(folder)`,
# and open it in [ui.perfetto.dev](https://ui.perfetto.dev). Here's pmapdp's CNN on an H200, with jax 0.11.2.

# %%
lesson_18.trace_of_an_h200()

# %% [markdown]
# In each update the GPU computes for 0.12 ms and waits for the host for 1.4 ms. Without the profiler, which slows the host
# down, a bare loop with batches of 64 took 1.1 ms an update, at 58,000 images a second
# ([Speed](../docs/speed.md#on-a-gpu)). So the GPU waits about nine tenths of the time.
#
# The cure is to put more work into a call. With 4,096 images in a batch, the CNN trains thirty times as fast. If you'd
# rather keep your batch, put ten updates into a call, with `lax.scan`: your `train_step` already takes a state and a batch,
# and returns a new state and a result.
#
# **Predict:** which gains more from this, an update with 128 examples or one with 5,000?


# %% tags=["prediction"]
def ten_calls(state, ten_batches):
    for batch in ten_batches:
        state, _ = step_of_one(state, batch)
    return state


ten_in_a_call = jax.jit(lambda state, stacked: lax.scan(step_of_one, state, stacked)[0])
one_state = jax.device_put(init_state(), jax.devices()[0])
for examples in (128, 5_000):
    batch = train_data[0][:examples], train_data[1][:examples], np.ones(examples, np.float32)
    stacked = jax.tree.map(lambda x: np.stack([x] * 10), batch)
    batch, stacked = jax.device_put((batch, stacked), jax.devices()[0])
    calls = lesson_18.fastest_run(ten_calls, one_state, [batch] * 10)
    scan = lesson_18.fastest_run(ten_in_a_call, one_state, stacked)
    print(f"{examples:,} examples: {calls / scan:.1f} times as fast with ten in a call")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The one with 128. The scan saves nine calls of ten. With 128 examples the calls take most of the time, but with 5,000 the
# computing does, and that stays the same.
#
# </details>
#
# The price: all ten batches must be on the device before the call, and you can save only between calls.

# %% tags=["proof"]
# The asserts behind all answers.
from functools import partial

from pmapdp.collectives import collectives

host_batches = list(batches(*train_data, seed=0))[:10]
stacked = jax.tree.map(lambda *x: np.stack(x), *host_batches)
results = ten_calls(one_state, host_batches), ten_in_a_call(one_state, stacked)
jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), *results)
placed = place_state(init_state()), place_batch(host_batches[0])
program = train_step.lower(*placed).compile()
assert [(row.kind, row.bytes) for row in collectives(program.as_text())] == [("all-reduce", n)]
assert n == 9652
B = 128 * jax.device_count()  # below, step 4 of "Tomorrow"
batch = place_batch(next(batches(*train_data, seed=0)))
assert batch[0].shape == (1024, 64)
assert batch[0].addressable_shards[0].data.shape == (128, 64)
assert measure(jax.jit(train_step, **options), place_state(init_state()), batch) > 0
network = scaling.Level(64, LATENCY, BANDWIDTH)
assert abs(all_reduce_seconds(n, 64) / (6 * (LATENCY + n / BANDWIDTH)) - 1) < 1e-9  # 6 rounds
for N in (8, 64):
    half = scaling.reduce_scatter(1e6, N, [network])  # the all-gather takes as long
    assert abs(all_reduce_seconds(1e6, N) / (2 * half) - 1) < 1e-9
    assert all_reduce_seconds(n, N) < 2 * scaling.reduce_scatter(n, N, [network])
for N in (8, 64):  # the levels of the ResNet-50: the fastest network, with all its bytes
    level = scaling.A100.levels[0]
    butterfly = np.log2(N) * (level.latency + RESNET_BYTES / level.bandwidth)
    assert butterfly > 2 * scaling.reduce_scatter_at(RESNET_BYTES, N, level)
half_ring = scaling.reduce_scatter(n, 64, [network._replace(trees=False)])
assert abs(ring / (2 * half_ring) - 1) < 1e-9
assert [round(1e3 * seconds, 2) for seconds in (ring, your_seconds(64))] == [2.54, 0.17]
assert 126 * LATENCY / ring > 0.99
assert 1.2 < speedup(5e-5, ring, 64)[0] < speedup(5e-5, ring, 64)[1] < 1.3
yours, yours_shared = weak["your network"], strong["your network"]
resnet, resnet_shared = weak["ResNet-50 on A100s"], strong["ResNet-50 on A100s"]
assert np.round(yours[-1]).tolist() == [15, 17]
assert max(yours_shared[-1]) < 1
assert round(1e6 * your_seconds(64)) == 166
lower_ends = [[low for low, _ in pairs] for pairs in (yours, yours_shared)]
waits = np.array(lower_ends) < np.array(counts) / 2
assert [counts[row.argmax()] for row in waits] == [4, 2]
assert round(1 - resnet[-1][0] / 64, 3) == 0.006
assert np.round(resnet_shared[-1]).tolist() == [46, 64]
assert round(1e3 * resnet_seconds(64), 1) == 1.6
assert RESNET_BYTES == 4 * scaling.RESNET_PARAMETERS
tf32, mixed, goyal = runs.values()
assert round(1e3 * resnet_seconds(8), 2) == 0.65
assert (round(tf32[0], 3), tf32[1], round(tf32[2], 3)) == (0.998, 1, 0.966)
assert (round(mixed[0], 3), mixed[1], round(mixed[2], 3)) == (0.994, 1, 0.841)
on_one, on_eight = 256 / np.array([0.938, 2.470]), 8 * 256 / np.array([7.248, 16.621])
assert list(on_one.round()) == [273, 104]
assert list((on_eight - on_one).round()) == [10, 20]
assert round(1e3 * 29 * 3600 / 90 / (1_281_167 / 256)) == 232
assert 0.87 < goyal[0] < goyal[2] < goyal[1] == 1
np.testing.assert_allclose(speedup(1, 1, 64), (64 / 2, 64 * 3 / 4))  # of "What to expect"

# %% [markdown]
# ## Tomorrow, on your machine
#
# 1. **Time one device.** Put your model and data into [18_measure.py](program/18_measure.py), with your network's bandwidth
#    from its data sheet. For the latency we assume 20 µs on Ethernet, and NCCL 4 µs on InfiniBand.
# 2. **Fill it.** Double the batch until the time doubles as well. Before that, one device still has room.
# 3. **If even the upper end is bad, stop.** If it's less than 32 for 64 devices, you need a larger batch on each device, a
#    faster network, or fewer devices. Exercise 3 finds that batch for a ring.
# 4. **Before you say yes, rent two machines for an hour.** Copy `measure` into lesson 17's program, and time the step of
#    all devices before its loop. The batch has to grow, so that each device has as many examples as one had:
#
#    ```python
#    B = 128 * jax.device_count()
#    batch = place_batch(next(batches(*train_data, seed=0)))
#    print(measure(jax.jit(train_step, **options), state, batch))  # without donation, to call it often
#    ```
#
#    You predicted `seconds` plus what the all-reduce adds. If it takes longer, a profile shows why.

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/18_measure_and_predict.py](solutions/18_measure_and_predict.py).
#
# 1. `fixed_timer` (5 minutes, find the mistakes): `broken_timer` should return how many seconds a call of the jitted
#    `function(x)` takes, until its result is there, and without compiling. `clock()` gives the time in seconds.
#    <details><summary>Hint</summary>There are two mistakes. The first picture shows both.</details>
# 2. `scan_flops` (10 minutes): `jax.jit(f).lower(...).compile().cost_analysis()["flops"]` counts a program's operations.
#    How many does `lax.scan(layer, x, weights)` take, all rounds together? `layer(x, w)` returns `(x, None)`. Be exact
#    to 1 %. <details><summary>Hint</summary>JAX counts the body of a scan once, however often it runs. Count one layer and
#    multiply, or let the compiler see all layers.</details>
# 3. `least_examples` (10 minutes): suppose a program overlaps its all-reduce with the backward pass. What's the smallest
#    number of examples per device for which the backward pass is at least as long as a ring all-reduce of `n` bytes over
#    `N` devices? An example takes `seconds`, and two thirds of that are its backward pass. Return a whole number, at
#    least 1.
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
# - Compile first, wait for the result, and measure one device. Simulated devices share your machine's cores.
# - Say which speed-up you mean: with a batch on each device, or with one batch in all.
# - A prediction knows communication alone, so it's optimistic. Check a good offer on two machines.
#
# In [scaling.py](../pmapdp/scaling.py), `predict` assumes no overlap, and adds Adam's update. Try it for
# [a GPT-2](../docs/speed.md#predict-more-devices). `python -m pmapdp.train --workdir runs/first --profile` records a profile.
#
# To read on: JAX on [profiling](https://docs.jax.dev/en/latest/201/profiling.html), and the scaling book on
# [rooflines](https://jax-ml.github.io/scaling-book/roofline/). Next, all of the course in one program:
# [19 Train a small GPT](19_train_a_small_gpt.ipynb).

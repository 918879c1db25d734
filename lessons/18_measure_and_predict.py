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
# Your program trains on one GPU, and somebody offers you 64. How much faster would that be? Hardly 64 times, because
# they also have to talk to each other. You can work out a better answer without having them: measure one device, count
# what it sends, and calculate the rest. But how far can you trust that? At the end you compare three predictions with
# published runs. One is good, one comes close by luck, and one is far too optimistic.
#
# **You will** time a step without fooling yourself, keep one device busy, predict the speed of 64, and see how wrong such
# a prediction can be. 22 minutes, 47 with exercises. You need [06 Communicate between
# devices](06_communicate_between_devices.ipynb) and [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb).

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
# the work, as PyTorch does on a GPU. A step may look a hundred times too fast. So warm up, wait for the result
# with `block_until_ready`, and repeat. The median tells you what your training takes. To compare two functions, take each
# one's minimum, because other programs only make a run slower.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py), and let it measure itself. Three things are new:
#
# - The loop times each epoch, and waits for the last update before it reads the clock. An update's time includes making
#   and placing the batch.
# - `cost_analysis` counts the operations of the compiled step. Divide them by the time and by your device's peak, and you
#   know how busy it is. Simulated devices have no data sheet, so this `PEAK` is made up. Papers report the MFU, the model
#   FLOPs utilization, which only counts what the model needs.
# - `describe_all_reduces` finds all-reduces in the compiled step. It takes their bytes from the model, 4 for each
#   parameter and each metric, and calculates how long lesson 06's ring needs for them, in an assumed network.
#
# include the difference of 09_jit.py and 18_measure.py
#
# **Predict:** a ring of 8 devices needs 0.3 ms for the 9,652 bytes of this network. How long does a ring of 64 need:
# about as long, nine times as long, or 64 times as long?

# %% tags=["prediction", "take-home"]
# include program/18_measure.py

# %% [markdown]
# <details><summary>Answer</summary>
#
# Nine times as long, 2.5 ms. Each device sends about as many bytes as before. But it sends them in 126 messages instead
# of 14, one after the other, and with so few bytes nearly all the time is latency.
#
# </details>
#
# Believe the bytes: [collectives.py](../pmapdp/collectives.py) reads the same number from the compiled step. Don't
# believe the time of an update, because simulated devices share your machine's cores.
#
# ## Is one device busy at all?
#
# A **profile** shows what ran when. You record one with `jax.profiler.trace(folder)`, and open it in
# [ui.perfetto.dev](https://ui.perfetto.dev). Here's pmapdp's CNN on an H200, with jax 0.11.2.

# %%
lesson_18.trace_of_an_h200()

# %% [markdown]
# In each update the GPU computes for 0.12 ms and waits for the host for 1.4 ms. The host's two rows overlap, so more than
# one of its threads is at work. The profiler slows the host down. But even without it, a bare loop with batches of 64
# took 1.1 ms an update, at 58,000 images a second ([Speed](../docs/speed.md#on-a-gpu)). So the GPU waits about nine
# tenths of the time, and 64 GPUs would wait just as long.
#
# The cure is to put more work into a call. With 4,096 images in a batch, the CNN trains thirty times faster. If you'd
# rather keep your batch, put ten updates into a call, with `lax.scan`. Your `train_step` already has the form that it
# wants: a state and a batch go in, a new state and a result come out.
#
# **Predict:** does an update with 128 examples gain more from this, or one with 5,000?

# %% tags=["prediction"]
step = train_step.__wrapped__  # the function before jit
one_update = jax.jit(step)
ten_updates = jax.jit(lambda state, batches: lax.scan(step, state, batches))
one_device = jax.devices()[0]
first_state = jax.device_put(init_state(), one_device)


def ten_calls(state, batches):
    for batch in batches:
        state, _ = one_update(state, batch)
    return state


def milliseconds(train, batches):
    """Time an update: the fastest of 50 runs of ten."""

    def trial():
        jax.block_until_ready(train(first_state, batches))

    trial()  # compiles
    return 1000 * min(timeit.repeat(trial, number=1, repeat=50)) / 10


for b in (128, 5_000):
    batch = train_data[0][:b], train_data[1][:b], np.ones(b, np.float32)
    stacked = jax.tree.map(lambda x: np.stack([x] * 10), batch)
    batch, stacked = jax.device_put((batch, stacked), one_device)
    alone, in_ten = milliseconds(ten_calls, [batch] * 10), milliseconds(ten_updates, stacked)
    print(f"{b:,} examples: {alone:.2f} ms per update, {in_ten:.2f} ms with ten in a call")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The one with 128. A scan saves nine calls of ten, but the computing stays the same. With 128 examples the call takes
# most of the time. With 5,000 it takes hardly any, and on a CPU the scan may even be slower.
#
# </details>
#
# The parameters come out the same, up to rounding. The price: all ten batches must be on the device before the call, and
# you can only save between calls.
#
# ## How much faster are 64?
#
# A message takes a fixed latency L, plus its bytes divided by the bandwidth W. In an all-reduce of n
# bytes, each device sends about 2 n bytes in all:
#
# ```
# seconds = messages x L + 2 (N - 1) / N x n / W
# ```
#
# A ring needs 2 (N - 1) messages. On 64 devices that's 126. So libraries like NCCL can also send along **trees**, with
# only 2 log2(N) messages, or 12.
#
# Does every step get longer by that time? Not if the devices compute while they send: as in lesson 06, the last layer's
# gradient can leave while earlier layers are still being computed. PyTorch's `DistributedDataParallel` arranges such an
# **overlap**. Under `jit` it depends on how many gradients XLA merges into one all-reduce.
#
# You rarely know how much will overlap, so predict a **range**. At worst the whole all-reduce comes on top of the step.
# At best it runs during the backward pass, about two thirds of a step, and only what doesn't fit costs time.


# %%
def speedup_range(N, step, all_reduce):
    """N devices over one, from no overlap to full overlap."""
    left_over = max(0, all_reduce - 2 / 3 * step)
    return N * step / (step + all_reduce), N * step / (step + left_over)


def all_reduce(n, N, messages, latency, bandwidth):
    """Milliseconds of an all-reduce of n bytes over N members."""
    return 1e3 * (messages * latency + 2 * (N - 1) / N * n / bandwidth)


# %% [markdown]
# Try it with your network, and with a ResNet-50 on 64 A100s. NVLink sums its 102 MB of gradients among the 8 GPUs of a
# machine. Then each GPU sums an eighth of them with 7 other machines, through a network card of its own.
# [scaling.py](../pmapdp/scaling.py) names the sources of the numbers. One A100 trained 938 images a second in TF32, 256
# in a batch, so a step takes 256 / 938 s.
#
# **Predict:** suppose that an update with 128 examples takes 0.2 ms on one device. 64 such devices, with 128 examples
# each, need about 2.5 ms for the all-reduce in a ring. How many times faster do they get through the data?

# %% tags=["prediction"]
all_reduce_ms, yours = {}, {}
for name, messages in {"ring": 2 * 63, "trees": 2 * 6}.items():
    all_reduce_ms[name] = all_reduce(9652, 64, messages, LATENCY, BANDWIDTH)
    yours[name] = speedup_range(64, 0.2, all_reduce_ms[name])
    low, high = yours[name]
    print(f"your network, {name} of {all_reduce_ms[name]:.3f} ms: {low:.1f} to {high:.1f} times")

same_batch = speedup_range(64, 0.2 / 64, all_reduce_ms["ring"])
print(f"with 2 examples on each device, in a ring: {same_batch[0]:.2f} times")
resnet_bytes = 4 * 25_557_032  # its parameters in float32
inside = all_reduce(resnet_bytes, 8, 2 * 3, 1.9e-6, 281e9)  # NVLink
between = all_reduce(resnet_bytes / 8, 8, 2 * 3, 4e-6, 23.4e9)  # network cards
low, high = speedup_range(64, 256 / 0.938, inside + between)
print(f"ResNet-50, trees of {inside + between:.2f} ms: {low:.1f} to {high:.1f} times")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Fewer than five: 64 x 0.2 / (0.2 + 2.5) is 4.7. A backward pass of 0.13 ms can't hide 2.5 ms. Trees take a tenth of
# that, which makes it 28 to 40 times. Expect 28, because XLA merges all your gradients into one all-reduce, which has to
# wait for the whole backward pass. ResNet-50 computes for so much longer that it loses at most 0.6 %.
#
# </details>
#
# So far the batch grows, because 64 devices with 128 examples each make 8,192. That's **weak scaling**. Under **strong
# scaling** you keep your batch of 128. Each device then has 2 examples, and at best computes 64 times faster. But the
# all-reduce stays, and now it's nearly the whole step: in a ring, 64 devices are 13 times *slower* than one.
#
# So the offer is bad for your small network, and good for a ResNet-50. Predict [your own
# model](../docs/speed.md#predict-more-devices), too.
#
# ## How wrong is it?
#
# Would you bet on this? Compare three published runs of ResNet-50:
#
# - [NVIDIA](https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/Classification/ConvNets/resnet50v1.5)
#   trained on one and on eight A100s of one machine, with 256 images on each. NVLink sums in 0.65 ms, as above. In TF32 a
#   step on one takes 273 ms, so each of the eight should lose at most 0.2 % of its speed.
# - NVIDIA did the same in mixed precision. One A100 then trains 2.6 times faster, but its gradients stay in float32.
# - [Goyal et al.](https://arxiv.org/abs/1706.02677) went from 8 P100s to 256. On 8 it took 29 hours for 90 epochs, as
#   NVIDIA's blog reported in 2017, so an update of 256 images took 232 ms. Each of their 32 servers has 8 GPUs and a
#   network card of 6.25 GB/s. They sum by halving and doubling, with as many messages as trees, 10. We assume 20 µs for
#   each.
#
# **Predict:** should the A100s lose less than 0.2 % in mixed precision, as much, or more?

# %% tags=["prediction"]
# Speed without overlap, with full overlap, and as found, compared with the smaller run.
servers = all_reduce(resnet_bytes, 32, 2 * 5, LATENCY, 6.25e9)
runs = {
    "8 A100 over 1, TF32": (*speedup_range(1, 256 / 0.938, inside), 7248 / (8 * 938)),
    "8 A100 over 1, mixed": (*speedup_range(1, 256 / 2.470, inside), 16621 / (8 * 2470)),
    "256 P100 over 8": (*speedup_range(1, 232, servers), 0.9),
}
lesson_18.predicted_against_found(runs)

# %% [markdown]
# <details><summary>Answer</summary>
#
# More, 0.6 %. The all-reduce still takes 0.65 ms, but the step now takes only 104 ms.
#
# </details>
#
# In TF32 the calculation is 3 points off, but in mixed precision it's 15. Eight GPUs take 10 ms longer for a step in
# TF32, and 20 ms longer in mixed precision. Yet both send the same bytes, so something else must make the difference.
#
# The P100s' 90 % is inside its range, but so is everything from 88 to 100 %. And that's luck: Goyal et al. hid their
# all-reduce behind the backward pass, so the calculation says 100 %. Most of their 10 % went somewhere else.
#
# The calculation tells you whether *communication* can be a problem. It knows nothing about loading data, launching
# kernels, or waiting for the slowest device. So use it to refuse an offer: if it says five times, don't hope for six. If
# it says 63, that's the best you can get, so measure on two devices first.

# %% tags=["proof"]
# The asserts behind all answers.
from pmapdp import scaling
from pmapdp.collectives import collectives

host_batches = list(batches(*train_data, seed=0))[:10]
stacked = jax.tree.map(lambda *x: np.stack(x), *host_batches)
assert "length=10" in str(jax.make_jaxpr(ten_updates)(first_state, stacked))
singly, (scanned, _) = ten_calls(first_state, host_batches), ten_updates(first_state, stacked)
for one, other in zip(jax.tree.leaves(singly), jax.tree.leaves(scanned), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
assert program.as_text().count(" all-reduce(") == 1
assert round(flops / 1e6, 1) == 0.2  # for 16 examples, whose products take 0.16 MFLOP
assert [row.bytes for row in collectives(program.as_text())] == [9652]
for name, milliseconds_of in all_reduce_ms.items():
    network = scaling.Level(64, LATENCY, BANDWIDTH, trees=name == "trees")
    half = scaling.reduce_scatter(9652, 64, [network])  # the all-gather takes as long
    assert abs(milliseconds_of / (2e3 * half) - 1) < 1e-9
assert round(all_reduce(9652, 8, 14, LATENCY, BANDWIDTH), 1) == 0.3
assert round(all_reduce_ms["ring"], 1) == 2.5
assert round(all_reduce_ms["trees"], 3) == 0.255
assert 4.6 < yours["ring"][0] < yours["ring"][1] < 5
assert 28 < yours["trees"][0] < yours["trees"][1] < 40
assert round(1 / same_batch[0]) == 13
assert 63.6 < low < high == 64
assert round(1 - low / high, 3) == 0.006
model = scaling.RESNET_PARAMETERS, scaling.RESNET_FLOPS, scaling.RESNET_SHARES["float32"]
one, many = (scaling.predict(scaling.A100, N, 256, *model) for N in (1, 64))
np.testing.assert_allclose(1e3 * one.step, 256 / 0.938, rtol=0.01)  # it also has the optimizer
np.testing.assert_allclose(1e3 * many.all_reduce, inside + between, rtol=0.01)
assert resnet_bytes == 4 * scaling.RESNET_PARAMETERS
tf32, mixed, goyal = runs.values()
assert round(inside, 2) == 0.65
assert (round(tf32[0], 3), tf32[1], round(tf32[2], 3)) == (0.998, 1, 0.966)
assert (round(mixed[0], 3), mixed[1], round(mixed[2], 3)) == (0.994, 1, 0.841)
on_one, on_eight = 256 / np.array([0.938, 2.470]), 8 * 256 / np.array([7.248, 16.621])
assert list(on_one.round()) == [273, 104]
assert list((on_eight - on_one).round()) == [10, 20]
assert round(1e3 * 29 * 3600 / 90 / (1_281_167 / 256)) == 232
assert 0.87 < goyal[0] < goyal[2] < goyal[1] == 1

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/18_measure_and_predict.py](solutions/18_measure_and_predict.py).
#
# 1. `fixed_timer` (5 minutes, find the mistakes): `broken_timer` should return how many seconds a call of the jitted
#    `function(x)` takes, until its result is there, and without compiling. `clock()` gives the time in seconds.
#    <details><summary>Hint</summary>There are two mistakes. The first picture shows both.</details>
# 2. `scan_flops` (10 minutes): how many operations does `lax.scan(layer, x, weights)` take, all rounds together?
#    `layer(x, w)` returns `(x, None)`. Let JAX count with `cost_analysis()`, to within 1 %.
#    <details><summary>Hint</summary>It counts the body of a scan once, however often it runs. Count one layer and
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
# - Warm up, wait for the result, and don't time simulated devices.
# - Keep one device busy before you ask for more: a larger batch, or many updates in a call.
# - Predict a range, from no overlap to full overlap, and take it as the best that you can get.
#
# In [scaling.py](../pmapdp/scaling.py), `predict` calculates the lower end of such a range, without overlap, and adds
# Adam's update. `python -m pmapdp.train --workdir runs/first --profile` records a profile.
#
# To read on: JAX on [profiling](https://docs.jax.dev/en/latest/201/profiling.html), and the scaling book on
# [rooflines](https://jax-ml.github.io/scaling-book/roofline/). More examples a second don't always mean more learning,
# and [21 Choose a batch size](21_choose_a_batch_size.ipynb) measures how much. Next, all of the course in one program:
# [19 Train a small GPT](19_train_a_small_gpt.ipynb).

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
# what it sends, and calculate the rest. But how far can you trust such a prediction? At the end you compare three of
# them with published runs. Two turn out far too optimistic, and the third comes close by luck.
#
# **You will** time a step without fooling yourself, find out which limit of your device it meets, predict the speed of many
# devices, and see how wrong such a prediction can be. 26 minutes, 51 with exercises. You need
# [06 Communicate between devices](06_communicate_between_devices.ipynb) and
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb).

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
# the work, as PyTorch does on a GPU. Your step may then look a hundred times too fast. So warm up, wait for the result
# with `block_until_ready`, repeat, and report the median, which is what a typical step takes.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). Everything that changes, so that your program measures itself:
#
# include the difference of 09_jit.py and 18_measure.py
#
# - The loop times each epoch, and waits for the last update before it reads the clock. So the time that it prints for an
#   update includes making and placing the batch, as your training does.
# - `FLOPS` counts the floating-point operations of an update. A product of `[m, k]` and `[k, n]` takes 2 m k n of them.
#   A layer takes three such products: one forward, one for the gradient of the weights, and one for the gradient of the
#   inputs, which the first layer doesn't need.
# - Operations divided by the time and by `PEAK`, the most that your device can do by its data sheet, are the **model FLOPs
#   utilization**, MFU. The 1e11 is only a round number for a CPU. Soon you'll measure yours.
# - `describe` reads from the compiled step what each device computes and keeps, and calculates how many bytes are
#   all-reduced and how long that takes. The network is assumed: Ethernet of 10 Gbit/s, with 20 microseconds a message.
#   Put your own into `LATENCY` and `BANDWIDTH`.
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
# You can believe these counts. The 0.20 MFLOP of a device are the compiler's. An eighth of `FLOPS` is 0.16, because it has
# the matrix products alone, as is usual for the MFU, and the compiler also counts the ReLU, the loss and Adam. Don't
# believe the milliseconds, because simulated devices share the cores of your machine.
#
# ## Is one device busy at all?
#
# A **profile** shows what ran when. You record one with `jax.profiler.trace(folder)`, and open it in
# [ui.perfetto.dev](https://ui.perfetto.dev). Here's pmapdp's CNN on an H200, with jax 0.11.2.

# %%
lesson_18.trace_of_an_h200()

# %% [markdown]
# Python places and calls at the same time, because a thread places the next batch while the loop calls the step. In each of
# the three updates the GPU computes for 0.12 ms and waits for Python for 1.4 ms. The profiler makes Python slow. But
# without it, a bare loop trained on 58,000 images a second ([Speed](../docs/speed.md#on-a-gpu)), with 64 in a batch, so
# an update still took 1.1 ms. The GPU waits about nine tenths of the time, and 64 GPUs would wait as long.
#
# ## How fast could it be?
#
# Suppose your device never waited. It could still do only so many operations a second, and move only so many bytes. Which
# of these two limits a program meets first depends on its **arithmetic intensity**, the operations that it does for each
# byte it reads or writes. Two programs are easy to count:
#
# - The dot product of two vectors reads two numbers of 4 bytes, multiplies them, and adds the result to a sum. That's 2 / 8
#   operations per byte.
# - The product of two n x n matrices takes 2 n³ operations, and moves 3 n² numbers of 4 bytes. That's n / 6 operations per
#   byte, 171 for n = 1,024.
#
# The first keeps the memory busy, and the second the arithmetic. Time both, and you know the two limits of your machine. A
# limit is what the machine does at its best, so here you take the fastest of many calls, not the median.

# %%
import jax.numpy as jnp


def fastest(function, *arguments):
    """Seconds of the fastest of 50 calls, the one that other programs disturbed least."""

    def call():
        jax.block_until_ready(function(*arguments))

    call()  # compiles
    return min(timeit.repeat(call, number=1, repeat=50))


matrix = jnp.ones((1024, 1024))
most_flops = 2 * 1024**3 / fastest(jax.jit(jnp.matmul), matrix, matrix)
x, y = jnp.ones(2**24), jnp.ones(2**24)
most_bytes = (x.nbytes + y.nbytes) / fastest(jax.jit(jnp.dot), x, y)
print(f"at most {most_flops:.1e} FLOP/s and {most_bytes:.1e} bytes/s")
print(f"they meet at {most_flops / most_bytes:.0f} operations per byte")

# %% [markdown]
# The two vectors take 128 MB, more than most caches hold. A large server's may hold them, and then you've measured the
# cache instead of the memory.
#
# With fewer operations per byte than where the two limits meet, a program has to wait for the memory, and with more, for
# the arithmetic. At I operations per byte it does at most `min(most_flops, I * most_bytes)` of them a second. Drawn with
# logarithmic axes this looks like a roof, so the picture is called a **roofline**.
#
# Now put your step under the roof. The compiler counts its operations and its bytes, and with 128 examples finds about 3
# operations per byte. To compare, take larger batches, and ten updates in one call. `lax.scan` does that in one line. It
# wants a function that takes a state and a batch and returns a state and a result, and your `train_step` is one already.
#
# **Predict:** does a call with 128 examples reach the slope of the roof, the flat part, or neither?

# %% tags=["prediction"]
step = train_step.__wrapped__  # the function before jit
one_update = jax.jit(step)
ten_updates = jax.jit(lambda state, batches: lax.scan(step, state, batches))
start = jax.device_put(init_state(), jax.devices()[0])


def make_batch(examples):
    rows = np.arange(examples) % 5_000
    batch = train_data[0][rows], train_data[1][rows], np.ones(examples, np.float32)
    return jax.device_put(batch, jax.devices()[0])


points = {}  # name: (operations per byte, operations per second)
for examples in (32_768, 2_048, 128):
    batch = make_batch(examples)
    cost = one_update.lower(start, batch).compile().cost_analysis()
    intensity = cost["flops"] / cost["bytes accessed"]
    points[f"{examples:,} examples"] = intensity, cost["flops"] / fastest(one_update, start, batch)
ten_batches = jax.tree.map(lambda x: jnp.stack([x] * 10), batch)  # of 128 examples
seconds = fastest(ten_updates, start, ten_batches)
points["128, ten updates in a call"] = intensity, 10 * cost["flops"] / seconds
lesson_18.roofline(points, most_flops, most_bytes)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Neither. On the machine that built this page it's far below the slope, for the reason that you saw on the H200: the step
# is so short that most of the time goes into calling it. Ten updates in a call, or more examples, share that time among
# more work, so these points are higher.
#
# </details>
#
# On your machine a point may even lie above the slope. Then another program was busy while you measured the limits, or
# the step's numbers stayed in a cache, which is faster than the memory.
#
# The remedy depends on where your point is:
#
# - **Far below the roof**, put more work into a call. On the H200 the CNN trains on thirty times as many images a second
#   with 4,096 in a batch. If you want to keep your batch, put ten updates into a call: they give the parameters of single
#   updates, up to rounding. What you pay is freedom, because the batches have to lie on the device beforehand, and you can
#   save or stop only between calls.
# - **At the slope**, make more of each byte. Here a larger batch hardly helps: from 128 to 32,768 examples your step goes
#   from about 3 to about 4 operations per byte, because its layers are narrow, and an input is used for just 32 hidden
#   units. Wider layers use each number more often, and bfloat16 halves the bytes.
# - **At the flat part** you need fewer operations, or a faster device.
#
# In a large model the layers are wide, and it's a small batch that leads to the slope. A weight in bfloat16 takes 2 bytes,
# and each example needs 2 operations with it, so a layer does at most one operation per byte for each example on the
# device. An [H200](https://www.nvidia.com/en-us/data-center/h200/) computes 989 TFLOP/s in bfloat16 without sparsity, and
# moves 4.8 TB/s, so its limits meet at 206. With fewer examples or tokens than that on each GPU, the arithmetic has to
# wait. Remember this before you split a batch over 64 of them.
#
# ## How much faster are 64?
#
# Now to the offer. A message takes a fixed latency L, plus its bytes divided by the bandwidth W. In an all-reduce of n
# bytes, each device sends about 2 n bytes in all:
#
# ```
# seconds = messages x L + 2 (N - 1) / N x n / W
# ```
#
# Lesson 06's ring sends 2 (N - 1) messages one after the other. On 64 devices that's 126, and if they're small, nearly all
# the time is latency. That's why libraries like NCCL also know **trees**, which need only 2 log2(N) messages, 12 on 64
# devices.
#
# Does every step get longer by that time? Not if the devices compute while they send. The backward pass finds the last
# layer's gradient first, and this gradient can leave while the earlier layers are still being computed. PyTorch's
# `DistributedDataParallel` arranges such an **overlap** with its buckets. Under `jit` it depends on how many gradients XLA
# merges into one all-reduce.

# %%
lesson_18.overlap("one all-reduce", "an all-reduce for each layer")

# %% [markdown]
# Since you don't know how much will overlap, predict a **range**. At worst the step gets longer by the whole all-reduce. At
# best the backward pass hides it, and the step gets longer only by what's left. The backward pass takes about two thirds of
# a step.


# %%
def speedup_range(N, step, all_reduce):
    """N devices over one, from no overlap to full overlap."""
    left_over = max(0, all_reduce - 2 / 3 * step)
    return N * step / (step + all_reduce), N * step / (step + left_over)


def all_reduce(n, N, messages, latency, bandwidth):
    """Milliseconds of an all-reduce of n bytes over N members."""
    return 1e3 * (messages * latency + 2 * (N - 1) / N * n / bandwidth)


# %% [markdown]
# Try it with your network, and with a ResNet-50 on 64 A100s, with 64 images on each. Its gradients are 102 MB. NVLink sums
# them among the 8 GPUs of a machine, and then each GPU exchanges an eighth of them with the other 7 machines, through its
# network card. One A100 trained 938 images a second, so a step takes 64 / 938 s. The sources of these speeds and latencies
# are in [scaling.py](../pmapdp/scaling.py).
#
# **Predict:** say that an update with 128 examples takes 0.2 ms on one device. 64 such devices, with 128 each, need about
# 2.5 ms for the all-reduce in a ring. How many times as many examples a second do they compute?

# %% tags=["prediction"]
all_reduce_ms, yours = {}, {}
for name, messages in {"ring": 2 * 63, "trees": 2 * 6}.items():
    all_reduce_ms[name] = all_reduce(9652, 64, messages, LATENCY, BANDWIDTH)
    yours[name] = speedup_range(64, 0.2, all_reduce_ms[name])
    low, high = yours[name]
    print(f"your network, {name} of {all_reduce_ms[name]:.3f} ms: {low:.1f} to {high:.1f} times")

resnet_bytes = 4 * 25_557_032  # its parameters in float32
inside = all_reduce(resnet_bytes, 8, 2 * 3, 1.9e-6, 281e9)  # NVLink, trees
between = all_reduce(resnet_bytes / 8, 8, 2 * 3, 4e-6, 23.4e9)  # network cards, trees
low, high = speedup_range(64, 64 / 0.938, inside + between)
print(f"ResNet-50, trees of {inside + between:.2f} ms: {low:.1f} to {high:.1f} times")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Fewer than five: 64 x 0.2 / (0.2 + 2.5) is 4.7. Nearly all of the 2.5 ms is latency, 126 messages of 20 microseconds, and
# a backward pass of 0.13 ms can't hide it. Trees need a tenth of that time, so with them it's 28 to 40 times. ResNet-50
# computes hundreds of times longer, so 64 A100s lose at most 2.3 %.
#
# </details>
#
# So the offer is bad for your small network, and good for a ResNet-50. [Speed](../docs/speed.md#predict-more-devices) shows
# how to predict your own model, on machines with one network inside a node and another between nodes.
#
# ## How wrong is it?
#
# Would you bet on these numbers? Hold them against runs that somebody made. [Goyal et
# al.](https://arxiv.org/abs/1706.02677) trained ResNet-50 on 8 P100 GPUs and on 256. On 8 it took 29 hours for 90 epochs,
# as NVIDIA's blog reported in 2017, so an update of 256 images took 232 ms. In their servers 8 GPUs share a network card of
# 50 Gbit/s, or 6.25 GB/s. So 256 GPUs are a ring of N = 32 servers, over which the formula gives 33 ms more for the 102 MB. [NVIDIA
# published](https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/Classification/ConvNets/resnet50v1.5) runs
# on one and on eight A100s, with 256 images on each. In mixed precision one A100 trained 2,470 images per second, so a step
# takes 104 ms, and the all-reduce of eight is the one inside a machine from above, 0.65 ms.
#
# **Predict:** how much of its speed does each of the eight lose at most, by this calculation?

# %% tags=["prediction"]
# What's predicted without overlap and with full overlap, from the ms of a step in the smaller run
# and of the all-reduce, and what was found.
servers = all_reduce(resnet_bytes, 32, 2 * 31, LATENCY, 6.25e9)
runs = {
    "256 P100 over 8": (*speedup_range(1, 232, servers), 0.9),
    "8 A100 over 1, TF32": (*speedup_range(1, 256 / 0.938, inside), 7248 / (8 * 938)),
    "8 A100 over 1, mixed": (*speedup_range(1, 256 / 2.470, inside), 16621 / (8 * 2470)),
}
lesson_18.predicted_against_found(runs)

# %% [markdown]
# <details><summary>Answer</summary>
#
# At most 0.6 %, because 0.65 ms of about 104 is no more. NVIDIA measured a loss of 16 %, and in TF32 3 % instead of 0.2 %.
# Both are far outside of the range. The 90 % of the P100s are inside, but so is anything from 88 to 100 %. That's luck:
# Goyal et al. hid their all-reduce behind the backward pass, for which the calculation says 100 %. What they lost,
# they must have lost mostly elsewhere.
#
# </details>
#
# The calculation tells you whether *communication* can be a problem. It knows nothing of loading data, launching kernels,
# and waiting for the slowest device. So use it to refuse an offer: if it says five times, don't hope for six. If it says
# 62, take that as the best that you can get, and measure on two devices before you rent the others.

# %% tags=["proof"]
# The asserts behind all answers.
from pmapdp import scaling

assert "length=10" in str(jax.make_jaxpr(ten_updates)(start, ten_batches))  # ten updates, one call
host_batches = list(batches(*train_data, seed=0))[:10]
batch = place_batch(host_batches[0])
text = train_step.lower(state, batch).compile().as_text()
assert text.count(" all-reduce(") == 1
assert sum(leaf.size for leaf in jax.tree.leaves(state[0])) == 2410
singly = start
for host_batch in host_batches:
    singly, _ = one_update(singly, host_batch)
scanned, _ = ten_updates(start, jax.tree.map(lambda *x: np.stack(x), *host_batches))
for one, other in zip(jax.tree.leaves(singly), jax.tree.leaves(scanned), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
for name, milliseconds in all_reduce_ms.items():
    network = scaling.Level(64, LATENCY, BANDWIDTH, trees=name == "trees")
    half = scaling.reduce_scatter(9652, 64, [network])  # the all-gather takes as long
    assert abs(milliseconds / (2e3 * half) - 1) < 1e-9
assert round(all_reduce_ms["ring"], 1) == 2.5
assert round(all_reduce_ms["trees"], 3) == 0.255
assert 4.6 < yours["ring"][0] < yours["ring"][1] < 5
assert 28 < yours["trees"][0] < yours["trees"][1] < 40
assert 62 < low < high == 64
share = scaling.RESNET_SHARES["float32"]
one, many = (
    scaling.predict(scaling.A100, N, 64, scaling.RESNET_PARAMETERS, scaling.RESNET_FLOPS, share)
    for N in (1, 64)
)
np.testing.assert_allclose(1e3 * one.step, 64 / 0.938, rtol=0.01)  # it also has the optimizer
np.testing.assert_allclose(1e3 * many.all_reduce, inside + between, rtol=0.01)
goyal, *nvidia = runs.values()
assert 0.87 < goyal[0] < goyal[2] < goyal[1] == 1
assert all(found < no_overlap - 0.03 for no_overlap, _, found in nvidia)
assert resnet_bytes == 4 * scaling.RESNET_PARAMETERS
assert round(1e3 * 29 * 3600 / 90 / (1_281_167 / 256)) == 232
p100_server = scaling.Level(8, 1.9e-6, 80e9, trees=False)
p100_network = scaling.Level(64, LATENCY, 50e9 / 8 / 8, trees=False)  # a card for 8 GPUs
p100_all_reduces = [
    2e3 * scaling.reduce_scatter(resnet_bytes, N, (p100_server, p100_network)) for N in (8, 256)
]
assert round(p100_all_reduces[1] - p100_all_reduces[0]) == round(servers) == 33
flops = train_step.lower(state, batch).compile().cost_analysis()["flops"]
assert (round(flops / 1e6, 2), round(FLOPS / 8 / 1e6, 2)) == (0.2, 0.16)
intensities = [intensity for intensity, _ in points.values()]
np.testing.assert_allclose(intensities, [4, 4, 3, 3], rtol=0.06)  # also with other options of XLA
assert round(989e12 / 4.8e12) == 206
assert round(2000 * scaling.reduce_scatter(resnet_bytes, 8, scaling.A100.levels), 2) == 0.65
assert round(inside, 2) == 0.65

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
# - Draw one device's roofline before you ask for more. Far below it, put more work into a call.
# - Predict a range, from no overlap to full overlap, and take it as the best that you can get.
#
# The calculation is `predict` in [scaling.py](../pmapdp/scaling.py), and
# `python -m pmapdp.train --workdir runs/first --profile` records a profile.
#
# To read on: JAX on [profiling](https://docs.jax.dev/en/latest/201/profiling.html), and the scaling book on
# [rooflines](https://jax-ml.github.io/scaling-book/roofline/). More examples a second don't always mean more learning, and
# [21 Choose a batch size](21_choose_a_batch_size.ipynb) measures how much. Next, all of the course in one program:
# [19 Train a small GPT](19_train_a_small_gpt.ipynb).

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
# # 06. Communicate between devices
#
# You rent more GPUs, and your training is hardly any faster. The first suspect is `lax.pmean`, and how long that line
# takes depends on what connects your devices. Over the fast links inside a node, eight GPUs can average the gradients
# of a ResNet-50 in about a millisecond. If each GPU is on an ordinary 10 Gbit/s network cable, the same line takes at
# least 144 ms. A formula predicts that from two numbers, before you rent anything, and you'll see how far you can
# trust it.
#
# **You will** explain a ring all-reduce, predict its time and compare it with measured ones, and use JAX's collectives:
# `psum`, `pmean`, `pmax`, `all_gather`, `psum_scatter`, `all_to_all` and `ppermute`. 24 minutes, 44 with exercises. You
# need [05 Average gradients](05_average_gradients.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_06

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## By hand, in NumPy
#
# Four devices hold [1, 2, 3, 4], [10, 20, 30, 40], [100, ...] and [1000, ...]. At the end, each device should hold the
# sum, [1111, 2222, 3333, 4444].
#
# You could let every device send its vector to device 0, which sums them and sends the sum back. But then device 0 has
# to receive N - 1 vectors and send N - 1, and the more devices you have, the longer everybody else waits.
#
# A **ring** shares the work. Cut each vector into N chunks, and in each step let every device send *one chunk* to its
# right neighbour. They all send at the same time, so nobody waits.
#
# - **Reduce-scatter**, N - 1 steps: each device adds the chunk that arrives to its own. At the end, each device has one
#   finished chunk of the sum.
# - **All-gather**, N - 1 steps: each device passes the finished chunks on. At the end, each device has all of them.


# %%
def messages(chunks, step):
    """One message from each device to its right neighbour: (receiver, index, chunk)."""
    N = len(chunks)
    indices = [(d - step) % N for d in range(N)]  # first its own, then the chunk that just arrived
    return [((d + 1) % N, i, chunks[d, i].copy()) for d, i in enumerate(indices)]


def ring_all_reduce(vectors):
    """Return the chunks on the devices before and after every step, and the bytes sent."""
    N = len(vectors)
    chunks = np.array([np.split(vector, N) for vector in vectors])  # [device, chunk, numbers]
    states, bytes_sent = [chunks.copy()], 0
    for step in range(2 * (N - 1)):
        for receiver, i, chunk in messages(chunks, step):
            if step < N - 1:  # reduce-scatter: add
                chunks[receiver, i] += chunk
            else:  # all-gather: copy
                chunks[receiver, i] = chunk
            bytes_sent += chunk.nbytes
        states.append(chunks.copy())
    return states, bytes_sent


vectors = np.outer([1, 10, 100, 1000], [1, 2, 3, 4])  # row d is on device d
states, _ = ring_all_reduce(vectors)
assert (states[-1].reshape(4, 4) == vectors.sum(0)).all()
lesson_06.ring(states, vectors.sum(0))

# %% [markdown]
# Each row is a device, and each column is a chunk. A coloured chunk has just arrived, in its sender's colour, and a
# bold number is a finished sum. Follow the first column: in each of the first three steps, the sum moves on to the next
# device and grows.
#
# There are 2 (N - 1) steps, and in each of them a device sends 1/N of its vector.
#
# **Predict:** how much more does each device send on 64 devices than on 2?

# %% tags=["prediction"]
shares = {}
for N in (2, 4, 8, 64):
    vectors = np.ones((N, 1024))
    _, bytes_sent = ring_all_reduce(vectors)
    shares[N] = bytes_sent / vectors.nbytes
    print(f"{N:2d} devices: each sends {shares[N]:.3f} times its vector, in {2 * (N - 1)} steps")


# %% [markdown]
# <details><summary>Answer</summary>
#
# Not even twice as much. However many devices there are, nobody sends more than twice its vector. Only the number of
# steps grows.
#
# </details>
#
# ## What it costs
#
# A message takes **latency + bytes / bandwidth**. The latency is the time until the first byte arrives, so you pay it
# even for an empty message. In the ring, 2 (N - 1) messages follow one another, each with 1/N of the bytes, and that's
# the whole formula.
#
# The bandwidths below are the peak rates that vendors promise, in one direction. The latencies are round numbers that
# we've assumed, so yours may be half as long, or several times as long.

# %%
def ring_seconds(size, N, latency, bandwidth):
    """Time of an all-reduce of `size` bytes: for the latencies, and for the bytes."""
    steps = 2 * (N - 1)
    return steps * latency, steps * size / N / bandwidth


links = {  # seconds until the first byte, bytes per second that a device can send
    "NVLink, in a node of GPUs": (2e-6, 450e9),
    "InfiniBand, 400 Gbit/s": (4e-6, 50e9),
    "Ethernet, 10 Gbit/s": (50e-6, 1.25e9),
}
parameters = {"lesson 05": 2_410, "ResNet-50": 25_600_000, "7 billion": 7_000_000_000}
networks = {name: 4 * number for name, number in parameters.items()}  # bytes in float32

# %% [markdown]
# Now let's average the gradients of three networks over eight devices, on each of these links. The largest network has
# seven billion parameters, and its gradients are 28 GB in float32.
#
# **Predict:** roughly how long do these 28 GB take over NVLink: a tenth of a second, a second, or ten seconds?

# %% tags=["prediction"]
for link, (latency, bandwidth) in links.items():
    for network, size in networks.items():
        wait, send = ring_seconds(size, 8, latency, bandwidth)
        larger = "latency" if wait > send else "bytes"
        print(f"{link:31s} {network:10s} {1e3 * (wait + send):10,.3f} ms, mostly {larger}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# A tenth of a second: each GPU sends 2 * 7 / 8 times 28 GB at 450 GB/s, which takes 0.109 s, and the 14 latencies
# together are only 0.00003 s. For lesson 05's small network it's the other way round: on every link, most of the time
# is latency.
#
# The two costs are equal if a chunk, `size / N`, takes as long to send as the latency. That's at N * latency *
# bandwidth, which on NVLink is 8 * 2 µs * 450 GB/s = 7 MB.
#
# </details>
#
# Small messages are expensive, so don't send one for every array of the network. One message for everything isn't
# always best either, as you'll see below, because it can't leave before the last gradient is ready. For small messages
# on many devices, libraries also use algorithms with fewer steps: trees, or the butterfly of exercise 2.
#
# ## Does the formula hold?
#
# You can time an all-reduce on your laptop, on eight simulated devices. They share one memory, so there's no link
# between them, but you'll see whether the time behaves the way the formula says: flat at first, then proportional to
# the size.
#
# For a real link we take two rates from JAX's [scaling book](https://jax-ml.github.io/scaling-book/gpus/). They were
# measured on eight H100s in one node, with the switches told not to do any summing themselves. With 58 MB the links of
# each GPU carry about 150 GB/s, and with 10 GB about 370 GB/s. The vendor promises 450.

# %%
all_reduce = jax.pmap(lambda x: lax.psum(x, "data"), axis_name="data")
cpu_seconds = {}  # by the bytes of the gradient
for size in (10**3, 10**4, 10**5, 10**6, 10**7):
    x = all_reduce(np.zeros((8, size // 4), np.float32))  # compiles, and puts x on the devices
    cpu_seconds[size] = lesson_06.shortest_time(all_reduce, x)
h100_bandwidth = {58e6: 150e9, 10e9: 370e9}  # bytes per second, by the bytes of the gradient
h100_seconds = {size: 2 * 7 / 8 * size / rate for size, rate in h100_bandwidth.items()}
dots = {
    "eight simulated devices, measured": cpu_seconds,
    "eight H100s, at the book's rates": h100_seconds,
}
lesson_06.seconds_by_size(ring_seconds, links, networks, dots)
for size, seconds in cpu_seconds.items():
    print(f"simulated devices, {size:10,d} bytes: {1e3 * seconds:.2f} ms")
for size, seconds in h100_seconds.items():
    prediction = sum(ring_seconds(size, 8, *links["NVLink, in a node of GPUs"]))
    rate = f"{h100_bandwidth[size] / 1e9:.0f} GB/s"
    comparison = f"about {1e3 * seconds:.1f} ms, from the book's {rate}"
    print(f"H100, {size / 1e6:,.0f} MB: {comparison}; predicted {1e3 * prediction:.1f} ms")

# %% [markdown]
# The shape is roughly what we predicted. From 1 KB to 1 MB the bytes grow a thousandfold, and the time grows far less,
# but from there on it grows with the bytes. Which line the grey dots happen to be near means nothing.
#
# Real H100s fall short of their data sheet: with 10 GB they take about 1.2 times as long as the formula says, and with
# 58 MB as much as 2.7 times, because only large messages fill the links. A ResNet-50 has 102 MB of gradients, so
# the 0.43 ms in the table become about a millisecond, as promised at the top. Measure an all-reduce or two on your own
# machine, and put *those* numbers into the formula.
#
# ## How to live with a slow link
#
# The batch size isn't in the formula at all. If you double the per-device batch, the computation takes about twice as
# long, but the all-reduce takes no longer than before, so its *share* of the step falls.
#
# You can also send while you compute. The backward pass finishes the last layer's gradient first, so why wait for the
# others? DDP collects gradients in buckets of about 25 MB, and sends each bucket as soon as it's full, while the
# backward pass is still working on the earlier layers. XLA can overlap like this, too. Or it can merge the all-reduces
# into one, which saves latency.

# %%
from pmapdp.lessons import drawing

drawing.overlap("merged", "overlapped")

# %% [markdown]
# If you merge everything, you pay the latency only once, but nothing is left to overlap with. What does XLA do on your
# CPU? Let's average four arrays, as many as lesson 05's network has, and count the all-reduces before and after
# compiling.

# %%
gradients = [np.ones((8, *shape), np.float32) for shape in ((64, 32), (32,), (32, 10), (10,))]
average = jax.pmap(lambda gradients: lax.pmean(gradients, "data"), axis_name="data")
lowered = average.lower(gradients)  # what the compiler gets
count_before = lowered.as_text().count("stablehlo.all_reduce")
count_after = lowered.compile().as_text().count(" all-reduce(")
print("before compiling:", count_before, "| after:", count_after)

# %% [markdown]
# XLA has merged the four into one. On GPUs, [XLA's flags](https://docs.jax.dev/en/latest/gpu_performance_tips.html)
# decide how large a merged message may get, and whether XLA overlaps.
#
# ## JAX's collectives
#
# An operation that all devices take part in is a **collective**, and `psum` and `pmean` are only two of them. A
# collective names the mapped axis: "sum this over `data`". All devices arrive at the same line, and wait for each other
# there. In the picture, a box in the middle is an addition, and a plain arrow is a copy. `pmax` isn't drawn, because
# it's `psum` with a maximum in the box.

# %%
lesson_06.collectives()

# %% [markdown]
# Here are all seven, on the four vectors that went around the ring. Two more functions don't send anything:
# `axis_index` tells a device its number, and `axis_size` tells it how many devices there are. Take the cell home as a
# reference. The comments give each result's shape on one device, and the second half computes the same thing in NumPy.
#
# **Predict:** what does device 1 get from `psum_scatter`?


# %% tags=["take-home", "prediction"]
"""Call seven collectives on four devices, and compare them with NumPy."""

import os

import jax
import numpy as np
from jax import lax

os.environ["NPROC"] = "16"  # threads for 8 simulated devices: jax before 0.12 may abort with fewer
jax.config.update("jax_num_cpu_devices", 8)  # simulated, unless there are GPUs or TPUs
four = jax.devices()[:4]
assert len(four) == 4, "this needs four devices: run it with JAX_PLATFORMS=cpu"
ring = [(d, (d + 1) % 4) for d in range(4)]  # (from, to): each device sends to its right neighbour


def call_collectives(x):
    """Return what one device gets. It holds one row, `x` [4]."""
    return {
        "psum": lax.psum(x, "data"),  # [4]: the sum, on every device (all-reduce)
        "pmean": lax.pmean(x, "data"),  # [4]: the mean, on every device
        "pmax": lax.pmax(x, "data"),  # [4]: the largest in each place
        "all_gather": lax.all_gather(x, "data"),  # [4, 4]: everyone's rows
        "psum_scatter": lax.psum_scatter(x, "data", tiled=True),  # [1]: one chunk of the sum
        "all_to_all": lax.all_to_all(x, "data", 0, 0, tiled=True),  # [4]: one number from everyone
        "ppermute": lax.ppermute(x, "data", ring),  # [4]: the left neighbour's row
        "axis_index": lax.axis_index("data"),  # []: my number
        "axis_size": lax.axis_size("data"),  # a Python number: how many we are
    }


def numpy_results(rows):
    """The same in NumPy, for all devices at once: `rows` [4, 4], row d from device d."""
    return {
        "psum": [rows.sum(0)] * 4,
        "pmean": [rows.mean(0)] * 4,
        "pmax": [rows.max(0)] * 4,
        "all_gather": [rows] * 4,
        "psum_scatter": rows.sum(0).reshape(4, 1),
        "all_to_all": rows.T,
        "ppermute": np.roll(rows, 1, axis=0),
        "axis_index": np.arange(4),
        "axis_size": [4] * 4,
    }


rows = np.outer([1, 10, 100, 1000], [1, 2, 3, 4]).astype(np.float32)  # row d for device d
results = jax.device_get(jax.pmap(call_collectives, axis_name="data", devices=four)(rows))
for name, result in numpy_results(rows).items():
    np.testing.assert_allclose(results[name], result, rtol=1e-6)
    print(f"{name:12s} as in NumPy; device 1 gets {results[name][1].tolist()}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# [2222], chunk 1 of the sum. With `tiled=True`, an array [4] becomes [1]. Without it, the array must have N rows, and
# each device gets one row of the sum, here a [] (a scalar).
#
# </details>
#
# `psum_scatter` is the first half of the ring, and `all_gather` is the second. So if you call one after the other, you
# get an all-reduce. But you can also do something in between: let each device add its own number to its chunk of the
# sum.
#
# **Predict:** what do the four devices hold at the end?


# %% tags=["prediction"]
def change_between_halves(x):
    chunk = lax.psum_scatter(x, "data", tiled=True)
    chunk = chunk + lax.axis_index("data")
    return lax.all_gather(chunk, "data", tiled=True)


outputs = jax.device_get(jax.pmap(change_between_halves, axis_name="data", devices=four)(rows))
for d, output in enumerate(outputs):
    print(f"device {d} holds {output.tolist()}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# All four hold [1111, 2223, 3335, 4447]. Each device has changed one chunk, and the all-gather hands every chunk to
# everyone. In lesson 16 each device will use the moment between the halves to update its own chunk of the
# model, so it keeps the optimizer state for this chunk only.
#
# </details>
#
# In your own programs, write `psum` or `pmean`, not a ring. The library knows how your devices are wired, and chooses
# between a ring and a tree for you.

# %% tags=["proof"]
# The asserts behind the answers, and behind the first paragraph.
for N, share in shares.items():
    assert np.isclose(share, 2 * (N - 1) / N)
assert round(networks["ResNet-50"] / 1e6) == 102
assert 0.14 < sum(ring_seconds(networks["ResNet-50"], 8, *links["Ethernet, 10 Gbit/s"])) < 0.15
for link in links.values():
    small, large = (ring_seconds(networks[name], 8, *link) for name in ("lesson 05", "7 billion"))
    assert small[0] > small[1]
    assert large[0] < large[1]
wait, send = ring_seconds(networks["7 billion"], 8, *links["NVLink, in a node of GPUs"])
assert (round(send, 3), round(wait, 5)) == (0.109, 0.00003)
latency, bandwidth = links["NVLink, in a node of GPUs"]
even = 8 * latency * bandwidth  # bytes for which the latencies cost as much as the bytes
assert round(even / 1e6) == 7
np.testing.assert_allclose(*ring_seconds(even, 8, latency, bandwidth))
assert (count_before, count_after) == (4, 1)
for size, times in ((10e9, 1.2), (58e6, 2.7)):
    prediction = sum(ring_seconds(size, 8, *links["NVLink, in a node of GPUs"]))
    assert round(h100_seconds[size] / prediction, 1) == times
np.testing.assert_allclose(outputs, results["psum"] + np.arange(4), rtol=1e-6)

# %% [markdown]
# ## How it fails
#
# Let's misspell the axis:

# %%
try:
    print(jax.pmap(lambda x: lax.psum(x, "batch"), axis_name="data")(rows))
except NameError as error:
    print(f"NameError: {error}")

# %% [markdown]
# JAX notices the mistake while it traces the function, before anything runs. The message names `jax.shard_map`, because
# that's today's way to name an axis, as you'll see in lesson 10.
#
# There's a worse failure, which we won't run. If only some of the devices reach a collective, they wait for the others
# until XLA gives up or someone kills the process. So never put a collective into a branch that depends on `axis_index`.
#
# ## Exercises
#
# Each function is the code of one device. The checks map it with `axis_name="data"`. Solutions, with reasons:
# [solutions/06_communicate_between_devices.py](solutions/06_communicate_between_devices.py).
#
# 1. `broadcast` (5 minutes): return device 0's `x` on every device, as it is. Any device may hold NaN, even device 0.
#    <details><summary>Hint</summary>Replace x by 0 on the others with <code>jnp.where</code>, and sum. Multiplying by 0
#    isn't enough: 0 times NaN is NaN.</details>
# 2. `butterfly_sum` (10 minutes): an all-reduce in log2 N rounds. N is a power of two. In round r = 1, 2, ..., device d
#    and device `d ^ 2**(r - 1)` (exclusive or) exchange their sums, and each adds what arrives. The picture below shows
#    the rounds. Communicate only with `ppermute`. The check runs on 2, 4 and 8 devices, and `lax.axis_size("data")` is
#    N. The order of the rounds is free: the check accepts any partners that give every device the sum after log2 N
#    rounds. Then ask yourself how many bytes a device sends. <details><summary>Hint</summary>The list of pairs has one
#    entry for each device: from d to its partner.</details>
# 3. `fixed_softmax` (5 minutes, find the mistake): a row of logits is split over the devices, `[b]` on each, and the
#    softmax goes over all of them. `broken_softmax` subtracts the largest logit, so that no exp overflows, and its
#    results sum to 1, but they're wrong. <details><summary>Hint</summary>Which number does each device
#    subtract?</details>

# %%
drawing.rounds_of_sums(on_all=True)


def broken_softmax(logits):  # [b]
    exponentials = jnp.exp(logits - logits.max())
    return exponentials / lax.psum(exponentials.sum(), "data")


split_logits = np.array([[0.0, 1.0], [3.0, 4.0]], np.float32)  # [N, b]
print("broken: ", np.ravel(jax.pmap(broken_softmax, axis_name="data")(split_logits)).round(3))
print("correct:", np.asarray(jax.nn.softmax(split_logits.ravel())).round(3))

# %%
from pmapdp.lessons.checks import check


def broadcast(x):
    """Return device 0's array on each device."""
    ...  # your code: 1 or 2 lines


def butterfly_sum(x):
    """The sum over all devices, in log2 N rounds of `ppermute`."""
    ...  # your code: 4 to 6 lines


def fixed_softmax(logits):
    """This device's `[b]` of the softmax over all devices' logits."""
    ...  # your code: 2 lines


for exercise in (broadcast, butterfly_sum, fixed_softmax):
    check("06_communicate_between_devices", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - In a ring all-reduce nobody sends more than twice its vector, in 2 (N - 1) messages. Its time is the latencies plus
#   the bytes over the bandwidth, which is less than the vendor promises.
# - An all-reduce is a reduce-scatter and an all-gather. Collectives name the mapped axis, and all devices must reach
#   them.
# - An all-reduce costs the same for any batch size. A large per-device batch makes its share of the step small, and
#   overlap can hide it.
#
# In pmapdp, the collectives of a step are in [steps/pmap.py](../pmapdp/steps/pmap.py).
# [collectives.py](../pmapdp/collectives.py) lists a compiled program's collectives with their bytes, and
# [scaling.py](../pmapdp/scaling.py) has your formula, extended to trees and to several nodes. To read on:
# [the JAX scaling book](https://jax-ml.github.io/scaling-book/sharding/). Next, a layer that needs a collective in the
# middle of the network: [07 Synchronize batch norm](07_synchronize_batch_norm.ipynb).

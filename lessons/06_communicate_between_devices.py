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
# Your `lax.pmean` is one line, and it can take longer than the rest of the step. Inside a node with fast links, eight
# GPUs average the gradients of a ResNet-50 in less than half a millisecond. Over an ordinary network cable the same line
# takes a seventh of a second. In this lesson you'll build an all-reduce with your own hands, and find a formula with two
# numbers in it that tells you which of the two you have, before you buy anything.
#
# **You will** explain a ring all-reduce, predict its time from latency and bandwidth, and use JAX's collectives:
# `psum`, `pmean`, `pmax`, `all_gather`, `psum_scatter`, `all_to_all` and `ppermute`. 20 minutes, 40 with exercises. You
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
# Four devices hold [1, 2, 3, 4], [10, 20, 30, 40], [100, ...] and [1000, ...]. At the end, each of them should hold the
# sum, [1111, 2222, 3333, 4444].
#
# The obvious way: everyone sends its vector to device 0, device 0 adds, and sends the sum back to everyone. But then
# device 0 receives N - 1 vectors and sends N - 1, while everyone else waits. With more devices, it only gets worse.
#
# The **ring** shares the work. Cut each vector into N chunks. In each step, every device sends *one chunk* to its right
# neighbour, and they all send at the same time.
#
# - **Reduce-scatter**, N - 1 steps: add the chunk that arrives to your own. At the end, each device has one finished
#   chunk of the sum.
# - **All-gather**, N - 1 steps: pass the finished chunks on.


# %%
def ring_all_reduce(vectors):
    """Return the arrays on the devices before and after every step, and the bytes sent."""
    n = len(vectors)
    held = [np.array_split(vector, n) for vector in vectors]  # held[device][chunk]
    states, sent = [np.array([np.concatenate(chunks) for chunks in held])], 0
    for step in range(2 * (n - 1)):
        messages = [held[d][(d - step) % n].copy() for d in range(n)]  # all leave, then all arrive
        for d, message in enumerate(messages):
            chunk, right = (d - step) % n, (d + 1) % n
            held[right][chunk] = held[right][chunk] + message if step < n - 1 else message
            sent += message.nbytes
        states.append(np.array([np.concatenate(chunks) for chunks in held]))
    return states, sent


vectors = np.array([1, 2, 3, 4]) * 10 ** np.arange(4)[:, None]  # row d is on device d
states, _ = ring_all_reduce(vectors)
assert (states[-1] == vectors.sum(0)).all()
lesson_06.ring(states, vectors.sum(0))

# %% [markdown]
# Rows are devices, columns are chunks. A coloured chunk has just arrived, and has the colour of its sender. Bold numbers
# are finished sums. Follow the first column: in each of the first three steps, the sum moves on to the next device and
# grows.
#
# There are 2 (N - 1) steps, and in each of them a device sends 1/N of its vector.
#
# **Predict:** how much more does each device send on 64 devices than on 2?

# %% tags=["prediction"]
shares = {}
for n in (2, 4, 8, 64):
    _, sent = ring_all_reduce(np.ones((n, 1024)))
    shares[n] = sent / n / (1024 * 8)
    print(f"{n:2d} devices: each sends {shares[n]:.3f} times its vector, in {2 * (n - 1)} steps")

# %% tags=["proof"]
# The asserts behind the answer.
for n, share in shares.items():
    assert np.isclose(share, 2 * (n - 1) / n)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Less than twice as much. However many devices there are, nobody sends more than two vectors. What grows is the number
# of steps.
#
# </details>
#
# ## What it costs
#
# A message takes **latency + bytes / bandwidth**. The latency is the time until the first byte arrives, and you pay it
# for an empty message, too. In the ring, 2 (N - 1) messages follow each other, and each has 1/N of the bytes. That's the
# whole formula. The links below have their vendors' peak figures. Real bandwidth is lower and real latency higher, so put
# in your own.
#
# **Predict:** for which network is the latency more important than the bandwidth, a small one or a large one?


# %% tags=["prediction"]
def ring_seconds(size, N, latency, bandwidth):
    """Time of an all-reduce of `size` bytes: for the latencies, and for the bytes."""
    messages = 2 * (N - 1)
    return messages * latency, messages * size / N / bandwidth


links = {  # seconds until the first byte, bytes per second in one direction
    "NVLink, in a node of GPUs": (2e-6, 450e9),
    "TPU v5e, one axis of the torus": (1e-6, 100e9),
    "InfiniBand, 400 Gbit/s": (5e-6, 50e9),
    "Ethernet, 10 Gbit/s": (50e-6, 1.25e9),
}
parameters = {"lesson 05": 2_410, "ResNet-50": 25_600_000, "7 billion": 7_000_000_000}
networks = {name: 4 * number for name, number in parameters.items()}  # bytes in float32
for link, numbers in links.items():
    for network, size in networks.items():
        wait, send = ring_seconds(size, 8, *numbers)
        more = "latency" if wait > send else "bytes"
        print(f"{link:31s} {network:10s} {1e3 * (wait + send):10,.3f} ms, mostly {more}")
lesson_06.seconds_by_size(ring_seconds, links, networks)

# %% tags=["proof"]
# The asserts behind the answer, and behind the first paragraph.
nvlink, *_, ethernet = (
    sum(ring_seconds(networks["ResNet-50"], 8, *link)) for link in links.values()
)
assert 0.13 < ethernet < 0.16
assert nvlink < 0.5e-3
for link in links.values():
    small, large = (ring_seconds(networks[name], 8, *link) for name in ("lesson 05", "7 billion"))
    assert small[0] > small[1]
    assert large[0] < large[1]

# %% [markdown]
# <details><summary>Answer</summary>
#
# For the small one, on every link. The curves are flat where the latency rules, and rise with the size where the bytes
# do. The two are equal at N x latency x bandwidth: about 7 MB on NVLink.
#
# </details>
#
# So one message with all gradients is cheaper than one for each layer. (For small messages on many devices, libraries
# also use algorithms with fewer steps: trees, or the butterfly of exercise 2.)
#
# The batch isn't in the formula. If you double the per-device batch, the computation takes twice as long and the
# all-reduce takes the same, so its *share* of the step falls. That's the first way to live with a slow link.
#
# ## The second way: overlap
#
# The last layer's gradient is ready first. So why wait for the others? DDP sends it while the backward pass is still
# working on the layers before. XLA can do the same, or it can merge the all-reduces into one, which saves latency.

# %%
lesson_06.overlap()

# %% [markdown]
# If you merge everything, you pay the latency once, but then nothing is left to overlap with. To overlap, you need at least
# two all-reduces, and hardware that can send while it computes. What does XLA do on our CPU?
#
# **Predict:** we average four arrays, as lesson 05's program does. How many all-reduces are in the program that JAX hands
# to the compiler, and how many come out?

# %% tags=["prediction"]
gradients = [np.ones((8, *shape), np.float32) for shape in ((64, 32), (32,), (32, 10), (10,))]
program = jax.pmap(lambda gradients: lax.pmean(gradients, "data"), axis_name="data")
program = program.lower(gradients)
before = program.as_text().count("stablehlo.all_reduce")
after = program.compile().as_text().count(" all-reduce(")
print("before compiling:", before, "| after:", after)

# %% tags=["proof"]
# The asserts behind the answer.
assert (before, after) == (4, 1)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four go in, and one comes out. On GPUs, XLA's flags decide up to which size it merges, and whether it overlaps
# ([GPU performance tips](https://docs.jax.dev/en/latest/gpu_performance_tips.html)). Lesson 18 shows how to see it in a
# profile.
#
# </details>
#
# ## JAX's collectives
#
# An operation that all devices take part in is a **collective**. It names the mapped axis: "add this up over `data`". All
# devices come to the same line and wait for each other there. In the picture, values that go through a grey box are added
# up, and all others are only copied.

# %%
lesson_06.collectives()

# %% [markdown]
# Here they all are, on the four vectors from above. Take the cell home as a reference. The comments say which shape each
# result has on one device.
#
# **Predict:** what does device 1 get from `psum_scatter`? And from `ppermute`?


# %% tags=["take-home", "prediction"]
"""Call every collective on four devices."""

import os

import jax
import numpy as np
from jax import lax

os.environ["NPROC"] = "16"  # threads for eight simulated devices, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # simulated, unless there are GPUs or TPUs
four = jax.devices()[:4]
to_the_right = [(d, (d + 1) % 4) for d in range(4)]  # (from, to)


def collect(x):  # x [4], one device's row
    return {
        "psum": lax.psum(x, "data"),  # [4]: the sum, on every device (all-reduce)
        "pmean": lax.pmean(x, "data"),  # [4]: the mean, on every device
        "pmax": lax.pmax(x, "data"),  # [4]: the largest in each place
        "all_gather": lax.all_gather(x, "data"),  # [4, 4]: everyone's rows
        "psum_scatter": lax.psum_scatter(x, "data", tiled=True),  # [1]: one chunk of the sum
        "all_to_all": lax.all_to_all(x, "data", 0, 0, tiled=True),  # [4]: one number from everyone
        "ppermute": lax.ppermute(x, "data", to_the_right),  # [4]: the left neighbour's row
        "axis_index": lax.axis_index("data"),  # []: my number
    }


rows = np.array([1, 2, 3, 4], np.float32) * 10 ** np.arange(4, dtype=np.float32)[:, None]
result = jax.device_get(jax.pmap(collect, axis_name="data", devices=four)(rows))
for name, value in result.items():
    print(f"{name:12s} on device 1: {value[1].tolist()}")

# %% tags=["proof"]
# The asserts behind the answer.
np.testing.assert_allclose(result["psum"], [rows.sum(0)] * 4, rtol=1e-6)
np.testing.assert_allclose(result["pmean"], [rows.mean(0)] * 4, rtol=1e-6)
np.testing.assert_array_equal(result["pmax"], [rows.max(0)] * 4)
np.testing.assert_array_equal(result["all_gather"], [rows] * 4)
np.testing.assert_allclose(result["psum_scatter"], rows.sum(0).reshape(4, 1), rtol=1e-6)
np.testing.assert_array_equal(result["all_to_all"], rows.T)
np.testing.assert_array_equal(result["ppermute"], np.roll(rows, 1, axis=0))

# %% [markdown]
# <details><summary>Answer</summary>
#
# [2222], chunk 1 of the sum, and [1, 2, 3, 4], the row of device 0. (`tiled=True` cuts the axis you have. Without it, the
# axis must have length N, and disappears.)
#
# </details>
#
# `psum_scatter` is the first half of the ring, and `all_gather` is the second.
#
# **Predict:** what do you get if you call one after the other?


# %% tags=["prediction"]
def in_two_halves(x):
    chunk = lax.psum_scatter(x, "data", tiled=True)
    return lax.all_gather(chunk, "data", tiled=True)


halves = jax.pmap(in_two_halves, axis_name="data", devices=four)(rows)
print("on device 1:", jax.device_get(halves)[1].tolist())

# %% tags=["proof"]
# The asserts behind the answer.
np.testing.assert_allclose(halves, result["psum"], rtol=1e-6)

# %% [markdown]
# <details><summary>Answer</summary>
#
# An all-reduce. Between the two halves each device holds a different chunk of the sum. Lesson 16 makes use of that: each
# device updates its own chunk of the model, and needs the optimizer state for this chunk only (ZeRO).
#
# </details>
#
# In your programs, write `psum`. The library chooses between ring and tree, because it knows how the devices are wired.
#
# ## How it fails
#
# **Predict:** what happens if you misspell the axis?

# %% tags=["prediction"]
try:
    print(jax.pmap(lambda x: lax.psum(x, "batch"), axis_name="data")(rows))
except NameError as error:
    outcome = f"NameError: {error}"
    print(outcome)

# %% tags=["proof"]
# The asserts behind the answer.
assert outcome.startswith("NameError")

# %% [markdown]
# <details><summary>Answer</summary>
#
# JAX finds it while it traces. You get the same error for a collective outside of `pmap`.
#
# </details>
#
# There's a worse failure, and we won't run it: if only some devices reach a collective, they hang until someone kills the
# process. So never put a collective into a branch that depends on `axis_index`.
#
# ## Exercises
#
# Each function is the code of one device. The checks map it with `axis_name="data"`. Solutions, with reasons:
# [solutions/06_communicate_between_devices.py](solutions/06_communicate_between_devices.py).
#
# 1. `broadcast` (5 minutes): return device 0's `x` on every device. The others may hold anything, even NaN.
#    <details><summary>Hint</summary>Replace x by 0 on the others with <code>jnp.where</code>, and add up. Multiplying by 0
#    isn't enough: 0 times NaN is NaN.</details>
# 2. `butterfly_sum` (10 minutes): an all-reduce in log2 N rounds. N is a power of two. In round r = 1, 2, ..., device d
#    and device `d ^ 2**(r - 1)` (exclusive or) exchange their sums, and each adds what arrives. The picture below shows
#    the rounds. Communicate only with `ppermute`. Then ask yourself how many bytes a device sends.
#    <details><summary>Hint</summary>The list of pairs has one entry for each device: from d to its partner.</details>
# 3. `fixed_softmax` (5 minutes, find the mistake): a row of logits is split over the devices, `[b]` on each, and the
#    softmax goes over all of them. `broken_softmax` subtracts the largest logit, so that no exp overflows, and its results
#    add up to 1. But they're wrong. <details><summary>Hint</summary>Which number does each device
#    subtract?</details>

# %%
from pmapdp.lessons import drawing

drawing.rounds_of_sums(on_all=True)


def broken_softmax(logits):  # [b]
    exponentials = jnp.exp(logits - logits.max())
    return exponentials / lax.psum(exponentials.sum(), "data")


split_logits = np.array([[0.0, 1.0], [3.0, 4.0]], np.float32)  # [N, b]
print("broken:", np.ravel(jax.pmap(broken_softmax, axis_name="data")(split_logits)).round(3))
print("right: ", np.asarray(jax.nn.softmax(split_logits.ravel())).round(3))

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
# - In a ring all-reduce nobody sends more than two vectors, in 2 (N - 1) messages. Its time is the latencies plus the bytes
#   over the bandwidth.
# - An all-reduce is a reduce-scatter and an all-gather. Collectives name the mapped axis, and all devices must reach them.
# - The cost doesn't depend on the batch. A large per-device batch makes its share small, and overlap can hide it.
#
# In pmapdp, the collectives of a step are in [steps/pmap.py](../pmapdp/steps/pmap.py). To read on:
# [the JAX scaling book](https://jax-ml.github.io/scaling-book/sharding/). Next, a layer that needs a collective in the
# middle of the network: [07 Synchronize batch norm](07_synchronize_batch_norm.ipynb).

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
# # 06. Communicate between devices
#
# After this lesson you can say what the one line of lesson 05 costs: build an all-reduce by hand, predict its time from
# latency and bandwidth, and use `psum`, `pmean`, `pmax`, `all_gather`, `psum_scatter` and `ppermute` inside `pmap`.
#
# About 30 minutes · you need [04 Map over devices](04_map_over_devices.ipynb) and the first half of
# [05 Average gradients](05_average_gradients.ipynb) · next:
# [07 Synchronize batch norm](07_synchronize_batch_norm.ipynb)
#
# `lax.pmean` left the average of eight gradients on every device. This operation is called an **all-reduce** (in
# PyTorch: `dist.all_reduce`). How do the devices do that, and how long does it take?

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp import devices  # simulates devices (lesson 00) and describes them
from pmapdp.lessons import drawing  # a picture that two lessons share

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"
print(devices.describe(jax.devices()))

# %% [markdown]
# ## By hand, in NumPy
#
# Four devices hold [1, 2, 3, 4], [10, 20, 30, 40], [100, ...] and [1000, ...]. At the end each of them should hold the
# sum, [1111, 2222, 3333, 4444].
#
# The simplest way: every device sends its vector to device 0, which adds them up and sends the sum back. Then N - 1
# vectors arrive at device 0 and N - 1 vectors leave it, while the other devices wait. The more devices there are, the
# longer this takes.
#
# The **ring** distributes the work. Cut each vector into N chunks. In every step, each device sends *one chunk* to its
# right neighbour, and all devices send at the same time.
#
# - **reduce-scatter**, N - 1 steps: each device adds the chunk that arrives to its own chunk. At the end each device
#   has one finished chunk of the sum.
# - **all-gather**, N - 1 steps: the devices pass the finished chunks on.

# %%
N = 4
vectors = np.array([1, 2, 3, 4]) * 10 ** np.arange(N)[:, None]  # [N, D]: row d is on device d


def ring_all_reduce(vectors):
    """What the devices hold before and after every step, and the bytes that all of them sent together."""
    held = [list(np.array_split(vector, len(vectors))) for vector in vectors]  # held[device][chunk]
    states, sent = [np.array([np.concatenate(chunks) for chunks in held])], 0
    n = len(vectors)
    for step in range(2 * (n - 1)):
        reducing = step < n - 1
        # Device d sends chunk d - step; all messages leave before any arrives.
        messages = [held[d][(d - step) % n].copy() for d in range(n)]
        for d, message in enumerate(messages):
            chunk, right = (d - step) % n, (d + 1) % n
            held[right][chunk] = held[right][chunk] + message if reducing else message
            sent += message.nbytes
        states.append(np.array([np.concatenate(chunks) for chunks in held]))
    return states, sent


states, sent = ring_all_reduce(vectors)
print(states[0], states[-1], sep="\n\n")
assert (states[-1] == vectors.sum(0)).all()

# %% [markdown]
# At the end, all rows are the sum. The picture shows every step. A row is a device, and a column is a chunk. A coloured
# chunk has just arrived, and has the colour of the device that sent it. A bold number is a finished sum. Follow the
# first column: in each of the first three steps, the sum moves to the next device and grows.

# %%
from pmapdp.lessons.pictures import lesson_06

lesson_06.ring(states, vectors.sum(0))

# %% [markdown]
# After three steps, each device has one bold number. After three more steps, each device has all four.
#
# There are 2 (N - 1) steps, and in each step a device sends 1/N of the vector. So it sends 2 (N - 1)/N times the size
# of the vector. **Predict:** how much more does each device send on 64 devices than on 2?

# %% tags=["prediction"]
shares = {}
for n in (2, 4, 8, 64):
    _, total = ring_all_reduce(np.ones((n, 1024)))
    shares[n] = total / n / (1024 * 8)  # vectors of 1,024 numbers of 8 bytes
    print(f"{n:4d} devices: each sends {shares[n]:.3f} times the vector, in {2 * (n - 1)} steps")

# %% tags=["proof"]
# The asserts behind the answer.
for n, share in shares.items():
    assert np.isclose(share, 2 * (n - 1) / n)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Less than twice as much. However many devices there are, a device sends less than two vectors. But the number of steps
# grows with N.
#
# </details>
#
# ## What it costs
#
# A message of `size` bytes takes **latency + size / bandwidth**. The latency is the time until the first byte arrives,
# and it is paid even for an empty message. In the ring, 2 (N - 1) messages of `size / N` bytes follow each other. The
# next cell computes the time for three networks and three links. The numbers of the links are rough, and measured ones
# are often lower: put in your own. **Predict:** for which of the nine does the latency matter more than the bandwidth?

# %% tags=["prediction"]
from flax import nnx


def ring_seconds(size, devices, latency, bandwidth):
    """Time of an all-reduce of `size` bytes in a ring: (for the latency, for the bytes), in seconds."""
    messages = 2 * (devices - 1)
    return messages * latency, messages * size / devices / bandwidth


def gradient_bytes(make_model):
    """Bytes of one gradient of a Flax model; nothing is computed or allocated."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(make_model)))


def two_layers():
    return [nnx.Linear(64, 64, rngs=nnx.Rngs(0)), nnx.Linear(64, 10, rngs=nnx.Rngs(0))]  # the network of lesson 05


models = {  # bytes of a gradient in float32
    "lesson 05": gradient_bytes(two_layers),
    "ResNet-50": 25_600_000 * 4,
    "7 billion": 7_000_000_000 * 4,
}
links = {  # seconds until the first byte, bytes per second in one direction
    "in a node (NVLink)": (3e-6, 450e9),
    "InfiniBand, 400 Gbit/s": (5e-6, 50e9),
    "Ethernet, 10 Gbit/s": (50e-6, 1.25e9),
}
for link, (latency, bandwidth) in links.items():
    for model, size in models.items():
        wait, send = ring_seconds(size, 8, latency, bandwidth)
        more = "latency" if wait > send else "bytes"
        print(f"{link:23s} {model:10s} {size / 1e6:9,.2f} MB: {1e3 * (wait + send):10,.3f} ms, mostly {more}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only for the smallest network. That is why XLA and DDP combine small gradients into one message (lesson 05). The two
# parts are equal at a size of N x latency x bandwidth: about 11 MB on NVLink. For small messages on many devices,
# libraries use algorithms with fewer steps, such as trees, or the butterfly of the second exercise.
#
# </details>
#
# The time does not depend on the number of examples. So a larger batch for each device hides the communication: lesson
# 18 asks how large it must be.
#
# ## The collectives of JAX
#
# An operation in which all devices take part is called a **collective**. `pmap` gives the mapped axis a name, and a
# collective refers to this name: "add this up over `data`". All devices run the same line, and wait for each other
# there. With `tiled=True`, `psum_scatter` cuts an existing axis into chunks, so the result has as many axes as `x`.
#
# The picture shows what three devices hold before and after. A grey box adds up; without one, the values arrive as they
# are.

# %%
lesson_06.collectives()

# %% [markdown]
# The next cell runs alone. It calls each collective on four devices with the vectors from above, and says what it costs
# in a ring. **Predict:** which of them takes longest?


# %% tags=["take-home", "prediction"]
import os

import jax
import numpy as np
from jax import lax

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

four = jax.devices()[:4]
N = len(four)


def collect(x):  # x [D], one device's row; D is a multiple of N
    return {
        "psum": lax.psum(x, "data"),  # all-reduce: the sum on every device
        "pmean": lax.pmean(x, "data"),  # the sum / N
        "pmax": lax.pmax(x, "data"),  # the largest, for each place of the vector
        "all_gather": lax.all_gather(x, "data"),  # [N, D]: the rows of all devices
        "psum_scatter": lax.psum_scatter(x, "data", tiled=True),  # [D / N]: one chunk of the sum
        "ppermute": lax.ppermute(x, "data", [(d, (d + 1) % N) for d in range(N)]),  # from the left
        "axis_index": lax.axis_index("data"),  # the number of this device on the axis
    }


def messages(kind, size, N):
    """In a ring, for `size` bytes on each device: the messages that it sends one after another, and the bytes of each."""
    number = {"all_gather": N - 1, "psum_scatter": N - 1, "ppermute": 1, "axis_index": 0}.get(kind, 2 * (N - 1))
    return number, size if kind in ("all_gather", "ppermute") else size / N


def seconds(kind, size, N, latency, bandwidth):
    number, of_each = messages(kind, size, N)
    return number * (latency + of_each / bandwidth)


rows = np.array([1, 2, 3, 4], np.float32) * 10 ** np.arange(N)[:, None].astype(np.float32)  # yours: [N, D]
result = jax.device_get(jax.pmap(collect, axis_name="data", devices=four)(rows))  # one copy to the host
for name, value in result.items():
    number, _ = messages(name, 100e6, N)
    microseconds = 1e6 * seconds(name, 100e6, N, latency=3e-6, bandwidth=450e9)
    print(f"{name:12s} on device 1: {value[1].tolist()}")
    print(f"{'':12s} for 100 MB on each of {N} devices: {number} messages, {microseconds:.0f} µs on NVLink")
np.testing.assert_allclose(result["psum"], [rows.sum(0)] * N, rtol=1e-5, atol=1e-5)
np.testing.assert_allclose(result["pmean"], [rows.mean(0)] * N, rtol=1e-5, atol=1e-5)
np.testing.assert_array_equal(result["pmax"], [rows.max(0)] * N)
np.testing.assert_array_equal(result["all_gather"], [rows] * N)
np.testing.assert_allclose(result["psum_scatter"], rows.sum(0).reshape(N, -1), rtol=1e-5, atol=1e-5)
np.testing.assert_array_equal(result["ppermute"], np.roll(rows, 1, axis=0))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Inside `pmap` the results have the shapes in the comments; `pmap` stacks them, so `value[1]` is that of device 1.
# `all_gather` sends most, because the result is N vectors and not one.
#
# </details>
#
# `psum_scatter` is what others call **reduce-scatter**, the first half of the ring, and `all_gather` is the second
# half. **Predict:** what do the two give, one after the other?


# %% tags=["prediction"]
def in_two_halves(x):  # [D] to [D]
    chunk = lax.psum_scatter(x, "data", tiled=True)  # [D / N], finished
    return lax.all_gather(chunk, "data", tiled=True)


halves = jax.pmap(in_two_halves, axis_name="data", devices=four)(rows)
print("psum_scatter, then all_gather:", jax.device_get(halves).tolist()[0])

# %% tags=["proof"]
# The asserts behind the answer.
np.testing.assert_array_equal(halves, result["psum"])

# %% [markdown]
# <details><summary>Answer</summary>
#
# Together they are an all-reduce. (Here `tiled=True` makes `all_gather` join the chunks into one axis.) Between the
# two, each device holds a different chunk of the sum. Lesson 16 uses this: each device updates only its chunk of the
# parameters (ZeRO).
#
# </details>
#
# ## The ring on devices
#
# `ppermute` sends arrays along a list of (from, to) pairs, here one step around the ring. With it, the loop above
# becomes a program for eight devices. Its result must equal that of `psum` within 1e-4, because in float32 the order of
# the additions changes the last digits. **Predict:** how many bytes does a device send for a vector of 4,096 numbers?


# %% tags=["prediction"]
def ring_sum(x):  # [D], with D a multiple of the number of devices
    n, me = lax.axis_size("data"), lax.axis_index("data")
    right = [(d, (d + 1) % n) for d in range(n)]
    chunks = x.reshape(n, -1)
    for step in range(2 * (n - 1)):
        arrived = lax.ppermute(chunks[(me - step) % n], "data", right)
        chunk = (me - 1 - step) % n
        chunks = chunks.at[chunk].set(chunks[chunk] + arrived if step < n - 1 else arrived)
    return chunks.reshape(-1)


def direct_sum(x):
    return lax.psum(x, "data")


x = np.random.default_rng(0).standard_normal((8, 4096), np.float32)
by_ring = jax.pmap(ring_sum, axis_name="data")
by_psum = jax.pmap(direct_sum, axis_name="data")

import re

sends = re.findall(r"f32\[([\d,]+)\]\S* = ppermute", str(jax.make_jaxpr(by_ring)(x)))  # the shape of each message
print(f"the ring: {len(sends)} messages of {sends[0]} numbers, {4 * sum(map(int, sends)):,} bytes from each device")
compiled = by_psum.lower(x).compile().as_text()
print("psum:    ", *re.findall(r"(f32\[[\d,]+\])\S* (all-reduce)\(", compiled))

# %% tags=["proof"]
# The asserts behind the answer.
np.testing.assert_allclose(by_ring(x), by_psum(x), rtol=1e-4, atol=1e-4)
assert 4 * sum(map(int, sends)) == 2 * 7 * x[0].nbytes // 8

# %% [markdown]
# <details><summary>Answer</summary>
#
# The ring sends 14 messages of 512 numbers, 28,672 bytes from each device. In the compiled program, `psum` is a single
# instruction. Its result has 16,384 bytes; how many are sent for it is up to the library, which knows how the devices
# are connected, and chooses the algorithm. So use `psum` in your programs.
#
# </details>
#
# ## How it fails
#
# A collective needs the axis. **Predict** what happens with a name that `pmap` does not know.

# %% tags=["prediction"]
try:
    outcome = str(jax.pmap(lambda x: lax.psum(x, "batch"), axis_name="data")(x))
except Exception as error:
    outcome = f"{type(error).__name__}: {error}"
print(outcome.split("\n")[0])

# %% tags=["proof"]
# The asserts behind the answer.
assert outcome.startswith("NameError")

# %% [markdown]
# <details><summary>Answer</summary>
#
# JAX raises this error while it traces the function, and also for a collective outside of `pmap`. There is a worse
# failure, which we do not run: if a condition lets only some devices reach a collective, they wait for the others until
# XLA or you abort the process. Do not put collectives into branches that depend on `axis_index`.
#
# </details>
#
# ## Exercises
#
# Each function is the code of one device. The checks map it with `axis_name="data"`. Solutions, with reasons:
# [solutions/06_communicate_between_devices.py](solutions/06_communicate_between_devices.py).
#
# 1. `broadcast` (5 minutes): return the `x` of device 0, on every device. The other devices may hold anything, even
#    NaN. <details><summary>Hint</summary>Replace x by 0 on the others with <code>jnp.where</code>, and add up.
#    Multiplying by 0 is not enough: 0 times NaN is NaN.</details>
# 2. `butterfly_sum` (10 minutes): an all-reduce in log2 N rounds instead of 2 (N - 1) steps, where N is a power of two.
#    In round r = 1, 2, ..., device d and device `d ^ 2**(r - 1)` (exclusive or) exchange their current sums, and each
#    adds what arrives to its own. The picture below shows the rounds. Use only `ppermute` to communicate.
#    Then answer for yourself: how many bytes does a device send?
#    <details><summary>Hint</summary>The list of pairs has one entry for each device: from d to its partner.</details>
# 3. `fixed_softmax` (find the mistake): a row of logits is split over the devices, `[b]` on each, and the softmax is
#    taken over all N * b logits. `broken_softmax` subtracts the largest logit, so that no exp overflows, and its
#    results add up to 1. But they are wrong. Write it correctly. <details><summary>Hint</summary>Which number does each
#    device subtract?</details>

# %%
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
    """What device 0 holds, on each device."""
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
# - An all-reduce leaves the sum on every device. In a ring, each device sends less than two vectors, in 2 (N - 1)
#   messages: the time is latency times messages, plus bytes over bandwidth.
# - An all-reduce is a reduce-scatter and an all-gather. Inside `pmap`, collectives name the mapped axis, and all
#   devices must reach the same line.
# - The cost does not depend on the batch. Many examples for each device make it small beside the computation.
#
# In pmapdp, the collectives of a step are in [steps/pmap.py](../pmapdp/steps/pmap.py), and
# [scaling/costs.py](../pmapdp/scaling/costs.py) computes their time. To read on:
# [the JAX scaling book on collectives](https://jax-ml.github.io/scaling-book/sharding/),
# [lax's parallel operators](https://docs.jax.dev/en/latest/jax.lax.html#parallel-operators). Next:
# [07 Synchronize batch norm](07_synchronize_batch_norm.ipynb).

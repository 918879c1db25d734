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
# # 05. Communicate between devices
#
# After this lesson you can build an all-reduce by hand, say what it costs, and use `psum`, `pmean`, `all_gather`,
# `psum_scatter` and `ppermute` inside `pmap`.
#
# About 30 minutes · before: [04 Map over devices](04_map_over_devices.ipynb) · next:
# [06 Average gradients](06_average_gradients.ipynb)
#
# In lesson 04 each device worked alone. To train one network together, the devices must add up what each of them
# computed: N devices hold one array each, and all N need the sum. This operation is called an **all-reduce** (in PyTorch:
# `dist.all_reduce`).

# %%
import time

import drawing
import jax
import jax.numpy as jnp
import numpy as np
from checks import check
from jax import lax
from pictures import lesson_05

from pmapdp import devices
from pmapdp.collectives import collectives

drawing.setup()
chosen = devices.choose(8)  # 8 simulated CPU devices
print(devices.describe(chosen))

# %% [markdown]
# ## By hand, in NumPy
#
# Four devices hold [1, 2, 3, 4], [10, 20, 30, 40], [100, ...] and [1000, ...]. **Predict:** what should each of them hold
# at the end?
#
# The simplest way: every device sends its vector to device 0, which adds them up and sends the sum back. Then N - 1
# vectors arrive at device 0 and N - 1 leave it, while the others wait. The more devices, the longer this takes.
#
# The **ring** shares the work. Cut each vector into N chunks. In every step each device sends *one chunk* to its right
# neighbour, and all of them do so at the same time.
#
# - **reduce-scatter**, N - 1 steps: a device adds the chunk that arrives to its own. At the end each device has one
#   finished chunk.
# - **all-gather**, N - 1 steps: the devices pass the finished chunks on.

# %%
N = 4
vectors = np.array([1, 2, 3, 4]) * 10 ** np.arange(N)[:, None]  # [N, D]: row d is on device d


def ring_all_reduce(vectors):
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
# All rows are the sum. The picture shows every step. A row is a device, a column is a chunk, and the colour is that of the
# device that sent the chunk. A bold number is a finished sum. Follow the first column: the 1 of device 0 moves to the
# next row in each step, and grows.

# %%
lesson_05.ring(states, vectors.sum(0))

# %% [markdown]
# After three steps each device has one bold number. After three more, all have all four.
#
# ## What it costs
#
# In each of the 2 (N - 1) steps a device sends 1/N of the vector, so in all 2 (N - 1)/N times the size of the vector.
# **Predict:** how much more does each device send on 64 devices than on 2?

# %%
for n in (2, 4, 8, 64):
    _, total = ring_all_reduce(np.ones((n, 1024)))
    share = total / n / (1024 * 8)  # vectors of 1,024 numbers of 8 bytes
    print(f"{n:4d} devices: each sends {share:.3f} times the vector, in {2 * (n - 1)} steps")
    assert np.isclose(share, 2 * (n - 1) / n)

# %% [markdown]
# Less than twice as much: a device never sends more than two vectors, which makes the ring good for large gradients. But
# the number of steps grows with N. For small messages on many devices, libraries use algorithms with fewer steps, such
# as trees, or the butterfly of the second exercise.
#
# ## The collectives of JAX
#
# An operation in which all devices take part is called a **collective**. `pmap` gives the mapped axis a name, and a
# collective refers to it: "add this up over `data`". All devices run the same line, and wait for each other there.
# With `tiled=True` a collective cuts or joins an existing axis, and adds no new one. **Predict** the shape of each result
# on one device, where `x` has the shape `[4]`.


# %%
def collect(x):  # x [D], one device's row
    return {
        "psum": lax.psum(x, "data"),  # <- new: all-reduce, the sum on every device
        "pmean": lax.pmean(x, "data"),  # the sum / N
        "all_gather": lax.all_gather(x, "data"),  # [N, D]: the rows of all devices
        "psum_scatter": lax.psum_scatter(x, "data", tiled=True),  # [D / N]: one chunk of the sum
        "ppermute": lax.ppermute(x, "data", [(d, (d + 1) % N) for d in range(N)]),  # from the left
        "axis_index": lax.axis_index("data"),  # the number of this device on the axis
    }


rows = vectors.astype(np.float32)
result = jax.pmap(collect, axis_name="data", devices=chosen[:N])(rows)
for name, value in result.items():
    on_1 = np.asarray(value.addressable_shards[1].data)[0]
    print(f"{name:12s} {value.shape!s:10s} on device 1: {on_1.tolist()}")
for d in range(N):
    np.testing.assert_array_equal(result["psum"][d], vectors.sum(0))
    np.testing.assert_array_equal(result["pmean"][d], vectors.mean(0))
    np.testing.assert_array_equal(result["all_gather"][d], vectors)
    np.testing.assert_array_equal(result["psum_scatter"][d], vectors.sum(0)[d])
    np.testing.assert_array_equal(result["ppermute"][d], vectors[d - 1])

# %% [markdown]
# The printed shapes have the device axis in front, because `pmap` stacks the results. The picture shows the same for
# three devices that hold a, b and c.

# %%
lesson_05.collectives()

# %% [markdown]
# `psum_scatter` is what others call **reduce-scatter**, the first half of the ring, and `all_gather` is the second half.
# **Predict:** what do the two give, one after the other?


# %%
def in_two_halves(x):  # [D] to [D]
    chunk = lax.psum_scatter(x, "data", tiled=True)  # [D / N], finished
    return lax.all_gather(chunk, "data", tiled=True)


halves = jax.pmap(in_two_halves, axis_name="data", devices=chosen[:N])(rows)
np.testing.assert_array_equal(halves, result["psum"])
print("psum_scatter, then all_gather:", halves[0])

# %% [markdown]
# They give an all-reduce. Between the halves each device holds a different chunk of the sum. Lesson 14 uses that: each
# device updates only its chunk of the parameters (ZeRO).
#
# ## The ring on devices
#
# `ppermute` sends one step around the ring. With it, the loop above becomes a program for eight devices. Its result must
# equal `psum`, within 1e-4: in float32, another order of the additions changes the last digits.


# %%
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
by_ring = jax.pmap(ring_sum, axis_name="data")(x)
by_psum = jax.pmap(direct_sum, axis_name="data")(x)
np.testing.assert_allclose(by_ring, by_psum, rtol=1e-4, atol=1e-4)
print("ring and psum agree on", by_ring.shape)

# %% [markdown]
# What does the compiler make of the two? `collectives`, borrowed from pmapdp, reads the text of a compiled program: which
# collectives are in it, and how many bytes their results have. These are not the bytes that are sent. The result of an
# all-reduce is one vector, but to compute it, a ring sends 2 (N - 1)/N vectors from each device.

# %%
n, vector = 8, x[0].nbytes
for name, function in (("ring", ring_sum), ("psum", direct_sum)):
    step = jax.pmap(function, axis_name="data")
    (found,) = collectives(step.lower(x).compile().as_text())
    sent = found.bytes if found.kind == "collective-permute" else 2 * (n - 1) * found.bytes // n
    times = []
    for _ in range(10):
        clock = time.perf_counter()
        jax.block_until_ready(step(x))
        times.append(time.perf_counter() - clock)
    print(f"{name}: {found.count} x {found.kind}, results {found.bytes:,} bytes")
    print(f"      in a ring, a device sends {sent:,} bytes")
    print(f"      fastest of 10: {1000 * min(times):.2f} ms on {devices.describe(chosen)}")
    assert sent == 2 * (n - 1) * vector // n

# %% [markdown]
# Both send 28,672 bytes from each device, if the library uses a ring. In your programs use `psum`: the library knows how
# the devices are connected, and chooses the algorithm. The times are those of copies in one machine's memory, and say
# nothing about a network.
#
# ## How it fails
#
# A collective needs the axis. **Predict** what happens with a name that `pmap` does not know.

# %%
try:
    jax.pmap(lambda x: lax.psum(x, "batch"), axis_name="data")(x)
except NameError as error:
    print("NameError:", str(error).split("\n")[0])
else:
    raise AssertionError("an unbound axis name was accepted")

# %% [markdown]
# JAX raises the error while it traces the function. The same happens outside of `pmap`. There is a worse failure, which we
# do not run: if a condition lets only some devices reach a collective, they wait for the others, until XLA aborts the
# process or you do. Do not put collectives into branches that depend on `axis_index`.
#
# ## Exercises
#
# Each function is the code of one device. The checks map it with `axis_name="data"`. Solutions, with reasons:
# [solutions/05_communicate_between_devices.py](solutions/05_communicate_between_devices.py).
#
# 1. `broadcast` (5 minutes): return the `x` of device 0, on every device. The other devices may hold anything, even NaN.
#    <details><summary>Hint</summary>Replace x by 0 on the others with <code>jnp.where</code>, and add up. Multiplying
#    by 0 does not do: 0 times NaN is NaN.</details>
# 2. `butterfly_sum` (10 minutes): an all-reduce in log2 N rounds instead of 2 (N - 1) steps, for N a power of two. In
#    round r = 0, 1, ... each device exchanges its *whole* sum with the device whose number differs in bit r, as in the
#    picture below. Use only `ppermute` to communicate. Then answer for yourself: how many bytes does a device send?
#    <details><summary>Hint</summary>The partner of d is <code>d ^ 2**r</code>. The list of pairs has one entry for each
#    device.</details>
# 3. `mended_softmax` (find the mistake): a row of logits is split over the devices, `[b]` on each, and the softmax is
#    taken over all N * b logits. `broken_softmax` subtracts the largest logit, so that no exp overflows, and its results
#    add up to 1. But they are wrong. Write it correctly.
#    <details><summary>Hint</summary>Which number does each device subtract?</details>

# %%
lesson_05.butterfly()


def broken_softmax(logits):  # [b]
    exponentials = jnp.exp(logits - logits.max())
    return exponentials / lax.psum(exponentials.sum(), "data")


split_logits = np.array([[0.0, 1.0], [3.0, 4.0]], np.float32)  # [N, b]
print("broken:", np.ravel(jax.pmap(broken_softmax, axis_name="data")(split_logits)).round(3))
print("right: ", np.asarray(jax.nn.softmax(split_logits.ravel())).round(3))


# %%
def broadcast(x):
    """What device 0 holds, on each device."""
    ...  # your code: 1 or 2 lines


def butterfly_sum(x):
    """The sum over all devices, in log2 N rounds of `ppermute`."""
    ...  # your code: 4 to 6 lines


def mended_softmax(logits):
    """This device's `[b]` of the softmax over all devices' logits."""
    ...  # your code: 2 lines


for exercise in (broadcast, butterfly_sum, mended_softmax):
    check("05_communicate_between_devices", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - An all-reduce leaves the sum on every device. In a ring, each device sends less than two vectors, however many devices
#   there are.
# - An all-reduce is a reduce-scatter and an all-gather. Inside `pmap`, collectives name the mapped axis, and all devices
#   must reach the same line.
# - Simulated devices exchange data through memory, so times measured here say nothing about a network.
#
# In pmapdp the gradients are averaged by `lax.pmean` in [steps/pmap.py](../pmapdp/steps/pmap.py), which lesson 06 builds;
# batch norm adds collectives of its own (lesson 07). [collectives.py](../pmapdp/collectives.py) reads what a compiled
# program exchanges. To read on: [the JAX scaling book on collectives](https://jax-ml.github.io/scaling-book/sharding/),
# [lax's parallel operators](https://docs.jax.dev/en/latest/jax.lax.html#parallel-operators). Next:
# [06 Average gradients](06_average_gradients.ipynb).

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
# [05 Average gradients](05_average_gradients.ipynb)
#
# In lesson 04 each device worked alone. To train one network together, the devices must add up what each of them
# computed: N devices hold one array each, and all N devices need the sum. This operation is called an **all-reduce**
# (in PyTorch: `dist.all_reduce`).

# %%
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp import devices
from pmapdp.compare.collectives import collectives
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_06

drawing.setup()
chosen = devices.choose(8)  # 8 simulated CPU devices
print(devices.describe(chosen))

# %% [markdown]
# ## By hand, in NumPy
#
# Four devices hold [1, 2, 3, 4], [10, 20, 30, 40], [100, ...] and [1000, ...]. **Predict:** what should each of them
# hold at the end?
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
lesson_06.ring(states, vectors.sum(0))

# %% [markdown]
# After three steps, each device has one bold number. After three more steps, each device has all four.
#
# ## What it costs
#
# There are 2 (N - 1) steps, and in each step a device sends 1/N of the vector. So it sends 2 (N - 1)/N times the size
# of the vector. **Predict:** how much more does each device send on 64 devices than on 2?

# %%
for n in (2, 4, 8, 64):
    _, total = ring_all_reduce(np.ones((n, 1024)))
    share = total / n / (1024 * 8)  # vectors of 1,024 numbers of 8 bytes
    print(f"{n:4d} devices: each sends {share:.3f} times the vector, in {2 * (n - 1)} steps")
    assert np.isclose(share, 2 * (n - 1) / n)

# %% [markdown]
# Less than twice as much. However many devices there are, a device sends less than two vectors, so the ring suits large
# gradients. But the number of steps grows with N. For small messages on many devices, libraries use algorithms with
# fewer steps, such as trees, or the butterfly of the second exercise.
#
# ## The collectives of JAX
#
# An operation in which all devices take part is called a **collective**. `pmap` gives the mapped axis a name, and a
# collective refers to this name: "add this up over `data`". All devices run the same line, and wait for each other
# there. With `tiled=True`, `psum_scatter` cuts an existing axis into chunks, so the result has as many axes as `x`.
# **Predict** the shape of each result on one device, where `x` has the shape `[4]`.


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
lesson_06.collectives()

# %% [markdown]
# `psum_scatter` is what others call **reduce-scatter**, the first half of the ring, and `all_gather` is the second
# half. **Predict:** what do the two give, one after the other?


# %%
def in_two_halves(x):  # [D] to [D]
    chunk = lax.psum_scatter(x, "data", tiled=True)  # [D / N], finished
    return lax.all_gather(chunk, "data", tiled=True)


halves = jax.pmap(in_two_halves, axis_name="data", devices=chosen[:N])(rows)
np.testing.assert_array_equal(halves, result["psum"])
print("psum_scatter, then all_gather:", halves[0])

# %% [markdown]
# Together they are an all-reduce. (Here `tiled=True` makes `all_gather` join the chunks into one axis.) Between the
# two, each device holds a different chunk of the sum. Lesson 16 uses this: each device updates only its chunk of the
# parameters (ZeRO).
#
# ## The ring on devices
#
# `ppermute` sends arrays along a list of (from, to) pairs, here one step around the ring. With it, the loop above
# becomes a program for eight devices. Its result must equal that of `psum` within 1e-4, because in float32 the order of
# the additions changes the last digits.


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
# Into which collectives does the compiler translate the two? `collectives`, borrowed from pmapdp, reads the text of a
# compiled program. It lists the collectives, and how many bytes their results have. These are not the bytes that are
# sent: the result of an all-reduce is one vector, but to compute it in a ring, each device sends 2 (N - 1)/N vectors.

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
# In both, a device sends 28,672 bytes, if the library implements `psum` by a ring. In your programs use `psum`: the
# library knows how the devices are connected, and chooses the algorithm. The times are those of copies in the memory of
# one machine, and say nothing about a network.
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
# JAX raises this error while it traces the function, and also for a collective outside of `pmap`. There is a worse
# failure, which we do not run: if a condition lets only some devices reach a collective, they wait for the others until
# XLA or you abort the process. Do not put collectives into branches that depend on `axis_index`.
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
# 3. `mended_softmax` (find the mistake): a row of logits is split over the devices, `[b]` on each, and the softmax is
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
    check("06_communicate_between_devices", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - An all-reduce leaves the sum on every device. In a ring, each device sends less than two vectors, however many
#   devices there are.
# - An all-reduce is a reduce-scatter and an all-gather. Inside `pmap`, collectives name the mapped axis, and all
#   devices must reach the same line.
# - Simulated devices exchange data through memory, so times measured here say nothing about a network.
#
# In pmapdp, `lax.pmean` in [steps/pmap.py](../src/pmapdp/steps/pmap.py) averages the gradients, as in the next lesson.
# [collectives.py](../src/pmapdp/compare/collectives.py) lists the collectives of a compiled program. To read on:
# [the JAX scaling book on collectives](https://jax-ml.github.io/scaling-book/sharding/),
# [lax's parallel operators](https://docs.jax.dev/en/latest/jax.lax.html#parallel-operators). Next:
# [05 Average gradients](05_average_gradients.ipynb).

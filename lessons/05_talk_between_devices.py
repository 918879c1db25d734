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
# # 05. Talk between devices
#
# After this lesson you can build an all-reduce by hand, say what it costs, and use `psum`, `pmean`, `all_gather` and
# `ppermute` inside `pmap`.
#
# About 25 minutes · before: [04 Map over devices](04_map_over_devices.ipynb) · next:
# [06 Average gradients](06_average_gradients.ipynb)
#
# In lesson 04 each device worked alone. To train one network together they must add up what each of them found: numbers
# that lie on N devices, and the sum is wanted on all N. That is an **all-reduce** (PyTorch: `dist.all_reduce`).

# %%
import re

import drawing
import jax
import matplotlib.pyplot as plt
import numpy as np
from checks import check
from jax import lax

from pmapdp import devices
from pmapdp.collectives import collectives

drawing.setup()
chosen = devices.choose(8)  # 8 simulated CPU devices
print(devices.describe(chosen))

# %% [markdown]
# ## By hand, in NumPy
#
# The smallest case: four devices hold [1, 2, 3, 4], [10, 20, 30, 40], [100, ...] and [1000, ...]. What is to be on each of
# them at the end? The plain way: everyone sends everything to device 0, which adds and sends the sum back. Then device 0
# receives and sends 2 (N - 1) whole vectors, while the others wait. That does not scale.
#
# The **ring** shares the work. Cut each vector into N chunks. In every step each device sends *one chunk* to its right
# neighbour, and all do so at the same time.
#
# - **reduce-scatter**, N - 1 steps: add the chunk that arrives to your own. At the end each device has one finished chunk.
# - **all-gather**, N - 1 steps: pass the finished chunks on.

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
# Step by step. A row is a device, a column a chunk. The colour is the device that sent the chunk last; a bold number is a
# finished sum. Follow the first column: the 1 of device 0 travels right and grows.

# %%
figure, places = plt.subplots(2, 4, figsize=(7, 3.4))
for step, axes in enumerate(places.flat):
    axes.set_axis_off()
    if step >= len(states):
        continue
    title = "start" if step == 0 else f"{step}: add" if step < N else f"{step}: copy"
    axes.set_title(title, fontsize=9, color=drawing.INK)
    axes.set_xlim(-0.5, N - 0.5)
    axes.set_ylim(N - 0.5, -0.5)
    for d in range(N):
        for chunk in range(N):
            arrived = step > 0 and chunk == (d - 1 - (step - 1)) % N
            colour = drawing.DEVICE_COLOURS[(d - 1) % N] if arrived else "none"
            axes.add_patch(plt.Rectangle((chunk - 0.48, d - 0.45), 0.96, 0.9, facecolor=colour, edgecolor=drawing.INK))
            done = states[step][d, chunk] == vectors[:, chunk].sum()
            style = {"color": "white" if arrived else drawing.INK, "weight": "bold" if done else "normal"}
            axes.text(chunk, d, states[step][d, chunk], ha="center", va="center", fontsize=6, **style)
plt.show()

# %% [markdown]
# ## What it costs
#
# In each of the 2 (N - 1) steps a device sends 1/N of the vector: 2 (N - 1)/N times its size in all. **Predict:** how much
# more does each device send on 64 devices than on 2?

# %%
for n in (2, 4, 8, 64):
    _, total = ring_all_reduce(np.ones((n, 1024)))
    share = total / n / (1024 * 8)  # vectors of 1,024 numbers of 8 bytes
    print(f"{n:4d} devices: each sends {share:.3f} times the vector, in {2 * (n - 1)} steps")
    assert np.isclose(share, 2 * (n - 1) / n)

# %% [markdown]
# Never more than twice the vector: that is why the ring is good for large gradients. The number of steps grows with
# N, so for small messages on many devices libraries use trees instead.
#
# ## The same in JAX
#
# Inside `pmap` the mapped axis has a name, and a **collective** names it: "add this over `data`". All devices run the same line
# and wait for each other there.


# %%
def collect(x):  # x [D], one device's row
    return {
        "psum": lax.psum(x, "data"),  # <- new: the sum, on every device
        "pmean": lax.pmean(x, "data"),  # the sum / N
        "all_gather": lax.all_gather(x, "data"),  # [N, D]: the rows of all
        "ppermute": lax.ppermute(x, "data", [(d, (d + 1) % N) for d in range(N)]),  # from the left neighbour
        "index": lax.axis_index("data"),  # who am I
    }


rows = vectors.astype(np.float32)
result = jax.pmap(collect, axis_name="data", devices=chosen[:N])(rows)
for name, value in result.items():
    print(f"{name:10s} {value.shape!s:10s} on device 1: {np.asarray(value.addressable_shards[1].data)[0].tolist()}")
for d in range(N):
    np.testing.assert_array_equal(result["psum"][d], vectors.sum(0))
    np.testing.assert_array_equal(result["pmean"][d], vectors.mean(0))
    np.testing.assert_array_equal(result["all_gather"][d], vectors)
    np.testing.assert_array_equal(result["ppermute"][d], vectors[d - 1])

# %% [markdown]
# The way of the data in the four, for three devices:

# %%
axes = drawing.canvas(18, 5.2)
names = {"psum": ("a+b+c",) * 3, "pmean": ("mean",) * 3, "all_gather": ("a, b, c",) * 3, "ppermute": ("c", "a", "b")}
for column, (name, after) in enumerate(names.items()):
    left = 4.6 * column
    axes.text(left + 2.0, 0.3, name, ha="center", weight="bold")
    for d, letter in enumerate("abc"):
        drawing.box(axes, left, 1.0 + 1.4 * d, letter, device=d, width=0.9)
        drawing.box(axes, left + 2.0, 1.0 + 1.4 * d, after[d], device=d, width=2.2)
        for source in range(3) if name != "ppermute" else [(d - 1) % 3]:
            drawing.arrow(axes, (left + 0.9, 1.4 + 1.4 * source), (left + 2.0, 1.4 + 1.4 * d), device=source)
plt.show()

# %% [markdown]
# ## Our ring, on devices
#
# `ppermute` is the arrow of the ring. With it the loop above becomes a program that really runs on eight devices, and equals
# `psum`. In float32 the order of additions shows in the last digits, so the tolerance is relative.


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


x = np.random.default_rng(0).standard_normal((8, 4096), np.float32)
ours = jax.pmap(ring_sum, axis_name="data")(x)
theirs = jax.pmap(lambda x: lax.psum(x, "data"), axis_name="data")(x)
np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
print("ring and psum agree on", ours.shape)

# %% [markdown]
# The compiled programs say what the devices exchange: one all-reduce of the whole vector, or fourteen messages of one
# eighth. Use `psum`: the library under it knows the wires.

# %%
for name, function in (("ring", ring_sum), ("psum", lambda x: lax.psum(x, "data"))):
    text = jax.pmap(function, axis_name="data").lower(x).compile().as_text()
    print(name, [f"{each.count} x {each.kind}, {each.bytes:,} bytes in all" for each in collectives(text)])
assert re.search(r"all-reduce\(", text)

# %% [markdown]
# **A failure on purpose.** A collective needs the axis. Outside of `pmap`, or with another name, there is nothing to
# sum over:

# %%
try:
    jax.pmap(lambda x: lax.psum(x, "batch"), axis_name="data")(x)
except NameError as error:
    print("NameError:", str(error).split("\n")[0])
else:
    raise AssertionError("an unbound axis name was accepted")

# %% [markdown]
# ## Exercises
#
# Each is a function for one device, to be mapped with `axis_name="data"`.
#
# **1. `global_max`**: the largest entry of all devices' `x` `[b]`, one number on each.
# <details><summary>Hint</summary>There is a <code>lax.pmax</code>.</details>
#
# **2. `broadcast`**: device 0's `x` on every device. <details><summary>Hint</summary>Multiply by 0 on all others, then
# add up.</details>
#
# **3. `normalised`**: `x` `[b]` minus the mean over **all** devices' entries.
# <details><summary>Hint</summary>All devices have equally many entries, so a mean of means is right here. Lesson 06 shows
# when it is not.</details>


# %%
def global_max(x):
    """The largest entry anywhere; shape []."""
    ...  # your code: 1 line


def broadcast(x):
    """What device 0 holds, on each device."""
    ...  # your code: 1 or 2 lines


def normalised(x):
    """x minus the mean over all entries on all devices."""
    ...  # your code: 1 line


for exercise in (global_max, broadcast, normalised):
    check("05_talk_between_devices", exercise.__name__, exercise)

# %% [markdown]
# Solutions: [solutions/05_talk_between_devices.py](solutions/05_talk_between_devices.py)
#
# ## Take away
#
# - An all-reduce leaves the sum on every device; a ring does it with less than two vectors sent per device.
# - Inside `pmap` collectives name the axis, and all devices must reach the same line.
# - Simulated devices exchange through memory, so times measured here say nothing about a network.
#
# In pmapdp there is one all-reduce a step: the `lax.psum` of [steps/pmap.py](../pmapdp/steps/pmap.py). What a compiled program
# exchanges is read by [collectives.py](../pmapdp/collectives.py).

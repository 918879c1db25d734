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
# # 00. Meet your devices
#
# A glider flies over a world that's cut into eight strips, one on each of eight devices. The function that moves the
# glider knows nothing about devices. So what happens when the glider comes to a border? You'll run the same function in
# two ways and see two very different flights, and neither of them raises an error.
#
# Why should you care about a glider? When you train on eight GPUs, gradients have to cross the same borders. If they
# don't, nothing raises an error either, and you pay for eight GPUs that train eight different networks. That's why this
# course keeps asking three questions: where is the data, who computes, and who sends what? A laptop is enough to answer
# them, because JAX can pretend that one CPU is eight devices.
#
# **You will** start eight simulated devices, keep one array on all of them, and see who computes and who sends.
# 16 minutes, 32 with exercises. You need Python and NumPy.

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np

from pmapdp import devices
from pmapdp.lessons import drawing
from pmapdp.lessons.pictures import lesson_00

devices.simulate(8)  # before any other use of JAX

eight = jax.devices()
print(devices.describe(eight), *eight)
assert len(eight) == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# A **device** is a GPU, a TPU or a CPU: a place where JAX keeps arrays, and computes with them. Your notebook now has
# eight, and one process drives them all. If you come from PyTorch, you'd expect one process per device. In JAX you only
# need several processes when you have several machines, as in lesson 17.
#
# ## A world on eight devices
#
# The glider lives in Conway's Game of Life, a grid of cells that are alive (1) or dead (0). From one generation to the
# next, a living cell stays alive if two or three of its eight neighbours are alive. A dead cell comes alive if exactly
# three are. Here are five living cells, and the same five after four generations, one row further down and one column
# further right:
#
# ```
# 0 1 0 0        0 0 0 0
# 0 0 1 0        0 0 1 0
# 1 1 1 0        0 0 0 1
# 0 0 0 0        0 1 1 1
# ```
#
# Our world has 40 rows, and `device_put` gives five of them to each device. It's still *one* array of 40 x 40 cells,
# and you use it like any other array. Only the two lines with `Mesh` and `PartitionSpec` say which device gets what.
# Skip over them for now: lesson 04 explains them, and lesson 02 explains `jax.jit`, which compiles a function.
#
# Look at `next_generation`. `block` counts the living cells in a 3 x 3 square, the middle one too. So a living cell
# survives if the count is 3 or 4, and a dead one is born at 3. `jnp.roll` moves all rows down or up by one and wraps
# around: what leaves at the last row comes back in at the first.
#
# **Predict:** the glider starts in device 0's five rows. After 20 generations it's five rows further down. Does it stop
# at the border, does it come back in at device 0's first row, or does it go on to device 1?

# %% tags=["take-home", "prediction"]
"""Fly a glider over eight devices, each of which has a strip of the world."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

os.environ["NPROC"] = "16"  # threads for 8 simulated devices: jax before 0.12 may abort with fewer
jax.config.update("jax_num_cpu_devices", 8)  # simulated, unless there are GPUs or TPUs
mesh = Mesh(jax.devices(), ("strips",))  # all devices, one after the other
assert mesh.size > 1, "one device has no border to cross: run it with JAX_PLATFORMS=cpu"
by_strips = NamedSharding(mesh, PartitionSpec("strips"))  # the rows are cut into a part for each

start = np.zeros((5 * mesh.size, 40), np.int32)  # [40, 40] on eight devices
start[1:4, 1:4] = [[0, 1, 0], [0, 0, 1], [1, 1, 1]]


def next_generation(world):
    """The Game of Life, one generation on. The world's edges are joined."""
    column = jnp.roll(world, 1, axis=0) + world + jnp.roll(world, -1, axis=0)  # 3 x 1 cells
    block = jnp.roll(column, 1, axis=1) + column + jnp.roll(column, -1, axis=1)  # 3 x 3 cells
    lives = (block == 3) | ((block == 4) & (world == 1))
    return lives.astype(world.dtype)


def fly(step, world):
    """Eight snapshots of the world, 20 generations apart."""
    flight = [world]
    for generation in range(1, 141):
        world = step(world)
        if generation % 20 == 0:
            flight.append(world)
    return flight


def alive_on(world):
    """The devices that hold living cells."""
    return [shard.device.id for shard in world.addressable_shards if shard.data.any()]


step = jax.jit(next_generation)
flight = fly(step, jax.device_put(start, by_strips))
print("living cells on devices", *map(alive_on, flight))

# %% tags=["prediction"]
lesson_00.gliders(flight, "eight snapshots of one glider")

# %% [markdown]
# <details><summary>Answer</summary>
#
# It goes on to device 1, and then from device to device, through all eight strips.
#
# </details>
#
# Does a single device that has the whole world see the same flight, cell by cell?

# %%
flight_on_one = fly(step, jax.device_put(start, eight[0]))
print("the same flight:", np.array_equal(flight, flight_on_one))

# %% [markdown]
# ## Who sent it across?
#
# To compute the first row of its strip, device 1 needs the row above, and that row is on device 0. Your function
# doesn't say a word about this. But `jit` hands the function to a compiler, which sees where the array is and adds the
# messages.
#
# **Predict:** device 1's strip has five rows. Which of them does it send in each generation, and to whom?

# %% tags=["prediction"]
for shape, receiver in lesson_00.messages(step, flight[0], sender=1):
    print(f"device 1 sends {shape} to device {receiver}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Its first row to device 0, and its last row to device 2: two messages, each of 1 x 40 integers of 32 bits. Nobody
# needs the three rows in between.
#
# </details>
#
# ## And if nobody sends?
#
# `jax.pmap` also runs a function on eight devices. It wants a first axis with a strip for each device, so the world
# becomes an array `[8, 5, 40]`, and `jax.pmap` takes the place of `jax.jit`. Nothing else changes. But with `pmap` the
# compiler doesn't add any messages.
#
# **Predict:** where is the glider after 20 generations?

# %% tags=["prediction"]
strips = jax.device_put(start.reshape(8, 5, 40), by_strips)
pmap_flight = fly(jax.pmap(next_generation), strips)
print("living cells on devices", *map(alive_on, pmap_flight))
lesson_00.gliders(np.reshape(pmap_flight, (8, 40, 40)), "eight snapshots, with pmap")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Still on device 0. With `pmap`, each device runs the function on its own strip alone. So `roll` joins the strip's last
# row to the strip's first row, and whatever leaves device 0 at the bottom comes back in at the top. The glider drifts
# to the right, and never finds out that there are seven other devices.
#
# </details>
#
# Is `pmap` broken? No, it sends what you tell it to send, and you haven't told it to send anything. In lesson 05 you'll
# tell it to send gradients, with one line, and from lesson 09 on the compiler sends them for you. Either way, only a
# comparison shows whether the result is correct. That's why the lessons keep comparing eight devices with one, as
# you've just done with the glider.
#
# ## An array on one device
#
# If an array sits on a single device, which device does the computing? Give device 3 its strip of the world, and double
# it.
#
# **Predict:** which device is the result on?

# %% tags=["prediction"]
strip = jax.device_put(start[15:20], eight[3])
print("2 * strip is on", (2 * strip).devices())
print("jnp.ones(1), which nobody placed, is on", jnp.ones(1).devices())

# %% [markdown]
# <details><summary>Answer</summary>
#
# Device 3, because that's where the array is. An array that you don't place anywhere goes to device 0. `jax.device_get`
# brings an array back to the host, as a NumPy array.
#
# </details>
#
# ## Can you believe a simulation?
#
# | the same as on eight GPUs | different |
# | --- | --- |
# | where each array is, and the error if it's in the wrong place | memory: your devices share your machine's |
# | how your program is split, and its results, up to rounding | speed: they share your machine's cores |
# | the messages that you write | how the messages travel, and how long they take |
#
# So a simulation lets you compare **results**, but it never shows you how **fast** a program will be. Rounding errors
# are larger on a GPU or a TPU, because it may multiply float32 matrices in a shorter format, such as TF32 or bfloat16.
# You can turn that off with `JAX_DEFAULT_MATMUL_PRECISION=highest`.
#
# In your own programs, ask for the devices as the glider's program does, before anything else. JAX looks for devices
# once, at the first call that needs one. If you ask for a different number later, `jax.config.update` raises an error.
# Many tutorials set the environment variable `XLA_FLAGS` instead. If you set that too late, JAX just ignores it, so you
# train on one device and never know. The lessons call `devices.simulate(8)`, which also gives JAX [enough
# threads](../docs/simulated_devices.md) for eight devices. On a machine with a GPU, start JupyterLab with
# `JAX_PLATFORMS=cpu jupyter lab`, because otherwise JAX uses the GPU.

# %% tags=["proof"]
# The asserts behind the answers.
small = np.zeros((6, 6), np.int32)
small[:3, :3] = start[1:4, 1:4]
later = small
for _ in range(4):
    later = next_generation(later)
assert np.array_equal(later, np.roll(small, (1, 1), (0, 1)))
assert np.array_equal(flight, flight_on_one)
assert [alive_on(world) for world in flight] == [[number] for number in range(8)]
assert [alive_on(world) for world in pmap_flight] == [[0]] * 8
messages = lesson_00.messages(step, flight[0], sender=1)
assert sorted(messages) == [("s32[1,40]", 0), ("s32[1,40]", 2)]
assert lesson_00.messages(jax.pmap(next_generation), strips, sender=1) == []
assert (2 * jax.device_put(start, eight[3])).devices() == {eight[3]}
assert jnp.ones(1).devices() == {eight[0]}

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/00_meet_your_devices.py](solutions/00_meet_your_devices.py).
#
# 1. `add_on` (3 minutes): add `a` and `b` on `device`, wherever they are now. Move first, then add.
#    <details><summary>Hint</summary><code>device_put</code> moves both.</details>
# 2. `sum_in_pairs` (10 minutes): N devices hold one array each, and N is a power of two. Compute the sum on the first
#    device. If you add one array after another, that takes N - 1 rounds, but in pairs it takes only log2 N. In round 1
#    of the picture below, every even device adds its right neighbour's array. In round 2, devices 0 and 4 add the array
#    two places over. Return the list of rounds: the N arrays, then N/2 sums, and so on down to one.
#    <details><summary>Hint</summary>In each round, neighbours in the list are the pairs: <code>arrays[::2]</code> and
#    <code>arrays[1::2]</code>. The first of each pair is already where it should be.</details>
# 3. `fixed_standardize` (3 minutes, find the mistake): `broken_standardize` should compute on the given device, not
#    move a finished result there. The numbers are correct, but the device is wrong.
#    <details><summary>Hint</summary>What does <code>device_put</code> do to its argument?</details>

# %%
drawing.rounds_of_sums(on_all=False)


def broken_standardize(x, device):
    jax.device_put(x, device)
    return (x - x.mean()) / x.std()


print("asked for device 6, computed on", broken_standardize(jnp.arange(4.0), eight[6]).devices())

# %%
from pmapdp.lessons.checks import check


def add_on(device, a, b):
    """`a + b` on `device`, wherever they are now."""
    ...  # your code: 1 to 3 lines


def sum_in_pairs(arrays):
    """The rounds of the sum: N arrays, N/2 arrays, ..., one array. `arrays[i]` is on device i."""
    ...  # your code: 5 to 7 lines


def fixed_standardize(x, device):
    """`x` with mean 0 and standard deviation 1, computed on `device`."""
    ...  # your code: 2 lines


for exercise in (add_on, sum_in_pairs, fixed_standardize):
    check("00_meet_your_devices", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - One array can live on eight devices. The work goes where the data is, and `jax.device_put` says where that is.
# - If a device needs what another one has, somebody must send it: the compiler under `jit`, and you under `pmap`. If
#   nobody does, you get a wrong result and no error.
# - Simulated devices show you where the work happens and what the result is. They never show you how fast it is.
#
# In pmapdp, [devices.py](../pmapdp/devices.py) simulates and describes the devices. If you've never written a backward
# pass, go on with [01 Train a network in NumPy](01_train_a_network_in_numpy.ipynb). Otherwise:
# [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb).

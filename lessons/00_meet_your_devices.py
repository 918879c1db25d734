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
# After this lesson you can start JAX with eight simulated devices, place arrays on them, predict on which device an
# operation runs, and say what a simulation can and cannot show.
#
# About 15 minutes · you need Python and NumPy · next: [01 Train a network in NumPy](01_train_a_network_in_numpy.ipynb),
# which is optional, or [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb)

# %% [markdown]
# ## Eight devices on one machine
#
# A **device** is what JAX stores arrays on and runs programs on: a GPU, a TPU, or a CPU. Data-parallel training needs
# several. You do not have to own them: JAX can present one CPU as several devices, and a program for eight of those
# runs unchanged on eight GPUs.
#
# The number is fixed when JAX starts, which is at the first call that needs a device. In plain JAX, one line sets it:
# `jax.config.update("jax_num_cpu_devices", 8)`. The lessons call `devices.simulate(8)`, which sets the same number, and
# explains what to do if it is too late. Call it before anything else that uses JAX.

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np

from pmapdp import devices  # simulates devices and describes them
from pmapdp.lessons import drawing  # a picture that two lessons share

devices.simulate(8)  # before any other use of JAX

eight = jax.devices("cpu")  # with a GPU, plain jax.devices() would list that instead
print(devices.describe(eight))
for device in eight:
    print(device, "id", device.id, "kind", device.device_kind, "process", device.process_index)
assert len(eight) == 8

# %% [markdown]
# All eight belong to one process, which is your notebook. A PyTorch program usually has one process for each GPU. One
# JAX process can use all devices of a machine; several machines need several processes (lesson 17).
#
# ## Put arrays on them
#
# `jax.device_put(x, device)` copies an array to a device. Take a column of eight numbers, and give each device one row.
# In the pictures of this course, a colour is a device, and each device keeps its colour.

# %%
from pmapdp.lessons.pictures import lesson_00

x = np.arange(8, dtype=np.float32).reshape(8, 1)  # [8, 1], NumPy, on the host
rows = [jax.device_put(row, device) for row, device in zip(x, eight, strict=True)]  # eight arrays [1]
for row in rows[:3]:
    print(row, row.shape, row.devices())
lesson_00.one_row_each()

# %% [markdown]
# Each array knows its device. **Predict:** `rows[3]` holds 3 and is on device 3. What is `2 * rows[3]`, and on which
# device is it? And `jnp.ones(1)`, for which nobody named a device?

# %% tags=["prediction"]
doubled = [2 * row for row in rows]
print(doubled[3], doubled[3].devices())
print(jnp.ones(1), jnp.ones(1).devices())
back = jax.device_get(doubled)  # a list of NumPy arrays again, on the host

# %% tags=["proof"]
# The asserts behind the answer.
assert doubled[3] == 6
assert doubled[3].devices() == {eight[3]}
assert jnp.ones(1).devices() == {jax.devices()[0]}
assert type(back[3]) is np.ndarray
assert (np.stack(back) == 2 * x).all()

# %% [markdown]
# <details><summary>Answer</summary>
#
# The product was computed on device 3, because that is where its operand is. What has no place of its own goes to the
# first device, the **default device**. `jax.device_get` copies results back to the host, as NumPy arrays. (What happens
# if two operands are on different devices? Lesson 04 asks that, where it matters.)
#
# </details>
#
# Eight arrays in a Python list are clumsy. JAX can also keep **one array on eight devices**. Here is a preview of
# lesson 04, in a cell that you can copy into an empty file: it starts JAX with eight devices, and places one array
# split by rows, and another one replicated. On real devices, delete the two lines that simulate.

# %% tags=["take-home"]
import os

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

mesh = Mesh(np.array(jax.devices()), ("data",))
column = np.arange(mesh.size, dtype=np.float32).reshape(-1, 1)  # [N, 1] on the host
split = jax.device_put(column, NamedSharding(mesh, PartitionSpec("data")))  # one row on each device
replicated = jax.device_put(column, NamedSharding(mesh, PartitionSpec()))  # all rows on each device
print(mesh.size, "devices:", jax.devices()[0].device_kind)
for name, array in (("split", split), ("replicated", replicated)):
    shard = array.addressable_shards[-1]
    print(f"{name} {array.shape}: {shard.device} holds {shard.data.shape}, {shard.data.tolist()}")
assert (jax.device_get(2 * split) == 2 * column).all()

# %% [markdown]
# `2 * split` was computed by eight devices, each of which doubled its row.
#
# ## What a simulation shows
#
# | the same as on eight GPUs | not the same |
# | --- | --- |
# | where each array is, and the errors about that | memory: the devices share that of the machine |
# | the programs, which are compiled for eight devices | speed: the devices share its cores |
# | which messages the devices send each other (lesson 06) | the time of a message, which is only a copy in memory |
#
# So simulated devices show whether a program is **right**. They do not show how **fast** it will be. On eight GPUs,
# eight large products can run at the same time. Here they share the cores of one machine, so the lessons count
# operations and bytes, and do not time simulated devices. (How many threads the simulation needs, and why `simulate`
# sets `NPROC`, is explained in [Simulated devices](../docs/simulated_devices.md).)
#
# ## How it fails: asking too late
#
# Code that asks for eight devices *after* JAX has started does not get them. Try it in a fresh Python process with
# plain JAX. **Predict:** how many devices are there after setting `XLA_FLAGS`, as many tutorials do?

# %% tags=["prediction"]
import subprocess
import sys

program = """
import os, jax
print("at the start:", jax.device_count())  # JAX starts here, with one CPU device
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
print("after XLA_FLAGS:", jax.device_count())
jax.config.update("jax_num_cpu_devices", 8)
"""
ours = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "NPROC")
fresh = {name: value for name, value in os.environ.items() if name not in ours}
fresh |= {"JAX_PLATFORMS": "cpu", "PYTHON_COLORS": "0"}
run = subprocess.run([sys.executable, "-c", program], env=fresh, capture_output=True, text=True)
print(run.stdout + run.stderr.strip().splitlines()[-1])

# %% tags=["proof"]
# The asserts behind the answer.
assert run.stdout.split("\n")[:2] == ["at the start: 1", "after XLA_FLAGS: 1"]
assert run.stderr.strip().splitlines()[-1].startswith("RuntimeError")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The environment variable was ignored without any message, so the program would train on one device. The configuration
# setting at least raises an error.
#
# </details>
#
# `devices.simulate` uses the setting, and its error says what to do. Ask this notebook, which started with eight
# devices, for sixteen:

# %%
from pmapdp.errors import UserError  # what pmapdp raises for a mistake of its user

try:
    devices.simulate(16)
except UserError as error:
    print(error)
else:
    raise AssertionError("16 devices should have been refused")

# %% [markdown]
# The message names both numbers and the cure: restart the kernel, and call `simulate` first.
#
# ## Exercises
#
# Solutions, with reasons: [solutions/00_meet_your_devices.py](solutions/00_meet_your_devices.py).
#
# 1. `add_on` (3 minutes): the sum of two arrays, each of which may be on any device, on a third. (Adding arrays of two
#    devices raises an error, because JAX does not guess where you want the sum.)
#    <details><summary>Hint</summary>Move both first.</details>
# 2. `sum_in_pairs` (10 minutes): N devices hold one array each, where N is a power of two. Compute the sum of all
#    arrays on the first device. Adding them one after the other takes N - 1 rounds. Adding in pairs takes log2 N
#    rounds, as in the picture below: in round r = 1, 2, ..., every device whose number d is a multiple of 2^r adds the
#    array of device d + 2^(r-1) to its own. Return the list of rounds: the N arrays, then N/2 sums, and so on down to
#    one. <details><summary>Hint</summary>In a round, neighbours in the list are the pairs: <code>arrays[::2]</code> and
#    <code>arrays[1::2]</code>. The first of each pair is on the right device already.</details>
# 3. `fixed_standardize` (find the mistake): `broken_standardize` should compute on the given device. It returns the
#    right numbers, but on the wrong device. Write it correctly. <details><summary>Hint</summary>What does
#    <code>device_put</code> do to its argument?</details>

# %%
drawing.rounds_of_sums(on_all=False)


def broken_standardize(x, device):
    jax.device_put(x, device)
    return (x - x.mean()) / x.std()


print("asked for device 6, computed on", broken_standardize(jnp.arange(4.0), eight[6]).devices())

# %%
from pmapdp.lessons.checks import check


def add_on(device, a, b):
    """`a + b` on `device`, wherever the two are."""
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
# * Ask for simulated devices before JAX starts, and look at `jax.devices()` to see what you got.
# * An operation runs where its operands are. `jax.device_put` moves arrays, `jax.device_get` brings them back.
# * Simulated devices show that a program is right, and not how fast it is.
#
# In pmapdp this code is [devices.py](../pmapdp/devices.py). To read on:
# [JAX on data placement](https://docs.jax.dev/en/latest/201/placement.html). Next, a network without JAX, if you have
# never written a backward pass: [01 Train a network in NumPy](01_train_a_network_in_numpy.ipynb). Otherwise:
# [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb).

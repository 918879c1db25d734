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
# You want to train on eight GPUs, and all you have is a laptop. That's enough to start, because JAX can pretend that
# one CPU is eight devices. You can split arrays over them, average gradients over them, and make every mistake in this
# course before it costs you GPU hours. In this lesson you'll get your eight devices and put arrays on them. You'll also
# meet the mistake that leaves you with a single device and no error.
#
# **You will** start JAX with eight simulated devices, say which device holds an array and which one computes, and know
# what a simulation can't tell you. 16 minutes, 32 with exercises. You need Python and NumPy.

# %% [markdown]
# ## Eight devices, please
#
# JAX keeps its arrays on **devices**, and computes there. A device is a GPU, a TPU, or a CPU. JAX looks for devices
# once, at the first call that needs one, and from then on their number is fixed. So ask before you do anything else:
#
# ```python
# jax.config.update("jax_num_cpu_devices", 8)
# ```
#
# The lessons call `devices.simulate(8)`, which does the same and a little more. It gives JAX [enough
# threads](../docs/simulated_devices.md) for eight devices that wait for each other, and if you call it too late, it
# tells you what to do. On a machine with a GPU, start JupyterLab with `JAX_PLATFORMS=cpu jupyter lab`, because
# otherwise JAX uses the GPU.

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np

from pmapdp import devices
from pmapdp.lessons import drawing

devices.simulate(8)  # before any other use of JAX

eight = jax.devices("cpu")
print(devices.describe(eight))
for device in eight:
    print(device)
assert len(eight) == 8

# %% [markdown]
# All eight belong to one process, your notebook. With PyTorch you'd expect one process for each GPU. In JAX one process
# can drive all the devices of a machine, so one process will do until you have several machines. That's lesson 17.
#
# ## Put arrays on them
#
# `jax.device_put(x, device)` copies an array to a device. Let's give each device one row of a small array. Each device
# has its own colour in the picture, and keeps that colour through the course.

# %%
from pmapdp.lessons.pictures import lesson_00

x = np.arange(8, dtype=np.float32).reshape(8, 1)  # NumPy, so it's on the host, not on a device
rows = [jax.device_put(row, device) for row, device in zip(x, eight, strict=True)]
print("rows[3] is", rows[3], "on", rows[3].devices())
lesson_00.one_row_each()

# %% [markdown]
# **Predict:** you double `rows[3]`. Which device computes that?

# %% tags=["prediction"]
doubles = [2 * row for row in rows]
print("2 * rows[3] is", doubles[3], "on", doubles[3].devices())
print("jnp.ones(1), which we placed nowhere, is on", jnp.ones(1).devices())
host_arrays = jax.device_get(doubles)  # NumPy arrays, on the host again

# %% tags=["proof"]
# The asserts behind the answer.
assert doubles[3] == 6
assert doubles[3].devices() == {eight[3]}
assert jnp.ones(1).devices() == {jax.devices()[0]}
assert type(host_arrays[3]) is np.ndarray
assert (np.stack(host_arrays) == 2 * x).all()

# %% [markdown]
# <details><summary>Answer</summary>
#
# Device 3 computes it, because that's where the array is: **the work goes where the data is**. If you don't say where,
# an array goes to device 0. `jax.device_get` brings results back to the host.
#
# </details>
#
# ## One array on eight devices
#
# Eight arrays in a list are clumsy, because every line of your program becomes a loop. That's why JAX can keep *one*
# array on eight devices. It can be **split**, so that each device holds a part of it, or **replicated**, so that each
# device holds all of it. When you train, you'll split the batch and replicate the model.
#
# The next cell makes an array of each kind, with 16 numbers in it, and adds the two. It's a whole program: copy it into
# an empty file, and it runs on the GPUs of your machine, or on eight simulated devices if there are none. The lines
# with `Mesh` and `PartitionSpec` say which part goes where. Read past them for now, because lesson 04 explains them.
#
# **Predict:** you add the split array to the replicated one. What does device 7 hold of the sum?

# %% tags=["take-home", "prediction"]
"""Keep one array on eight devices: split over them, or replicated."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_num_cpu_devices", 8)  # simulated, unless there are GPUs or TPUs
mesh = Mesh(jax.devices(), ("data",))  # all devices in a row; the row is called "data"
replicated = NamedSharding(mesh, PartitionSpec())  # every device holds all of the array
split = NamedSharding(mesh, PartitionSpec("data"))  # the first axis is cut into one part for each


def per_device(array):
    """Return the numbers that each device holds, one list for each device."""
    return [shard.data.tolist() for shard in array.addressable_shards]


numbers = np.arange(2 * mesh.size, dtype=np.int32)  # [16] on the host: two for each device
parts = jax.device_put(numbers, split)
copies = jax.device_put(numbers, replicated)
sum_parts = parts + copies  # nothing is sent
sum_copies = jax.device_put(sum_parts, replicated)  # now each device gets all the sums

print(mesh.size, "devices:", jax.devices()[0].device_kind)
arrays = {"parts": parts, "copies": copies, "sum_parts": sum_parts, "sum_copies": sum_copies}
for name, array in arrays.items():
    print(f"{name:10s} {array.shape}, and the last device holds {per_device(array)[-1]}")

# To the program, each is one array of 16 numbers, wherever its parts are.
np.testing.assert_array_equal(jax.device_get(sum_parts), 2 * numbers)
np.testing.assert_array_equal(jax.device_get(sum_copies), 2 * numbers)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two numbers, 28 and 30. Device 7 has all of `copies` but only two numbers of `parts`, so it adds these two. If you
# want all 16 sums on each device, ask for them with `device_put`, as the program does for `sum_copies`.
#
# </details>

# %%
lesson_00.one_array({name: per_device(array) for name, array in arrays.items()})

# %% [markdown]
# ## How fast are eight simulated devices?
#
# Let's give one, two, four and eight of them the same work, a product of two matrices. Eight GPUs would work at the
# same time, and be done as soon as one of them.
#
# **Predict:** how long will eight simulated devices take, compared with one?

# %% tags=["prediction"]
import time

matrix = np.ones((600, 600), np.float32)
matrices = [jax.device_put(matrix, device) for device in eight]
seconds = dict.fromkeys((1, 2, 4, 8), np.inf)
for _ in range(15):  # the first round compiles
    for N in seconds:
        start = time.perf_counter()
        jax.block_until_ready([x @ x for x in matrices[:N]])
        seconds[N] = min(seconds[N], time.perf_counter() - start)
lesson_00.same_work_each(seconds)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Several times as long, because they share your machine's cores. If one product already keeps all cores busy, eight
# products take at least eight times as long, and often more, because the devices also get in each other's way.
#
# </details>
#
# So a simulation can tell you that a program is **correct**, but never how **fast** it will be:
#
# | the same as on eight GPUs | different |
# | --- | --- |
# | where each array is, and the error if it's in the wrong place | memory: your devices share your machine's |
# | how your program is split, and its results, up to rounding | speed: they share your machine's cores |
# | the collectives that you write (lesson 06) | how the messages travel, and how long they take |
#
# What does "up to rounding" mean? In lesson 05, eight simulated devices differ from one by less than 0.00001 after an
# epoch. On a GPU or a TPU fewer digits will match, because it may multiply float32 matrices in a shorter format, such
# as TF32 or bfloat16. `JAX_DEFAULT_MATMUL_PRECISION=highest` forbids that.
#
# ## How it fails: asking too late
#
# In many tutorials you'll find another way to ask for devices, the environment variable `XLA_FLAGS`. Let's ask in both
# ways, but too late, and see which one complains. This needs a Python process in which JAX hasn't started yet:


# %%
import os
import subprocess
import sys


def run_python(program):
    """Run a program in a fresh Python process on the CPU, without JAX settings from outside."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("XLA", "JAX"))}
    env |= {"JAX_PLATFORMS": "cpu", "PYTHON_COLORS": "0"}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)


# %% [markdown]
# **Predict:** in the program below, JAX looks for its devices in the first line that prints. Which of the two ways
# tells you that you've come too late?

# %% tags=["prediction"]
run = run_python("""
import os, jax
print("at the start:", jax.device_count())  # JAX starts here
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
print("after XLA_FLAGS:", jax.device_count())
jax.config.update("jax_num_cpu_devices", 8)
""")
print(run.stdout + run.stderr.splitlines()[-1])

# %% tags=["proof"]
# The asserts behind the answer.
assert run.stdout.split("\n")[:2] == ["at the start: 1", "after XLA_FLAGS: 1"]
assert run.stderr.splitlines()[-1].startswith("RuntimeError")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only `jax.config.update`, which raises an error, and that's why we use it. The environment variable does nothing and
# says nothing, so you'd train on one device and never know. Both work if they come before JAX looks for devices.
#
# </details>
#
# ## Exercises
#
# Solutions, with reasons: [solutions/00_meet_your_devices.py](solutions/00_meet_your_devices.py).
#
# 1. `add_on` (3 minutes): add `a` and `b` on `device`, wherever the two are. Move first, then add.
#    <details><summary>Hint</summary><code>device_put</code> moves both.</details>
# 2. `sum_in_pairs` (10 minutes): N devices hold one array each, and N is a power of two. Compute the sum on the first
#    device. If you add one array after the other, that takes N - 1 rounds, and in pairs it takes only log2 N. In round
#    1 of the picture below, every even device adds its right neighbour's array. In round 2, devices 0 and 4 add the
#    array two places over. Return the list of rounds: the N arrays, then N/2 sums, and so on down to one.
#    <details><summary>Hint</summary>In each round, neighbours in the list are the pairs: <code>arrays[::2]</code> and
#    <code>arrays[1::2]</code>. The first of each pair is where it should be already.</details>
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
# - Ask for simulated devices before anything else, and look at `jax.devices()` to see what you got.
# - The work goes where the data is. `jax.device_put` sends an array to one device, or splits it over all of them, and
#   `jax.device_get` brings it back.
# - Simulated devices show you whether a program is correct. They never show you how fast it is.
#
# In pmapdp, this is [devices.py](../pmapdp/devices.py). If you've never written a backward pass, go on with
# [01 Train a network in NumPy](01_train_a_network_in_numpy.ipynb). Otherwise:
# [02 Differentiate, compile, vectorize](02_differentiate_compile_vectorize.ipynb).

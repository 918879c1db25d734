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
# About 20 minutes · you need Python and NumPy · next:
# [01 Train a network in NumPy](01_train_a_network_in_numpy.ipynb)

# %% [markdown]
# ## Eight devices on one machine
#
# A **device** is what JAX stores arrays on and runs programs on: a GPU, a TPU, or a CPU. Data-parallel training needs
# several. You do not have to own them: JAX can present one CPU as several devices, and a program for eight of those
# runs unchanged on eight GPUs.
#
# The number is fixed when JAX starts, which is at the first call that needs a device. In plain JAX, one line sets it:
# `jax.config.update("jax_num_cpu_devices", 8)`. This project calls `devices.simulate(8)`, which sets the same number,
# and explains what to do if it is too late. Call it before anything else that uses JAX.
#
# `drawing`, `pictures` and `checks` are files of this folder. They draw the pictures and check your exercises; you need
# not read them.

# %%
import inspect
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp import devices
from pmapdp.errors import UserError
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_00

devices.simulate(8)
drawing.setup()

eight = jax.devices("cpu")  # with a GPU, plain jax.devices() would list that instead
print(devices.describe(eight))
for device in eight:
    print(device, "id", device.id, "kind", device.device_kind, "process", device.process_index)
assert len(eight) == 8

# %% [markdown]
# All eight belong to one process, which is your notebook. A PyTorch program usually has one process for each GPU. JAX
# needs several processes only for several machines (lesson 17).
#
# ## Put arrays on them
#
# `jax.device_put(x, device)` copies an array to a device. Take a column of eight numbers, and give each device one row.
# In the picture, each device has one colour, which stays the same in all lessons.

# %%
x = np.arange(8, dtype=np.float32).reshape(8, 1)  # [8, 1], NumPy, on the host
rows = [jax.device_put(row, device) for row, device in zip(x, eight, strict=True)]  # eight arrays [1]
for row in rows[:3]:
    print(row, row.shape, row.devices())
lesson_00.one_row_each()

# %% [markdown]
# Each array knows its device. **Predict:** `rows[3]` holds 3 and is on device 3. What is `2 * rows[3]`, and on which
# device is it?

# %%
doubled = [2 * row for row in rows]
print(doubled[3], doubled[3].devices())
assert doubled[3] == 6
assert doubled[3].devices() == {eight[3]}

back = jax.device_get(doubled)  # a list of NumPy arrays again, on the host
assert type(back[3]) is np.ndarray
assert (np.stack(back) == 2 * x).all()

# %% [markdown]
# The product was computed on device 3, because that is where its operand is. `jax.device_get` copies results back to
# the host, as NumPy arrays.
#
# ## Committed and uncommitted arrays
#
# For each row you named the device. Such an array is **committed**: JAX never moves it to another device by itself. But
# most arrays are made without naming a device, for example by `jnp.ones(3)` or `jax.device_put(x)`. They are placed on
# the default device, and are **uncommitted**: JAX may copy them to where they are needed.
#
# **Predict** for each of the four sums: does it work, and on which device is the result?

# %%
free, other = jnp.array([100.0]), jnp.array([1.0])  # uncommitted, on the default device, device 0
pairs = {
    "uncommitted + uncommitted": (free, other),
    "uncommitted + committed to 5": (free, rows[5]),
    "NumPy + committed to 5": (x[0], rows[5]),
    "committed to 0 + committed to 5": (rows[0], rows[5]),
}
for name, (a, b) in pairs.items():
    try:
        print(f"{name}: on {(a + b).devices()}")
    except ValueError as error:
        print(f"{name}: ValueError: {str(error).split('. ')[0]}")

assert (free.committed, rows[5].committed) == (False, True)
assert (free + rows[5]).devices() == {eight[5]}

# %% [markdown]
# A committed array decides where the operation runs, and JAX copies uncommitted ones there. Two arrays that are
# committed to different devices raise an error, because JAX does not guess which device you meant. The cure is to move
# one of them yourself:

# %%
moved = rows[0] + jax.device_put(rows[5], eight[0])  # <- changed: moved first
print(moved, moved.devices())
assert moved == 5
assert moved.devices() == {eight[0]}

# %% [markdown]
# Remember this rule for lesson 09. There the parameters are on eight devices. An uncommitted batch is then copied to
# all eight without a warning, and a batch that is committed to one device raises an error.
#
# ## What a simulation shows
#
# | the same as on eight GPUs | not the same |
# | --- | --- |
# | where each array is, and the errors about that | memory: the devices share that of the machine |
# | the programs, which are compiled for eight devices | speed: the devices share its cores |
# | which messages the devices send each other (lesson 06) | the time of a message, which is only a copy in memory |
#
# So simulated devices show whether a program is **right**. They do not show how **fast** it will be. The next cell
# times eight matrix products, first all on device 0, then one on each device. `block_until_ready` waits for the
# results. Without it, you would measure only how long it takes to start the work. **Predict:** which placement is
# faster?

# %%
matrix = np.random.default_rng(0).standard_normal((512, 512), np.float32)
placings = {"all on device 0": [eight[0]] * 8, "one on each device": eight}
print(devices.describe(eight))
for name, places in placings.items():
    copies = [jax.device_put(matrix, place) for place in places]
    jax.block_until_ready([copy @ copy for copy in copies])  # compiles; not timed
    times = []
    for _ in range(5):
        started = time.perf_counter()
        jax.block_until_ready([copy @ copy for copy in copies])
        times.append(time.perf_counter() - started)
    print(f"{name}: {1000 * min(times):.1f} ms, the fastest of 5")

# %% [markdown]
# The second may be faster, but not eight times: the devices share the cores of this machine, and a single large product
# can already use several cores. On eight GPUs the second time would be about an eighth of the first.
#
# ## How it fails: asking too late
#
# Code that asks for eight devices *after* JAX has started does not get them. Try it in a fresh Python process with
# plain JAX. **Predict:** how many devices are there after setting `XLA_FLAGS`, as many tutorials do?

# %%
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
assert run.stdout.split("\n")[:2] == ["at the start: 1", "after XLA_FLAGS: 1"]
assert run.stderr.strip().splitlines()[-1].startswith("RuntimeError")

# %% [markdown]
# The environment variable was ignored without any message, so the program would train on one device. The configuration
# setting at least raises an error. `devices.simulate` uses the setting, and its error says what to do. Ask this
# notebook, which started with eight devices, for sixteen:

# %%
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
# 1. `add_on` (3 minutes): the sum of two arrays that may be committed to different devices, on a third.
#    <details><summary>Hint</summary>Move both first.</details>
# 2. `sum_in_pairs` (10 minutes): N devices hold one array each, where N is a power of two. Compute the sum of all
#    arrays on the first device. Adding them one after the other takes N - 1 rounds. Adding in pairs takes log2 N
#    rounds, as in the picture below: in round r = 1, 2, ..., every device whose number d is a multiple of 2^r adds the
#    array of device d + 2^(r-1) to its own. Return the list of rounds: the N arrays, then N/2 sums, and so on down to
#    one. <details><summary>Hint</summary>In a round, neighbours in the list are the pairs: <code>arrays[::2]</code> and
#    <code>arrays[1::2]</code>. The first of each pair is on the right device already.</details>
# 3. `mended_standardize` (find the mistake): `broken_standardize` should compute on the given device. It returns the
#    right numbers, but on the wrong device. Write it correctly. <details><summary>Hint</summary>What does
#    <code>device_put</code> do to its argument?</details>

# %%
drawing.rounds_of_sums(on_all=False)


def broken_standardize(x, device):
    jax.device_put(x, device)
    return (x - x.mean()) / x.std()


print("asked for device 6, computed on", broken_standardize(jnp.arange(4.0), eight[6]).devices())


# %%
def add_on(device, a, b):
    """`a + b` on `device`, wherever the two are."""
    ...  # your code: 1 to 3 lines


def sum_in_pairs(arrays):
    """The rounds of the sum: N arrays, N/2 arrays, ..., one array. `arrays[i]` is on device i."""
    ...  # your code: 5 to 7 lines


def mended_standardize(x, device):
    """`x` with mean 0 and standard deviation 1, computed on `device`."""
    ...  # your code: 2 lines


for exercise in (add_on, sum_in_pairs, mended_standardize):
    check("00_meet_your_devices", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# * Ask for simulated devices before JAX starts, and look at `jax.devices()` to see what you got.
# * An operation runs where its committed arrays are. JAX moves uncommitted arrays, and never committed ones.
# * Simulated devices show that a program is right, and not how fast it is.
#
# In pmapdp this code is [pmapdp/devices.py](../src/pmapdp/devices.py); its function `simulate` is printed at the end. To
# read on: [JAX on data placement](https://docs.jax.dev/en/latest/201/placement.html). Next, a network without JAX:
# [01 Train a network in NumPy](01_train_a_network_in_numpy.ipynb).
#
# ## Appendix: why simulated devices need threads
#
# You can skip this. It explains why `simulate` below sets a variable called `NPROC`.
#
# In a **collective** operation, such as the sum over all devices (lesson 06), every device waits for all others. Before
# jax 0.12, a simulated device occupies a thread while it waits, and JAX makes as many threads as there are cores. With
# eight devices on two cores, two devices wait for six that never get a thread. This is a **deadlock**: the process
# aborts after a while. The next cell shows this in plain Python: eight tasks wait for each other, on pools of different
# sizes.


# %%
def meet(tasks: int, threads: int) -> bool:
    """Whether `tasks` tasks that wait for each other all arrive, on a pool of `threads` threads."""
    barrier = threading.Barrier(tasks, timeout=0.5)  # seconds; XLA waits longer, then aborts

    def task() -> bool:
        try:
            barrier.wait()
        except threading.BrokenBarrierError:
            return False
        return True

    with ThreadPoolExecutor(threads) as pool:
        return all(future.result() for future in [pool.submit(task) for _ in range(tasks)])


outcome = {threads: meet(8, threads) for threads in (2, 7, 8, 16)}
print(outcome)
assert outcome == {2: False, 7: False, 8: True, 16: True}

# %% [markdown]
# With fewer threads than tasks, the tasks never all arrive. JAX reads the environment variable `NPROC` when it starts,
# and makes a pool of that size. The pool has other work too, so `simulate` asks for two threads for each device. From
# jax 0.12 on we have seen no deadlock, and `simulate` does not set the variable.

# %%
print("jax", jax.__version__, "NPROC =", os.environ.get("NPROC", "not set"))
assert not devices.COLLECTIVES_HOLD_THREADS or int(os.environ["NPROC"]) >= 2 * len(eight)
print(inspect.getsource(devices.simulate))

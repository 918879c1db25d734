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
# After this lesson you can start JAX with eight simulated devices, say what is real about them and what is not, and
# avoid the two classic start-up mistakes.
#
# 15 minutes. You need Python and NumPy. Next: [01. Train a network in NumPy](01_train_a_network_in_numpy.ipynb).

# %% [markdown]
# ## Eight devices on one machine
#
# A **device** is what JAX puts arrays on and runs programs on: a GPU, a TPU, or the CPU. Data-parallel training
# needs several. You do not need to own them: JAX can divide one CPU into several devices, and a program for eight
# of those runs unchanged on eight GPUs.
#
# The number is fixed when JAX starts, which is at the first call that needs a device. `devices.simulate(8)` of this
# project sets it, so it stands in the first cell of most lessons, before any use of JAX.

# %%
import inspect
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import drawing
import jax
import numpy as np
from checks import check

from pmapdp import devices
from pmapdp.errors import UserError

devices.simulate(8)
drawing.setup()

eight = jax.devices("cpu")  # with a GPU, plain jax.devices() would list that instead
print(devices.describe(eight))
for device in eight:
    print(device, "id", device.id, "kind", device.device_kind, "process", device.process_index)
assert len(eight) == 8

# %% [markdown]
# All eight are in one process, your notebook's. (Several processes, as in PyTorch's one process for each GPU,
# also exist in JAX: for several machines.)
#
# ## Put data on them
#
# An array lives on a device. `jax.device_put(x, device)` copies it there; arithmetic happens where the data is.
# Take a column of eight numbers and give each device one row.

# %%
x = np.arange(8, dtype=np.float32).reshape(8, 1)  # [8, 1], NumPy, on the host
rows = [jax.device_put(row, device) for row, device in zip(x, eight, strict=True)]  # eight arrays [1]
for row in rows:
    print(row, row.shape, row.devices())

# %% [markdown]
# **Predict:** `rows[3]` holds 3 and lies on device 3. What is `2 * rows[3]`, and where does it lie?

# %%
doubled = [2 * row for row in rows]
print(doubled[3], doubled[3].devices())
assert doubled[3] == 6
assert doubled[3].devices() == {eight[3]}

back = jax.device_get(doubled)  # a list of NumPy arrays again, on the host
assert type(back[3]) is np.ndarray
assert (np.stack(back) == 2 * x).all()

# %% [markdown]
# The way of the data as a picture. Each device has one colour, the same in all lessons.

# %%
picture = drawing.canvas(17.6, 6.6)
drawing.box(picture, 6.3, 0.1, "host: x [8, 1]", width=5, height=0.9)
for d in range(8):
    left = 0.2 + 2.2 * d
    drawing.arrow(picture, (8.8, 1.0), (left + 0.9, 2.2), device=d)
    drawing.box(picture, left, 2.2, f"row {d}\n[1]", device=d, height=1.2)
    drawing.arrow(picture, (left + 0.9, 3.4), (left + 0.9, 4.1), device=d)
drawing.box(picture, 0.2, 4.1, "one pool of threads (NPROC of them) runs the work of all devices", width=17.2)
cores = devices.cores()
for core in range(2):
    middle = 4.6 + 8.4 * core
    drawing.arrow(picture, (middle, 4.9), (middle, 5.6))
    drawing.box(picture, middle - 2.5, 5.6, ("first core", "last core")[core], width=5)
picture.text(8.8, 6.0, "...", ha="center", va="center")
print(f"cores here: {cores}")

# %% [markdown]
# ## What is real, and what is not
#
# | real | not real |
# | --- | --- |
# | arrays lie on a device and must be moved on purpose | memory: all share this machine's |
# | the programs, compiled for eight devices | speed: all share this machine's cores |
# | the messages between them (lesson 05), as function calls | the cost of those messages on a network |
# | the errors | running out of one device's memory |
#
# So simulated devices show whether a program is **right**, not how **fast** it will be. One of the real errors: an
# operation on arrays of two devices. JAX does not guess which one you meant.

# %%
try:
    rows[0] + rows[1]
except ValueError as error:
    print("ValueError:", str(error).split(". ")[0])

moved = rows[0] + jax.device_put(rows[1], eight[0])  # <- changed: moved on purpose
assert moved == 1
assert moved.devices() == {eight[0]}

# %% [markdown]
# ## Mistake one: asking too late
#
# Code that asks for eight devices *after* JAX has started gets fewer. We try it in a fresh Python process, with plain
# JAX. **Predict:** how many devices after setting `XLA_FLAGS`, the way of many tutorials?

# %%
program = """
import os, jax
print("at the start:", jax.device_count())  # JAX starts here, with one CPU device
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
print("after XLA_FLAGS:", jax.device_count())
jax.config.update("jax_num_cpu_devices", 8)
"""
ours = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "NPROC")
fresh = {name: value for name, value in os.environ.items() if name not in ours} | {"JAX_PLATFORMS": "cpu"}
run = subprocess.run([sys.executable, "-c", program], env=fresh, capture_output=True, text=True)
print(run.stdout + run.stderr.strip().splitlines()[-1])
assert run.stdout.split("\n")[:2] == ["at the start: 1", "after XLA_FLAGS: 1"]
assert "RuntimeError" in run.stderr

# %% [markdown]
# The variable was ignored without a word: the program would train on one device. The configuration setting at
# least complains. `devices.simulate` uses the setting, and says what to do. We ask this notebook, which started with
# eight, for sixteen:

# %%
try:
    devices.simulate(16)
except UserError as error:
    print(error)
else:
    raise AssertionError("16 devices should have been refused")

# %% [markdown]
# ## Mistake two: too few threads
#
# In a **collective** operation, such as the sum over all devices that data parallelism needs, every device waits for
# all others. Before jax 0.12, waiting takes a thread on simulated devices, and JAX makes one thread a core. With eight
# devices on two cores two of them wait for six that never get a thread: a **deadlock**. The process then aborts, often
# only after many steps.
#
# No need to crash the notebook to see why. Here eight tasks meet at a barrier, in plain Python. **Predict:** which
# pools let them meet?


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


outcome = {threads: meet(8, threads) for threads in (2, 4, 7, 8, 16)}
print(outcome)
assert outcome == {2: False, 4: False, 7: False, 8: True, 16: True}

# %% [markdown]
# The environment variable `NPROC` sets the size of XLA's pool (XLA is the compiler under JAX), if it is set
# before JAX starts. The pool has other work too, so eight threads are too few in practice; `devices.simulate` asks
# for two a device, or one a core where that is more. From jax 0.12 on it leaves the pool alone: no loop of ours ever
# deadlocked there, and threads beyond the cores make every program slower.

# %%
print("jax", jax.__version__, "NPROC =", os.environ.get("NPROC", "not set"))
assert not devices.COLLECTIVES_HOLD_THREADS or int(os.environ["NPROC"]) >= 2 * len(eight)

# %% [markdown]
# ## Is it faster?
#
# Eight matrix products: all on device 0, or one on each device. `block_until_ready` waits for the
# result; without it you would time only the request.

# %%
matrix = np.random.default_rng(0).standard_normal((512, 512), np.float32)
placings = {"all on device 0": [eight[0]] * 8, "one on each": eight}
print(devices.describe(eight))
for name, places in placings.items():
    copies = [jax.device_put(matrix, place) for place in places]
    jax.block_until_ready([copy @ copy for copy in copies])  # compiles; not timed
    started = time.perf_counter()
    for _ in range(5):
        jax.block_until_ready([copy @ copy for copy in copies])
    print(f"{name}: {200 * (time.perf_counter() - started):.1f} ms")

# %% [markdown]
# Eight times the devices, nothing like eight times the speed: the cores are the same, and one device can already
# use all of them. On eight GPUs the second line would be about an eighth of the first.
#
# ## Exercises
#
# Solutions: [solutions/00_meet_your_devices.py](solutions/00_meet_your_devices.py).
#
# 1. `place_rows`: row `i` of `x` `[N, D]` on `places[i]`; a list of N arrays `[D]`.
#    <details><summary>Hint</summary>You saw it above, with <code>zip</code>.</details>
# 2. `add_on`: the sum of two arrays that may lie on different devices, on a third.
#    <details><summary>Hint</summary>Move both first.</details>
# 3. `environment`: the variables with which to start a program of jax 0.10 on `count` simulated devices and a machine
#    with `cores` cores, as a dictionary. Names: `JAX_NUM_CPU_DEVICES` and `NPROC`.
#    <details><summary>Hint</summary>Variables of the environment are strings.</details>


# %%
def place_rows(x, places):
    """The rows of `x` `[N, D]`, each on its device."""
    ...  # your code: 1 line


def add_on(device, a, b):
    """`a + b` on `device`, wherever the two lie."""
    ...  # your code: 1 to 3 lines


def environment(count, cores):
    """The two variables for `count` simulated devices on `cores` cores."""
    ...  # your code: 1 to 2 lines


for exercise in (place_rows, add_on, environment):
    check("00_meet_your_devices", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# * Ask for devices before anything else of JAX runs, and look at `jax.devices()` to see what you got.
# * Arrays live on devices; operations happen where their arrays are, and never move them behind your back.
# * Simulated devices need threads: before jax 0.12 `NPROC` at least twice their number. They prove a program right, not
#   fast.
#
# In pmapdp this is [pmapdp/devices.py](../pmapdp/devices.py); here is its heart. It also keeps the memory that a step
# frees ([pmapdp/cpu/malloc.py](../pmapdp/cpu/malloc.py)), which makes steps faster. Next, a network without JAX:
# [01. Train a network in NumPy](01_train_a_network_in_numpy.ipynb).

# %%
print(inspect.getsource(devices.simulate))

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
# # 17. Train with many processes
#
# Your program from lesson 14 survives a kill, but it uses the devices of one machine only. For two machines you need two
# processes, one on each, and they have to agree on every array. Change twenty-one lines, none of them in the training
# step, and two processes compute the losses that one computed, up to rounding. Then you'll kill one of the two, and
# finish the run from its last checkpoint.
#
# **You will** connect processes, build global arrays from the rows that each process has, resume after one has died, and
# use all the GPUs you pay for. 21 minutes, 41 with exercises. You need [14 Survive a kill](14_survive_a_kill.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import numpy as np

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_17
from pmapdp.lessons.programs import launch

devices.simulate(8)  # before any other use of JAX

# %% [markdown]
# ## One array, two processes
#
# In PyTorch, each process has its own tensors. In JAX, all processes run the same program and work on **global arrays**.
# Try it with eight numbers on eight devices:

# %%
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def print_eight_numbers():
    split = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
    x = jax.make_array_from_callback((8,), split, lambda rows: np.arange(8.0)[rows])
    print("shape", x.shape, "my shards", [float(shard.data[0]) for shard in x.addressable_shards])
    print("gathered", multihost_utils.process_allgather(x, tiled=True))
    if jax.process_index() == 0:
        print("as it is", np.asarray(x))


# %% [markdown]
# For each of your process's devices, `make_array_from_callback` asks your function for its rows. `launch.run` starts two
# Pythons with four simulated devices each, connects them, and gives them the imports above. Then both call the function.
#
# **Predict:** can process 0 carry out all three prints?

# %% tags=["prediction"]
launch.run(print_eight_numbers)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Not the last one. Every process knows the whole shape, but process 0 holds only the numbers 0 to 3, and JAX doesn't
# fetch the others unless you ask. `process_allgather` asks: all processes call it, and each gets a NumPy array with all
# eight numbers.
#
# </details>
#
# ## The program so far, and what changes
#
# You start from [program/14_resume.py](program/14_resume.py). Everything that changes for several processes:
#
# include the difference of 14_resume.py and 17_processes.py
#
# - You say in `PROCESSES` how many processes you start, on all machines together. Without it, processes that never found
#   each other would each train alone, and overwrite each other's checkpoints, without an error.
# - `jax.distributed.initialize` connects the processes, before JAX starts its devices. Process 0 listens at the address,
#   because it's the *coordinator*. From then on, `jax.devices()` lists the devices of all processes.
# - `place_batch` gives each device its rows. Every process makes the whole batch, because the data is small.
# - Every process runs the same `init_state`. The result is one global state.
# - Only process 0 prints the results. But every process calls `restore` and `save`, and all need the same folder, on a
#   disk that they share.
#
# **With pmap** each process passes only its own rows, `[local devices, b, ...]`, and gets its own devices' results back.
# The rest stays the same, and `lax.pmean` averages over all processes' devices.
#
# Alone, as in this notebook, it's one process with eight devices, and its losses are lesson 14's.

# %%
import os
import sys
import tempfile

folder = tempfile.mkdtemp()
os.environ["PROCESSES"] = "1"
sys.argv = ["17_processes.py", f"{folder}/one_process"]

# %% tags=["take-home"]
# include program/17_processes.py

# %% [markdown]
# Now run it for one epoch as two processes with four devices each. If you type the docstring's two commands into two
# terminals, you'll also see log lines from gloo, the library that connects CPUs.
#
# **Predict:** which lines does process 1 print?

# %% tags=["prediction"]
program = launch.take_home().replace("EPOCHS = 128, 5", "EPOCHS = 128, 1")
processes = launch.start(2, "-c", program, f"{folder}/one_epoch")
first, second = launch.outputs(processes)
print("process 0:", *first, sep="\n  ")
print("process 1:", *second, sep="\n  ")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the first, which says that it has four of the eight devices. Process 0 prints the numbers of epoch 0 above. The
# last digit may differ, because the sums are made in a different order.
#
# </details>
#
# ## The mistake: rows by process number
#
# Here every process makes the whole batch. For large data you'd rather let each process read its own rows, and hand them to
# `jax.make_array_from_process_local_data`. So why not give the first half of the batch to process 0 and the second half to
# process 1? This works if the mesh lists the devices process by process. But on TPUs `jax.make_mesh` orders chips by their
# wiring, so on a v5e of 4 x 2 chips, the hosts may come in the order 0 0 1 1 1 1 0 0. Place eight numbers on such a mesh,
# first by process number, and then as your program does, by callback:


# %%
def place_halves():
    mesh = Mesh(np.array(jax.devices())[[0, 1, 4, 5, 6, 7, 2, 3]], ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    half = np.arange(4.0) + 4 * jax.process_index()
    by_number = jax.make_array_from_process_local_data(split, half)
    by_callback = jax.make_array_from_callback((8,), split, lambda rows: np.arange(8.0)[rows])
    print("by process number", multihost_utils.process_allgather(by_number, tiled=True))
    print("by callback", multihost_utils.process_allgather(by_callback, tiled=True))


# %% [markdown]
# **Predict:** process 0 gives the numbers 0 to 3, and process 1 gives 4 to 7. What does the global array `by_number`
# contain?

# %% tags=["prediction"]
launch.run(place_halves)
lesson_17.who_holds_what()

# %% [markdown]
# <details><summary>Answer</summary>
#
# 0, 1, 4, 5, 6, 7, 2, 3, without an error. Process 0's devices are the first two and the last two in the mesh, so its
# numbers end up there. The callback is asked for each device's rows, so it can't mix them up.
#
# </details>
#
# Training survives this, because inputs and labels are mixed up in the same way, and a batch has no order. But predictions
# that you write to a file would belong to other examples. There are two ways out:
#
# - Read the rows inside the callback, because it gets their slice.
# - Let each process pass rows of its own, as with PyTorch's `DistributedSampler`, and put the example's number into the
#   batch as one more array. All processes need the same number of batches, of the same size.
#
# If a second mesh axis crosses processes without splitting the batch, these processes must pass the same rows. JAX doesn't
# check that.
#
# ## If a run hangs
#
# All processes must run the same computations in the same order. If one of them skips an all-reduce, for instance because
# it has a batch less, the others wait for it. Or worse: the others' all-reduce matches a later one of this process, and the
# sum is silently wrong. Process 0 may call `report` alone, because every process holds the metric sums already.
#
# When a run hangs, `py-spy dump --pid ...` shows the line where a process is. Find the process that's stuck on a different
# line.
#
# ## Kill one
#
# Start two processes, wait for the checkpoint of epoch 0, and kill process 1.
#
# **Predict:** process 0 waits for a gradient that will never come. Does it wait forever?

# %% tags=["prediction"]
import time
from pathlib import Path

killed = f"{folder}/killed"
program = launch.take_home().replace("process_id)", "process_id, heartbeat_timeout_seconds=10)")
process_0, process_1 = launch.start(2, "-c", program, killed)
launch.wait_for(Path(killed, "0"), process_1)  # the checkpoint of epoch 0
process_1.kill()
kill_time = time.perf_counter()
output, _ = process_0.communicate(timeout=200)
seconds = time.perf_counter() - kill_time
print(f"{seconds:.0f} s later, process 0 has ended with status {process_0.returncode}")
print("in its log:", launch.reason_for_abort(output))

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. Its log gives one of two reasons:
#
# - **"stopped sending heartbeats", after several seconds.** Every process sends a *heartbeat* to the coordinator. If one
#   of them is silent for 100 s, JAX aborts all the others. The cell above asks for 10 s, so that it ends soon.
# - **`gloo::EnforceNotMet`, within a second.** gloo, which carries data between CPUs, missed process 1.
#
# The status -6 says that signal 6, SIGABRT, ended the process. A `try` around your loop doesn't catch that. On GPUs, JAX
# has an experimental mode in which [the others survive](https://docs.jax.dev/en/latest/501/fault-tolerance.html).
#
# </details>
#
# Start the same command again, and the run goes on from the last checkpoint, even with fewer processes, because it holds
# global arrays. Only the batch must be divisible by the number of all devices. Finish the run with one process.

# %%
processes = launch.start(1, "-c", launch.take_home(), killed)
(resumed,) = launch.outputs(processes)
print(*resumed, sep="\n")
lesson_17.a_process_is_lost()

# %% [markdown]
# The losses match the undisturbed run's to 0.002.

# %% tags=["proof"]
# The asserts behind all answers.
import re

assert "process 1 has 4 of 8 devices" in second
assert not any(line.startswith("epoch") for line in second)
(epoch_line,) = (line for line in first if line.startswith("epoch"))
metrics = np.array(re.findall(r"\d\.\d+", epoch_line), float)
np.testing.assert_allclose(metrics, [1.8813, 0.4020, 0.9158, 0.7150], atol=2e-3)  # as one process
assert process_1.wait() == -9
assert process_0.returncode != 0, output
assert any(line.startswith("resumes after epoch") for line in resumed)
last_metrics = np.array(re.findall(r"\d\.\d+", resumed[-1]), float)
np.testing.assert_allclose(last_metrics, [0.2486, 0.9184, 0.3540, 0.8730], atol=2e-3)

# %% [markdown]
# ## On two machines, and on a cluster
#
# With two machines you start the docstring's two commands, one on each, with an address of process 0 that both can reach,
# such as `COORDINATOR=machine-a:1234`. Both need the same Python environment, the same program, and a folder that both
# see. We've run these commands on one machine only, so check the first lines: with eight GPUs each they say "8 of 16
# devices". If nothing is printed, the processes haven't found each other, and `initialize` gives up after five minutes.
# [It hangs at the start](../docs/processes.md#it-hangs-at-the-start) says what to check.
#
# On a cluster, `initialize()` may need no arguments:
#
# - On **Cloud TPU**, JAX finds the other processes by itself.
# - Under **Slurm and Open MPI 4**, JAX finds them, too, but assumes one process for each GPU: process k on a machine sees
#   GPU k and no other. If you start one task on a machine with eight GPUs, seven stay idle, without an error. So start eight, as
#   the docstring's last command does.
# - Or start one task on each machine, and let it name its GPUs: `jax.distributed.initialize(local_device_ids=range(8))`.
#
# Assert what you expect, such as `jax.device_count() == 16`. [docs/processes.md](../docs/processes.md) has whole commands,
# also for Kubernetes, and says how to save when Slurm is about to take a node.
#
# ## Exercises
#
# The eight devices of this process stand for the devices of several. Solutions, with reasons:
# [solutions/17_many_processes.py](solutions/17_many_processes.py).
#
# 1. `assemble` (10 minutes): make a global array of shape `shape`, split along its first axis by `sharding`. `rows` are
#    this process's NumPy rows: the first belong on the first of its `local_devices`, the next on the second, and so on.
#    The mesh may list the devices in another order, and other processes have the rest of the rows.
#    <details><summary>Hint</summary><code>np.split</code>, <code>jax.device_put(part, device)</code>, and
#    <code>jax.make_array_from_single_device_arrays(shape, sharding, parts)</code>.</details>
# 2. `group_by_machine` (5 minutes): GPUs of one machine have the fast connections. So if you shard the state as in lesson
#    16, split the parameters along a second mesh axis that stays inside a machine, as PyTorch's `HYBRID_SHARD` does.
#    Return the GPUs for that mesh, as an array or lists, `[machines, per_machine]`. `gpus` is in any order, and each GPU has a
#    `.process_index` and an `.id`. There's one process for each GPU, numbered machine by machine.
#    <details><summary>Hint</summary>Sort by the number of the process, then reshape.</details>
# 3. `fixed_log` (5 minutes, find the mistake): every process calls `broken_log` after each epoch. With one process it
#    works. With two, process 0 hangs, or prints a wrong loss. `mean_loss` is a jitted function of global arrays. Return
#    the loss on every process. <details><summary>Hint</summary>Which processes take part in the all-reduce of
#    <code>mean_loss</code>?</details>

# %%
from pmapdp.lessons.checks import check


def broken_log(process, mean_loss, say):
    if process == 0:
        say(mean_loss())


def assemble(sharding, shape, rows, local_devices):
    """The global array of these rows."""
    ...  # your code: 2 or 3 lines


def group_by_machine(gpus, per_machine):
    """The GPUs, `[machines, per_machine]`."""
    ...  # your code: 1 or 2 lines


def fixed_log(process, mean_loss, say):
    """Process 0 says the loss, and every process returns it."""
    ...  # your code: 3 or 4 lines


for exercise in (assemble, group_by_machine, fixed_log):
    check("17_many_processes", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - All processes run one program on global arrays. Let the sharding say which rows each gives.
# - When a process is lost, JAX ends the others by default. The same command resumes from the last checkpoint.
# - Under Slurm and Open MPI, start a task for each GPU or name the GPUs.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `jax.distributed.initialize`, the variables | `connect_processes`, the flags `--coordinator`, ... | [distributed.py](../pmapdp/distributed.py) |
# | `place_batch` | `place` | [steps/placing.py](../pmapdp/steps/placing.py) |
#
# `place` may call `make_array_from_process_local_data`, because `local_shards` in
# [data/batches.py](../pmapdp/data/batches.py) orders each process's rows by its devices.
#
# To read on: [Introduction to multi-controller JAX](https://docs.jax.dev/en/latest/501/multiprocess.html). Next, what all
# this buys: [18 Measure and predict](18_measure_and_predict.ipynb).

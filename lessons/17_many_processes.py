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
# processes, one on each, and they have to agree on every array. Change twenty lines, none of them in the training
# step, and two processes compute the losses that one computed, up to rounding. Then you'll deal out a batch by process
# number, as many programs do, and a good network suddenly looks bad. Finally you'll kill one of the two processes, and
# finish the run from its last checkpoint.
#
# **You will** connect processes, build global arrays from the rows that each process has, resume after a process has
# died, and use all the GPUs that you pay for. 27 minutes, 47 with exercises. You need
# [14 Survive a kill](14_survive_a_kill.ipynb).

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
# In PyTorch, each process usually has its own tensors. In JAX, all processes run the same program and work on **global
# arrays**. Every process knows the whole shape of such an array, but holds only some of its shards.
#
# Try it with eight numbers on eight devices. `print_eight_numbers` makes such an array, and prints this process's shards.
# Then it tries to print the whole array, first as it is, and then gathered from all processes.

# %%
import textwrap

from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

lesson_17.one_array()


def print_eight_numbers():
    split = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
    x = jax.make_array_from_callback((8,), split, lambda rows: np.arange(8.0)[rows])
    print("shape", x.shape, "my shards", [float(shard.data[0]) for shard in x.addressable_shards])
    try:
        print(np.asarray(x))
    except RuntimeError as error:
        print(textwrap.fill(f"RuntimeError: {error}", 90))
    print("gathered", multihost_utils.process_allgather(x, tiled=True))


# %% [markdown]
# `launch.run` starts two new Pythons on this machine, with four simulated devices each. It connects them and gives them the
# imports of the cell above. Then both call the function.
#
# **Predict:** can process 0 print all eight numbers without gathering them?

# %% tags=["prediction"]
launch.run(print_eight_numbers)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. Process 0 holds only 0 to 3, and process 1 holds 4 to 7, and JAX doesn't send anything unless all processes ask for
# it. With `process_allgather` they do: it sends each of them the missing half, and returns a NumPy array that both can
# print.
#
# </details>
#
# The array was made by `make_array_from_callback`. JAX looks at the sharding, and for each device of your process it calls
# your function with the rows that belong there. So no row is sent from one process to another.
#
# ## The program so far, and what changes
#
# You start from [program/14_resume.py](program/14_resume.py). Everything that changes for several processes:
#
# include the difference of 14_resume.py and 17_processes.py
#
# - `counts` are the variables that say how many processes were started. You set the first one, and `srun` and `mpirun` set
#   the other two.
# - `jax.distributed.initialize` connects the processes, before JAX starts its devices. Process 0 listens at the address,
#   because it's the *coordinator*. From then on, `jax.devices()` lists the devices of all processes.
# - `place_batch` gives each device its rows. Every process makes the whole batch, because the data is small. `device_put`
#   would work too, but it first compares the batch between all processes, in every update. If your data is in files, read
#   only the rows that the callback asks for.
# - Every process runs `init_state` with the same seed, and all devices together make one state.
# - Only process 0 prints the results, but all processes call `restore` and `save`, with the same folder, on a disk that all
#   of them reach.
#
# The line that saves you is the `assert`. Processes that aren't connected may not fail: each trains a whole run of its own,
# and writes its checkpoints over the others'. The assert compares with the number that your launcher reports in these
# variables. On a cluster that doesn't set them, such as Kubernetes, it would compare 1 with 1. There, set `PROCESSES`
# yourself, in every process.
#
# **With pmap** each process passes only its own rows, `[local devices, b, ...]`, and gets its own devices' results back.
# `jax.distributed.initialize()` and the `assert` stay the same, and `lax.pmean` averages over all processes' devices.
#
# Alone, as in this notebook, the program is one process with eight devices, and its losses are lesson 14's.

# %%
import sys
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
sys.argv = ["17_processes.py", str(folder / "one_process")]

# %% tags=["take-home"]
# include program/17_processes.py

# %% [markdown]
# Now run the same program as two processes with four devices each, as if you had typed the two commands of its docstring
# into two terminals. One epoch is enough. In real terminals you'd also see lines that begin with `[Gloo] Rank`, which `launch`
# leaves out.
#
# **Predict:** which lines does each of the two print?

# %% tags=["prediction"]
program = launch.take_home().replace("EPOCHS = 128, 5", "EPOCHS = 128, 1")
first, second = launch.outputs(launch.start(2, "-c", program, str(folder / "one_epoch")))
print("process 0:", *first, sep="\n  ")
print("process 1:", *second, sep="\n  ")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Each says that it has four of the eight devices. After that, process 1 is silent, and process 0 prints the numbers of
# epoch 0 above. The last digit may differ, because the sums are made in a different order.
#
# </details>
#
# ## The mistake: rows by process number
#
# Many programs do without the callback: process 0 takes the first half of the batch, and process 1 the second half.
# This works if the mesh lists the devices process by process. But on TPUs `jax.make_mesh` orders chips by their wiring,
# not by host, and on a v5e of 4 x 2 chips, four wide, the hosts come in the order 0 0 1 1 1 1 0 0. `place_halves` makes
# such a mesh, and places eight numbers on it, once by process number and once with the callback:


# %%
def place_halves():
    mesh = Mesh(np.array(jax.devices())[[0, 1, 4, 5, 6, 7, 2, 3]], ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    half = np.arange(4.0) + 4 * jax.process_index()
    by_number = jax.make_array_from_process_local_data(split, half)
    by_sharding = jax.make_array_from_callback((8,), split, lambda rows: np.arange(8.0)[rows])
    print("by process number", multihost_utils.process_allgather(by_number, tiled=True))
    print("by the sharding", multihost_utils.process_allgather(by_sharding, tiled=True))


# %% [markdown]
# **Predict:** process 0 gives the numbers 0 to 3, and process 1 gives 4 to 7. What does the global array `by_number`
# contain?

# %% tags=["prediction"]
launch.run(place_halves)
lesson_17.who_holds_what()

# %% [markdown]
# <details><summary>Answer</summary>
#
# 0, 1, 4, 5, 6, 7, 2, 3, without an error. Process 0's devices are first, second, seventh and last in the mesh, so its
# numbers end up there. The callback puts each number where it belongs, whatever the mesh looks like.
#
# </details>
#
# As long as inputs and labels are mixed up in the same way, the loss stays the same. The mistake shows later, for example
# if you write the predictions to a file, and score them against the labels in their old order. Try it with the network
# that you've just trained: cut its predictions for the test set into eight parts, and put them in the order above.
#
# **Predict:** the network classifies 87 % of the test set correctly, and only some of the eight parts are still in their
# place. What accuracy do you find?

# %% tags=["prediction"]
inputs, labels = test_data
new_order = np.arange(1000).reshape(8, 125)[[0, 1, 4, 5, 6, 7, 2, 3]].ravel()
predictions = np.asarray(state[0](inputs).argmax(-1))
accuracy = np.mean(predictions == labels)
correct = predictions[new_order] == labels
print(f"accuracy in order {accuracy:.3f}, mixed up {correct.mean():.3f}")
print("of each part:", correct.reshape(8, 125).mean(1).round(2))

# %% [markdown]
# <details><summary>Answer</summary>
#
# About 0.29. The first two parts are in their place. The other six are compared with labels of other examples, and about
# one in ten of those matches by chance, so you expect 0.25 x 0.87 + 0.75 x 0.1. By luck a few more match.
#
# </details>
#
# **May your data loader go by process number?** For training, yes. Suppose each process reads examples of its own: its own
# files, or its own indices of one data set, as PyTorch's `DistributedSampler` deals them out. Then pass its rows of inputs, labels and weights to `make_array_from_process_local_data`.
# Which device gets which row doesn't matter to the loss, because a batch has no order. Two other things matter:
#
# - Each process needs the same number of rows in every batch, and the same number of batches. A process with a batch more
#   than the others waits for them in its all-reduce. Fill up short batches with rows of weight 0, as `batches` does.
# - If a result has to be matched with its example, as predictions are, put the example's number into the batch as one more
#   array. It's mixed up in the same way, so you can sort by it afterwards.
#
# ## A collective that one process skips
#
# All processes must run the same computations in the same order. Look at these two lines:
#
# ```python
# if jax.process_index() == 0:
#     print(float(x.mean()))  # x is a global array
# ```
#
# The mean needs an all-reduce, and only process 0 starts it. Process 0 then waits for the others, and if they never start
# one, it waits forever. Or worse, the others arrive at *their* next all-reduce, and the two may get mixed up. So compute on
# all processes, and let process 0 print what came out. Your program may call `report` in process 0 alone, because every
# process holds the metric sums already.
#
# If a run hangs, call `py-spy dump --pid ...` for each process. If one of them is in a different line than all the others,
# start looking there.
#
# ## Kill one
#
# Start two processes once more, wait for the checkpoint of
# epoch 0, and kill process 1.
#
# **Predict:** process 0 waits for a gradient that will never come. Does it wait forever?

# %% tags=["prediction"]
import time

killed = str(folder / "killed")
process_0, process_1 = launch.start(2, "-c", launch.take_home(), killed)
while not Path(killed, "0").exists() and process_1.poll() is None:
    time.sleep(0.01)
process_1.kill()
kill_time = time.perf_counter()
output, _ = process_0.communicate(timeout=200)
print(f"{time.perf_counter() - kill_time:.0f} s later: exit status {process_0.returncode}")
reasons = [line for line in output.splitlines() if "heartbeat" in line or "gloo" in line]
print(textwrap.fill("".join(reasons[:1]), 90))

# %% [markdown]
# <details><summary>Answer</summary>
#
# No, it ends as well. With jax 0.10.2 we've seen two ways:
#
# - **"stopped sending heartbeats", after several seconds.** Process 0 kept waiting in its all-reduce. But every process
#   also sends a *heartbeat* to the coordinator. If one of them is silent for too long, JAX aborts all the others. "Too
#   long" is 100 s, unless you set `heartbeat_timeout_seconds`, as your program does.
# - **`gloo::EnforceNotMet`, within a second.** gloo, which carries data between CPUs, missed process 1, and threw a C++
#   exception.
#
# The exit status -6 says that the process was aborted by signal 6, SIGABRT, which no Python code can catch. If process 0
# is the one that dies, process 1 ends at once.
#
# </details>
#
# What's left is the last checkpoint. You start the same command again, and the run goes on from there, even on fewer
# processes, because a checkpoint holds global arrays. Only the batch must be divisible by the number of all devices.
# Finish the run with a single process.

# %%
(resumed,) = launch.outputs(launch.start(1, "-c", launch.take_home(), killed))
print(*resumed, sep="\n")
lesson_17.a_process_is_lost()

# %% [markdown]
# The run ends with the losses of the one that nobody disturbed, to within 0.002. If your own program comes from lesson
# 09, give it lesson 14's thirteen lines and then the lines of this lesson.
#
# What if Slurm warns you first, with SIGTERM? You'd save before the end, as in lesson 14, but the signal may not reach all
# processes at the same time. So ask `multihost_utils.reached_preemption_sync_point(step)` after each update. The answer
# becomes true after the same update in all processes, and then you save and stop.

# %% tags=["proof"]
# The asserts behind all answers.
assert "process 1 has 4 of 8 devices" in second
assert not any(line.startswith("epoch") for line in second)
(epoch_line,) = (line for line in first if line.startswith("epoch"))
metrics = [float(word) for word in epoch_line.replace(",", "").split() if "." in word]
np.testing.assert_allclose(metrics, [1.8813, 0.4020, 0.9158, 0.7150], atol=2e-3)  # as one process
assert abs(accuracy - 0.873) < 0.003
assert correct.mean() < 0.35
assert process_1.wait() == -9
assert process_0.returncode != 0, output
assert any(line.startswith("resumes after epoch") for line in resumed)
last_metrics = [float(word) for word in resumed[-1].replace(",", "").split() if "." in word]
np.testing.assert_allclose(last_metrics, [0.2486, 0.9184, 0.3540, 0.8730], atol=2e-3)

# %% [markdown]
# ## On two machines
#
# Your two processes ran on one machine, but nothing in the program depends on that. With two machines you start the same
# command on each, and give both an address of process 0 that the other machine can reach:
#
# ```
# machine-a$ COORDINATOR=machine-a:1234 PROCESSES=2 PROCESS_ID=0 python 17_processes.py /shared/run
# machine-b$ COORDINATOR=machine-a:1234 PROCESSES=2 PROCESS_ID=1 python 17_processes.py /shared/run
# ```
#
# Both need the same Python environment, the same program, and a folder that both see. Each process takes all GPUs of
# its machine, so with eight in each the first lines say "8 of 16 devices". `B` is still the global batch: each device
# now gets half as many rows, and the losses stay the same, up to rounding.
#
# If nothing is printed, the processes haven't found each other. `initialize` waits five minutes and then gives up with an
# error. Usually a firewall closes the port, or one machine gives the name `machine-a` another address. [It hangs at the
# start](../docs/processes.md#it-hangs-at-the-start) has the checks in order. We've run these commands with both processes
# on one machine only. We haven't tried two machines, so check the first line, which says how many devices there are.
#
# ## On a cluster
#
# There you don't type addresses. With Slurm, Open MPI 4, Kubernetes and Cloud TPU, JAX finds the other processes by
# itself, so `initialize()` needs no arguments there. Your program must only know that there are others: `srun` and
# `mpirun` say it, and on Kubernetes and Cloud TPU you set PROCESSES to the number of pods or hosts. On Kubernetes, JAX
# also needs the package `kubernetes`.
#
# You can start one process for each GPU, as `torchrun` does, or one for each machine. But under Slurm and Open MPI,
# `initialize()` assumes one for each GPU: process k on a machine sees GPU k and no other. If you start a single task on a
# machine with eight GPUs, it trains on one of them, and seven GPUs that you pay for stay idle, without an error. So either
# start eight tasks on each machine, or name the GPUs:
#
# | | one process for each GPU | one process for each machine |
# | --- | --- | --- |
# | Slurm | `srun --ntasks-per-node=8 --gpus-per-node=8` | `srun --ntasks-per-node=1 --gpus-per-node=8` |
# | Open MPI 4 | `mpirun --map-by ppr:8:node` | `mpirun --map-by ppr:1:node` |
# | in the program | `initialize()` | `initialize(local_device_ids=range(8))` |
#
# Whatever you start, assert what you expect. For two machines with eight GPUs each, that's
# `assert jax.device_count() == 16`. [docs/processes.md](../docs/processes.md) has whole commands, and says what Open MPI 5
# needs.
#
# **Which devices should be neighbours?** Inside a machine, an H100 sends 450 GB/s by NVLink, but to another machine a
# network card of 400 Gbit/s sends only 50 GB/s. So if you shard the state as in lesson 16, make a mesh of two axes, with
# one row for each machine. Split the batch along both axes, but the parameters along the second axis only, as PyTorch's
# `HYBRID_SHARD` does. You'll make the rows of this mesh in exercise 2.
#
# ## Exercises
#
# They run in this process. Its eight devices stand for the devices of several processes. Solutions, with reasons:
# [solutions/17_many_processes.py](solutions/17_many_processes.py).
#
# 1. `assemble` (10 minutes): make a global array of shape `shape`, split along its first axis by `sharding`, from the
#    shards of this process. `rows` are its NumPy rows: the first ones belong on the first of its `local_devices`, the next
#    ones on the second, and so on. The mesh may list the devices in another order, and other processes have the rest of
#    the rows.
#    <details><summary>Hint</summary><code>np.split</code>, <code>jax.device_put(part, device)</code>, and
#    <code>jax.make_array_from_single_device_arrays(shape, sharding, parts)</code>.</details>
# 2. `group_by_machine` (5 minutes): `gpus` is in any order, and each GPU has a `.process_index` and an `.id`. There's one
#    process for each GPU, with `per_machine` GPUs to a machine, and the processes are numbered machine by machine. Return
#    a NumPy array `[machines, per_machine]` of the GPUs, for a mesh whose second axis stays inside the machines.
#    <details><summary>Hint</summary>Sort by the number of the process, then reshape.</details>
# 3. `fixed_log` (5 minutes, find the mistake): every process calls `broken_log` after each epoch. With one process it
#    works. With two, process 0 hangs, or prints a wrong loss. `mean_loss` is a jitted function of global arrays. Return
#    the loss on every process. <details><summary>Hint</summary>Which processes take part in the all-reduce inside
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
# - All processes run the same program on global arrays. Let the sharding say which rows a process gives. For training,
#   rows by process number will do, if each process gives equally many.
# - When a process is lost, the others end as well. The same command resumes from the last checkpoint, on more or fewer
#   processes, if the batch is divisible by the number of all devices.
# - Under Slurm and Open MPI, name the GPUs or start a task for each. Assert `jax.device_count()`.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `jax.distributed.initialize`, the variables | `connect_processes`, the flags `--coordinator`, ... | [distributed.py](../pmapdp/distributed.py) |
# | `place_batch` | `place`, which gets only this process's rows | [steps/placing.py](../pmapdp/steps/placing.py) |
# | `if jax.process_index() == 0` | `processes.is_process_0` | [distributed.py](../pmapdp/distributed.py) |
# | `checkpoints.restore`, the folder | `restore_or_init`, and `--workdir` on a shared disk | [train.py](../pmapdp/train.py) |
#
# `placing.py` calls `make_array_from_process_local_data`, as the mistake above did. There it's correct, because each
# process passes exactly the rows of its own devices, whatever their places in the mesh.
#
# To read on: [Introduction to multi-controller JAX](https://docs.jax.dev/en/latest/501/multiprocess.html). Next, what all
# this buys: [18 Measure and predict](18_measure_and_predict.ipynb).

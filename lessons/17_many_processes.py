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
# After this lesson you can start a JAX program with several processes, give each its GPUs, build global arrays from the
# rows that each process reads, collect results, arrange a mesh by nodes, and resume after a process has died.
#
# About 35 minutes · you need [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb); for the section on meshes
# `shard_map` from [10 Three ways side by side](10_three_ways_side_by_side.ipynb) and FSDP from [16 Born
# sharded](16_born_sharded.ipynb); for the last section [14 A real training run](14_a_real_training_run.ipynb) · next:
# [18 Measure and predict](18_measure_and_predict.ipynb)
#
# One machine has a handful of devices. To use several machines, start processes on each. In PyTorch, `torchrun` starts
# a process for each GPU, and each process works on its own tensors. In JAX, a process may own one GPU or all GPUs of
# its node. All processes run the same program, and they work on *global* arrays: each process holds some shards of an
# array.

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import numpy as np

from pmapdp import devices  # simulates devices (lesson 00)
from pmapdp.lessons.pictures import lesson_17

devices.simulate(8)  # before any other use of JAX
lesson_17.one_array()

# %% [markdown]
# The picture shows a global array `[16, 3]` on four devices of two processes. Both processes know its global shape.
# Process 0 holds two shards and can read them. It cannot read the other two.
#
# ## A program to take home
#
# The next cell is a whole training program. Apart from five places, it is that of lesson 09:
#
# 1. `jax.distributed.initialize` connects the processes. Process 0 listens as the *coordinator*. Under Slurm, Open MPI
#    or on Cloud TPU the launcher says who the others are, and you give no arguments.
# 2. `jax.make_mesh` then makes a mesh of the devices of *all* processes.
# 3. Each process takes **its own rows** of a batch, and `jax.make_array_from_process_local_data` makes one global array
#    of them. No row is sent anywhere. In PyTorch, `DistributedSampler` chooses the rows, and there is no global array.
# 4. `multihost_utils.process_allgather` gives every process the predictions for the whole test set, as a NumPy array.
#    (`jax.experimental` is a name from the past: these functions are public and documented.)
# 5. Only process 0 prints.
#
# Nothing in the training step mentions processes. Run alone, as here, the program is a program for one process.

# %% tags=["take-home"]
# One process: `python many.py`. Several: the same command under srun or mpirun, or with the three variables below.
import os

import jax
import numpy as np
import optax
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

if "PROCESSES" in os.environ:  # started by hand; before any other use of JAX
    jax.distributed.initialize(os.environ["COORDINATOR"], int(os.environ["PROCESSES"]), int(os.environ["PROCESS"]))
elif "SLURM_STEP_NODELIST" in os.environ or "OMPI_COMM_WORLD_SIZE" in os.environ:  # srun or mpirun
    jax.distributed.initialize()  # on GPUs: see "One GPU or all GPUs" below
process, processes = jax.process_index(), jax.process_count()

mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))  # the devices of all processes
replicated = NamedSharding(mesh, PartitionSpec())
split = NamedSharding(mesh, PartitionSpec("data"))

random = np.random.default_rng(0)  # every process makes the same data; yours reads files
labels = random.integers(10, size=6000).astype(np.int32)
inputs = (random.normal(size=(10, 32))[labels] + 1.5 * random.normal(size=(6000, 32))).astype(np.float32)
TRAIN, BATCH = 5205, 400  # the first 5205 examples train, the others test; the batch divides by the number of devices


def place(rows):
    """Inputs and labels of a global batch of these rows `[B]`: each process gives those of its own devices."""
    each = len(rows) // processes
    mine = rows[process * each : (process + 1) * each]
    return tuple(jax.make_array_from_process_local_data(split, array[mine]) for array in (inputs, labels))


def make_model():
    rngs, features, classes = nnx.Rngs(0), inputs.shape[1], int(labels.max()) + 1
    return nnx.Sequential(nnx.Linear(features, 64, rngs=rngs), nnx.relu, nnx.Linear(64, classes, rngs=rngs))


def train_step(model, state, x, y):
    def mean_loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    loss, gradients = jax.value_and_grad(mean_loss)(model)
    updates, state = optimizer.update(gradients, state, model)
    return optax.apply_updates(model, updates), state, loss


optimizer = optax.adam(3e-3)
model = jax.jit(make_model, out_shardings=replicated)()  # made on all devices at once, from the same seed
state = jax.jit(optimizer.init, out_shardings=replicated)(model)
train_step = jax.jit(train_step, donate_argnums=(0, 1), out_shardings=replicated)
predict = jax.jit(lambda model, x: model(x).argmax(-1), out_shardings=split)

for epoch in range(5):
    order = np.random.default_rng([1, epoch]).permutation(TRAIN)  # every process knows the whole order
    for start in range(0, TRAIN - BATCH + 1, BATCH):  # what fills no batch has its turn in another epoch
        model, state, loss = train_step(model, state, *place(order[start : start + BATCH]))
    if process == 0:  # one prints; the loss is replicated, so its copy here is the loss of the global batch
        print(f"epoch {epoch + 1}: loss {loss:.6f}")
rows = np.arange(TRAIN, len(labels))
x, y = place(np.pad(rows, (0, -len(rows) % jax.device_count())))  # row 0 fills what does not divide by the devices
predicted = multihost_utils.process_allgather(predict(model, x), tiled=True)  # on every process: all call it
accuracy = (predicted[: len(rows)] == labels[rows]).mean()  # without the padding
if process == 0:
    print(f"{processes} process(es), {jax.device_count()} devices: test accuracy {accuracy:.4f}")

# %% [markdown]
# Now the same text runs as two processes with four devices each, on this machine. They communicate through its loopback
# interface. **Predict:** which lines does each of the two print, and how far are the losses from those above?

# %% tags=["prediction"]
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start_processes(count, *arguments, **variables):
    """Start `count` processes: Python with these arguments, in which {address} and {process} are filled in."""
    address, started = f"127.0.0.1:{free_port()}", []
    for process in range(count):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(8 // count), "NPROC": "16"}
        environment |= {"COORDINATOR": address, "PROCESSES": str(count), "PROCESS": str(process), **variables}
        filled = [each.replace("{address}", address).replace("{process}", str(process)) for each in arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, *filled], env=environment, **pipes))
    return started


def lines_of(count, code, **variables):
    """The lines that each of `count` processes prints which run `code`.

    They go into files, because gloo, which carries the collectives on CPUs, prints lines of its own.
    """
    folder = Path(tempfile.mkdtemp())
    redirect = 'import os, sys; sys.stdout = open(os.environ["SAID"] + os.environ["PROCESS"], "w")\n'
    started = start_processes(count, "-c", redirect + code, SAID=f"{folder}/", **variables)
    errors = [each.communicate(timeout=200)[1] for each in started]
    assert not any(each.returncode for each in started), errors
    return [(folder / str(process)).read_text().splitlines() for process in range(count)]


program = next(text for text in reversed(In) if text.startswith("# One process:"))
first, second = lines_of(2, program)
print("process 0:", *first, "process 1:", *second, sep="\n  ")

# %% tags=["proof"]
# The asserts behind the answer.
assert second == []
assert abs(float(first[-2].split()[-1]) - float(loss)) < 1e-4

# %% [markdown]
# <details><summary>Answer</summary>
#
# Process 0 prints what this notebook printed, to within rounding: the devices add up their gradients in another order.
# Process 1 prints nothing.
#
# </details>
#
# So the rule is: **all processes run the same computations in the same order, and each reads its own
# shards.** What breaks the rule:
#
# * *A process reads a whole array.* `np.asarray(x)` raises an error, as half of `x` belongs to the other process.
# * *One process calls a collective, and the others do not.* It waits for them forever. Or they are at their next
#   collective, and the numbers of the two are mixed **without an error**. Every computation on a global array counts as
#   such a call, also `float(x.mean())` below `if process == 0:`.
#
# The first failure on purpose, and the two ways out:

# %%
FAILURE = """
import os, jax, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
process = int(os.environ["PROCESS"])
jax.distributed.initialize(os.environ["COORDINATOR"], int(os.environ["PROCESSES"]), process)
split = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
x = jax.make_array_from_process_local_data(split, np.arange(4.0) + 4 * process)
try:
    np.asarray(x)
except RuntimeError as error:
    print("failure on purpose:", str(error).split(" (")[0][:70], "...")
print("my shards:", [float(shard.data[0]) for shard in x.addressable_shards])
print("all:", multihost_utils.process_allgather(x, tiled=True))
print("one number of each process:", multihost_utils.process_allgather(np.float32(10 * process)))
"""
for process, lines in enumerate(lines_of(2, FAILURE)):
    print(f"process {process}:", *lines, sep="\n  ")
    assert lines[0].startswith("failure on purpose")
    assert lines[2:] == ["all: [0. 1. 2. 3. 4. 5. 6. 7.]", "one number of each process: [ 0. 10.]"]

# %% [markdown]
# `process_allgather` also takes NumPy values, one of each process, and stacks them: for example the examples that each
# has read. Its relatives are `sync_global_devices("name")` (a barrier) and `broadcast_one_to_all` (what process 0
# knows).
#
# ## One GPU or all GPUs
#
# Two layouts are usual: **one process for each GPU**, as with `torchrun`, and **one process for each node**. JAX
# supports both, with one trap under Slurm and Open MPI. We play Slurm with environment variables: one task on one node.
# The task connects twice, first without arguments and then with the numbers of its GPUs. **Predict:** with eight GPUs
# in the node, on how many would the task train after each of the two calls?

# %% tags=["prediction"]
SLURM = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
SLURM["SLURM_LOCALID"] = "0"  # the number of the task on its node
SLURM["JAX_COORDINATOR_PORT"] = str(free_port())
TASK = """
import jax
jax.distributed.initialize()
print("initialize():", jax.config.read("jax_cuda_visible_devices"))
jax.distributed.shutdown()
jax.distributed.initialize(local_device_ids=range(8))
print("initialize(local_device_ids=range(8)):", jax.config.read("jax_cuda_visible_devices"))
"""
(seen,) = lines_of(1, TASK, **SLURM)
print("The GPUs that JAX shows to the task, after", *seen, sep="\n  ")

# %% tags=["proof"]
# The asserts behind the answer.
assert [line.split(": ")[1] for line in seen] == ["0", "0,1,2,3,4,5,6,7"]

# %% [markdown]
# <details><summary>Answer</summary>
#
# After the first call, on one. Under Slurm and Open MPI, `jax.distributed.initialize()` assumes one process for each
# GPU. It hides all GPUs from a process but the one with the process's number on its node. There is no error; seven GPUs
# stay idle.
#
# </details>
#
# Either start eight tasks a node, or name the GPUs:
#
# | | one process for each GPU | one process for each node |
# | --- | --- | --- |
# | Slurm | `srun --ntasks-per-node=8 --gpus-per-node=8` | `srun --ntasks-per-node=1 --gpus-per-node=8` |
# | Open MPI | `mpirun --map-by ppr:8:node` | `mpirun --map-by ppr:1:node` |
# | in the program | `initialize()` | `initialize(local_device_ids=range(8))` |
#
# Instead of the argument you can set `JAX_LOCAL_DEVICE_IDS=0,1,2,3,4,5,6,7`. On Kubernetes and when you start processes
# by hand, JAX hides nothing. Slurm's `--gpus-per-task=1` does not go with the first layout: each task then sees a
# single GPU, called 0, and JAX asks for the numbers 1 to 7. In every program, assert the number that you expect:
# `assert jax.device_count() == 16`.
#
# ## Meshes that know the topology
#
# Inside a node of H100s, a GPU sends 450 GB/s by NVLink; between two nodes it is some 50 GB/s (a network card of 400
# Gbit/s). So the mesh axis with the most communication should stay inside the nodes. **HSDP** (hybrid sharded data
# parallel) does this: the parameters are sharded over the GPUs of a node, as with FSDP (lesson 16), and replicated over
# the nodes. In PyTorch it is `HYBRID_SHARD`. In JAX, it is a mesh of two axes: `replica` over the nodes, and `shard`
# inside each.
#
# `jax.make_mesh` arranges the devices by the topology of a TPU. For GPU nodes, use `create_hybrid_device_mesh` with
# `process_is_granule=True`, which puts the devices of a process together. (With one process for each GPU, a process is
# not a node: then sort `jax.devices()` yourself, as exercise 2 does.) The function reads where devices are and computes
# nothing, so objects with these attributes can stand for eight GPUs. **Predict:** which processes stand in a row of
# each mesh?

# %% tags=["prediction"]
from types import SimpleNamespace

from jax.experimental import mesh_utils

gpus = [SimpleNamespace(id=n, process_index=n // 4, platform="gpu", device_kind="H100") for n in range(8)]
hybrid = mesh_utils.create_hybrid_device_mesh((1, 4), (2, 1), gpus, process_is_granule=True)  # inside, between
wrong = np.array(gpus).reshape(4, 2).T
rows_of = {}
for name, mesh_of_gpus in (("hybrid", hybrid), ("wrong", wrong)):
    rows_of[name] = [[gpu.process_index for gpu in row] for row in mesh_of_gpus]
    print(name, rows_of[name])

# %% tags=["proof"]
# The asserts behind the answer.
assert rows_of == {"hybrid": [[0, 0, 0, 0], [1, 1, 1, 1]], "wrong": [[0, 0, 1, 1], [0, 0, 1, 1]]}

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both meshes have the shape 2 x 4, and both train correctly. In the wrong one, each row mixes the processes, so that
# the large exchanges of the axis `shard` cross the slow network. Nothing but the speed tells.
#
# </details>
#
# Now HSDP itself, written with `shard_map`, where each collective names its axis. The eight devices of this notebook
# stand for two nodes with four GPUs each. Each device holds a quarter of `w`. **Predict:** how many bytes of gradients
# does each device exchange with the other node: as many as `w` has, or fewer?

# %% tags=["prediction"]
import jax.numpy as jnp
from jax import lax

nodes = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("replica", "shard"))
w_spec, x_spec = PartitionSpec("shard"), PartitionSpec(("replica", "shard"))
crossing = {}  # the bytes that each device gives to collectives between the nodes


def mean_square(w, x):
    return jnp.square(x @ w).mean()


def hsdp_gradient(w_shard, x):  # on one device: w [256, 256] of [1024, 256], x [2, 1024] of [16, 1024]
    w = lax.all_gather(w_shard, "shard", tiled=True)  # inside a node: all of w
    gradient = jax.grad(mean_square)(w, x)
    gradient = lax.psum_scatter(gradient, "shard", tiled=True)  # inside a node: the sum of four, a quarter for each
    crossing["HSDP"] = gradient.nbytes
    return lax.psum(gradient, "replica") / 8  # between the nodes


def ddp_gradient(w, x):
    gradient = jax.grad(mean_square)(w, x)
    crossing["data parallel"] = gradient.nbytes
    return lax.psum(gradient, ("replica", "shard")) / 8


w, x = random.normal(size=(1024, 256)).astype(np.float32), random.normal(size=(16, 1024)).astype(np.float32)
results = []
for function, spec in ((ddp_gradient, PartitionSpec()), (hsdp_gradient, w_spec)):
    mapped = jax.shard_map(function, mesh=nodes, in_specs=(spec, x_spec), out_specs=spec, check_vma=False)
    results.append(jax.jit(mapped)(w, x))
print({name: f"{count:,} bytes" for name, count in crossing.items()})

# %% tags=["proof"]
# The asserts behind the answer.
for result in results:
    np.testing.assert_allclose(result, jax.grad(mean_square)(w, x), rtol=1e-4, atol=1e-4)
assert crossing["data parallel"] == w.nbytes == 4 * crossing["HSDP"]

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both give the gradient of a single device. Plain data parallelism passes the whole gradient to an all-reduce that
# spans both nodes. With HSDP only the quarters cross, and each device stores a quarter of `w`. (For plain data
# parallelism too, NCCL may add up inside each node first. What HSDP saves in any case is memory.) With `jit`, the two
# specs are all: `w` placed by `w_spec`, `x` by `x_spec`, and the compiler inserts these collectives.
#
# </details>
#
# ## Kill one
#
# A run on many machines loses one of them sooner or later. The trainer of pmapdp (lesson 14) writes checkpoints: each
# process writes the shards that it holds, into one folder that all can reach. First the job runs here, in one process
# with four devices. Then it runs in two processes with two devices each, and we kill process 1 with SIGKILL.
# **Predict:** what does process 0 do, which waits for gradients that never come?

# %% tags=["prediction"]
import dataclasses
import signal
import time

from pmapdp.recipes import RECIPES
from pmapdp.train import train

runs = Path(tempfile.mkdtemp())
job = {"model": "mlp", "dtype": "float64", "epochs": 2, "checkpoint_every": 10, "progress": False}
recipe = RECIPES["digits"].config
straight = train(dataclasses.replace(recipe, devices=4, workdir=str(runs / "one"), **job))
flags = "--model mlp --dtype float64 --epochs 2 --checkpoint-every 10 --no-progress --devices 2 --heartbeat-timeout 15"
command = ["-m", "pmapdp.train", *flags.split(), "--workdir", str(runs / "two")]
command += ["--coordinator", "{address}", "--num-processes", "2", "--process-id", "{process}"]

both = start_processes(2, *command, JAX_NUM_CPU_DEVICES="2")
while all(each.poll() is None for each in both) and not (runs / "two" / "checkpoints" / "10").exists():
    time.sleep(0.01)
both[1].send_signal(signal.SIGKILL)
clock = time.perf_counter()
said = both[0].communicate(timeout=60)[1].splitlines()
print(f"process 0 ended after {time.perf_counter() - clock:.0f} s with status {both[0].returncode}:")
words = "another process is lost", "another task died", "gloo::"  # as pmapdp, JAX and gloo say it
message = next(line for line in said if any(each in line for each in words))
print((message.partition("] ")[2] or message)[:84], "...")  # without the time and place of a log's line
both[1].communicate();

# %% tags=["proof"]
# The asserts behind the answer.
assert both[0].returncode in (4, -signal.SIGABRT)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Process 0 ended as well. There are two ways. A collective on CPUs may fail as soon as its connection closes: then
# pmapdp says that another process is lost, or gloo aborts. A process that waits elsewhere, or for NCCL, notices
# nothing. So JAX lets every process send *heartbeats*: one that sends none for `heartbeat_timeout_seconds` (an argument
# of `initialize`, 100 by default; 15 here) is lost, and JAX ends all others by SIGABRT, with a message that begins with
# "Terminating process" and a stack trace.
#
# </details>
#
# What remains is the last checkpoint. Slurm, Kubernetes or you start the same command again:

# %%
from pmapdp.train import load_run

again = start_processes(2, *command, JAX_NUM_CPU_DEVICES="2")
said = [each.communicate(timeout=200)[0].splitlines() for each in again]
assert [each.returncode for each in again] == [0, 0]
print(*(line for line in said[0] if "restored" in line or "epoch 2" in line or "devices" in line), sep="\n")
_, resumed, _ = load_run(runs / "two")
apart = [np.abs(a - b).max() for a, b in zip(jax.tree.leaves(straight.state), jax.tree.leaves(resumed), strict=True)]
print(f"largest difference to one process: {max(apart):.0e}")
assert max(apart) < 1e-10

# %% [markdown]
# The resumed run ends with the parameters of the run in a single process, to within 1e-10 in float64. A checkpoint does
# not depend on the number of processes, so that may change too. If the scheduler tells you beforehand (SIGTERM),
# nothing needs to be lost: `multihost_utils.reached_preemption_sync_point(step)` is true in all processes after the
# same update.
#
# ## Exercises
#
# The exercises run in this process. Its eight devices stand for those of several processes.
#
# **1. `assemble`** (10 minutes): write `make_array_from_process_local_data` yourself, for an array that is split along
# its first axis. `rows` are this process's NumPy rows for its devices `mine`, in their order. Return the array of shape
# `shape` with the sharding `sharding`.
# <details><summary>Hint</summary><code>np.split</code>, <code>jax.device_put(part, device)</code>, and
# <code>jax.make_array_from_single_device_arrays(shape, sharding, parts)</code>.</details>
#
# **2. `by_node`** (5 minutes): `found` lists GPUs in any order, and each has `.process_index` and `.id`. There is one
# process for each GPU, with `each` GPUs to a node, and processes are numbered node by node. Return a NumPy array
# `[nodes, each]` of them, for a mesh whose second axis stays inside the nodes.
# <details><summary>Hint</summary>Sort by the number of the process, then reshape.</details>
#
# **3. `fixed_log`** (3 minutes, find the mistake): every process calls `broken_log` after each epoch. With one process
# it works. With two, process 0 hangs or says a wrong loss. `mean_loss` is a jitted function of global arrays. Return
# the loss on every process.
# <details><summary>Hint</summary>Which processes take part in the all-reduce inside mean_loss?</details>

# %%
from pmapdp.lessons.checks import check


def broken_log(process, mean_loss, say):
    if process == 0:
        say(mean_loss())


def assemble(sharding, shape, rows, mine):
    """The global array of these rows."""
    ...  # your code: 2 or 3 lines


def by_node(found, each):
    """The devices, `[nodes, each]`."""
    ...  # your code: 1 or 2 lines


def fixed_log(process, mean_loss, say):
    """Process 0 says the loss; returns it on every process."""
    ...  # your code: 3 or 4 lines


for exercise in (assemble, by_node, fixed_log):
    check("17_many_processes", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/17_many_processes.py](solutions/17_many_processes.py)
#
# ## Take away
#
# - All processes run the same program. Each gives its rows to global arrays and reads its own shards.
# - One task a node trains on one GPU, unless you name its GPUs. Keep the axis with most communication inside the nodes.
# - A lost process ends the run in bounded time, and the same command resumes from the last checkpoint.
#
# In pmapdp this code is in [distributed.py](../pmapdp/distributed.py) and
# [steps/placing.py](../pmapdp/steps/placing.py). [docs/processes.md](../docs/processes.md) has the commands for
# Slurm, Open MPI and Kubernetes. Read on:
# [Introduction to multi-controller JAX](https://docs.jax.dev/en/latest/501/multiprocess.html), and on meshes and
# networks [How to Scale Your Model](https://jax-ml.github.io/scaling-book/sharding/). Next:
# [18 Measure and predict](18_measure_and_predict.ipynb).

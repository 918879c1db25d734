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
# # 13. Train with many processes
#
# After this lesson you can start several processes that train together, say which examples each of them reads and what
# only process 0 does, and say what happens when one of them dies.
#
# About 25 minutes · before: [12 Born sharded](12_born_sharded.ipynb) · next:
# [14 Measure, and scale](14_measure_and_scale.ipynb)
#
# One machine has a handful of devices. More machines mean more processes: each runs the same program, and owns only
# the devices of its machine. Here both processes run on your machine and talk over its loopback interface.

# %%
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import drawing
import jax
import matplotlib.pyplot as plt
import numpy as np
from checks import check

from pmapdp import devices
from pmapdp.data.batches import Batches
from pmapdp.data.digits import load
from pmapdp.recipes import RECIPES
from pmapdp.train import train
from pmapdp.trained import load_run

devices.simulate(4)
drawing.setup()
runs = Path(tempfile.mkdtemp())

# %% [markdown]
# ## One array, two processes
#
# The picture shows one global array `[8]` on four devices. Process 0 can touch the two shards in its own memory, and not
# the others; both processes know the shape of the whole.

# %%
axes = drawing.canvas(14, 3.2)
for device in range(4):
    drawing.box(axes, 1 + 3.2 * device, 0.4, f"rows {2 * device}, {2 * device + 1}", device=device, width=2.4)
for process in range(2):
    drawing.box(axes, 0.7 + 6.4 * process, 1.8, f"process {process}: reads rows {4 * process} to {4 * process + 3}",
                width=6, height=1)  # fmt: skip
    for device in (2 * process, 2 * process + 1):
        drawing.arrow(axes, (2.2 + 3.2 * device, 1.8), (2.2 + 3.2 * device, 1.2), device=device)
plt.show()

# %% [markdown]
# The smallest case: a program that both processes run. `initialize` connects them: process 0 listens as the
# *coordinator*, and every process says how many there are and which it is. Then each gives **its part only**, the
# numbers 0 to 3 or 4 to 7. What is their sum, and what happens when a process asks for the whole array?

# %%
PROGRAM = """
import os, sys
os.environ["NPROC"] = "8"  # threads enough for simulated devices before jax 0.12 (lesson 00)
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

coordinator, process = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(coordinator, num_processes=2, process_id=process)

split = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
mine = np.arange(4.0) + 4 * process
whole = jax.make_array_from_process_local_data(split, mine)
sys.stdout = sys.stderr  # gloo, which carries the collectives, prints on the other one
print("devices", jax.device_count(), "of which here", jax.local_device_count())
print("shape", whole.shape, "shards here", [shard.data.tolist() for shard in whole.addressable_shards])
print("sum", jax.jit(jax.numpy.sum)(whole))  # the same on both: an all-reduce over the network
try:
    np.asarray(whole)
except RuntimeError as error:
    print("failure on purpose:", str(error)[:102])
"""
(runs / "program.py").write_text(PROGRAM)


def start(command, count=2):
    """The processes of one run; `command(coordinator, process)` gives the arguments of each."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # a free port
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    commands = [[sys.executable, *map(str, command(coordinator, process))] for process in range(count)]
    clean = {name: value for name, value in os.environ.items() if name != "NPROC"} | {"JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(each, env=clean, **pipes) for each in commands]


for process, running in enumerate(start(lambda *own: [runs / "program.py", *own])):
    lines = running.communicate(timeout=120)[1].splitlines()
    print(f"process {process}", *lines, sep="\n  ")
    assert "sum 28.0" in lines

# %% [markdown]
# Nobody sent the parts anywhere. The sum crossed the network, as one number per device. A process that reads the whole
# array gets an error: half of it is on another machine. That is the rule of this lesson: **all processes run the same
# computations in the same order, and each touches its own shards.** A process that runs one more collective than the others
# waits forever.
#
# ## Who reads which examples?
#
# The order of an epoch is a function of the seed (lesson 10), so every process knows the whole order without
# asking, and takes its rows. Here are four devices in two processes, and a batch of ten. Before you run it: how many rows
# does each process hold, and which one has the padding?

# %%
digits = load()
settings = {"batch_size": 10, "devices": 4, "shuffle_seed": 0}
batch = next(Batches(digits.train, **settings).epoch(0))
parts = [next(Batches(digits.train, here=here, **settings).epoch(0)) for here in (range(0, 2), range(2, 4))]
for process, part in enumerate(parts):
    print(f"process {process}: examples {part.indices.tolist()}, weights {part.weights.astype(int).tolist()}")
np.testing.assert_array_equal(np.concatenate([part.inputs for part in parts]), batch.inputs)

# %% [markdown]
# **The lines that change** in a step that you know from lesson 08 are these two. The step itself stays as it is: it was
# written for a mesh, and a mesh may span machines.
#
# ```
# jax.device_put(batch, split)                                   # one process: the whole batch
# jax.make_array_from_process_local_data(split, rows_of_mine)    # several: its rows only
# ```
#
# ## Process 0
#
# Two processes that append to one log would garble it. So process 0 alone prints, and writes metrics and
# `config.json`. Checkpoints are different: each process writes the shards that it holds, into one folder that all share.
#
# Now the trainer: the same command for both, except for the number of the process. For comparison the job runs here
# too, in a single process with four devices.

# %%
job = {"model": "mlp", "dtype": "float64", "epochs": 2, "checkpoint_every": 10}
recipe = RECIPES["digits"].config
straight = train(dataclasses.replace(recipe, devices=4, workdir=str(runs / "one"), progress=False, **job))


def train_in_two(workdir, **more):
    flags = job | {"devices": 2, "workdir": workdir, "heartbeat_timeout": 6, "num_processes": 2} | more
    given = [part for name, value in flags.items() for part in ("--" + name.replace("_", "-"), value)]
    own = lambda coordinator, process: ["--coordinator", coordinator, "--process-id", process]  # noqa: E731
    return start(lambda *each: ["-m", "pmapdp.train", "--no-progress", *given, *own(*each)])


# %% [markdown]
# ## Kill one
#
# As soon as a checkpoint is there, process 1 dies by SIGKILL. Process 0 then waits in an all-reduce for
# an answer that never comes; left alone, it would wait forever. So every process gives *signs of life* to the
# coordinator, and looks for those of the others. After `--heartbeat-timeout` (6 s here, 60 by default) at the latest, it
# ends itself. The survivor cannot go on: its neighbour's share of the batch is gone.

# %%
both = train_in_two(runs / "two")
while all(each.poll() is None for each in both) and not (runs / "two" / "checkpoints" / "10").exists():
    time.sleep(0.01)
both[1].send_signal(signal.SIGKILL)
clock = time.perf_counter()
errors = both[0].communicate(timeout=60)[1].splitlines()
print(f"process 0 ended after {time.perf_counter() - clock:.0f} s with status {both[0].returncode}:")
print(*(line for line in errors if line.startswith("error")))
assert both[0].returncode == 4
both[1].communicate();

# %% [markdown]
# What is lost: the updates since the last checkpoint. Slurm, Kubernetes or you start the same command again, and it goes
# on. It need not be with two processes: a checkpoint knows nothing of processes either.

# %%
again = [each.communicate(timeout=120)[0] for each in train_in_two(runs / "two")]
print(*(line for line in again[0].splitlines() if "restored" in line or "epoch 2" in line or "devices" in line), sep="\n")
assert "epoch" not in again[1]  # process 1 says nothing
_, resumed, _ = load_run(runs / "two")
apart = [np.abs(a - b).max() for a, b in zip(jax.tree.leaves(straight.state), jax.tree.leaves(resumed), strict=True)]
print(f"largest difference to one process: {max(apart):.0e}")
assert max(apart) < 1e-10

# %% [markdown]
# ## Is it faster?
#
# Not here: the two processes share the cores of one machine, and what one process did in its memory now goes through sockets.
# On machines of their own they have twice the devices, and pay for the network.

# %%
for name, meaning in (("one", "1 process x 4 devices"), ("two", "2 processes x 2 devices")):
    lines = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    print(f"{meaning}: {[line for line in lines if line['event'] == 'epoch'][-1]['images_per_second']:,.0f} images/s")
print(devices.describe(jax.devices()[:4]))

# %% [markdown]
# ## Exercises
#
# **1. `my_rows`**: a global batch of `rows` rows lies in order on all devices of `processes` processes, each with equally
# many devices; `rows` divides by their number. Return the numbers of the rows that process `process` must read.
#
# <details><summary>Hint</summary>Devices are in the order of their processes, so the rows of one process are next to
# each other.</details>
#
# **2. `lost`**: `last_sign[p]` is the time at which process p last gave a sign of life. Return the numbers of the processes,
# in order, that have been silent for longer than `patience` seconds, except this one, `me`.
#
# <details><summary>Hint</summary>This process is running, or it could not ask.</details>
#
# **3. `differing`**: `facts[p]` is a dictionary of what process p was started with. Return a list of `(p, name)` for each
# fact that is not as in process 0, also where p does not have it.
#
# <details><summary>Hint</summary>Two loops; `facts[p].get(name)`.</details>


# %%
def my_rows(process, processes, rows):
    """A range of row numbers."""
    ...  # your code: 2 lines


def lost(last_sign, now, patience, me):
    """A list of process numbers."""
    ...  # your code: 1 to 2 lines


def differing(facts):
    """A list of (process, name)."""
    ...  # your code: 2 to 4 lines


for exercise in (my_rows, lost, differing):
    check("13_many_processes", exercise.__name__, exercise)

# %% [markdown]
# Solutions: [solutions/13_many_processes.py](solutions/13_many_processes.py)
#
# ## Take away
#
# - All processes run the same program; each gives and reads its own shards of global arrays.
# - Process 0 writes what is read by people; checkpoints are written by all, and know nothing of processes.
# - A lost process ends the run in bounded time; the same command goes on from the last checkpoint.
#
# This code lives in [pmapdp/processes/](../pmapdp/processes/join.py) and
# [steps/placing.py](../pmapdp/steps/placing.py); [deploy/](../deploy/slurm.sbatch) starts it under Slurm, Open MPI and
# Kubernetes.

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
# # 15. Train with many processes
#
# After this lesson you can connect several processes with `jax.distributed`, build global arrays from the rows that each
# process reads, say what only process 0 does, and resume after a process has died.
#
# About 30 minutes · before: [16 Born sharded](16_born_sharded.ipynb) · next:
# [18 Measure a step](18_measure_a_step.ipynb)
#
# One machine has a handful of devices. To use several machines, start a process on each. All processes run the same program,
# and each owns only the devices of its machine. Here, two processes run on your machine and communicate through its loopback
# interface. In PyTorch, `torchrun` starts a process for each *device*; a JAX process usually owns all devices of its machine.

# %%
import dataclasses
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import jax
import numpy as np

from pmapdp import devices
from pmapdp.data.batches import Batches
from pmapdp.recipes import RECIPES
from pmapdp.registry import load_data
from pmapdp.run.trained import load_run
from pmapdp.steps.placing import place
from pmapdp.train import train
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_17

devices.simulate(8)
drawing.setup()
runs = Path(tempfile.mkdtemp())

# %% [markdown]
# ## One array, two processes
#
# The picture shows a global array `[16, 3]` on four devices. Both processes know its global shape. Process 0 can read the two
# shards on its own devices, but not the other two.

# %%
lesson_17.one_array()

# %% [markdown]
# ## A program to take home
#
# [programs/two_processes.py](programs/two_processes.py) is a complete training program in plain JAX. Three things are new:
#
# - `jax.distributed.initialize` connects the processes. Process 0 listens as the *coordinator*. Each process says how many
#   processes there are and which of them it is. (Under Slurm, Open MPI or on Cloud TPU it needs no arguments.)
# - `jax.devices()` then lists the devices of *all* processes.
# - `jax.make_array_from_process_local_data` builds a global array from the rows that each process gives.
#
# The step is that of lesson 09.

# %%
program = Path("programs/two_processes.py").read_text()
print(program[program.index("coordinator, process") :])

# %% [markdown]
# We run it as one process, and then as two. At its end it also calls pmap, which takes and returns arrays of the process's own
# devices. **Predict:** which shape does `x` have on process 1 of 2, and how many of its rows does that process hold? And which
# shape does pmap return there?

# %%
def start(count, *arguments):
    """Start `count` processes of one run: Python with these arguments, with `{coordinator}` and `{process}` filled in."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # a free port
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    clean = {name: value for name, value in os.environ.items() if name != "NPROC"} | {"JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = []
    for process in range(count):
        filled = [str(each).format(coordinator=coordinator, process=process) for each in arguments]
        processes.append(subprocess.Popen([sys.executable, *filled], env=clean, **pipes))
    return processes


for count in (1, 2):
    arguments = "{coordinator}", "{process}", count, runs / f"w{count}.npy"
    for process, running in enumerate(start(count, "programs/two_processes.py", *arguments)):
        print(f"process {process} of {count}", *running.communicate(timeout=120)[1].splitlines(), sep="\n  ")
        assert running.returncode == 0
difference = np.abs(np.load(runs / "w1.npy") - np.load(runs / "w2.npy")).max()
print(f"largest difference between one process and two: {difference:.0e}")
assert difference < 1e-6

# %% [markdown]
# The global array has the same shape in both processes, and each holds half of its rows. No process sent its rows to the
# other: in a step, only gradients cross the network. pmap's result has the shape `[2]`, for the two devices of its process. A
# loop around pmap works on such process-local arrays; that changes when you port it (lesson 12).
#
# Reading all of `x` is an error, because half of it belongs to the other process. So the rule is: **all processes run the same
# computations in the same order, and each reads its own shards.** If one process calls a collective and the others do not, it
# waits for them in vain. Or the others are at their next collective, and the numbers of the two are mixed, without an error.
#
# ## Who reads which examples?
#
# The order of an epoch is a function of the seed (lesson 14). So every process knows the order of all examples, and takes its
# own rows. pmapdp's `Batches` does this; here we ask it for the rows of two processes with two devices each, in a batch of ten
# examples. **Predict:** how many rows does each process hold, and which one has the padding?

# %%
digits = load_data("digits")
settings = {"batch_size": 10, "devices": 4, "shuffle_seed": 0}
batch = next(Batches(digits.train, **settings).epoch(0))
parts = [next(Batches(digits.train, here=here, **settings).epoch(0)) for here in (range(0, 2), range(2, 4))]
for process, part in enumerate(parts):
    print(f"process {process}: examples {part.indices.tolist()}, weights {part.weights.astype(int).tolist()}")
np.testing.assert_array_equal(np.concatenate([part.inputs for part in parts]), batch.inputs)

# %% [markdown]
# Each holds six rows: ten examples are padded to twelve. The last process has the two rows of padding, whose weight is 0.
#
# ## Process 0
#
# Two processes that append to one log would garble it. So only process 0 prints, and only process 0 writes the metrics and
# `config.json`. Checkpoints are different: each process writes the shards that it holds, into one folder that all can reach.
#
# Now we use the trainer of pmapdp. Both processes get the same command, except for the number of the process. For comparison,
# the job first runs here, in a single process with four devices.

# %%
job = {"model": "mlp", "dtype": "float64", "epochs": 2, "checkpoint_every": 10}
recipe = RECIPES["digits"].config
straight = train(dataclasses.replace(recipe, devices=4, workdir=str(runs / "one"), progress=False, **job))


def train_in_two(workdir):
    flags = job | {"devices": 2, "workdir": workdir, "heartbeat_timeout": 6, "num_processes": 2}
    flags |= {"coordinator": "{coordinator}", "process_id": "{process}"}
    given = [part for name, value in flags.items() for part in ("--" + name.replace("_", "-"), value)]
    return start(2, "-m", "pmapdp.train", "--no-progress", *given)


# %% [markdown]
# ## Kill one
#
# As soon as a checkpoint is there, we kill process 1 with SIGKILL. Process 0 then waits in an all-reduce for an answer that never
# comes. JAX itself would notice after about 100 seconds. pmapdp notices earlier, by heartbeats of its own: a process that sends
# none for 60 % of `--heartbeat-timeout` counts as lost, so that all others have ended when the timeout is over. The timeout
# is 6 seconds here (60 by default), so the message says 4 s (3.6 s, rounded). **Predict:** what remains of the run?

# %%
both = train_in_two(runs / "two")
while all(each.poll() is None for each in both) and not (runs / "two" / "checkpoints" / "10").exists():
    time.sleep(0.01)
both[1].send_signal(signal.SIGKILL)
clock = time.perf_counter()
errors = both[0].communicate(timeout=60)[1].splitlines()
print(f"process 0 ended after {time.perf_counter() - clock:.0f} s with status {both[0].returncode}:")
print(*(textwrap.fill(line, 110) for line in errors if line.startswith("error")))
assert both[0].returncode == 4
assert any("no sign of life for 4 s" in line for line in errors)
both[1].communicate();

# %% [markdown]
# Process 0 ended within the timeout, with status 4. The checkpoints remain, and only the updates since the last one are lost.
# Slurm, Kubernetes or you start the same command again, and the run resumes. The number of processes may change, because a
# checkpoint does not depend on it.

# %%
again = [each.communicate(timeout=120)[0] for each in train_in_two(runs / "two")]
print(*(line for line in again[0].splitlines() if "restored" in line or "epoch 2" in line or "devices" in line), sep="\n")
assert "epoch" not in again[1]  # process 1 prints nothing
_, resumed, _ = load_run(runs / "two")
apart = [np.abs(a - b).max() for a, b in zip(jax.tree.leaves(straight.state), jax.tree.leaves(resumed), strict=True)]
print(f"largest difference to one process: {max(apart):.0e}")
assert max(apart) < 1e-10

# %% [markdown]
# The resumed run ends with the parameters of the run in a single process, to within 1e-10 (float64; the additions are made in
# another order).
#
# ## Is it faster?
#
# **Predict:** both runs used four devices. Which one made more examples per second in its last epoch?

# %%
for name, meaning in (("one", "1 process x 4 devices"), ("two", "2 processes x 2 devices")):
    lines = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    speed = [line for line in lines if line["event"] == "epoch"][-1]["examples_per_second"]
    print(f"{meaning}: {speed:,.0f} examples/s")
print(devices.describe(jax.devices()[:4]))

# %% [markdown]
# The single process is faster here. The two processes share the cores of one machine, and their all-reduce goes through sockets
# instead of shared memory. Two machines would have twice as many cores, and the all-reduce would go through the network.
#
# ## Exercises
#
# The exercises run in one process. Its eight devices stand for those of several processes.
#
# **1. `rows_of`** (5 minutes): `sharding` splits a global array of shape `shape` along its first axis. `mine` lists the devices of
# this process, which are neighbours. Return `(first, last)`: the process must read the rows from `first` up to, but not
# including, `last`.
# <details><summary>Hint</summary><code>sharding.devices_indices_map(shape)[device]</code> is a tuple of slices; a slice's
# start is None for the first row.</details>
#
# **2. `assemble`** (10 minutes): write `make_array_from_process_local_data` yourself. `rows` are NumPy rows for the devices `mine`,
# in their order. Place each device's share, and return the array of shape `shape` with the sharding `sharding`.
# <details><summary>Hint</summary><code>np.split</code>, <code>jax.device_put(part, device)</code>, and
# <code>jax.make_array_from_single_device_arrays(shape, sharding, parts)</code>.</details>
#
# **3. `mended_log`** (3 minutes): find the planted mistake. Every process calls `broken_log` after each epoch. With one process
# it works. With two, process 0 hangs or says a wrong loss, and there is no error. `mean_loss` is a jitted function of global
# arrays. Write `broken_log` correctly, and return the loss on every process.
# <details><summary>Hint</summary>Which processes take part in the all-reduce inside mean_loss?</details>


# %%
def broken_log(process, mean_loss, say):
    if process == 0:
        say(mean_loss())


def rows_of(sharding, shape, mine):
    """(first, last) of the rows on the devices `mine`."""
    ...  # your code: 3 or 4 lines


def assemble(sharding, shape, rows, mine):
    """The global array of these rows."""
    ...  # your code: 2 or 3 lines


def mended_log(process, mean_loss, say):
    """Process 0 says the loss; returns it on every process."""
    ...  # your code: 3 or 4 lines


for exercise in (rows_of, assemble, mended_log):
    check("17_many_processes", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/17_many_processes.py](solutions/17_many_processes.py)
#
# ## Take away
#
# - All processes run the same program. Each gives its rows to global arrays and reads its own shards.
# - Process 0 writes what people read; checkpoints are written by all.
# - A lost process ends the run in bounded time, and the same command resumes from the last checkpoint.
#
# The code is in [processes/join.py](../src/pmapdp/processes/join.py) and in [steps/placing.py](../src/pmapdp/steps/placing.py), whose
# function for batches is printed below. [docs/processes.md](../docs/processes.md) has the commands for Slurm, Open MPI and
# Kubernetes. Read on: [Introduction to multi-controller JAX](https://docs.jax.dev/en/latest/multi_process.html). Next:
# [18 Measure a step](18_measure_a_step.ipynb).

# %%
print(inspect.getsource(place))

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
# # 12. Run a real training job
#
# After this lesson you can write a training loop that survives being killed, with 20 lines of Orbax. You can give a model to
# somebody who has none of your code, with 5 lines of `jax.export`. And you can run the same as commands, watch it in
# TensorBoard, and read a profile.
#
# About 35 minutes · before: [10 Three ways side by side](10_three_ways_side_by_side.ipynb), or
# [12 Port a pmap program](12_port_a_pmap_program.ipynb) · next: [15 Split the model](15_split_the_model.ipynb)

# %%
import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax import P, export
from jax.sharding import Mesh, NamedSharding

from pmapdp import devices
from pmapdp.errors import UserError
from pmapdp.recipes import RECIPES
from pmapdp.registry import load_data
from pmapdp.run.trained import load_run
from pmapdp.train import train
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_14

chosen = devices.choose(8)
drawing.setup()
data, runs = load_data("digits"), Path(tempfile.mkdtemp())
images, labels = data.train.inputs.reshape(-1, 784).astype(np.float32) / 255, data.train.labels
print(devices.describe(chosen))

# %% [markdown]
# ## What a checkpoint must hold
#
# To resume *exactly*, a run needs everything that training changes: the parameters, the optimizer's state (for Adam two
# moments of each parameter), the running statistics of batch norm, and the number of updates. The order of the examples
# and the random keys need not be saved, if they are functions of a seed and the number of updates. Here is such a state
# with its step, which is that of lesson 09 with Adam.

# %%
mesh = Mesh(np.array(chosen), ("data",))
replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
optimizer = optax.adam(1e-3)
BATCH, PER_EPOCH = 64, len(labels) // 64


def create():
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"W1": 0.05 * jax.random.normal(keys[0], (784, 64)), "W2": 0.1 * jax.random.normal(keys[1], (64, 10))}
    return {"updates": jnp.zeros((), jnp.int32), "params": params, "optimizer": optimizer.init(params)}


def logits(params, x):
    return jax.nn.relu(x @ params["W1"]) @ params["W2"]


def update(state, x, y):
    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()

    changes, optimizer_state = optimizer.update(jax.grad(loss)(state["params"]), state["optimizer"], state["params"])
    params = optax.apply_updates(state["params"], changes)
    return {"updates": state["updates"] + 1, "params": params, "optimizer": optimizer_state}


step = jax.jit(update, in_shardings=(replicated, split, split), out_shardings=replicated, donate_argnums=0)


def batch(number):  # depends on the number of the update alone, so there is nothing to save
    epoch, position = divmod(number, PER_EPOCH)
    rows = np.random.default_rng([0, epoch]).permutation(len(labels))[position * BATCH : (position + 1) * BATCH]
    return images[rows], labels[rows]


# %% [markdown]
# ## A resumable loop, to take home
#
# Here is the whole loop. `save` is called after every update, and writes one in ten. It copies the state to the host and
# returns; a thread writes the copy to disk while training continues. `restore` reads the newest checkpoint into the shapes and
# shardings that it is given. Orbax writes a checkpoint under a temporary name and renames it when it is complete, so a
# start after a kill never reads a half-written one. (`KEPT` names what is saved; you will see what happens when a part of it is
# left out.)

# %%
KEPT = ("updates", "params", "optimizer")


def shape_of(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated)


def run(folder, last, kept=KEPT):
    options = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=10)
    with ocp.CheckpointManager(folder, options=options) as checkpoints:
        state = jax.device_put(create(), replicated)
        if (newest := checkpoints.latest_step()) is not None:
            shapes = {name: jax.tree.map(shape_of, state[name]) for name in kept}
            state |= checkpoints.restore(newest, args=ocp.args.StandardRestore(shapes))
        print(f"starts after update {state['updates']}", end="; ")
        for number in range(int(state["updates"]), last):
            state = step(state, *batch(number))
            checkpoints.save(number + 1, args=ocp.args.StandardSave({name: state[name] for name in kept}))
        checkpoints.wait_until_finished()
    print(f"ends after update {state['updates']}")
    return jax.device_get(state)


lesson_14.two_starts()

# %% [markdown]
# Run 40 updates without a stop. Then run 25, and start again: the second start finds the checkpoint of update 20.
# **Predict:** how large is the difference at the end?

# %%
straight = run(runs / "straight", 40)
run(runs / "stopped", 25)
resumed = run(runs / "stopped", 40)
for a, b in zip(*map(jax.tree.leaves, (straight, resumed)), strict=True):
    np.testing.assert_array_equal(a, b)
print("the same bits in", len(jax.tree.leaves(resumed)), "arrays")

# %% [markdown]
# There is none: the two runs end with the same bits.
#
# **A failure on purpose.** Some programs save the parameters and the number of updates, but not the optimizer's state. They
# resume without an error. **Predict:** how large is the difference at the end, compared with a typical weight of 0.05?

# %%
run(runs / "forgetful", 25, kept=("updates", "params"))
forgetful = run(runs / "forgetful", 40, kept=("updates", "params"))
difference = max(np.abs(straight["params"][name] - forgetful["params"][name]).max() for name in ("W1", "W2"))
print(f"largest difference {difference:.4f}")
assert 0.005 < difference < 0.02

# %% [markdown]
# It is about a fifth of a typical weight, because Adam's moments started again from zero. No message tells you, and the loss
# curve has a small bump at most. So test it once: a resumed run must end with the same bits as one that was not stopped.
#
# ## Export, to take home
#
# `jax.export` turns a jitted function into bytes: here the network with its parameters, for any number of images `n`, on CPUs,
# NVIDIA GPUs and TPUs. To load them, one needs jax, but none of your code. To show it, a new process gets only these bytes and
# five images.

# %%
params = resumed["params"]
(n,) = export.symbolic_shape("n")
probabilities = jax.jit(lambda x: jax.nn.softmax(logits(params, x)))
exported = export.export(probabilities, platforms=["cpu", "cuda", "tpu"])(jax.ShapeDtypeStruct((n, 784), jnp.float32))
(runs / "model.bin").write_bytes(exported.serialize())
np.save(runs / "images.npy", images[:5])
READER = """
import sys, numpy
from jax import export
model = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
print(model.call(numpy.load(sys.argv[2])).argmax(1).tolist())
"""
command = [sys.executable, "-c", READER, str(runs / "model.bin"), str(runs / "images.npy")]
answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
print("another process says", answer, "| here", np.asarray(probabilities(images[:5])).argmax(1).tolist())
assert answer == np.asarray(probabilities(images[:5])).argmax(1).tolist()

# %% [markdown]
# The other process gives the same five digits.
#
# ## The same as commands
#
# `python -m pmapdp.train` is this loop with everything else that a real run needs: evaluation, a schedule, logs, stopping
# on a signal, several processes. From Python you call `train(config)`. Here it runs the job of TensorFlow's MirroredStrategy
# tutorial for three epochs, on the digits, with a profile of ten updates.

# %%
config = dataclasses.replace(
    RECIPES["mirrored"].config, dataset="digits", per_device_batch_size=8, epochs=3, switch_epochs=(1, 2), progress=False
)
with contextlib.chdir(runs):  # so that the output has short names
    straight = train(dataclasses.replace(config, workdir="mirrored", profile=True))
print(*sorted(path.name for path in (runs / "mirrored").iterdir()))
assert [round(epoch["learning_rate"], 5) for epoch in straight.epochs] == [1e-3, 1e-4, 1e-5]

# %% [markdown]
# The folder holds checkpoints, the configuration, `metrics.jsonl` (one line of JSON for each epoch) and an event file, which
# TensorBoard reads. Run `pip install tensorboard`, then `tensorboard --logdir` with the folder, and open the address that it
# prints. For this run the page looks like this:
#
# ![TensorBoard in a browser, with the curves of the learning rate and of the losses](tensorboard.png)
#
# The learning rate falls twice, as the schedule says. A schedule is a function from the number of updates to a rate, so it need
# not be saved. The profile is a trace of ten updates: open the file `perfetto_trace.json.gz` at
# [ui.perfetto.dev](https://ui.perfetto.dev). Two of the updates look like this:

# %%
(trace,) = (runs / "mirrored").glob("**/perfetto_trace.json.gz")
lesson_14.timeline(trace)

# %% [markdown]
# Each row is a thread that computes for the simulated devices. Blue is computing, and orange is an all-reduce, much of which is
# waiting: it ends when the last device has arrived. [Lesson 18](18_measure_a_step.ipynb) reads such a trace in numbers.
#
# ## Kill it
#
# Now we run the same job as a command. As soon as the checkpoint of update 10 is there, we send SIGKILL, which no program can
# catch. Then we give the same command again. **Predict:** does it end with the same bits as the run that was never
# killed?

# %%
flags = {"dataset": "digits", "per-device-batch-size": 8, "epochs": 3, "checkpoint-every": 5, "workdir": runs / "killed"}
command = [sys.executable, "-m", "pmapdp.train", "mirrored", "--switch-epochs", "1", "2", "--no-progress"]
command += [str(part) for name, value in flags.items() for part in (f"--{name}", value)]
process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
while process.poll() is None and not (runs / "killed" / "checkpoints" / "10").exists():
    time.sleep(0.01)
process.send_signal(signal.SIGKILL)
names = sorted(path.name for path in (runs / "killed" / "checkpoints").iterdir())
print("exit status", process.wait(), "| checkpoints:", names)

again = subprocess.run(command, capture_output=True, text=True, check=True).stdout
print(*[line for line in again.splitlines() if "restored" in line or "epoch 3" in line or "best" in line], sep="\n")
_, resumed, _ = load_run(runs / "killed")
for a, b in zip(jax.tree.leaves(straight.state), jax.tree.leaves(resumed), strict=True):
    np.testing.assert_array_equal(a, b)
print("the same bits in", len(jax.tree.leaves(resumed)), "arrays")

# %% [markdown]
# It does. (A name with `tmp` in the list is a checkpoint that was just being written; the next start removes it.)
#
# The next cell shows two more things. A folder belongs to one configuration: a run that resumes with another one would be a
# result of neither, so pmapdp raises an error. And `python -m pmapdp.export` writes the trained model to a file, with
# `jax.export` as above.

# %%
try:
    train(dataclasses.replace(config, learning_rate=0.01, workdir=str(runs / "killed")))
    raise AssertionError("another configuration was accepted")
except UserError as error:
    print(textwrap.fill(str(error).replace(str(runs), "..."), 110))
model = runs / "model.zip"
command = [sys.executable, "-m", "pmapdp.export", str(runs / "killed"), str(model)]
print(subprocess.run(command, capture_output=True, text=True, check=True).stdout.replace(str(runs), "..."))

# %% [markdown]
# ## A model and data of your own
#
# `train` also takes your own model, data and loss, as values. Here a linear model learns the sign of a sum. It is a plain
# Flax module. pmapdp passes the types of its numbers (float32 here) to the constructor, and a `context` to each call. The
# context says, among other things, whether the model is being trained; this model does not need it.

# %%
from flax import nnx

from pmapdp import Config, DataSet
from pmapdp.data.dataset import Split


class Linear(nnx.Module):
    def __init__(self, *, rngs, dtype, param_dtype):
        self.logits = nnx.Linear(6, 2, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, inputs, context):
        return self.logits(inputs)


inputs = np.random.default_rng(0).normal(size=(1024, 6)).astype(np.float32)
classes = (inputs.sum(1) > 0).astype(np.int32)
own = DataSet(Split(inputs[:896], classes[:896]), Split(inputs[896:], classes[896:]))
result = train(Config(strategy="jit", epochs=3, learning_rate=0.03, progress=False), model=Linear, data=own)
assert result.epochs[-1]["test_accuracy"] > 0.9

# %% [markdown]
# After three epochs it is right for more than nine of ten test examples.
#
# ## Exercises
#
# **1. `mended_batches`** (5 minutes): find the planted mistake. `broken_batches` yields the rows of the batches of the updates
# `first`, `first + 1` and so on. A run that starts at update 0 is right, but a resumed run gets other batches than one that was
# not stopped. Write it correctly: each epoch has an order of its own, and its last batch may be shorter.
# <details><summary>Hint</summary>As in <code>batch</code> above: <code>divmod(number, updates of an epoch)</code>. Here an epoch
# has <code>-(-examples // batch_size)</code> updates, which is rounded up.</details>
#
# **2. `resumable`** (10 minutes): the whole lesson. Return the state after update `last`, of a run that starts from the newest
# checkpoint in `folder` if there is one, and saves the state after each update with Orbax. The state is a dictionary with an entry
# `"updates"`; `create()` makes it, and `step(state, number)` returns the next one.
# <details><summary>Hint</summary>It is <code>run</code> above without shardings. In place of shapes, StandardRestore also takes
# a state, such as <code>create()</code>.</details>
#
# **3. `exported`** (5 minutes): return the bytes of `jax.export` for `function`, which takes `[n, 4]` float32 for any n.
# <details><summary>Hint</summary><code>symbolic_shape</code>, <code>ShapeDtypeStruct</code>, <code>serialize</code>.</details>


# %%
def broken_batches(seed, first, batch_size, examples):
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(examples)  # of one epoch
        for start in range(0, examples, batch_size):
            yield order[start : start + batch_size]


def mended_batches(seed, first, batch_size, examples):
    """Yields the rows of the batches of the updates first, first + 1, ..."""
    ...  # your code: 4 to 6 lines


def resumable(folder, last, create, step):
    """The state after update `last`."""
    ...  # your code: 8 to 10 lines


def exported(function):
    """Bytes that jax.export.deserialize takes."""
    ...  # your code: 2 or 3 lines


for exercise in (mended_batches, resumable, exported):
    check("14_a_real_training_run", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/14_a_real_training_run.py](solutions/14_a_real_training_run.py)
#
# ## Take away
#
# - A checkpoint holds everything that training changes, the optimizer's state included, and no device axis.
# - An order and keys that are functions of (seed, update) need not be saved. Then a killed run ends with the same bits.
# - An exported function needs none of your code.
#
# The code is in [train.py](../src/pmapdp/train.py), [run/checkpoint.py](../src/pmapdp/run/checkpoint.py) and
# [export/write.py](../src/pmapdp/export/write.py). Read on: [Orbax](https://orbax.readthedocs.io/en/latest/),
# [exporting](https://docs.jax.dev/en/latest/501/export.html) and [profiling](https://docs.jax.dev/en/latest/201/profiling.html).
# Next: [15 Split the model](15_split_the_model.ipynb).

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
# # 14. Run a real training job
#
# After this lesson you can write a training loop that survives being killed, with 20 lines of Orbax, and that stops
# in time when it is asked to. You can give a model to somebody who has none of your code, with 5 lines of
# `jax.export`. And you can run the same as commands.
#
# About 40 minutes · you need [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb) · previous: [13 More batch
# than memory](13_more_batch_than_memory.ipynb) · next: [15 Split the model](15_split_the_model.ipynb)

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices  # simulates devices (lesson 00) and describes them
from pmapdp.lessons import digits  # scans of handwritten digits as NumPy arrays

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"
images, labels = digits.load().train  # [1200, 64], [1200]
print(devices.describe(jax.devices()), "| jax", jax.__version__)

# %% [markdown]
# ## What a checkpoint must hold
#
# To resume *exactly*, a run needs everything that training changes: the parameters, the optimizer's state (for Adam
# two moments of each parameter), the running statistics of batch norm, and the number of updates. The order of the
# examples and the random keys need not be saved, if they are functions of a seed and the number of updates. Here is
# such a state with its step, which is that of lesson 09 with Adam.

# %%
import optax

mesh = Mesh(np.array(jax.devices()), ("data",))
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
optimizer = optax.adam(1e-3)
BATCH, PER_EPOCH = 64, len(labels) // 64


def create():
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"W1": 0.1 * jax.random.normal(keys[0], (64, 64)), "W2": 0.1 * jax.random.normal(keys[1], (64, 10))}
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
# ## A loop that resumes
#
# `save` is called after every update, and writes the first and then one in ten. It copies the state to the host and returns; a thread
# writes the copy to disk while training continues. `restore` reads the newest checkpoint into the shapes and
# shardings that it is given. Orbax writes a checkpoint under a temporary name and renames it when it is complete, so
# a start after a kill never reads a half-written one. (`kept` names what is saved; you will see what happens when a
# part of it is left out.)

# %%
import orbax.checkpoint as ocp

from pmapdp.lessons.pictures import lesson_14


def shape_of(array):
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=replicated)


def run(folder, last, kept=("updates", "params", "optimizer")):
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

# %% tags=["prediction"]
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
straight = run(folder / "straight", 40)
run(folder / "stopped", 25)
resumed = run(folder / "stopped", 40)
pairs = list(zip(*map(jax.tree.leaves, (straight, resumed)), strict=True))
print("largest difference", max(np.abs(a - b).max() for a, b in pairs))

# %% [markdown]
# <details><summary>Answer</summary>
#
# There is none: the two runs end with the same bits.
#
# </details>
#
# **A failure on purpose.** Some programs save the parameters and the number of updates, but not the optimizer's
# state. They resume without an error. **Predict:** how large is the difference at the end, compared with a typical
# weight of 0.1?

# %% tags=["prediction"]
folder = Path(tempfile.mkdtemp())
run(folder, 25, kept=("updates", "params"))
forgetful = run(folder, 40, kept=("updates", "params"))
difference = max(np.abs(straight["params"][name] - forgetful["params"][name]).max() for name in ("W1", "W2"))
print(f"largest difference {difference:.4f}")

# %% tags=["proof"]
# The asserts behind the answers so far.
for a, b in pairs:
    np.testing.assert_array_equal(a, b)
assert 0.005 < difference < 0.03

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is about a sixth of a typical weight, because Adam's moments started again from zero. No message tells you, and
# the loss curve has a small bump at most. So test it once: a resumed run must end with the same bits as one that was
# not stopped.
#
# </details>
#
# A run that is *asked* to stop need not lose any update. Schedulers such as Slurm and Kubernetes send SIGTERM some
# time before they kill. A handler only notes it; the loop saves after the current update, and ends. The cell to take
# home below does so.
#
# ## Export
#
# `jax.export` turns a jitted function into bytes: here the network with its parameters, for any number of images `n`,
# on CPUs, NVIDIA GPUs and TPUs. To load them, one needs JAX and none of your code. JAX
# [promises](https://docs.jax.dev/en/latest/501/export.html) that it loads bytes that are up to six months old. (For
# longer, keep the checkpoint and export again.) A new process gets these bytes and five images. **Predict:** which
# classes does it print?

# %% tags=["prediction"]
import json
import subprocess
import sys

from jax import export

folder = Path(tempfile.mkdtemp())
params = resumed["params"]
(n,) = export.symbolic_shape("n")
probabilities = jax.jit(lambda x: jax.nn.softmax(logits(params, x)))
exported = export.export(probabilities, platforms=["cpu", "cuda", "tpu"])(jax.ShapeDtypeStruct((n, 64), jnp.float32))
(folder / "model.bin").write_bytes(exported.serialize())
np.save(folder / "images.npy", images[:5])
READER = """
import sys, numpy
from jax import export
model = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
print(model.call(numpy.load(sys.argv[2])).argmax(1).tolist())
"""
command = [sys.executable, "-c", READER, str(folder / "model.bin"), str(folder / "images.npy")]
answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
print("another process says", answer, "| here", np.asarray(probabilities(images[:5])).argmax(1).tolist())

# %% tags=["proof"]
# The asserts behind the answer.
assert answer == np.asarray(probabilities(images[:5])).argmax(1).tolist()

# %% [markdown]
# <details><summary>Answer</summary>
#
# The same five.
#
# </details>
#
# ## The same as commands
#
# `python -m pmapdp.train` is this loop with everything else that a real run needs: evaluation, a schedule, logs,
# stopping on a signal, several processes. From Python you call `train(config)`. A `Config` holds all settings;
# `RECIPES` has some of published programs by name. Here it runs that of TensorFlow's MirroredStrategy tutorial for
# three epochs, on the digits.

# %%
import dataclasses

from pmapdp.recipes import RECIPES  # configurations of published programs, by name
from pmapdp.train import train  # the loop of pmapdp: it prepares a job, runs it, and returns state and metrics

folder = Path(tempfile.mkdtemp())
config = dataclasses.replace(
    RECIPES["mirrored"].config,
    dataset="digits",
    per_device_batch_size=8,
    epochs=3,
    switch_epochs=(1, 2),
    progress=False,
)
never_killed = train(dataclasses.replace(config, workdir=str(folder / "run")))
print(*sorted(path.name for path in (folder / "run").iterdir()))
assert [round(epoch["learning_rate"], 5) for epoch in never_killed.epochs] == [1e-3, 1e-4, 1e-5]

# %% [markdown]
# The folder holds checkpoints, the configuration, `metrics.jsonl` (one line of JSON for each epoch) and an event
# file, which TensorBoard reads: `tensorboard --logdir` with the folder. The learning rate falls twice, as the
# schedule says. A schedule is a function from the number of updates to a rate, so it need not be saved.
#
# The loop of pmapdp stands in [train.py](../pmapdp/train.py):

# %%
import inspect

print(inspect.getsource(train))

# %% [markdown]
# You know this loop: it is yours from above. `prepare` reads the data and makes the step, and `restore_or_init` finds
# the newest checkpoint. In each epoch a thread places what is left of it two batches ahead, and after each update `run`
# saves, logs or stops if it's time. Those few calls are in [run/open_run.py](../pmapdp/run/open_run.py).
#
# ## Kill it
#
# Now we run the same job as a command. As soon as the checkpoint of update 10 is there, we send SIGKILL, which no
# program can catch. Then we give the same command again. **Predict:** does it end with the same bits as the run that
# was never killed?

# %% tags=["prediction"]
import signal
import time

from pmapdp.train import load_run  # configuration, newest state and last metrics of a run's folder

killed = folder / "killed"
flags = {"dataset": "digits", "per-device-batch-size": 8, "epochs": 3, "checkpoint-every": 5, "workdir": killed}
command = [sys.executable, "-m", "pmapdp.train", "mirrored", "--switch-epochs", "1", "2", "--no-progress"]
command += [str(part) for name, value in flags.items() for part in (f"--{name}", value)]
process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
while process.poll() is None and not (killed / "checkpoints" / "10").exists():
    time.sleep(0.01)
process.send_signal(signal.SIGKILL)
names = sorted(path.name for path in (killed / "checkpoints").iterdir())
print("exit status", process.wait(), "| checkpoints:", names)

again = subprocess.run(command, capture_output=True, text=True, check=True).stdout
print(*[line for line in again.splitlines() if "restored" in line or "epoch 3" in line or "best" in line], sep="\n")
_, end, _ = load_run(killed)
pairs = list(zip(*map(jax.tree.leaves, (never_killed.state, end)), strict=True))
equal = sum(np.array_equal(a, b) for a, b in pairs)
print("equal to the run that was never killed:", equal, "of", len(pairs), "arrays")

# %% tags=["proof"]
# The asserts behind the answer.
for a, b in pairs:
    np.testing.assert_array_equal(a, b)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It does. (Exit status -9 means that signal 9, SIGKILL, ended the process. A name with `tmp` in the list is a
# checkpoint that was just being written; the next start removes it.)
#
# </details>
#
# A folder belongs to one configuration: a run that resumes with another one would be a result of neither, so pmapdp
# raises an error, as the next cell shows. (`python -m pmapdp.export FOLDER model.zip` writes the trained model of a
# folder to a file, with `jax.export` as above.)

# %%
import textwrap

from pmapdp.errors import UserError  # a mistake of the user's, in one sentence

try:
    train(dataclasses.replace(config, learning_rate=0.01, workdir=str(killed)))
    raise AssertionError("another configuration was accepted")
except UserError as error:
    print(textwrap.fill(str(error).replace(str(folder), "..."), 110))

# %% [markdown]
# ## A model and data of your own
#
# `train` also takes your own model, data and loss, as values. A model is any Flax module that is called as
# `model(inputs)`. This one learns the sign of a sum, and has batch norm and dropout of Flax as they are. Inside `pmap`
# both would depend on the number of devices (lessons 07 and 08), so `train` exchanges them for its own layers, and says
# so in the header. They know by themselves whether the model is being trained: you need no `model.train()`.

# %%
from flax import nnx

from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split  # arrays for training and testing


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(6, 32, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.logits = nnx.Linear(32, 2, rngs=rngs)

    def __call__(self, inputs):
        return self.logits(self.dropout(nnx.relu(self.norm(self.hidden(inputs)))))


inputs = np.random.default_rng(0).normal(size=(1024, 6)).astype(np.float32)
classes = (inputs.sum(1) > 0).astype(np.int32)
own = DataSet(Split(inputs[:896], classes[:896]), Split(inputs[896:], classes[896:]))
config = Config(strategy="pmap", epochs=5, learning_rate=0.01, schedule="constant", progress=False)
result = train(config, model=Net, data=own)
assert result.epochs[-1]["test"]["accuracy"] > 0.9

# %% [markdown]
# After five epochs it is right for more than nine of ten test examples. [A model, a loss and data of your
# own](../docs/custom.md) says what `train` takes, also from files and on the command line, and what it refuses and why.
#
# ## Take it home
#
# The next cell needs nothing from above and nothing from pmapdp. (Orbax comes with Flax.) It trains on eight devices,
# saves in the background, resumes, and ends in time when it gets SIGTERM. Its last lines prove it: a run that was
# stopped and started again ends with the same bits.

# %% tags=["take-home"]
import os
import signal
import tempfile
from pathlib import Path

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

BATCH, UPDATES, SAVE_EVERY = 256, 120, 50  # the batch divides by the number of devices
mesh = Mesh(np.array(jax.devices()), ("data",))
replicated = NamedSharding(mesh, PartitionSpec())
split = NamedSharding(mesh, PartitionSpec("data"))

random = np.random.default_rng(0)  # put your own arrays in place of these
inputs = random.normal(size=(10_000, 32)).astype(np.float32)
targets = (inputs @ random.normal(size=(32, 10))).argmax(1).astype(np.int32)
train_x, train_y, test_x, test_y = inputs[:9_003], targets[:9_003], inputs[9_003:], targets[9_003:]


class Net(nnx.Module):
    def __init__(self, features, classes, rngs):
        self.hidden = nnx.Linear(features, 128, rngs=rngs)
        self.logits = nnx.Linear(128, classes, rngs=rngs)

    def __call__(self, x):
        return self.logits(nnx.relu(self.hidden(x)))


# A schedule is a function of the number of updates, which is in the optimizer's state: it resumes by itself.
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-2, UPDATES)))


def create():
    model = Net(inputs.shape[1], int(targets.max()) + 1, nnx.Rngs(0))
    return {"model": model, "optimizer": optimizer.init(model)}  # all that training changes


def loss(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def update(state, x, y):
    value, gradients = jax.value_and_grad(loss)(state["model"], x, y)
    changes, optimizer_state = optimizer.update(gradients, state["optimizer"], state["model"])
    return {"model": optax.apply_updates(state["model"], changes), "optimizer": optimizer_state}, value


places = (replicated, split, split)
train_step = jax.jit(update, in_shardings=places, out_shardings=replicated, donate_argnums=0)
predict = jax.jit(lambda model, x: model(x).argmax(1), in_shardings=(replicated, split))


def rows_of(number):
    """The rows of update `number`, which depend on nothing else: every epoch has its own order."""
    epoch, position = divmod(number, len(train_x) // BATCH)
    order = np.random.default_rng([0, epoch]).permutation(len(train_x))
    return order[position * BATCH : (position + 1) * BATCH]


def shape_of(array):
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=replicated)


def train(folder, ask_to_stop_at=None):
    """The trained model. A second call with the same folder resumes; `ask_to_stop_at` is for the proof below."""
    state = jax.device_put(create(), replicated)
    asked = []
    before = signal.signal(signal.SIGTERM, lambda *_: asked.append(True))  # only notes it
    try:
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        with ocp.CheckpointManager(Path(folder).absolute(), options=options) as checkpoints:
            done = checkpoints.latest_step() or 0
            if done:
                shapes = jax.tree.map(shape_of, state)
                state = checkpoints.restore(done, args=ocp.args.StandardRestore(shapes))
            print(f"starts after update {done}", end=", ")
            while done < UPDATES and not asked:
                rows = rows_of(done)
                state, value = train_step(state, train_x[rows], train_y[rows])
                done += 1
                if done == ask_to_stop_at:
                    signal.raise_signal(signal.SIGTERM)
                if done % SAVE_EVERY == 0 or done == UPDATES or asked:
                    checkpoints.save(done, args=ocp.args.StandardSave(state))  # writes in the background
                    print(f"loss {float(value):.3f}", end=", ")
        print(f"ends after update {done}")
    finally:
        signal.signal(signal.SIGTERM, before)
    return state["model"]


with tempfile.TemporaryDirectory() as folder:
    straight = train(Path(folder) / "straight")
    train(Path(folder) / "stopped", ask_to_stop_at=70)
    resumed = train(Path(folder) / "stopped")
for a, b in zip(jax.tree.leaves(straight), jax.tree.leaves(resumed), strict=True):
    np.testing.assert_array_equal(a, b)
missing = -len(test_x) % mesh.size  # rows of padding make the number divide by the devices; they are cut off again
guesses = np.asarray(predict(resumed, np.pad(test_x, ((0, missing), (0, 0)))))[: len(test_x)]
accuracy = (guesses == test_y).mean()
print(f"the same bits; test accuracy {accuracy:.3f}")
assert accuracy > 0.85

# %% [markdown]
# ## Exercises
#
# **1. `fixed_batches`** (5 minutes): find the planted mistake. `broken_batches` yields the rows of the batches of the
# updates `first`, `first + 1` and so on. A run that starts at update 0 is right, but a resumed run gets other batches
# than one that was not stopped. Write it correctly: each epoch has an order of its own, and its last batch may be
# shorter.
# <details><summary>Hint</summary>As in <code>batch</code> above: <code>divmod(number, updates of an epoch)</code>.
# Here an epoch has <code>-(-examples // batch_size)</code> updates, which is rounded up.</details>
#
# **2. `resumable`** (10 minutes): the whole lesson. Return the state after update `last`, of a run that starts from
# the newest checkpoint in `folder` if there is one, and saves the state after each update with Orbax. The state is a
# dictionary with an entry `"updates"`; `create()` makes it, and `step(state, number)` returns the next one.
# <details><summary>Hint</summary>It is <code>run</code> above without shardings. In place of shapes, StandardRestore
# also takes a state, such as <code>create()</code>.</details>
#
# **3. `exported`** (5 minutes): return the bytes of `jax.export` for `function`, which takes `[n, 4]` float32 for any
# n.
# <details><summary>Hint</summary><code>symbolic_shape</code>, <code>ShapeDtypeStruct</code>,
# <code>serialize</code>.</details>


# %%
from pmapdp.lessons.checks import check


def broken_batches(seed, first, batch_size, examples):
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(examples)  # of one epoch
        for start in range(0, examples, batch_size):
            yield order[start : start + batch_size]


def fixed_batches(seed, first, batch_size, examples):
    """Yields the rows of the batches of the updates first, first + 1, ..."""
    ...  # your code: 4 to 6 lines


def resumable(folder, last, create, step):
    """The state after update `last`."""
    ...  # your code: 8 to 10 lines


def exported(function):
    """Bytes that jax.export.deserialize takes."""
    ...  # your code: 2 or 3 lines


for exercise in (fixed_batches, resumable, exported):
    check("14_a_real_training_run", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/14_a_real_training_run.py](solutions/14_a_real_training_run.py)
#
# ## Take away
#
# - A checkpoint holds everything that training changes, the optimizer's state included, and no device axis.
# - An order and keys that are functions of (seed, update) need not be saved. Then a killed run ends with the same
#   bits.
# - An exported function needs JAX, at most six months newer, and none of your code.
#
# The code is in [train.py](../pmapdp/train.py), [run/checkpoints.py](../pmapdp/run/checkpoints.py) and
# [export.py](../pmapdp/export.py). Read on: [Orbax](https://orbax.readthedocs.io/en/latest/),
# [exporting](https://docs.jax.dev/en/latest/501/export.html) and
# [profiling](https://docs.jax.dev/en/latest/201/profiling.html). Next: [15 Split the
# model](15_split_the_model.ipynb).

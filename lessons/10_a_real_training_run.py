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
# # 10. Run a real training
#
# After this lesson you can run a training with a schedule and checkpoints, kill it and go on as if nothing had
# happened, watch it in TensorBoard, and hand the trained model to somebody who has none of your code.
#
# About 20 minutes · before: [09 Three ways side by side](09_three_ways_side_by_side.ipynb) · next:
# [11 Split the model](11_split_the_model.ipynb)
#
# The job is the one of TensorFlow's MirroredStrategy tutorial: a small convolutional network, Adam, twelve epochs, and
# a learning rate that falls twice. So far you wrote the step. Now `pmapdp.train` runs it; this lesson looks at what a
# trainer adds.

# %%
import dataclasses
import json
import signal
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
from pmapdp.errors import UserError
from pmapdp.export.read import load_exported
from pmapdp.job import prepare
from pmapdp.recipes import RECIPES
from pmapdp.state import create_state
from pmapdp.train import train
from pmapdp.trained import load_run

devices.simulate(8)
drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
runs = Path(tempfile.mkdtemp())
devices.describe(jax.devices())

# %% [markdown]
# ## The plan of a run
#
# A run is a function of its configuration. The configuration holds no paths into your code and no objects, only
# numbers and names, so it can be written down, compared, and started again.

# %%
config = dataclasses.replace(RECIPES["mirrored"].config, dataset=DATASET, per_device_batch_size=8, progress=False)
job = prepare(config)
per_epoch = job.train_batches.steps
print(f"{job.global_batch_size} examples an update, {per_epoch} updates an epoch, {job.total_steps} in all")

# %% [markdown]
# **A schedule is a function from the number of updates to a learning rate.** The tutorial switches at the start of
# epochs 3 and 7, counted from 0. Before you run the cell: at which update does the rate fall for the first time?

# %%
steps = np.arange(job.total_steps)
rates = np.array([float(job.schedule(step)) for step in steps])
for step in (0, 3 * per_epoch - 1, 3 * per_epoch, 7 * per_epoch):
    print(f"update {step:3d}, epoch {step // per_epoch:2d}: learning rate {rates[step]:.0e}")
np.testing.assert_allclose(rates[[0, 3 * per_epoch, 7 * per_epoch]], [1e-3, 1e-4, 1e-5], rtol=1e-6)

figure, axes = plt.subplots(figsize=(7, 1.8))
axes.step(steps / per_epoch, rates, color=drawing.DEVICE_COLOURS[0], where="post")
axes.set(yscale="log", xlabel="epoch, from 0", ylabel="learning rate", xticks=range(0, 13, 1))
plt.show()

# %% [markdown]
# The recipe also multiplies the rate by k when the global batch is k times as large as the tutorial's 64. Here eight
# devices share 64 examples, so the rate stays. One setting is ours: label smoothing, which raises the accuracy a little.
#
# ## What a checkpoint must hold
#
# To go on *exactly*, a run needs all that changes: parameters, Adam's two averages, running statistics, the number of
# updates. It does not need the order of the examples or a random generator: in pmapdp both are functions of the seed
# and the number of updates. **What can be computed from the step need not be saved.**

# %%
axes = drawing.canvas(14, 4.4)
axes.text(0, 0.6, "first start", va="center")
axes.text(0, 3.8, "second start", va="center")
for x, y, text in ((3, 0.2, "update 0"), (6.6, 0.2, "update 10"), (10.2, 0.2, "killed"), (6.6, 3.4, "update 10")):
    drawing.box(axes, x, y, text, device=0 if y < 1 else 1, width=2.4)
drawing.box(axes, 10.2, 3.4, "update 69", device=1, width=2.4)
drawing.box(axes, 6, 1.7, "a checkpoint:\none copy, no device axis", width=3.6, height=1)
for start, end, device in (((5.4, 0.6), (6.6, 0.6), 0), ((9, 0.6), (10.2, 0.6), 0), ((9, 3.8), (10.2, 3.8), 1)):
    drawing.arrow(axes, start, end, device=device)
drawing.arrow(axes, (7.8, 1), (7.8, 1.7))
drawing.arrow(axes, (7.8, 2.7), (7.8, 3.4))
plt.show()

# %% [markdown]
# The smallest case: two updates in a row are the same as one, a copy on the host, and another. If the state held
# too little, the second way would differ.

# %%
first, second = [batch for batch, _ in zip(job.train_batches.epoch(0), range(2), strict=False)]
run, place = job.steps, job.steps.place_batch
straight = run.place_state(create_state(job.task))
for batch in (first, second):
    straight, _ = run.train_step(straight, place(batch))

broken, _ = run.train_step(run.place_state(create_state(job.task)), place(first))
saved = run.fetch(broken)  # what a checkpoint holds
broken, _ = run.train_step(run.place_state(saved), place(second))
for a, b in zip(jax.tree.leaves(run.fetch(straight)), jax.tree.leaves(run.fetch(broken)), strict=True):
    np.testing.assert_array_equal(a, b)
print("equal, bit for bit:", len(jax.tree.leaves(saved)), "arrays, for example", saved.params["conv"]["kernel"].shape)

# %% [markdown]
# ## A run in a folder
#
# With a workdir the trainer writes everything there: checkpoints, a log, `events.out.*` for `tensorboard --logdir DIR`, and the
# same figures in `metrics.jsonl`, one JSON object a line, which any tool reads. Three epochs, to keep the lesson short.

# %%
config = dataclasses.replace(config, epochs=3, switch_epochs=(1, 2))  # <- changed: three epochs instead of twelve
straight = train(dataclasses.replace(config, workdir=str(runs / "straight")))  # <- new: a folder for the run
print(*sorted(path.name for path in (runs / "straight").iterdir()))
lines = [json.loads(line) for line in (runs / "straight" / "metrics.jsonl").read_text().splitlines()]
print([line["event"] for line in lines])
for line in lines[1:-1]:
    print({key: line[key] for key in ("epoch", "step", "test_accuracy", "train_examples", "learning_rate")})
assert all(line["train_examples"] == job.train_batches.examples for line in lines[1:-1])

# %% [markdown]
# ## Kill it
#
# Now the same job as a command, in a process of its own, with a checkpoint every five updates. As soon as the second
# checkpoint is there we end the process with SIGKILL, which no program can catch: it has no time to save anything. A
# name with `tmp` in the list below is a checkpoint that was just being written; the next start removes it.
#
# Then the same command again. It takes the newest checkpoint that is whole, and goes on in the middle of the epoch. How
# large will the difference to the run that was never killed be?

# %%
flags = {"dataset": DATASET, "per-device-batch-size": 8, "epochs": 3, "checkpoint-every": 5, "workdir": runs / "killed"}
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
# A checkpoint knows nothing of pmap or of eight devices, so any strategy on any number of devices can take it. The
# figures are over exactly all test examples each time. They agree up to rounding, which depends on the order of sums.

# %%
for strategy, count in (("pmap", 8), ("jit", 3), ("single", 1)):
    other = prepare(dataclasses.replace(config, strategy=strategy, devices=count, per_device_batch_size=8))
    found = other.evaluate(other.steps.place_state(resumed))
    figures = f"loss {found.mean_loss:.6f}, accuracy {found.accuracy:.4f}, {found.count} examples"
    print(f"{strategy:7s} on {count}: {figures}")
    assert abs(found.mean_loss - straight.epochs[-1]["test_loss"]) < 1e-5
    assert found.accuracy == straight.epochs[-1]["test_accuracy"]

# %% [markdown]
# **A failure on purpose.** The folder holds a run with a piecewise schedule. Going on with another learning rate would
# give a result that belongs to neither configuration. A trainer should refuse, and say what differs:

# %%
try:
    train(dataclasses.replace(config, learning_rate=0.01, workdir=str(runs / "killed")))
except UserError as error:
    print(str(error).replace(str(runs), "..."))

# %% [markdown]
# ## Hand it over
#
# The export is one file: the network as compiled by `jax.export` for CPU, CUDA and TPU and for any batch size, the
# parameters, the class names, the metrics. Whoever loads it needs JAX and NumPy, and none of our model code.

# %%
model = runs / "model.zip"
export = [sys.executable, "-m", "pmapdp.export", str(runs / "killed"), str(model)]
print(subprocess.run(export, capture_output=True, text=True, check=True).stdout.replace(str(runs), "..."))
exported = load_exported(model)
classes, probabilities = exported.predict(job.data.test.inputs)
accuracy = float((classes == job.data.test.labels).mean())
print(f"exported: accuracy {accuracy:.4f}; checkpoint: {straight.epochs[-1]['test_accuracy']:.4f}")
assert accuracy == straight.epochs[-1]["test_accuracy"]

# %% [markdown]
# ## What does it cost?
#
# A small state is copied to the host; the devices wait for that. Orbax writes the copy while they compute again.
# Both times, medians of seven, for this model and this machine, whose simulated devices share the cores with the
# writing threads:

# %%
from pmapdp.run.checkpoint import Checkpoints

placed = jax.block_until_ready(job.steps.place_state(resumed))
checkpoints, times = Checkpoints(runs / "timed" / "checkpoints"), []
for step in range(1, 9):
    clock = time.perf_counter()
    copy = checkpoints.on_host(placed)
    waited = time.perf_counter() - clock
    checkpoints.save(step, copy, {})
    checkpoints.wait()
    times.append((waited, time.perf_counter() - clock))
waited, written = np.median(times[1:], axis=0)  # the first one also starts Orbax
checkpoints.close()
print(devices.describe(jax.devices()))
print(f"the devices wait {1000 * waited:.1f} ms; the checkpoint is on the disk after {1000 * written:.0f} ms")

# %% [markdown]
# ## Exercises
#
# **1. `where`**: a run was killed after `step` updates. Return the epoch (from 0) in which it goes on, and how many
# updates of that epoch are done.
#
# <details><summary>Hint</summary>Whole epochs are in the quotient, the rest is the remainder: `divmod`.</details>
#
# **2. `next_examples`**: the indices of the next batch from the seed and the number of updates alone. The order of an epoch
# is `np.random.default_rng([seed, epoch]).permutation(examples)`; a batch never crosses the end of an epoch, so the
# last one may be shorter.
#
# <details><summary>Hint</summary>An epoch has `-(-examples // batch_size)` updates: rounded up, because the short last
# batch counts. Then use your `where`, and slice the order.</details>
#
# **3. `write_whole`**: write `text` to `path` so that another process sees the old file or the new one, and never half of
# it, whenever the writer is killed.
#
# <details><summary>Hint</summary>Write another file in the same folder, then `os.replace` it: a rename is
# whole.</details>


# %%
def where(step, steps_per_epoch):
    """(epoch, updates done in it)"""
    ...  # your code: 1 line


def next_examples(seed, step, batch_size, examples):
    """Indices of the batch for update number `step`, from 0."""
    ...  # your code: 3 to 5 lines


def write_whole(path, text):
    """Replace the content of `path`; returns it."""
    ...  # your code: 3 to 4 lines


for exercise in (where, next_examples, write_whole):
    check("10_a_real_training_run", exercise.__name__, exercise)

# %% [markdown]
# Solutions: [solutions/10_a_real_training_run.py](solutions/10_a_real_training_run.py)
#
# ## Take away
#
# - A run is a function of its configuration; a checkpoint holds what changes, and no device axis.
# - Order and randomness that follow from (seed, step) make a killed run end in the same bits.
# - Save so that a kill at any moment leaves a whole file: write beside it, then rename.
#
# This code lives in [pmapdp/train.py](../pmapdp/train.py), [resume.py](../pmapdp/run/resume.py),
# [checkpoint.py](../pmapdp/run/checkpoint.py) and [export.py](../pmapdp/export/write.py).

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
# # 14. Survive a kill
#
# Your run has been training for nine hours when somebody reboots the machine, and you start again from scratch. It
# doesn't have to be like that. With thirteen new or changed lines, your program picks up from its last checkpoint, and
# ends with the same bits as if nothing had happened. You'll kill it and see. Then you'll leave one thing out of the
# checkpoint: the run resumes without an error, and its loss doesn't tell you that it has become a different run.
#
# **You will** save and resume a run exactly, say what a checkpoint must hold, and choose how often to save. 19 minutes,
# 34 with exercises. You need [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import tempfile
from pathlib import Path

import jax
import numpy as np

from pmapdp.lessons.pictures import lesson_14
from pmapdp.lessons.programs import launch

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## What must a checkpoint hold?
#
# Most people think of the parameters first. Are they enough? Take a tiny run with one parameter w, whose gradient is
# always 1. The learning rate is 1, and the optimizer is SGD with momentum 0.5: every update halves the velocity, adds
# the gradient, and subtracts the velocity from w. So the velocity goes 1, 1.5, 1.75, and w goes -1, -2.5, -4.25.
#
# Now the run is killed after the second update, and all you've saved is w = -2.5.
#
# **Predict:** where is w after the third update?


# %% tags=["prediction"]
def momentum_update(w, velocity):
    velocity = 0.5 * velocity + 1
    return w - velocity, velocity


w, velocity = momentum_update(0.0, 0.0)
w, velocity = momentum_update(w, velocity)
print("never killed:", momentum_update(w, velocity)[0])
print("resumed without the velocity:", momentum_update(w, 0.0)[0])

# %% [markdown]
# <details><summary>Answer</summary>
#
# At -3.5 instead of -4.25. The velocity had to start again from 0, so in the third update it's 1, not 1.75.
#
# </details>
#
# A checkpoint has to hold everything that training changes:
#
# - the parameters, and the running statistics of batch norm if there are any,
# - the optimizer's state, which for Adam is twice as large as the parameters, and also counts the updates: Adam needs
#   the count to correct its moments, and so does a learning rate schedule,
# - how far you've got: here the number of the epoch.
#
# You don't have to save the order of the examples, because you can compute it again: our `batches` shuffles with
# `default_rng(seed)`, and the seed is the number of the epoch. In PyTorch, you'd call `sampler.set_epoch(epoch)`.
# Lesson 08 made its random keys in the same way, from the seed and the number of the update. But if your loader keeps
# one random generator for the whole run, as PyTorch's does, you have to save that, too.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py) again, because micro-batches would only distract you. Lesson 19
# adds them back. Here's everything that changes:
#
# include the difference of 09_jit.py and 14_resume.py
#
# [Orbax](https://orbax.readthedocs.io/en/latest/) writes JAX arrays to a folder. You have it already, because Flax
# needs it. `restore` has to know shapes, dtypes and shardings, so you give it the state that you've just made. `save`
# only copies the state to the host before it returns, so the devices can keep training while a thread writes the copy.
# What if a kill comes while the thread is writing? No harm done, because the folder has a temporary name until
# everything is in it, so nobody takes it for a checkpoint.

# %%
lesson_14.timeline()

# %% [markdown]
# So a killed program leaves you the previous checkpoint, or none if this was the first one. `max_to_keep=2` keeps the
# newest two and deletes the others.
#
# The program wants a folder on its command line. In a notebook, you set `sys.argv` instead. First run the program to the
# end, without a kill.

# %%
import sys

sys.argv = ["14_resume.py", str(folder / "never_killed")]

# %% tags=["take-home"]
# include program/14_resume.py

# %% [markdown]
# ## Kill it
#
# Now start the same program in a separate process, with a different folder, and as soon as checkpoint 1 is complete,
# send it SIGKILL, a signal that no program can catch. The process may have trained epoch 2 by then, but checkpoint 2 is
# almost never complete, because Orbax writes one checkpoint after another.

# %%
import time

command = ["-c", launch.take_home(), str(folder / "killed")]
(process,) = launch.start(1, *command)
while not (folder / "killed" / "1").exists() and process.poll() is None:
    time.sleep(0.001)
process.kill()
print(process.stdout.read())
print("exit status", process.wait())

# %% [markdown]
# Exit status -9 means killed by signal 9. Now start the same command again.
#
# **Predict:** which epoch does it train first?

# %% tags=["prediction"]
(lines,) = launch.outputs(launch.start(1, *command))
print(*lines, sep="\n")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Epoch 2, because checkpoint 1 is the newest complete one. Whatever the killed process did after that checkpoint is
# lost, so the second process does it again. From there on it prints the same lines as the run without a kill, and its
# final state has the same bits: a folded cell further down compares them.
#
# </details>
#
# Try it once in a terminal, too, with the take-home program. The `9` is SIGKILL, and `$!` is the process you've just
# started. It's killed as soon as checkpoint 1 is complete.
#
# ```
# python 14_resume.py mine & until [ -d mine/1 ]; do sleep 0.1; done; kill -9 $!
# python 14_resume.py mine
# ```
#
# Test each of your own programs like this, once: kill it, resume it, compare the bits. On GPUs, run that test with
# `XLA_FLAGS=--xla_gpu_deterministic_ops=true`, because otherwise XLA may choose different kernels at the second start,
# and the last bits differ although nothing is missing.
#
# ## The mistake: half a checkpoint
#
# Many programs save the parameters and the epoch, and forget the optimizer's state. Call a run that's resumed from such
# a checkpoint *forgetful*. You've seen one lose its velocity. With a learning rate schedule, it loses something worse.
# Our schedule rises for 20 updates, and then falls along a cosine, to 0 after the last update, number 200. It peaks at
# 0.03, ten times your program's rate.
#
# `train_step` would still use the old optimizer, because `jit` saw that one when it traced, which was trap 2 in lesson
# 02. So let `jit` trace again.


# %%
schedule = optax.warmup_cosine_decay_schedule(0, 0.03, warmup_steps=20, decay_steps=200)
optimizer = optax.adam(schedule)
jax.clear_caches()  # train_step is traced again, with this one


def train(state, start, stop=EPOCHS):
    """The state after the epochs start to stop - 1, and the loss of each update."""
    losses = []
    for epoch in range(start, stop):
        for batch in batches(*train_data, seed=epoch):
            state, sums = train_step(state, place_batch(batch))
            losses.append(float(sums["loss"] / sums["count"]))
    return jax.device_get(state), losses


def test_sums(state):
    sums = [eval_step(state, place_batch(batch)) for batch in batches(*test_data, seed=0)]
    return jax.tree.map(lambda *values: float(sum(values)), *sums)


# %% [markdown]
# You don't have to kill anything this time, because `train` trains some epochs from any state you give it. Say the run
# is killed in the middle of epoch 2, and its checkpoint is from the end of epoch 1, after update 80.
#
# **Predict:** is the learning rate 0 at the end of the forgetful run?

# %% tags=["prediction"]
never_killed, losses = train(place_state(init_state()), 0)
checkpoint, _ = train(place_state(init_state()), 0, 2)
resumed, resumed_losses = train(place_state(checkpoint), 2)
new_optimizer_state = optimizer.init(checkpoint[0])
forgetful, forgetful_losses = train(place_state((checkpoint[0], new_optimizer_state)), 2)
lesson_14.learning_rates_and_losses(
    schedule, losses, resumed_losses, forgetful_losses, killed_at=104
)
test_losses = {}
for name, run in {"never killed": never_killed, "resumed": resumed, "forgetful": forgetful}.items():
    sums = test_sums(run)
    test_losses[name] = sums["loss"] / sums["count"]
    print(f"{name:12s} test loss {test_losses[name]:.4f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# No, it's 0.0127, two fifths of the highest rate. The count of updates is part of the optimizer's state, so the
# schedule starts over at update 0, warms up a second time, and has only reached update 120 when the run ends. The rate
# never gets small, and the test loss ends almost a quarter higher.
#
# You can't see it in the loss. You'd only have the old losses up to the kill, the grey part, and there the two runs look
# alike. But the learning rate shows it, because it jumps from 0.0225 to 0 at update 80. So **log the learning rate**.
#
# </details>
#
# With a peak of 0.003 it's the other way round: 200 updates are too few, so the forgetful run's higher rate helps, and it
# ends a quarter *lower*. Either way it's a different run, and nobody who trains without a break can repeat your result.
#
# ## How often to save
#
# Saving costs time, and a kill costs you everything since the last save. **Young's rule**
# ([1974](https://doi.org/10.1145/361147.361115)) balances the two: if a save stops the devices for s seconds, and
# something breaks every M seconds, save every √(2 s M) seconds. With 10 s per save and one failure a day, that's every
# 22 minutes.
#
# Slurm at your time limit, and Kubernetes when it moves your pod, send SIGTERM first. By default you then have 30
# seconds. So let a handler note the signal, and save and stop after the current update:
#
# ```python
# import signal
#
# stop_requested = False
#
# def request_stop(signum, frame):
#     global stop_requested
#     stop_requested = True
#
# signal.signal(signal.SIGTERM, request_stop)
# ```
#
# After each update, look at `stop_requested`. To resume in the middle of an epoch, you need batches that can start
# there, and you'll write them in exercise 1.
#
# Keep the best checkpoint as well as the newest, because if the loss becomes NaN, the newest ones hold NaN, too. And if
# you change the learning rate or the batch size in the middle of a run, write it down with the number of the update.
#
# A checkpoint holds only numbers, and nobody can use them without your code. To give your model away, turn the jitted
# function into bytes with [jax.export](https://docs.jax.dev/en/latest/501/export.html). For a run of pmapdp,
# `python -m pmapdp.export` [does that](../docs/export.md).

# %% tags=["proof"]
# The asserts behind the answers.
assert momentum_update(w, velocity)[0] == -4.25
assert momentum_update(w, 0.0)[0] == -3.5
assert process.returncode == -9
assert lines[0] == "resumes after epoch 1"


def newest_state(name):
    with ocp.CheckpointManager(folder / name) as checkpoints:
        return checkpoints.restore(checkpoints.latest_step(), args=ocp.args.StandardRestore(state))


expected, found = (jax.tree.leaves(newest_state(name)) for name in ("never_killed", "killed"))
for a, b in zip(expected, found, strict=True):
    np.testing.assert_array_equal(a, b)
assert resumed_losses == losses[80:]
for a, b in zip(jax.tree.leaves(never_killed), jax.tree.leaves(resumed), strict=True):
    np.testing.assert_array_equal(a, b)
assert 0.35 < schedule(119) / 0.03 < 0.45
assert schedule(199) < 1e-5
assert schedule(0) == 0
assert abs(schedule(80) - 0.0225) < 1e-5
assert abs(np.mean(forgetful_losses[:20]) / np.mean(losses[80:100]) - 1) < 0.1
assert np.mean(forgetful_losses[-40:]) > 1.5 * np.mean(losses[-40:])
assert test_losses["resumed"] == test_losses["never killed"]
assert 1.15 < test_losses["forgetful"] / test_losses["never killed"] < 1.35

schedule = optax.warmup_cosine_decay_schedule(0, 0.003, warmup_steps=20, decay_steps=200)
optimizer = optax.adam(schedule)
jax.clear_caches()
slow_checkpoint, _ = train(place_state(init_state()), 0, 2)
slow_losses = []
for optimizer_state in (slow_checkpoint[1], optimizer.init(slow_checkpoint[0])):
    slow_run, _ = train(place_state((slow_checkpoint[0], optimizer_state)), 2)
    sums = test_sums(slow_run)
    slow_losses.append(sums["loss"] / sums["count"])
assert 0.7 < slow_losses[1] / slow_losses[0] < 0.8

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/14_survive_a_kill.py](solutions/14_survive_a_kill.py).
#
# 1. `fixed_batches` (5 minutes, find the mistake): `broken_batches` yields the rows of the batches of updates `first`,
#    `first + 1` and so on. From update 0 on the batches are correct, but a resumed run gets other batches than a run
#    that wasn't killed. Each epoch has its own order, and its last batch may be shorter. Two runs with different seeds
#    must never share an order, as they would with `seed + epoch`. <details><summary>Hint</summary>The order may only
#    depend on the seed and the epoch. An epoch has <code>-(-examples // batch_size)</code> updates, which is rounded up.
#    <code>divmod</code> gives you the epoch and the place in it.</details>
# 2. `train_or_resume` (10 minutes): the whole lesson, with a save after every update. Start from the newest checkpoint
#    in `folder`, if there is one, and return the state after `count` updates in all, numbered 0 to `count - 1`. The
#    state is a dictionary, and its entry `"updates"` says how many there have been. `create()` makes the first state,
#    and `step(state, number)` returns the next one. The check kills your function in the middle of an update.
#    <details><summary>Hint</summary>As in your program: <code>latest_step</code>, <code>restore</code>,
#    <code>save</code>, and <code>close</code>.</details>


# %%
from pmapdp.lessons.checks import check


def broken_batches(seed, first, batch_size, examples):
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(examples)  # of one epoch
        for start in range(0, examples, batch_size):
            yield order[start : start + batch_size]


def fixed_batches(seed, first, batch_size, examples):
    """Yield the rows of the batches of updates first, first + 1, ..."""
    ...  # your code: 4 to 6 lines


def train_or_resume(folder, count, create, step):
    """The state after `count` updates."""
    ...  # your code: 8 to 10 lines


for exercise in (fixed_batches, train_or_resume):
    check("14_survive_a_kill", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - A checkpoint holds everything that training changes: parameters, optimizer state, running statistics, and how far
#   you've got.
# - Make the order and the random keys functions of the seed and the update. Then you don't have to save them, and a run
#   that was killed and resumed ends with the same bits.
# - Test it: kill, resume, compare bits. Half a checkpoint raises no error.
#
# You'll find your program's lines again in pmapdp's trainer:
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | the loop | `train_epoch` | [train.py](../pmapdp/train.py) |
# | `checkpoints.latest_step`, `restore` | `restore_or_init` | [train.py](../pmapdp/train.py), [run/checkpoints.py](../pmapdp/run/checkpoints.py) |
# | `checkpoints.save` | `save`, in the loop of `train_epoch` | [train.py](../pmapdp/train.py), [run/checkpoints.py](../pmapdp/run/checkpoints.py) |
# | SIGTERM | `StopRequest` | [signals.py](../pmapdp/signals.py) |
#
# **With pmap** save one copy of the state: with `out_axes=None`, as in lesson 05, the state has no device axis and is
# saved as it is here. With an old program's device axis, save `jax_utils.unreplicate(state)`, and replicate after
# restoring.
#
# `python -m pmapdp.train --workdir runs/first` does all of this as a command, and [docs/custom.md](../docs/custom.md)
# says how to give it your model and your data. Next: [15 Split the model](15_split_the_model.ipynb).

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
# # 19. Train a small GPT
#
# One of your programs accumulates, one resumes, one splits its state, and one runs in many processes. But parts that work
# alone may not work together. So this lesson joins them in one file, a small language model that learns from Python's own
# library. You'll train it on eight devices, and again in two processes that
# you kill, so that a single device must go on. How near do the losses of the two runs come?
#
# **You will** read a whole trainer, say where its parts meet, break one of these places, and guard a run against changed
# settings. 18 minutes, 43 with exercises, and another 17 to read the program. You need lessons
# [08](08_keep_dropout_and_metrics_exact.ipynb), [13](13_more_batch_than_memory.ipynb), [14](14_survive_a_kill.ipynb),
# [16](16_born_sharded.ipynb) and [17](17_many_processes.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import sys
import tempfile
from pathlib import Path

import jax

from pmapdp.lessons.pictures import lesson_19
from pmapdp.lessons.programs import launch

jax.config.update("jax_platforms", "cpu")
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The program, in the order of the course
#
# A GPT reads 64 bytes of text, and guesses after each of them which byte comes next. This one has a single layer and
# 167,584 parameters, so it's quick. Only the network is new. It takes b examples through these shapes:
#
# | in the program | what happens | shape |
# | --- | --- | --- |
# | `tokens`, `positions` | each token and each position has 96 learned numbers, and the two are added | `[b, 64, 96]` |
# | `qkv` | each position makes a query, a key and a value for each of 4 heads | 3 x `[b, 64, 4, 24]` |
# | `attention` | a position compares its query with the keys, and averages the values of those that match | `[b, 64, 96]` |
# | `mlp_hidden`, `mlp_output` | two layers, for each position alone | `[b, 64, 384]`, `[b, 64, 96]` |
# | `logits` | a score for each byte that may follow | `[b, 64, 256]` |
#
# Only attention lets positions see each other. `is_causal=True` hides the later ones, because they hold the answers.
# Attention and the two layers each *add* to what they get, and read it through a layer norm, which keeps its size the same.
#
# You know every other part. What's new is how they depend on each other:
#
# - **03**, 18 lines: `read_examples`, `batches` and `report`. A tenth of the examples is the test data. They're shuffled
#   first, or the test would be on the first few files, which differ from the rest.
# - **08**, 11 lines: `example_keys` and `dropout`. A mask depends on the example and on the update's number. The number
#   must survive a kill, so it's part of the state.
# - **09**, 11 lines: `train_step`. It makes the keys before `accumulate` cuts the batch.
# - **13**, 13 lines: `accumulate`. It adds up two micro-batches, and then all-reduces once. Its `lax.psum` and the
#   division in `train_step` are what `lax.pmean` was in lesson 05.
# - **14**, 11 lines: those below "Resume" that save and restore. All processes run them, because each has its own shards.
# - **16**, 6 lines: `init_state` and `shard`. Each device stores an eighth of the parameters and of Adam's moments. But
#   `accumulate` needs all parameters on each device, so they're gathered in every update, and must fit.
# - **17**, 20 lines: those below "Many processes", and `place_batch`. All processes make the same batch, and each
#   places its own devices' rows.
# - **20**, 1 line: `compute_dtype`. On a GPU or TPU the blocks compute in bfloat16, and the logits in float32.
#
# One line in `train_step` is in no lesson. Clipping needs the norm of the whole gradient. Left alone, the compiler keeps
# only its device's shard of each array and asks the others for the rest of the norm: 18 all-reduces instead of one.
# `lax.with_sharding_constraint` forbids this. The price is a whole gradient on each device.
#
# One update of 16 examples on eight devices of two processes:

# %%
lesson_19.where_the_arrays_are()

# %% [markdown]
# The next cell stands for `python 19_gpt.py never_killed`, and keeps what that prints. Then read the program.

# %%
sys.argv = ["19_gpt.py", str(folder / "never_killed")]
printed = launch.record_output()

# %% tags=["take-home"]
# include program/19_gpt.py

# %% [markdown]
# The text at the end has 64 bytes of the test data, and 200 that the network added. Is its loss good? Compare it with a
# guesser that counts which byte follows which in the training text:

# %%
pairs = np.full((256, 256), 0.1)  # not 0, because a pair may be new in the test data
np.add.at(pairs, (train_data[:, :-1], train_data[:, 1:]), 1)
log_probabilities = np.log(pairs / pairs.sum(axis=1, keepdims=True))
pair_loss = -log_probabilities[test_data[:, :-1], test_data[:, 1:]].mean()
losses = lesson_19.losses("".join(printed).splitlines())
print(f"test loss of pairs {pair_loss:.2f}, of the network {losses[-1, 1]:.2f}")

# %% [markdown]
# The network beats the pairs, though its text has only pieces of words. Another Python has another library, so your losses
# may differ. Ignore the speeds.
#
# ## Kill it, and go on with one device
#
# Would you trust this program for a week? Start it with another folder, as two processes of four devices each, and kill
# both when the first checkpoint is complete.

# %%
command = ["-c", launch.take_home(), str(folder / "killed")]
both = launch.start(2, *command)
while not (folder / "killed" / "0").exists() and both[0].poll() is None:
    time.sleep(0.01)
for process in both:
    process.kill()
output, _ = both[0].communicate()
lines = [line for line in output.splitlines() if line.startswith(("process", "epoch"))]
print(lines[0])

# %% [markdown]
# Then go on with one process that has one device, as if only one of the eight had survived.
#
# **Predict:** do the losses of the two runs have the same bits, the same four digits, or only the same tendency?

# %% tags=["prediction"]
(resumed_lines,) = launch.outputs(launch.start(1, *command, DEVICES="1"))
lines += resumed_lines
print(*lines, sep="\n")
interrupted_losses = lesson_19.losses(lines)
print("largest difference:", abs(interrupted_losses - losses).max().round(4))
lesson_19.two_runs(losses, interrupted_losses, pair_loss)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The same four digits, except for the last one now and then. Eight devices sum in another order than one, and float32
# rounds after each addition, so the bits differ. Everything else is the same: the order of the examples, their masks, the
# number of the update. A folded cell below allows a difference of 0.002.
#
# </details>
#
# ## Break it: each device numbers its own rows
#
# What if the masks don't depend on the examples, because each device numbers its rows from 0? Give `train_step` the
# numbers that 8 devices would make, and then the numbers that one would make.
#
# **Predict:** a batch has 16 examples. How many different masks do they get on 8 devices?


# %% tags=["prediction"]
def first_epoch(devices):
    """The loss of each update, if each of `devices` devices numbers its own rows."""
    state = jax.jit(init_state, out_shardings=shardings)()
    numbers = np.arange(B) % (B // devices)
    print(devices, "devices:", numbers)
    means = []
    for examples, weights, _ in batches(train_data, seed=0):
        state, sums = train_step(state, place_batch((examples, weights, numbers)))
        means.append(sums["loss"] / sums["count"])
    return np.array(means)


mask_effect = abs(first_epoch(8) - first_epoch(1)).max()
print("largest difference in a loss:", mask_effect.round(3))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two, because each device has a row 0 and a row 1. So the run now depends on the number of devices.
#
# </details>
#
# Both runs learn, without an error. You'd take the difference for noise, but rounding makes far less. So compare digits,
# after every change.
#
# ## The mistake: the old folder, new settings
#
# You change a number at the top of the file, and forget that the folder has a checkpoint. `try_to_resume` restores as the
# program does. Call it with two layers instead of one, and then with more dropout.
#
# **Predict:** which of the two changes does it refuse?


# %% tags=["prediction"]
def try_to_resume():
    shapes = jax.tree.leaves(jax.eval_shape(lambda: init_state()))  # traced anew
    leaves = [np.zeros(x.shape, x.dtype) for x in shapes]
    with ocp.CheckpointManager(directory) as checkpoints:
        checkpoints.restore(EPOCHS - 1, args=ocp.args.StandardRestore(leaves))
    return "resumes without a word"


LAYERS = 2
try:
    two_layers = try_to_resume()
except ValueError as error:
    two_layers = f"ValueError: {error}"
LAYERS = 1
DROPOUT = 0.5
more_dropout = try_to_resume()
print("LAYERS = 2:", two_layers, "", "DROPOUT = 0.5:", more_dropout, sep="\n")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the second layer. Orbax compares the number of arrays and their shapes: 93 are asked for, and 57 are there.
# Changing `DROPOUT`, the learning rate or the text changes no shape, so Orbax can't notice. The program goes on with the
# old parameters and the new setting, and nobody can tell later which one gave the result.
#
# </details>
#
# Exercise 3 prevents this.

# %% tags=["proof"]
# The asserts behind the answers.
assert both[0].returncode == both[0].wait() == -9
assert resumed_lines[:2] == ["process 0 has 1 of 1 devices", "resumes after epoch 0"]
np.testing.assert_allclose(interrupted_losses, losses, atol=2e-3)
assert losses[-1, 1] < pair_loss
assert abs(losses[-1, 1] - losses[-1, 0]) < 0.2  # the data are alike
assert mask_effect > 0.01
assert sum(x.size for x in jax.tree.leaves(state[0])) == 167_584
assert two_layers.startswith("ValueError")
assert more_dropout == "resumes without a word"

# %% [markdown]
# ## Exercises
#
# Copy [19_gpt.py](program/19_gpt.py), and make it yours.
# [Solutions, with reasons](solutions/19_train_a_small_gpt.py).
#
# 1. **Your own text**, with `FILES` and `BYTES`. The program cuts it every 65 tokens, and the first of them is never a
#    target. `cut_examples` (5 minutes) cuts `text`, an array of tokens, into examples `[n, length + 1]` in the order of the
#    text. Each token but the very first is a target once, and only what's too short for another example is left over.
#    <details><summary>Hint</summary>The next example begins with the token that the last one ended with.</details>
# 2. **A larger network.** `bytes_per_device` (10 minutes) returns the bytes of `init_state()` that each of
#    `devices` devices holds, if `shard` splits it. Don't make the state, because it may not fit here.
#    <details><summary>Hint</summary><code>jax.eval_shape</code>, and an array has <code>x.size</code> numbers of
#    <code>x.dtype.itemsize</code> bytes.</details>
# 3. **A second start.** `fixed_check_settings` (10 minutes, find the mistakes) gets the `Path` of a file and a dictionary
#    of settings. The first start writes the file. If a later start has different settings, raise a `ValueError` that names
#    exactly those that differ. A setting that only one of the two has counts as different. Otherwise return the settings.
#    A setting may be `None`, or a tuple, of which JSON makes a list. <details><summary>Hint</summary>What's in the file
#    when it's compared?</details>
#
# *All* processes call it, with `Path(directory + ".json")`, so that all stop. The solution's file appears whole, because
# another process may read it at once.

# %%
import json

from pmapdp.lessons.checks import check


def cut_examples(text, length):
    """Examples `[n, length + 1]` in which each token but the first is a target once."""
    ...  # your code: 2 lines


def bytes_per_device(init_state, devices):
    """The bytes of the state that a device holds."""
    ...  # your code: 5 lines


def broken_check_settings(file, settings):
    file.write_text(json.dumps(settings))
    saved = json.loads(file.read_text())
    for name in settings:
        if saved[name] != settings[name]:
            raise ValueError(f"{name} has changed")
    return settings


def fixed_check_settings(file, settings):
    """The settings, if they equal the first start's."""
    ...  # your code: 8 or 9 lines


for exercise in (cut_examples, bytes_per_device, fixed_check_settings):
    check("19_train_a_small_gpt", exercise.__name__, exercise)

# %% [markdown]
# Words take a larger run:
#
# ```python
# BYTES = 1_000_000
# WIDTH = 128
# LAYERS = 4
# EPOCHS = 4
# PEAK_RATE = 2e-3
# TEMPERATURE = 0.5
# ```
#
# `DEVICES=1 python 19_gpt.py longer` then took 16 minutes on two busy cores. [A test](../tests/lessons/test_gpt.py) wants
# over 80 % of its words to be the library's.
#
# On a second machine, start the command of the program's docstring with the first one's address as `COORDINATOR`, and a
# folder that both can reach. 16 devices need `B = 32`. To compare with one machine, set it there, too.
#
# ## Take away
#
# - Check where parts meet: what the random keys depend on, what the checkpoint holds, which arrays are split.
# - Before you trust a program, kill it and go on with fewer devices. The losses must agree up to rounding.
# - A checkpoint knows shapes, and no settings. Write the settings down, and compare them.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `accumulate` | `accumulated_sums` | [steps/jit.py](../pmapdp/steps/jit.py) |
# | `train_step`, jitted | `make_split_strategy` | [sharding/split_step.py](../pmapdp/sharding/split_step.py) |
# | `fixed_check_settings` | `require_same_run` | [run/same_run.py](../pmapdp/run/same_run.py) |
#
# Each works in another way than yours. `accumulated_sums` adds the devices' sums outside `shard_map`, so it needs no `psum`.
# `make_split_strategy` constrains the gradients to *shards*, so that no device must keep them whole. On a CPU, that
# would take the 18 all-reduces. `require_same_run` finds the settings in the checkpoint, and skips those that it lacks.
#
# **This is the end of the course.** Two branches are left, [20](20_fit_a_larger_network.ipynb) and
# [21](21_choose_a_batch_size.ipynb). To read on: [nanodo](https://github.com/google-deepmind/nanodo), a larger program of
# this kind, and the [scaling book](https://jax-ml.github.io/scaling-book/).

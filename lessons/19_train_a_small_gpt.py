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
# You have a program that accumulates, one that resumes, one that splits its state, and one that runs in many processes.
# Now you want them all in one program, but parts that work alone can break each other without an error. So here you join
# them in a small language model that learns from Python's own library. You'll train it on eight devices. Then you'll start
# it again in two processes, kill both, and let a single device continue. How close are the two runs' losses?
#
# **You will** write three places where the parts meet, read the trainer around them, break one of them, and guard a run
# against changed settings. 24 minutes, 54 with exercises. It takes another 17 to read the program, and its runs take
# two to five minutes on two cores. You need lessons [08](08_keep_dropout_and_metrics_exact.ipynb),
# [13](13_more_batch_than_memory.ipynb), [14](14_survive_a_kill.ipynb), [16](16_born_sharded.ipynb) and
# [17](17_many_processes.ipynb). bfloat16 is a 16-bit float that [20](20_fit_a_larger_network.ipynb)
# explains.

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import tempfile
from pathlib import Path

import jax

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_19
from pmapdp.lessons.programs import launch

jax.config.update("jax_platforms", "cpu")
devices.simulate(8)  # before any other use of JAX
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## From the text to the checkpoint
#
# The network reads 64 bytes, and guesses after each of them which byte comes next. So an example has 65 bytes, because the
# last byte is needed as an answer. Follow one update of 16 examples, on eight devices of two processes:

# %%
lesson_19.one_update()

# %% [markdown]
# You've written every row of this picture before. But each step must accept exactly what the one before it produces.
#
# ## Write three of the joints
#
# You know all the parts, so join them yourself before you see how the program does it. Begin in the middle of the
# picture, with the update.
#
# 1. `update_once` (10 minutes) joins lessons 08, 09 and 13. Update the state `(model, optimizer_state, step)` with the
#    batch `(examples, weights, indices)`, and return the new state and the sums. You get three functions, besides the
#    optimizer:
#    - `example_keys(step, indices)` makes a random key for each row.
#    - `loss_sums(model, (examples, weights, keys))` returns the summed loss, and a dictionary of sums with a `"count"`.
#    - `accumulate(f, model, batch)` calls `f(model, micro_batch)` for each micro-batch on each device, and returns the
#      sum of all results, after one all-reduce.
#
#    <details><summary>Hint</summary>f can be <code>jax.grad(loss_sums, has_aux=True)</code>. What do you divide by, and
#    when?</details>

# %%
import numpy as np
import optax
import orbax.checkpoint as ocp

from pmapdp.lessons.checks import check


def update_once(
    loss_sums, optimizer: optax.GradientTransformation, accumulate, example_keys, state, batch
):
    """The new state, and the sums of this batch."""
    ...  # your code: 7 lines


update_verdict = check("19_train_a_small_gpt", "update_once", update_once)

# %% [markdown]
# Above the update, each device gets its rows of the batch.
#
# 2. `place_rows` (5 minutes) joins lessons 03 and 17. After shuffling, row i of the batch is example `rows[i]`. Return
#    the batch as a global array with this shape and sharding. `read(numbers)` reads examples from the disk. Call it for
#    each device of this process, and only with the numbers of that device's rows, because other processes read the
#    rest. <details><summary>Hint</summary><code>jax.make_array_from_callback(shape, sharding, f)</code> calls f for
#    each device, with a tuple of slices, one for each axis.</details>


# %%
def place_rows(read, rows, shape, sharding):
    """The global array of examples, from the rows of this process's devices."""
    ...  # your code: 1 line


rows_verdict = check("19_train_a_small_gpt", "place_rows", place_rows)

# %% [markdown]
# Below the update, the state goes into a checkpoint. Can you get it back?
#
# 3. `resume` (5 minutes) joins lessons 14 and 16. `checkpoints` is an Orbax manager. After epochs 0, 1 and so on, an
#    earlier run saved the leaves of its state in it, as a list, and perhaps from other devices. `state` is a new state
#    on your devices. Return the newest saved state, placed like `state`, and the number of the next epoch. If nothing
#    was saved, return `state` and 0. <details><summary>Hint</summary><code>jax.tree.flatten</code>, and
#    <code>ocp.args.StandardRestore(leaves)</code>.</details>


# %%
def resume(checkpoints, state):
    """The state to continue from, and the number of the next epoch."""
    ...  # your code: 6 lines


resume_verdict = check("19_train_a_small_gpt", "resume", resume)

# %% [markdown]
# ## Read the program
#
# Without blank lines the program has 213 lines, and only the network is new. Open [19_gpt.py](program/19_gpt.py) beside
# this page, and read it in the order of your three functions: first the update, then its rows, then the state.
#
# ### The update
#
# `train_step` is your `update_once` with one extra line. `example_keys` and `dropout` are from lesson 08. A mask
# depends on the example and on the number of the update. This number must survive a kill, so it's part of the state.
#
# `accumulate` is from lesson 13. It adds up with `lax.psum`, and `train_step` divides by the count. Together they do
# what `lax.pmean` did in lesson 05. The line with `lax.pcast` is from lesson 10: without it JAX already sums each
# gradient over the devices, and our `lax.psum` would sum it again.
#
# The extra line is `lax.with_sharding_constraint`, from lesson 09. Clipping needs the norm of the whole gradient,
# which is 18 arrays. Without the line, each device keeps only shards of them, so each array's norm needs its own
# all-reduce. With the line, the gradients stay whole after the first all-reduce, and it's the only one.
#
# ### The rows
#
# `read_examples` and `batches` are from lesson 03. The examples are shuffled before a tenth of them becomes the test
# data, because the first few files differ from the rest. So most test examples lie between training examples of the
# same file, and the test loss says little about new files. For a real model, keep whole files for the test.
#
# The part below "Many processes" is from lesson 17, and so is `place_batch`. The text is short, so all processes make
# the whole batch, and each places its own devices' rows. For a long text, use your `place_rows`. If `PROCESSES` isn't
# set, the program stops. Otherwise two processes that failed to connect would each train alone, and write into the same
# folder.
#
# ### The state
#
# `init_state` and `shard` are from lesson 16. Each device stores an eighth of the parameters and of Adam's moments. But
# `accumulate` needs all parameters on each device, so they're gathered in every update and must fit.
#
# The part below "Resume" is from lesson 14, with the loop over the epochs. All processes run it, because each has its
# own shards.
#
# ## The network
#
# Now for the new part. It takes b examples through these shapes:
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
# Attention and the two layers work alike: they normalize what they get, compute something from it, and *add* the
# result. Normalizing keeps every layer's input on the same scale. This network has only one attention and one pair of
# layers, and 167,584 parameters, so the program is quick. On a GPU or TPU the blocks compute in bfloat16, by
# `compute_dtype` from lesson 20, and the logits in float32.
#
# The next cell sets the command line, as if you had typed `PROCESSES=1 python 19_gpt.py never_killed`. The cell below it is
# the program, folded, because it holds the solutions.

# %%
import os
import sys

os.environ["PROCESSES"] = "1"
sys.argv = ["19_gpt.py", str(folder / "never_killed")]
printed = launch.record_output()

# %% jupyter={"source_hidden": true} tags=["take-home"]
# include program/19_gpt.py

# %% [markdown]
# If all three checks have accepted your functions, the next cell trains epoch 0 again with your `update_once` and
# `place_rows`, and restores with your `resume`. You should see the first and the last epoch's test losses again.

# %%
if update_verdict.solved and rows_verdict.solved and resume_verdict.solved:

    def your_step(state, batch):
        return update_once(loss_sums, optimizer, accumulate, example_keys, state, batch)

    def test_report(state):
        return report([eval_step(state, place_batch(rows)) for rows in batches(test_data, seed=0)])

    your_step = jax.jit(your_step, **options, out_shardings=(shardings, replicated))
    your_state = jax.jit(init_state, out_shardings=shardings)()
    for examples, weights, rows in batches(train_data, seed=0):
        placed = place_rows(lambda numbers: train_data[numbers], rows, examples.shape, split)
        your_state, _ = your_step(your_state, (placed, *place_batch((weights, rows))))
    print("test, with your functions:", test_report(your_state))
    with ocp.CheckpointManager(directory) as checkpoints:
        restored, next_epoch = resume(checkpoints, your_state)
    print(f"test, before epoch {next_epoch}: {test_report(restored)}")
else:
    print("Solve exercises 1 to 3, then run this cell again.")

# %% [markdown]
# The text at the end of the program's output has 64 bytes of the test data, and 200 that the network added. From a
# distance it looks like Python, because lines are indented, but most of its words are only pieces of words. Is its loss
# good? Compare it with a guesser that counts which byte follows which in the training text.

# %%
pairs = np.full((256, 256), 0.1)  # not 0, because a pair may be new in the test data
np.add.at(pairs, (train_data[:, :-1], train_data[:, 1:]), 1)
log_probabilities = np.log(pairs / pairs.sum(axis=1, keepdims=True))
pair_loss = -log_probabilities[test_data[:, :-1], test_data[:, 1:]].mean()
losses = lesson_19.losses("".join(printed).splitlines())
print(f"test loss of pairs {pair_loss:.2f}, of the network {losses[-1, 1]:.2f}")

# %% [markdown]
# The network beats the pairs, but not by much, because it has trained for only three short epochs. This run shows you
# that the parts fit, and no more.
#
# Your losses may differ, because each version of Python has its own library. Ignore the speeds, because two cores stand in
# for eight devices. On real ones, read the last epoch's: the time of epoch 0 includes compiling.
#
# ## Kill it, and continue on one device
#
# Would you leave this program alone for a week? Start it with another folder, as two processes with four devices each, and
# kill both as soon as the first checkpoint is complete.

# %%
command = ["-c", launch.take_home(), str(folder / "killed")]
both = launch.start(2, *command)
launch.wait_for(folder / "killed" / "0", both[0])
for process in both:
    process.kill()
output, _ = both[0].communicate()
lines = lesson_19.status_lines(output.splitlines())
print(lines[0])

# %% [markdown]
# Suppose that only one of the eight devices has survived. Continue with one process that has one device.
#
# **Predict:** how far apart are the two runs' losses at most: not at all, by less than a millionth, or by a hundredth?

# %% tags=["prediction"]
(resumed_lines,) = launch.outputs(launch.start(1, *command, DEVICES="1"))
lines += lesson_19.status_lines(resumed_lines)
print(*lines, sep="\n")
interrupted_losses = lesson_19.losses(lines)
print(f"largest difference: {abs(interrupted_losses - losses).max():.1e}")
lesson_19.two_runs(losses, interrupted_losses, pair_loss)

# %% [markdown]
# <details><summary>Answer</summary>
#
# By less than a millionth. Two processes, or a single device, add up in another order than eight devices of one process
# do. Float32 rounds after each addition, so the parameters differ in their last bits. Everything else is the same: the
# order of the examples, their masks, and the number of the update. A folded cell below compares the losses and the
# parameters.
#
# </details>
#
# ## Break it: each device numbers its own rows
#
# Here's a mistake that's easy to make. Suppose that each device numbers its own rows from 0, and makes the keys from these
# numbers instead of the examples' indices. The next cell gives `train_step` the numbers that 8 devices would make, and
# then the numbers that a single device would make.
#
# **Predict:** a batch has 16 examples. How many different masks do they get on 8 devices?


# %% tags=["prediction"]
def first_losses(devices):
    """The losses of 20 updates, if each of `devices` devices numbers its own rows."""
    state = jax.jit(init_state, out_shardings=shardings)()
    numbers = np.arange(B) % (B // devices)
    print(f"N = {devices}: {numbers}")
    means = []
    for examples, weights, _ in list(batches(train_data, seed=0))[:20]:
        state, sums = train_step(state, place_batch((examples, weights, numbers)))
        means.append(sums["loss"] / sums["count"])
    return np.array(means)


differences = first_losses(8) - first_losses(1)
print(f"difference of the mean loss: {abs(differences.mean()):.4f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two, because every device has only a row 0 and a row 1. On one device there are 16 masks. So now the run depends on the
# number of devices.
#
# </details>
#
# Both runs learn, and there's no error. You'd probably take the difference for noise. But you've just seen that rounding
# changes a mean loss by less than a millionth, and this is far more. Whenever you've changed something, compare digits.
#
# ## The mistake: the old folder, new settings
#
# You change a number at the top of the file, and forget that the folder still has a checkpoint. `try_to_resume` makes a new
# state and restores into it, like the program. Call it with two layers instead of one, and then with 2 heads instead of 4.
#
# **Predict:** which of the two changes does it refuse?


# %% tags=["prediction"]
def try_to_resume():
    leaves = jax.tree.leaves(jax.jit(lambda: init_state())())  # traced anew
    with ocp.CheckpointManager(directory) as checkpoints:
        checkpoints.restore(EPOCHS - 1, args=ocp.args.StandardRestore(leaves))
    return "resumes without a word"


LAYERS = 2
try:
    two_layers = try_to_resume()
except ValueError as error:
    two_layers = f"ValueError: {error}"
LAYERS = 1
HEADS = 2
two_heads = try_to_resume()
HEADS = 4
print("LAYERS = 2:", two_layers, "", "HEADS = 2:", two_heads, sep="\n")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the second layer. You ask for 93 arrays, and the checkpoint has 57. It would refuse another `WIDTH`, too, because
# Orbax compares the shapes of JAX arrays. But two heads of 48 numbers need the same arrays as four of 24, so Orbax can't
# notice, and the same holds for dropout, the learning rate and the text. The program continues with the old parameters and
# the new setting, and later nobody can tell which of the two settings gave the result.
#
# </details>
#
# Exercise 4 prevents this.

# %% tags=["proof"]
# The asserts behind the answers.
assert both[0].returncode == both[0].wait() == -9
assert resumed_lines[:2] == ["process 0 has 1 of 1 devices", "resumes after epoch 0"]
np.testing.assert_allclose(interrupted_losses, losses, atol=1e-6)
leaves = jax.tree.leaves(state)
with ocp.CheckpointManager(folder / "killed") as checkpoints:
    resumed_leaves = checkpoints.restore(EPOCHS - 1, args=ocp.args.StandardRestore(leaves))
assert any((leaf != resumed).any() for leaf, resumed in zip(leaves, resumed_leaves, strict=True))
assert losses[-1, 1] < pair_loss
assert abs(losses[-1, 1] - losses[-1, 0]) < 0.2  # the data are alike
assert abs(differences).max() > 0.01
assert abs(differences.mean()) > 1e-4
assert sum(x.size for x in jax.tree.leaves(state[0])) == 167_584
assert two_layers.startswith("ValueError")
assert two_heads == "resumes without a word"
# Another WIDTH, in one array: with more, Orbax prints a traceback for each that it still reads
with ocp.CheckpointManager(folder / "one_array") as checkpoints:
    checkpoints.save(0, args=ocp.args.StandardSave([jnp.zeros(96)]))
    checkpoints.wait_until_finished()
    try:
        checkpoints.restore(0, args=ocp.args.StandardRestore([jnp.zeros(128)]))
        wider = "resumes without a word"
    except ValueError as error:
        wider = f"ValueError: {error}"
assert wider.startswith("ValueError")

# %% [markdown]
# ## Exercise
#
# Solutions of exercises 1 to 4, with reasons: [solutions/19_train_a_small_gpt.py](solutions/19_train_a_small_gpt.py).
#
# 4. `fixed_check_settings` (10 minutes, find the mistakes) gets the `Path` of a file and a dictionary of settings. The
#    first start writes the file. If a later start has different settings, raise a `ValueError` that names exactly those
#    that differ. A setting that's missing on one side counts as changed. Otherwise return the settings. A setting may
#    be `None`, or a tuple, of which JSON makes a list. <details><summary>Hint</summary>What's in the file when it's
#    compared?</details>
#
# In your copy of [19_gpt.py](program/19_gpt.py), let *all* processes call it with `Path(directory + ".json")`, so that all
# of them stop. Another process may read the file while it's being written, so the solution makes it appear whole.

# %%
import json


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


verdict = check("19_train_a_small_gpt", "fixed_check_settings", fixed_check_settings)

# %% [markdown]
# ## Your own text
#
# These exercises have no check, because the runs are your own.
#
# 5. **Other text.** `FILES` and `BYTES` choose it. Is the network's loss still below the guesser's?
# 6. **A larger network.** To see whole words, you need these settings:
#
#    ```python
#    BYTES = 1_000_000
#    WIDTH = 128
#    LAYERS = 4
#    EPOCHS = 4
#    PEAK_RATE = 2e-3
#    TEMPERATURE = 0.5
#    ```
#
#    With these, `PROCESSES=1 DEVICES=1 python 19_gpt.py longer` took 16 minutes on two busy cores. [A
#    test](../tests/lessons/test_gpt.py) requires that over 80 % of the words it writes are words of the library.
# 7. **A second machine.** Use the docstring's command for several processes. Give both machines the first one's address as
#    `COORDINATOR` and a folder that both can reach. 16 devices need `B = 32`, so set it on one machine, too, if you compare.
#
# ## Take away
#
# - Look where parts meet: what a random key depends on, which rows a process reads, what the checkpoint holds.
# - Before you trust a program, kill it and continue on fewer devices. The losses must agree up to rounding.
# - A checkpoint knows shapes, but no settings. Write the settings down and compare them.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `accumulate` | `accumulated_sums` | [steps/jit.py](../pmapdp/steps/jit.py) |
# | `train_step`, jitted | `make_split_strategy` | [sharding/split_step.py](../pmapdp/sharding/split_step.py) |
# | `fixed_check_settings` | `require_same_run` | [run/same_run.py](../pmapdp/run/same_run.py) |
#
# `accumulated_sums` adds up the devices' sums outside `shard_map`, so it needs no `psum`. `make_split_strategy`
# constrains the gradients to *shards*, because each device updates only its own.
#
# **This is the end of the course.** Two branches are left, [20](20_fit_a_larger_network.ipynb) and
# [21](21_choose_a_batch_size.ipynb). To read on: [nanodo](https://github.com/google-deepmind/nanodo), a larger program of
# this kind, and the [scaling book](https://jax-ml.github.io/scaling-book/).

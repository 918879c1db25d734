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
# You have one program that accumulates, one that resumes, one that splits its state, and one that runs in many
# processes. Your own work needs all four in one file, and parts that work alone may not work together. This lesson
# joins them in a small language model that reads Python's own library. You'll start it in two processes, kill both, go
# on with a single device, and get the losses of a run that nobody disturbed. You'll also read what the model writes,
# next to the output of two simple baselines. The file is yours to start from.
#
# **You will** read a whole trainer, say where its parts meet, find an all-reduce that only their combination causes,
# and guard a run against changed settings. 25 minutes, 50 with exercises. That doesn't count the program: its 200 lines
# of code take about 17 minutes more. You need [08 Keep dropout and metrics
# exact](08_keep_dropout_and_metrics_exact.ipynb), [13 Train with more batch than
# memory](13_more_batch_than_memory.ipynb), [14 Survive a kill](14_survive_a_kill.ipynb), [16 Born
# sharded](16_born_sharded.ipynb) and [17 Train with many processes](17_many_processes.ipynb). The course ends with this
# lesson: 20 and 21 are branches that left it earlier.

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import sys
import tempfile
from pathlib import Path

import jax

from pmapdp.lessons.pictures import lesson_19
from pmapdp.lessons.programs import launch

folder = Path(tempfile.mkdtemp())
jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))  # compile nothing twice

# %% [markdown]
# ## What you know already
#
# The network is a GPT. It reads 64 bytes of text, and guesses at each of them which byte comes next. With one layer and
# 167,584 parameters it's small, so that this notebook doesn't take long, but nothing in the program depends on that.
#
# You've seen most of the program's lines before. In the order of the course:
#
# | lesson | its lines in the program |
# | --- | --- |
# | 03 | `batches` and `report`: each example once in an epoch, and means over all tokens |
# | 08 | `example_keys` and `dropout`: a mask that belongs to the example, on whatever device it is |
# | 09 | `train_step`: the update, which the compiler splits |
# | 13 | `accumulate`: two micro-batches, and one all-reduce |
# | 14 | everything with `checkpoints`: resume after the last epoch |
# | 16 | `shard` and `shardings`: an eighth of parameters and moments on each device |
# | 17 | `processes`, `place_batch` and `is_first`: all devices of all processes |
# | 20, a branch | `compute_dtype`: products in bfloat16 on GPUs and TPUs, and in float32 on your CPU |
#
# The picture shows one update of 16 examples, numbered in its first row, on eight devices of two processes:

# %%
lesson_19.where_the_arrays_are()

# %% [markdown]
# ## Where two parts meet
#
# You know the parts. The bugs are at the seams.
#
# - **Dropout and micro-batches** (08, 13). Inside `accumulate` a device sees only its own rows. If it numbered them there,
#   the masks would depend on the number of devices. So `train_step` makes the keys first, and they travel with the rows,
#   as a third part of the batch.
# - **Dropout and resume** (08, 14). A mask depends on the number of the update. This number must survive a kill, so it's
#   part of the state, beside the model and the optimizer's state.
# - **Micro-batches and a split state** (13, 16). `accumulate` wants all parameters on every device, and the compiler
#   gathers them once for an update, not once for each micro-batch. You pay with memory: only Adam's moments stay split
#   all the time. And you pay with messages. If the parameters take n bytes, a device sends n to gather them and 2 n to
#   all-reduce the gradients. That's 3 n, as much as stage 3 sends in lesson 16, for about the memory of stage 1. If your
#   parameters don't fit on one device, this program isn't enough, and lesson 16 shows what to change.
# - **Resume and processes** (14, 17). All processes restore, train and save, but only process 0 prints.
# - **Clipping and a split state** (16). There's one line in `train_step` for this, and you'll soon take it out to see what
#   it does.
#
# Now read the program from top to bottom. Its settings come first, and each section names its lesson. `record_output`
# keeps what it prints, for a comparison later.

# %%
sys.argv = ["19_gpt.py", str(folder / "never_killed")]
printed = launch.record_output()

# %% tags=["take-home"]
# include program/19_gpt.py

# %% [markdown]
# Is that a good loss? If you guess all 256 bytes alike, the loss is ln 256, or 5.55. A better guesser counts how often
# each byte occurs in the training text, and a still better one counts which byte follows which. How well do they do on
# the test data, and what do they write? Let them go on from the same beginning as your program, with its temperature.
# Your network joins them twice: as it was before its first update, and as it is now.

# %%
counts = np.ones(256)  # of each token, and 1 more, so that none has the probability 0
np.add.at(counts, train_data, 1)
log_counts = np.log(counts / counts.sum())
pair_counts = np.full((256, 256), 0.1)  # of each token after each other one
np.add.at(pair_counts, (train_data[:, :-1], train_data[:, 1:]), 1)
log_pairs = np.log(pair_counts / pair_counts.sum(1, keepdims=True))
counted_losses = {
    "single bytes, counted": -log_counts[test_data[:, 1:]].mean(),
    "pairs of bytes, counted": -log_pairs[test_data[:, :-1], test_data[:, 1:]].mean(),
}


def write(next_logits):
    """160 tokens that go on from the program's beginning, drawn as in the program."""
    tokens = test_data[-1, :LENGTH].astype(np.int32)
    for seed in range(160):
        logits = next_logits(tokens[-LENGTH:]) / TEMPERATURE
        tokens = np.append(tokens, jax.random.categorical(jax.random.key(seed), logits))
    return bytes(tokens[LENGTH:].tolist())


last_logits = jax.jit(lambda model, tokens: model(tokens[None])[0, -1], out_shardings=replicated)
first_model = jax.jit(init_state, out_shardings=shardings)()[0]
texts = {
    "before the first update": write(lambda tokens: last_logits(first_model, tokens)),
    "single bytes, counted": write(lambda tokens: log_counts),
    "pairs of bytes, counted": write(lambda tokens: log_pairs[tokens[-1]]),
    "your network": write(lambda tokens: last_logits(state[0], tokens)),
}
losses = lesson_19.losses("".join(printed).splitlines())
test_losses = counted_losses | {"your network": losses[-1, 1]}
lesson_19.show_texts(texts, test_losses)

# %% [markdown]
# A dot is a byte that can't be printed. Before its first update, your network picks bytes at random. The first counter
# knows that spaces are common, and the letter e. The second knows which letters follow each other. But after a space
# the likeliest byte is another space, and a guesser that sees a single byte rarely gets out of there. After 210 updates
# your network writes `self.` and double underscores, and indents the line that follows a colon.
#
# Its loss on the test data is higher than on the training data, because these are mostly other files: the first tenth of
# the text, which it doesn't train on. If your Python is of another version, its library is another text, and your losses
# will differ from these. Ignore the speeds, because the devices are simulated.
#
# Real words take more text, a larger network and more updates. Change five settings in your copy of the program:
#
# ```python
# BYTES = 1_000_000
# WIDTH = 128
# LAYERS = 4
# EPOCHS = 4
# PEAK_RATE = 2e-3
# ```
#
# Then `DEVICES=1 python 19_gpt.py longer` took 16 minutes on two cores that were busy with other programs. The test loss
# fell to 1.57, and it printed this text. The words from `the the sign` on are its own:
#
# ```
#  package is especially
# useful for financial applications or for the the sign a sign action.
#         """
#         self._check_nanslate_dict['type']
#         self._chunk_nans()
#
#     def __init__(self, self):
#         """Returns a subtracted for context is the existendi
# ```
#
# Most of its words occur in Python's library, in methods, docstrings and calls of `self`. Only the meaning is missing.
# [A test](../tests/lessons/test_gpt.py) repeats this run.
#
# ## The same run, with accidents
#
# Would you trust this program with a week of computing? Start it once more, in another folder, as two processes of four
# devices each, and kill both as soon as the first checkpoint is complete.

# %%
command = ["-c", launch.take_home(), str(folder / "killed")]
both = launch.start(2, *command)
while not (folder / "killed" / "0").exists() and both[0].poll() is None:
    time.sleep(0.01)
for process in both:
    process.kill()
output, _ = both[0].communicate()
lines = [line for line in output.splitlines() if line.startswith(("process", "epoch"))]
print(*lines, sep="\n")

# %% [markdown]
# Then go on with one process that has one device, as if you had lost the second machine and seven devices.
#
# **Predict:** compare the lines of its epochs with the first run's. In which digit do the losses differ?

# %% tags=["prediction"]
(resumed_lines,) = launch.outputs(launch.start(1, *command, DEVICES="1"))
lines += resumed_lines
print(*resumed_lines, sep="\n")
interrupted_losses = lesson_19.losses(lines)
lesson_19.two_runs(losses, interrupted_losses, counted_losses)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In the last of the printed digits, if at all. Eight devices sum in another order than one, and float32 rounds after
# each addition, so the bits differ. Everything else is the same: the order of the examples, their masks, the number of
# the update, and the examples over which each mean is taken. A folded cell below allows a difference of 0.002.
#
# In the picture each dot lies on its curve. Below the curves you see which devices worked. What the two processes had
# begun of epoch 1 is lost, and the single device does it again. The picture doesn't measure how much that was.
#
# Often even the text at the end is the same. If it isn't, two letters were nearly tied somewhere, and rounding decided
# which one is drawn. After that, the texts diverge.
#
# </details>
#
# No other test of such a program tells you as much, and it takes ten lines. Run it after every change: one device, all
# devices, two processes, and a kill. A forgotten all-reduce, a mean of means, a mask that depends on the device, half
# a checkpoint: none of them raises an error, but each makes the runs differ.
#
# ## A line that changes no loss
#
# There's one kind of fault that no such test finds, because the losses stay the same and only the time changes.
# `optax.clip_by_global_norm` needs the length of the whole gradient, over all 18 arrays. Each device has all of it after
# `accumulate`, so it could compute the length alone. For its update, however, it needs only an eighth of the gradient. The
# compiler may throw the rest away *first*, and then the squares have to be summed over the devices. This line in
# `train_step` forbids that:
#
# ```python
# gradients = lax.with_sharding_constraint(gradients, replicated)
# ```
#
# Compile the step as it is, and once more without this line.
#
# **Predict:** how many all-reduces does each of the two have?

# %% tags=["prediction"]
from unittest import mock

from pmapdp.collectives import collectives


def step_without_the_line(state, batch):
    with mock.patch.object(lax, "with_sharding_constraint", lambda x, sharding: x):
        return train_step.__wrapped__(state, batch)


options["out_shardings"] = shardings, replicated
all_reduces = {}
for step in (train_step, jax.jit(step_without_the_line, **options)):
    compiled_step = step.lower(state, place_batch(batch)).compile()
    by_kind = {message.kind: message for message in collectives(compiled_step.as_text())}
    reduces, gathers = by_kind["all-reduce"], by_kind["all-gather"]
    print(f"all-reduces: {reduces.runs}, of {reduces.bytes:,} bytes; all-gathers: {gathers.runs}")
    all_reduces[step.__name__] = reduces

# %% [markdown]
# <details><summary>Answer</summary>
#
# One, and eighteen. The bytes hardly tell them apart: without the line there are 72 more, which are 18 numbers, each
# the sum of an array's squares. Each of these small sums needs an array that's already all-reduced. That breaks the one
# big all-reduce into a chain of 18, and most of the 18 messages are so small that their time is mostly latency. The 18
# all-gathers, which both steps have, bring the parameters, one array each. XLA for GPUs may combine some of these
# messages, so count again on yours.
#
# Lesson 16's program didn't need the line, because it doesn't clip. Only the compiled step of the joined program shows
# such things, so read it once, before you rent a hundred GPUs.
#
# </details>
#
# ## The mistake: the old folder, new settings
#
# You've trained for a day, and now you want to try something else. You change a number at the top of the file and start
# it again, but you've forgotten that the folder has a checkpoint.
#
# `try_to_resume` does what the program does when it starts. Call it with two layers instead of one, and then
# with a learning rate that is ten times as high.
#
# **Predict:** which of the two changes does it refuse?


# %% tags=["prediction"]
def try_to_resume():
    def abstract_array(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shard(x))

    # A new function, because JAX remembers which shapes the old one has.
    shapes = jax.eval_shape(lambda: init_state())
    leaves = jax.tree.leaves(jax.tree.map(abstract_array, shapes))
    with ocp.CheckpointManager(directory) as checkpoints:
        checkpoints.restore(EPOCHS - 1, args=ocp.args.StandardRestore(leaves))
    return "resumes without a word"


LAYERS = 2
try:
    deep_network = try_to_resume()
except ValueError as error:
    deep_network = f"ValueError: {error}"
LAYERS = 1
schedule = optax.warmup_cosine_decay_schedule(0, 10 * PEAK_RATE, updates // 10, updates)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))
high_rate = try_to_resume()
print("LAYERS = 2:", deep_network, "", "PEAK_RATE = 5e-2:", high_rate, sep="\n")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the second layer. Orbax compares the number of arrays and their shapes: 93 are asked for, and 57 are there. A
# learning rate has no shape, and neither have `DROPOUT`, `B`, `HEADS` and the text itself. With any of these changed, the
# program goes on with the old parameters and the new setting, and nobody can tell later which setting gave the result.
#
# </details>
#
# pmapdp writes its settings beside the checkpoints, and refuses to go on with others. You'll write such a guard in
# exercise 3.

# %% tags=["proof"]
# The asserts behind the answers.
assert both[0].returncode == both[0].wait() == -9
assert resumed_lines[:2] == ["process 0 has 1 of 1 devices", "resumes after epoch 0"]
np.testing.assert_allclose(interrupted_losses, losses, atol=2e-3)  # four digits, and rounding
assert losses[-1, 1] < counted_losses["pairs of bytes, counted"]
assert sum(x.size for x in jax.tree.leaves(state[0])) == 167_584
with_line, without_line = all_reduces["train_step"], all_reduces["step_without_the_line"]
assert (with_line.runs, without_line.runs) == (1, 18)
assert without_line.bytes - with_line.bytes == 18 * 4
n = 4 * 167_584  # the bytes of the parameters
assert gathers.runs == 18
np.testing.assert_allclose((gathers.bytes, with_line.bytes), n, rtol=0.01)
constrain = lax.with_sharding_constraint


def step_with_shards(state, batch):  # the gradients constrained as in pmapdp
    def constrain_to_shards(gradients, sharding):
        return jax.tree.map(lambda g: constrain(g, shard(g)), gradients)

    with mock.patch.object(lax, "with_sharding_constraint", constrain_to_shards):
        return train_step.__wrapped__(state, batch)


compiled_step = jax.jit(step_with_shards, **options).lower(state, place_batch(batch)).compile()
by_kind = {message.kind: message for message in collectives(compiled_step.as_text())}
assert by_kind["all-reduce"].runs == 18
assert deep_network.startswith("ValueError")
assert high_rate == "resumes without a word"

# %% [markdown]
# ## Exercises
#
# Each of them prepares something that you'll want to do with this file. Solutions, with reasons:
# [solutions/19_train_a_small_gpt.py](solutions/19_train_a_small_gpt.py).
#
# 1. `cut_examples` (5 minutes, for a text of your own): the program cuts the text every 65 tokens, so the first
#    token of an example is never a target. That wastes one token in 65. Cut `text`, an array of tokens, into examples
#    `[n, length + 1]`, in the order of the text, so that each token except the very first is a target exactly once. Only
#    what's too short for another example is left over. <details><summary>Hint</summary>The next example begins with
#    the token that the last one ended with.</details>
# 2. `bytes_per_device` (10 minutes, for a larger network): how many bytes of the state that `init_state()` makes does
#    each of `devices` devices hold, if it's split as `shard` says? Don't make the state, because it may be larger than
#    your memory. <details><summary>Hint</summary><code>jax.eval_shape</code>, and an array has
#    <code>x.size</code> numbers of <code>x.dtype.itemsize</code> bytes.</details>
# 3. `fixed_check_settings` (10 minutes, find the mistakes): a program calls it with the `Path` of a file and a dictionary
#    of its settings. The first start writes the file. A later start with other settings should get a `ValueError`
#    whose message has the name of each setting that differs, also if only one of the two has it, and no other setting's
#    name. So don't print the two dictionaries. All other starts get the settings back. A setting may be `None`, or a
#    tuple, of which JSON makes a list. `broken_check_settings` never complains. <details><summary>Hint</summary>What's in the file when it's compared? And which names must you look at?</details>

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
# ## On your own
#
# Copy [program/19_gpt.py](program/19_gpt.py), and change one thing at a time.
#
# - **Your text.** Set `FILES` and `BYTES`. Counting pairs again tells you which loss to beat.
# - **A larger network.** Ask `bytes_per_device` first, and remember that in an update each device holds all parameters
#   and all gradients. On a GPU, `WIDTH = 768`, `LAYERS = 12`, `HEADS = 12` and `LENGTH = 1024` are the shape of GPT-2.
#   Lower the learning rate to about 6e-4.
# - **A second machine.** Start the command of the docstring on both, with the address of the first one as
#   `COORDINATOR`, and with a folder that both can reach. Set `B = 32` if you have 16 devices. Each machine should say how
#   many of all devices it has. Compare the losses with one machine's before you trust anything else.
#
# ## Take away
#
# - Check the places where two parts meet: what the random keys depend on, what the checkpoint holds, and which arrays are
#   split at which moment.
# - One test covers most of it: one device, many devices, two processes, a kill. The losses must agree up to rounding.
# - A checkpoint knows shapes, and no settings. Write the settings down, and compare.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | the loop | `train_epoch` | [train.py](../pmapdp/train.py) |
# | `accumulate` | `add_micro_batches`, `accumulated_sums` | [steps/shared.py](../pmapdp/steps/shared.py), [steps/jit.py](../pmapdp/steps/jit.py) |
# | `train_step` with its shardings | `make_split_strategy` | [sharding/split_step.py](../pmapdp/sharding/split_step.py) |
# | `Block`, `Network` | `Block`, `Transformer` | [models/transformer.py](../pmapdp/models/transformer.py) |
# | `fixed_check_settings` | `require_same_run` | [run/same_run.py](../pmapdp/run/same_run.py) |
#
# One line of `make_split_strategy` differs from yours: it constrains the gradients to the shards that each device
# updates, and not to `replicated`. XLA for GPUs and TPUs may then send a reduce-scatter, which is half of an all-reduce.
# XLA for CPUs sends all-reduces, as in lesson 16. With that line in your program there would be 18 again.
#
# **This is the end of the course.** Two branches are left, if you haven't taken them:
#
# - [20 Fit a larger network](20_fit_a_larger_network.ipynb), 23 minutes, if your activations don't fit or your GPU should
#   compute in bfloat16. It needs lesson 13.
# - [21 Choose a batch size](21_choose_a_batch_size.ipynb), 21 minutes, before you buy or rent more devices. It needs
#   lesson 10.
#
# Where to read on: [nanodo](https://github.com/google-deepmind/nanodo) and
# [nanoGPT](https://github.com/karpathy/nanoGPT) are two larger programs of this kind, and [the scaling
# book](https://jax-ml.github.io/scaling-book/) explains what to do when the model no longer fits.

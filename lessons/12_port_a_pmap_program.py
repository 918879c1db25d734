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
# # 12. Port a pmap program
#
# You rewrite a training program, and it prints the losses it printed before. Is it still the same program? Here the
# losses will agree to four digits while the gradients are eight times too large, and you'll learn how to notice. If you
# have no pmap program to port, you can also go straight on to [lesson 13](13_more_batch_than_memory.ipynb), because no
# later lesson needs this one.
#
# The program is from 2022. It stops right away, because it calls a JAX function that's gone, and it uses `pmap`, where
# JAX's developers now [recommend shard_map](https://docs.jax.dev/en/latest/migrate_pmap.html). Four repairs show you
# what it used to print. Then sixteen new lines take it to `shard_map`. And when you compare its updates with one
# device's, you'll find a flaw that the old program always had.
#
# **You will** port a whole program to `shard_map`, go on to `jit`, and verify both against the old program and against
# one device. 26 minutes, 46 with exercises. You need [05 Average gradients](05_average_gradients.ipynb), [10 Three ways
# side by side](10_three_ways_side_by_side.ipynb), and what [07](07_synchronize_batch_norm.ipynb) and
# [08](08_keep_dropout_and_metrics_exact.ipynb) say about the variance of a batch and about dropout keys.

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import textwrap

import jax
import numpy as np

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_12

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## A program from 2022
#
# It trains on the clouds you know, the way people wrote such programs back then:
#
# - The network is a module of Linen, Flax's API before NNX. A `TrainState` holds its parameters, its batch statistics
#   and the optimizer's state.
# - `device_put_replicated` makes N copies of the state, so every array in it is `[N, ...]`. `shard` reshapes a batch to
#   `[N, b, ...]`.
# - Each device folds its number into the dropout key, so that no two devices draw the same mask. Each device also has
#   its own batch statistics, which the program averages once an epoch.
# - Batches that aren't full are dropped, even in the evaluation, which only sees 896 of the 1,000 examples.
#
# The cell saves the program to a file. Unfold it if you've never seen such a program. Only the two lines that simulate
# eight devices are new.

# %% tags=["file"]
# %%writefile old_train.py
# include program/12_pmap_2022.py

# %% [markdown]
# Here's the last line of its error:

# %%
import os
import subprocess
import sys


def run_python(*arguments):
    plain = os.environ | {"NO_COLOR": "1"}  # in Jupyter, Python 3.13 colours its errors
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=plain, capture_output=True, text=True)


old_error = run_python("old_train.py").stderr.splitlines()[-1]
print(textwrap.fill(old_error, 100))

# %% [markdown]
# The message says *deprecated*, but the function is gone. You could fix the line and wait for the next error. Or you
# can let `pmapdp.port` read the program. It runs nothing, and lists the lines that need your attention. Without
# `--json`, it also says what to write in their place.

# %%
import json

port_report = json.loads(run_python("-m", "pmapdp.port", "old_train.py", "--json").stdout)
marked_lines = [line for line in port_report["lines"] if line["status"] != "fine"]
for line in marked_lines:
    print(f"line {line['line']:3d}, {line['status']}: {line['code']}")

# %% [markdown]
# ## Repair it first
#
# Why repair a program that you're about to replace? Because you need its numbers: without them, you can't tell whether
# your port does the same thing. Four lines are enough:
#
# - Flax's `jax_utils.replicate` still makes N copies.
# - Linen's `init` used to return a `FrozenDict`, whose `pop` returned two values. Today it returns a plain dict, and the
#   program would stop again, with `ValueError: too many values to unpack (expected 2)`. You don't need any `pop`.
#
# The two `[0]`s are slow because JAX sends device 0's row to all the other devices, though you only want to read it. The
# port will remove them, so leave them for now. The next cell makes the repairs, marked by `-` and `+`, and runs the
# program in this notebook. Your port has to print these numbers again. Each loss is the last batch's alone, as in many
# old programs, so it may also rise:

# %%
from pmapdp.lessons.programs import patch

repairs = """
-from flax import linen
+from flax import jax_utils, linen

-    stats, params = variables.pop("params")
-    return TrainState.create(apply_fn=network.apply, tx=optax.adam(3e-3), params=params, **stats)
+    return TrainState.create(apply_fn=network.apply, tx=optax.adam(3e-3), **variables)

-state = jax.device_put_replicated(init_state(), jax.devices())
+state = jax_utils.replicate(init_state())

-            state, common_utils.shard(batch), jax.device_put_replicated(step_key, jax.devices())
+            state, common_utils.shard(batch), jax_utils.replicate(step_key)
"""
patch.apply("old_train.py", repairs)
# %run -i old_train.py

# %% [markdown]
# In the picture each colour is a device. Stripes mean that each device holds a slice, a stack of cards means that each
# holds everything, and a bar in the last column is one run of your step. After the port there's only one state, and no
# `[N, ...]` to pick a copy from.

# %%
old_train_step, old_p_train_step = train_step, p_train_step  # the port defines them anew
lesson_12.before_and_after()

# %% [markdown]
# ## The port to shard_map
#
# The old state has eight sets of batch statistics, and the new state has one. So the new step has to average them in
# every update, while the old program did it once an epoch. Doesn't that change the result? Work it out in your head, on
# two devices, with `running = (running + batch) / 2`:
#
# | | old: device 0 | old: device 1 | their mean | new: one copy |
# | --- | --- | --- | --- | --- |
# | start | 0 | 0 | 0 | 0 |
# | after batch means 1 and 3 | 0.5 | 1.5 | **1** | (0 + 2) / 2 = **1** |
# | after batch means 5 and 7 | 2.75 | 4.25 | **3.5** | (1 + 6) / 2 = **3.5** |
#
# The last two columns agree: both averages are weighted sums, so it doesn't matter which comes first. And nothing reads
# the running averages during training, so the parameters stay the same, too.
#
# Here's everything that changes. In the folder of the course's programs, `old_train.py` with its repairs is
# `12_old_pmap.py`, and your port is `12_ported.py`:
#
# include the difference of 12_old_pmap.py and 12_ported.py
#
# - `replicate` becomes `device_put` onto a replicated sharding, `shard` becomes `device_put` onto a split one, and the
#   `[0]`s are gone.
# - The step still says what each device does. Now it averages the statistics along with the gradients.
# - `lax.pcast` marks the parameters as this device's own, so `jax.grad` gives you this device's gradient, as it did under
#   pmap, and lesson 10's check can stay on. Nothing else needs the cast, because you differentiate nothing else.
#
# Is your own program too big to change all at once? `my_pmap` in
# [Porting](../docs/porting.md#replace-pmap-in-the-whole-program) replaces `jax.pmap` in one line.
#
# Compare each epoch with the old program's. Even the dropout masks are the same, because each device still folds its
# number into the key.

# %% tags=["take-home"]
# include program/12_ported.py

# %% [markdown]
# ## Forget the statistics
#
# Suppose your step only averages what the old step averaged, the gradients and the metrics. With `out_specs=P()` you
# promise that the new state is the same on all devices, and the check is on.
#
# **Predict:** the state has 6 arrays of parameters, 2 of batch statistics, 13 of Adam, and the number of the update.
# How many does JAX refuse?


# %% tags=["prediction"]
def careless_step(state, batch, key):
    key = jax.random.fold_in(key, lax.axis_index("batch"))
    local = state.replace(params=lax.pcast(state.params, "batch", to="varying"))
    gradients, batch_stats, metrics = compute_gradients(local, batch, key)
    gradients, metrics = lax.pmean((gradients, metrics), "batch")  # not batch_stats
    return state.apply_gradients(grads=gradients, batch_stats=batch_stats), metrics


specs = {"mesh": mesh, "in_specs": (P(), P("batch"), P()), "out_specs": P()}
arguments = jax.device_put(init_state(), replicated), jax.device_put(batch, split), key
try:
    jax.jit(jax.shard_map(careless_step, **specs))(*arguments)
except ValueError as error:
    refusal = str(error)
    print(refusal)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two, the statistics. The parameters and Adam's moments are computed from averaged gradients, so they're the same on
# all devices. But each device updates the running mean and the running variance from its own 16 examples. Each of these
# two has a bullet in the message.
#
# </details>
#
# With `check_vma=False` the step would run, and every device would keep its own statistics. You'd save device 0's, and
# never notice.
#
# ## Forget the `pcast`
#
# The check found that mistake. It can't find the next one. Leave out the line with `pcast`, and `jax.grad` adds up the
# gradients of all devices by itself. Then `pmean` averages eight equal sums, so the gradients are 8 times too large, on
# every device. All devices agree, and that's all the check asks.


# %%
def replicate_on_mesh(tree):
    return jax.device_put(tree, replicated)


def shard_on_mesh(batch):
    return jax.device_put(batch, split)


def forgetful_step(state, batch, key):
    key = jax.random.fold_in(key, lax.axis_index("batch"))
    gradients, batch_stats, metrics = lax.pmean(compute_gradients(state, batch, key), "batch")
    return state.apply_gradients(grads=gradients, batch_stats=batch_stats), metrics


def train(step, epochs, replicate=replicate_on_mesh, shard=shard_on_mesh):
    """Train as the program does: the loss of each update."""
    state, key, losses = replicate(init_state()), jax.random.PRNGKey(1), []
    for epoch in range(epochs):
        for batch in batches(*train_data, seed=epoch):
            key, step_key = jax.random.split(key)
            state, metrics = step(state, shard(batch), replicate(step_key))
            losses.append(float(np.mean(metrics["loss"])))
    return losses


p_forgetful_step = jax.jit(jax.shard_map(forgetful_step, **specs))  # the check is on
ported_losses = train(p_train_step, EPOCHS)
forgetful_losses = train(p_forgetful_step, EPOCHS)
updates = len(ported_losses) // EPOCHS  # of an epoch
for epoch, last in enumerate(range(updates - 1, len(ported_losses), updates)):
    print(f"epoch {epoch}: {ported_losses[last]:.4f}, without pcast {forgetful_losses[last]:.4f}")

# %% [markdown]
# The losses agree as well, because Adam hides the factor, as in lesson 05. But the day you switch to SGD or clip the
# gradients, your learning rate or your limit is off by a factor of eight.
#
# ## Does it match the old program? And one device?
#
# Losses are too few numbers. `pmapdp.verify` compares your step with a reference, update by update: parameters,
# optimizer state, statistics and metrics. Your first reference is the old step, plus one line that averages the
# statistics in every update, as the new step has to. `old_program` replays it on one device, with the batch in eight
# parts.
#
# **Predict:** without `pcast`, where will `verify` find a change that's 8 times too large: in the parameters, in Adam's
# state, or in both?


# %% tags=["prediction"]
from pmapdp.verify import old_program, verify


def old_step(state, batch, key):
    """The old step, with its statistics averaged in each update."""
    state, metrics = old_train_step(state, batch, key)
    return state.replace(batch_stats=lax.pmean(state.batch_stats, "batch")), metrics


case = {
    "batch": batch,
    "key": lambda update: jax.random.fold_in(key, update),  # the dropout key of an update
    "layout": "sharded",  # the step takes a batch that's split over the devices
}
reference = old_program(old_step, "batch", groups=8)
verify(step=p_train_step, reference=reference, state=init_state(), **case).require()
print("the old program: equal\n")
forgetful_report = verify(step=p_forgetful_step, reference=reference, state=init_state(), **case)
print("without pcast:", forgetful_report.failed[0])

# %% [markdown]
# <details><summary>Answer</summary>
#
# In Adam's state. Its mean of gradients, `mu`, is 8 times too large. Adam divides `mu` by the root of the mean of the
# squares, where the same factor appears, so it cancels in the parameters.
#
# </details>
#
# One update was enough to find what five epochs hid. The evaluation isn't compared, but for that you have the five
# matching lines.
#
# But does the step do what one device does? Your second reference is the step that you'd write for one device. Switch
# dropout off, because one device would draw other masks than eight do. Even then the comparison fails: each device
# normalizes with its own 16 examples, and the step averages the eight running means and the eight running variances.
#
# **Predict:** after the first update, one of these two averages is wrong. Which?


# %% tags=["prediction"]
def plain_step(state, batch, key):
    """One device's step."""
    gradients, batch_stats, metrics = compute_gradients(state, batch, key)
    return state.apply_gradients(grads=gradients, batch_stats=batch_stats), metrics


report = verify(step=p_train_step, reference=plain_step, state=init_state(dropout=0.0), **case)
differences = report.failed[0].leaves
for leaf in ("batch_stats/BatchNorm_0/mean", "batch_stats/BatchNorm_0/var"):
    print(leaf, "differs" if leaf in differences else "is equal")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The running variance. Every device has 16 examples, so the average of the eight means is the mean of all 128. But the
# average of the variances misses how far apart the devices' means are, as you saw in lesson 07. From the second update
# on both differ, because by then the parameters do.
#
# </details>
#
# So the old program never trained the network that a single device would have trained. You may be fine with that, but
# you should know it.
#
# ## On to jit
#
# If you'd rather have one device's result, go on to `jit`. There the step *is* `plain_step`, with no `pmean`, `pcast` or
# `fold_in`. It no longer does what the old program did: batch norm sees the whole batch, and the dropout masks are
# different. How much does that change in the first epoch?

# %%
shardings = {"in_shardings": (replicated, split, replicated), "out_shardings": replicated}
jit_step = jax.jit(plain_step, **shardings, donate_argnums=0)
verify(step=jit_step, reference=plain_step, state=init_state(), **case).require()
print("jit against one device, with dropout: equal")

losses = {
    "old pmap": train(old_p_train_step, 1, jax_utils.replicate, common_utils.shard),
    "shard_map": ported_losses[:updates],
    "jit": train(jit_step, 1),
}
lesson_12.loss_curves(losses)

# %% tags=["proof"]
# The asserts behind the answers so far.
assert "device_put_replicated is deprecated" in old_error
assert [line["status"] for line in marked_lines] == ["fails", "gone", "gone", "slow", "slow"]
assert "can't be statically inferred" in refusal
assert refusal.count("* out_specs") == 2
wrong_state, _ = jax.jit(jax.shard_map(careless_step, **specs, check_vma=False))(*arguments)
mean = wrong_state.batch_stats["BatchNorm_0"]["mean"]  # [32], one for each hidden unit
assert mean.sharding.is_fully_replicated
assert len({float(shard.data[0]) for shard in mean.addressable_shards}) == 8
sizes = [len(jax.tree.leaves(part)) for part in (state.params, state.batch_stats, state.opt_state)]
assert (*sizes, len(jax.tree.leaves(state))) == (6, 2, 13, 22)
np.testing.assert_allclose(forgetful_losses, ported_losses, rtol=0, atol=2e-4)
words = " ".join(str(forgetful_report).split())
assert "the change is 8 times the reference's, on 8 devices" in words
assert forgetful_report.failed[0].leaves["params/Dense_1/kernel"][0] < 1e-5
assert "batch_stats/BatchNorm_0/mean" not in differences
assert "batch_stats/BatchNorm_0/var" in differences
np.testing.assert_allclose(losses["old pmap"], losses["shard_map"], rtol=1e-4)
assert np.abs(np.subtract(losses["jit"], losses["old pmap"])).max() > 1e-2

# %% [markdown]
# shard_map's curve lies right on the old one, and jit's takes a slightly different path. So after a move to jit, expect
# one device's numbers, and an accuracy similar to the old program's.
#
# ## What else to port
#
# - **Evaluation.** The ported program still skips 104 of the 1,000 test examples. Pad the last batch and give the padding
#   weight 0, as your own program has done since lesson 03.
# - **Checkpoints.** If the old program saved `unreplicate(state)`, they load as they are. If it saved the device axis,
#   too, take copy 0 on the host, as in exercise 1. The copies' batch statistics only agree after `p_average`, so if you
#   don't know when the program saved, average those.
# - **Several processes.** Under pmap each process passed its own rows. `jax.device_put(batch, split)` wants the same
#   global batch in every process, so give your rows to `jax.make_array_from_process_local_data` instead.
#   [Lesson 17](17_many_processes.ipynb) says which rows are yours.
#
# [Porting](../docs/porting.md) has a row for every pmap construct.
#
# ## Exercises
#
# Solutions, with reasons: [solutions/12_port_a_pmap_program.py](solutions/12_port_a_pmap_program.py).
#
# 1. `drop_device_axis` (5 minutes): an old checkpoint was saved with the device axis, so `tree` holds NumPy arrays
#    `[N, ...]`. The copies aren't equal. Return the tree with copy 0 alone, placed on every device of `mesh`. The
#    devices must never hold all N copies. <details><summary>Hint</summary>Index on the host, where it costs nothing.
#    Then one device_put.</details>
# 2. `make_step` (10 minutes): port the `step` below this list to `jit` or `shard_map`, over the axis "batch" of `mesh`.
#    Return a compiled `step(w, x, y) -> (w, loss)` for `w` `[D]`, `x` `[B, D]` and `y` `[B]`, with the same results,
#    replicated. You get NumPy arrays, and each device must compute only its own rows.
#    <details><summary>Hint</summary>Under jit the loss is the mean over the whole batch. Under shard_map, mind the
#    trap.</details>
# 3. `corrected_variance` (5 minutes, find the mistake): `broken_variance` runs in a `shard_map` over the axis "batch",
#    and `x` `[b, D]` holds this device's rows. All devices agree, but on a wrong number. Return the variance `[D]` of
#    the global batch. The numbers are small, so any formula that's correct on paper will do.
#    <details><summary>Hint</summary>The devices' rows have different means. Average the mean first.</details>
#
# ```python
# def step(w, x, y):  # exercise 2, inside pmap: w [D], x [b, D], y [b]
#     def loss(w):
#         return jnp.square(x @ w - y).sum() / (len(y) * lax.psum(1, "batch"))
#
#     value, gradient = jax.value_and_grad(loss)(w)
#     value, gradient = lax.psum((value, gradient), "batch")
#     return w - 0.1 * gradient, value
# ```

# %%
from pmapdp.lessons.checks import check


def broken_variance(x):
    return lax.pmean(x.var(0), "batch")


def drop_device_axis(tree, mesh):
    """The tree without its device axis, replicated over the mesh."""
    ...  # your code: 2 lines


def make_step(mesh):
    """A compiled step: (w, x, y) to (w, loss)."""
    ...  # your code: 6 to 10 lines


def corrected_variance(x):
    """[D], the variance over the rows of all devices."""
    ...  # your code: 2 lines


for exercise in (drop_device_axis, make_step, corrected_variance):
    check("12_port_a_pmap_program", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Get the old program running first, because its numbers are what you compare the port with.
# - shard_map takes away the device axis and keeps the step. jit takes away the collectives as well.
# - A replicated state has one value of each array, so average the batch statistics in the step. The check finds a
#   forgotten average, but neither the check nor Adam's losses show a forgotten `pcast`.
# - So verify twice: against the old program, and against one device. The old program itself might fail the second time.
#
# In pmapdp, [verify/](../pmapdp/verify/verification.py) compares, and [port/](../pmapdp/port/find.py) reads your
# program. To read on: [Migrating to the new jax.pmap](https://docs.jax.dev/en/latest/migrate_pmap.html), and the pages
# [Porting](../docs/porting.md) and [verify](../docs/verify.md). Next:
# [13 Train with more batch than memory](13_more_batch_than_memory.ipynb).

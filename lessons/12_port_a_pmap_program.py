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
# After this lesson you can move a training program from `pmap` to `shard_map`, and from there to `jit`, in small steps.
# Each step is checked against the version before it.
#
# About 40 minutes · you need [05 Average gradients](05_average_gradients.ipynb) and
# [10 Three ways side by side](10_three_ways_side_by_side.ipynb) · previous:
# [11 Explicit sharding](11_explicit_sharding.ipynb) · next:
# [13 More batch than memory](13_more_batch_than_memory.ipynb)
#
# pmap still runs, but it is in maintenance. Since jax 0.8 it is a wrapper around `jit` and `shard_map`, and JAX's
# developers [recommend `shard_map` for new code](https://docs.jax.dev/en/latest/migrate_pmap.html).
#
# We port one program in three stages:
#
# 1. Replace `jax.pmap` by a function of our own, `my_pmap`. All arrays and all other lines stay as they are.
# 2. Take the device axis away from the arrays. The step itself stays, under `shard_map`.
# 3. Take the collectives away from the step, under `jit`.
#
# You may stop after each of them, with a program that runs. The picture shows what becomes of the device axis. The page
# [Porting](../docs/porting.md) is for looking things up: it has a row for every construct.

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import numpy as np
from jax import P, lax

from pmapdp import devices  # simulates devices (lesson 00) and describes them
from pmapdp.lessons.pictures import lesson_12
from pmapdp.lessons.programs import pmap_program as old  # the program that we port

devices.simulate(8)
chosen, N = jax.devices(), 8
print(devices.describe(chosen), "| jax", jax.__version__)
lesson_12.before_and_after()

# %% [markdown]
# ## The old program
#
# [pmap_program.py](../pmapdp/lessons/programs/pmap_program.py) is written as such programs were from 2020 to 2023:
#
# - The network is a module of Flax Linen, the module system before NNX. Its parameters, its batch statistics and the
#   state of the optimizer are in a `TrainState`, whose `apply_gradients` makes an update.
# - `loss_and_update` returns the metrics, the gradients and the new batch statistics of one device, without any
#   collective.
# - `jax_utils.replicate` copies the state N times, so that each of its arrays is `[N, ...]`.
# - `common_utils.shard` makes `[N, b, ...]` of a batch `[B, ...]`.
# - The dropout key of a device is `fold_in(key, axis_index)`.
# - The running statistics of batch norm (lesson 07) are averaged over the devices once an epoch.
# - The evaluation drops the last batch, if it is not full.
#
# We print its step and its loop, in which `p_train_step` is the `pmap` of the step over the axis "batch". Then we run
# it.

# %%
import inspect

from pmapdp.registry import load_data

data = load_data("digits")
train_set = data.train.inputs.reshape(-1, 784).astype(np.float32) / 255, data.train.labels
test_set = data.test.inputs.reshape(-1, 784).astype(np.float32) / 255, data.test.labels

print(inspect.getsource(old.train_step), inspect.getsource(old.train), sep="\n")
old_state = old.train(train_set, test_set)
kernel = old_state.params["Dense_0"]["kernel"]
print("the first kernel:", kernel.shape, kernel.sharding.spec, f"{kernel.nbytes / 1e3:.0f} kB in all")
assert kernel.shape == (N, 784, 64)
assert (old.BATCH, len(test_set[1])) == (256, 256 + 104)

# %% [markdown]
# It works. But its accuracy is that of 256 test images; the other 104 are dropped.
#
# ## What fails or is slow today
#
# JAX's migration guide names four cases. Two of them are errors today:
#
# 1. A batch that is placed on other devices than pmap's, here on the first of four. Older versions moved it. To correct
#    it, leave the batch on the host, or split it over pmap's devices with `jax.device_put`.
# 2. A pmap inside a pmap. A `shard_map` over two mesh axes replaces it.

# %%
from jax.sharding import Mesh, NamedSharding

half = jax.pmap(lambda x: 2 * x, devices=chosen[:4])
nested = jax.pmap(lambda x: jax.pmap(lambda y: lax.psum(y, ("a", "b")), axis_name="b")(x), axis_name="a")
on_one_device = jax.device_put(np.ones((4, 3), np.float32), chosen[0])
for function, x in ((half, on_one_device), (nested, np.ones((2, 4, 3), np.float32))):
    try:
        function(x)
        raise AssertionError("JAX did not refuse")
    except ValueError as error:
        print("ValueError:", " ".join(str(error).split())[:96], "...")

grid = Mesh(np.array(chosen).reshape(2, 4), ("a", "b"))
replacement = jax.shard_map(lambda x: lax.psum(x, ("a", "b")), mesh=grid, in_specs=P("a", "b"), out_specs=P())
print("shard_map over two axes:", replacement(np.ones((2, 4, 3), np.float32)))

# %% [markdown]
# The replacement of the nested pmap adds up eight ones. The two other cases are slow:
#
# 3. `x[0]` of a stacked array. Its first row is on one device, but JAX places the result on all of them. **Predict:**
#    which collective does that need, and of how many bytes, if a row has 4 MB?
# 4. Several processes. pmap takes and returns arrays of the process' own devices. So every call makes global arrays of
#    them, and makes the results local again. After the port an array is global, and stays so (lesson 17).

# %% tags=["prediction"]
from flax import jax_utils

from pmapdp.compare.collectives import collectives  # reads them from the text of a compiled program

stacked = jax_utils.replicate(np.ones((1024, 1024), np.float32))
found = collectives(jax.jit(lambda x: x[0]).lower(stacked).compile().as_text())
print("x[0] of 8 copies of 4 MB:", *found)
first = stacked.addressable_shards[0].data  # on device 0, without any exchange
print("the first shard:", first.shape, first.devices())

# %% [markdown]
# <details><summary>Answer</summary>
#
# An all-reduce of the whole row, 4,194,304 bytes: device 0 adds its row, and the others add zeros.
#
# </details>
#
# The first shard of a stacked array is an array of one device, so `first[0]` needs no collective. Today's `unreplicate`
# reads it; that of older versions of Flax computes `x[0]`. After the port there is nothing to unreplicate.
#
# ## Stage 1: the whole program at once
#
# `my_pmap` takes the place of `jax.pmap`. Every array keeps its device axis. `shard_map` gives each device `[1, ...]`;
# the wrapper takes this axis away, calls the step, and adds it again. We put `my_pmap` into the old program, and change
# nothing else.

# %%
import jax.numpy as jnp


def my_pmap(step, axis_name="batch", in_axes=0, out_axes=0, donate_argnums=()):
    """A step over arrays [N, ...]. An axis is 0, or None for what is equal on all devices, or a tuple of these."""
    where = {0: P(axis_name), None: P()}
    in_specs, out_specs = jax.tree.map(where.get, (in_axes, out_axes), is_leaf=lambda axis: axis is None)

    def change(function, specs, tree):  # what has a device axis
        return jax.tree.map(lambda spec, part: part if spec == P() else jax.tree.map(function, part), specs, tree)

    def one_device(*arguments):  # from [1, ...] to [...] and back
        result = step(*change(lambda x: x[0], in_specs, arguments))
        return change(lambda x: jnp.asarray(x)[None], out_specs, result)

    mesh = Mesh(np.array(jax.local_devices()), (axis_name,))
    mapped = jax.shard_map(one_device, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return jax.jit(mapped, donate_argnums=donate_argnums)


wanted = jax.device_get(jax_utils.unreplicate(old_state))
mapped_by_pmap = old.p_train_step, old.p_eval_step, old.average
old.p_train_step = my_pmap(old.train_step, "batch", donate_argnums=0)
old.p_eval_step, old.average = my_pmap(old.eval_step, "batch"), my_pmap(lambda x: lax.pmean(x, "x"), "x")
same_state = jax.device_get(jax_utils.unreplicate(old.train(train_set, test_set)))
old.p_train_step, old.p_eval_step, old.average = mapped_by_pmap
for a, b in zip(jax.tree.leaves(same_state), jax.tree.leaves(wanted), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

# %% [markdown]
# The two epochs print the same numbers as before, and the states are equal. The program no longer depends on pmap. From
# here you can go on with one function at a time.
#
# ## Stage 2: no device axis in the arrays
#
# The step is still the program of one device. But the arrays are no longer stacked: state and key are replicated, and
# the batch keeps its shape `[256, ...]`.
#
# One thing must be *added*. A replicated state has one value of the batch statistics for all devices. So the step has
# to average them in every update; the old program did so once an epoch. Both give the same result, because the running
# statistics are a weighted sum of those of the batches, and training does not read them. Here is a case that you can
# check in your head, with `running = 0.5 * running + 0.5 * batch`:
#
# | | device 0 | device 1 | averaged in every step |
# | --- | --- | --- | --- |
# | start | 0 | 0 | 0 |
# | batch means 1 and 3 | 0.5 | 1.5 | 1 |
# | batch means 5 and 7 | 2.75 | 4.25 | **3.5** |
# | averaged at the end | **3.5** | **3.5** | |
#
# Here is the port: the step with its wrapper, and the loop. The marked lines have changed, and the average once an
# epoch is gone.

# %%
mesh = Mesh(np.array(chosen), ("batch",))
replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))


def ported_step(state, batch, key):
    key = jax.random.fold_in(key, lax.axis_index("batch"))
    metrics, grads, batch_stats = old.loss_and_update(state, batch, key)
    metrics, grads, batch_stats = lax.pmean((metrics, grads, batch_stats), "batch")  # <- changed: batch_stats
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), metrics


specs = {"mesh": mesh, "in_specs": (P(), P("batch"), P()), "out_specs": P()}
shard_map_step = jax.jit(jax.shard_map(ported_step, **specs, check_vma=False), donate_argnums=0)  # <- was pmap


def train(step, state):
    state, key = jax.device_put(state, replicated), jax.random.PRNGKey(1)  # <- was jax_utils.replicate
    for _ in range(old.EPOCHS):
        for batch in old.batches(*train_set):
            key, step_key = jax.random.split(key)
            state, metrics = step(state, jax.device_put(batch, split), step_key)  # <- was common_utils.shard
    return state, metrics


updates = old.EPOCHS * (len(train_set[1]) // old.BATCH)
new_state, _ = train(shard_map_step, old.create_state(jax.random.PRNGKey(0), updates))
for a, b in zip(jax.tree.leaves(jax.device_get(new_state)), jax.tree.leaves(wanted), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
print("the same state after", updates, "updates:", len(jax.tree.leaves(new_state)), "arrays")

# %% [markdown]
# The new program gives the result of the old one, with the same dropout masks (float32; the tolerance is 1e-4 of a
# number, plus 1e-5, because averaging at each step rounds differently). `check_vma=False` matters: with the default the
# gradients would be 8 times too large (lesson 10).
#
# **A failure on purpose.** Replace the wrapper, but do not average the statistics. `out_specs=P()` promises that the
# devices agree, and with `check_vma=False` JAX does not check it. **Predict:** do they agree?

# %% tags=["prediction"]
careless_step = jax.jit(jax.shard_map(old.train_step, **specs, check_vma=False))
careless, _ = train(careless_step, old.create_state(jax.random.PRNGKey(0), updates))
means = [np.asarray(shard.data)[0] for shard in careless.batch_stats["BatchNorm_0"]["mean"].addressable_shards]
print("running mean of the first unit, by device:", np.round(means, 3))

# %% [markdown]
# <details><summary>Answer</summary>
#
# They do not. JAX still calls this array replicated, so a checkpoint would keep the copy of the first device. The same
# happens to a metric without `pmean`, and to a `dropout_rng` in the state: it comes back as device 0's, and then all
# devices draw one mask. Give such leaves a spec of their own, `P("batch")`, as the [page](../docs/porting.md) shows.
#
# </details>
#
# ## Is it the old program? Is it right?
#
# `pmapdp.verify` answers both questions. It compares our step with a reference:
#
# - **Is it the old program?** The reference is `old_program`. It runs the old step over eight groups of the batch on
#   one device, and each group has its own dropout mask.
# - **Is it right?** That is, would one device compute the same? The reference is the plain step, which you write
#   without any collective: here `loss_and_update` and `apply_gradients`. We switch dropout off for it, because the
#   masks of our step depend on the device.
#
# **Predict:** which part of the network makes the second comparison fail?

# %% tags=["prediction"]
from pmapdp.lessons.reports import show  # prints a report, and breaks its long lines
from pmapdp.verify import old_program, verify


def averaged_step(state, batch, key):
    """The old step, with its statistics averaged in each update and not once an epoch."""
    state, metrics = old.train_step(state, batch, key)
    return state.replace(batch_stats=lax.pmean(state.batch_stats, "batch")), metrics


def plain_step(state, batch, key):
    metrics, grads, batch_stats = old.loss_and_update(state, batch, key)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), metrics


small = {"image": train_set[0][:64], "label": train_set[1][:64]}
case = {"batch": small, "key": lambda update: jax.random.fold_in(jax.random.key(1), update), "layout": "sharded"}
with_dropout = old.create_state(jax.random.key(0), updates)
reference = old_program(averaged_step, "batch", groups=8)
report = verify(step=shard_map_step, reference=reference, state=with_dropout, **case)
report.require()
print("the old program:", str(report).splitlines()[-1].partition(",")[0])
without_dropout = old.create_state(jax.random.key(0), updates, dropout=0.0)
report = verify(step=shard_map_step, reference=plain_step, state=without_dropout, **case)
print("one device:")
show("\n".join(map(str, report.failed)))

# %% tags=["proof"]
# The asserts behind the answers so far.
assert [(each.kind, each.bytes) for each in found] == [("all-reduce", 2**22)]
assert len(set(map(float, means))) > 1
assert report.causes == ["local statistics"]

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is the old program, dropout masks included. It is not what one device would compute, and the cause is batch norm.
# Each device normalizes with the mean and the variance of its own examples, so the result depends on the number of
# devices. With 32 examples on each device this may be what you want. If not, give `nn.BatchNorm` the name of the axis.
# It then averages its moments over the devices, which gives those of the global batch where all devices hold equally
# many examples. One device has no axis, so the reference uses the network without the name.
#
# </details>

# %%
def without_axis(state, batch, key):
    new, metrics = plain_step(state.replace(apply_fn=old.Net(dropout=0.0).apply), batch, key)
    return new.replace(apply_fn=state.apply_fn), metrics


synchronized = old.create_state(jax.random.key(0), updates, dropout=0.0, axis_name="batch")  # <- changed
report = verify(step=shard_map_step, reference=without_axis, state=synchronized, **case)
print(str(report).splitlines()[-1].partition(",")[0])
report.require()

# %% [markdown]
# The step now has the result of one device: every check passes.
#
# ## Stage 3: jit, and no collectives in the step
#
# Under jit the step *is* the plain step: no `pmean`, no `fold_in`, no axis name. Only the shardings are new.

# %%
shardings = {"in_shardings": (replicated, split, replicated), "out_shardings": replicated}
jit_step = jax.jit(plain_step, **shardings, donate_argnums=0)  # <- changed: the plain step and shardings
report = verify(step=jit_step, reference=plain_step, state=with_dropout, **case)
show(str(report).rpartition(", in ")[0])
report.require()

# %% [markdown]
# All checks pass, this time with dropout: batch norm uses the global batch, and one key over the global batch gives the
# masks of one device.
#
# So the new program differs from the old one in two things: the moments of batch norm, and the dropout masks. In other
# programs, everything changes that the old step did with the examples of one device alone: a loss divided by the count
# of one device's tokens, clipping before the `pmean`, mixup. So compare final accuracies with those of the old program,
# and not single numbers.
#
# ## Evaluation of all examples, and old checkpoints
#
# The old evaluation drops what is left after the last full batch. Pad the last batch instead: fill it with repeated
# examples, and give those the weight 0. Then divide the number of right answers by the sum of the weights.
#
# We evaluate three models in this way: one from an old checkpoint, one from a checkpoint that was saved with its device
# axis, and the one that jit has trained.

# %%
from flax import serialization


def evaluation(state, batch):
    logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, batch["image"], train=False)
    right = (logits.argmax(-1) == batch["label"]) * batch["weight"]
    return right.sum(), batch["weight"].sum()


eval_step = jax.jit(evaluation, in_shardings=(replicated, split), out_shardings=replicated)


def evaluate(state, images, labels):
    right = count = 0
    for first in range(0, len(labels), old.BATCH):
        rows = np.arange(first, first + old.BATCH)
        batch = {"image": images[rows % len(labels)], "label": labels[rows % len(labels)]}
        sums = eval_step(state, batch | {"weight": (rows < len(labels)).astype(np.float32)})
        right, count = right + float(sums[0]), count + int(sums[1])
    return right / count, count


jit_state, _ = train(jit_step, old.create_state(jax.random.PRNGKey(0), updates))
template = old.create_state(jax.random.PRNGKey(0), updates)
saved = serialization.to_bytes(jax_utils.unreplicate(old_state))
restored = serialization.from_bytes(template, saved)
saved_stacked = serialization.to_bytes(jax.device_get(old_state))  # without unreplicate
tree = serialization.msgpack_restore(saved_stacked)
one_copy = jax.tree.map(lambda x: x[0], tree)  # NumPy on the host: no collective
from_stacked = serialization.from_state_dict(template, one_copy)
for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(from_stacked), strict=True):
    np.testing.assert_array_equal(a, b)
for name, state in (("old checkpoint", restored), ("stacked one", from_stacked), ("trained by jit", jit_state)):
    accuracy, count = evaluate(jax.device_put(state, replicated), *test_set)
    print(f"{name:15s} accuracy {accuracy:.4f} of {count} images")
    assert count == len(test_set[1])

# %% [markdown]
# Each is evaluated on all 360 images.
#
# ## The port in one cell
#
# This cell ports a program without our package. Its step is in the style of the old programs, with a key of each device
# in the state. The same step then runs under `shard_map`. The specs are a pytree that is made from the state. For a
# program of your own, replace what stands under "yours".

# %% tags=["take-home"]
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import P, lax
from jax.sharding import Mesh, NamedSharding

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

# Yours: optimizer, parameters, data [examples, ...], and the old step, of state, batch and key of one device.
tx = optax.adam(1e-2)
random = np.random.default_rng(0)
params = {"w": random.normal(size=(8, 32)).astype(np.float32), "v": np.zeros(32, np.float32)}
inputs = random.normal(size=(4096, 8)).astype(np.float32)
data = {"x": inputs, "y": np.tanh(inputs[:, 0] - inputs[:, 1])}
B, epochs = 64, 5


def loss_fn(params, batch, key):
    hidden = jnp.tanh(batch["x"] @ params["w"])
    mask = jax.random.bernoulli(key, 0.9, hidden.shape) / 0.9
    return jnp.square((hidden * mask) @ params["v"] - batch["y"]).mean()


def train_step(state, batch):
    key, dropout_key = jax.random.split(state["key"])
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch, dropout_key)
    loss, grads = lax.pmean((loss, grads), "batch")
    updates, opt = tx.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt, "key": key}, loss


# Before: everything has a device axis, [N, ...].
N = jax.device_count()
keys = jax.random.split(jax.random.key(0), N)
state = {"params": params, "opt": tx.init(params), "key": keys}
stack = jax.tree.map(lambda x: jnp.stack([x] * N), {"params": params, "opt": tx.init(params)}) | {"key": keys}
old_step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)


def shard(batch):
    return jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch)


# After: only the keys have one. A device gets its key as [1, ...] and gives it back so; all else is replicated.
mesh = Mesh(np.array(jax.devices()), ("batch",))
specs = jax.tree.map(lambda _: P(), state) | {"key": P("batch")}
state = jax.device_put(state, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))


def ported_step(state, batch):
    state, loss = train_step(state | {"key": state["key"][0]}, batch)
    return state | {"key": state["key"][None]}, loss


new_step = jax.jit(
    jax.shard_map(ported_step, mesh=mesh, in_specs=(specs, P("batch")), out_specs=(specs, P()), check_vma=False),
    donate_argnums=0,
)

for epoch in range(epochs):
    order = np.random.default_rng(epoch).permutation(len(data["y"]))
    for first in range(0, len(order) - B + 1, B):
        batch = {name: array[order[first : first + B]] for name, array in data.items()}
        stack, old_losses = old_step(stack, shard(batch))
        state, new_loss = new_step(state, jax.device_put(batch, NamedSharding(mesh, P("batch"))))
    print(f"epoch {epoch}: loss {np.asarray(old_losses)[0]:.4f} by pmap, {float(new_loss):.4f} by shard_map")
np.testing.assert_allclose(new_loss, np.asarray(old_losses)[0], rtol=1e-3)
for old_array, new_array in zip(jax.tree.leaves(stack["params"]), jax.tree.leaves(state["params"]), strict=True):
    np.testing.assert_allclose(new_array, np.asarray(old_array)[0], rtol=1e-3, atol=1e-4)

# %% [markdown]
# ## Let two commands read your program
#
# `python -m pmapdp.port PATH` reads a program, a notebook or a folder, and runs nothing. It lists the lines that are
# gone, fail, are slow or give other numbers today. With `--all` it also lists what is fine, and what each line becomes
# under shard_map and jit. At the end it writes a file that verifies your step. Here is what it says about the old
# program. The part about each construct is left out; the [page](../docs/porting.md) has it.
#
# `python -m pmapdp.compare old.py:program new.py:program --html page.html` shows your colleagues what a port changes, and
# what it doesn't. Each program is a function that returns the arguments of `verify`. The command verifies both. Its page
# has their lines beside each other, who adds up, what the devices hold, memory and time. We give it
# [port_example.py](../pmapdp/lessons/programs/port_example.py), a small step before and after its port to jit.

# %%
from pmapdp.port.__main__ import as_text, report_program

report = report_program(old.__file__)
lines, rest = as_text(report, everything=True).replace(old.__file__, "pmap_program.py").split("What to write instead")
show(lines.rstrip() + rest[rest.index("\n\n") :])
assert {line["status"] for line in report["lines"]} <= {"fine", "check", "slow"}

from pmapdp.lessons.programs import port_example
from pmapdp.lessons.programs.compared import compare  # runs the command

compared = compare(f"{port_example.__file__}:old", f"{port_example.__file__}:new")
for run in compared["runs"]:
    exchanged, shape = sum(each["bytes"] for each in run["collectives"]), run["holds"]["state"]["shape"]
    print(f"{run['name']:25s} verify: {run['verdict']}; the largest array is {shape}; exchanges {exchanged:,} bytes")
    assert run["verdict"] == "equal"

# %% [markdown]
# No line of the old program fails, so it still runs. The file at the end compares the step with one device, and later
# the ported step with the old one, as we did by hand above.
#
# The two small programs exchange the same bytes, the gradients and the loss. The device axis is gone from the state. On
# the page the old program's `pmean` stands beside "nothing", and below both the all-reduce that was compiled.
#
# ## Exercises
#
# **1. `unstacked`** (3 minutes): an old checkpoint was saved with the device axis: `tree` holds NumPy arrays `[N,
# ...]`. Return the tree without that axis, placed on every device of `mesh`.
# <details><summary>Hint</summary>Index on the host, where it costs nothing; then one device_put.</details>
#
# **2. `ported`** (10 minutes): port this step to `jit` or `shard_map` over the axis "batch" of `mesh`. It uses
# `psum(1)` and a stacked state. Return a compiled `step(w, x, y) -> (w, loss)` of `w` `[D]`, x `[B, D]`, y `[B]`
# with equal results, replicated.
#
# ```
# def step(w, x, y):  # in pmap: w [D], x [b, D], y [b]
#     loss = lambda w: jnp.square(x @ w - y).sum() / (len(y) * lax.psum(1, "batch"))
#     value, gradient = jax.value_and_grad(loss)(w)
#     value, gradient = lax.psum((value, gradient), "batch")
#     return w - 0.1 * gradient, value
#
# old_step = jax.pmap(step, axis_name="batch")  # old_step(replicate(w), shard(x), shard(y))
# ```
# <details><summary>Hint</summary>Under jit the loss is the mean over the whole batch. Under shard_map mind
# check_vma.</details>
#
# **3. `corrected_variance`** (5 minutes): find the planted mistake. `broken_variance` runs in a `shard_map` over the
# axis "batch", and `x` `[b, D]` holds this device's rows. All devices agree, but on the wrong number. Return the
# variance `[D]` of the *global* batch.
# <details><summary>Hint</summary>The rows of different devices have different means. Average the mean first.</details>


# %%
from pmapdp.lessons.checks import check


def broken_variance(x):
    return lax.pmean(x.var(0), "batch")


def unstacked(tree, mesh):
    """The tree without its device axis, replicated over the mesh."""
    ...  # your code: 2 lines


def ported(mesh):
    """A compiled step: (w, x, y) to (w, loss)."""
    ...  # your code: 6 to 10 lines


def corrected_variance(x):
    """[D], the variance over the rows of all devices."""
    ...  # your code: 2 lines


for exercise in (unstacked, ported, corrected_variance):
    check("12_port_a_pmap_program", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/12_port_a_pmap_program.py](solutions/12_port_a_pmap_program.py)
#
# ## Take away
#
# - Put `my_pmap` in first; then one function at a time: shard_map drops the device axis, jit drops the collectives as
#   well.
# - With `check_vma=False` JAX does not check that a replicated array is equal on all devices; your step must make it so.
#   (With the default, it refuses a step without its all-reduce at trace time. To keep the check in a port, write
#   `params = lax.pcast(params, "batch", to="varying")` before the gradient.) Look first at batch
#   statistics, keys in the state and metrics, because there a port differs most often.
# - Verify twice: against the old program, and against one device, because the old program may depend on their number.
#   Then show both with `pmapdp.compare`.
#
# Read on: [Migrating to the new jax.pmap](https://docs.jax.dev/en/latest/migrate_pmap.html),
# [shard_map](https://docs.jax.dev/en/latest/201/shard-map.html), and our page on [verify](../docs/verify.md). Next:
# [13 More batch than memory](13_more_batch_than_memory.ipynb).

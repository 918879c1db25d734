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
# # 16. Measure a step
#
# After this lesson you can time a training step honestly, count what a compiled program computes and exchanges, read from a
# profile where the time goes, and tell how a change shortens the time to an accuracy.
#
# About 25 minutes · before: [17 Train with many processes](17_many_processes.ipynb) · next:
# [19 Predict a thousand devices](19_predict_a_thousand_devices.ipynb)

# %%
import json
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from pmapdp import devices
from pmapdp.compare.collectives import collectives
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split
from pmapdp.models.mlp import MLP
from pmapdp.registry import load_data
from pmapdp.run.profile import longest_operations
from pmapdp.state import Task, count_parameters, create_state
from pmapdp.steps import make_steps
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_18

devices.simulate(64)
drawing.setup()
everyone, N = jax.devices(), 8
chosen, data = everyone[:N], load_data("digits")
print(devices.describe(chosen), "| jax", jax.__version__)

# %% [markdown]
# ## What a clock sees
#
# A call of a jitted function returns before the result is there: Python has only *dispatched* the work. (On a GPU, PyTorch
# does the same.) The first call also traces and compiles. So a clock around one line of Python can show three different
# durations. Only the last one is the time of a step.

# %%
lesson_18.three_durations()

# %% [markdown]
# The smallest case is a matrix product. The list `traced` grows when JAX traces the function, and not when it runs.
# **Predict:** how long is the list at the end, and which of the three times is the shortest?

# %%
traced = []


@jax.jit
def product(a):
    traced.append(a.shape)
    return a @ a


a = jnp.ones((1500, 1500))
for name, wait, repeats in (("first call", True, 1), ("without waiting", False, 6), ("waiting", True, 6)):
    times = []
    for _ in range(repeats):
        clock = time.perf_counter()
        result = product(a)
        if wait:
            jax.block_until_ready(result)
        times.append(1000 * (time.perf_counter() - clock))
        jax.block_until_ready(result)  # else the next clock would see the rest of this call
    print(f"{name:16s} {min(times):8.2f} ms")
assert traced == [(1500, 1500)]

# %% [markdown]
# The function was traced once, in the first call. "Without waiting" is the shortest, because it is only the time to dispatch.
#
# **A failure on purpose.** The last batch of an epoch is smaller, and nobody pads it. Then the program is compiled again, in the
# middle of what you measure. This happens for each new shape. To notice it, count traces: unlike times, they do not depend
# on what else the machine does. **Predict:** how often are these four calls traced?

# %%
for rows in (64, 64, 64, 29):
    product(jnp.ones((rows, rows)))
print("traced for", traced[1:])
assert traced[1:] == [(64, 64), (29, 29)]

# %% [markdown]
# Twice: the fourth call, with 29 rows, was traced and compiled again. So warm up, keep the shapes, wait for the result, and
# repeat. Report the median with a range. Use the minimum if you want the cost of the work alone, because other programs can only
# add time. In a training loop, time groups of steps, as `pmapdp.compare` does: if you wait after each step, Python cannot
# prepare the next one meanwhile.
#
# Now we time a real step, on one device with 32 examples, and on eight with 32 each. **Predict:** which step is faster here?


# %%
def least_seconds(function, *arguments, repeats=12):
    times = []
    for _ in range(repeats + 2):
        clock = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - clock)
    return min(times[2:])  # <- the first two warm up


task, b, held = Task(MLP, optax.adam(1e-3)), 32, {}
for strategy, group in (("single", everyone[:1]), ("shard_map", chosen)):
    steps, batches = make_steps(strategy, task, group), Batches(data.train, b * len(group), devices=len(group))
    held[strategy] = [steps, steps.place_state(create_state(task)), steps.place_batch(next(batches.epoch(0)))]


def one_step(strategy):
    steps, state, batch = held[strategy]
    held[strategy][1], sums = steps.train_step(state, batch)
    return held[strategy][1], sums


step_seconds = {strategy: least_seconds(one_step, strategy) for strategy in held}
print({strategy: f"{1000 * seconds:.1f} ms" for strategy, seconds in step_seconds.items()})

# %% [markdown]
# The step on one device is faster. The eight devices train eight times as many examples, and update eight copies of the
# parameters, on the same cores. They cannot be faster here.
#
# Each call also takes the host some time for each device. A loop *on the devices* avoids that: `lax.scan` makes several updates
# in one call, over batches that are stacked along a new first axis.

# %%
four = [steps.place_batch(batch) for batch, _ in zip(batches.epoch(0), range(4), strict=False)]
stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *four)  # [4, B, ...]
loop = jax.jit(lambda state, batches: lax.scan(steps.train_step, state, batches), donate_argnums=0)  # <- new
looped, apart = [steps.place_state(create_state(task))], steps.place_state(create_state(task))


def four_steps():
    looped[0], sums = loop(looped[0], stacked)
    return looped[0], sums


for batch in four:
    apart, _ = steps.train_step(apart, batch)
for found, wanted in zip(jax.tree.leaves(four_steps()[0]), jax.tree.leaves(apart), strict=True):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
print(f"four steps in one call: {1000 * least_seconds(four_steps) / 4:.1f} ms a step")

# %% [markdown]
# The results are equal. The loop helps where steps are short; where they are long, as here, there is little to gain. Its price:
# Python sees no result before the whole call ends. `pmapdp.train` uses such a loop on CPUs (`--steps-per-dispatch`).
#
# ## What the program computes
#
# How fast could the step be? Count its floating-point operations. A product of `[m, k]` and `[k, n]` takes 2 m k n of them: m k n
# multiplications, and as many additions. For `[8, 4] @ [4, 2]` that is 128. In training, each layer has three such products: the
# forward pass, the gradient of its weights, and the gradient of its inputs, which the first layer does not need. A step reaches
# some share of the machine's speed, which is called its *utilization*. **Predict:** will the count by hand agree with the
# compiler's?

# %%
assert jax.jit(jnp.dot).lower(jnp.ones((8, 4)), jnp.ones((4, 2))).compile().cost_analysis()["flops"] == 2 * 8 * 4 * 2 == 128

layers = [784 * 512, 512 * 512, 512 * 10]
by_hand = 2 * b * (3 * sum(layers) - layers[0])
steps, *arrays = held["single"]
flops = steps.train_step.lower(*arrays).compile().cost_analysis()["flops"]
rate = 2 * 1500**3 / least_seconds(product, a)  # what a plain matrix product reaches on this machine
print(f"{by_hand / 1e6:.1f} MFLOP in the products by hand, {flops / 1e6:.1f} MFLOP in all by the compiler's count")
print(f"the step reaches {flops / step_seconds['single'] / rate:.0%} of this machine's {rate / 1e9:.0f} GFLOP/s")
assert 1 < flops / by_hand < 1.2

# %% [markdown]
# They agree to within a tenth: nearly all operations are in the products, and most of the rest are Adam's. A utilization is hard
# to predict, so measure it on one device.
#
# ## What the devices exchange
#
# You can compile a program for many devices and read it without running it. (This notebook simulates 64 devices for
# that.) As before, `collectives` of pmapdp finds the collectives in the program's text. **Predict:** how do the number of
# all-reduces and their bytes change from 2 to 64 devices?

# %%
parameters = count_parameters(held["single"][1].params)
for count in (2, 8, 64):
    steps = make_steps("shard_map", task, everyone[:count])
    batch = next(Batches(data.train, 16 * count, devices=count).epoch(0))
    arrays = steps.place_state(create_state(task)), steps.place_batch(batch)
    found = collectives(steps.train_step.lower(*arrays).compile().as_text())
    print(f"{count:3d} devices:", *found)
    assert sum(each.bytes for each in found) == 4 * (parameters + 3)  # the gradients, and three sums of metrics

# %% [markdown]
# Neither changes: each device contributes one gradient, whatever the number of devices. What changes is the number of
# messages that carry these bytes. [Lesson 19](19_predict_a_thousand_devices.ipynb) predicts how long they take.
#
# ## Where the time goes
#
# A profile tells *when* things happen. `jax.profiler.trace` records one. pmapdp's `longest_operations` reads it, and we print the
# six operations that take most time, summed over the eight devices and five updates.

# %%
folder = Path(tempfile.mkdtemp())
with jax.profiler.trace(str(folder), create_perfetto_trace=True):
    for _ in range(5):
        jax.block_until_ready(one_step("shard_map"))
operations = longest_operations(next(folder.glob("**/perfetto_trace.json.gz")), most=1000)
print(*operations[:6], sep="\n")
assert any("all-reduce" in line or "psum" in line for line in operations)

# %% [markdown]
# The time of an all-reduce (its name here may also be `psum`) is mostly *waiting*: it ends when the last device has arrived. (A
# `dot` is a matrix product, and a `fusion` is several operations that the compiler has put into one loop.)
# `python -m pmapdp.train --profile` writes the same trace. Open it at [ui.perfetto.dev](https://ui.perfetto.dev) to see which
# device waits for which; lesson 14 has a picture.
#
# ## The time to an accuracy
#
# What you wait for is an accuracy, and the time of a step is only half of the answer. The time to an accuracy is the time to
# start, which includes compiling, plus the number of updates times the seconds of each. To judge the accuracy, we hold back the
# last examples of the training set. (Do not choose by the test set: an accuracy that was used to choose is too optimistic.)
# **Predict:** we go from eight simulated devices to one, and then make the learning rate four times as high. Which of the three
# does each change reduce: the time to start, the number of updates, or the seconds of each?

# %%
kept, held_back = (Split(*(array[rows] for array in data.train)) for rows in (slice(1100), slice(1100, None)))


def time_to(accuracy, strategy, group, rate):
    """Seconds of the start, number of updates, and their seconds, until the held-back examples reach the accuracy."""
    task, reached, epoch, clock = Task(MLP, optax.adam(rate)), 0, 0, time.perf_counter()
    steps, state = make_steps(strategy, task, group), create_state(task)
    batches = Batches(kept, b, devices=len(group), shuffle_seed=0)
    judge = steps.place_batch(next(Batches(held_back, len(held_back.labels), devices=len(group)).epoch(0)))
    first = steps.place_state(state), steps.place_batch(next(batches.epoch(0)))
    jax.block_until_ready((steps.train_step(*first), steps.eval_step(steps.place_state(state), judge)))
    start, state = time.perf_counter() - clock, steps.place_state(state)
    while reached < accuracy:
        for batch in batches.epoch(epoch):
            state, _ = steps.train_step(state, steps.place_batch(batch))
        sums, epoch = steps.eval_step(state, judge), epoch + 1
        reached = sums.correct / sums.count
    return start, epoch * batches.steps, time.perf_counter() - clock - start


updates_needed = []
for strategy, group, rate in (("shard_map", chosen, 1e-3), ("single", everyone[:1], 1e-3), ("single", everyone[:1], 4e-3)):
    start, updates, seconds = time_to(0.95, strategy, group, rate)
    print(f"{len(group)} device(s), rate {rate}: {start:.1f} s to start, {updates} updates in {seconds:.2f} s")
    updates_needed.append(updates)
assert updates_needed[0] == updates_needed[1] > updates_needed[2]

# %% [markdown]
# One device needs the same number of updates, and each of them takes less time. The higher learning rate reduces only the number
# of updates. On one device the start takes longer than all updates, so a still faster step would help little here.
#
# For MNIST, the same was measured for the complete command, from the start of Python to the end, on two cores that did nothing
# else. Each row has one change more than the row above; put its flags behind `python -m pmapdp.train` to repeat it. **Predict:**
# one change halves the seconds and costs accuracy. Which one, and what brings the accuracy back?

# %%
way = json.loads(Path("../benchmarks/speedrun/results.json").read_text())["changes"]["found"]["way"]
for change in way:
    command, training = np.median([run[:2] for run in change["runs"]], axis=0)
    accuracy = np.mean([run[2] for run in change["runs"]])
    print(f"{command:4.1f} s, {training:4.1f} of them training, test accuracy {accuracy:.4f}: {change['words']}")
    print(" " * 5, change["flags"])
lesson_18.seconds_of_changes(way)

# %% [markdown]
# The smaller network shortens each update. One epoch instead of three leaves a third of the updates, which is not enough
# until the learning rate is higher. Label smoothing and moved images raise the accuracy further, and cost almost no time. Then
# more than half of the time is the start. The compile cache of the last row avoids most of the compiling. [Time to
# 99 %](../docs/speedrun.md) gives the reasons for each change, says what was tried in vain, and compares with PyTorch and Keras.
#
# ## Exercises
#
# **1. `mended_timer`** (5 minutes): find the planted mistakes. `broken_timer` is to return how many seconds a call of the jitted
# `function(x)` takes, until its result is there and without compiling. `clock()` gives the time in seconds. Write it correctly.
# <details><summary>Hint</summary>There are two. The picture at the beginning of this lesson shows both.</details>
#
# **2. `all_rows`** (10 minutes): `jax.jit(lambda x: (x ** 2).sum(0))` compiles again for each number of rows. Avoid that. Given
# `compiled(x, weights)`, a jitted function that sums `weights * x ** 2` over the rows (`x` `[size, D]`, `weights` `[size, 1]`),
# return the sum for an `x` `[n, D]` of any n, such that `compiled` is traced for one shape only.
# <details><summary>Hint</summary>Take <code>size</code> rows at a time. Pad the last ones with zeros, of weight 0.</details>
#
# **3. `utilization`** (5 minutes): return the share of `rate` (operations a second) that `function(x)` reaches when it takes
# `seconds`. Let JAX count its operations.
# <details><summary>Hint</summary><code>jax.jit(function).lower(x).compile().cost_analysis()</code></details>


# %%
def broken_timer(function, x, clock):
    start = clock()
    function(x)
    return clock() - start


def mended_timer(function, x, clock):
    """Seconds of a call that does not compile, from its start until its result is there."""
    ...  # your code: 4 lines


def all_rows(compiled, x, size):
    """The sum over all rows of x, from calls with `size` rows."""
    ...  # your code: 5 or 6 lines


def utilization(function, x, seconds, rate):
    """A share."""
    ...  # your code: 2 lines


for exercise in (mended_timer, all_rows, utilization):
    check("18_measure_a_step", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/18_measure_a_step.py](solutions/18_measure_a_step.py)
#
# ## Take away
#
# - Warm up, keep the shapes, and wait for the result. A time without these is not the time of a step.
# - The compiled program tells what is computed and what is exchanged; a profile tells when. In it, the time of a collective is
#   mostly waiting for the slowest device.
# - The time to an accuracy is the time to start, plus the number of updates times the seconds of each.
#
# The code is in [compare/](../src/pmapdp/compare/runs.py) and [run/profile.py](../src/pmapdp/run/profile.py). Read on:
# [benchmarking and profiling](https://docs.jax.dev/en/latest/201/profiling.html). Next:
# [19 Predict a thousand devices](19_predict_a_thousand_devices.ipynb).

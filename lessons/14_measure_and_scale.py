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
# # 14. Measure, and scale
#
# After this lesson you can time a training step honestly, read from a compiled program and from a profile what it does,
# and say what a thousand devices would do, and how far to believe it.
#
# About 30 minutes · before: [13 Train with many processes](13_many_processes.ipynb) · next: the
# [README](../README.md), for work of your own
#
# Letters: N devices, b examples on each, n bytes in an all-reduce, a latency, B bandwidth.

# %%
import dataclasses
import tempfile
import time
from pathlib import Path

import drawing
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from checks import check
from jax import P, lax
from jax.sharding import Mesh, NamedSharding
from scipy.optimize import nnls

from pmapdp import devices
from pmapdp.collectives import collectives
from pmapdp.cpu.loop import several
from pmapdp.data.batches import Batches
from pmapdp.models.cnn import CNN
from pmapdp.registry import load_data
from pmapdp.run.profile import longest_operations
from pmapdp.scaling.advice import answers
from pmapdp.scaling.costs import all_reduce
from pmapdp.scaling.hardware import HARDWARE, Level
from pmapdp.scaling.predict import LEFT_OUT, Plan, powers_of_two, predict, weak_efficiency
from pmapdp.scaling.workloads import PUBLISHED, Workload
from pmapdp.state import Task, count_parameters, create_state
from pmapdp.steps import make_steps

devices.simulate(64)
drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
everyone, N = jax.devices(), 8
chosen = everyone[:N]
print(devices.describe(chosen), "| jax", jax.__version__)

# %% [markdown]
# ## What a clock sees
#
# A call of a jitted function returns before the result is there: Python has only *dispatched* the work. The first call
# also traces and compiles. So one line of Python has four durations, and only one of them is the speed of the step.

# %%
axes = drawing.canvas(20, 5.2)
for row, (name, pieces) in enumerate(
    [("Python", [("trace", 2.2), ("compile", 4.6), ("call", 1.4), ("call", 1.4)]), ("device", [("step", 3.4), ("step", 3.4)])]
):
    left = 2.6 if name == "Python" else 10.8
    axes.text(0, 1.5 + 1.5 * row, name, va="center", weight="bold")
    for text, width in pieces:
        drawing.box(axes, left, 1.1 + 1.5 * row, text, device=row, width=width - 0.1)
        left += width
for y, start, end, name in ((0.6, 2.6, 10.8, "first call"), (4, 10.8, 12.2, "without waiting"), (4.8, 14.2, 17.6, "a step")):
    axes.annotate("", (end, y), (start, y), arrowprops={"arrowstyle": "<->", "color": drawing.INK})
    axes.text(end + 0.2, y, name, va="center")

# %% [markdown]
# The smallest case: a matrix product. The list `traced` grows when JAX traces the function, not when it runs it.
# **Predict** its length after all calls, and which two of the printed times are no speed at all.

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
# **A failure on purpose.** The last batch of an epoch is smaller, and nobody pads it. Then the program is compiled
# again, in the middle of what you measure, and once more for each new shape. Count traces, they do not depend on how
# busy the machine is.

# %%
for rows in (64, 64, 64, 29):
    product(jnp.ones((rows, rows)))
print("traced for", traced[1:])
assert traced[1:] == [(64, 64), (29, 29)]

# %% [markdown]
# So: warm up, give the same shapes, wait for the result, repeat. Report the median with a range; take the fastest where
# you want the cost of the work without what else the machine did. For a whole training loop wait once per group of
# steps, as `pmapdp.compare` does: waiting after each would forbid Python to run ahead.


# %%
def least_seconds(function, *arguments, repeats=12):
    times = []
    for _ in range(repeats + 2):
        clock = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - clock)
    return min(times[2:])  # <- the first two warm up


task, data, b = Task(CNN, optax.adam(1e-3)), load_data(DATASET), 32
held = {}
for strategy, group in (("single", everyone[:1]), ("shard_map", chosen)):
    steps, batches = make_steps(strategy, task, group), Batches(data.train, b * len(group), devices=len(group))
    held[strategy] = [steps, steps.place_state(create_state(task)), steps.place_batch(next(batches.epoch(0)))]


def one_step(strategy):
    steps, state, batch = held[strategy]
    held[strategy][1], sums = steps.train_step(state, batch)
    return held[strategy][1], sums


step_seconds = {strategy: least_seconds(one_step, strategy) for strategy in held}
print({strategy: f"{1000 * seconds:.1f} ms" for strategy, seconds in step_seconds.items()})

at_once = several(steps, steps.train_step, 4, N)  # <- new: shard_map's step in a loop on the devices
(four,) = batches.several(0, 0, [4], 4)
apart = steps.place_state(create_state(task))
placed, looped = at_once.place(four, 4), [steps.place_state(create_state(task))]


def four_steps():
    looped[0], sums = at_once.run(looped[0], *placed)
    return looped[0], sums


for batch, _ in zip(batches.epoch(0), range(4), strict=False):
    apart, _ = steps.train_step(apart, steps.place_batch(batch))
for found, wanted in zip(jax.tree.leaves(four_steps()[0]), jax.tree.leaves(apart), strict=True):
    assert np.allclose(found, wanted, rtol=0, atol=1e-5)
print(f"four steps in one call: {1000 * least_seconds(four_steps) / 4:.1f} ms a step")

# %% [markdown]
# `shard_map` trains eight times as many examples on the same cores: no speed-up here, and none is possible.
#
# Each call costs the host some time, once for each device. Where steps are short, a loop on the devices saves it: the
# same updates from fewer calls. `pmapdp.train` does so on CPUs (`--steps-per-dispatch`); what it gives up is hearing of
# each step as it ends.
#
# ## What the program says
#
# How fast could it be? Count operations. A product of `[m, k]` and `[k, n]` takes 2 m k n. **Predict** it for
# `[8, 4] @ [4, 2]`. Then the training step: the two dense layers by hand (forward, and two gradients), and the compiler's
# count of everything. The share of the machine's speed that a step reaches is the *utilization*. Nobody can predict it
# well; measure it on one device.
#
# And what do the devices say to each other? A program can be compiled for many devices without running it, from shapes
# alone. **Predict** how count and bytes change from 2 to 64 devices.

# %%
assert jax.jit(jnp.dot).lower(jnp.ones((8, 4)), jnp.ones((4, 2))).compile().cost_analysis()["flops"] == 2 * 8 * 4 * 2

dense = 3 * 2 * b * (5408 * 64 + 64 * 10)
steps, *arrays = held["single"]
analysis = steps.train_step.lower(*arrays).compile().cost_analysis()
flops, moved = analysis["flops"], analysis["bytes accessed"]
rate = 2 * 1500**3 / least_seconds(product, a)  # what a plain matrix product reaches here
print(f"{dense / 1e6:.1f} MFLOP in the dense layers, {flops / 1e6:.1f} MFLOP in all")
print(f"the step reaches {flops / step_seconds['single'] / rate:.0%} of this machine's {rate / 1e9:.0f} GFLOP/s")
assert dense < flops < 3 * dense

parameters = count_parameters(held["single"][1].params)
for count in (2, 8, 64):
    steps = make_steps("shard_map", task, everyone[:count])
    batch = next(Batches(data.train, 16 * count, devices=count).epoch(0))
    arrays = steps.place_state(create_state(task)), steps.place_batch(batch)
    found = collectives(steps.train_step.lower(*arrays).compile().as_text())
    print(f"{count:3d} devices:", *found)
    assert found == [("all-reduce", 1, 4 * (parameters + 3))]  # the gradients, and three sums of the metrics

# %% [markdown]
# They do not change. What changes is the way the bytes take. The count tells you *what* is exchanged; for *when*, look
# at a profile: which operations take the time, summed over devices and updates.

# %%
folder = Path(tempfile.mkdtemp())
with jax.profiler.trace(str(folder), create_perfetto_trace=True):
    for _ in range(5):
        jax.block_until_ready(one_step("shard_map"))
operations = longest_operations(next(folder.glob("**/perfetto_trace.json.gz")), most=1000)
print(*operations[:6], sep="\n")
assert any("all-reduce" in line or "psum" in line for line in operations)

# %% [markdown]
# The all-reduce (`psum`) that stands high here mostly *waits*: it ends when the last device has come. `python -m pmapdp.train
# --profile` writes the same trace; open it at ui.perfetto.dev to see who waits for whom.
#
# ## The cost model
#
# A message of n bytes takes a + n / B seconds: a latency and a bandwidth. Around a ring (lesson 05) each device sends
# 2 (N - 1) messages of n / N bytes. So with many devices the bytes reach a limit, 2 n / B, but the latencies grow with N.
# In your head: 4 devices, 4 MB, 1 microsecond, 1 GB/s.

# %%
link = Level(devices=4096, latency=1e-6, bandwidth=1e9)
assert np.isclose(all_reduce(4e6, 4, [link], "ring"), 6 * (1e-6 + 1e6 / 1e9))
for count in (2, 4, 64, 4096):
    big, tiny = (all_reduce(n, count, [link], "ring") for n in (4e6, 4))
    print(f"{count:5d} devices: 4 MB takes {1e3 * big:6.3f} ms, 4 bytes {1e3 * tiny:6.3f} ms")

# %% [markdown]
# Does it hold where we can measure? Simulated devices share one memory, so their formula is start + N (a + n / B). We
# fit the three constants to some numbers of devices and predict the ones left out. **Predict** where it fails.

# %%
rows = []
for count in (2, 4, 8):
    split = NamedSharding(Mesh(np.array(everyone[:count]), ("data",)), P("data"))
    reduce = jax.jit(jax.shard_map(lambda x: lax.pmean(x, "data"), mesh=split.mesh, in_specs=P("data"), out_specs=P("data")))
    for size in (2**14, 2**17, 2**20, 2**23):
        x = jax.device_put(np.ones((count, size // 4), np.float32), split)
        rows.append({"devices": count, "bytes": size, "seconds": least_seconds(reduce, x)})


def terms(count, size):
    return np.array([1, count, count * size], float)  # times start, a and 1 / B


def fit(rows):  # the constants, none negative, with the least sum of squared relative errors
    design = np.array([terms(row["devices"], row["bytes"]) / row["seconds"] for row in rows])
    return nnls(design / design.max(axis=0), np.ones(len(rows)))[0] / design.max(axis=0)


constants, errors = fit(rows), []
for row in rows:
    others = fit([other for other in rows if other["devices"] != row["devices"]])
    errors.append(others @ terms(row["devices"], row["bytes"]) / row["seconds"] - 1)
    if row["bytes"] in (2**14, 2**23):
        print(f"{row['devices']} devices, {row['bytes'] / 1e6:4.2f} MB: {1e3 * row['seconds']:6.2f} ms, error {errors[-1]:+.0%}")
print(f"median error {np.median(np.abs(errors)):.0%}")

_, axes = plt.subplots()
for number, count in enumerate((2, 4, 8)):
    sizes = [row["bytes"] for row in rows if row["devices"] == count]
    axes.loglog(sizes, [1e3 * row["seconds"] for row in rows if row["devices"] == count], "o", color=drawing.DEVICE_COLOURS[number])
    line = [1e3 * constants @ terms(count, size) for size in sizes]
    axes.loglog(sizes, line, color=drawing.DEVICE_COLOURS[number], label=f"{count} devices")
axes.set(xlabel="bytes on each device", ylabel="ms (points: measured)")
axes.legend();

# %% [markdown]
# Errors of some tens of percent are usual: caches, threads and other work are not in the formula. Enough to say whether
# communication is a tenth of a step or half of it, which is what one needs to know.
#
# ## A thousand devices
#
# The same formulas with published figures of real hardware. **These are predictions.** Our CNN with 64 examples a
# device, and ResNet-50, from 1 to 4,096 devices. **Predict** which of the two scales, and why.

# %%
ours = Workload("cnn", parameters=parameters, flops=flops / b, bytes=moved / b)
_, axes = plt.subplots()
for name, colour in (("h100", 0), ("tpu-v5p", 2)):
    for workload, style in ((ours, "--"), (PUBLISHED["resnet-50"], "-")):
        counts = powers_of_two(HARDWARE[name])
        shares = [weak_efficiency(workload, HARDWARE[name], count, Plan()) for count in counts]
        axes.semilogx(counts, shares, style, base=2, color=drawing.DEVICE_COLOURS[colour], label=f"{workload.name}, {name}")
        at = predict(workload, HARDWARE[name], 1024, Plan())
        print(f"{workload.name:9s} on 1,024 {name:7s}: step {1e3 * at.step:6.3f} ms, waiting {at.communication_share:.0%}")
axes.set(xlabel="devices", ylabel="efficiency, predicted", ylim=(0, 1.05))
axes.legend(fontsize=8)
assert weak_efficiency(ours, HARDWARE["h100"], 1024, Plan()) < 0.5 < weak_efficiency(PUBLISHED["resnet-50"], HARDWARE["h100"], 1024, Plan())

# %% [markdown]
# A device does the CNN's 64 examples in microseconds, and latency is most of the step. What helps? Each remedy alone,
# in examples per second:

# %%
for each in answers(ours, HARDWARE["h100"], 512, Plan()):
    print(f"{each.remedy:31s} {each.gain:+7.0%}  {'pays' if each.pays else 'does not pay'}  {each.price}")
more = dataclasses.replace(Plan(), per_device_batch=8192)
print(f"with 8,192 examples a device: efficiency {weak_efficiency(ours, HARDWARE['h100'], 512, more):.0%}")
print("\nleft out:", *LEFT_OUT, sep="\n  ")

# %% [markdown]
# A larger batch buys speed in examples, not in progress: the model does not know how many updates you need then.
# `python -m pmapdp.scaling` prints all of this for your model; `python -m benchmarks.scaling` measures its errors here.
#
# ## Exercises
#
# Solutions: [solutions/14_measure_and_scale.py](solutions/14_measure_and_scale.py).
#
# 1. `seconds_per_call`: how long a *warm* call of `function(x)` takes until its result is there. `clock()` gives the
#    time in seconds. <details><summary>Hint</summary>One call before the clock starts, and wait for it too.</details>
# 2. `bytes_sent`: what each of N devices sends in a ring all-reduce of n bytes.
#    <details><summary>Hint</summary>Messages times size; for N = 4 it is 1.5 n.</details>
# 3. `least_batch`: the least whole number of examples per device for which the all-reduce takes at most `share` of the
#    step. A step is the examples' time plus the all-reduce. <details><summary>Hint</summary>Solve
#    r = share * (b * e + r) for b, and round up.</details>


# %%
def seconds_per_call(function, x, clock):
    """Seconds of one warm call, from its start until its result is there."""
    ...  # your code: 4 lines


def bytes_sent(n, N):
    """Bytes that each device sends."""
    ...  # your code: 1 line


def least_batch(example_seconds, reduce_seconds, share):
    """Examples per device, a whole number."""
    ...  # your code: 1 or 2 lines


for exercise in (seconds_per_call, bytes_sent, least_batch):
    check("14_measure_and_scale", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# * Warm up, keep shapes, wait for the result. A time without these is not a speed.
# * A compiled program tells what is exchanged, a profile tells when.
# * Latency and bandwidth predict a thousand devices well enough to choose, not to boast. Say "predicted".
#
# This code lives in [pmapdp/scaling/costs.py](../pmapdp/scaling/costs.py) and
# [predict.py](../pmapdp/scaling/predict.py), with the hardware and its sources in
# [hardware.py](../pmapdp/scaling/hardware.py).

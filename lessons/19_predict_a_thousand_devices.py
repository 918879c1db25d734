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
# # 17. Predict a thousand devices
#
# After this lesson you can predict from latency and bandwidth how a training step scales to many devices. You can check such
# a model where you can measure, and say how far to trust it where you cannot.
#
# About 25 minutes · before: [18 Measure a step](18_measure_a_step.ipynb) · next:
# [11 Explicit sharding](11_explicit_sharding.ipynb), or work of your own
#
# Letters: N devices, b examples on each, n bytes in an all-reduce, L the latency of a message in seconds, W the
# bandwidth of a link in bytes per second.

# %%
import math
import time

import jax
import numpy as np
import optax
from jax import P, lax
from jax.sharding import Mesh, NamedSharding
from scipy.optimize import nnls

from pmapdp import devices
from pmapdp.data.batches import Batches
from pmapdp.models.mlp import MLP
from pmapdp.registry import load_data
from pmapdp.scaling.costs import all_reduce
from pmapdp.scaling.hardware import HARDWARE, Level
from pmapdp.scaling.predict import LEFT_OUT, Plan, predict, remedies, weak_efficiency
from pmapdp.scaling.workloads import PUBLISHED, Workload
from pmapdp.state import Task, count_parameters, create_state
from pmapdp.steps import make_steps
from pmapdp_lessons import drawing
from pmapdp_lessons.checks import check
from pmapdp_lessons.pictures import lesson_19

devices.simulate(8)
drawing.setup()
everyone = jax.devices()
print(devices.describe(everyone), "| jax", jax.__version__)

# %% [markdown]
# ## The cost model
#
# A message of n bytes takes L + n / W seconds: the latency, and the time for the bytes. In a ring all-reduce (lesson 06), each
# device sends 2 (N - 1) messages of n / N bytes, one after the other:
#
# ```
# time = 2 (N - 1) (L + n / (N W))
# ```
#
# In your head: 4 devices, 4 MB, a latency of 1 microsecond, 1 GB/s. That is 6 messages of 1 MB, so 6 ms and 6 microseconds.
# **Predict:** what happens to the time with many devices, for 4 MB and for 4 bytes?

# %%
link = Level(devices=4096, latency=1e-6, bandwidth=1e9, trees=False)
assert np.isclose(all_reduce(4e6, 4, [link]), 6 * (1e-6 + 1e6 / 1e9))
for count in (2, 4, 64, 4096):
    big, tiny = (all_reduce(n, count, [link]) for n in (4e6, 4))
    print(f"{count:5d} devices: 4 MB takes {1e3 * big:6.3f} ms, 4 bytes {1e3 * tiny:6.3f} ms")
assert all_reduce(4e6, 4096, [link]) - 2 * 4095 * 1e-6 < 2 * 4e6 / 1e9  # the share of the bytes: below 2 n / W

# %% [markdown]
# The time for the bytes approaches a limit, 2 n / W. The time for the latencies grows with N. So one all-reduce of a large
# array scales better than many all-reduces of small ones. There are also all-reduces along a tree. They send as many bytes as a ring, but
# only about log N messages one after the other. Libraries choose between the two by the size of the array.
#
# ## Does it hold where we can measure?
#
# Simulated devices share one memory and take turns on the same cores, so their formula is another one:
# start + N (L + n / W). First we measure all-reduces of four sizes on 2, 4 and 8 devices.


# %%
def least_seconds(function, *arguments, repeats=12):
    times = []
    for _ in range(repeats + 2):
        clock = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - clock)
    return min(times[2:])


rows = []
for count in (2, 4, 8):
    split = NamedSharding(Mesh(np.array(everyone[:count]), ("data",)), P("data"))
    specs = {"mesh": split.mesh, "in_specs": P("data"), "out_specs": P("data"), "check_vma": False}
    reduce = jax.jit(jax.shard_map(lambda x: lax.pmean(x, "data"), **specs))
    for size in (2**14, 2**17, 2**20, 2**23):
        x = jax.device_put(np.ones((count, size // 4), np.float32), split)
        rows.append({"devices": count, "bytes": size, "seconds": least_seconds(reduce, x)})
print(f"{len(rows)} measurements, from {1e3 * rows[0]['seconds']:.2f} to {1e3 * rows[-1]['seconds']:.2f} ms")

# %% [markdown]
# Then we fit the three constants of the formula to the measurements for two device counts, and predict those for the third.
# **Predict:** how large will the errors be: a few percent, some tens of percent, or several times the true value?


# %%
def terms(count, size):
    return np.array([1, count, count * size], float)  # times start, L and 1 / W


def fit(rows):  # the constants, none negative, with the least sum of squared relative errors
    design = np.array([terms(row["devices"], row["bytes"]) / row["seconds"] for row in rows])
    return nnls(design / design.max(axis=0), np.ones(len(rows)))[0] / design.max(axis=0)


errors = []
for row in rows:
    others = fit([other for other in rows if other["devices"] != row["devices"]])
    errors.append(others @ terms(row["devices"], row["bytes"]) / row["seconds"] - 1)
    if row["bytes"] in (2**14, 2**23):
        found = f"{1e3 * row['seconds']:6.2f} ms, error {errors[-1]:+.0%}"
        print(f"{row['devices']} devices, {row['bytes'] / 1e6:4.2f} MB: {found}")
print(f"median error {np.median(np.abs(errors)):.0%}")
assert np.median(np.abs(errors)) < 1

# %% [markdown]
# The picture shows the measurements as points, and as lines the formula with the constants fitted to all of them.

# %%
lesson_19.fitted(rows, fit(rows), terms)

# %% [markdown]
# Errors of some tens of percent are usual, because caches, threads and other programs are not in the formula. That is good enough
# to say whether communication is a tenth of a step or half of it.
#
# ## A thousand devices
#
# Now we put published figures of real hardware into the formulas of rings and trees. **These are predictions.** They also need
# the number of operations in a step. For our MLP with 64 examples on each device the compiler counts them (lesson 18), and for
# ResNet-50 they are published. *Efficiency* is the speed of each device compared with one device alone. **Predict:** which of
# the two networks scales better, and why?

# %%
task, data = Task(MLP, optax.adam(1e-3)), load_data("digits")
single = make_steps("single", task, everyone)
state = single.place_state(create_state(task))
batch = single.place_batch(next(Batches(data.train, 64).epoch(0)))
analysis = single.train_step.lower(state, batch).compile().cost_analysis()
parameters = count_parameters(state.params)
ours = Workload("mlp", parameters=parameters, flops=analysis["flops"] / 64, bytes=analysis["bytes accessed"] / 64)

curves, counts = {}, [2**power for power in range(13)]  # 1 to 4,096 devices
for name in ("h100", "tpu-v5p"):
    for workload in (ours, PUBLISHED["resnet-50"]):
        shares = [weak_efficiency(workload, HARDWARE[name], count, Plan()) for count in counts]
        curves[workload.name, name] = counts, shares
        at = predict(workload, HARDWARE[name], 1024, Plan())
        waiting = f"step {1e3 * at.step:6.3f} ms, of which {at.exposed / at.step:.0%} is communication"
        print(f"{workload.name:9s} on 1,024 {name:7s}: {waiting}")
lesson_19.efficiencies(curves)
efficiencies = [weak_efficiency(each, HARDWARE["h100"], 1024, Plan()) for each in (ours, PUBLISHED["resnet-50"])]
assert efficiencies[0] < 0.5 < efficiencies[1]

# %% [markdown]
# ResNet-50 scales better. A device computes the MLP's 64 examples in some microseconds, and then mostly waits for the all-reduce.
# ResNet-50 computes much longer for each byte that it all-reduces. (The TPU's curves first fall and then rise, because two
# devices can use the links of only one of the three axes of its torus.)
#
# ## What helps
#
# The next cell shows what each remedy alone gains for the MLP on 512 devices. An all-reduce *is* a reduce-scatter and an
# all-gather, so ZeRO-1 (lesson 16) spends exactly as much time on communication as plain data parallelism. **Predict:** does it
# gain anything?

# %%
plain = predict(ours, HARDWARE["h100"], 512, Plan())
for name, (plan, price) in remedies(Plan()).items():
    changed = predict(ours, HARDWARE["h100"], 512, plan)
    gain = changed.examples_per_second / plain.examples_per_second - 1
    print(f"{name:31s} {gain:+7.0%} examples/s  price: {price}")
    if "ZeRO-1" in name:
        assert 0 < gain < 0.1
        np.testing.assert_allclose(changed.communication, plain.communication)
more = Plan(per_device_batch=8192)
print(f"with 8,192 examples a device: efficiency {weak_efficiency(ours, HARDWARE['h100'], 512, more):.0%}")
print("\nleft out:", *LEFT_OUT, sep="\n  ")

# %% [markdown]
# ZeRO-1 gains a little time, because each device updates only its share of the parameters. Its memory is the better reason
# for it (lesson 16).
#
# **A failure of the model, on purpose.** With 8,192 examples a device the efficiency looks nearly perfect. But 512 such devices
# take 4 million examples in one update, and MNIST has 60,000. A larger batch gives more examples per second, but it does not cut
# the number of updates in the same proportion. The cost model knows nothing of that.
#
# `python -m pmapdp.scaling` prints all of this for a model of your choice, and `python -m benchmarks.scaling` measures the errors.
#
# ## Exercises
#
# **1. `ring_sum`** (10 minutes): write the reduce-scatter of a ring with `lax.ppermute`. In `shard_map` over the axis "data" of N
# devices, x `[n]` is this device's array. Cut it into N parts, and return `[n / N]`: device d returns part d of the sum. Each
# device sends N - 1 messages of n / N numbers.
# <details><summary>Hint</summary>Part d starts at device d + 1. In each round, send what you have to the next device, and add your
# own numbers of the part that has arrived. Which part is that after round r?</details>
#
# **2. `bytes_sent`** (3 minutes): return how many bytes each of N devices sends in a ring all-reduce of n bytes.
# <details><summary>Hint</summary>Messages times size; for N = 4 it is 1.5 n.</details>
#
# **3. `mended_batch`** (5 minutes): find the planted mistake. `broken_batch` is to return the least number of examples per device
# with which the all-reduce takes at most `share` of a step. An example takes `example_seconds`, and the all-reduce takes
# `reduce_seconds`. The number that it returns is larger than necessary. Write it correctly.
# <details><summary>Hint</summary>Of which time is the share? Write down the seconds of a step with b examples, and solve for
# b.</details>


# %%
def broken_batch(example_seconds, reduce_seconds, share):
    return math.ceil(reduce_seconds / (share * example_seconds))


def ring_sum(x):
    """[n / N], part d of the sum on device d."""
    ...  # your code: 6 or 7 lines


def bytes_sent(n, N):
    """Bytes that each device sends."""
    ...  # your code: 1 line


def mended_batch(example_seconds, reduce_seconds, share):
    """Examples per device, a whole number."""
    ...  # your code: 1 or 2 lines


for exercise in (ring_sum, bytes_sent, mended_batch):
    check("19_predict_a_thousand_devices", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/19_predict_a_thousand_devices.py](solutions/19_predict_a_thousand_devices.py)
#
# ## Take away
#
# - In a ring, the time for the latencies grows with the number of devices, and the time for the bytes approaches 2 n / W.
# - The model is good enough to choose a plan. Say that its results are predicted, and say what it leaves out.
# - ZeRO-1 saves memory at equal communication. A larger batch gives more examples per second, but seldom reduces the number of
#   updates as much.
#
# The code is in [scaling/costs.py](../src/pmapdp/scaling/costs.py) and [scaling/predict.py](../src/pmapdp/scaling/predict.py), with the
# hardware and its sources in [scaling/hardware.py](../src/pmapdp/scaling/hardware.py). Read on: the scaling book on
# [rooflines](https://jax-ml.github.io/scaling-book/roofline/) and on [training](https://jax-ml.github.io/scaling-book/training/).
# Next: [11 Explicit sharding](11_explicit_sharding.ipynb), or work of your own.

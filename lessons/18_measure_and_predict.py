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
# # 18. Measure and predict
#
# Your program trains on one GPU, and somebody offers you 64. How much faster will it be? You can answer that without
# having the 64. Time a step on one device, look up in the compiled program what it computes and sends, and calculate
# how long the all-reduce takes. In this lesson you'll do that, and then you'll compare such predictions with published
# runs. The result is sobering: for two of three runs the prediction is hardly better than saying "nothing is lost".
#
# **You will** time a step without fooling yourself, count operations and bytes, find out whether memory or arithmetic
# is the limit, read a profile, predict the speed of many devices, and say how wrong the prediction was. 28 minutes, 53
# with exercises. You need [06 Communicate between devices](06_communicate_between_devices.ipynb) and
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_18

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"
lesson_18.three_durations()

# %% [markdown]
# ## What a clock sees
#
# If you put a clock around a call of a jitted function, you can measure three different things. The first call also traces
# and compiles. A later call returns before the result is there, because Python only *dispatches* the work (as in PyTorch on
# a GPU). Only if you wait for the result do you measure a step.
#
# **Predict:** which of the three is the shortest?

# %% tags=["prediction"]
import time

traced = []  # grows when JAX traces the function, and not when the function runs


@jax.jit
def product(a):
    traced.append(a.shape)
    return a @ a


def seconds(a, wait):
    start = time.perf_counter()
    result = product(a)
    if wait:
        jax.block_until_ready(result)
    end = time.perf_counter()
    jax.block_until_ready(result)  # or the next clock would see the rest of this call
    return end - start


a = jnp.ones((1500, 1500))
first = seconds(a, wait=True)
without_waiting = min(seconds(a, wait=False) for _ in range(5))
waiting = min(seconds(a, wait=True) for _ in range(5))
print(
    f"first call {1000 * first:.1f} ms, without waiting {1000 * without_waiting:.2f} ms", end=", "
)
print(f"waiting {1000 * waiting:.1f} ms")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Without waiting. You'd report a step that's hundreds or even thousands of times too fast.
#
# </details>
#
# Many timings contain a second mistake: the last batch of an epoch is smaller, and nobody pads it.
#
# **Predict:** four calls with 64, 64, 64 and 29 rows. How many times does JAX trace the function?

# %% tags=["prediction"]
for rows in (64, 64, 64, 29):
    product(jnp.ones((rows, rows)))
print("traced for", traced[1:])

# %% [markdown]
# <details><summary>Answer</summary>
#
# Twice. The 29 rows are a new shape, so JAX traces and compiles again, in the middle of what you measure.
#
# </details>
#
# So warm up, keep the shapes, wait for the result, and repeat. Report the median and the range. In a training loop, time
# groups of steps. If you wait after every step, Python can't prepare the next one meanwhile.
#
# Don't time several simulated devices. They share the cores of your machine, so their times say nothing about real
# devices. But you can count what a compiled program computes, keeps and sends, and these counts don't depend on your
# machine's cores.
#
# ## What it computes
#
# A product of `[m, k]` and `[k, n]` takes 2 m k n floating-point operations (FLOPs): one multiplication and one addition for
# each term. In training there are three products for each layer: one forward, one for the gradient of the weights, and one
# for the gradient of the inputs. `cost_analysis` counts them in a compiled program.
#
# **Predict:** a network of 12 layers, written in three ways. For which of them does it count three times the forward pass?

# %% tags=["prediction"]
from jax import lax

layers, x = np.zeros((12, 128, 128), np.float32), np.zeros((64, 128), np.float32)
forward = 12 * 2 * 64 * 128 * 128  # by hand


def layer(x, w):
    return jnp.tanh(x @ w), None


def count_flops(layer, unroll=1):
    gradient = jax.grad(lambda layers, x: lax.scan(layer, x, layers, unroll=unroll)[0].sum())
    return jax.jit(gradient).lower(layers, x).compile().cost_analysis()["flops"]


counted = {
    "written out": count_flops(layer, unroll=12),
    "scan": count_flops(layer),
    "scan with jax.checkpoint": count_flops(jax.checkpoint(layer)),
}
for name, flops in counted.items():
    print(f"{name:25s} {flops / forward:.2f} times the forward pass")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only if it's written out. **The body of a scan is counted once**, however often it runs: 3 of 36 products. With
# `jax.checkpoint` it's 4 products instead of 3, because one is computed again.
#
# </details>
#
# So count by hand what the *model* needs. Divide it by the time and by the peak in the data sheet of your device, and
# you have the **model FLOPs utilization**, MFU. If you count what the hardware does instead (HFU), rematerialization
# gives you a larger number, although it makes nothing faster.
#
# ## What it sends
#
# You can compile a program for many devices without running it. Here's a data-parallel step on 2, 4 and 8 devices, with 32
# examples on each.
#
# **Predict:** how does the number of bytes in the all-reduce change with the number of devices? And the number of
# operations on a device?

# %% tags=["prediction"]
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.compare.collectives import collectives  # reads the all-reduces from a compiled program

shapes = {"W1": (784, 512), "W2": (512, 512), "W3": (512, 10)}
params = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
parameters = sum(w.size for w in params.values())


def loss(params, batch):
    hidden = jax.nn.relu(jax.nn.relu(batch[0] @ params["W1"]) @ params["W2"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["W3"], batch[1]).mean()


def compile_for(N):
    mesh = Mesh(jax.devices()[:N], ("data",))
    replicated, split = (
        NamedSharding(mesh, PartitionSpec()),
        NamedSharding(mesh, PartitionSpec("data")),
    )

    def step(params, batch):
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params, batch))

    batch = (
        jax.ShapeDtypeStruct((32 * N, 784), np.float32),
        jax.ShapeDtypeStruct((32 * N,), np.int32),
    )
    jitted = jax.jit(
        step, in_shardings=(replicated, split), out_shardings=replicated, donate_argnums=0
    )
    return jitted.lower(params, batch).compile()


sent = {}
for N in (2, 4, 8):
    program = compile_for(N)
    (found,) = collectives(program.as_text())
    sent[N] = found.bytes
    flops = program.cost_analysis()["flops"]
    print(f"{N} devices: {found.count} {found.kind} of {found.bytes / 1e6:.2f} MB", end=", ")
    print(f"{flops / 1e6:.0f} MFLOP on a device")

# %% tags=["proof"]
# The asserts behind the answers so far.
assert without_waiting < waiting < first
assert traced == [(1500, 1500), (64, 64), (29, 29)]
assert 2.9 < counted["written out"] / forward < 3.1
assert 0.24 < counted["scan"] / forward < 0.26
assert 1.3 < counted["scan with jax.checkpoint"] / counted["scan"] < 1.4
assert list(sent.values()) == [4 * parameters] * 3
assert found.count == 1

# %% [markdown]
# <details><summary>Answer</summary>
#
# Neither changes, because every device puts exactly one gradient into the all-reduce. What does grow is the number of
# messages that carry it.
#
# </details>
#
# There are three gradients and *one* all-reduce. XLA has combined them, because each message costs a latency. But this one
# all-reduce can start only when the last gradient is there, and then there's nothing left to compute meanwhile. To **overlap**
# communication with the backward pass, a program needs several that start early. DDP cuts the gradients into buckets for
# that (`bucket_cap_mb`); XLA for GPUs has `--xla_gpu_all_reduce_combine_threshold_bytes`.
#
# ## Memory or arithmetic?
#
# A device computes, and meanwhile it fetches numbers from its memory. Whichever takes longer decides how long the step
# takes. An A100 does 156 TFLOP/s (TF32) and reads 2.04 TB/s, so it can do 76 operations for each
# byte that it reads. A layer reads each of its weights once, which is 4 bytes. It uses the weight
# for b examples, and that's 2 operations for each example.
#
# **Predict:** from how many examples on is the arithmetic the limit?

# %% tags=["prediction"]
from pmapdp.scaling import HARDWARE, Level, reduce_scatter  # published figures and their sources

a100 = HARDWARE["a100"]
b, D = 2.0 ** np.arange(0, 13), 4096  # a product of [b, D] and [D, D]
operations, moved = 2 * b * D * D, 4 * (D * D + 2 * b * D)  # weights, inputs and results
attainable = np.minimum(a100.peak["float32"], operations / moved * a100.memory_bandwidth)
lesson_18.roofline(b, attainable, a100.peak["float32"])

# %% tags=["proof"]
# The asserts behind the answer.
assert 150 < 4 / 2 * a100.peak["float32"] / a100.memory_bandwidth < 155
assert attainable[7] < a100.peak["float32"] == attainable[8]

# %% [markdown]
# <details><summary>Answer</summary>
#
# From 2 b / 4 = 76 on, so from about 153 examples. (It's 165 for this layer, because inputs and results are read and
# written, too.) To the left of that, twice as many examples take hardly any more time.
#
# </details>
#
# This is called a **roofline**. It tells you two things. A per-device batch of 8 wastes most of a GPU. And elementwise work,
# such as an optimizer update, is always limited by memory, because it does few operations for each byte.
#
# ## Where the time goes: a profile
#
# If a step is slower than that, look at a profile. Name the parts of your step with `jax.named_scope`, and trace a few steps
# after the first. Here we do it on one device, and print the longest operations.

# %%
import tempfile
from pathlib import Path

from pmapdp.run.report import longest_operations


@jax.jit
def named_step(params, batch):
    with jax.named_scope("gradients"):
        gradients = jax.grad(loss)(params, batch)
    with jax.named_scope("update"):
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)


batch = np.ones((256, 784), np.float32), np.zeros(256, np.int32)
trained = jax.block_until_ready(named_step(params, batch))
folder = Path(tempfile.mkdtemp())
with jax.profiler.trace(str(folder), create_perfetto_trace=True):
    for _ in range(5):
        trained = jax.block_until_ready(named_step(trained, batch))
print(*longest_operations(next(folder.glob("**/perfetto_trace.json.gz")), most=5), sep="\n")

# %% [markdown]
# Each operation was called five times, once in each step. A `dot` is a matrix product, and a `fusion` is several
# operations that the compiler has merged into one. Open the file at [ui.perfetto.dev](https://ui.perfetto.dev) to see
# them over time, with the names of your scopes in the details.
#
# In a profile of several GPUs, look at the all-reduce. Its bar starts on each device when that device is ready, and ends on
# all at the same time. If the bars start at different times, the early devices wait for the slowest
# one. If they start together, their length is the time of the transfer. If there are gaps before
# each step, the devices wait for Python or for data.
#
# ## Predict the all-reduce
#
# In a ring (lesson 06), each device sends 2 (N - 1) messages, each with an N-th of the n bytes. A message takes a fixed
# latency L, plus its bytes divided by the bandwidth W:
#
# ```
# seconds = 2 (N - 1) (L + n / (N W))
# ```
#
# With 4 devices, 4 MB, 1 microsecond and 1 GB/s, that's 6 messages of 1 MB: 6 ms and 6 microseconds.
#
# **Predict:** go from 4 devices to 4,096. What happens to the time for 4 MB? And for 4 bytes?


# %% tags=["prediction"]
def ring(n, N, latency=1e-6, bandwidth=1e9):
    return 2 * (N - 1) * (latency + n / N / bandwidth)


for N in (2, 4, 64, 4096):
    large, small = 1000 * ring(4e6, N), 1000 * ring(4, N)
    print(f"{N:5d} devices: 4 MB takes {large:6.3f} ms, 4 bytes take {small:6.3f} ms")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The time for the bytes levels off at 2 n / W. The time for the latencies keeps growing, and with
# 4 bytes it's nearly all there is. That's why XLA sends one large message instead of many small
# ones.
#
# </details>
#
# Real machines aren't one ring. Eight GPUs of a node are joined by NVLink, and nodes by network cards that are twelve times
# slower. So libraries add up inside the nodes first. Between the nodes, each GPU then sends only
# its eighth. (They can also add up along a tree, in about log N messages.) pmapdp's model does the
# same, level by level:

# %%
from pmapdp.scaling import RESNET_FLOPS, RESNET_PARAMETERS, RESNET_SHARES, predict

resnet = {
    "parameters": RESNET_PARAMETERS,
    "flops": RESNET_FLOPS,
    "utilization": RESNET_SHARES["float32"],
}
alone = predict(a100, 1, b=64, **resnet)
for N in (8, 64, 512):
    found = predict(a100, N, b=64, **resnet)
    print(
        f"{N:4d} A100s: all-reduce {1000 * found.all_reduce:.2f} ms of {1000 * found.step:.1f} ms,",
        end=" ",
    )
    print(f"so each GPU works at {alone.step / found.step:.1%} of its speed")

# %% [markdown]
# `python -m pmapdp.scaling --hardware a100 --devices 8 64 512` prints the same, and takes the numbers of your own model.
# One number in it can't be calculated: the share of the peak that the network reaches on one device. For ResNet-50 in TF32
# it's 15 %, from
# [NVIDIA's measurement](https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/Classification/ConvNets/resnet50v1.5)
# of 938 images/s on one A100. Measure yours.
#
# ## How wrong is it?
#
# A prediction is only worth something if you've checked it. Here are three published runs of
# ResNet-50:
# [Goyal et al.](https://arxiv.org/abs/1706.02677) went from 8 to 256 P100 GPUs and reported about
# 90 % of the perfect speedup. NVIDIA went from 1 to
# 8 A100s, in TF32 and in mixed precision. Next to each prediction we print the naive one: 100 %, no
# loss at all.
#
# **Predict:** in how many of the three is the calculated prediction clearly better than the naive one?

# %% tags=["prediction"]
gradient_bytes = 4 * RESNET_PARAMETERS
# Servers of 8 P100s with NVLink of 80 GB/s, which share a network card of 50 Gbit/s.
p100 = Level(8, 1.9e-6, 80e9, trees=False), Level(64, 20e-6, 50e9 / 8 / 8, trees=False)
# Seconds of a step: 90 epochs took 29 hours, with 256 images a step.
on_8 = 29 * 3600 / (90 * 1_281_167 / 256)
of_8, of_256 = (reduce_scatter(gradient_bytes, N, p100) for N in (8, 256))
on_256 = on_8 + 2 * (of_256 - of_8)
all_reduce = 2 * reduce_scatter(gradient_bytes, 8, a100.levels)


def efficiency(images_per_second):
    """Of 8 A100s, with 256 images on each."""
    step = 256 / images_per_second
    return step / (step + all_reduce)


runs = {  # predicted, found
    "256 P100 over 8": (on_8 / on_256, 0.9),
    "8 A100 over 1, TF32": (efficiency(938), 7248 / (8 * 938)),
    "8 A100 over 1, mixed": (efficiency(2470), 16621 / (8 * 2470)),
}
for name, (predicted, found) in runs.items():
    errors = f"error {predicted / found - 1:+.1%}, of the naive prediction {1 / found - 1:+.1%}"
    print(f"{name:21s} predicted {predicted:.1%}, found {found:.1%}: {errors}")
lesson_18.predicted_against_found(runs)

# %% tags=["proof"]
# The asserts behind the answers.
assert np.isclose(ring(4e6, 4), 6e-3 + 6e-6)
better = [abs(predicted - found) < 0.5 * abs(1 - found) for predicted, found in runs.values()]
assert better == [True, False, False]
assert 0.17 < runs["8 A100 over 1, mixed"][0] / runs["8 A100 over 1, mixed"][1] - 1 < 0.19

# %% [markdown]
# <details><summary>Answer</summary>
#
# In one. On the P100s the network really is what costs time, and the calculation comes close. (It
# predicts a little too much loss, because Goyal et al. overlapped the all-reduce with the backward
# pass, and the calculation doesn't.) On the A100s the all-reduce takes less than 1 % of the step.
# The GPUs lose 3 % and 16 % to something else, and the calculation knows nothing about it.
#
# </details>
#
# So your run may turn out faster or slower than the prediction. But the prediction tells you whether *communication*
# will be a problem. If your run is slower, something else takes the time: loading data, launching kernels, or waiting
# for the slowest device. Then look at a profile. [docs/scaling.md](../docs/scaling.md) has all errors.
#
# With a larger per-device batch you lose less, because the computation takes longer and the all-reduce doesn't. But an
# epoch then has fewer updates, and the loss after an epoch may be worse. More examples per second isn't always more
# learning per hour.
#
# ## Take it home
#
# `report` takes a jitted step, and prints what the step computes, keeps and sends, and how long the
# all-reduce would take on your links. It also times the step and prints the MFU, but not on
# simulated devices.

# %% tags=["take-home"]
"""Report on a training step: put in your own step, state and batch."""

import math
import os
import re
import time

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

os.environ["NPROC"] = "16"  # threads for eight simulated devices, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # simulated, unless there are GPUs or TPUs
BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "pred": 1}
KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"


def collective_bytes(program):
    """Bytes of the results of each kind of collective; one in a loop counts once."""
    found = {}
    for result, kind in re.findall(rf"= (.+?) ({KINDS})(?:-start)?\(", program):
        arrays = re.findall(r"(\w+)\[([\d,]*)\]", result)
        for dtype, shape in arrays:
            size = BYTES[dtype] * math.prod(int(n) for n in shape.split(",") if n)
            found[kind] = found.get(kind, 0) + size
    return found


def report(train_step, state, batch, *, N, flops, peak, latency, bandwidth, repeats=5):
    """Print what is known of a step on N devices.

    Args:
        flops: operations that the model needs on a device, forward and backward, counted by hand.
        peak: FLOP/s of a device, measured or published.
        latency, bandwidth: of a link between devices, in seconds and bytes/s.
    """
    program = train_step.lower(state, batch).compile()
    memory, sent = program.memory_analysis(), collective_bytes(program.as_text())
    print(f"{N} device(s)")
    print(f"  computes {program.cost_analysis()['flops'] / 1e6:.2f} MFLOP on a device")
    at_rest, in_a_step = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    print(f"  keeps {at_rest / 1e6:.2f} MB, and {in_a_step / 1e6:.2f} MB in a step")
    ring = 2 * (N - 1) * (latency + sent.get("all-reduce", 0) / N / bandwidth)
    print(f"  sends {sent or 'nothing'}, all-reduce about {1e6 * ring:.0f} us on your links")
    state, seconds = train_step(state, batch), []  # compiles
    for _ in range(repeats):
        start = time.perf_counter()
        state = jax.block_until_ready(train_step(state, batch))
        seconds.append(time.perf_counter() - start)
    median = float(np.median(seconds))
    if jax.devices()[0].platform == "cpu" and N > 1:
        print("  takes a time that says nothing: simulated devices share the cores of one machine")
    else:
        shortest, longest = 1000 * min(seconds), 1000 * max(seconds)
        print(f"  takes {1000 * median:.2f} ms ({shortest:.2f} to {longest:.2f})", end=", ")
        print(f"MFU {flops / median / peak:.2%} of the peak that you gave")


class Network(nnx.Module):
    """Inputs [b, 64] to logits [b, 10]."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.output = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, inputs):
        return self.output(nnx.relu(self.hidden(inputs)))


def loss(model, batch):
    inputs, labels = batch
    return optax.softmax_cross_entropy_with_integer_labels(model(inputs), labels).mean()


def train_step(model, batch):
    return jax.tree.map(lambda w, g: w - 0.1 * g, model, jax.grad(loss)(model, batch))


b, random = 16, np.random.default_rng(0)
for N in (1, 8):
    mesh = Mesh(jax.devices()[:N], ("data",))
    replicated, split = (
        NamedSharding(mesh, PartitionSpec()),
        NamedSharding(mesh, PartitionSpec("data")),
    )
    step = jax.jit(
        train_step, in_shardings=(replicated, split), out_shardings=replicated, donate_argnums=0
    )
    state = jax.device_put(Network(nnx.Rngs(0)), replicated)
    inputs = random.normal(size=(b * N, 64)).astype(np.float32)
    labels = random.integers(10, size=b * N).astype(np.int32)
    batch = jax.device_put((inputs, labels), split)
    # Put in your device and links. Here: about 100 GFLOP/s and 10 Gbit/s. An A100: 156e12 in TF32.
    yours = {"peak": 1e11, "latency": 2e-5, "bandwidth": 1.25e9}
    report(step, state, batch, N=N, flops=3 * 2 * b * (64 * 32 + 32 * 10), **yours)

# %% [markdown]
# ## Exercises
#
# Solutions, with reasons: [solutions/18_measure_and_predict.py](solutions/18_measure_and_predict.py).
#
# 1. `fixed_timer` (5 minutes, find the mistakes): `broken_timer` should return how many seconds a call of the jitted
#    `function(x)` takes, until its result is there, and without compiling. `clock()` gives the time in seconds.
#    <details><summary>Hint</summary>There are two mistakes. The picture at the top shows both.</details>
# 2. `scan_flops` (10 minutes): how many operations does `lax.scan(layer, x, weights)` take, all rounds together?
#    `layer(x, w)` returns `(x, None)`. Let JAX count, to within 1 %. <details><summary>Hint</summary>The body counts once.
#    Count one layer and multiply, or let the compiler see all layers.</details>
# 3. `least_examples` (10 minutes): suppose a program overlaps its all-reduce with the backward pass. From how many examples
#    per device on is a ring all-reduce of `n` bytes over `N` devices no longer than the backward pass? An example takes
#    `seconds`, forward and backward, and the backward pass takes two thirds of that. Return a whole number, at least 1.
#    <details><summary>Hint</summary>Seconds of the ring over seconds of one example's backward pass, rounded
#    up.</details>


# %%
from pmapdp.lessons.checks import check


def broken_timer(function, x, clock):
    start = clock()
    function(x)
    return clock() - start


def fixed_timer(function, x, clock):
    """Seconds of a call that doesn't compile, from its start until its result is there."""
    ...  # your code: 4 lines


def scan_flops(layer, x, weights):
    """Floating-point operations of the scan."""
    ...  # your code: 2 or 3 lines


def least_examples(n, N, latency, bandwidth, seconds):
    """Examples per device, a whole number."""
    ...  # your code: 2 lines


for exercise in (fixed_timer, scan_flops, least_examples):
    check("18_measure_and_predict", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Warm up, keep the shapes, wait for the result. Don't time simulated devices; count operations, memory and bytes.
# - A scan's body counts once, and what's computed again counts too. So count by hand what the model needs, and report MFU.
# - You can calculate what the all-reduce costs. Many devices lose time to other things, too, so check your prediction, and
#   say how wrong it was.
#
# The model of the all-reduce is in [scaling.py](../pmapdp/scaling.py), and
# `python -m pmapdp.train --workdir runs/first --profile` writes the trace of a run. To read on: JAX
# on [profiling](https://docs.jax.dev/en/latest/201/profiling.html), and the scaling book on
# [rooflines](https://jax-ml.github.io/scaling-book/roofline/). This was the last lesson. Now it's
# your turn. To look things up, use the [list of lessons](README.md).

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
# # 18. Measure a step, and predict it on many devices
#
# After this lesson you can time a step, count what a compiled program computes, keeps and sends, read a profile, and
# predict how many examples a device needs until communication is hidden. You can also say how wrong such predictions
# were where they could be checked.
#
# About 40 minutes · you need [06 Communicate between devices](06_communicate_between_devices.ipynb), [09 Let the
# compiler do it](09_let_the_compiler_do_it.ipynb) and [13 More batch than memory](13_more_batch_than_memory.ipynb) ·
# previous: [17 Train with many processes](17_many_processes.ipynb)
#
# Letters: N devices, b examples on each, n bytes in an all-reduce, L the latency of a message in seconds, W the
# bandwidth of a link in bytes per second.

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices  # simulates devices (lesson 00) and describes them

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"
chosen = jax.devices()
print(devices.describe(chosen), "| jax", jax.__version__)

# %% [markdown]
# ## What a clock sees
#
# A call of a jitted function returns before the result is there: Python has only *dispatched* the work. (On a GPU,
# PyTorch does the same.) The first call also traces and compiles. So a clock around one line of Python can show three
# different durations. Only the last one is the time of a step.

# %%
from pmapdp.lessons.pictures import lesson_18

lesson_18.three_durations()

# %% [markdown]
# The smallest case is a matrix product. The list `traced` grows when JAX traces the function, and not when it runs.
# **Predict:** how long is the list at the end, and which of the three times is the shortest?

# %% tags=["prediction"]
import time

traced = []


@jax.jit
def product(a):
    traced.append(a.shape)
    return a @ a


a = jnp.ones((1500, 1500))
milliseconds = {}
for name, wait, repeats in (("first call", True, 1), ("without waiting", False, 6), ("waiting", True, 6)):
    times = []
    for _ in range(repeats):
        clock = time.perf_counter()
        result = product(a)
        if wait:
            jax.block_until_ready(result)
        times.append(1000 * (time.perf_counter() - clock))
        jax.block_until_ready(result)  # else the next clock would see the rest of this call
    milliseconds[name] = min(times)
    print(f"{name:16s} {milliseconds[name]:8.2f} ms")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The function was traced once, in the first call. "Without waiting" is the shortest: it is only the time to dispatch.
#
# </details>
#
# **A failure on purpose.** The last batch of an epoch is smaller, and nobody pads it. To notice what that costs,
# count traces: unlike times, they do not depend on what else the machine does. **Predict:** how often are these four
# calls traced?

# %% tags=["prediction"]
for rows in (64, 64, 64, 29):
    product(jnp.ones((rows, rows)))
print("traced for", traced[1:])

# %% [markdown]
# <details><summary>Answer</summary>
#
# Twice: the fourth call, with 29 rows, was traced and compiled again, in the middle of what you measure. So warm up,
# keep the shapes, wait for the result, and repeat. Report the median and the range. In a training loop, time groups
# of steps: if you wait after each step, Python cannot prepare the next one meanwhile.
#
# </details>
#
# The rest of this lesson times nothing on several simulated devices. They share the cores of one machine and take
# turns, so their times say nothing about real devices, and often the reverse. What a compiled program computes, keeps
# and sends is the same on both.
#
# ## What the program computes
#
# A product of `[m, k]` and `[k, n]` takes 2 m k n floating-point operations (FLOPs). In training, each layer has
# three such products: the forward pass, the gradient of its weights, and the gradient of its inputs, which the first
# layer does not need. `cost_analysis` counts the operations of a compiled program. **Predict:** it counts a network
# of 12 layers three times: written out, as a `lax.scan`, and as a scan with `jax.checkpoint`. Which counts are right?

# %% tags=["prediction"]
b, WIDTH, LAYERS = 64, 128, 12
weights, x = np.zeros((LAYERS, WIDTH, WIDTH), np.float32), np.zeros((b, WIDTH), np.float32)
FORWARD = 2 * b * WIDTH * WIDTH * LAYERS  # by hand


def gradient(around=lambda layer: layer, unroll=1):
    layer = around(lambda x, w: (jnp.tanh(x @ w), None))
    return jax.grad(lambda weights, x: jnp.square(lax.scan(layer, x, weights, unroll=unroll)[0]).mean())


counted = {}
for name, function in {
    "written out": gradient(unroll=LAYERS),
    "scan": gradient(),
    "scan with jax.checkpoint": gradient(jax.checkpoint),
}.items():
    flops = jax.jit(function).lower(weights, x).compile().cost_analysis()["flops"]
    counted[name] = flops / FORWARD
    print(f"{name:25s} {counted[name]:.2f} times the forward pass by hand")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the first: it finds three passes, less the first layer's input gradient. **The body of a scan is counted
# once**, however often it runs: here 3 of 36 products. And `jax.checkpoint` adds the products that are computed
# again, 4 for 3.
#
# </details>
#
# That makes two kinds of utilization. **MFU** (model FLOPs utilization) counts what the model needs, 3 products a
# layer, whatever the program does. **HFU** (hardware FLOPs utilization) counts what the hardware does. With
# rematerialization HFU is larger, and nothing is faster. Report MFU, and count by hand. The next cell measures on one
# device, where a time is honest. Divide its two rates by the peak in the data sheet of your device to get MFU and HFU:

# %%
import math

step = jax.jit(gradient(jax.checkpoint))
big_weights, big_x = np.ones((LAYERS, 512, 512), np.float32) / 512, np.ones((512, 512), np.float32)
fastest = math.inf
for _ in range(7):  # the first call compiles
    clock = time.perf_counter()
    jax.block_until_ready(step(big_weights, big_x))
    fastest = min(fastest, time.perf_counter() - clock)
one_product = 2 * 512**3 * LAYERS / fastest / 1e9
print(f"the model's operations: {3 * one_product:.0f} GFLOP/s; the hardware's: {4 * one_product:.0f} GFLOP/s")

# %% [markdown]
# ## What it keeps and sends
#
# You can compile a program for many devices and read it without running it. Here is a data-parallel step, on 2, 4 and
# 8 devices with 32 examples each. **Predict:** how do the bytes of the all-reduce, the memory of a device and its
# operations change?

# %% tags=["prediction"]
import optax

from pmapdp.compare.collectives import collectives  # lists the collectives in the text of a compiled program

SHAPES = {"W1": (784, 512), "W2": (512, 512), "W3": (512, 10)}
params = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
parameters = sum(array.size for array in params.values())


def loss(params, x, y):
    hidden = jax.nn.relu(jax.nn.relu(x @ params["W1"]) @ params["W2"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["W3"], y).mean()


def compiled_for(count, per_device):
    mesh = Mesh(np.array(chosen[:count]), ("data",))
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    def update(params, x, y):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x, y))

    B = count * per_device
    batch = jax.ShapeDtypeStruct((B, 784), jnp.float32), jax.ShapeDtypeStruct((B,), jnp.int32)
    options = {"in_shardings": (replicated, split, split), "out_shardings": replicated, "donate_argnums": 0}
    return jax.jit(update, **options).lower(params, *batch).compile()


exchanged = []
for count in (2, 4, 8):
    compiled = compiled_for(count, 32)
    (found,) = collectives(compiled.as_text())
    memory = compiled.memory_analysis()
    used = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 1e6
    megaflop = compiled.cost_analysis()["flops"] / 1e6
    print(f"{count} devices: {found.count} {found.kind} of {found.bytes / 1e6:.2f} MB;", end=" ")
    print(f"{used:.2f} MB and {megaflop:.0f} MFLOP on a device")
    exchanged.append(found.bytes)

# %% [markdown]
# <details><summary>Answer</summary>
#
# None changes: a device contributes one gradient, whatever the number of devices. What grows is the number of
# messages that carry it.
#
# </details>
#
# The program has three gradients and *one* all-reduce. **Predict:** when can it start, and what could hide it?

# %% tags=["prediction"]
program = compiled.as_text()
lines = [line.strip() for line in program.splitlines() if " all-reduce(" in line]
print(lines[0].split(" all-reduce(")[0])
mesh, everywhere = Mesh(np.array(chosen), ("data",)), PartitionSpec()
specs = {"in_specs": everywhere, "out_specs": everywhere}
mean = jax.shard_map(lambda tree: lax.pmean(tree, "data"), mesh=mesh, **specs, check_vma=False)
written = jax.jit(mean).lower(params)
before = written.as_text().count("stablehlo.all_reduce")
after = len([line for line in written.compile().as_text().splitlines() if " all-reduce(" in line])
print(f"a pmean of three arrays: {before} all-reduces as written, {after} as compiled")
print("asynchronous all-reduces in the program:", program.count("all-reduce-start"))

# %% [markdown]
# <details><summary>Answer</summary>
#
# XLA has **combined** the three into one instruction with three operands, because each message costs a latency. It
# can start only when the last gradient is there, so nothing is left to hide it. To **overlap** communication with the
# backward pass, a program needs several all-reduces that start early. In programs for GPUs and TPUs they appear as
# pairs, `all-reduce-start` and `all-reduce-done`, and what stands between the two runs meanwhile. Programs for CPUs
# have none. On GPUs, `--xla_gpu_all_reduce_combine_threshold_bytes` (in `XLA_FLAGS`) sets how much is combined, as
# `bucket_cap_mb` does in DistributedDataParallel.
#
# </details>
#
# ## Where the time goes: a profile
#
# `jax.profiler.trace` records when each operation ran. To read it, name the parts of your step with
# `jax.named_scope`, and trace a few steps after the first. We profile one device, and print the operations that take
# most time.

# %%
import tempfile
from pathlib import Path

from pmapdp.run.report import longest_operations  # sums up the operations in a trace file of Perfetto


@jax.jit
def named_step(params, x, y):
    with jax.named_scope("gradients"):
        gradients = jax.grad(loss)(params, x, y)
    with jax.named_scope("update"):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


batch = np.ones((256, 784), np.float32), np.zeros(256, np.int32)
named = jax.block_until_ready(named_step(params, *batch))
folder = Path(tempfile.mkdtemp())
with jax.profiler.trace(str(folder), create_perfetto_trace=True):
    for _ in range(5):
        named = jax.block_until_ready(named_step(named, *batch))
print(*longest_operations(next(folder.glob("**/perfetto_trace.json.gz")), most=5), sep="\n")
text = named_step.lower(params, *batch).compile().as_text()
for operation in ("dot(", "subtract("):
    line = next(line for line in text.splitlines() if operation in line and "op_name" in line)
    print(operation, line.split('op_name="')[1].split('"')[0])

# %% [markdown]
# Five calls each: one in a step. (`dot` is a matrix product, a `fusion` is several operations in one loop.) The
# compiled program says which scope an operation comes from, as the last two lines show; in Perfetto or TensorBoard it
# is in the details of a bar. Open the file `perfetto_trace.json.gz` at [ui.perfetto.dev](https://ui.perfetto.dev).
#
# Read an all-reduce in a profile of real devices like this: its bar starts on each device when that device is ready,
# and all end together. If the bars start at different times, the early devices wait for the slowest one. If they
# start together, their length is the transfer. In a profile of simulated devices it is mostly waiting for a free
# core.
#
# ## Predict the communication
#
# In a ring all-reduce (lesson 06) each device sends 2 (N - 1) messages of n / N bytes, one after the other:
#
# ```
# seconds = 2 (N - 1) (L + n / (N W))
# ```
#
# In your head: 4 devices, 4 MB, a latency of 1 microsecond, 1 GB/s. That is 6 messages of 1 MB, so 6 ms and 6
# microseconds. **Predict:** what happens with many devices, for 4 MB and for 4 bytes?


# %% tags=["prediction"]
def ring_seconds(n, N, latency, bandwidth):
    return 2 * (N - 1) * (latency + n / N / bandwidth)


for N in (2, 4, 64, 4096):
    large, small = (1e3 * ring_seconds(n, N, 1e-6, 1e9) for n in (4e6, 4))
    print(f"{N:5d} devices: 4 MB takes {large:6.3f} ms, 4 bytes {small:6.3f} ms")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The time for the bytes approaches a limit, 2 n / W, and that for the latencies grows with N. So one all-reduce of a
# large array scales better than many of small ones, which is why XLA combines. (Libraries also have trees, with about
# log N messages; [scaling.py](../pmapdp/scaling.py) has both.)
#
# </details>
#
# ## How many examples until it is hidden?
#
# An all-reduce that overlaps with the backward pass, which takes two thirds of a step's operations, is hidden if it
# takes no longer. The operations grow with b, and the bytes do not. So there is a smallest b. The share of the peak
# that a network attains is an input, and must come from a measurement of *that network*: NVIDIA's
# [ResNet-50](https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/Classification/ConvNets/resnet50v1.5)
# trains 938 images/s on an A100 in TF32, which is 15 % of the peak; language models reach 40 % and more. **Predict:**
# which needs more examples per device on 64 GPUs, ResNet-50 or our MLP?

# %% tags=["prediction"]
from pmapdp.scaling import HARDWARE, reduce_scatter  # published peaks, latencies and bandwidths, with their sources

a100 = HARDWARE["a100"]
NETWORKS = {  # parameters, FLOPs of an example, share of the TF32 peak
    "ResNet-50": (25_557_032, 3 * 2 * 4.09e9, 938 * 3 * 2 * 4.09e9 / a100.peak["float32"]),
    "our MLP": (parameters, 3 * 2 * parameters, 0.15),  # the share is assumed
}
for name, (size, flops, share) in NETWORKS.items():
    example_seconds = flops / (share * a100.peak["float32"])
    reduce = 2 * reduce_scatter(4 * size, 64, a100.levels)  # inside the nodes first, then between them
    least = math.ceil(reduce / (2 / 3 * example_seconds))
    print(f"{name:9s} attains {share:.0%}: all-reduce {1e3 * reduce:.2f} ms, hidden from", end=" ")
    print(f"{least:,} examples per device, {64 * least:,} in a batch")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The MLP, by far: it computes little for each byte. With such a batch an epoch of MNIST's 60,000 examples has two updates. A
# larger batch gives more examples per second, but it doesn't cut the number of updates in proportion, so this is no way
# to train faster. ResNet-50 needs only a few images per device.
#
# </details>
#
# ## How wrong are the predictions?
#
# A prediction is worth as much as its checks. Each line has a prediction, what was found, and the error. First what
# this machine can check, then published runs: ResNet-50 of [Goyal et al.](https://arxiv.org/abs/1706.02677) from 8 to
# 256 GPUs, and NVIDIA's from 1 to 8. Theirs are efficiencies, the speed of each device compared with the smaller run.
# The predictions do not overlap communication with computation. **Predict:** which line is most wrong?

# %% tags=["prediction"]
compiled = compiled_for(8, 32)
activations = 4 * 32 * (784 + 512 + 512 + 10)
gradients = 4 * parameters
memory = compiled.memory_analysis()
resnet_bytes = 4 * NETWORKS["ResNet-50"][0]
p100_step = 29 * 3600 / (90 * 1_281_167 / 256)  # 29 hours of 90 epochs on 8 GPUs, 256 images a step
p100_step_256 = p100_step + ring_seconds(resnet_bytes, 32, 20e-6, 50e9 / 8)  # 32 servers share cards of 50 Gbit/s
inside = a100.levels[0]


def efficiency_on_8(images_per_second):
    step = 256 / images_per_second  # 256 images on each GPU
    return step / (step + ring_seconds(resnet_bytes, 8, inside.latency, inside.bandwidth))


LINES = {
    "bytes of the all-reduce": (4 * parameters, collectives(compiled.as_text())[0].bytes),
    "operations of the products": (2 * 32 * (3 * parameters - 784 * 512), compiled.cost_analysis()["flops"]),
    "memory beside the arguments": (gradients + activations, memory.temp_size_in_bytes),
    "256 over 8 GPUs, Goyal et al.": (p100_step / p100_step_256, 29 / 32),
    "8 over 1 A100, TF32": (efficiency_on_8(938), 7248 / (8 * 938)),
    "8 over 1 A100, mixed precision": (efficiency_on_8(2470), 16621 / (8 * 2470)),
}
errors = {name: predicted / found - 1 for name, (predicted, found) in LINES.items()}
for name, (predicted, found) in LINES.items():
    print(f"{name:31s} predicted {predicted:12,.3f}  found {found:12,.3f}  error {errors[name]:+.1%}")

# %% tags=["proof"]
# The asserts behind the answers so far.
assert traced == [(1500, 1500), (64, 64), (29, 29)]
assert 2.9 < counted["written out"] < 3.1
assert 0.24 < counted["scan"] < 0.26
assert 1.3 < counted["scan with jax.checkpoint"] / counted["scan"] < 1.4
assert exchanged == [4 * parameters] * 3
assert (len(lines), before, after) == (1, 3, 1)
assert "all-reduce-start" not in program
assert np.isclose(ring_seconds(4e6, 4, 1e-6, 1e9), 6e-3 + 6e-6)
assert 64 * least > 30_000
assert errors["bytes of the all-reduce"] == 0
assert abs(errors["operations of the products"]) < 0.1
assert abs(errors["256 over 8 GPUs, Goyal et al."]) < 0.05 > abs(errors["8 over 1 A100, TF32"])
assert 0.15 < errors["8 over 1 A100, mixed precision"] < 0.2
assert memory.temp_size_in_bytes < 1.1 * (2 * gradients + activations)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Bytes and operations are predicted exactly, or nearly. The memory is wrong by half: this program keeps each gradient
# twice, before and after the all-reduce, and a formula does not know that. So ask the compiler for memory.
#
# </details>
#
# The efficiencies look right within 5 %, but for the last line, which is too good by 18 %. Be honest about what that's
# worth: if you predicted 100 % for all three, you'd be off by 10, 4 and 19 %. On both lines of the A100 the formula adds
# almost nothing, because the all-reduce is under 1 % of the step, and something else slows eight GPUs down. Goyal's run
# was even better than predicted, so the prediction isn't a bound either. What's missing must be looked for in a profile. `python -m pmapdp.scaling` prints such predictions for other networks, and
# [docs/scaling.md](../docs/scaling.md) all errors.
#
# ## Take it home
#
# The next cell needs nothing from above and nothing from pmapdp. `report` tells of any jitted step what it computes,
# keeps and sends, and from how many examples its all-reduce is hidden on your links. It times the step and gives its
# MFU, but not on simulated devices.

# %% tags=["take-home"]
import math
import os
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "pred": 1}
KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"


def collective_bytes(program):
    """Bytes of the results of each kind of collective; one in a loop counts once."""
    found = {}
    for result, kind in re.findall(rf"= (.+?) ({KINDS})(?:-start)?\(", program):
        arrays = re.findall(r"(\w+)\[([\d,]*)\]", result)
        size = sum(BYTES[dtype] * math.prod(map(int, filter(None, shape.split(",")))) for dtype, shape in arrays)
        found[kind] = found.get(kind, 0) + size
    return found


def report(step, state, batch, *, devices, examples, flops, peak, latency, bandwidth, repeats=5):
    """Prints what is known of `step(state, batch)`, which returns the next state; returns that state.

    Args:
        devices: on which the step runs.
        examples: on each device.
        flops: that the model needs for one example, forward and backward, counted by hand.
        peak: FLOP/s of a device, measured or published.
        latency, bandwidth: of a link between devices, in seconds and bytes per second.
    """
    N = len(devices)
    compiled = step.lower(state, batch).compile()
    memory, sent = compiled.memory_analysis(), collective_bytes(compiled.as_text())
    print(f"computes  {compiled.cost_analysis()['flops'] / 1e6:.1f} MFLOP on a device (a scan's body counts once)")
    rest, more = memory.argument_size_in_bytes / 1e6, memory.temp_size_in_bytes / 1e6
    print(f"keeps     {rest:.2f} MB, and {more:.2f} MB during a step")
    print(f"sends     {sent or 'nothing'}")
    state = jax.block_until_ready(step(state, batch))  # compiles
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        state = jax.block_until_ready(step(state, batch))
        seconds.append(time.perf_counter() - started)
    median = float(np.median(seconds))
    if devices[0].platform == "cpu" and N > 1:
        print("takes     a time that says nothing: simulated devices share the cores of one machine")
    else:
        print(f"takes     {1000 * median:.2f} ms ({1000 * min(seconds):.2f} to {1000 * max(seconds):.2f})")
        print(f"MFU       {examples * flops / median / peak:.2%} of the peak that you gave")
    reduce = 2 * (N - 1) * (latency + sent.get("all-reduce", 0) / N / bandwidth)
    hidden = math.ceil(reduce / (2 / 3 * flops / peak))
    if reduce:
        print(f"all-reduce on your links {1e6 * reduce:.0f} us: hidden from {hidden:,} examples per device at peak")
    return state


# Yours: data, the parameters of a network, the operations that it needs for an example, and its loss.
B, D, H, C = 64, 64, 256, 10  # examples on a device, features, hidden units, classes
random = np.random.default_rng(0)
inputs = random.normal(size=(1024, D)).astype(np.float32)
labels = inputs[:, :C].argmax(1)
created = {"first": random.normal(size=(D, H)) / np.sqrt(D), "second": random.normal(size=(H, C)) / np.sqrt(H)}
needed = 3 * 2 * (D * H + H * C)  # by hand: a product of m x k takes 2 m k, and the backward pass twice as many


def loss(params, x, y):
    logits = jax.nn.relu(x @ params["first"]) @ params["second"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


traced = []  # grows when a step is traced


def update(params, batch):
    traced.append(batch[0].shape)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, *batch))


for used in (jax.devices()[:1], jax.devices()):
    mesh = Mesh(np.array(used), ("data",))
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    step = jax.jit(update, in_shardings=(replicated, split), out_shardings=replicated, donate_argnums=0)
    params = jax.device_put(jax.tree.map(np.float32, created), replicated)
    rows = slice(0, B * len(used))
    batch = jax.device_put((inputs[rows], labels[rows]), split)
    print(f"\n{len(used)} device(s)")
    # Put in your device and links: here a CPU of about 100 GFLOP/s, and 10 Gbit/s; an A100 has 156e12 in TF32.
    report(step, params, batch, devices=used, examples=B, flops=needed, peak=1e11, latency=2e-5, bandwidth=1.25e9)
print("\ntraced for", traced)

# %% [markdown]
# ## Exercises
#
# **1. `fixed_timer`** (5 minutes): find the planted mistakes. `broken_timer` is to return how many seconds a call of
# the jitted `function(x)` takes, until its result is there and without compiling. `clock()` gives the time in
# seconds. Write it correctly.
# <details><summary>Hint</summary>There are two. The picture at the beginning of this lesson shows both.</details>
#
# **2. `scan_flops`** (10 minutes): return how many operations `lax.scan(layer, x, weights)` takes, all its rounds.
# `layer(x, w)` returns `(x, None)`; let JAX count. Within 1 %.
# <details><summary>Hint</summary>The body counts once. Either count one layer and multiply, or let the compiler see
# all layers.</details>
#
# **3. `least_examples`** (10 minutes): the whole lesson. Return the least whole number of examples per device with
# which a ring all-reduce of `n` bytes over `N` devices takes no longer than the backward pass. An example takes
# `seconds`, forward and backward, of which the backward pass takes two thirds. It is at least 1.
# <details><summary>Hint</summary>Seconds of the ring over seconds of a backward pass, rounded up.</details>


# %%
from pmapdp.lessons.checks import check


def broken_timer(function, x, clock):
    start = clock()
    function(x)
    return clock() - start


def fixed_timer(function, x, clock):
    """Seconds of a call that does not compile, from its start until its result is there."""
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
# Solutions, with reasons: [solutions/18_measure_and_predict.py](solutions/18_measure_and_predict.py)
#
# ## Take away
#
# - Warm up, keep the shapes, wait for the result, and count traces. Do not time simulated devices: count operations,
#   memory and bytes.
# - A scan's body counts once, and rematerialized products count too: report MFU, counted by hand.
# - Communication can be hidden if the backward pass of b examples takes longer than 2 (N - 1) (L + n / (N W)). It's an
#   estimate: print the error of every prediction that can be checked.
#
# The code is in [scaling.py](../pmapdp/scaling.py) and [run/report.py](../pmapdp/run/report.py);
# `python -m pmapdp.train --workdir runs/first --profile` writes the trace of a run. Read on: JAX on
# [profiling](https://docs.jax.dev/en/latest/201/profiling.html), and the scaling book on
# [rooflines](https://jax-ml.github.io/scaling-book/roofline/) and
# [training](https://jax-ml.github.io/scaling-book/training/). Next: work of your own, or back to the [list of
# lessons](README.md).

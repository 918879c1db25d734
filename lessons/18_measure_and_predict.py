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
# Your program trains on one GPU, and somebody offers you 64. How much faster will it be? You can work out a part of it
# without having the 64: time a step on one GPU, look up what the compiled program computes and sends, and calculate how
# long the all-reduce takes. Then comes the part that people leave out. You'll compare such predictions with published
# runs. For two of three the prediction is hardly better than saying "nothing is lost", and the third one may be luck.
#
# **You will** time a step without fooling yourself, count operations and bytes, see how an all-reduce can hide behind the
# backward pass, find out whether memory or arithmetic is the limit, read a profile, predict the speed of many devices,
# and say how wrong the prediction was. 35 minutes, 60 with exercises. You need
# [06 Communicate between devices](06_communicate_between_devices.ipynb),
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb), and for the section on overlap
# [10 Three ways side by side](10_three_ways_side_by_side.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import time

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_18

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"


def milliseconds(call):
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


# %% [markdown]
# ## What a clock sees
#
# You put a clock around a call of a jitted function. What does it measure? The first call also traces and compiles. A
# later call returns before the result is there, because Python only *dispatches* the work (as PyTorch does on a GPU).
# If you want the time of a step, you have to wait for the result.
#
# **Predict:** which of the three times is the shortest?

# %% tags=["prediction"]
product = jax.jit(lambda a: a @ a)
a = jnp.ones((1500, 1500))
first_ms = milliseconds(lambda: product(a).block_until_ready())
result_ms = np.median([milliseconds(lambda: product(a).block_until_ready()) for _ in range(9)])
dispatch_ms = np.median([milliseconds(lambda: product(a)) for _ in range(9)])
print(f"first call {first_ms:.1f} ms, waiting {result_ms:.1f} ms, not waiting {dispatch_ms:.2f} ms")
lesson_18.three_durations()

# %% [markdown]
# <details><summary>Answer</summary>
#
# The one without waiting. You'd report a step that's far too fast: here by a factor of a hundred or more.
#
# </details>
#
# So warm up, wait for the result, and repeat. Report the median and the range. Keep the shapes, too: if the last batch
# of an epoch is smaller, JAX compiles again, in the middle of what you measure (lesson 02). And in a training loop,
# time many steps at once, because Python can't prepare the next step while it waits for this one.
#
# Don't time simulated devices, because they share the cores of your machine. But you can count what a compiled program
# computes, keeps and sends, and these counts don't depend on your machine.
#
# ## What it computes
#
# A product of `[m, k]` and `[k, n]` takes 2 m k n floating-point operations (FLOPs): one multiplication and one
# addition for each term. JAX can count them for you, in the compiled program:

# %%
from jax import lax

layers = np.zeros((12, 128, 128), np.float32)
x = np.zeros((64, 128), np.float32)


def count_flops(function):
    return jax.jit(function).lower(layers, x).compile().cost_analysis()["flops"]


product_flops = 2 * 64 * 128 * 128
forward_flops = 12 * product_flops  # all twelve layers
print("by hand", product_flops, "counted", count_flops(lambda layers, x: x @ layers[0]))

# %% [markdown]
# Training takes about three times as many, because each layer has three products: one forward, one for the gradient of
# the weights, and one for the gradient of the inputs.
#
# Now take all 12 layers, in a `lax.scan`. In the compiled program that's a loop, and the layer is written down once.
#
# **Predict:** is the count for the gradient three times the forward pass?


# %% tags=["prediction"]
def layer(x, w):
    return jnp.tanh(x @ w), None


def gradient(layer, unroll=1):
    return jax.grad(lambda layers, x: lax.scan(layer, x, layers, unroll=unroll)[0].sum())


scan_ratio = count_flops(gradient(layer)) / forward_flops
checkpoint_ratio = count_flops(gradient(jax.checkpoint(layer))) / forward_flops
unroll_ratio = count_flops(gradient(layer, unroll=12)) / forward_flops
print(f"scan {scan_ratio:.2f}, jax.checkpoint {checkpoint_ratio:.2f}, unroll {unroll_ratio:.2f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only if you unroll the loop (and then it's a little less, because nobody needs the gradient for the first
# inputs). **The body of a scan is counted once**, however often it runs. So `cost_analysis` sees 3 of 36 products, which
# is a quarter of the forward pass. With `jax.checkpoint` it sees 4, because one product is computed again.
#
# </details>
#
# So count by hand what the *model* needs. Divide it by the time and by the peak in the data sheet of your device, and
# you have the **model FLOPs utilization**, MFU. If you count what the hardware does instead (HFU), rematerialization
# gives you a larger number, although it makes nothing faster.
#
# ## What it sends
#
# You can compile a program for many devices without running it. Here's a network with three layers, and three functions
# that we'll need: `batch_shapes` describes a batch, `compile_gradients` compiles the gradients of the network for N
# devices, and `list_operations` lists the matrix products and the sums over devices in a function.

# %%
import optax
from jax import P  # short for PartitionSpec
from jax.sharding import Mesh, NamedSharding

from pmapdp.collectives import collectives  # reads the all-reduces from a compiled program
from pmapdp.lessons import drawing

shapes = {"W1": (784, 512), "W2": (512, 512), "W3": (512, 10)}
params = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def loss(params, batch):
    hidden = jax.nn.relu(jax.nn.relu(batch[0] @ params["W1"]) @ params["W2"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["W3"], batch[1]).mean()


def batch_shapes(B):
    return jax.ShapeDtypeStruct((B, 784), np.float32), jax.ShapeDtypeStruct((B,), np.int32)


def compile_gradients(N):
    mesh = Mesh(jax.devices()[:N], ("data",))
    replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    gradients = jax.jit(jax.grad(loss), in_shardings=(replicated, split), out_shardings=replicated)
    return gradients.lower(params, batch_shapes(32 * N)).compile()


def list_operations(function):
    mesh = Mesh(jax.devices(), ("data",))
    on_devices = jax.shard_map(function, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    (call,) = jax.make_jaxpr(on_devices)(params, batch_shapes(256)).eqns
    signs = {"dot_general": "@", "psum_invariant": "sum"}  # JAX's names
    names = [equation.primitive.name for equation in call.params["jaxpr"].eqns]
    return " ".join(signs[name] for name in names if name in signs)


# %% [markdown]
# **Predict:** each device gets 32 examples. Which of the two numbers grows with the number of devices: the bytes in the
# all-reduce, the operations on a device, or neither?

# %% tags=["prediction"]
programs = {N: compile_gradients(N) for N in (2, 4, 8)}
for N, program in programs.items():
    flops = program.cost_analysis()["flops"]
    print(f"{N} devices: {flops / 1e6:.0f} MFLOP,", *collectives(program.as_text()))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Neither. A device works on 32 examples, however many devices there are, and it puts exactly one gradient for each
# parameter into the all-reduce: 2.67 MB. What does grow is the number of messages that carry them.
#
# </details>
#
# XLA has merged three gradients into *one* all-reduce, to pay the latency once. The price: it must wait for the last
# gradient, and then nothing is left to hide it behind.
#
# ## Hide it behind the backward pass
#
# The backward pass finds the last layer's gradient first. You could send that one while the devices still work on the
# earlier layers. That's called **overlap**, and it's what `DistributedDataParallel` does with its buckets. Here are two
# of lesson 10's ways to average.
#
# **Predict:** with which of the two can the last layer's gradient leave early?


# %% tags=["prediction"]
def average_gradients(params, batch):
    local = lax.pcast(params, "data", to="varying")
    return lax.pmean(jax.grad(loss)(local, batch), "data")


def average_loss(params, batch):
    return jax.grad(lambda params: lax.pmean(loss(params, batch), "data"))(params)


print("average_gradients:", list_operations(average_gradients))
print("average_loss:     ", list_operations(average_loss))
drawing.overlap("average_gradients", "average_loss")

# %% [markdown]
# <details><summary>Answer</summary>
#
# With `average_loss`. Its first sum is the loss, a single number. Then JAX adds up each layer's gradient as soon as it
# has been found, between the products. In `average_gradients` all three wait for your `pmean`.
#
# </details>
#
# Under `jit` the compiler puts an all-reduce behind each gradient, as in `average_loss`. Later it merges them: on a CPU
# into a single one, in both functions, and on a GPU only up to the size that you set with
# `--xla_gpu_all_reduce_combine_threshold_bytes` (DDP calls it `bucket_cap_mb`). So look at a profile to find out if
# your all-reduces overlap with the backward pass.
#
# ## Memory or arithmetic?
#
# A device computes, and meanwhile it fetches numbers from its memory. Whichever takes longer decides how long the step
# takes. An A100 does 156 TFLOP/s (TF32) and reads 2.04 TB/s, so it can do 76 operations for each byte that it reads. A
# layer reads each weight once, which is 4 bytes, and uses it for b examples, with 2 operations each.
#
# **Predict:** from how many examples on is the arithmetic the limit?

# %% tags=["prediction"]
from pmapdp.scaling import A100  # published figures and their sources

D = 4096
b = np.arange(1, 4097)  # a product of [b, D] and [D, D]
flops = 2 * b * D * D
bytes_moved = 4 * (D * D + 2 * b * D)  # the weights, inputs and results
attainable = np.minimum(A100.peak["float32"], flops / bytes_moved * A100.memory_bandwidth)
lesson_18.roofline(b, attainable)

# %% [markdown]
# <details><summary>Answer</summary>
#
# From 2 b / 4 = 76 on, so from about 153 examples. (For this layer it's 166, because inputs and results are read and
# written, too.) Left of the corner, twice as many examples take hardly any more time.
#
# </details>
#
# This is called a **roofline**. It tells you two things. With 8 examples per GPU, such a layer leaves most of the GPU
# idle. A transformer uses a weight once for each token, and a convolution once for each place in the image, so both need
# fewer examples. And elementwise work, such as an optimizer update, is always limited by memory,
# because it does few operations for each byte.
#
# ## Where the time goes: a profile
#
# Your step is slower than all this allows? Then record a **profile**, or trace: what ran, and when it started and
# ended. Name the parts of your step with `jax.named_scope`, and trace a few steps after the first. Here we do it on one
# simulated device, and print the longest operations.

# %%
import tempfile
from pathlib import Path


@jax.jit
def named_step(params, batch):
    with jax.named_scope("gradients"):
        gradients = jax.grad(loss)(params, batch)
    with jax.named_scope("update"):
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)


batch = np.ones((256, 784), np.float32), np.zeros(256, np.int32)
new_params = jax.block_until_ready(named_step(params, batch))
folder = Path(tempfile.mkdtemp())
with jax.profiler.trace(str(folder), create_perfetto_trace=True):
    for _ in range(5):
        new_params = jax.block_until_ready(named_step(new_params, batch))
lesson_18.print_longest_operations(folder)
lesson_18.traces_of_an_h200()

# %% [markdown]
# The milliseconds are for all five steps together. A `dot`
# is a matrix product, and a `fusion` is several operations that the compiler has merged into one. Open the file at
# [ui.perfetto.dev](https://ui.perfetto.dev) to see them over time. On a GPU or TPU, the details have the names of your
# scopes.
#
# What do you look for on a GPU? We recorded the two traces in the picture on an H200 (with jax 0.11.2). Time runs to
# the right, and a bar shows when something was running.
#
# First look for gaps, in which the GPU waits for Python or for data. The upper trace shows three updates of pmapdp's
# CNN. In each of them the GPU computes for 0.12 ms, and for the other 1.4 ms it waits for Python, which is too slow for
# it. Recording slows Python down: without it an update took 1.0 ms, not 1.5. With a larger batch the GPU has more to do,
# and Python hardly more, so the gaps close.
#
# The lower trace shows one update of ResNet-18. All four rows are the GPU, sorted by the kind of work, and together
# they leave no gap, so faster Python wouldn't help. Nearly half of the time goes to batch norm, ReLU and additions. They
# compute little, but they read and write all activations, so memory is their limit.
#
# On several GPUs, look at the all-reduce next. Its bar starts on each device when that
# device is ready, and ends on all at the same time. If the bars start at different times, the early devices wait for
# the slowest one. If they start together, their length is the time of the transfer.
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
# With 4 devices, 4 MB, 1 microsecond and 1 GB/s, that's 6 messages of 1 MB: 6 ms and 6 microseconds. On 4,096 devices
# the bytes take 8 ms, because their part levels off at 2 n / W. But now the latencies take 8 ms, too, even for a single
# number. That's why XLA sends one large message instead of many small ones.
#
# Real machines aren't one ring. The eight A100s of a node are joined by NVLink, but the nodes are joined by network
# cards that are twelve times slower. So a library can add up inside the nodes first, and then each GPU sends only its
# eighth between the nodes. pmapdp calculates such an all-reduce level by level. Here's ResNet-50, with 64 images on each GPU:

# %%
from pmapdp.scaling import RESNET_FLOPS, RESNET_PARAMETERS, RESNET_SHARES, predict

resnet = {"parameters": RESNET_PARAMETERS, "flops": RESNET_FLOPS}
resnet["utilization"] = RESNET_SHARES["float32"]
one_gpu = predict(A100, 1, b=64, **resnet)
for N in (8, 64, 512):
    many = predict(A100, N, b=64, **resnet)
    print(
        f"{N:3d} A100s: all-reduce {1e3 * many.all_reduce:.2f} of {1e3 * many.step:.1f} ms, "
        f"so each GPU works at {one_gpu.step / many.step:.1%} of its speed"
    )

# %% [markdown]
# `python -m pmapdp.scaling` prints the same, and for your own model you call `predict` with its numbers. One number in it
# can't be calculated: the share of the peak that the network reaches on one device. For ResNet-50 in TF32 it's 15 %, from
# [NVIDIA's
# measurement](https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/Classification/ConvNets/resnet50v1.5)
# of 938 images/s on one A100.
#
# ## How wrong is it?
#
# A prediction is only worth something if you've checked it. [Goyal et al.](https://arxiv.org/abs/1706.02677) trained
# ResNet-50 on 8 P100 GPUs and on 256, and reported about 90 % of the perfect speedup. What would we have predicted?

# %%
from pmapdp.scaling import Level, reduce_scatter  # a reduce-scatter is half of an all-reduce

gradient_bytes = 4 * RESNET_PARAMETERS
# Servers of 8 P100s with NVLink of 80 GB/s, which share a network card of 50 Gbit/s.
p100 = Level(8, 1.9e-6, 80e9, trees=False), Level(64, 20e-6, 50e9 / 8 / 8, trees=False)
# Seconds of a step: 90 epochs took 29 hours, with 256 images a step.
step_8 = 29 * 3600 / (90 * 1_281_167 / 256)
scatter_8, scatter_256 = (reduce_scatter(gradient_bytes, N, p100) for N in (8, 256))
step_256 = step_8 + 2 * (scatter_256 - scatter_8)
print(f"predicted {step_8 / step_256:.1%}, reported about 90 %")

# %% [markdown]
# That's close, but it proves little. The calculation adds the whole all-reduce of 33 ms to the step. Goyal et al. started
# to send a layer's gradient while the next layer's was being computed. If their backward pass took two thirds of the step
# of 232 ms, that's 155 ms, so all 33 ms could hide behind it. With full overlap we'd have predicted that nothing is lost.
# How much they really hid, we don't know. So the hit may be luck.
#
# Now NVIDIA's own runs, from 1 to 8 A100s with 256 images on each. In mixed precision one A100 trained 2,470 images per
# second, so a step takes 104 ms. On eight of them the all-reduce adds 0.65 ms, as you've just seen.
#
# **Predict:** how much of its speed does each GPU lose, by this calculation?


# %% tags=["prediction"]
def efficiency(images_per_second):
    step = 256 / images_per_second
    return step / (step + 2 * reduce_scatter(gradient_bytes, 8, A100.levels))


runs = {"256 P100 over 8": (step_8 / step_256, 0.9)}  # predicted, found
runs["8 A100 over 1, TF32"] = efficiency(938), 7248 / (8 * 938)
runs["8 A100 over 1, mixed"] = efficiency(2470), 16621 / (8 * 2470)
lesson_18.predicted_against_found(runs)

# %% tags=["proof"]
# The asserts behind the answers so far.
assert dispatch_ms < result_ms < first_ms
assert 2.9 < unroll_ratio < 3.1
assert 0.24 < scan_ratio < 0.26
assert 1.3 < checkpoint_ratio / scan_ratio < 1.4
for program in programs.values():
    (all_reduce,) = collectives(program.as_text())
    assert all_reduce.count == 1
    assert all_reduce.bytes == sum(4 * w.size for w in params.values())
assert list_operations(average_gradients) == "@ @ @ @ @ @ @ @ sum sum sum"
assert list_operations(average_loss) == "@ @ @ sum @ @ sum @ @ sum @ sum"
assert 150 < 4 / 2 * A100.peak["float32"] / A100.memory_bandwidth < 155
assert b[np.argmax(attainable)] == 166
is_better = [abs(predicted - found) < 0.5 * abs(1 - found) for predicted, found in runs.values()]
assert is_better == [True, False, False]
assert round(1000 * step_8) == 232
assert round(1000 * (step_256 - step_8)) == 33

# %% [markdown]
# <details><summary>Answer</summary>
#
# 0.65 of about 104 ms is 0.6 %. But NVIDIA measured a loss of 16 %, and in TF32 3 % instead of 0.2 %. So
# something else costs time there, and the calculation knows nothing about it. That makes it hardly better than the
# naive prediction that nothing is lost.
#
# </details>
#
# So the prediction tells you whether *communication* can be a problem. If your run is slower, something else takes the
# time: loading data, launching kernels, or waiting for the slowest device. Then look at a profile.
# [docs/scaling.md](../docs/scaling.md) has all errors.
#
# With a larger per-device batch you lose less, because the computation takes longer and the all-reduce doesn't. But an
# epoch then has fewer updates, and the loss after an epoch may be worse. More examples per second isn't always more
# learning per hour.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). Your program from lesson 09 can tell you all of this about itself. Everything that changes:
#
# include the difference of 09_jit.py and 18_measure.py
#
# - `describe` reads from the compiled step how much a device computes and keeps, and how many all-reduces there are.
#   It counts their bytes by hand, and puts them into the formula of the ring, for your devices and for 64.
# - The clock runs over a whole epoch, so Python can prepare the next batch while the devices work. `block_until_ready`
#   waits for the last update. The median leaves out the first epoch, which is usually slower, although the step has been
#   compiled before, in `describe`.
# - `FLOPS` counts by hand what the model needs: three products for each layer, and two for the first one, because
#   nobody needs the gradient of the inputs. (`cost_analysis` counts the loss and Adam's update, too.)
#
# Put in `PEAK`, `LATENCY` and `BANDWIDTH` of your machine.
#
# **Predict:** the network has 2,410 parameters. Besides their gradients, three sums for the metrics are all-reduced.
# How many bytes is that?

# %% tags=["prediction", "take-home"]
# include program/18_measure.py

# %% [markdown]
# <details><summary>Answer</summary>
#
# 4 x (2,410 + 3) = 9,652 bytes, in one all-reduce. They take about 300 microseconds on links of 10 Gbit/s, nearly all
# of it latency: 14 messages of 20 microseconds. On 64 devices it's 126 messages and about 2.5 ms. At the peak that the
# program assumes, a single device would compute the update in 13 microseconds. So on such links no number of devices
# makes this small network faster. The losses are lesson 09's, because measuring changes nothing.
#
# </details>
#
# ## Exercises
#
# Solutions, with reasons: [solutions/18_measure_and_predict.py](solutions/18_measure_and_predict.py).
#
# 1. `fixed_timer` (5 minutes, find the mistakes): `broken_timer` should return how many seconds a call of the jitted
#    `function(x)` takes, until its result is there, and without compiling. `clock()` gives the time in seconds.
#    <details><summary>Hint</summary>There are two mistakes. The first picture shows both.</details>
# 2. `scan_flops` (10 minutes): how many operations does `lax.scan(layer, x, weights)` take, all rounds together?
#    `layer(x, w)` returns `(x, None)`. Let JAX count, to within 1 %. <details><summary>Hint</summary>The body counts
#    once. Count one layer and multiply, or let the compiler see all layers.</details>
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
# - Warm up, keep the shapes, wait for the result. Don't time simulated devices. Count operations, memory and bytes.
# - A scan's body counts once, and what's computed again counts too. So count by hand what the model needs, and report MFU.
# - You can calculate what the all-reduce costs. Many devices lose time to other things, too, so check your prediction,
#   and say how wrong it was.
#
# The model of the all-reduce is in [scaling.py](../pmapdp/scaling.py), and `python -m pmapdp.train --workdir runs/first
# --profile` writes the trace of a run. To read on: JAX on
# [profiling](https://docs.jax.dev/en/latest/201/profiling.html), and the scaling book on
# [rooflines](https://jax-ml.github.io/scaling-book/roofline/). This was the last lesson. Now it's your turn. To look
# things up, use the [list of lessons](README.md).

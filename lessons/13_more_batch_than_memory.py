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
# # 13. Train with more batch than memory
#
# After this lesson you can train on a global batch that does not fit in the memory of your devices: with gradient
# accumulation under pmap, shard_map and jit, with bfloat16, and with rematerialization. You can count what each of
# them costs.
#
# About 35 minutes · you need [05 Average gradients](05_average_gradients.ipynb),
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb) and
# [10 Three ways side by side](10_three_ways_side_by_side.ipynb) · previous:
# [12 Port a pmap program](12_port_a_pmap_program.ipynb) · next: [14 A real training run](14_a_real_training_run.ipynb)
#
# | PyTorch | here |
# | --- | --- |
# | `with model.no_sync():` around all micro-batches but the last | one `lax.pmean` after the loop over the micro-batches |
# | `torch.autocast(dtype=torch.bfloat16)` | `astype(jnp.bfloat16)` in the loss; in Flax `dtype=jnp.bfloat16` of a layer |
# | `GradScaler` | not needed with bfloat16; a factor on the loss with float16 |
# | `torch.utils.checkpoint.checkpoint()` | `jax.checkpoint`, with a policy that says what is kept |
#
# Letters: N devices, B examples in the global batch, b = B / N on a device, K micro-batches.

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax
from jax.sharding import Mesh, NamedSharding

from pmapdp import devices  # simulates devices (lesson 00) and describes them

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"
chosen = jax.devices()
mesh = Mesh(np.array(chosen), ("data",))
replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
print(devices.describe(chosen), "| jax", jax.__version__)

# %% [markdown]
# ## What fills the memory
#
# Parameters, gradients and optimizer state have a fixed size. What grows with the batch are the **activations**,
# which the forward pass keeps for the backward pass. The network of this lesson has L = 12 layers of width W = 128.
# Its backward pass needs the result of each layer, so a device keeps about L b W numbers of 4 bytes.
#
# `memory_analysis()` of a compiled program gives the bytes that the compiler has planned for temporary arrays on one
# device. Nothing has to run. **Predict:** how many megabytes does a batch of 8,192 examples take on each of the eight
# devices?

# %% tags=["prediction"]
from pmapdp.compare.collectives import collectives  # lists the collectives in the text of a compiled program

L, W, K = 12, 128, 4
random = np.random.default_rng(0)
weights = random.normal(0, W**-0.5, (L, W, W)).astype(np.float32)
x, y = random.normal(size=(2, 8192, W)).astype(np.float32)


def loss(weights, x, y):  # [L, W, W], [rows, W], [rows, W]
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.square(x - y).mean()


def plain(weights, x, y):  # the program of one device, as in lesson 05
    gradient = lax.pmean(jax.grad(loss)(weights, x, y), "data")
    return weights - 0.1 * gradient


def on_devices(step):
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P(), check_vma=False)
    return jax.jit(mapped)


def temporary(function, *arguments):
    """MB of temporary arrays on one device."""
    return function.lower(*arguments).compile().memory_analysis().temp_size_in_bytes / 1e6


planned = {B: temporary(on_devices(plain), weights, x[:B], y[:B]) for B in (2048, 4096, 8192)}
for B in planned:
    print(f"B = {B}: {planned[B]:.2f} MB planned, {4e-6 * L * (B // 8) * W:.2f} MB of activations by hand")
growth = planned[8192] - planned[4096]
print(f"another 4,096 examples take {growth:.2f} MB, by hand {4e-6 * L * 512 * W:.2f} MB")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The bytes grow by L W numbers for each example of a device, as we counted by hand.
#
# </details>
#
# ## Accumulate gradients
#
# The gradient of a mean over B examples is the mean of the gradients of K equal **micro-batches**. The smallest case:
# the loss is the mean of `(w - x) ** 2`, w is 0, and x is 1, 2, 3, 4. Its gradient is -2 times the mean of x, which
# is -5. The two halves have the gradients -3 and -7, and their mean is -5 as well.

# %%
squares = jax.grad(lambda w, x: jnp.square(w - x).mean())
numbers = jnp.array([1.0, 2.0, 3.0, 4.0])
assert squares(0.0, numbers) == -5
assert (squares(0.0, numbers[:2]) + squares(0.0, numbers[2:])) / 2 == (-3 - 7) / 2 == -5
print("3 and 1 examples:", (squares(0.0, numbers[:3]) + squares(0.0, numbers[3:])) / 2, "is not -5")

# %% [markdown]
# The last line shows the condition: micro-batches of 3 and 1 examples give -6. Where the counts differ, for example
# because of padding, accumulate the *sums* of gradients and of counts, and divide at the end (exercise 3).
#
# With pmap and shard_map you write the program of one device, so each device cuts its own rows. The devices
# communicate once, after the loop:

# %%
from pmapdp.lessons.pictures import lesson_13

lesson_13.accumulation()

# %% [markdown]
# `lax.scan` is the loop. `unroll=K` writes its body K times into the program, and `unroll=1` keeps a real loop. We
# compile four steps: the plain one, one with a loop, one that is unrolled, and one that averages inside the loop.
# **Predict:** which of them needs least memory, and how many bytes does each all-reduce?

# %% tags=["prediction"]
BYTES = weights.nbytes


def accumulated(weights, x, y, unroll=1):
    """The mean gradient over the rows, one micro-batch after the other."""

    def add(total, rows):
        return total + jax.grad(loss)(weights, *rows), None

    micro_batches = x.reshape(K, -1, W), y.reshape(K, -1, W)
    total, _ = lax.scan(add, jnp.zeros_like(weights), micro_batches, unroll=unroll)
    return total / K


def in_a_loop(weights, x, y):
    return weights - 0.1 * lax.pmean(accumulated(weights, x, y), "data")  # <- new: one pmean, after the loop


def unrolled(weights, x, y):
    return weights - 0.1 * lax.pmean(accumulated(weights, x, y, unroll=K), "data")


def pmean_inside(weights, x, y):  # what DDP does without no_sync
    rows = x.reshape(K, -1, W), y.reshape(K, -1, W)
    gradients = [lax.pmean(jax.grad(loss)(weights, rows[0][k], rows[1][k]), "data") for k in range(K)]
    return weights - 0.1 * sum(gradients) / K


megabytes, reduced, results = {}, {}, {}
for step in (plain, in_a_loop, unrolled, pmean_inside):
    compiled = on_devices(step).lower(weights, x, y).compile()
    megabytes[step] = compiled.memory_analysis().temp_size_in_bytes / 1e6
    reduced[step] = sum(each.bytes for each in collectives(compiled.as_text()))
    results[step] = np.asarray(on_devices(step)(weights, x, y))
    times = reduced[step] / BYTES
    print(f"{step.__name__:13s} {megabytes[step]:.2f} MB temporary, {times:.0f} x the parameters all-reduced")
mapped = jax.pmap(in_a_loop, "data", in_axes=(None, 0, 0), out_axes=None)  # the same function under pmap

# %% [markdown]
# <details><summary>Answer</summary>
#
# The loop needs little more than a third of the memory, and all-reduces the same bytes as the plain step. It keeps a
# quarter of the activations, but the gradients take as much memory as before. All four results are equal (float32,
# tolerance 1e-6). With the pmean inside the loop the bytes are K times as many: that is what `no_sync` avoids.
#
# </details>
#
# The unrolled program saves *nothing* here: the compiler may start all forward passes before the first backward pass.
# So use a real loop, with one exception. XLA for CPUs runs convolutions in a loop 20 to 50 times slower. On a CPU,
# unroll an accumulation of a convolutional network: it is then right and fast, but saves no memory.
#
# ## Under jit: which rows are a micro-batch?
#
# Under jit you write the program of the global batch, and cut that. Here are two ways to cut 32 rows into four
# micro-batches. The colour of a row is the device that holds it.

# %%
lesson_13.cuts()

# %% [markdown]
# **A failure on purpose.** Both give the right gradient. In the first, each micro-batch is on two devices only.
# **Predict:** what do the other six do meanwhile? The cell counts the floating-point operations of one device. (It
# unrolls the loop, because `cost_analysis` counts the body of a loop once.)


# %% tags=["prediction"]
def step_with(cut, unroll=K):
    def step(weights, x, y):
        def add(total, rows):
            return total + jax.grad(loss)(weights, *rows), None

        total, _ = lax.scan(add, jnp.zeros_like(weights), (cut(x), cut(y)), unroll=unroll)
        return weights - 0.1 * total / K

    return jax.jit(step, in_shardings=(replicated, split, split), out_shardings=replicated)


def neighbours(a):  # rows 0, 1, 2, ... are one micro-batch
    return a.reshape(K, -1, W)


def every_fourth(a):  # rows 0, 4, 8, ... are one micro-batch
    return a.reshape(-1, K, W).swapaxes(0, 1)


flops = {"plain": on_devices(plain).lower(weights, x, y).compile().cost_analysis()["flops"]}
for cut in (neighbours, every_fourth):
    compiled = step_with(cut).lower(weights, x, y).compile()
    flops[cut] = compiled.cost_analysis()["flops"]
    kinds = ", ".join(f"{each.kind} {each.bytes / BYTES:.1f} x" for each in collectives(compiled.as_text()))
    times = flops[cut] / flops["plain"]
    print(f"{cut.__name__:12s} {times:.1f} times the work of the plain step; bytes: {kinds} the parameters")
print(f"in a loop: {temporary(step_with(every_fourth, unroll=1), weights, x, y):.2f} MB temporary")

# %% [markdown]
# <details><summary>Answer</summary>
#
# With neighbouring rows, four times the work: eight devices are as fast as two. Nothing warns you, because the result
# is right. `reshape(-1, K)` and a swap leave each row on its device. (Under the Explicit axes of lesson 11, JAX
# refuses the first cut.)
#
# </details>
#
# Even the second cut all-reduces K times as many bytes as the plain step, at least with XLA for CPUs. It sums over the
# devices for each micro-batch, because each micro-gradient is a replicated array of your program. (XLA for GPUs has
# passes that try to avoid this.) The cure is to write the loop as the
# program of one device. A `shard_map` works inside jit, around the gradient alone:

# %%
local = jax.shard_map(
    lambda *given: lax.pmean(accumulated(*given), "data"),
    mesh=mesh,
    in_specs=(P(), P("data"), P("data")),
    out_specs=P(),
    check_vma=False,
)
step = jax.jit(lambda *given: given[0] - 0.1 * local(*given), in_shardings=(replicated, split, split))
compiled = step.lower(weights, x, y).compile()
print(*collectives(compiled.as_text()), f"{compiled.memory_analysis().temp_size_in_bytes / 1e6:.2f} MB temporary")
assert [(each.kind, each.bytes) for each in collectives(compiled.as_text())] == [("all-reduce", BYTES)]
np.testing.assert_allclose(step(weights, x, y), results[plain], rtol=0, atol=1e-6)

# %% [markdown]
# ## bfloat16, with float32 parameters
#
# A bfloat16 has the exponent of a float32 and 8 bits of precision instead of 24. An A100 multiplies 312 TFLOP/s in
# bfloat16, 156 in TF32 and 19.5 in float32, and activations take half the bytes. But **parameters stay float32**:
# next to 1, the smallest step of a bfloat16 is 1/128, so an update of 0.001 is lost.
#
# So the loss converts parameters and inputs, and computes its own last sums in float32. The derivative of a
# conversion converts back. **Predict:** of which type are the gradient, and the numbers that the devices all-reduce?


# %% tags=["prediction"]
def mixed_loss(weights, x, y):
    x, weights = x.astype(jnp.bfloat16), weights.astype(jnp.bfloat16)  # <- new
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.square(x.astype(jnp.float32) - y).mean()  # <- new: float32 from here on


def mixed(weights, x, y):
    return weights - 0.1 * lax.pmean(jax.grad(mixed_loss)(weights, x, y), "data")


def kept(loss, *arguments):
    """MB that the forward pass of `loss` keeps for the backward pass, all devices together."""
    # The backward pass, a function that holds the arrays it needs.
    backward = jax.eval_shape(lambda *given: jax.vjp(loss, *given)[1], *arguments)
    return sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(backward)) / 1e6


gradient = jax.eval_shape(jax.grad(mixed_loss), weights, x, y)
jaxpr = jax.make_jaxpr(on_devices(mixed))(weights, x, y).pretty_print(use_color=False)
(line,) = [line for line in jaxpr.splitlines() if "= psum" in line]
print("gradient:", gradient.dtype, "| all-reduce:", line.split("=")[0].split(":")[1].strip())
full, half = kept(loss, weights, x, y), kept(mixed_loss, weights, x, y)
print(f"kept for the backward pass: {full:.0f} MB in float32, {half:.0f} MB mixed")
ends = {}
for loss_of in (loss, mixed_loss):
    trained, update = weights, on_devices(lambda w, x, y, f=loss_of: w - 3 * lax.pmean(jax.grad(f)(w, x, y), "data"))
    for _ in range(20):
        trained = update(trained, x[:1024], y[:1024])
    ends[loss_of] = float(loss(trained, x[:1024], y[:1024]))
first = loss(weights, x[:1024], y[:1024])
print(f"loss at the start {first:.4f}, after 20 updates {ends[loss]:.4f}, mixed {ends[mixed_loss]:.4f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both are float32: the sum over devices and the update lose nothing. Training ends at the same loss within 2 %.
# (Under jit the compiler chooses where it sums over the devices, and may do it before the conversion, in bfloat16:
# look at the compiled program. Memory and speed of bfloat16 show on accelerators only, because CPUs convert to
# float32 to compute.)
#
# </details>
#
# **Loss scaling** belongs to float16, whose smallest number is 6e-8: smaller gradients become 0. One multiplies the
# loss by 2**15 or so, and divides the gradients afterwards. bfloat16 reaches down to 1e-38 as float32 does, so it
# needs no scaling.

# %%
for dtype in (jnp.float16, jnp.bfloat16):
    factor = dtype(1e-4)
    gradient_of = jax.grad(lambda w, scale, factor: scale * (w * factor * factor).astype(jnp.float32))
    small, scaled = (gradient_of(dtype(1), scale, factor) for scale in (1.0, 2.0**15))
    print(f"{dtype.__name__:9s} gradient {float(small):.1e}, scaled {float(scaled) / 2**15:.1e}; it should be 1e-08")
    assert (small == 0) == (dtype == jnp.float16)
    np.testing.assert_allclose(float(scaled) / 2**15, 1e-8, rtol=0.01)

# %% [markdown]
# ## Rematerialization: compute again instead of keeping
#
# `jax.checkpoint` around a function keeps only its inputs, and the backward pass computes the rest again. A
# **policy** says what else is kept: for example, the results of products, which are costly to compute again. The
# layers are in a `lax.scan` now, as in most large models. Its body has one product forward and two backward.
# **Predict:** how many products has the backward pass's program for each policy, and which one keeps least?

# %% tags=["prediction"]
POLICIES = {
    "keep everything": lambda layer: layer,
    "keep products": lambda layer: jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable),
    "keep inputs": jax.checkpoint,
}


def scanned_loss(around):
    layer = around(lambda x, w: (jnp.tanh(jax.nn.silu(x @ w)), None))
    return lambda weights, x, y: jnp.square(lax.scan(layer, x, weights)[0] - y).mean()


products, peaks = {}, {}
for name, around in POLICIES.items():
    of_policy = jax.grad(scanned_loss(around))
    products[name] = str(jax.make_jaxpr(of_policy)(weights, x, y)).count("dot_general")
    peaks[name] = temporary(on_devices(lambda *given, g=of_policy: lax.pmean(g(*given), "data")), weights, x, y)
    memory = kept(scanned_loss(around), weights, x, y)
    print(f"{name:15s} {products[name]} products a layer, {memory:4.0f} MB kept, {peaks[name]:5.2f} MB planned")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Keeping only the inputs costs one more product for three, a third more work. Keeping the products costs none, and
# lies between the two in memory.
#
# </details>
#
# Those layers are in a loop. The next program is one straight piece: the loss from above, without and with
# `jax.checkpoint`. **Predict:** which of the three numbers differ between the two lines?

# %% tags=["prediction"]
written, work = [], []
for f in (loss, jax.checkpoint(loss)):
    compiled = on_devices(lambda *given, f=f: lax.pmean(jax.grad(f)(*given), "data")).lower(weights, x, y).compile()
    written.append(str(jax.make_jaxpr(jax.grad(f))(weights, x, y)).count("dot_general"))
    work.append(compiled.cost_analysis()["flops"] / 1e6)
    temporary_bytes = compiled.memory_analysis().temp_size_in_bytes
    print(f"{written[-1]} products written, {work[-1]:.0f} MFLOP compiled, {temporary_bytes / 1e6:.2f} MB temporary")

# %% tags=["proof"]
# The asserts behind the answers so far.
assert 0.8 < growth / (4e-6 * L * 512 * W) < 1.2
for found in results.values():
    np.testing.assert_allclose(found, results[plain], rtol=0, atol=1e-6)
np.testing.assert_allclose(mapped(weights, x.reshape(8, -1, W), y.reshape(8, -1, W)), results[plain], rtol=0, atol=1e-6)
assert megabytes[in_a_loop] < 0.4 * megabytes[plain] < 0.9 * megabytes[unrolled]
assert reduced[plain] == reduced[in_a_loop] == reduced[unrolled] == BYTES == reduced[pmean_inside] / K
assert flops[neighbours] > 3.5 * flops["plain"] > 3.4 * flops[every_fourth]
for cut in (neighbours, every_fourth):
    np.testing.assert_allclose(step_with(cut)(weights, x, y), results[plain], rtol=0, atol=1e-6)
assert jnp.bfloat16(1) + jnp.bfloat16(0.001) == 1
assert gradient.dtype == jnp.float32
assert "f32[12,128,128]" in line
assert abs(ends[mixed_loss] / ends[loss] - 1) < 0.02
assert list(products.values()) == [3, 3, 4]
assert peaks["keep inputs"] < peaks["keep products"] < peaks["keep everything"]
assert written == [35, 47]
assert work[1] < 1.01 * work[0]

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the products that are written. XLA for CPUs merges the second computation with the first one again. On GPUs and
# TPUs a barrier keeps them apart. So on a CPU, rely on rematerialization in a loop only.
#
# </details>
#
# ## Take it home
#
# The next cell needs nothing from above and nothing from pmapdp. It trains a Flax model with all three:
# micro-batches, bfloat16 with float32 parameters, and rematerialized blocks. Copy it into an empty notebook, and put
# your own model and data in.

# %% tags=["take-home"]
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

BATCH, MICRO_BATCHES, EPOCHS = 1024, 4, 6  # the batch divides by the number of devices times that of micro-batches
mesh = Mesh(np.array(jax.devices()), ("data",))
replicated = NamedSharding(mesh, PartitionSpec())
split = NamedSharding(mesh, PartitionSpec("data"))


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.linear = nnx.Linear(width, width, dtype=jnp.bfloat16, rngs=rngs)  # computes in bfloat16, keeps float32

    def __call__(self, x):
        return x + nnx.relu(self.linear(x))


class Net(nnx.Module):
    def __init__(self, features, width, depth, classes, rngs):
        self.first = nnx.Linear(features, width, dtype=jnp.bfloat16, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(depth)])
        self.last = nnx.Linear(width, classes, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = jax.checkpoint(lambda block, x: block(x))(block, x)  # keeps the block's input alone
        return self.last(x).astype(jnp.float32)


def loss(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))


def step(model, optimizer_state, x, y):  # the program of one device: x [b, D], y [b]
    def add(totals, micro_batch):
        found = jax.value_and_grad(loss)(model, *micro_batch)
        return jax.tree.map(jnp.add, totals, found), None

    micro_batches = jax.tree.map(lambda a: a.reshape(MICRO_BATCHES, -1, *a.shape[1:]), (x, y))
    zeros = jax.tree.map(jnp.zeros_like, (jnp.float32(0), model))
    totals, _ = lax.scan(add, zeros, micro_batches)  # with convolutions on a CPU: unroll=MICRO_BATCHES
    means = jax.tree.map(lambda total: total / MICRO_BATCHES, totals)
    value, gradients = lax.pmean(means, "data")  # the only communication of the step
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return optax.apply_updates(model, updates), optimizer_state, value


specs = (PartitionSpec(), PartitionSpec(), PartitionSpec("data"), PartitionSpec("data"))
mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
train_step = jax.jit(mapped, donate_argnums=(0, 1))

random = np.random.default_rng(0)  # put your own arrays in place of these
inputs = random.normal(size=(20_000, 32)).astype(np.float32)
labels = (inputs @ random.normal(size=(32, 10))).argmax(1).astype(np.int32)
train, test = (inputs[:18_005], labels[:18_005]), (inputs[18_005:], labels[18_005:])
predict = jax.jit(lambda model, x: model(x).argmax(1), in_shardings=(replicated, split))


def accuracy(model):
    """Over all test examples. Rows of padding make their number divide by the devices; they are cut off again."""
    missing = -len(test[0]) % mesh.size
    guesses = predict(model, np.pad(test[0], ((0, missing), (0, 0))))
    return (np.asarray(guesses)[: len(test[0])] == test[1]).mean()


network = Net(inputs.shape[1], 128, 4, int(labels.max()) + 1, nnx.Rngs(0))
model = jax.device_put(network, replicated)
optimizer_state = jax.device_put(optimizer.init(model), replicated)
for epoch in range(EPOCHS):
    order = np.random.default_rng([1, epoch]).permutation(len(train[0]))
    for start in range(0, len(order) - BATCH + 1, BATCH):  # what fills no batch has its turn in another epoch
        rows = order[start : start + BATCH]
        batch = jax.device_put((train[0][rows], train[1][rows]), split)
        model, optimizer_state, value = train_step(model, optimizer_state, *batch)
    print(f"epoch {epoch + 1}: loss {float(value):.3f}, test accuracy {accuracy(model):.3f}")
assert accuracy(model) > 0.85

# %% [markdown]
# `optax.MultiSteps` is another way to accumulate. It keeps the mean of the gradients from one call of the step to the
# next, so it needs memory for one more copy of them, and the devices communicate in each call.
#
# ## Exercises
#
# **1. `accumulate`** (10 minutes): the whole lesson, in `shard_map` over the axis "data". `loss(w, x)` is a mean over
# the rows of x. Given this device's rows `x` `[b, D]`, return the gradient for `w` of the mean over *all* devices'
# rows. Call `loss` with b / K rows at a time only, and communicate once.
# <details><summary>Hint</summary>A scan, or a Python loop, over <code>x.reshape(K, -1, D)</code>. Then one
# pmean.</details>
#
# **2. `cut_rows`** (5 minutes): under jit, `x` `[B, D]` is split over the devices. Return it as `[K, B / K, D]` such
# that no row leaves its device. Any order of the rows is right. <details><summary>Hint</summary><code>reshape</code>,
# then swap two axes.</details>
#
# **3. `fixed_gradient`** (5 minutes): find the planted mistake. Padding has weight 0. `broken_gradient` is to return
# the gradient for `w` of `sum(weights * (x @ w - y) ** 2) / sum(weights)` over all micro-batches. It is right if each
# micro-batch has equally much padding. x is `[K, rows, D]`, y and weights are `[K, rows]`.
# <details><summary>Hint</summary>Accumulate two sums, and divide once.</details>


# %%
from pmapdp.lessons.checks import check


def broken_gradient(w, x, y, weights):
    def mean(w, x, y, weights):
        return jnp.sum(weights * (x @ w - y) ** 2) / jnp.sum(weights)

    return sum(jax.grad(mean)(w, *rows) for rows in zip(x, y, weights, strict=True)) / len(x)


def accumulate(loss, w, x, K):
    """The gradient for w, the same on every device."""
    ...  # your code: 4 to 7 lines


def cut_rows(x, K):
    """[K, B / K, D]"""
    ...  # your code: 1 line


def fixed_gradient(w, x, y, weights):
    """The gradient for w [D]."""
    ...  # your code: 3 to 6 lines


for exercise in (accumulate, cut_rows, fixed_gradient):
    check("13_more_batch_than_memory", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/13_more_batch_than_memory.py](solutions/13_more_batch_than_memory.py)
#
# ## Take away
#
# - Accumulate in a real loop, on each device by itself, and all-reduce once after it. Under jit cut with
#   `reshape(-1, K)` and a swap, and count the work.
# - bfloat16 belongs into the computation; parameters, their sums over devices and the loss stay float32. It needs no
#   loss scaling.
# - Rematerialization trades products for memory; a policy chooses which. Count products in the jaxpr, and bytes in
#   the plan of the compiler.
#
# In pmapdp these are `--accumulate` and `--dtype bfloat16`. The loop is in
# [steps/shared.py](../pmapdp/steps/shared.py), and `gradient_sums` there adds sums, as exercise 3 does.
# Rematerialization belongs into a model of your own. Read on: JAX on
# [rematerialization](https://docs.jax.dev/en/latest/notebooks/autodiff_remat.html), and the [scaling book on
# training](https://jax-ml.github.io/scaling-book/training/). Next: [14 A real training
# run](14_a_real_training_run.ipynb).

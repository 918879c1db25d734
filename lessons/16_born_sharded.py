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
# # 16. Born sharded
#
# You want to train a model with seven billion parameters, and you have eight GPUs with 80 GB each. Data parallelism can't
# do it, on eight GPUs or on a thousand, because each of them holds a copy of everything, and a copy takes 112 GB. But why
# should eight devices keep the same numbers eight times? In this lesson **a weight lives on one device and visits the
# others** when they need it. That changes fifteen lines of your program, none of them in the training step.
#
# **You will** count the bytes of a training state, create it in shards (ZeRO, also called FSDP), keep the peak of a step
# low, and count what that costs in messages. 28 minutes, 48 with exercises. You need
# [06 Communicate between devices](06_communicate_between_devices.ipynb),
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb), and `shard_map` from
# [10 Three ways side by side](10_three_ways_side_by_side.ipynb).

# %%
# Colab: choose a CPU runtime, clone the repository, run `%pip install -q "./pmapdp[lessons]"`.
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices
from pmapdp.lessons.pictures import lesson_16

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"

# %% [markdown]
# ## Seven billion parameters, in bytes
#
# For each parameter, training with Adam keeps four numbers: the parameter, its gradient, and Adam's two moments. In
# float32 that's 16 bytes, and 7 billion times 16 bytes is 112 GB. Activations come on top. Parameters and gradients in 16
# bits don't help. They take 2 + 2 bytes, the moments 4 + 4, and the float32 copy of the parameter that you usually keep
# takes 4, so it's 16 bytes again.
#
# Say you split only one of the three, the parameters, the gradients or the moments, so that each device keeps an eighth.
#
# **Predict:** which one must you split to get below 80 GB?

# %% tags=["prediction"]
gigabytes = {  # of parameters, gradients and moments on each device
    "nothing split": (28, 28, 56),
    "parameters split": (28 / 8, 28, 56),
    "moments split": (28, 28, 56 / 8),
    "everything split": (28 / 8, 28 / 8, 56 / 8),
}
lesson_16.bytes_of_seven_billion(gigabytes)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Adam's moments. An eighth of 56 GB is 7 GB, so a device holds 28 + 28 + 7 = 63 GB, which leaves 17 GB for activations.
# With the parameters or the gradients split it's still 87.5 GB.
#
# </details>
#
# Splitting the moments is stage 1 of **ZeRO** ([Rajbhandari et al., 2020](https://arxiv.org/abs/1910.02054)). Stage 2
# also splits the gradients. Stage 3, which PyTorch calls FSDP, splits everything, so that a device holds 14 GB. The rest
# of this lesson is about stage 3.
#
# ## Eight weights, eight devices
#
# How can a device compute with weights that it doesn't have? Here are eight weights with the values 0 to 7, and weight d
# lives on device d. The example of device d has eight entries, and each of them is d + 1. The loss is the dot product of
# the weights and the example.

# %%
from jax import lax

from pmapdp.collectives import collectives

mesh = Mesh(jax.devices(), ("data",))
replicated = NamedSharding(mesh, PartitionSpec())
split = NamedSharding(mesh, PartitionSpec("data"))


def update(w, example):  # [1]: this device's weight; [8]: this device's example
    def dot_product(w):
        visitors = lax.all_gather(w, "data", tiled=True)  # [8]: all weights
        return jnp.vdot(visitors, example)

    loss, gradient = jax.value_and_grad(dot_product)(w)  # [1]: for this device's weight alone
    return w - 0.1 * gradient / lax.axis_size("data"), loss.reshape(1)


def count_messages(program):
    return {message.kind: message.runs for message in collectives(program.as_text())}


# %% [markdown]
# Each device ends up with one number, the gradient of its own weight. It has to include all eight examples, but `update`
# contains no `psum`. So who adds?
#
# **Predict:** which collective does JAX run in the backward pass, as the derivative of the all-gather?

# %% tags=["prediction"]
spec = PartitionSpec("data")
specs = {"in_specs": (spec, spec), "out_specs": (spec, spec)}
update_devices = jax.jit(jax.shard_map(update, mesh=mesh, **specs))
weights = np.arange(8, dtype=np.float32)
examples = np.repeat(np.arange(1, 9, dtype=np.float32), 8)  # eight numbers for each device
new_weights, losses = update_devices(weights, examples)
print("weights", np.asarray(new_weights).round(2))
program = update_devices.lower(weights, examples).compile()
print("collectives", count_messages(program))
lesson_16.a_weight_visits()

# %% [markdown]
# <details><summary>Answer</summary>
#
# A reduce-scatter. Every device got a copy of weight 3, so the gradient of weight 3 is the sum of what they all find,
# 1 + 2 + ... + 8 = 36, and only device 3 needs it. Divided by the eight devices, that's the mean gradient, 4.5, so weight
# 3 becomes 3 - 0.1 x 4.5 = 2.55.
#
# </details>
#
# In the picture, a colour is the device where a weight lives. The weights go out by an all-gather, and their gradients
# come home by a reduce-scatter. Adam's moments would never leave.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). Under `jit` you only say where the state lives, and the compiler
# chooses the messages.
#
# include the difference of 09_jit.py and 16_zero.py
#
# - If you made the state first and split it afterwards, one device would briefly hold all of it. So
#   `jax.jit(init_state, out_shardings=...)` makes it where it will live: the state is **born sharded**.
# - To choose those shardings you need the shapes before there's a state. `jax.eval_shape` finds them, and computes nothing.
# - `shard` splits the longest of the axes whose length is divisible by the number of devices.
# - On CPUs, the compiled step has three all-gathers, and an all-reduce where `update` has a reduce-scatter.

# %% tags=["take-home"]
# include program/16_zero.py

# %% [markdown]
# The losses match lesson 09's to within 1e-3. A device holds a bit more than an eighth of the state, because eight devices
# can't share the last layer's bias of 10 numbers, so it stays whole. Lesson 14's checkpoint code still works: pass a state
# with the shardings you want, and a checkpoint of eight devices comes back in the shards of four.
#
# ## Is the state really born sharded?
#
# `out_shardings` only says where the result lies. What a device needs on the way depends on the initializer, and the
# compiler's plan tells you, without running anything. Take a kernel of 1024 x 1024, or 4.2 MB. `lecun_normal`, Flax's
# default, draws normal numbers. `orthogonal` draws them, too, and then makes all columns orthogonal to each other.
#
# **Predict:** with which of the two does a device need the whole kernel?


# %% tags=["prediction"]
def plan_kernel(initializer):
    """The plan for one device's memory while the kernel is made."""
    make = jax.jit(lambda key: initializer(key, (1024, 1024)), out_shardings=split)
    return make.lower(jax.random.key(0)).compile().memory_analysis()


plans = {
    "lecun_normal": plan_kernel(nnx.initializers.lecun_normal()),
    "orthogonal": plan_kernel(nnx.initializers.orthogonal()),
}
for name, plan in plans.items():
    print(f"{name}: {plan.output_size_in_bytes / 1e6:.1f} MB that stay,", end=" ")
    print(f"{plan.temp_size_in_bytes / 1e6:.1f} MB on the way")

# %% [markdown]
# <details><summary>Answer</summary>
#
# With `orthogonal`. Each normal number can be computed by itself, so a device makes only its eighth, 0.5 MB, and needs 1.6
# MB on the way. But orthogonal columns depend on each other, so every device makes the whole kernel, and needs 16.8 MB on
# the way, as much as four full kernels.
#
# </details>
#
# 1. `build_sharded` (5 minutes): `build()` draws normal numbers. Return its array with this sharding, so that no device
#    ever holds all of it. <details><summary>Hint</summary>Compile it, and say how the result should be sharded.</details>

# %%
from pmapdp.lessons.checks import check


def build_sharded(build, sharding):
    """The array that build() makes, in shards."""
    ...  # your code: 1 line


verdict = check("16_born_sharded", "build_sharded", build_sharded)

# %% tags=["proof"]
# The asserts behind the answers so far.
assert [sum(parts) for parts in gigabytes.values()] == [112, 87.5, 63, 14]
np.testing.assert_allclose(new_weights, weights - 0.45, rtol=1e-5)
np.testing.assert_allclose(losses, 28 * (weights + 1))
assert sorted(count_messages(program)) == ["all-gather", "reduce-scatter"]
totals = jax.tree.map(lambda *sums: float(sum(sums)), *jax.device_get(train_sums))
assert abs(totals["loss"] / totals["count"] - 0.2486) < 1e-3
assert 1 / 8 < bytes_per_device / total < 0.15
compiled = train_step.lower(state, next(batches(*train_data, seed=0))).compile()
assert count_messages(compiled) == {"all-reduce": 1, "all-gather": 3}
init_plan = jax.jit(init_state, out_shardings=shardings).lower().compile().memory_analysis()
most_bytes = init_plan.output_size_in_bytes + init_plan.temp_size_in_bytes
assert abs(init_plan.output_size_in_bytes / total - bytes_per_device / total) < 0.01
assert most_bytes < total / 2
kernel_bytes = 1024 * 1024 * 4
assert all(plan.output_size_in_bytes == kernel_bytes / 8 for plan in plans.values())
assert plans["lecun_normal"].temp_size_in_bytes < 0.4 * kernel_bytes
assert plans["orthogonal"].temp_size_in_bytes > 3.9 * kernel_bytes
replicated_shapes = [x.shape for x in jax.tree.leaves(state[0]) if x.sharding.is_fully_replicated]
assert replicated_shapes == [(10,)]

# %% [markdown]
# ## The peak is inside the step
#
# An eighth is what a device holds *between* two steps. You run out of memory *during* a step, while the gathered
# weights are there. Your network is too small to show that, so take sixteen layers of 512 x 512 in a `lax.scan`.
# `gather_first` asks for all the layers at once.


# %%
layers = np.random.default_rng(0).normal(0, 512**-0.5, (16, 512, 512)).astype(np.float32)
x = np.ones((64, 512), np.float32)
rows = NamedSharding(mesh, PartitionSpec(None, "data"))  # splits the rows of every layer


def deep_loss(layers, x):
    x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)
    return jnp.square(x).mean()


def gather_first(layers, x):
    layers = lax.with_sharding_constraint(layers, replicated)
    return deep_loss(layers, x)


# %% [markdown]
# The next cell has two helpers, and you can skip their code. `make_step` makes one update of Adam from a loss.
# `compile_step` compiles it for layers and moments in the shardings that you name, and doesn't run it.


# %%
def make_step(loss):
    def step(layers, adam_state, x):
        updates, adam_state = optimizer.update(jax.grad(loss)(layers, x), adam_state, layers)
        return optax.apply_updates(layers, updates), adam_state

    return step


def compile_step(step, layers_sharding, moments_sharding):
    adam_state = optimizer.init(layers)
    moments = jax.tree.map(lambda x: moments_sharding if x.ndim else replicated, adam_state)
    shardings = layers_sharding, moments
    options = {"in_shardings": (*shardings, split), "out_shardings": shardings}
    return jax.jit(step, **options, donate_argnums=(0, 1)).lower(layers, adam_state, x).compile()


# %% [markdown]
# The layers take 16.8 MB and their moments 33.6, so the state is 50.3 MB, or 6.3 MB in eighths. If it's replicated, the
# peak is 70 MB. The next cell draws the compiler's plan for the memory of one device.
#
# **Predict:** how many MB does *gathered first* need at least?

# %% tags=["prediction"]
programs = {
    "replicated": compile_step(make_step(deep_loss), replicated, replicated),
    "gathered first": compile_step(make_step(gather_first), rows, rows),
    "left to the compiler": compile_step(make_step(deep_loss), rows, rows),
}
lesson_16.memory_over_time(programs)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 23 MB: 6.3 for an eighth of the state, and 16.8 for the full layers. The plan has 57 MB, because two more arrays of 16.8
# MB are there. JAX puts your constraint on the gradients of the layers, too, so every device makes them in full. And XLA
# for CPUs keeps the gathered layers twice for a moment.
#
# </details>
#
# *Left to the compiler* takes 11 MB, because each layer comes when it's used and leaves right after.
#
# ## What a low peak costs
#
# You pay for a low peak in messages, and the next cell counts them. It adds two programs. In *moments split*, which is
# stage 1, the layers are replicated. *Stack split* is *left to the compiler* once more, but it splits the first axis, so
# that each device holds two whole layers.
#
# **Predict:** how often is each layer gathered in one update with *left to the compiler*?


# %% tags=["prediction"]
def peak(program):
    """In MB."""
    plan = program.memory_analysis()
    return (plan.argument_size_in_bytes + plan.temp_size_in_bytes) / 1e6


programs["moments split"] = compile_step(make_step(deep_loss), replicated, rows)
programs["stack split"] = compile_step(make_step(deep_loss), split, split)
for name, program in programs.items():
    print(f"{name:20s} peak {peak(program):2.0f} MB,", count_messages(program))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Twice: 32 all-gathers for 16 layers. Each layer is gathered in the forward pass and freed, so the backward pass has to
# gather it again.
#
# </details>
#
# *Stack split* takes 44 MB, four times as much, because the compiler gathers the full stack before each of the two scans.
# So **split the layers, and not the stack**, if the compiler gathers them for a scan. Your program's `shard` does, because
# here the longest axis is one of a layer's.
#
# *Moments split* takes 40 MB: 16.8 for the layers, 4.2 for an eighth of the moments, 16.8 for a second copy of the new
# layers while they're gathered, and 2 for the rest. Of the gradients the compiler keeps only the eighth that the device
# needs for its update, so here you ask for stage 1, and get stage 2. To ask for stage 2 yourself, write
# `gradients = lax.with_sharding_constraint(gradients, rows)`.
#
# How much is sent? Let n be the bytes of all layers, whether they go in one message or in sixteen. As in lesson 06's
# ring, a gather or a reduce-scatter sends about n, and an all-reduce about 2n.
#
# | sent for gradients + for layers | XLA for CPUs | with a reduce-scatter |
# | --- | --- | --- |
# | replicated | 2n | 2n |
# | moments split | 2n + n | n + n |
# | left to the compiler, stage 3 | 2n + 2n | n + 2n |
#
# So with a reduce-scatter, stages 1 and 2 send no more than plain data parallelism: **n + n = 2n**. Only stage 3 sends
# more, because it gathers each layer twice.
#
# ## The step by hand
#
# The all-reduce on CPUs is a waste, because it gives each device the gradients of all weights, although it keeps only an
# eighth. You can avoid it in a `shard_map`, if you gather in each layer, as `update` did. One line is new:
# `jax.checkpoint` drops the gathered weights after the forward pass, and gathers them again for the backward pass.


# %%
@jax.checkpoint
def layer_by_hand(x, w):  # [64 / 8, 512]: this device's rows; [512 / 8, 512]: its part of the layer
    return jnp.tanh(x @ lax.all_gather(w, "data", tiled=True))


def loss_by_hand(layers, x):
    x, _ = lax.scan(lambda x, w: (layer_by_hand(x, w), None), x, layers)
    return jnp.square(x).sum() / (64 * 512)  # the devices' losses add up to the mean


adam_state = optimizer.init(layers)
specs = (rows.spec, jax.tree.map(lambda x: rows.spec if x.ndim else replicated.spec, adam_state))
options = {"in_specs": (*specs, split.spec), "out_specs": specs}
step_by_hand = jax.shard_map(make_step(loss_by_hand), mesh=mesh, **options)
step_by_hand = jax.jit(step_by_hand, donate_argnums=(0, 1))
programs["by hand"] = step_by_hand.lower(layers, adam_state, x).compile()
print(f"by hand: peak {peak(programs['by hand']):.0f} MB,", count_messages(programs["by hand"]))

# %% [markdown]
# Now each layer's gradient comes home by a reduce-scatter, so this step sends n + 2n on CPUs, too.
#
# > **What carries over to your GPUs?** The bytes at rest and the table's last column are arithmetic. The rest are plans of
# > XLA *for CPUs*: the peaks, the number of messages, and the all-reduce. XLA's [passes for
# > GPUs](https://github.com/openxla/xla/blob/main/xla/service/gpu/gpu_compiler.cc) have a `ReduceScatterCreator`, which
# > makes a reduce-scatter of such an all-reduce, but we haven't run that. So look at your own step's plan.
#
# ## When stage 3 costs no time
#
# While a device computes with one layer, the next one can already be on its way. That's called prefetching, and the
# message hides completely if the batch is large enough. For b tokens on each device, a layer of p parameters takes 2bp
# operations in the forward pass, and its gather brings 2p bytes in bfloat16. A device that does C operations and receives
# W bytes a second computes for 2bp / C seconds, and the message takes 2p / W. So the message hides if 2p / W is at most
# 2bp / C. The size of the layer cancels: **b must be at least C / W**. For an H100's 989e12 operations and lesson 06's 450
# GB/s, that's 2,200 tokens. The backward pass computes twice as much and sends twice as much, so the rule is the same.

# %% tags=["proof"]
# The asserts behind the last answers.
wanted = {
    "replicated": (70, {"all-reduce": 16}),
    "gathered first": (57, {"all-reduce": 16, "all-gather": 1}),
    "left to the compiler": (11, {"all-reduce": 16, "all-gather": 32}),
    "moments split": (40, {"all-reduce": 16, "all-gather": 1}),
    "stack split": (44, {"all-reduce": 16, "all-gather": 2}),
    "by hand": (10, {"all-gather": 32, "reduce-scatter": 16}),
    "--shard-state parameters": (28, {"all-reduce": 16, "all-gather": 1}),
    "the same, rows split": (43, {"all-reduce": 16, "all-gather": 1}),
}
assert 2_150 < 989e12 / 450e9 < 2_250


def make_pmapdp_step(sharding):  # the constraints of make_split_strategy
    def step(layers, adam_state, x):
        gradients = jax.grad(deep_loss)(lax.with_sharding_constraint(layers, replicated), x)
        gradients = lax.with_sharding_constraint(gradients, sharding)
        updates, adam_state = optimizer.update(gradients, adam_state, layers)
        return optax.apply_updates(layers, updates), adam_state

    return step


programs["--shard-state parameters"] = compile_step(make_pmapdp_step(split), split, split)
programs["the same, rows split"] = compile_step(make_pmapdp_step(rows), rows, rows)
for name, (megabytes, messages) in wanted.items():
    assert abs(peak(programs[name]) - megabytes) < 0.8
    assert count_messages(programs[name]) == messages
    for message in collectives(programs[name].as_text()):
        received = layers if message.runs <= 2 else layers[0]
        parts = 8 if message.kind == "reduce-scatter" else 1
        assert message.bytes * parts == message.count * received.nbytes
assert shard(layers) == rows


def has_split_gradients(program):
    """Return True if the loop of the backward pass collects an eighth of each gradient."""
    loops = [line for line in program.as_text().splitlines() if " while(" in line]
    return "f32[16,64,512]" in loops[-1].partition(" while(")[0]


assert has_split_gradients(programs["moments split"])
assert not has_split_gradients(programs["gathered first"])
for program in programs.values():  # all give the layers that a replicated state gives
    arguments = layers, optimizer.init(layers), x
    new_layers, _ = program(*jax.device_put(arguments, program.input_shardings[0]))
    if program is programs["replicated"]:
        expected = np.asarray(new_layers)
    np.testing.assert_allclose(new_layers, expected, rtol=0, atol=1e-3)

# %% [markdown]
# ## Exercises
#
# Solutions of all three, with reasons: [solutions/16_born_sharded.py](solutions/16_born_sharded.py).
#
# 2. `zero_step` (10 minutes): stage 1 by hand, with momentum, in `shard_map` over the axis `"data"`. Every device gets the
#    weights `w` `[D]`, its own gradient `g` `[D]`, and its part `m` `[D / N]` of the momentum. Use the *mean* gradient of
#    the devices. Return `(w, m)` after one update: `m = 0.9 * m + gradient`, `w = w - 0.1 * m`. Don't use an all-reduce.
#    The weights go in and come out with `PartitionSpec()`. <details><summary>Hint</summary>
#    <code>psum_scatter(..., tiled=True)</code>, then the update of this device's part of
#    w, which <code>lax.dynamic_slice_in_dim(w, start, m.size)</code> cuts out, then
#    <code>all_gather(..., tiled=True, to="invarying")</code>. Without <code>to</code>, <code>shard_map</code> can't see
#    that all devices get the same.</details>
# 3. `fixed_clip` (5 minutes, find the mistake): `broken_clip` clips the length of the whole gradient to 1 under `jit`. In
#    `shard_map` over `"data"` it clips each device's part by itself, without an error.
#    <details><summary>Hint</summary>You can add squares over devices. You can't add lengths.</details>

# %%
def broken_clip(g):
    return g / jnp.maximum(1, jnp.linalg.norm(g))


def zero_step(w, g, m):
    """`(w [D], m [D / N])` after one update."""
    ...  # your code: 5 or 6 lines


def fixed_clip(g):
    """This device's part of the clipped gradient."""
    ...  # your code: 2 lines


for exercise in (zero_step, fixed_clip):
    check("16_born_sharded", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Training with Adam takes 16 bytes for each parameter, or 16 / N on each of N devices if you split everything.
# - Find the shapes with `eval_shape`, choose the shardings, and make the state with `jit(init, out_shardings=...)`. Its
#   plan tells you if the initializer can be split. The training step stays as it is.
# - The peak stays low if few layers visit at a time. Measure it, and count what the compiler sends.
#
# If it's enough to split the moments, do only that, because stage 3 sends more. If even one layer is too large for a
# device, add tensor parallelism (lesson 15) on a second mesh axis.
#
# In pmapdp, `make_split_strategy` ([sharding/split_step.py](../pmapdp/sharding/split_step.py)) makes the step for
# `--shard-state`. It's less thrifty than your program in two ways. With `parameters` it gathers all layers before the
# first one is used, because it can't know where your layers begin: for the layers above, that's 28 MB in place of 11. And
# it makes the state on the host, and sends each device its shards. In the place of your `shard` it has `zero_sharding`
# ([sharding/layout.py](../pmapdp/sharding/layout.py)), which splits the first axis that it can. For these layers that's the
# stack. If all layers are gathered first anyway, that's better: along the rows it would be 43 MB.
#
# With pmap you'd gather in every layer yourself, as in `update`, and so pmapdp splits the state only under `jit`.
#
# To read on: [Flax's guide to scaling up](https://flax.readthedocs.io/en/latest/guides/flax_gspmd.html) and [the scaling
# book on training](https://jax-ml.github.io/scaling-book/training/). Next, more than one machine: [17 Train with many
# processes](17_many_processes.ipynb).

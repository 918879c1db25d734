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
# You want to train a model with seven billion parameters, and you have eight GPUs with 80 GB each, 640 GB in all. Data
# parallelism can't do it, on eight GPUs or on a thousand, because each of them holds a copy of everything, and a copy
# takes 112 GB. Change twelve lines of your program, none of them in the training step, and each device holds an eighth
# from the first moment on. But a single line in the model can lose most of that again *during* a step, so at the end
# you'll watch the memory while it runs.
#
# **You will** count the bytes of a training state, create and restore it in shards (ZeRO, also called FSDP), keep the
# peak low, and read what the devices send. 30 minutes, 50 with exercises. You need
# [06 Communicate between devices](06_communicate_between_devices.ipynb),
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb), and `shard_map` from
# [10 Three ways side by side](10_three_ways_side_by_side.ipynb). If you don't know `jax.checkpoint`, read
# [20 Fit a larger network](20_fit_a_larger_network.ipynb) first, in spite of its number.

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
# Why 112 GB? For each parameter, training with Adam keeps four numbers: the parameter, its gradient, and Adam's two
# moments. In float32 they take 16 bytes. If you hope that bfloat16 halves them, count again. The parameter and its
# gradient shrink to 2 bytes each, but you also keep a float32 copy of the parameter, and with the moments that's 2 + 2 +
# 4 + 4 + 4, which is 16 as well. Activations come on top.
#
# In data parallelism, every device holds the same 112 GB, and seven of the eight copies are a waste. **ZeRO**
# ([Rajbhandari et al., 2020](https://arxiv.org/abs/1910.02054)) splits them over the devices in three stages. Stage 1
# splits Adam's moments, because a device that updates only its own part of the parameters needs only the moments of that
# part. Stage 2 also splits the gradients, and stage 3 the parameters, too. PyTorch calls stage 3 fully sharded data
# parallel, FSDP.
#
# **Predict:** with eight devices, which stage is the first that fits into 80 GB?

# %% tags=["prediction"]
# 28 GB of parameters, 28 GB of gradients and 56 GB of moments. A device holds all or an eighth.
gigabytes = {
    "data parallel": (28, 28, 56),
    "ZeRO-1": (28, 28, 56 / 8),
    "ZeRO-2": (28, 28 / 8, 56 / 8),
    "ZeRO-3 (FSDP)": (28 / 8, 28 / 8, 56 / 8),
}
lesson_16.bytes_of_seven_billion(gigabytes)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Stage 1. Each parameter takes 4 bytes, its gradient 4, and its moments an eighth of 8. That's 9 bytes or 63 GB, which
# leaves 17 GB for activations. Stage 3 takes 14 GB and leaves 66 GB, so there's room for a much larger batch.
#
# </details>
#
# What do you pay in communication? Remember from lesson 06 that an all-reduce is a reduce-scatter followed by an
# all-gather. If the parameters take n bytes, a device sends nearly n in each of the two, so 2 n in all. Stages 1 and 2
# only slip the update in between, which costs nothing extra. In stage 3 a device has to gather a layer's parameters
# before it can multiply with them, once in the forward and once in the backward pass. With the reduce-scatter that's 3 n.
#
# | | parameters | gradients | moments | GB on a device | an update sends |
# | --- | --- | --- | --- | --- | --- |
# | data parallel | whole | whole | whole | 112 | 2 n: all-reduce |
# | ZeRO-1 | whole | whole | an eighth | 63 | 2 n: reduce-scatter, all-gather |
# | ZeRO-2 | whole | an eighth | an eighth | 38.5 | 2 n: the same |
# | ZeRO-3 (FSDP) | an eighth | an eighth | an eighth | 14 | 3 n: all-gather, all-gather, reduce-scatter |
#
# Over time, with all layers drawn as one:

# %%
lesson_16.zero_over_time()

# %% [markdown]
# ## Eight weights, eight devices
#
# Do stage 1 by hand once. There are eight weights, with the values 0 to 7, and device d finds the gradient d for every
# one of them, so each gradient's sum over the devices is 28. The learning rate is 0.1.


# %%
from jax import lax

from pmapdp.collectives import collectives

mesh = Mesh(jax.devices(), ("data",))
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))


def replicated_update(w, gradient):
    return w - 0.1 * lax.psum(gradient, "data")


def zero_1_update(w, gradient):
    total = lax.psum_scatter(gradient, "data", tiled=True)  # [1]: the sum for this device's weight
    weight = lax.dynamic_slice_in_dim(w, lax.axis_index("data"), 1)  # [1]: that weight
    weight = weight - 0.1 * total
    return lax.all_gather(weight, "data", tiled=True, to="invarying")  # [8] again


# %% [markdown]
# The last argument, `to="invarying"`, asks for a result whose type says that it's the same on all devices, because
# `shard_map` doesn't accept any other as an output that isn't split.
#
# **Predict:** with the second function, device 3 updates only weight 3. What's its new value?

# %% tags=["prediction"]
weights = np.arange(8.0)
gradients = np.repeat(np.arange(8.0), 8)  # eight numbers for each device
specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec()}
new_weights = []
update_kinds = []
for update in (replicated_update, zero_1_update):
    on_devices = jax.jit(jax.shard_map(update, mesh=mesh, **specs))
    new_weights.append(np.asarray(on_devices(weights, gradients)))
    program = on_devices.lower(weights, gradients).compile()
    update_kinds.append([found.kind for found in collectives(program.as_text())])
    print(f"{update.__name__:17s}", new_weights[-1].round(1), *update_kinds[-1])

# %% [markdown]
# <details><summary>Answer</summary>
#
# It was 3 and becomes 3 - 0.1 x 28 = 0.2. Both functions give the same eight weights. In the second one a device updates
# a single weight, so it needs the optimizer's state for that weight only. A reduce-scatter and an all-gather have taken
# the place of the all-reduce.
#
# </details>
#
# **With pmap** you'd write `zero_1_update` into your step, and the moments would stay on the devices as `[N, ...]`
# arrays. For stage 3 you'd also write a `lax.all_gather` into each layer of the model. Under `jit` you write none of
# this: you say where the state is, and the compiler works out what to send. That's why pmapdp splits the state only
# under `jit`.
#
# ## The program so far, and what changes
#
# You start from [program/09_jit.py](program/09_jit.py). Everything that changes for ZeRO-3:
#
# include the difference of 09_jit.py and 16_zero.py
#
# - If you made the state first and split it afterwards, one device would briefly hold all the parameters and both of
#   Adam's moments, 84 GB for our seven billion parameters. So `jax.jit(init_state, out_shardings=...)` lets each device
#   make its own part: the state is **born sharded**.
# - To choose those shardings you need the shapes, before there's a state. `jax.eval_shape` runs `init_state` on shapes
#   alone, which computes nothing and takes no memory for the arrays.
# - `shard` then decides for each shape: split the first axis, if its length is divisible by the number of devices.
# - The step returns parameters and moments in the same shardings, so the next step can start from them.
#
# Do you want stage 1 instead? Then split only the optimizer's state, in these two lines:
#
# ```python
# model_shapes, optimizer_shapes = jax.eval_shape(init_state)
# shardings = jax.tree.map(lambda x: replicated, model_shapes), jax.tree.map(shard, optimizer_shapes)
# ```

# %% tags=["take-home"]
# include program/16_zero.py

# %% [markdown]
# The losses match lesson 09's to within 1e-3, because a sharding only decides which device computes what, and the result
# changes by no more than rounding. With two layers there's little to gain: the compiler gathers three of the arrays, once each, and
# makes one all-reduce of the gradients. What the table says about stage 3 needs many layers, and you'll see them below. What's new is the last line: each device holds 12.9 % of the state, where an eighth
# would be 12.5 %.
#
# **Predict:** which array is to blame?

# %% tags=["prediction"]
replicated_shapes = [x.shape for x in jax.tree.leaves(state[0]) if x.sharding.is_fully_replicated]
print("not split:", replicated_shapes)

# %% tags=["proof"]
# The asserts behind the answers so far.
assert [sum(parts) for parts in gigabytes.values()] == [112, 63, 38.5, 14]
for found in new_weights:
    np.testing.assert_allclose(found, weights - 2.8, rtol=1e-6)
totals = jax.tree.map(lambda *sums: float(sum(sums)), *jax.device_get(train_sums))
assert abs(totals["loss"] / totals["count"] - 0.2486) < 1e-3
assert 1 / 8 < bytes_per_device / total < 0.15
compiled_step = train_step.lower(state, place_batch(batch)).compile().as_text()
assert compiled_step.count(" all-gather(") == 3
assert compiled_step.count(" all-reduce(") == 1
init_plan = jax.jit(init_state, out_shardings=shardings).lower().compile().memory_analysis()
most_bytes = init_plan.output_size_in_bytes + init_plan.temp_size_in_bytes
assert abs(init_plan.output_size_in_bytes / total - bytes_per_device / total) < 0.01
assert most_bytes < total / 2
assert replicated_shapes == [(10,)]
# One update with stage 1, from the two lines in the text.
model_shapes, optimizer_shapes = jax.eval_shape(init_state)
stage_1 = jax.tree.map(lambda x: replicated, model_shapes), jax.tree.map(shard, optimizer_shapes)
updated_states = []
for layout in (stage_1, shardings):
    options = {"in_shardings": (layout, split), "out_shardings": (layout, replicated)}
    start_state = jax.jit(init_state, out_shardings=layout)()
    updated_states.append(
        jax.jit(train_step.__wrapped__, **options)(start_state, place_batch(batch))[0]
    )
assert updated_states[0][0].hidden.kernel[...].sharding.is_fully_replicated
assert not updated_states[0][1][0].mu.hidden.kernel[...].sharding.is_fully_replicated
for one, other in zip(*map(jax.tree.leaves, updated_states), strict=True):
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The bias of the last layer. It has 10 numbers, and 10 isn't divisible by 8, so it stays whole, and so do its two moments.
#
# </details>
#
# If such an array is large, pad it until it can be split: GPT-2's vocabulary of 50,257 tokens is often padded to 50,304.
# And was the state really born in shards? XLA's plan for `init_state` says so: even with all that a device needs on the
# way, it never holds half of the state.
#
# ## The peak is inside the step
#
# An eighth is what a device holds *between* two steps. During a step it needs whole layers to multiply with, and it's at
# the peak of a step that you run out of memory. So it matters when the layers are gathered, and how long they stay. Take
# 16 layers of 512 x 512, and an update of Adam. Without ZeRO they're *replicated*. With ZeRO you could gather all of them
# at the start of the step (*gathered first*), or each of them where it's used (*gathered in the layer*), or give nothing
# but the shardings (*left to the compiler*).
#
# In the next cell `gather` asks for a whole copy on every device, and `compile_step` compiles the update.


# %%
layers = np.random.default_rng(0).normal(0, 512**-0.5, (16, 512, 512)).astype(np.float32)
x = np.ones((64, 512), np.float32)
rows = NamedSharding(mesh, PartitionSpec(None, "data"))  # splits the rows of every layer


def layer(x, w):
    return jnp.tanh(x @ w)


def gather(w):
    return lax.with_sharding_constraint(w, replicated)


def gather_in_layer(x, w):
    return layer(x, gather(w))


def compile_step(sharding, layer, gather_first=False):
    def loss(layers, x):
        if gather_first:
            layers = gather(layers)
        y, _ = lax.scan(lambda x, w: (layer(x, w), None), x, layers)
        return jnp.square(y).mean()

    def step(layers, adam_state, x):
        gradients = jax.grad(loss)(layers, x)
        updates, adam_state = optimizer.update(gradients, adam_state, layers)
        return optax.apply_updates(layers, updates), adam_state

    adam_state = optimizer.init(layers)
    adam_shardings = jax.tree.map(lambda x: sharding if x.ndim else replicated, adam_state)
    shardings = (sharding, adam_shardings)
    options = {"in_shardings": (*shardings, split), "out_shardings": shardings}
    return jax.jit(step, **options, donate_argnums=(0, 1)).lower(layers, adam_state, x).compile()


# %% [markdown]
# **Predict:** which of the four hold all sixteen layers whole at some moment?

# %% tags=["prediction"]
programs = {
    "replicated": compile_step(replicated, layer),
    "gathered first": compile_step(rows, layer, gather_first=True),
    "gathered in the layer": compile_step(rows, gather_in_layer),
    "left to the compiler": compile_step(rows, layer),
}
lesson_16.memory_over_time(programs)

# %% tags=["proof"]
# The asserts behind the answer.
plans = [program.memory_analysis() for program in programs.values()]
peaks = [plan.argument_size_in_bytes + plan.temp_size_in_bytes for plan in plans]
assert peaks == sorted(peaks, reverse=True)
assert peaks[3] < peaks[2] / 2 < peaks[1] / 3
# Left to the compiler, but with the layers on the axis that is split.
layers_plan = compile_step(split, layer).memory_analysis()
layers_peak = layers_plan.argument_size_in_bytes + layers_plan.temp_size_in_bytes
assert 11 < peaks[3] / 1e6 < 12
assert 43 < layers_peak / 1e6 < 45
# The highest and the lowest give the same layers.
new_layers = []
for program in (programs["replicated"], programs["left to the compiler"]):
    arguments = jax.device_put((layers, optimizer.init(layers), x), program.input_shardings[0])
    new_layers.append(np.asarray(program(*arguments)[0]))
np.testing.assert_allclose(*new_layers, rtol=0, atol=1e-3)


# Each layer gathered twice, by hand: in `shard_map`, without a constraint.
def step_by_hand(layers, adam_state, x):
    @jax.checkpoint
    def layer_by_hand(x, w):
        return layer(x, lax.all_gather(w, "data", tiled=True))

    def loss(layers):
        y, _ = lax.scan(lambda x, w: (layer_by_hand(x, w), None), x, layers)
        return jnp.square(y).sum() / (64 * 512)

    updates, adam_state = optimizer.update(jax.grad(loss)(layers), adam_state, layers)
    return optax.apply_updates(layers, updates), adam_state


adam_state = optimizer.init(layers)
adam_specs = jax.tree.map(lambda x: rows.spec if x.ndim else replicated.spec, adam_state)
by_hand = jax.jit(
    jax.shard_map(
        step_by_hand,
        mesh=mesh,
        in_specs=(rows.spec, adam_specs, split.spec),
        out_specs=(rows.spec, adam_specs),
    ),
    donate_argnums=(0, 1),
)
program = by_hand.lower(layers, adam_state, x).compile()
assert {found.kind: found.runs for found in collectives(program.as_text())} == {
    "all-gather": 32,
    "reduce-scatter": 16,
}
plan = program.memory_analysis()
assert 9 < (plan.argument_size_in_bytes + plan.temp_size_in_bytes) / 1e6 < 10.5
np.testing.assert_allclose(by_hand(layers, adam_state, x)[0], new_layers[0], rtol=0, atol=1e-3)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first three. In the picture, light blue is what the step needs on top of the state. From the highest peak to the
# lowest:
#
# - *Replicated* holds everything, all the time.
# - *Gathered first* keeps all layers to the end. Only Adam's moments, which are split, save something.
# - *Gathered in the layer* looks careful, and still takes more than twice the memory of the best. The backward pass needs
#   the gathered weights, and JAX treats them as it treats any intermediate result: it keeps them, all sixteen.
# - *Left to the compiler* needs the least. It keeps only the shards, and gathers each layer where it's used.
#
# </details>
#
# So for such a scan you're better off without a constraint. Scan over the layers, say where the state is, and look at the
# plan: `memory_analysis()` gives you the peak without running anything. Look again on your GPUs, because this plan was
# made by XLA for CPUs. Other compilers may fetch the next layer while they compute the current one, and hold two.
#
# One trap is left: never split the axis that you scan over. Your program's `shard` splits the first axis of every array,
# and in a stack of layers, `[16, 512, 512]`, the first axis counts the layers. A device then holds two layers whole, and
# the compiler gathers the stack before the scan, so the peak is 44 MB instead of 11. That's why the cell above uses
# `rows`, which splits an axis inside each layer.
#
# ## What a low peak costs
#
# The memory you save is paid for in messages. Count how often each collective runs in one update, and how large it is. A
# layer has 512 x 512 numbers in float32, which are 1.0 MB.
#
# **Predict:** how many gathered layers does a device receive in an update, in each of the four?

# %% tags=["prediction"]
table = {}
for name, program in programs.items():
    plan = program.memory_analysis()
    at_rest = plan.argument_size_in_bytes
    table[name] = {
        "between steps": f"{at_rest / 1e6:.0f} MB",
        "at the peak": f"{(at_rest + plan.temp_size_in_bytes) / 1e6:.0f} MB",
        "all-gather": "-",
        "all-reduce": "-",
    }
    for found in collectives(program.as_text()):
        megabytes = found.bytes / found.count / 1e6
        table[name][found.kind] = f"{found.runs} x {megabytes:.1f} MB"

print(f"{'':22s}", *(f"{heading:>13s}" for heading in table["replicated"]))
for name, row in table.items():
    print(f"{name:22s}", *(f"{text:>13s}" for text in row.values()))

# %% [markdown]
# <details><summary>Answer</summary>
#
# None, 16, 16 and 32. *Gathered first* receives all sixteen in one message. *Left to the compiler* keeps no gathered
# layer for the backward pass, so it gathers each of them a second time, as stage 3 does in the table at the beginning.
# Those 16 extra messages are the price of the low peak.
#
# </details>
#
# Where's the reduce-scatter? XLA for CPUs *all-reduces* each layer's gradient, and then each device keeps its part. The
# result is the same, but the devices send more than 3 n. XLA for GPUs and TPUs has a pass that turns the two operations
# into a reduce-scatter. You can also write all of it yourself, in `shard_map`: a layer that begins with
# `lax.all_gather(w, "data", tiled=True)`, inside `jax.checkpoint`, which throws the gathered layer away and gathers it
# again in the backward pass. Then even the CPU runs 32 all-gathers and 16 true reduce-scatters, and the peak is 10 MB.
#
# ## The mistake: a norm of a part
#
# Many programs clip the gradient before the update, and for that they need its length. Once you split gradients in
# `shard_map`, each device has only a part. What if each device simply clips its own part to length 1?
#
# **Predict:** eight devices have equal parts, each longer than 1. How long is the whole gradient afterwards?


# %% tags=["prediction"]
def broken_clip(gradient):
    return gradient / jnp.maximum(1, jnp.linalg.norm(gradient))


spec = PartitionSpec("data")
sharded_clip = jax.shard_map(broken_clip, mesh=mesh, in_specs=spec, out_specs=spec)
gradient = np.full(8, 5, np.float32)
lengths = [float(jnp.linalg.norm(clip(gradient))) for clip in (broken_clip, sharded_clip)]
print(f"on one device {lengths[0]:.3f}, in eight parts {lengths[1]:.3f}")

# %% tags=["proof"]
# The asserts behind the last two answers.
np.testing.assert_allclose(lengths, [1, np.sqrt(8)], rtol=1e-6)
assert update_kinds == [["all-reduce"], ["all-gather", "reduce-scatter"]]
assert {name: list(row.values())[2:] for name, row in table.items()} == {
    "replicated": ["-", "16 x 1.0 MB"],
    "gathered first": ["1 x 16.8 MB", "16 x 1.0 MB"],
    "gathered in the layer": ["16 x 1.0 MB", "16 x 1.0 MB"],
    "left to the compiler": ["32 x 1.0 MB", "16 x 1.0 MB"],
}
program = train_step.lower(state, place_batch(batch)).compile()
kinds = [found.kind for found in collectives(program.as_text())]
assert "all-reduce" in kinds
assert "reduce-scatter" not in kinds

# %% [markdown]
# <details><summary>Answer</summary>
#
# √8, about 2.83, because the gradient is made of eight parts of length 1. If the parts have different lengths, the whole
# even points in a different direction, and nothing warns you. You'll repair `broken_clip` in exercise 3. Under `jit` you
# get the norm of the global array, so you can't make this mistake there.
#
# </details>
#
# ## Restored in shards
#
# Tomorrow you may get only four devices. Can you go on with a state that eight devices saved? Yes: tell Orbax which
# shapes and shardings you want, and each device gets its own part, whatever the shardings were before.

# %%
import tempfile
from pathlib import Path

import orbax.checkpoint as ocp


def abstract_state(mesh):
    """Shapes, dtypes and shardings of the state on a mesh."""

    def abstract_array(x):
        sharding = NamedSharding(mesh, x.sharding.spec)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(abstract_array, state)


path = Path(tempfile.mkdtemp()) / "state"
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(path, state)
    checkpointer.wait_until_finished()
    for count in (8, 4, 1):
        target_mesh = Mesh(jax.devices()[:count], ("data",))
        restored_state = checkpointer.restore(path, abstract_state(target_mesh))
        kernel = restored_state[0].hidden.kernel[...]
        shard_shape = kernel.sharding.shard_shape(kernel.shape)
        print(f"on {count} device(s), each holds {shard_shape} of {kernel.shape}")
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(restored_state), strict=True):
            np.testing.assert_array_equal(a, b)

# %% [markdown]
# All three restored states are equal to the saved one, bit for bit.
#
# **When is ZeRO worth it?** Not as long as the state and the activations fit on every device. When they don't, try stage 1
# first, because it sends no more bytes than data parallelism, and then stage 3. If even a single layer is too large for
# a device, combine stage 3 with tensor parallelism (lesson 15) on a mesh with two axes.
#
# ## Exercises
#
# Solutions, with reasons: [solutions/16_born_sharded.py](solutions/16_born_sharded.py).
#
# 1. `build_sharded` (5 minutes): return the array that `build()` makes, with the sharding `sharding`, so that no device ever
#    holds all of it. <details><summary>Hint</summary>Compile it, and say how the result should be sharded.</details>
# 2. `zero_step` (10 minutes): ZeRO-1 with momentum, in `shard_map` over the axis `"data"`. Every device gets the weights `w`
#    `[D]`, its own gradient `g` `[D]`, and its part `m` `[D / N]` of the momentum. Use the *mean* gradient of the devices.
#    Return `(w, m)` after one update: `m = 0.9 * m + gradient`, `w = w - 0.1 * m`. Don't use an all-reduce.
#    <details><summary>Hint</summary><code>psum_scatter</code>, divided by N, then the update of the part, then
#    <code>all_gather</code> with <code>tiled=True</code>.</details>
# 3. `fixed_clip` (5 minutes, find the mistake): clip the length of the whole gradient to 1, as `broken_clip` above should. In
#    `shard_map` over the axis `"data"`, `g` is this device's part. <details><summary>Hint</summary>You can add squares over
#    devices. You can't add lengths.</details>


# %%
from pmapdp.lessons.checks import check


def build_sharded(build, sharding):
    """The array that build() makes, in shards."""
    ...  # your code: 1 line


def zero_step(w, g, m):
    """`(w [D], m [D / N])` after one update."""
    ...  # your code: 5 or 6 lines


def fixed_clip(g):
    """This device's part of the clipped gradient."""
    ...  # your code: 2 lines


for exercise in (build_sharded, zero_step, fixed_clip):
    check("16_born_sharded", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# - Training with Adam takes 16 bytes for each parameter. ZeRO splits them: moments, then gradients, then parameters.
# - Find the shapes with `eval_shape`, choose the shardings, and only then make the numbers, with
#   `jit(init, out_shardings=...)`. The training step stays as it is.
# - You keep the saving only if one layer at a time is gathered, once forward and once backward. So scan over layers,
#   split an axis inside the layer, and read the compiler's plan.
#
# | your program | in pmapdp | file |
# | --- | --- | --- |
# | `shard`, `shardings` | `MeshLayout.state_sharding` | [sharding/layout.py](../pmapdp/sharding/layout.py) |
# | the jitted step with its shardings | `make_split_strategy`, for `--strategy jit --shard-state` | [sharding/split_step.py](../pmapdp/sharding/split_step.py) |
#
# The peaks differ: pmapdp gathers all parameters at the start of the step, which is *gathered first* above. It trains any
# model, and can't know where the layers of yours begin. So parameters that don't fit on a device at all need a mesh.
#
# Flax models can also carry names for the axes of their parameters, which a table turns into shardings: read [Flax's guide to
# scaling up](https://flax.readthedocs.io/en/latest/guides/flax_gspmd.html), and [the scaling book on
# training](https://jax-ml.github.io/scaling-book/training/). Next, more than one machine:
# [17 Train with many processes](17_many_processes.ipynb).

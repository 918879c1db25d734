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
# # 09. Put three ways side by side
#
# After this lesson you can choose between `pmap`, `jit` and `shard_map`, avoid the gradient trap of `shard_map`, and
# move a pmap program to jit line by line.
#
# About 25 minutes · before: [08 Let the compiler do it](08_let_the_compiler_do_it.ipynb) · next:
# [10 A real training run](10_a_real_training_run.ipynb)
#
# Letters: N devices, B examples in the global batch, b = B / N on each device, D features, C classes.

# %%
import difflib
import inspect
import time

import drawing
import jax
import numpy as np
import optax
from checks import check
from jax import P, lax
from jax.sharding import Mesh, NamedSharding

from pmapdp import devices
from pmapdp.collectives import collectives
from pmapdp.data.batches import Batches
from pmapdp.models.cnn import CNN
from pmapdp.models.mlp import MLP
from pmapdp.registry import load_data
from pmapdp.state import Task, count_parameters, create_state
from pmapdp.steps import jit, make_steps, pmap, shard_map
from pmapdp.steps.shared import Body

devices.simulate(8)
drawing.setup()
DATASET = "digits"  # "mnist" for the larger one
data, chosen, N = load_data(DATASET), jax.devices(), jax.device_count()
mesh = Mesh(np.array(chosen), ("data",))
replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

# %% [markdown]
# ## One picture
#
# Three questions tell the ways apart: which array do you hand in, how much of it does your program see, and who writes
# the all-reduce? Four devices are drawn, each in its colour.

# %%
axes = drawing.canvas(21, 8)
for x, text in ((3.6, "you hand in"), (9.4, "your program sees"), (16, "who adds up")):
    axes.text(x, 0.5, text, weight="bold")
for row, name in enumerate(["pmap", "jit", "shard_map"]):
    top, programs, width = (2 + 2.3 * row, 1, 5.7) if name == "jit" else (2 + 2.3 * row, 4, 1.35)
    axes.text(0, top + 0.4, name, weight="bold", va="center", fontsize=9)
    axes.text(3.6, top - 0.25, "[N, b, D]" if name == "pmap" else "[B, D], cut along B")
    axes.text(9.4, top - 0.25, "[B, D], once" if name == "jit" else "[b, D], N times")
    for d in range(4):
        drawing.box(axes, 3.6 + (1.22 if name == "pmap" else 1.1) * d, top, "b", device=d, width=1.1)
    for d in range(programs):
        drawing.box(axes, 9.4 + 1.45 * d, top, "step", device=d if programs > 1 else None, width=width)
    drawing.box(axes, 16, top, "the compiler" if name == "jit" else "you: lax.psum", width=4.6)
    for x in (8.5, 15.15):
        drawing.arrow(axes, (x, top + 0.4), (x + 0.85, top + 0.4))

# %% [markdown]
# `shard_map` stands between the others: **the arrays of jit, the program of pmap.**
#
# The smallest case: one weight `w`, which each device holds whole, and the numbers `x` from 0 to 15, two for each
# device. The loss is the mean of `w * x`, for w = 1 that is 7.5. **Predict** which shape of `x` the function `loss`
# sees in each of the three.


# %%
def loss(w, x):
    seen.append(x.shape)
    return (w * x).mean()


def mean_loss(w, x):
    return lax.pmean(loss(w, x), "data")


def on_devices(f, check_vma=True):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=check_vma))


w, x, seen = np.float32(1), np.arange(2 * N, dtype=np.float32), []
placed = jax.device_put(x, split)
by_pmap = jax.pmap(mean_loss, axis_name="data", in_axes=(None, 0), out_axes=None)(w, x.reshape(N, 2))
by_jit = jax.jit(loss, out_shardings=replicated)(w, placed)  # <- changed: loss, not mean_loss; x as one array
by_shard_map = on_devices(mean_loss)(w, placed)  # <- changed: mean_loss again; x as one array
print("results", by_pmap, by_jit, by_shard_map, "| seen inside: pmap {}, jit {}, shard_map {}".format(*seen))
assert by_pmap == by_jit == by_shard_map == x.mean()
assert seen == [(2,), (2 * N,), (2,)]

# %% [markdown]
# ## The diff
#
# pmapdp's three files have the same functions in the same order, so a diff shows what differs and nothing else.
# Before you run the cell: which two lines of pmap's `train_step` must change for `shard_map`?

# %%
for other in (shard_map, jit):
    sources = [inspect.getsource(module).splitlines() for module in (pmap, other)]
    lines = list(difflib.unified_diff(*sources, pmap.__name__, other.__name__, n=0, lineterm=""))
    print(*[line for line in lines if not line.startswith("@@")], "", sep="\n")
    assert sum("lax.psum" in line for line in lines) == (2 if other is jit else 0)

# %% [markdown]
# None: `train_step` is not in the first diff. From pmap to `shard_map` the reshape goes, and in the wrapper `in_axes`
# become `in_specs`, `out_axes` become `out_specs`. From pmap to jit both `psum` go too. What jit adds,
# `accumulated_sums`, is for several micro-batches per update only: a `shard_map` inside jit, where we do want to say
# when the devices talk. (`layout`: lesson 11.)
#
# ## Proof: equal results
#
# Three updates of the convolutional network against one device. A batch of 250 does not divide by 8: there is
# padding. Tolerance 1e-5, since float32 rounds (tests repeat this in float64, within 1e-10). We also list each
# program's collectives. **Predict** how many there are.

# %%
task, programs = Task(CNN, optax.sgd(0.1)), {}
for strategy in ("single", "pmap", "jit", "shard_map"):
    way = make_steps(strategy, task, chosen)
    data_order = Batches(data.train, 250, devices=1 if strategy == "single" else N, shuffle_seed=0)
    batches = [way.place_batch(batch) for batch, _ in zip(data_order.epoch(0), range(3), strict=False)]
    state = way.place_state(create_state(task))
    step = way.train_step.lower(state, batches[0]).compile()
    for batch in batches:
        state, sums = step(state, batch)
    programs[strategy] = [step, state, batch]
    ends = jax.device_get((state.params, programs["single"][1].params))
    difference = max(jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), *ends)))
    found = collectives(step.as_text())
    print(f"{strategy:9s} differs by {difference:.0e}", *found)
    assert difference < 1e-5
    numbers = count_parameters(state.params) + 3  # of 4 bytes each
    assert [(each.kind, each.count) for each in found] == [("all-reduce", 1)] * (strategy != "single")
    assert all(1 <= each.bytes / (4 * numbers) < 1.01 for each in found)

# %% [markdown]
# One all-reduce each: 347,146 gradients and three sums of metrics.
# jit's carries 0.5 % more: parts of a gradient, not yet joined.
#
# ## The trap
#
# In pmap programs one writes `pmean(gradient)`. Copied into `shard_map` as it stands, this is **wrong, and nothing
# says so.** The reason is `check_vma`, which is on unless you turn it off: JAX then tracks which values *vary* over the
# mesh axis. The weight `w` is the same on all devices, the data `x` varies. The gradient of the mean of `w * x` is the
# mean of `x`: 7.5. **Predict** the four results.


# %%
def mean_of_gradient(w, x):
    return lax.pmean(jax.grad(loss)(w, x), "data")


found = []
for name, f in (("pmean(grad)", mean_of_gradient), ("grad(pmean)", jax.grad(mean_loss))):  # <- the 2nd: pmean inside
    for checked in (True, False):
        found.append([float(shard.data) for shard in on_devices(f, checked)(w, placed).addressable_shards])
        print(f"{name}, check_vma={checked!s:5}: the devices hold {found[-1]}")
assert found == [[N * x.mean()] * N, [x.mean()] * N, [x.mean()] * N, x.reshape(N, 2).mean(1).tolist()]

# %% [markdown]
# Two are right:
#
# * `check_vma=False` and `pmean(grad)`: pmap's rule. pmapdp does this, with sums.
# * `check_vma=True` and `grad` of `pmean(loss)`.
#
# The **trap** is 8 times too large: N times. The fourth is the reverse mistake: each device keeps the gradient of its
# own examples.
#
# The intermediate program, the *jaxpr*, shows why. `V:data` marks what varies. To multiply `w` with varying data, JAX
# first makes a varying copy of it (`pvary`; constants too). The derivative of "copy to all" is "sum over all", so
# `grad` adds a psum that nobody wrote. After it all devices hold the same sum, and the mean of N equal numbers is
# that number.
#
# The same bookkeeping is a help elsewhere: forget the all-reduce of the loss, and JAX refuses to call the result whole.

# %%
jaxpr = jax.make_jaxpr(on_devices(jax.grad(loss)))(w, placed).pretty_print(use_color=False)
print(*[line for line in jaxpr.splitlines() if " mul " in line or "pvary" in line or "psum" in line], sep="\n")
assert "psum" in jaxpr

try:
    on_devices(loss)(w, placed)
    raise AssertionError("JAX did not refuse")
except ValueError as error:
    print("\nValueError:", " ".join(str(error).split())[:280], "...")

# %% [markdown]
# **Caught by magnitude.** Now the real step of `steps/shard_map.py`, but with the check left on. We divide the length
# of its first update by the length on one device, for plain SGD and for Adam. **Predict** what Adam shows.

# %%
batch = next(Batches(data.train, 64, devices=N, shuffle_seed=0).epoch(0))
for name, optimizer, expected in (("SGD", optax.sgd(1e-3), N), ("Adam", optax.adam(1e-3), 1)):
    task = Task(MLP, optimizer)
    start, body = create_state(task), Body(task, axis_name="data")

    def trapped_step(state, batch, body=body):
        gradients, sums, batch_stats = body.gradient_sums(state, batch)
        gradients, sums = lax.psum((gradients, sums), "data")
        return body.update(state, gradients, sums, batch_stats), sums

    ways = on_devices(trapped_step), make_steps("single", task, chosen).train_step  # <- changed: the check is on
    trapped, right = (optax.tree.norm(optax.tree.sub(way(start, batch)[0].params, start.params)) for way in ways)
    print(f"{name}: the update is {trapped / right:.3f} times as long as on one device")
    np.testing.assert_allclose(trapped / right, expected, rtol=1e-2)

# %% [markdown]
# Adam divides a gradient by its typical size, so the factor N cancels, all but Adam's epsilon: the loss curve tells you
# nothing, while clipping by norm would be off by N. So compare *lengths* with one device, under plain SGD. pmapdp's
# tests do.
#
# ## Move a pmap program to jit
#
# | in the pmap program | in the jit program |
# | --- | --- |
# | `x.reshape(N, b, ...)` | gone: the batch stays `[B, ...]` |
# | batch handed over from the host | `device_put(batch, NamedSharding(mesh, P("data")))` |
# | state stacked `[N, ...]` | no device axis: `device_put(state, NamedSharding(mesh, P()))` |
# | `lax.pmean`, `lax.psum` | gone: a mean over the batch is the global one |
# | `axis_name` in batch norm | gone |
# | `fold_in(key, lax.axis_index(...))` | a key per example (lesson 07) |
# | `pmap(step, axis_name=..., in_axes=..., out_axes=...)` | `jit(step, out_shardings=...)` |
# | `static_broadcasted_argnums` | `static_argnums` |
# | `donate_argnums` | stays |
# | `state[0]`, `unreplicate(state)` | `jax.device_get(state)` |
#
# Live: softmax regression, a matrix `[D, C]` and nothing else, as an older tutorial would write it.

# %%
x = np.float32(data.train.inputs[:512].reshape(512, 784) / 255)  # [B, D]
y = data.train.labels[:512]  # [B]


def cross_entropy(W, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(x @ W, y).mean()


def step(W, x, y):  # W [D, C], x [b, D], y [b]
    gradient = lax.pmean(jax.grad(cross_entropy)(W, x, y), "data")
    return W - 0.05 * gradient


pmap_step = jax.pmap(step, axis_name="data")
W = np.zeros((N, 784, 10), np.float32)  # stacked [N, D, C]
for _ in range(5):
    W = pmap_step(W, x.reshape(N, -1, 784), y.reshape(N, -1))
old = jax.device_get(W)[0]

# %% [markdown]
# And moved. **Predict** the shapes that a device holds of `W` and `x`.


# %%
def step(W, x, y):  # <- changed: x [B, D], y [B]
    gradient = jax.grad(cross_entropy)(W, x, y)  # <- changed: no pmean
    return W - 0.05 * gradient


jit_step = jax.jit(step, out_shardings=replicated)  # <- changed
W = jax.device_put(np.zeros((784, 10), np.float32), replicated)  # <- changed: [D, C]
x, y = jax.device_put((x, y), split)  # <- new
for _ in range(5):
    W = jit_step(W, x, y)  # <- changed: no reshape
new = jax.device_get(W)  # <- changed: no [0]

print(*[(a.shape, a.sharding.spec, "a device holds", a.addressable_shards[0].data.shape) for a in (W, x)], sep="\n")
found = [collectives(jit_step.lower(*a).compile().as_text()) for a in ((W, x, y), jax.device_get((W, x, y)))]
print("placed:", found[0], "| not placed:", found[1])
assert not found[1]
np.testing.assert_allclose(new, old, rtol=0, atol=1e-6)

# %% [markdown]
# One thing to watch is the last line: with arrays of the host, the same program has no all-reduce. The result is right,
# but every device computes the whole batch, without a word. So place the batch, and look for the collective.
#
# ## Which to use when
#
# | you want | use | because |
# | --- | --- | --- |
# | a new data-parallel trainer | `jit` | one device's program: no collective to forget, batch norm stays as it is |
# | parts of the model on different devices | `jit` | other shardings, same program |
# | to say when devices talk: `ppermute`, one sum for many micro-batches | `shard_map` | takes jit's arrays, in jit |
# | to run the pmap program you have | `pmap` | maintained, but gets nothing new: move it when you next change it |
# | to learn what each device does | `pmap` | one idea more than the program of one device |
#
# Speed is rarely a reason. We time the three compiled programs of the proof, taking turns, without placing the batch.
# Simulated devices share this machine's cores, so there is no speed-up to find here: compare the three with each other
# only, and take a difference within the ranges for noise.

# %%
del programs["single"]
times = {strategy: [] for strategy in programs}
for _ in range(8):
    for strategy, (step, state, batch) in programs.items():
        clock = time.perf_counter()
        # The step reuses the memory of the old state, so the new one takes its place.
        programs[strategy][1], sums = jax.block_until_ready(step(state, batch))
        times[strategy].append(1000 * (time.perf_counter() - clock))
print(f"{devices.describe(chosen)}, jax {jax.__version__}, 250 examples an update")
for strategy, all_times in times.items():
    print(f"{strategy:9s} median {np.median(all_times):4.0f} ms ({min(all_times):.0f} to {max(all_times):.0f})")

# %% [markdown]
# ## Exercises
#
# Solutions: [solutions/09_three_ways_side_by_side.py](solutions/09_three_ways_side_by_side.py).
#
# 1. `gradient`: the gradient of the mean of `loss(w, x)` over all devices. It runs in a `shard_map` with
#    `check_vma=True` and the mesh axis `"data"`. Target: equal to one device.
#    <details><summary>Hint</summary>What is averaged, the loss or its gradient? Look at the trap.</details>
# 2. `as_global`: a pmap batch (any tree of arrays `[N, b, ...]`) for jit: arrays `[B, ...]`, cut over the
#    axis `"data"` of `mesh`. <details><summary>Hint</summary><code>jax.tree.map</code> a reshape, then one
#    <code>device_put</code>.</details>
# 3. `length_ratio`: the check that catches the trap: length of one tree of gradients over that of another.
#    Target: N for the trap, 1 for the right gradient. <details><summary>Hint</summary>The length is the square root of
#    the sum of all squares, over all arrays of the tree; Optax has it.</details>


# %%
def gradient(loss, w, x):
    """In shard_map: a loss, weights (any tree) and this device's `x` `[b, ...]` to the gradient of the global mean."""
    ...  # your code: 1 line


def as_global(batch, mesh):
    """A tree of `[N, b, ...]` to a tree of `[B, ...]`, cut over the devices of `mesh`."""
    ...  # your code: 2 lines


def length_ratio(gradients, reference):
    """Length of `gradients` over the length of `reference`, two trees of equal structure."""
    ...  # your code: 1 line


for exercise in (gradient, as_global, length_ratio):
    check("09_three_ways_side_by_side", exercise.__name__, exercise)

# %% [markdown]
# ## Take away
#
# * pmap, jit and shard_map compile to the same work: one all-reduce. They differ in who writes it.
# * In `shard_map` with its check, average the loss; without it, average the gradient. Compare lengths with one device.
# * For a new trainer take jit; go into `shard_map` where you want to say when the devices talk.
#
# This code lives in [pmapdp/steps/shard_map.py](../pmapdp/steps/shard_map.py), beside
# [pmap.py](../pmapdp/steps/pmap.py) and [jit.py](../pmapdp/steps/jit.py). Next:
# [10 A real training run](10_a_real_training_run.ipynb).

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
# # 10. Put three ways side by side
#
# After this lesson you can write the same training step with `pmap`, `jit` and `shard_map`, choose between them, and
# avoid the gradient trap of `shard_map`.
#
# About 30 minutes · you need [05 Average gradients](05_average_gradients.ipynb) and
# [09 Let the compiler do it](09_let_the_compiler_do_it.ipynb) · next:
# [11 Explicit sharding](11_explicit_sharding.ipynb), or [12 Port a pmap program](12_port_a_pmap_program.ipynb), which
# does not need it
#
# Letters: N devices, B examples in the global batch, b = B / N on each device, D features, H hidden units, C classes.

# %%
# In Colab: choose a CPU runtime, clone the repository, and run `%pip install -q "./pmapdp[lessons]"` first.
import jax
import numpy as np
from jax import P, lax
from jax.sharding import Mesh, NamedSharding

from pmapdp import devices  # simulates devices (lesson 00) and describes them
from pmapdp.lessons.pictures import lesson_10

devices.simulate(8)  # before any other use of JAX
assert jax.device_count() == 8, "on a machine with a GPU, start JupyterLab with JAX_PLATFORMS=cpu"
chosen, N = jax.devices(), jax.device_count()
mesh = Mesh(np.array(chosen), ("data",))
replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

# %% [markdown]
# ## One picture
#
# The three ways differ in three things: which array you pass, how much of it your function sees, and who writes the
# all-reduce. The picture shows four devices, each in its colour.

# %%
lesson_10.three_ways()

# %% [markdown]
# `shard_map` combines the other two: it takes **the arrays of jit** and runs **the program of pmap**. It hands each
# device its shard of every argument, as `in_specs` says, runs your function on all devices, and puts the results
# together as `out_specs` says. (`P` is short for the `PartitionSpec` of lesson 09, and the section "The trap" explains
# `check_vma`.)
#
# The smallest case has one weight `w`, replicated, and the numbers `x` from 0 to 15, two on each device. The loss is
# the mean of `w * x`; for w = 1 that is 7.5. **Predict:** which shape of `x` does `loss` see in each of the three?


# %% tags=["prediction"]
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
by_jit = jax.jit(loss, out_shardings=replicated)(w, placed)
by_shard_map = on_devices(mean_loss)(w, placed)
print("results", by_pmap, by_jit, by_shard_map, "| shapes seen: pmap {}, jit {}, shard_map {}".format(*seen))

# %% [markdown]
# <details><summary>Answer</summary>
#
# Under jit the function sees all 16 numbers, so its mean is the global mean. Under pmap and shard_map it sees two, so
# it needs the `pmean`.
#
# </details>
#
# ## One training step, four times
#
# Here is a whole training step for one device, and then for eight devices in three ways. The network has one hidden
# layer, and the optimizer is SGD with momentum from Optax. Parameters and momentum are donated, so that the new ones
# can take their memory. Each function returns the compiled step, and a function that places a batch for it. Nothing
# here comes from pmapdp.

# %%
import optax

D, H, C = 784, 64, 10
optimizer = optax.sgd(0.1, momentum=0.9)


def objective(params, x, y):  # the mean over the examples that it is given
    hidden = jax.nn.relu(x @ params["W1"] + params["b1"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["W2"], y).mean()


def single():
    def step(params, momentum, x, y):
        value, gradients = jax.value_and_grad(objective)(params, x, y)
        updates, momentum = optimizer.update(gradients, momentum, params)
        return optax.apply_updates(params, updates), momentum, value

    def place(x, y):
        return x, y

    return jax.jit(step, donate_argnums=(0, 1)), place


# %% [markdown]
# Now the three ways. Compare each with `single`. **Predict:** in which of the three does the function `step` have a
# line that `single` does not have? And which two have the same `step`?


# %% tags=["prediction"]
def with_pmap():
    def step(params, momentum, x, y):
        value, gradients = jax.value_and_grad(objective)(params, x, y)
        value, gradients = lax.pmean((value, gradients), "data")
        updates, momentum = optimizer.update(gradients, momentum, params)
        return optax.apply_updates(params, updates), momentum, value

    def place(x, y):
        return x.reshape(N, -1, D), y.reshape(N, -1)

    axes = {"axis_name": "data", "in_axes": (None, None, 0, 0), "out_axes": None}
    return jax.pmap(step, **axes, donate_argnums=(0, 1)), place


def with_jit():
    def step(params, momentum, x, y):
        value, gradients = jax.value_and_grad(objective)(params, x, y)
        updates, momentum = optimizer.update(gradients, momentum, params)
        return optax.apply_updates(params, updates), momentum, value

    def place(x, y):
        return jax.device_put((x, y), split)

    shardings = {"in_shardings": (replicated, replicated, split, split), "out_shardings": replicated}
    return jax.jit(step, **shardings, donate_argnums=(0, 1)), place


def with_shard_map():
    def step(params, momentum, x, y):
        value, gradients = jax.value_and_grad(objective)(params, x, y)
        value, gradients = lax.pmean((value, gradients), "data")
        updates, momentum = optimizer.update(gradients, momentum, params)
        return optax.apply_updates(params, updates), momentum, value

    def place(x, y):
        return jax.device_put((x, y), split)

    specs = {"in_specs": (P(), P(), P("data"), P("data")), "out_specs": P()}
    return jax.jit(jax.shard_map(step, mesh=mesh, **specs, check_vma=False), donate_argnums=(0, 1)), place


WAYS = {"single": single, "pmap": with_pmap, "shard_map": with_shard_map, "jit": with_jit}
for name, way in WAYS.items():
    print(f"{name:9s} {len(lesson_10.changed(single, way))} lines differ from single")
lesson_10.columns(**WAYS)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The steps of pmap and shard_map have one line more, the `pmean`, and are equal. Under jit the step is that of one
# device. What else is marked in the columns places a batch, or is the wrapper.
#
# </details>
#
# In `with_jit`, `in_shardings` also splits a batch that comes straight from the host. Without it such a batch would be
# replicated, and every device would compute all of it.
#
# ## Proof
#
# We make twenty updates in each way, and compare the parameters with those of one device (float32, tolerance 1e-5,
# because the sums are added up in another order). We also list the collectives of each compiled program. **Predict:**
# how many bytes does a device all-reduce?

# %% tags=["prediction"]
from pmapdp.compare.collectives import collectives  # reads them from a compiled program
from pmapdp.registry import load_data  # scikit-learn's scans

data = load_data("digits")
images = data.train.inputs[:1280].reshape(1280, D).astype(np.float32) / 255
labels = data.train.labels[:1280]
random = np.random.default_rng(0)
start = {
    "W1": random.normal(0, 0.05, (D, H)).astype(np.float32),
    "b1": np.zeros(H, np.float32),
    "W2": random.normal(0, 0.1, (H, C)).astype(np.float32),
}
ends, differences, exchanged = {}, {}, {}
for name, way in WAYS.items():
    step, place = way()
    state = start, optimizer.init(start)
    if name != "single":
        state = jax.device_put(state, replicated)
    for first in range(0, 1280, 64):
        *state, value = step(*state, *place(images[first : first + 64], labels[first : first + 64]))
    ends[name] = jax.device_get(state[0])
    program = step.lower(*state, *place(images[:64], labels[:64])).compile()
    exchanged[name] = collectives(program.as_text())
    differences[name] = max(np.abs(ends[name][leaf] - ends["single"][leaf]).max() for leaf in start)
    print(f"{name:9s} loss {value:.6f}, differs by {differences[name]:.0e},", *exchanged[name])

# %% tags=["proof"]
# The asserts behind the answers so far.
assert by_pmap == by_jit == by_shard_map == x.mean()
assert seen == [(2,), (2 * N,), (2,)]
assert [len(lesson_10.changed(single, way)) for way in WAYS.values()] == [0, 4, 4, 3]
steps = {name: lesson_10.by_role(way)["The step"] for name, way in WAYS.items()}
assert steps["single"] == steps["jit"] != steps["shard_map"] == steps["pmap"]
numbers = sum(leaf.size for leaf in start.values()) + 1  # the gradients and the loss
for name, found in exchanged.items():
    assert differences[name] < 1e-5
    assert [(each.kind, each.bytes) for each in found] == [("all-reduce", 4 * numbers)] * (name != "single")

# %% [markdown]
# <details><summary>Answer</summary>
#
# All three all-reduce the gradients and the loss, four bytes for each number, and exchange nothing else: 4 x (784 x 64
# + 64 + 64 x 10 + 1) = 203,524 bytes. Here the compiler packed all arrays into one all-reduce; larger networks may get
# several. The same bytes don't prove the same time: we looked at no clock and at no GPU.
#
# </details>
#
# ## To take home
#
# One program with all three: train with the way that you choose, or with each, as here. It needs jax, optax and NumPy
# alone. For data of your own, replace what stands under "yours". Without the two lines that simulate devices, it uses
# those that there are.

# %% tags=["take-home"]
import os

import jax
import numpy as np
import optax
from jax import P, lax
from jax.sharding import Mesh, NamedSharding

os.environ.setdefault("NPROC", "16")  # only to simulate: two threads for each device, which jax before 0.12 needs
jax.config.update("jax_num_cpu_devices", 8)  # only to simulate: eight devices on this machine's CPU

# Yours: the data, [examples, ...] and [examples]; parameters and the loss of a network; optimizer and batch size.
random = np.random.default_rng(0)
inputs = random.normal(size=(5000, 20)).astype(np.float32)
targets = inputs[:, :3].argmax(1)
train, test = slice(0, 4000), slice(4000, None)
first_params = {"weights": np.zeros((20, 3), np.float32), "bias": np.zeros(3, np.float32)}
rule, batch_size, epochs = optax.sgd(0.1, momentum=0.9), 64, 3


def logits(params, x):
    return x @ params["weights"] + params["bias"]


def cross_entropy(params, x, y):  # the mean over the examples that it is given
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


# The rest needs no change.
mesh = Mesh(np.array(jax.devices()), ("data",))
replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
assert batch_size % mesh.size == 0, "every device takes equally many examples of a batch"


def plain_step(params, momentum, x, y):  # of one device, and under jit of all
    value, gradients = jax.value_and_grad(cross_entropy)(params, x, y)
    changes, momentum = rule.update(gradients, momentum, params)
    return optax.apply_updates(params, changes), momentum, value


def averaged_step(params, momentum, x, y):  # of one of many devices
    value, gradients = lax.pmean(jax.value_and_grad(cross_entropy)(params, x, y), "data")
    changes, momentum = rule.update(gradients, momentum, params)
    return optax.apply_updates(params, changes), momentum, value


def stacked(array):  # [B, ...] to [N, b, ...]
    return array.reshape(mesh.size, -1, *array.shape[1:])


jit_step = jax.jit(
    plain_step,
    in_shardings=(replicated, replicated, split, split),
    out_shardings=replicated,
    donate_argnums=(0, 1),
)
on_shards = jax.shard_map(
    averaged_step,
    mesh=mesh,
    in_specs=(P(), P(), P("data"), P("data")),
    out_specs=P(),
    check_vma=False,  # with the check, the pmean of gradients would be N times too large
)
shard_map_step = jax.jit(on_shards, donate_argnums=(0, 1))
pmap_step = jax.pmap(
    averaged_step, axis_name="data", in_axes=(None, None, 0, 0), out_axes=None, donate_argnums=(0, 1)
)

last_losses = []
for name, step in {"jit": jit_step, "shard_map": shard_map_step, "pmap": pmap_step}.items():
    order = np.random.default_rng(1)
    params, momentum = jax.device_put((first_params, rule.init(first_params)), replicated)
    for _ in range(epochs):
        shuffled = order.permutation(np.arange(len(targets))[train])
        for first in range(0, len(shuffled) - batch_size + 1, batch_size):
            rows = shuffled[first : first + batch_size]
            batch = inputs[rows], targets[rows]
            if name == "pmap":
                batch = tuple(map(stacked, batch))
            params, momentum, value = step(params, momentum, *batch)
    params = jax.device_get(params)
    accuracy = (logits(params, inputs[test]).argmax(-1) == targets[test]).mean()
    print(f"{name:9s} last loss {value:.4f}, test accuracy {accuracy:.3f}")
    last_losses.append(float(value))
np.testing.assert_allclose(last_losses, last_losses[0], rtol=1e-4)

# %% [markdown]
# ## The comparison as a command
#
# `python -m pmapdp.compare` makes this comparison for a whole network and data set. It takes about a minute, and prints
# a table of losses, differences and times.

# %%
from pmapdp.lessons.programs.compared import compare  # runs the command

compared = compare("--model", "mlp", "--optimizer", "momentum", "--learning-rate", "0.1", "--steps", "20")
for run in compared["runs"]:
    apart, held = run["largest_difference"], run["holds"]["state"]["shape"]
    sent = sum(each["bytes"] for each in run["collectives"])
    print(f"{run['name']:18s} differs by {apart:.0e}, all-reduces {sent:9,} bytes, the largest array is {held}")
    assert apart < 1e-4

# %% [markdown]
# The differences are rounding, and all four runs on eight devices all-reduce the same bytes.
#
# With `--html page.html` the command writes a page. Its first screen answers what you pass, what your function sees,
# who adds up, what each device holds, and what comes out. Run it yourself, and open the page in a browser:
#
#     python -m pmapdp.compare --dtype float64 --html page.html
#
# ![The first screen of the page: four columns, single, pmap, shard_map and jit, and five rows, from what you pass to the
# loss](../docs/pictures/compare.png)
#
# ## Seven mistakes that raise no error
#
# A plain step gives the same in all ways. Batch norm, dropout, clipping or a ragged last batch may not. The command has
# run seven small programs with a mistake, and the page has their lines beside the right ones. **Predict:** under pmap,
# which of these two are off: clipping before the average, a dropout key folded with the number of the device?

# %% tags=["prediction"]
for case in compared["pitfalls"]:
    off = {way: max(found["loss"], found["gradient"]) for way, found in case["results"]["wrong"].items()}
    print(f"{case['name']:42s}", *(f"{way}: {amount:.0%} off" for way, amount in off.items()))

# %% tags=["proof"]
# The asserts behind the answer.
for case in compared["pitfalls"]:
    for found in case["results"]["wrong"].values():
        assert max(found["loss"], found["gradient"]) > 0.01
    for found in [*case["results"]["right"].values(), *case["results"]["one_device"].values()]:
        assert max(found["loss"], found["gradient"]) < 1e-9

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both are. Clipping each device's gradient turns the mean, and a folded key draws other masks than one device does. Under
# jit all seven are right as one device writes them, because the program is that of one device. (The row with
# `check_vma=True` is the next section.)
#
# </details>
#
# ## The trap
#
# A pmap program averages gradients with `pmean(gradient)`. Copied into `shard_map`, this line is **wrong without any
# error**, unless you pass `check_vma=False` as above. With the default, `check_vma=True`, JAX tracks over which mesh
# axes a value *varies* (*vma* stands for varying manual axes). It knows that `w` is equal on all devices. So `jax.grad`
# returns the gradient of that one `w`, which is already the *sum* over all devices. A `pmean` of equal sums changes
# nothing, so the gradient is N times too large.
#
# Here are three functions that average, each in another place. The gradient of the mean of `w * x` with respect to `w`
# is the mean of `x`: 7.5. **Predict:** which of them return it with the check, and which without?


# %% tags=["prediction"]
def average_the_gradient(w, x):  # pmap's way
    return lax.pmean(jax.grad(loss)(w, x), "data")


def average_the_loss(w, x):
    return jax.grad(mean_loss)(w, x)


def average_after_a_cast(w, x):
    w = lax.pcast(w, "data", to="varying")  # each device has a w of its own from here on
    return lax.pmean(jax.grad(loss)(w, x), "data")


found = {}
for function in (average_the_gradient, average_the_loss, average_after_a_cast):
    for checked in (True, False):
        result = on_devices(function, checked)(w, placed)
        found[function.__name__, checked] = sorted({float(shard.data) for shard in result.addressable_shards})
        values = found[function.__name__, checked]
        shown = values if len(values) < 3 else "another on each device"
        print(f"{function.__name__:21s} check_vma={checked!s:5}: {shown}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# | | `check_vma=True` | `check_vma=False` |
# | --- | --- | --- |
# | `pmean(grad(loss))` | **N times too large** | right (pmap programs, pmapdp) |
# | `grad(pmean(loss))` | right | **not averaged**: devices drift apart |
# | `pcast(w, "data", to="varying")`, then `pmean(grad(loss))` | right | right |
#
# </details>
#
# The jaxpr, JAX's intermediate program of `jax.grad(loss)`, shows why. `V:data` marks a value that varies over the
# axis. `pvary` is how a jaxpr writes the cast of `w`, which JAX inserts by itself. The derivative of that cast is a sum
# over the devices, the last line.

# %%
jaxpr = jax.make_jaxpr(on_devices(jax.grad(loss)))(w, placed).pretty_print(use_color=False)
lines = [line.strip() for line in jaxpr.splitlines()]
print(*(line for line in lines if " mul " in line or "psum" in line or line.endswith("] a")), sep="\n")
assert "psum" in jaxpr
assert not hasattr(lax, "pvary")  # the function of this name is gone: lax.pcast replaces it
try:
    on_devices(loss)(w, placed)
    raise AssertionError("JAX did not refuse")
except ValueError as error:
    print("\nWithout the pmean of the loss:", *str(error).split(" which can't")[0].split("\n"), "...", sep="\n")

# %% [markdown]
# The last line shows what the check is good for: a loss that differs from device to device is not accepted as
# replicated.
#
# **How to notice the trap.** `pmapdp.verify` compares a step with the plain step for one device (lesson 05). Give it
# the shard_map step with Adam, once with the check left on and once with it off. Adam divides each gradient by its own
# typical size. **Predict:** can the trap be seen at all?

# %% tags=["prediction"]
from pmapdp.lessons.reports import show  # prints a report, and breaks its long lines
from pmapdp.verify import verify  # compares a step with that of one device

adam = optax.adam(1e-3)


def plain(state, batch, average=lambda x: x):
    value, gradients = average(jax.value_and_grad(objective)(state[0], *batch))
    updates, moments = adam.update(gradients, state[1])
    return (optax.apply_updates(state[0], updates), moments), value


def averaging(state, batch):
    return plain(state, batch, average=lambda x: lax.pmean(x, "data"))


case = {"reference": plain, "state": (start, adam.init(start)), "layout": "sharded"}
case["batch"] = images[:64], labels[:64]
trapped, right = (verify(step=on_devices(averaging, checked), **case) for checked in (True, False))
show("\n".join(map(str, (*trapped.failed, right))))

# %% tags=["proof"]
# The asserts behind the answers so far.
assert found["average_the_gradient", True] == [N * 7.5]  # the trap
assert len(found["average_the_loss", False]) == N  # each device has the gradient of its own examples
assert found["average_the_gradient", False] == found["average_the_loss", True] == [7.5]
assert found["average_after_a_cast", True] == found["average_after_a_cast", False] == [7.5]
assert (trapped.causes, right.causes) == (["check_vma"], [])

# %% [markdown]
# <details><summary>Answer</summary>
#
# It can. The factor N cancels in Adam's update (except for its epsilon), so no loss curve shows it. But it stays in the
# moments, which `verify` compares too. Clipping would also be wrong, and so would weight decay that is added to the
# gradient.
#
# </details>
#
# Lesson 12 verifies the steps of a whole program in the same way.
#
# ## Which to use when
#
# | you want | use | because |
# | --- | --- | --- |
# | a new data-parallel trainer | `jit` | it is the program of one device: there is no collective to forget, and batch norm needs no change |
# | parameters split over devices | `jit` | only the shardings change (lessons 15 and 16) |
# | to decide when devices communicate: `ppermute`, one all-reduce for many micro-batches | `shard_map` | it takes jit's arrays and can be called inside jit |
# | to keep a pmap program running | `pmap`, then port it | pmap is maintained, and gets no new features (lesson 12 ports one) |
# | to learn what each device does | `pmap` | it adds one idea to the program of one device |
#
# ## Exercises
#
# **1. `fixed_gradient`** (5 minutes): find the planted mistake. `broken_gradient` is right under pmap. But here it runs
# in a `shard_map` with `check_vma=True` over the axis `"data"`. Return the gradient of the mean over all devices.
# <details><summary>Hint</summary>There are three right ways with the check on.</details>
#
# **2. `make_step`** (10 minutes): the whole lesson. Given `loss(params, x, y)`, the mean over the examples that it
# gets, and an Optax optimizer, return a compiled step `(params, optimizer_state, x, y) -> (params, optimizer_state,
# loss)` with `shard_map` over the axis `"data"` of `mesh`. `x` and `y` are global arrays, and all results are
# replicated.
# <details><summary>Hint</summary>Start from <code>with_shard_map</code>. One spec, <code>P()</code>, stands for a whole
# pytree.</details>


# %%
def broken_gradient(loss, w, x):
    return lax.pmean(jax.grad(loss)(w, x), "data")


def fixed_gradient(loss, w, x):
    """In shard_map: a loss, weights (any tree) and this device's `x` `[b, ...]` to the gradient of the global mean."""
    ...  # your code: 1 or 2 lines


def make_step(loss, optimizer, mesh):
    """A compiled step: (params, optimizer_state, x, y) to (params, optimizer_state, loss)."""
    ...  # your code: 6 to 9 lines


from pmapdp.lessons.checks import check  # tries an answer

for exercise in (fixed_gradient, make_step):
    check("10_three_ways_side_by_side", exercise.__name__, exercise)

# %% [markdown]
# Solutions, with reasons: [solutions/10_three_ways_side_by_side.py](solutions/10_three_ways_side_by_side.py)
#
# ## Take away
#
# - pmap, jit and shard_map exchange the same bytes. They differ in which array you pass and in who writes the
#   all-reduce.
# - In `shard_map` average the loss; or cast the weights and average the gradient; or turn the check off and average the
#   gradient.
# - Compare an update with that of one device, as `pmapdp.verify` does.
#
# The code is in [steps/shard_map.py](../pmapdp/steps/shard_map.py), beside [pmap.py](../pmapdp/steps/pmap.py)
# and [jit.py](../pmapdp/steps/jit.py). Read on in JAX's documentation:
# [shard_map](https://docs.jax.dev/en/latest/201/shard-map.html) and
# [Migrating to the new jax.pmap](https://docs.jax.dev/en/latest/migrate_pmap.html). Next:
# [11 Explicit sharding](11_explicit_sharding.ipynb), or [12 Port a pmap program](12_port_a_pmap_program.ipynb), or
# [14 A real training run](14_a_real_training_run.ipynb) if you have none to port.

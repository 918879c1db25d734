"""Programs in shapes that people write, with and without a mistake.

Each mistake is of a kind that docs/mistakes.md has no line for. A report may know no
mistake that fits, but it may never name a wrong one, and never pass.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax.training.dynamic_scale import DynamicScale
from flax.training.train_state import TrainState
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from marks import quick
from steps import (
    BATCH,
    MESH,
    RANDOM,
    W,
    alone,
    descend,
    given,
    loss_of,
    mean,
    sharded,
    total,
)

from pmapdp.verify import Layout, old_program, one_device, verify
from pmapdp.verify.layouts import place, split

MATRIX = RANDOM.normal(size=(5, 8)).astype(np.float32)


# With a mistake


def all_reduce_in_groups():
    """The gradients are averaged over four devices each time, and never over eight."""
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]

    def step(w, batch):
        gradient = jax.grad(loss_of)(w, batch)
        return w - 0.1 * lax.pmean(gradient, "i", axis_index_groups=groups)

    return given(step, W, reference=lambda w, batch: descend(w, batch)[0])


def one_axis_of_two():
    """The batch is split over both axes of the mesh, and the gradients meet on one."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    batch_spec = P(("data", "model"))

    def step(w, batch):
        return w - 0.1 * lax.pmean(jax.grad(loss_of)(w, batch), "data")

    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(P(), batch_spec), out_specs=P(), check_vma=False
    )
    return {
        "reference": lambda w, batch: descend(w, batch)[0],
        "step": jax.jit(mapped),
        "state": W,
        "layout": NamedSharding(mesh, batch_spec),
    }


def micro_batches_never_averaged():
    """`optax.MultiSteps` makes an update of each device's gradients in update 2."""
    optimizer = optax.MultiSteps(optax.adam(0.05), every_k_schedule=2)

    def step(state, batch):
        w, opt_state = state
        gradient = jax.grad(loss_of)(w, batch)
        moves, opt_state = optimizer.update(gradient, opt_state, w)
        return optax.apply_updates(w, moves), opt_state

    return given(step, (W, optimizer.init(jnp.asarray(W))))


def an_accumulator_never_averaged():
    """As many leaves are wrong in update 2 as in update 1, but others."""

    def step(state, batch):
        gradients = state["sum"] + jax.grad(loss_of)(state["w"], batch)
        is_last = state["step"] % 2 == 1
        w = jnp.where(is_last, state["w"] - 0.1 * gradients, state["w"])
        gradients = jnp.where(is_last, 0, gradients)
        return {"w": w, "sum": gradients, "step": state["step"] + 1}

    return given(step, {"w": W, "sum": np.zeros_like(W), "step": np.int32(0)})


def gradients_of_the_first_device():
    """All devices gather the gradients, and take the first one."""

    def step(state, batch, average=lambda tree: lax.all_gather(tree, "i")[0]):
        gradient = average(jax.grad(loss_of)(state["w"], batch))
        velocity = 0.9 * state["velocity"] + gradient
        return {"w": state["w"] - 0.1 * velocity, "velocity": velocity}

    state = {"w": W, "velocity": np.zeros_like(W)}
    return given(step, state, reference=partial(step, average=alone))


def maxima_added_up():
    def step(w, batch, average=mean, add=total):
        w_new, _ = descend(w, batch, average)
        return w_new, {"largest": add(jnp.abs(batch["x"] @ w).max())}

    return given(step, W, reference=partial(step, average=alone, add=alone))


def the_last_gradient():
    """No example of this update has an influence on its parameters."""

    def step(state, batch, average=mean, is_stale=True):
        gradient = average(jax.grad(loss_of)(state["w"], batch))
        used = state["gradient"] if is_stale else gradient
        return {"w": state["w"] - 0.1 * used, "gradient": gradient}

    reference = partial(step, average=alone, is_stale=False)
    return given(step, {"w": W, "gradient": 0.1 * W}, reference=reference)


def complex_weights(average=total):
    """JAX's gradient of a complex number is the conjugate of the direction upwards."""

    def step(w, batch, average=average):
        error = lambda w: jnp.square(jnp.abs(batch["x"] @ w - batch["y"])).mean()
        loss, gradient = jax.value_and_grad(error)(w)
        return w - 0.1 * average(gradient).conj(), mean(loss)

    reference = one_device(partial(step, average=mean), "i")
    state = (W + 1j * W[::-1]).astype(np.complex64)
    return given(step, state, reference=reference)


def two_random_bits():
    """The devices draw the same bits, and by chance two updates do, too."""
    draw = lambda key, b: jax.random.bits(key, (b,), "uint8") % 2 == 0

    def step(w, batch, key):
        flip = draw(key, len(batch["y"]))
        x = jnp.where(flip[:, None], batch["x"], batch["x"][:, ::-1])
        return descend(w, {"x": x, "y": batch["y"]}, mean)

    keys = partial(jax.random.fold_in, jax.random.key(7))
    assert (draw(keys(0), 2) == draw(keys(1), 2)).all()
    return given(step, W, key=keys)


def adversaries(average_generator=mean):
    """Two networks with two losses in one state."""
    optimizer = optax.adam(0.01)

    def network(params, x):
        return jnp.tanh(x @ params["hidden"]) @ params["out"]

    def step(state, batch):
        def judge(judge_params, generator_params):
            real = network(judge_params, batch["x"])
            fake = network(judge_params, network(generator_params, batch["noise"]))
            losses = jax.nn.softplus(-real) + jax.nn.softplus(fake)
            return losses.mean()

        old_judge, old_generator = state["params"]
        judge_loss, gradient = mean(jax.value_and_grad(judge)(*state["params"]))
        moves, judge_moments = optimizer.update(gradient, state["moments"][0])
        new_judge = optax.apply_updates(old_judge, moves)
        deceive = lambda generator_params: -judge(new_judge, generator_params)
        loss, gradient = jax.value_and_grad(deceive)(old_generator)
        gradient = average_generator(gradient)
        moves, moments = optimizer.update(gradient, state["moments"][1])
        new = {
            "params": (new_judge, optax.apply_updates(old_generator, moves)),
            "moments": (judge_moments, moments),
        }
        return new, mean({"judge": judge_loss, "generator": loss})

    random = np.random.default_rng(1)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32) / 2
    judge_params = {"hidden": normal(5, 7), "out": normal(7)}
    generator_params = {"hidden": normal(3, 7), "out": normal(7, 5)}
    params = (judge_params, generator_params)
    state = {"params": params, "moments": tuple(map(optimizer.init, params))}
    return given(step, state, {"x": normal(16, 5), "noise": normal(16, 3)})


def a_generator_of_each_device():
    correct = adversaries()
    return adversaries(alone) | {"reference": correct["reference"]}


def fully_sharded(add_squares=total):
    """Each device holds some columns of the matrix, and the gradient is clipped."""

    def loss(w, batch):
        return ((jnp.tanh(batch["x"] @ w).sum(1) - batch["y"]) ** 2).mean()

    def clip(gradient, add=alone):
        norm = jnp.sqrt(add((gradient**2).sum()))
        return gradient * jnp.minimum(1, 0.3 / norm)

    def reference(w, batch):
        value, gradient = jax.value_and_grad(loss)(w, batch)
        return w - 0.1 * clip(gradient), value

    def step(columns, batch):
        def gathered_loss(columns):
            w = lax.all_gather(columns, "i", axis=1, tiled=True)
            return loss(w, batch)

        value, gradient = jax.value_and_grad(gathered_loss)(columns)
        # The gradient of an all-gather is a sum over the devices.
        gradient = clip(gradient / lax.axis_size("i"), add_squares)
        return columns - 0.1 * gradient, mean(value)

    mapped = jax.shard_map(
        step,
        mesh=MESH,
        in_specs=(P(None, "i"), P("i")),
        out_specs=(P(None, "i"), P()),
        check_vma=False,
    )
    place_columns = lambda w, devices: place(w, devices, None, "data")
    return {
        "reference": reference,
        "step": jax.jit(mapped),
        "state": MATRIX,
        "layout": Layout(place_columns, split),
    }


WRONG = [  # a program, the mistakes that fit, and what is said
    (all_reduce_in_groups, ["no all-reduce"], "is missing, or it leaves out devices"),
    (one_axis_of_two, ["no all-reduce"], "is missing, or it leaves out devices"),
    (
        micro_batches_never_averaged,
        ["no all-reduce"],
        "1 of 7 leaves differ, from update 1 on; 3 differ in update 2",
    ),
    (an_accumulator_never_averaged, ["no all-reduce"], "1 differ in update 2"),
    (
        gradients_of_the_first_device,
        ["no all-reduce"],
        "velocity, w: the reference's result on the first device's examples.",
    ),
    (maxima_added_up, ["scaled metrics"], "metrics/largest: the sum of the reference"),
    (two_random_bits, ["same mask"], "all draw the same random numbers"),
    (complex_weights, ["sum for mean"], "the change is 8 times the reference's"),
    (the_last_gradient, [], "w: the examples of this update have no influence"),
    (a_generator_of_each_device, ["no all-reduce"], "Other results depend on"),
    (partial(fully_sharded, alone), [], "None of the usual mistakes fits"),
]


@quick(8, ("program", "mistakes", "said"), WRONG)
def test_a_wrong_program_gets_no_wrong_mistake(program, mistakes, said):
    report = verify(**{"batch": BATCH} | program())
    assert report.failed, str(report)
    assert report.mistakes == mistakes, str(report)
    assert said in " ".join(str(report).split()), str(report)


# Without one


def linen_with_a_loss_scale_and_an_average():
    """Flax linen, as its ImageNet example has it: batch norm, a scaled loss, an EMA.

    `DynamicScale` makes the gradients float32, so nothing is more exact.
    """

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(8)(x)
            x = nn.BatchNorm(use_running_average=False, axis_name="i")(x)
            return nn.Dense(1)(nn.relu(x))[:, 0]

    class State(TrainState):
        batch_stats: dict
        scale: DynamicScale
        average: dict

    def step(state, batch):
        def loss(params):
            variables = {"params": params, "batch_stats": state.batch_stats}
            out, new = Net().apply(variables, batch["x"], mutable=["batch_stats"])
            return ((out - batch["y"]) ** 2).mean(), new["batch_stats"]

        differentiate = state.scale.value_and_grad(loss, has_aux=True, axis_name="i")
        scale, is_finite, (value, batch_stats), gradients = differentiate(state.params)
        new = state.apply_gradients(grads=gradients)
        keep = partial(jnp.where, is_finite)
        params = jax.tree.map(keep, new.params, state.params)
        move = lambda average, p: 0.99 * average + 0.01 * p
        average = jax.tree.map(move, state.average, params)
        new = new.replace(params=params, average=average)
        return new.replace(batch_stats=batch_stats, scale=scale), mean(value)

    # Its batch norm averages over "i", which a function on one device doesn't have.
    initialize = jax.vmap(
        lambda x: Net().init(jax.random.key(0), x), axis_name="i", out_axes=None
    )
    variables = initialize(BATCH["x"][None])
    state = State.create(
        apply_fn=None,
        params=variables["params"],
        tx=optax.sgd(0.1, momentum=0.9),
        batch_stats=variables["batch_stats"],
        scale=DynamicScale(scale=256.0, growth_interval=2),
        average=variables["params"],
    )
    return given(step, state)


def all_embeddings_gathered():
    """A contrastive loss makes B x B products, so the work isn't linear in B."""

    def step(w, batch):
        def loss(w):
            first = batch["x"] @ w
            second = (batch["x"] + 0.1 * batch["y"][:, None]) @ w
            all_second = lax.all_gather(second, "i", tiled=True)
            index = lax.axis_index("i") * len(first) + jnp.arange(len(first))
            losses = optax.softmax_cross_entropy_with_integer_labels(
                first @ all_second.T, index
            )
            return losses.mean()

        value, gradient = jax.value_and_grad(loss)(w)
        return w - 0.1 * mean(gradient), mean(value)

    return given(step, MATRIX)


def micro_batches_in_optax():
    optimizer = optax.MultiSteps(optax.adam(0.05), every_k_schedule=2)

    def step(state, batch):
        w, opt_state = state
        loss, gradient = mean(jax.value_and_grad(loss_of)(w, batch))
        moves, opt_state = optimizer.update(gradient, opt_state, w)
        return (optax.apply_updates(w, moves), opt_state), loss

    return given(step, (W, optimizer.init(jnp.asarray(W))))


def micro_batches_in_a_shard_map():
    def step(w, batch):
        def add(gradients, part):
            return gradients + jax.grad(loss_of)(w, part), None

        parts = jax.tree.map(lambda x: x.reshape(2, 1, *x.shape[1:]), batch)
        gradients, _ = lax.scan(add, jnp.zeros_like(w), parts)
        return w - 0.1 * mean(gradients) / 2

    return {
        "reference": lambda w, batch: descend(w, batch)[0],
        "step": sharded(step, check_vma=False),
        "state": W,
        "layout": "sharded",
    }


def sums_that_the_host_divides():
    def step(w, batch):
        n = len(batch["y"])
        hits = ((batch["x"] @ w) * batch["y"] > 0).sum()
        sums = total({"loss": n * loss_of(w, batch), "hits": hits, "n": n})
        return descend(w, batch, mean)[0], sums

    return given(step, W)


def updates_in_a_scan_with_a_key():
    def step(state, batches, key):
        def update(state, batch):
            w, number = state
            b = len(batch["y"])
            index = lax.axis_index("i") * b + jnp.arange(b)
            keys = jax.vmap(
                partial(jax.random.fold_in, jax.random.fold_in(key, number))
            )
            keep = jax.vmap(lambda key: jax.random.bernoulli(key, 0.7))(keys(index))
            loss, gradient = mean(jax.value_and_grad(loss_of)(w, batch, keep))
            return (w - 0.05 * gradient, number + 1), loss

        return lax.scan(update, state, batches)

    batches = jax.tree.map(lambda x: np.stack([x, x[::-1], 2 * x]), BATCH)
    keys = partial(jax.random.fold_in, jax.random.key(1))
    state = (W, np.int32(0))
    return given(step, state, batches, batch_axis=1, key=keys)


def a_mesh_of_data_and_model():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    columns = NamedSharding(mesh, P(None, "model"))
    rows = NamedSharding(mesh, P("data"))

    def step(w, batch):
        loss = lambda w: ((jnp.tanh(batch["x"] @ w).sum(1) - batch["y"]) ** 2).mean()
        value, gradient = jax.value_and_grad(loss)(w)
        return w - 0.1 * gradient, value

    layout = Layout(
        lambda w, devices: jax.device_put(w, columns),
        lambda batch, devices: jax.device_put(batch, rows),
    )
    return {
        "reference": step,
        "step": jax.jit(step),
        "state": MATRIX,
        "layout": layout,
    }


def an_orthogonal_update():
    """As Muon makes it: the gradient's singular values become 1."""

    def step(w, batch):
        loss = lambda w: ((jnp.tanh(batch["x"] @ w).sum(1) - batch["y"]) ** 2).mean()
        gradient = mean(jax.grad(loss)(w))
        left, _, right = jnp.linalg.svd(gradient, full_matrices=False)
        return w - 0.05 * left @ right

    return given(step, MATRIX)


CORRECT = [
    linen_with_a_loss_scale_and_an_average,
    all_embeddings_gathered,
    partial(complex_weights, mean),
    adversaries,
    fully_sharded,
    micro_batches_in_optax,
    micro_batches_in_a_shard_map,
    sums_that_the_host_divides,
    updates_in_a_scan_with_a_key,
    a_mesh_of_data_and_model,
    an_orthogonal_update,
]


@quick(3, "program", CORRECT)
def test_a_correct_program_passes(program):
    report = verify(**{"batch": BATCH} | program())
    assert report.ok, str(report)
    has_float32 = program is linen_with_a_loss_scale_and_an_average
    assert ("computes in float32" in report.precision) == has_float32, str(report)


def test_groups_of_devices_need_a_reference_by_hand():
    """`vmap` runs no collective over groups, as the page says. JAX raises the error."""
    pairs = [[0, 1], [2, 3], [4, 5], [6, 7]]
    step = lambda w: lax.pmean(w, "i", axis_index_groups=pairs)
    for reference in (one_device(step, "i"), old_program(step, "i", groups=8)):
        with pytest.raises(NotImplementedError):
            verify(step=jax.pmap(step, "i"), reference=reference, state=W)

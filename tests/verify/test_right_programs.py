"""Right training steps in the styles in which people write them pass, in float64 and in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from marks import quick
from steps import BATCH, MESH, RANDOM, W, descend, loss_of, mean, sharded

from pmapdp.verify import Layout, old_program, one_device, verify
from pmapdp.verify.layouts import place, shard


def jit_with_nnx():
    """The module's state split from its structure; batch norm and one mask for the batch come out right under jit."""

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(5, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.dropout = nnx.Dropout(0.3)
            self.out = nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, x, rngs):
            return self.out(
                self.dropout(nnx.relu(self.norm(self.hidden(x))), rngs=rngs)
            )[:, 0]

    structure, *state = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)

    def step(state, batch, key):
        def loss_of(params):
            net = nnx.merge(structure, params, state[1], copy=True)
            loss = jnp.mean((net(batch["x"], nnx.Rngs(dropout=key)) - batch["y"]) ** 2)
            return loss, nnx.state(net, nnx.Not(nnx.Param))

        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(state[0])
        return [jax.tree.map(lambda p, g: p - 0.1 * g, state[0], gradients), rest], {
            "loss": loss
        }

    jitted = jax.jit(step, donate_argnums=0, out_shardings=NamedSharding(MESH, P()))
    key = lambda update: jax.random.fold_in(jax.random.key(3), update)
    return {
        "reference": step,
        "step": jitted,
        "layout": "sharded",
        "key": key,
        "state": state,
    }


def shard_map_on_a_mesh_of_its_own():
    """check_vma=True: the averaged loss is differentiated. The batch's sharding is the layout."""

    def step(w, batch):
        loss, gradient = jax.value_and_grad(lambda w: mean(loss_of(w, batch)))(w)
        return w - 0.1 * gradient, {"loss": loss}

    return {
        "reference": descend,
        "step": sharded(step),
        "layout": NamedSharding(MESH, P("i")),
        "state": W,
    }


def shard_map_with_pcast():
    """check_vma=True: the parameters are cast, so pmean of the gradient is the mean."""

    def step(w, batch, average=mean):
        own_w = lax.pcast(w, "i", to="varying")
        loss, gradient = average(jax.value_and_grad(loss_of)(own_w, batch))
        return w - 0.1 * gradient, {"loss": mean(loss)}

    with pytest.raises(ValueError, match="can't be statically inferred"):
        sharded(lambda w, batch: step(w, batch, lambda x: x)).lower(W, BATCH)
    return {
        "reference": descend,
        "step": sharded(step),
        "layout": "sharded",
        "state": W,
    }


def zero_1():
    """Each device holds a part of the momentum: reduce-scatter, update of the part, all-gather of the move."""

    def reference(state, batch):
        loss, gradient = jax.value_and_grad(loss_of)(state[0], batch)
        momentum = 0.9 * state[1] + gradient
        return (state[0] - 0.1 * momentum, momentum), loss

    def device_step(w, momentum, batch):
        loss, gradient = jax.value_and_grad(loss_of)(w, batch)
        momentum = 0.9 * momentum + lax.psum_scatter(
            gradient, "i", tiled=True
        ) / lax.axis_size("i")
        return (w - 0.1 * lax.all_gather(momentum, "i", tiled=True), momentum), mean(
            loss
        )

    mapped = jax.pmap(
        device_step, "i", in_axes=(None, 0, 0), out_axes=((None, 0), None)
    )
    layout = Layout(
        lambda state, devices: (place(state[0], devices), shard(state[1], devices)),
        shard,
        lambda state: (np.asarray(state[0]), np.asarray(state[1]).reshape(-1)),
    )
    batch = {
        "x": np.concatenate([BATCH["x"], BATCH["x"][::-1, :3]], 1),
        "y": BATCH["y"],
    }  # 8 features
    step = lambda state, batch: mapped(*state, batch)
    state = (np.ones(8, np.float32), np.zeros(8, np.float32))
    return {
        "reference": reference,
        "step": step,
        "state": state,
        "batch": batch,
        "layout": layout,
        "float64": False,
    }


def a_ragged_batch_padded_by_the_layout():
    """13 examples on four devices: the layout fills up with examples of weight 0."""

    def step(w, weighted_batch):
        batch, weight = weighted_batch
        loss, gradient = jax.value_and_grad(
            lambda w: (weight * (batch["x"] @ w - batch["y"]) ** 2).sum()
        )(w)
        loss, gradient, count = lax.psum((loss, gradient, weight.sum()), "i")
        return w - 0.1 * gradient / count, {"loss": loss / count}

    def place_batch(batch, devices):
        size = len(batch["y"])
        N = len(devices)
        index = np.arange(-(-size // N) * N) % size
        weight = (np.arange(len(index)) < size).astype(batch["x"].dtype)
        return shard(({name: x[index] for name, x in batch.items()}, weight), devices)

    first, last = (jax.tree.map(lambda x: x[:size], BATCH) for size in (13, 5))  # noqa: B023
    devices = jax.devices()[:4]
    given = {
        "reference": descend,
        "step": jax.pmap(step, "i", in_axes=(None, 0), out_axes=None, devices=devices),
        "devices": devices,
        "state": W,
    }
    return given | {
        "layout": Layout(place, place_batch),
        "batch": first,
        "last_batch": last,
    }


def mixed_precision():
    """Matrix products in bfloat16, parameters in float32."""

    def half(w, batch):
        x = batch["x"].astype(jnp.bfloat16)
        w = w.astype(jnp.bfloat16)
        return jnp.mean(((x @ w).astype(jnp.float32) - batch["y"]) ** 2)

    def step(w, batch):
        loss, gradient = mean(jax.value_and_grad(half)(w, batch))
        return w - 0.1 * gradient, loss

    return {"reference": one_device(step, "i"), "step": jax.pmap(step, "i"), "state": W}


def without_a_batch():
    """Each device has environments of its own, as in reinforcement learning, and returns them."""

    def step(state):
        w, environments = state
        loss, gradient = mean(
            jax.value_and_grad(loss_of)(w, {"x": environments, "y": 1})
        )
        return (w - 0.1 * gradient, environments + w), loss

    given = {
        "reference": old_program(step, "i", groups=8),
        "step": jax.pmap(step, "i"),
        "per_device": "1",
    }
    return given | {
        "state": (W, RANDOM.normal(size=(8, 4, 5)).astype(np.float32)),
        "batch": None,
    }


def three_updates_in_a_scan():
    """The examples are the second axis of the batch."""

    def step(w, batches):
        return lax.scan(lambda w, batch: descend(w, batch, mean), w, batches)

    batches = jax.tree.map(lambda x: np.stack([x, x[::-1], 2 * x]), BATCH)
    given = {
        "reference": one_device(step, "i"),
        "step": jax.pmap(step, "i"),
        "state": W,
    }
    return given | {"batch": batches, "batch_axis": 1}


PROGRAMS = [
    shard_map_on_a_mesh_of_its_own, shard_map_with_pcast, jit_with_nnx, zero_1, a_ragged_batch_padded_by_the_layout, mixed_precision,
    without_a_batch, three_updates_in_a_scan,
]  # fmt: skip


@quick(1, "program", PROGRAMS)
def test_a_right_program_passes(program):
    given = program()
    report = verify(**{"batch": BATCH} | given)
    assert report.ok, str(report)
    assert report.devices == len(given.get("devices", jax.devices())), str(report)
    assert report.updates == 3 + ("last_batch" in given), str(report)
    if program is mixed_precision:
        assert str(report).startswith(
            "Note: computed in the given types, not float64 (given float64, the reference"
        )
        assert "computes in bfloat16" in report.precision

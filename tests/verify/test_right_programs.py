"""Right training steps in the styles in which people write them pass, in float64 and in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from marks import quick

from pmapdp.verify import Layout, one_device, verify
from pmapdp.verify.layouts import replicate, split_rows

B, D, H, C = 16, 6, 8, 3
RANDOM = np.random.default_rng(1)
BATCH = {"x": RANDOM.normal(size=(B, D)).astype(np.float32), "y": RANDOM.integers(0, C, B).astype(np.int32)}
PARAMS = {"w": RANDOM.normal(size=(D, H)).astype(np.float32), "v": RANDOM.normal(size=(H, C)).astype(np.float32)}


def mean(tree):
    return lax.pmean(tree, "i")


def loss_of(params, batch, weight=None):
    logits = jnp.tanh(batch["x"] @ params["w"]) @ params["v"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return losses.mean() if weight is None else (weight * losses).sum()


def descend(params, gradients):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def plain(params, batch):
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    return descend(params, gradients), loss


def averaged(params, batch):
    loss, gradients = mean(jax.value_and_grad(loss_of)(params, batch))
    return descend(params, gradients), loss


def replicated_pmap(step, reference=plain):
    """The maintained form: the state has no device axis."""
    make_step = lambda devices: jax.pmap(step, "i", in_axes=(None, 0), out_axes=None, devices=devices)  # noqa: E731
    given = {"reference": reference, "make_step": make_step, "layout": "replicated", "counts": (1, 8)}
    return given | {"state": PARAMS, "batch": BATCH}


def jit_with_nnx():
    """The module's state split from its structure; batch norm and one mask for the batch come out right under jit."""

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.hidden, self.norm = nnx.Linear(D, H, rngs=rngs), nnx.BatchNorm(H, rngs=rngs)
            self.dropout, self.logits = nnx.Dropout(0.3), nnx.Linear(H, C, rngs=rngs)

        def __call__(self, x, rngs):
            return self.logits(self.dropout(nnx.relu(self.norm(self.hidden(x))), rngs=rngs))

    structure, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)
    rule = optax.sgd(0.1, momentum=0.9)

    def step(state, batch, key):
        params, rest, momentum = state

        def loss_of(params):
            net = nnx.merge(structure, params, rest, copy=True)
            logits = net(batch["x"], nnx.Rngs(dropout=key))
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
            return loss, nnx.state(net, nnx.Not(nnx.Param))

        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        moves, momentum = rule.update(gradients, momentum, params)
        return (optax.apply_updates(params, moves), rest, momentum), {"loss": loss}

    def make_step(devices):
        everywhere = NamedSharding(Mesh(np.array(devices), ("i",)), P())
        return jax.jit(step, donate_argnums=0, out_shardings=everywhere)

    given = {"state": (params, rest, rule.init(params)), "batch": BATCH, "layout": "sharded", "counts": (1, 4)}
    key = lambda update: jax.random.fold_in(jax.random.key(3), update)  # noqa: E731
    return given | {"reference": step, "make_step": make_step, "key": key}


def shard_map_on_a_mesh_of_its_own():
    """check_vma=True: the averaged loss is differentiated. The batch's sharding is the layout."""
    mesh = jax.make_mesh((8,), ("i",))

    def step(params, batch):
        loss, gradients = jax.value_and_grad(lambda params: mean(loss_of(params, batch)))(params)
        return descend(params, gradients), loss

    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P()))
    given = {"reference": plain, "step": mapped, "layout": NamedSharding(mesh, P("i"))}
    return given | {"state": PARAMS, "batch": BATCH}


def zero_1():
    """Each device holds a part of the momentum: reduce-scatter, update of the part, all-gather of the move."""

    def gradient_of(w, batch):
        return jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(w)

    def reference(state, batch):
        loss, gradient = gradient_of(state[0], batch)
        momentum = 0.9 * state[1] + gradient
        return (state[0] - 0.1 * momentum, momentum), loss

    def device_step(w, momentum, batch):
        loss, gradient = gradient_of(w, batch)
        momentum = 0.9 * momentum + lax.psum_scatter(gradient, "i", tiled=True) / lax.axis_size("i")
        return w - 0.1 * lax.all_gather(momentum, "i", tiled=True), momentum, mean(loss)

    mapped = jax.pmap(device_step, "i", in_axes=(None, 0, 0), out_axes=(None, 0, None))

    def step(state, batch):
        w, momentum, loss = mapped(*state, batch)
        return (w, momentum), loss

    layout = Layout(
        lambda state, devices: (replicate(state[0], devices), split_rows(state[1], devices)),
        split_rows,
        lambda state: (np.asarray(state[0]), np.asarray(state[1]).reshape(-1)),
    )
    batch = {"x": RANDOM.normal(size=(B, 8)).astype(np.float32), "y": RANDOM.normal(size=B).astype(np.float32)}
    state = (np.ones(8, np.float32), np.zeros(8, np.float32))
    return {"reference": reference, "step": step, "state": state, "batch": batch, "layout": layout}


def a_ragged_batch_padded_by_the_layout():
    """13 examples on any number of devices: the layout fills up with examples of weight 0."""

    def weighted(params, batch, weight, add):
        loss, gradients = add(jax.value_and_grad(loss_of)(params, batch, weight))
        count = add(weight.sum())
        return jax.tree.map(lambda p, g: p - 0.1 * g / count, params, gradients), loss / count

    def place_batch(batch, devices):
        size, N = len(batch["y"]), len(devices)
        index = np.arange(-(-size // N) * N) % size
        weight = (np.arange(len(index)) < size).astype(batch["x"].dtype)
        return split_rows(({name: x[index] for name, x in batch.items()}, weight), devices)

    def reference(params, batch):
        return weighted(params, batch, jnp.ones(len(batch["y"])), lambda tree: tree)

    given = replicated_pmap(lambda params, batch: weighted(params, *batch, lambda x: lax.psum(x, "i")), reference)
    first, last = (jax.tree.map(lambda x: x[:size], BATCH) for size in (13, 5))  # noqa: B023
    return given | {"layout": Layout(replicate, place_batch), "batch": first, "last_batch": last}


def mixed_precision():
    """Matrix products in bfloat16, parameters in float32."""

    def half(params, batch):
        params, x = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (params, batch["x"]))
        logits = (jnp.tanh(x @ params["w"]) @ params["v"]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    def step(params, batch):
        loss, gradients = mean(jax.value_and_grad(half)(params, batch))
        return descend(params, gradients), loss

    return replicated_pmap(step, one_device(step, "i"))


PROGRAMS = [
    (shard_map_on_a_mesh_of_its_own, True), (jit_with_nnx, True), (zero_1, False),
    (a_ragged_batch_padded_by_the_layout, True), (mixed_precision, True),
]  # fmt: skip


@quick(1, ("program", "float64"), PROGRAMS)
def test_a_right_program_passes(program, float64):
    given = program()
    report = verify(**given, float64=float64)
    assert report.ok, str(report)
    counts = tuple(given.get("counts", (1, 8) if given.get("make_step") else (8,)))
    assert set(report.compared.updates.values()) == {counts}, str(report)
    if program is mixed_precision:
        assert str(report).startswith("Note: in float64 tolerances would be a thousand times narrower, but given float")
        assert "computes in bfloat16" in report.precision

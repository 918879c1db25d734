"""Right training steps in the styles in which people write them: each function returns the arguments of `verify`.

All train a small classifier on 16 random examples; what differs is how state, keys, batches and devices are handled.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import training_programs as programs
from flax import nnx
from flax.training.train_state import TrainState
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.verify import one_device
from pmapdp.verify.layouts import Layout, replicate, split, split_rows

B, D, H, C = 16, 6, 8, 3
AXIS = "batch"


def data(B=B):
    random = np.random.default_rng(1)
    return {"x": random.normal(size=(B, D)).astype(np.float32), "y": random.integers(0, C, B).astype(np.int32)}


def plain_params():
    random = np.random.default_rng(2)
    return {"w": random.normal(size=(D, H)).astype(np.float32), "v": random.normal(size=(H, C)).astype(np.float32)}


def plain_loss(params, batch):
    logits = jnp.tanh(batch["x"] @ params["w"]) @ params["v"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def plain_step(params, batch):
    loss, gradients = jax.value_and_grad(plain_loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


def our_program(way, **options):
    options = options or {"norm": True, "optimizer": "clipping", "length": programs.SHORT}
    return programs.given(way, **options) | {"counts": (1, 2, 4, 8)}


def batch_norm_and_dropout_with_pmap():
    return our_program("pmap")


def batch_norm_and_dropout_with_shard_map():
    return our_program("shard_map")


def batch_norm_and_dropout_with_jit():
    return our_program("jit")


def adam_with_pmap():
    return our_program("pmap", optimizer="adam")


def momentum_in_bfloat16_with_shard_map():
    return our_program("shard_map", optimizer="momentum in bfloat16", key="state")


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(C)(nn.relu(nn.Dense(H)(x)))


def stacked_pmap_with_linen():
    """As Flax's older examples: TrainState, flax.jax_utils.replicate, sharded batches, a device axis on everything."""
    net, batch = LinenNet(), data()
    params = net.init(jax.random.key(0), batch["x"])["params"]
    state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adamw(1e-2))

    def train_step(state, batch, average=lambda tree: tree):
        def loss_of(params):
            logits = state.apply_fn({"params": params}, batch["x"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), logits

        (loss, logits), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        metrics = {"loss": loss, "accuracy": (logits.argmax(-1) == batch["y"]).mean()}
        return state.apply_gradients(grads=average(gradients)), average(metrics)

    pmapped = jax.pmap(
        lambda state, batch: train_step(state, batch, lambda tree: lax.pmean(tree, AXIS)),
        axis_name=AXIS,
        donate_argnums=(0,),
    )
    return {"reference": train_step, "step": pmapped, "state": state, "batch": batch, "counts": (1, 2, 4, 8)}


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.norm = nnx.Linear(D, H, rngs=rngs), nnx.BatchNorm(H, rngs=rngs)
        self.dropout, self.logits = nnx.Dropout(0.3), nnx.Linear(H, C, rngs=rngs)

    def __call__(self, x, rngs):
        return self.logits(self.dropout(nnx.relu(self.norm(self.hidden(x))), rngs=rngs))


def jit_with_nnx():
    """The module's state split from its structure; batch norm and one mask for the batch come out right under jit."""
    structure, state = nnx.split(Net(nnx.Rngs(0)))
    update = optax.sgd(0.1, momentum=0.9)

    def train_step(state, batch, key):
        net_state, optimizer = state

        def loss_of(params, rest):
            net = nnx.merge(structure, params, rest, copy=True)
            logits = net(batch["x"], nnx.Rngs(dropout=key))
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
            return loss, nnx.state(net, nnx.Not(nnx.Param))

        params, rest = net_state
        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, rest)
        moves, optimizer = update.update(gradients, optimizer, params)
        return ((optax.apply_updates(params, moves), rest), optimizer), {"loss": loss}

    params, rest = nnx.split_state(state, nnx.Param, ...)

    def make_step(devices):
        everywhere = NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec())
        return jax.jit(train_step, donate_argnums=0, out_shardings=everywhere)

    return {
        "reference": train_step, "make_step": make_step, "state": ((params, rest), update.init(params)),
        "batch": data(), "layout": "sharded", "key": lambda update: jax.random.fold_in(jax.random.key(3), update),
    }  # fmt: skip


def plain_arrays_with_pmap():
    """The maintained form: the state without a device axis."""

    def device_step(params, batch):
        loss, gradients = lax.pmean(jax.value_and_grad(plain_loss)(params, batch), AXIS)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    def make_step(devices):
        return jax.pmap(device_step, AXIS, in_axes=(None, 0), out_axes=None, devices=devices)

    layout = "replicated"
    return {"reference": plain_step, "make_step": make_step, "state": plain_params(), "batch": data(), "layout": layout}


def mixed_precision_with_pmap():
    """Matrix products in bfloat16, parameters in the given type."""

    def loss_of(params, batch):
        half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), {**params, "x": batch["x"]})
        logits = (jnp.tanh(half["x"] @ half["w"]) @ half["v"]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    def step(params, batch, average=lambda tree: tree):
        loss, gradients = average(jax.value_and_grad(loss_of)(params, batch))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    def make_step(devices):
        mapped = lambda *given: step(*given, lambda tree: lax.pmean(tree, AXIS))  # noqa: E731
        return jax.pmap(mapped, AXIS, in_axes=(None, 0), out_axes=None, devices=devices)

    return plain_arrays_with_pmap() | {"reference": step, "make_step": make_step}


def gradient_accumulation():
    """Two micro-batches in a loop on each device, then one all-reduce."""

    def device_step(params, batch):
        def add(total, micro_batch):
            return jax.tree.map(jnp.add, total, jax.value_and_grad(plain_loss)(params, micro_batch)), None

        micro_batches = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch)
        zeros = (jnp.zeros((), params["w"].dtype), jax.tree.map(jnp.zeros_like, params))
        total, _ = lax.scan(add, zeros, micro_batches)
        loss, gradients = lax.pmean(jax.tree.map(lambda x: x / 2, total), AXIS)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    def make_step(devices):
        return jax.pmap(device_step, AXIS, in_axes=(None, 0), out_axes=None, devices=devices)

    return plain_arrays_with_pmap() | {"make_step": make_step}


def shard_map_with_check_vma():
    """check_vma=True: the averaged loss is differentiated, and the gradient comes out averaged."""

    def device_step(params, batch):
        def loss_of(params):
            return lax.pmean(plain_loss(params, batch), AXIS)

        loss, gradients = jax.value_and_grad(loss_of)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    def make_step(devices):
        mesh = Mesh(np.array(devices), (AXIS,))
        specs = (PartitionSpec(), PartitionSpec(AXIS))
        return jax.jit(jax.shard_map(device_step, mesh=mesh, in_specs=specs, out_specs=PartitionSpec()))

    return plain_arrays_with_pmap() | {"make_step": make_step, "layout": "sharded"}


def zero_1():
    """Each device holds a part of the momentum: reduce-scatter, update of the part, all-gather of the move."""

    def reference(state, batch):
        params, momentum = state
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(params)
        momentum = 0.9 * momentum + gradient
        return (params - 0.1 * momentum, momentum), loss

    def device_step(params, momentum, batch):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(params)
        momentum = 0.9 * momentum + lax.psum_scatter(gradient, AXIS, tiled=True) / lax.axis_size(AXIS)
        return params - 0.1 * lax.all_gather(momentum, AXIS, tiled=True), momentum, lax.pmean(loss, AXIS)

    def make_step(devices):
        axes = {"in_axes": (None, 0, 0), "out_axes": (None, 0, None), "devices": devices}
        pmapped = jax.pmap(device_step, AXIS, **axes)

        def step(state, batch):
            params, momentum, loss = pmapped(*state, batch)
            return (params, momentum), loss

        return step

    layout = Layout(
        lambda state, devices: (replicate(state[0], devices), split_rows(state[1], devices)),
        split_rows,
        lambda state: (np.asarray(state[0]), np.asarray(state[1]).reshape(-1)),
    )
    random = np.random.default_rng(3)
    batch = {"x": random.normal(size=(B, 8)).astype(np.float32), "y": random.normal(size=B).astype(np.float32)}
    state = (np.ones(8, np.float32), np.zeros(8, np.float32))
    return {"reference": reference, "make_step": make_step, "state": state, "batch": batch, "layout": layout}


def fully_sharded_with_jit():
    """Parameters split over the devices; the compiler gathers them where they are needed."""

    def place(params, devices):
        mesh = Mesh(np.array(devices), (AXIS,))
        spec = {"w": PartitionSpec(None, AXIS), "v": PartitionSpec(AXIS)}
        return {name: jax.device_put(x, NamedSharding(mesh, spec[name])) for name, x in params.items()}

    arguments = {"reference": plain_step, "make_step": lambda devices: jax.jit(plain_step, donate_argnums=0)}
    return arguments | {"state": plain_params(), "batch": data(), "layout": Layout(place, split)}


def a_key_in_the_state_of_each_device():
    """Each device's own key, as in older pmap programs; no result depends on it: one device is the reference."""

    def step(state, batch):
        key, _ = jax.random.split(state["key"])
        loss, gradients = lax.pmean(jax.value_and_grad(plain_loss)(state["params"], batch), AXIS)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], gradients)
        return {"params": params, "key": key}, loss

    keys = jax.random.split(jax.random.PRNGKey(1), 8)
    return {
        "reference": one_device(step, AXIS), "step": jax.pmap(step, AXIS), "batch": data(),
        "state": {"params": plain_params(), "key": keys}, "per_device": "key", "counts": [8],
    }  # fmt: skip


def a_ragged_batch_padded_by_the_layout():
    """13 examples on any number of devices: the layout fills up with examples of weight 0."""

    def reference(params, batch):
        return weighted_step(params, batch, jnp.ones(len(batch["y"])), lambda tree: tree)

    def weighted_step(params, batch, weight, add):
        def loss_of(params):
            logits = jnp.tanh(batch["x"] @ params["w"]) @ params["v"]
            return (weight * optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])).sum()

        loss, gradients = add(jax.value_and_grad(loss_of)(params))
        count = add(weight.sum())
        return jax.tree.map(lambda p, g: p - 0.1 * g / count, params, gradients), loss / count

    def place_batch(batch, devices):
        size, N = len(batch["y"]), len(devices)
        index = np.arange(-(-size // N) * N) % size
        weight = (np.arange(len(index)) < size).astype(batch["x"].dtype)
        return split_rows(({name: x[index] for name, x in batch.items()}, weight), devices)

    def make_step(devices):
        def device_step(params, batch):
            return weighted_step(params, *batch, lambda tree: lax.psum(tree, AXIS))

        return jax.pmap(device_step, AXIS, in_axes=(None, 0), out_axes=None, devices=devices)

    return {
        "reference": reference, "make_step": make_step, "state": plain_params(), "batch": data(13),
        "last_batch": data(5), "layout": Layout(replicate, place_batch),
    }  # fmt: skip


RIGHT = [
    batch_norm_and_dropout_with_pmap, batch_norm_and_dropout_with_shard_map, batch_norm_and_dropout_with_jit,
    adam_with_pmap, momentum_in_bfloat16_with_shard_map, stacked_pmap_with_linen, jit_with_nnx,
    plain_arrays_with_pmap, gradient_accumulation, shard_map_with_check_vma, zero_1, fully_sharded_with_jit,
    a_key_in_the_state_of_each_device, a_ragged_batch_padded_by_the_layout,
]  # fmt: skip


def halved(state, batch):
    """A step of two lines, for what does not depend on the program."""
    loss = jnp.mean((batch["x"] @ state - batch["y"]) ** 2)
    return state / 2, loss


HALVED = {"state": np.ones(3, np.float32), "batch": {"x": np.ones((8, 3), np.float32), "y": np.ones(8, np.float32)}}

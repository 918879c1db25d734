"""Checks of lesson 13's exercises: on a mesh of four devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jax.sharding import NamedSharding

from pmapdp.compare.collectives import collectives
from pmapdp.lessons.checks import close, mesh_of, refuse, require

N, K, D = 4, 3, 5


def global_gradient(answer):
    """The gradient of the global batch from micro-batches, with the bytes of one gradient."""
    random = np.random.default_rng()
    rows, sizes = 2 * K, []
    x, w = random.normal(size=(N * rows, D)).astype(np.float32), random.normal(size=D).astype(np.float32)

    def loss(w, x):
        sizes.append(x.shape)
        return jnp.square(jnp.tanh(x @ w) - 1).mean()

    specs = {"in_specs": (P(), P("data")), "out_specs": P("data"), "check_vma": False}
    mapped = jax.shard_map(lambda w, x: answer(loss, w, x, K)[None], mesh=mesh_of(N), **specs)
    found = np.asarray(jax.jit(mapped)(w, x))
    require(found.shape == (N, D), f"the gradient has the shape ({D},), yours has {found.shape[1:]}")
    wanted = np.asarray(jax.grad(lambda w: jnp.square(jnp.tanh(x @ w) - 1).mean())(w))
    too_long = {
        f"this is {K} times too long: divide by the number of micro-batches": K * wanted,
        f"this is {N} times too long: average over the devices, not add": N * wanted,
    }
    refuse(found, too_long, atol=1e-6)
    different = "the devices have different gradients: each knows only its own rows until they communicate"
    require(close(found, found[0], atol=1e-5), different)
    require(close(found, wanted, atol=1e-5), "this is not the gradient of the mean over all rows of all devices")
    most = max(shape[0] for shape in sizes)
    require(most == rows // K, f"right, but loss was called with {most} of the {rows} rows: {rows // K} at a time")
    program = jax.jit(mapped).lower(w, x).compile().as_text()
    numbers = sum(each.bytes // 4 for each in collectives(program))
    in_loop = bool(collectives(program.partition("ENTRY")[0]))  # a loop's body comes first
    often = f"right, but the devices exchange {numbers} numbers{' in every round of your loop' * in_loop}"
    require(numbers <= D + 2 and not in_loop, f"{often}: exchange {D} of them once, after the loop")


def cut_rows(answer):
    """Each row once, in K micro-batches of rows that stay where they are."""
    place = NamedSharding(mesh_of(N), P("data"))
    rows = 2 * N * K
    x = np.random.default_rng().permutation(rows * D).reshape(rows, D).astype(np.float32)
    compiled = jax.jit(lambda x: answer(x, K), in_shardings=place).lower(x).compile()
    found = compiled(jax.device_put(x, place))
    require(found.shape == (K, rows // K, D), f"[K, B / K, D] is {(K, rows // K, D)}, yours is {found.shape}")
    order = sorted(np.asarray(found).reshape(rows, D).tolist())
    require(order == sorted(x.tolist()), "the result must have the rows of x, each once and in one piece")
    kinds = [each.kind for each in collectives(compiled.as_text())]
    shard = found.sharding.shard_shape(found.shape)
    moved = f"right rows, but they move: a device has {shard} of {found.shape}, by {kinds or 'no collective'}"
    cure = "Look at which rows a device has, and let each micro-batch take some of them from every device"
    require(not kinds and shard[1] == rows // K // N, f"{moved}. {cure}")


def fixed_gradient(answer):
    """Sums over sums, whatever the padding of each micro-batch."""
    random = np.random.default_rng()
    x, y = random.normal(size=(K, 4, D)).astype(np.float32), random.normal(size=(K, 4)).astype(np.float32)
    w = random.normal(size=D).astype(np.float32)

    def wanted_for(weights):
        flat, targets, mask = x.reshape(-1, D), y.reshape(-1), weights.reshape(-1)
        return 2 * (mask * (flat @ w - targets)) @ flat / mask.sum()

    for last in ([1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]):
        weights = np.ones((K, 4), np.float32)
        weights[-1] = last
        found = np.asarray(answer(*map(jnp.asarray, (w, x, y, weights))))
        require(found.shape == (D,), f"the gradient has the shape ({D},), yours has {found.shape}")
        only_padding = "a micro-batch of padding alone has no examples: 0 / 0. Divide once, at the end"
        require(not np.isnan(found).any(), only_padding)
        right = wanted_for(weights)
        wanted = f"with {sum(last)} examples in the last micro-batch the gradient is {right.round(3)}"
        require(close(found, right), f"{wanted}, yours is {found.round(3)}")

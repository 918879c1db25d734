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
    x, w = (
        random.normal(size=(N * rows, D)).astype(np.float32),
        random.normal(size=D).astype(np.float32),
    )

    def loss(w, x):
        sizes.append(x.shape)
        return jnp.square(jnp.tanh(x @ w) - 1).mean()

    specs = {"in_specs": (P(), P("data")), "out_specs": P("data"), "check_vma": False}
    mapped = jax.shard_map(
        lambda w, x: answer(loss, w, x, K)[None], mesh=mesh_of(N), **specs
    )
    found = np.asarray(jax.jit(mapped)(w, x))
    require(
        found.shape == (N, D),
        f"the gradient has the shape ({D},), yours has {found.shape[1:]}",
    )
    wanted = np.asarray(jax.grad(lambda w: jnp.square(jnp.tanh(x @ w) - 1).mean())(w))
    too_long = {
        f"this is {K} times too long: divide by the number of micro-batches": K
        * wanted,
        f"this is {N} times too long: average over the devices, not add": N * wanted,
    }
    refuse(found, too_long, atol=1e-6)
    different = "the devices have different gradients: each knows only its own rows until they communicate"
    require(close(found, found[0], atol=1e-5), different)
    require(
        close(found, wanted, atol=1e-5),
        "this is not the gradient of the mean over all rows of all devices",
    )
    most = max(shape[0] for shape in sizes)
    require(
        most == rows // K,
        f"right, but loss was called with {most} of the {rows} rows: {rows // K} at a time",
    )
    program = jax.jit(mapped).lower(w, x).compile().as_text()
    numbers = sum(each.bytes // 4 for each in collectives(program))
    in_loop = bool(
        collectives(program.partition("ENTRY")[0])
    )  # a loop's body comes first
    often = f"right, but the devices exchange {numbers} numbers{' in every round of your loop' * in_loop}"
    require(
        numbers <= D + 2 and not in_loop,
        f"{often}: exchange {D} of them once, after the loop",
    )


def join_rows(answer):
    """The rows in the order of the batch, where they are."""
    rows, C = 2 * N * K, D
    wanted = (
        np.random.default_rng()
        .permutation(rows * C)
        .reshape(rows, C)
        .astype(np.float32)
    )
    logits = wanted.reshape(-1, K, C).swapaxes(0, 1)
    place = NamedSharding(mesh_of(N), P(None, "data"))
    compiled = jax.jit(answer, in_shardings=place).lower(logits).compile()
    found = compiled(jax.device_put(logits, place))
    require(found.shape == (rows, C), f"[B, C] is {(rows, C)}, yours is {found.shape}")
    one_by_one = "these are the micro-batches one after the other, and rows 0 and 1 of the batch are in two of them"
    require(not close(found, logits.reshape(rows, C)), one_by_one)
    require(
        close(found, wanted),
        "row k of the batch is in micro-batch k % K, and should come out in one piece",
    )
    kinds = [each.kind for each in collectives(compiled.as_text())]
    require(
        not kinds,
        f"right, but rows leave their device, by {kinds}: a swap and a reshape are enough",
    )


def fixed_gradient(answer):
    """Sums over sums, whatever the padding of each micro-batch."""
    random = np.random.default_rng()
    x, y = (
        random.normal(size=(K, 4, D)).astype(np.float32),
        random.normal(size=(K, 4)).astype(np.float32),
    )
    w = random.normal(size=D).astype(np.float32)

    def wanted_for(weights):
        flat, targets, mask = x.reshape(-1, D), y.reshape(-1), weights.reshape(-1)
        return 2 * (mask * (flat @ w - targets)) @ flat / mask.sum()

    for last in ([1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]):
        weights = np.ones((K, 4), np.float32)
        weights[-1] = last
        found = np.asarray(answer(*map(jnp.asarray, (w, x, y, weights))))
        require(
            found.shape == (D,),
            f"the gradient has the shape ({D},), yours has {found.shape}",
        )
        only_padding = "a micro-batch of padding alone has no examples: 0 / 0. Divide once, at the end"
        require(not np.isnan(found).any(), only_padding)
        right = wanted_for(weights)
        wanted = f"with {sum(last)} examples in the last micro-batch the gradient is {right.round(3)}"
        require(close(found, right), f"{wanted}, yours is {found.round(3)}")

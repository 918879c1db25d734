"""Checks of lesson 13's exercises: on a mesh of four devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jax.sharding import NamedSharding

from pmapdp.collectives import collectives
from pmapdp.lessons.checks import close, mesh_of, refuse, require

N, K, D = 4, 3, 5  # devices, micro-batches, features
H = 256  # activations of an example: many more than its features, so they show in the plan


def global_gradient(answer):
    """Accept the global batch's gradient from micro-batches, by a single all-reduce.

    The answer runs in a `shard_map` with the check on, as in lesson 10.
    """
    random = np.random.default_rng(0)
    rows = 2 * K  # of a device
    x = random.normal(size=(N * rows, D)).astype(np.float32)
    w = random.normal(size=D).astype(np.float32)
    scales = np.linspace(0.5, 1.5, H, dtype=np.float32)
    row_counts = []

    @jax.custom_batching.custom_vmap
    def count(x):
        row_counts.append(len(x))
        return x

    @count.def_vmap
    def count_all(calls, is_batched, x):
        row_counts.append(calls * x.shape[1])
        return x, is_batched[0]

    def loss(w, x):
        activations = jnp.tanh(jnp.outer(count(x) @ w, scales))  # [rows, H]
        return jnp.square(activations - 1).mean()

    mapped = jax.shard_map(
        lambda w, x: answer(loss, w, x, K)[None],
        mesh=mesh_of(N),
        in_specs=(P(), P("data")),
        out_specs=P("data"),
    )
    found = np.asarray(jax.jit(mapped)(w, x))
    most_rows = max(row_counts)
    require(
        found.shape == (N, D),
        f"the gradient has the shape ({D},), yours has {found.shape[1:]}",
    )
    wanted = np.asarray(jax.grad(loss)(w, x))
    mistakes = {
        f"this is {K} times too large: divide by the number of micro-batches": K
        * wanted,
        f"this is {N} times too large, on {N} devices. Either psum took the place of "
        "pmean, or this is lesson 10's trap: jax.grad has already added up over the "
        "devices, because w doesn't vary": N * wanted,
        f"this is {N * K} times too large: divide by the {K} micro-batches, and take "
        f"the mean over the {N} devices": N * K * wanted,
        f"this is {N * N} times too large, on {N} devices: jax.grad has already added "
        "up over the devices (lesson 10), and psum does so again": N * N * wanted,
    }
    refuse(found, mistakes, atol=1e-6)
    require(
        close(found, found[0], atol=1e-5),
        "the devices have different gradients: each knows only its own rows until "
        "they communicate",
    )
    require(
        close(found, wanted, atol=1e-5),
        "this is not the gradient of the mean over all rows of all devices",
    )
    require(
        most_rows == rows // K,
        f"right, but loss was called with {most_rows} of the {rows} rows at once. "
        "Under jax.vmap all calls run at once, too: take "
        f"{rows // K} rows at a time, in a scan",
    )
    jaxpr = str(jax.make_jaxpr(mapped)(w, x))
    require(
        "scan[" in jaxpr or "while[" in jaxpr,
        "right, but without a scan the compiler may run all forward passes first, and "
        "then it keeps the activations of all rows: loop in a scan",
    )
    compiled = jax.jit(mapped).lower(w, x).compile()
    program = compiled.as_text()
    loops = program.partition("ENTRY")[0]  # the body of a loop comes first
    require(
        not collectives(loops),
        "right, but the devices communicate in every round of your loop: in the loop "
        "add up this device's gradients (cast w first, as in lesson 10), and "
        "average after it",
    )
    planned = compiled.memory_analysis().temp_size_in_bytes
    of_all_rounds = rows * H * 4
    require(
        planned < of_all_rounds,
        f"right, but the plan has {planned:,} bytes of temporary arrays, and the "
        f"activations of all {rows} rows take {of_all_rounds:,}. If jax.grad is around "
        "the scan, the scan keeps the activations of all its rounds: call jax.grad in "
        "each round, and add up gradients",
    )
    calls = sum(collective.count for collective in collectives(program))
    require(calls == 1, f"right, but with {calls} collectives in place of one")
    received = sum(collective.bytes for collective in collectives(program))
    require(
        received < x.nbytes / N,
        f"right, but a device gets {received} bytes, the rows of all others, and does "
        "the work of all: average the gradients",
    )


def join_rows(answer):
    """Accept the rows in the order of the batch, if none leaves its device."""
    rows = 2 * N * K
    C = D
    wanted = np.random.default_rng(0).permutation(rows * C).reshape(rows, C)
    wanted = wanted.astype(np.float32)
    logits = wanted.reshape(-1, K, C).swapaxes(0, 1)
    split = NamedSharding(mesh_of(N), P(None, "data"))
    program = jax.jit(answer, in_shardings=split).lower(logits).compile()
    joined = program(jax.device_put(logits, split))
    require(
        joined.shape == (rows, C), f"[B, C] is {(rows, C)}, yours is {joined.shape}"
    )
    require(
        not close(joined, logits.reshape(rows, C)),
        "these are the micro-batches one after the other, and rows 0 and 1 of the "
        "batch are in two of them",
    )
    require(
        close(joined, wanted),
        "row k of the batch is in micro-batch k % K, and should come out in one piece",
    )
    kinds = [collective.kind for collective in collectives(program.as_text())]
    require(
        not kinds,
        f"right, but rows leave their device, by {kinds}: "
        "a swap and a reshape are enough",
    )


def fixed_gradient(answer):
    """Accept sums over sums, whatever the padding of each micro-batch."""
    random = np.random.default_rng(0)
    x = random.normal(size=(K, 4, D)).astype(np.float32)
    y = random.normal(size=(K, 4)).astype(np.float32)
    w = random.normal(size=D).astype(np.float32)
    for last in ([1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]):
        weights = np.ones((K, 4), np.float32)
        weights[-1] = last
        gradient = np.asarray(answer(*map(jnp.asarray, (w, x, y, weights))))
        require(
            gradient.shape == (D,),
            f"the gradient has the shape ({D},), yours has {gradient.shape}",
        )
        require(
            not np.isnan(gradient).any(),
            "a micro-batch of padding alone has no examples: 0 / 0. "
            "Divide once, at the end",
        )
        errors = weights * (x @ w - y)
        total = 2 * np.einsum("kr,krd->d", errors, x)
        unweighted = 2 * np.einsum("kr,krd->d", x @ w - y, x)
        wanted = total / weights.sum()
        mistakes = {
            "padding was counted in the divisor: divide by the sum of the weights, "
            "not by the number of rows": total / weights.size,
            "this is the sum over the examples: divide it by the sum of the "
            "weights": total,
            "padding has added its gradient: multiply by the weights": unweighted
            / weights.sum(),
            "the micro-batches' gradients were averaged once more: their sum, divided "
            "by the sum of all weights, is the mean already": wanted / K,
        }
        in_each = np.einsum("kr,krd->kd", 2 * errors, x)  # [K, D]
        counts = np.maximum(weights.sum(1), 1)[:, None]
        mistakes["this is a mean of means: divide once, after the last micro-batch"] = (
            in_each / counts
        ).mean(0)
        refuse(gradient, mistakes)
        require(
            close(gradient, wanted),
            f"with {sum(last)} examples in the last micro-batch the gradient is "
            f"{wanted.round(3)}, yours is {gradient.round(3)}",
        )

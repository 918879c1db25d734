"""Checks of lesson 04."""

import jax
import numpy as np

from pmapdp.lessons.checks import refuse, require


def dot_product(answer):
    """B pairs on N devices."""
    N = len(jax.devices())
    random = np.random.default_rng()
    for b in (1, 3):
        xs, ys = random.normal(size=(2, N * b, 10)).astype(np.float32)
        result = answer(xs, ys)
        shape = f"for {N * b} pairs the shape should be ({N * b},), not {result.shape}: reshape the result at the end"
        require(result.shape == (N * b,), shape)
        wrong = np.abs(np.asarray(result) - np.einsum("bd,bd->b", xs, ys)).max()
        require(
            wrong < 1e-4,
            f"a number is off by {wrong:.3g}: result i should be xs[i] . ys[i], in that order",
        )
        used = len(result.sharding.device_set) if isinstance(result, jax.Array) else 0
        require(
            used == N,
            f"only {used} of {N} devices worked: map over the device axis with jax.pmap",
        )


def block_product(answer):
    """Eight blocks, one on each device, in the right order."""
    random, (m, p, K) = np.random.default_rng(), (2, 3, 5)
    a = random.normal(size=(2 * m, K)).astype(np.float32)
    b = random.normal(size=(K, 4 * p)).astype(np.float32)
    result = answer(a, b)
    shape = f"for a {a.shape} and b {b.shape} the result should have the shape {(8, m, p)}, yours has {result.shape}"
    require(result.shape == (8, m, p), shape)
    right = np.stack(
        [
            a[i * m : (i + 1) * m] @ b[:, j * p : (j + 1) * p]
            for i in range(2)
            for j in range(4)
        ]
    )
    found = np.asarray(result)
    swapped = right.reshape(2, 4, m, p).swapaxes(0, 1).reshape(8, m, p)
    order = "all blocks are there in another order: device 4 i + j multiplies row block i with column block j"
    refuse(found, {order: swapped})
    wrong = [d for d in range(8) if not np.allclose(found[d], right[d], atol=1e-4)]
    require(
        not wrong,
        f"the blocks {wrong} are not row block i of a times column block j of b, for 4 i + j",
    )
    used = len(result.sharding.device_set) if isinstance(result, jax.Array) else 0
    require(
        used == 8,
        f"only {used} of 8 devices worked: map over the stacked blocks with jax.pmap",
    )


def fixed_accuracy(answer):
    """The mean over all devices, which have different accuracies."""
    N = len(jax.devices())
    random = np.random.default_rng()
    b, D, C = 5, 4, 3
    w, x = (
        random.normal(size=(D, C)).astype(np.float32),
        random.normal(size=(N, b, D)).astype(np.float32),
    )
    guesses = (x @ w).argmax(-1)
    labels = guesses.copy()
    for d in range(N):
        labels[d, : d % b + 1] = (
            labels[d, : d % b + 1] + 1
        ) % C  # device d has d % b + 1 wrong answers
    right = (guesses == labels).mean()
    found = np.asarray(answer(w, x, labels))
    require(
        found.shape == (),
        f"the accuracy is one number, yours has the shape {found.shape}",
    )
    alone = "this is the accuracy of device 0 alone: out_axes=None promises that all devices return the same"
    refuse(found, {alone: (guesses == labels)[0].mean()})
    require(
        np.isclose(found, right),
        f"the accuracy over all examples is {right:.4f}, yours is {found:.4f}",
    )

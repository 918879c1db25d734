"""Checks of lesson 06's exercises: the answers run on two, four or eight devices."""

import jax
import numpy as np

from pmapdp.lessons.checks import on_devices, refuse, require

N = 4


def broadcast(answer):
    """Row 0 everywhere, even if it or others hold NaN."""
    x = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
    result = on_devices(answer, x, shape=(3,))
    summed = (
        "this is the sum of all devices: the others must add 0, "
        "so set x to 0 if lax.axis_index('data') is not 0"
    )
    unmoved = "every device still has its own x: a collective must move device 0's"
    averaged = f"this is device 0's array divided by {N}: add up with psum"
    refuse(result, {summed: x.sum(0), unmoved: x, averaged: x[0] / N})
    require(
        np.allclose(result, x[0]),
        f"all devices should hold {x[0].round(2)}, yours hold {result.astype(float).round(2).tolist()}",
    )
    x[1] = np.nan
    require(
        np.allclose(on_devices(answer, x, shape=(3,)), x[0]),
        "a NaN on device 1 spreads to all, because 0 times NaN is NaN: "
        "choose with jnp.where",
    )
    x[0, 1:] = np.nan, np.inf
    result = on_devices(answer, x, shape=(3,))
    require(
        np.array_equal(result, np.tile(x[0], (N, 1)), equal_nan=True),
        f"device 0 holds {x[0].round(2)}, and its NaN must arrive, too; yours hold "
        f"{result.astype(float).round(2).tolist()}",
    )


def butterfly_sum(answer):
    """The sum, with log2 N exchanges and nothing else.

    Any partners are correct if log2 N rounds with them give every device the sum, such
    as those 4, 2 and 1 devices apart.
    """
    rng = np.random.default_rng(0)
    for size in (2, 4, 8):
        x = rng.integers(-9, 10, (size, 5)).astype(np.float32)
        rounds = size.bit_length() - 1
        devices = jax.devices()[:size]
        mapped = jax.pmap(answer, axis_name="data", devices=devices)
        program = str(jax.make_jaxpr(mapped)(x))
        # A lax.psum_scatter is called reduce_scatter in the jaxpr.
        program = program.replace("reduce_scatter", "psum_scatter")
        for collective in ("psum_scatter", "psum", "all_gather", "all_to_all", "pmax"):
            require(
                f" {collective}" not in program,
                f"use lax.ppermute alone, and no lax.{collective}",
            )
        result = on_devices(answer, x, N=size, shape=(5,))
        total = x.sum(0)
        wrong = [d for d in range(size) if not np.array_equal(result[d], total)]
        used = program.count("ppermute[")
        require(
            not wrong or used <= rounds,
            f"on {size} devices, yours exchanges {used} times and adds some vectors "
            f"twice: {rounds} rounds are enough, with partners 1, 2, 4, ... apart",
        )
        require(
            not wrong,
            f"on {size} devices, those with the numbers {wrong} do not hold the sum "
            "of all",
        )
        require(
            used == rounds,
            f"{size} devices need {rounds} rounds of ppermute, yours has {used}: "
            "each round must double the number of devices whose sum everybody holds",
        )


def fixed_softmax(answer):
    """The softmax over all devices' logits, also for large and very different ones."""
    logits = 3 * np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
    # With very different logits, their average is far below the largest one.
    different = logits + 100 * np.arange(N, dtype=np.float32)[:, None]
    for x in (logits, logits + 200, different):
        result = on_devices(answer, x, shape=(3,))
        of_each = np.exp(x - x.max(1, keepdims=True))
        not_shared = (
            "each device still subtracts its own largest logit: "
            "all must subtract the same number, lax.pmax(...)"
        )
        refuse(result, {not_shared: of_each / of_each.sum()})
        require(
            np.isfinite(result).all(),
            f"exp overflows for logits up to {x.max():.0f}, or every exp is 0: "
            "subtract the largest logit of all devices, lax.pmax(...)",
        )
        by_themselves = (
            "each device's probabilities add up to 1 by themselves: "
            "the sum must go over all devices, lax.psum(..., 'data')"
        )
        refuse(result.sum(1), {by_themselves: np.ones(N)}, atol=1e-3)
        exponentials = np.exp(x.astype(np.float64) - x.max())
        require(
            np.allclose(
                result, exponentials / exponentials.sum(), rtol=1e-3, atol=1e-6
            ),
            "the probabilities are not the softmax over all devices' logits; "
            f"yours add up to {result.sum():.4f}",
        )

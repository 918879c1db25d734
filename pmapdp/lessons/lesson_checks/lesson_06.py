"""Checks of lesson 06's exercises: the answers run on four or eight devices."""

import jax
import numpy as np

from pmapdp.lessons.checks import on_devices, refuse, require

N = 4


def broadcast(answer):
    """Row 0 everywhere, even if others hold NaN."""
    x = np.random.default_rng().normal(size=(N, 3)).astype(np.float32)
    found = on_devices(answer, x, shape=(3,))
    others = "the others must add 0, so set x to 0 if lax.axis_index('data') is not 0"
    mistakes = {
        f"this is the sum of all devices: {others}": x.sum(0),
        "every device still has its own x: a collective must move device 0's": x,
    }
    refuse(found, mistakes)
    require(
        np.allclose(found, x[0]),
        f"all devices should hold {x[0]}, yours hold {found.tolist()}",
    )
    x[1] = np.nan
    spreads = "a NaN on device 1 spreads to all, because 0 times NaN is NaN: choose with jnp.where"
    require(np.allclose(on_devices(answer, x, shape=(3,)), x[0]), spreads)


def butterfly_sum(answer):
    """The sum, with log2 N exchanges and nothing else."""
    random = np.random.default_rng()
    for size in (2, 4, 8):
        x = random.integers(-9, 10, (size, 5)).astype(np.float32)
        rounds = size.bit_length() - 1
        program = str(
            jax.make_jaxpr(
                jax.pmap(answer, axis_name="data", devices=jax.devices()[:size])
            )(x)
        )
        for other in ("psum", "all_gather", "all_to_all", "pmax"):
            require(
                f" {other}" not in program,
                f"use lax.ppermute alone, and no lax.{other}",
            )
        found = on_devices(answer, x, N=size, shape=(5,))
        wrong = [d for d in range(size) if not np.array_equal(found[d], x.sum(0))]
        require(
            not wrong,
            f"on {size} devices, those with the numbers {wrong} do not hold the sum of all",
        )
        used = program.count("ppermute[")
        double = (
            "each round must double the number of devices whose sum everybody holds"
        )
        require(
            used == rounds,
            f"{size} devices need {rounds} rounds of ppermute, yours has {used}: {double}",
        )


def fixed_softmax(answer):
    """The softmax over all devices' logits, also for large ones."""
    logits = np.random.default_rng().normal(size=(N, 3)).astype(np.float32) * 3
    for shift in (0, 200):
        x = logits + np.float32(shift)
        found = on_devices(answer, x, shape=(3,))
        right = np.exp(logits.astype(np.float64))
        local = np.exp(logits - logits.max(1, keepdims=True))
        own = "each device still subtracts its own largest logit: all must subtract the same number, lax.pmax(...)"
        refuse(found, {own: local / local.sum()})
        overflow = "exp overflows for logits around 200: subtract the largest logit of all devices"
        require(np.isfinite(found).all(), overflow)
        one = "each device's probabilities add up to 1 by themselves: the sum must go over all devices, lax.psum(..., 'data')"
        refuse(found.sum(1), {one: 1}, atol=1e-3)
        require(
            np.allclose(found, right / right.sum(), rtol=1e-3, atol=1e-6),
            "the probabilities are not the softmax",
        )

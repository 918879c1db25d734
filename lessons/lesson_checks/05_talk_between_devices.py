"""Checks of lesson 05's exercises: the answers run on four devices."""

import jax
import numpy as np
from checks import require

N = 4


def on_devices(answer, x):
    """The answer on every device, `[N, ...]`."""
    return np.asarray(jax.pmap(answer, axis_name="data", devices=jax.devices()[:N])(x))


def numbers():
    """Different entries on each device, `[N, 3]`, with the largest not on the first or last."""
    x = np.random.default_rng().normal(size=(N, 3)).astype(np.float32)
    x[1, 1] = 9
    return x


def global_max(answer):
    """One number, the same everywhere."""
    x = numbers()
    found = on_devices(answer, x)
    require(
        found.shape != (N, 3), "one number a device is wanted: take the largest entry of x first, then over the axis"
    )
    require(found.shape == (N,), f"every device must return one number of shape [], yours has {found.shape[1:]}")
    require(
        not np.allclose(found, x.max(1)),
        "this is each device's own largest entry: a collective must compare them, lax.pmax(..., 'data')",
    )
    require(np.allclose(found, x.max()), f"the largest entry anywhere is {x.max()}, yours is {found}")


def broadcast(answer):
    """Row 0 everywhere."""
    x = numbers()
    found = on_devices(answer, x)
    require(
        not np.allclose(found, x.sum(0)),
        "this is the sum of all devices: the others must add 0, so set x to 0 where lax.axis_index('data') is not 0",
    )
    require(not np.array_equal(found, x), "every device still has its own x: a collective must move device 0's")
    require(
        found.shape == x.shape and np.allclose(found, x[0]),
        f"all devices should hold {x[0]}, yours hold {found.tolist()}",
    )


def normalised(answer):
    """The mean over everything is 0 afterwards, and differences stay."""
    x = numbers() + np.arange(N, dtype=np.float32)[:, None]
    found = on_devices(answer, x)
    require(found.shape == x.shape, f"each device returns its x minus one number, shape [3], not {found.shape[1:]}")
    require(
        not np.allclose(found, x - x.mean(1, keepdims=True), atol=1e-4),
        "each device took its own mean: use lax.pmean(..., 'data') for the mean over all",
    )
    require(
        not np.allclose(found, x - x.mean(0), atol=1e-4),
        "this is the mean of each entry over the devices: take the mean over the entries too",
    )
    require(
        not np.allclose(found, x - N * x.mean(), atol=1e-4), "this subtracts the sum of the devices' means: divide by N"
    )
    require(np.allclose(found, x - x.mean(), atol=1e-4), f"the mean over all entries is {x.mean():.4f}")

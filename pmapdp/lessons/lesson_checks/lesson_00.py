"""Checks of lesson 00's exercises."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import require


def add_on(answer):
    """The sum, on the device that was asked for."""
    random = np.random.default_rng()
    first, second, target = (jax.devices("cpu")[i] for i in random.permutation(8)[:3])
    a, b = random.standard_normal((2, 5)).astype(np.float32)
    try:
        total = answer(target, jax.device_put(a, first), jax.device_put(b, second))
    except ValueError as error:
        require(
            "incompatible devices" not in str(error),
            "a and b are on two devices: move both before you add them",
        )
        raise
    require(
        isinstance(total, jax.Array),
        "the sum must be a JAX array on a device, not one of the host",
    )
    require(
        total.devices() == {target},
        f"the sum is on {total.devices()}, not on the device that was asked for",
    )
    require(np.allclose(total, a + b, atol=1e-6), "the result is not a + b")


def sum_in_pairs(answer):
    """Values and devices of every round, for 4 and for 8 devices."""
    random = np.random.default_rng()
    for N in (4, 8):
        devices = jax.devices("cpu")[:N]
        values = random.integers(-9, 10, (N, 3)).astype(np.float32)
        arrays = [
            jax.device_put(value, device)
            for value, device in zip(values, devices, strict=True)
        ]
        try:
            rounds = answer(arrays)
        except ValueError as error:
            apart = "the two arrays of a pair are on different devices: move one to the other's device before you add"
            require("incompatible devices" not in str(error), apart)
            raise
        require(
            isinstance(rounds, list), "return a list of rounds, each a list of arrays"
        )
        lengths = [len(arrays) for arrays in rounds]
        expected = [N // 2**r for r in range(N.bit_length())]
        require(
            lengths == expected,
            f"{N} arrays need rounds of {expected} arrays, yours have {lengths}",
        )
        for r, sums in enumerate(rounds):
            for i, found in enumerate(sums):
                d = i * 2**r
                require(
                    isinstance(found, jax.Array),
                    f"round {r} holds something that is no JAX array",
                )
                name, right = (
                    f"sum {i} of round {r} should",
                    values[d : d + 2**r].sum(0),
                )
                place = f"{name} be on device {d}, like its first array, and is on {found.devices()}"
                require(found.devices() == {devices[d]}, place)
                wanted = f"{name} add up the devices {d} to {d + 2**r - 1}, {right}, and is {found}"
                require(np.array_equal(found, right), wanted)


def fixed_standardize(answer):
    """Right numbers on the right device, from arrays of the host, uncommitted and committed ones."""
    random = np.random.default_rng()
    home, target = (jax.devices("cpu")[i] for i in random.permutation(8)[:2])
    values = random.normal(3, 2, size=20).astype(np.float32)
    for x in (jnp.asarray(values), jax.device_put(values, home)):
        found = answer(x, target)
        require(isinstance(found, jax.Array), "the result must be a JAX array")
        place = f"the result is on {found.devices()}, not on the device that was asked for: device_put returns a copy"
        require(found.devices() == {target}, place)
        right = np.allclose(found, (values - values.mean()) / values.std(), atol=1e-4)
        require(right, "the result should have mean 0 and standard deviation 1")

"""Checks of lesson 00's exercises."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import call_and_watch, require


def is_one_of(array, originals):
    """Return True if an array has the values of one of the originals."""
    return any(np.array_equal(array, original) for original in originals)


def add_on(answer):
    """The sum is right, it is on the device, and it was computed there."""
    a, b = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    devices = jax.devices("cpu")
    # The last two have one of the arrays on the device already.
    for first, second, target in ((0, 1, 2), (5, 3, 5), (2, 6, 6)):
        device = devices[target]
        on_first = jax.device_put(a, devices[first])
        on_second = jax.device_put(b, devices[second])
        try:
            total, moved = call_and_watch(answer, device, on_first, on_second)
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
            total.devices() == {device},
            f"the sum is on {total.devices()}, not on the device that was asked for",
        )
        require(np.allclose(total, a + b, atol=1e-6), "the result is not a + b")
        require(
            all(is_one_of(array, (a, b)) for array in moved),
            "you moved something other than a and b: the sum was computed elsewhere and "
            "then moved. Move a and b first, and add them there",
        )


def sum_in_pairs(answer):
    """Values and devices of every round, for 4 and for 8 devices."""
    rng = np.random.default_rng(0)
    for N in (4, 8):
        devices = jax.devices("cpu")[:N]
        values = rng.integers(-9, 10, (N, 3)).astype(np.float32)
        arrays = [jax.device_put(values[d], devices[d]) for d in range(N)]
        try:
            rounds, placed = call_and_watch(answer, arrays)
        except ValueError as error:
            require(
                "incompatible devices" not in str(error),
                "the two arrays of a pair are on different devices: "
                "move one to the other's device before you add",
            )
            raise
        require(
            isinstance(rounds, list), "return a list of rounds, each a list of arrays"
        )
        lengths = [len(sums) for sums in rounds]
        expected_lengths = [N // 2**r for r in range(N.bit_length())]
        require(
            lengths == expected_lengths,
            f"{N} arrays need rounds of {expected_lengths} arrays, yours have {lengths}",
        )
        for r, sums in enumerate(rounds):
            for i, total in enumerate(sums):
                check_sum(r, i, total, values, devices)
                if r > 0 and i % 2 == 0:
                    check_was_not_moved(r, i, total, placed)


def check_sum(r, i, total, values, devices):
    """Check sum i of round r. It adds up 2^r arrays and is on the first one's device."""
    first = i * 2**r
    end = first + 2**r
    require(
        isinstance(total, jax.Array),
        f"round {r} holds something that is no JAX array",
    )
    require(
        total.devices() == {devices[first]},
        f"sum {i} of round {r} should be on device {first}, like its first array, "
        f"and is on {total.devices()}",
    )
    expected = values[first:end].sum(0)
    require(
        np.array_equal(total, expected),
        f"sum {i} of round {r} should add up the devices {first} to {end - 1}, "
        f"{expected}, and is {total}",
    )


def check_was_not_moved(r, i, total, placed):
    """Check sum i of round r, which isn't sent on: nobody has placed it there."""
    for array in placed:
        was_there = isinstance(array, jax.Array) and array.devices() == total.devices()
        require(
            was_there or not np.array_equal(array, total),
            f"sum {i} of round {r} was computed elsewhere, and then moved: "
            "move the right array of the pair first, and add where the left one is",
        )


def fixed_standardize(answer):
    """Right numbers, computed on the right device, from free and committed arrays."""
    values = np.random.default_rng(0).normal(3, 2, size=20).astype(np.float32)
    devices = jax.devices("cpu")
    expected = (values - values.mean()) / values.std()
    uncommitted = jnp.asarray(values)
    committed = jax.device_put(values, devices[3])
    for x, target in ((uncommitted, 6), (committed, 1)):
        device = devices[target]
        result, moved = call_and_watch(answer, x, device)
        require(isinstance(result, jax.Array), "the result must be a JAX array")
        require(
            result.devices() == {device},
            f"the result is on {result.devices()}, not on the device that was asked "
            "for: device_put returns a copy",
        )
        require(
            np.allclose(result, expected, atol=1e-4),
            "the result should have mean 0 and standard deviation 1",
        )
        require(
            all(is_one_of(array, (values,)) for array in moved),
            "you moved something other than x, so it was computed elsewhere: "
            "move x first, and compute everything from the copy",
        )

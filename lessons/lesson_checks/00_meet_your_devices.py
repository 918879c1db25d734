"""Checks of lesson 00's exercises."""

import jax
import numpy as np
from checks import require


def place_rows(answer):
    """Rows on the right devices, with the right values and shapes."""
    random = np.random.default_rng()
    N = int(random.integers(3, 6))
    places = [jax.devices("cpu")[i] for i in random.permutation(8)[:N]]
    x = random.standard_normal((N, 4)).astype(np.float32)
    rows = answer(x, places)
    require(isinstance(rows, list | tuple), "the result is one list with an array for each device")
    require(len(rows) == N, f"{N} rows on {N} devices make a list of {N} arrays, not of {len(rows)}")
    for row in rows:
        require(
            isinstance(row, jax.Array), "the rows are still NumPy arrays on the host: move them with jax.device_put"
        )
        require(row.shape == (4,), f"a row of x [N, 4] has shape (4,), not {row.shape}")
    for i, row in enumerate(rows):
        require(
            row.devices() == {places[i]},
            f"row {i} lies on {row.devices()}, not on places[{i}]: device_put's second argument",
        )
        require(bool((np.asarray(row) == x[i]).all()), f"the array on places[{i}] does not hold row {i} of x")


def add_on(answer):
    """The sum, on the device that was asked for."""
    random = np.random.default_rng()
    first, second, target = (jax.devices("cpu")[i] for i in random.permutation(8)[:3])
    a, b = random.standard_normal((2, 5)).astype(np.float32)
    try:
        total = answer(target, jax.device_put(a, first), jax.device_put(b, second))
    except ValueError as error:
        require("incompatible devices" not in str(error), "a and b lie on two devices: move both before you add them")
        raise
    require(isinstance(total, jax.Array), "the sum must be a JAX array on a device, not one of the host")
    require(total.devices() == {target}, f"the sum lies on {total.devices()}, not on the device that was asked for")
    require(np.allclose(total, a + b, atol=1e-6), "the result is not a + b")


def environment(answer):
    """Both variables, as strings, with enough threads on small and on large machines."""
    random = np.random.default_rng()
    for count, cores in ((8, 2), (4, 64), (int(random.integers(2, 17)), int(random.integers(1, 65)))):
        variables = answer(count, cores)
        require(isinstance(variables, dict), "the result is a dictionary from names to values")
        for name in ("JAX_NUM_CPU_DEVICES", "NPROC"):
            require(name in variables, f"the variable {name} is missing")
            require(
                isinstance(variables[name], str), f"{name} must be a string, as all variables of the environment are"
            )
        require(
            int(variables["JAX_NUM_CPU_DEVICES"]) == count,
            f"JAX_NUM_CPU_DEVICES is the number of devices, here {count}, not {variables['JAX_NUM_CPU_DEVICES']}",
        )
        threads = int(variables["NPROC"])
        require(
            threads >= 2 * count,
            f"{threads} threads for {count} devices may deadlock: two for each device are safe, whatever the cores",
        )
        require(threads >= cores, f"{threads} threads leave some of {cores} cores idle: take the larger number")
        require(threads == max(cores, 2 * count), f"NPROC={threads} is more than {count} devices on {cores} cores need")

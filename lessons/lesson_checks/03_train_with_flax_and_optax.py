"""Checks of lesson 03's exercises."""

import jax
import numpy as np
import optax
from checks import require


def momentum_step(answer):
    """Three steps, against optax."""
    random = np.random.default_rng()
    gradients = random.normal(size=(3, 4)).astype(np.float32)
    start = random.normal(size=4).astype(np.float32)
    optimizer = optax.sgd(0.1, momentum=0.9)
    right, state = start, optimizer.init(start)
    found, velocity = start.copy(), np.zeros(4, np.float32)
    for number, gradient in enumerate(gradients):
        updates, state = optimizer.update(gradient, state)
        right = np.asarray(right + updates)
        before = found.copy(), velocity.copy()
        result = answer(found, velocity, gradient, 0.1)
        require(isinstance(result, tuple) and len(result) == 2, "return two arrays, (parameter, velocity)")
        require(
            np.array_equal(found, before[0]) and np.array_equal(velocity, before[1]),
            "an argument was changed in place: `velocity = 0.9 * velocity + ...` makes a new array, `*=` does not",
        )
        found, velocity = map(np.asarray, result)
        hint = "go against the velocity, times the rate" if number == 0 else "use the new velocity, and keep all of it"
        require(np.allclose(found, right, atol=1e-5), f"step {number + 1} differs from optax.sgd(momentum=0.9): {hint}")


def warmup(answer):
    """Values at the start, in the middle, at the end and after it; also traced."""
    random = np.random.default_rng()
    peak, steps = float(random.uniform(0.1, 1)), int(random.integers(5, 20)) * 2
    schedule = answer(peak, steps)
    require(callable(schedule), "return a function of the number of updates, not a number")
    require(np.isclose(schedule(0), 0), f"before the first update the rate is 0, yours is {schedule(0)}")
    require(np.isclose(schedule(steps // 2), peak / 2), f"half way it is half the peak, {peak / 2}")
    require(np.isclose(schedule(3 * steps), peak), f"after the warm-up the rate stays at {peak}")
    try:
        traced = jax.jit(schedule)(steps)
    except jax.errors.TracerBoolConversionError:
        require(False, "under jit the number of updates has no value yet: use jnp.minimum instead of `if` or `min`")
    require(np.isclose(traced, peak), "under jit the values differ")


def decayed(answer):
    """Weights shrink, biases stay, the nesting too."""
    random = np.random.default_rng()
    params = {
        "a": {"kernel": random.normal(size=(3, 2)), "bias": random.normal(size=2)},
        "b": [random.normal(size=(2, 2, 2))],
    }
    found = answer(params, 0.5)
    require(jax.tree.structure(found) == jax.tree.structure(params), "the result must be nested like `params`")
    require(not np.allclose(found["a"]["bias"], 0.5 * params["a"]["bias"]), "the bias was changed too: it has one axis")
    require(np.allclose(found["a"]["bias"], params["a"]["bias"]), "the bias must stay as it is")
    require(
        np.allclose(found["a"]["kernel"], 0.5 * params["a"]["kernel"])
        and np.allclose(found["b"][0], 0.5 * params["b"][0]),
        "every array with more than one axis is multiplied, also one with three",
    )

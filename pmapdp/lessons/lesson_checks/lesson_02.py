"""Checks of lesson 02's exercises."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import close, require


def relu_power(answer):
    """Values and derivatives, also under jit."""
    x = jnp.asarray([-2.0, -0.5, 0.5, 3.0])
    try:
        found = np.asarray(jax.jit(answer, static_argnums=1)(x, 2))
    except jax.errors.TracerBoolConversionError:
        require(
            False,
            "`if` cannot look at values under jit: compute both and choose with jnp.where",
        )
    require(
        np.allclose(found[:2], 0),
        f"if x is negative the result is 0, yours is {found[:2]}: set it to 0 first",
    )
    require(
        np.allclose(found[2:], [0.25, 9]),
        f"for x = 0.5 and 3 and n = 2 the result is 0.25 and 9, not {found[2:]}",
    )
    derivative = np.asarray(jax.grad(lambda x: answer(x, 1.5).sum())(x))
    safe = "the branch that is not chosen must be safe too, so choose x or 0 first, and take the power of that"
    require(
        not np.isnan(derivative).any(),
        f"the derivative is nan if x is negative: {safe}",
    )
    require(
        np.allclose(derivative, [0, 0, 1.5 * 0.5**0.5, 1.5 * 3**0.5], rtol=1e-4),
        "the derivatives are wrong",
    )


def clipped_mean_gradient(answer):
    """Against a loop over the examples, with long and with short gradients."""
    random = np.random.default_rng()
    parameters = {
        "w": random.normal(size=(4, 3)).astype(np.float32),
        "b": random.normal(size=3).astype(np.float32),
    }
    x, labels = random.normal(size=(6, 4)).astype(np.float32), random.integers(0, 3, 6)

    def loss_one(parameters, image, label):
        return -jax.nn.log_softmax(image @ parameters["w"] + parameters["b"])[label]

    each = [
        jax.tree.map(np.asarray, jax.grad(loss_one)(parameters, *pair))
        for pair in zip(x, labels, strict=True)
    ]
    lengths = np.array(
        [np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(g))) for g in each]
    )

    def mean(factors):
        return jax.tree.map(
            lambda *leaves: np.tensordot(factors, np.stack(leaves), 1) / len(leaves),
            *each,
        )

    plain = mean(np.ones(6))
    length = np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(plain)))
    # The mean is too long; half of the gradients are; none is.
    for limit in (float(0.7 * length), float(np.sort(lengths)[2:4].mean()), 100.0):
        found = answer(loss_one, parameters, x, labels, limit)
        nesting = jax.tree.structure(parameters)
        require(
            jax.tree.structure(found) == nesting,
            f"the result must be nested like the parameters, {nesting}",
        )
        shapes, wanted = (
            jax.tree.map(np.shape, found),
            jax.tree.map(np.shape, parameters),
        )
        require(
            shapes == wanted,
            f"the shapes must be {wanted}, yours are {shapes}: take the mean over the examples",
        )
        right = mean(1 / np.maximum(lengths / limit, 1))
        clipped_mean = jax.tree.map(
            lambda leaf, limit=limit: leaf / max(length / limit, 1), plain
        )
        mistakes = {
            "no gradient was clipped: compare each length with the limit": plain,
            "the mean was clipped: clip the gradient of each example first, then take the mean": clipped_mean,
            "short gradients were stretched to the limit: only longer ones change": mean(
                limit / lengths
            ),
        }
        for message, wrong in mistakes.items():
            require(
                close(wrong, right, atol=1e-5) or not close(found, wrong, atol=1e-5),
                message,
            )
        squares = "a gradient's length is the root of the sum of all squares, over all arrays of the pytree together"
        first = f"the first example's is {lengths[0]:.4f}, and the limit is {limit:.4f}"
        require(close(found, right, atol=1e-5), f"{squares}; {first}")


def fixed_shift(answer):
    """All 25 shifts occur, each a pure function of the key."""
    image = jnp.zeros((9, 9)).at[4, 4].set(1)
    keys = jax.random.split(
        jax.random.key(int(np.random.default_rng().integers(1000))), 600
    )
    moved = jax.vmap(answer, in_axes=(0, None))
    found = np.asarray(moved(keys, image))
    require(
        found.shape == (600, 9, 9),
        f"an image [9, 9] gives an image [9, 9], yours has {found.shape[1:]}",
    )
    require(
        bool((found.sum((1, 2)) == 1).all()),
        "rolling must keep all pixels: use jnp.roll",
    )
    require(
        np.array_equal(found, moved(keys, image)),
        "the same key must give the same shift",
    )
    places = {divmod(int(place), 9) for place in found.reshape(600, 81).argmax(1)}
    shifts = {(row - 4, column - 4) for row, column in places}
    require(
        max(abs(number) for shift in shifts for number in shift) <= 2,
        "a shift is longer than 2 pixels",
    )
    different = f"600 keys gave {len(shifts)} different shifts"
    require(
        len(shifts) > 5, f"{different} instead of 25: both draws use one key; split it"
    )
    require(len(shifts) == 25, f"{different}, and 25 are possible: randint(-2, 3)")

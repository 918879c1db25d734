"""Solutions of lesson 02's exercises."""

import jax
import jax.numpy as jnp


def relu_power(x, n):
    """x**n where x > 0, else 0; x is an array."""
    # The choice comes before the power: grad goes through both branches, and 0 times the nan of a negative number's
    # power is nan.
    return jnp.where(x > 0, x, 0) ** n


def clipped_mean_gradient(loss_one, parameters, x, labels, limit):
    """Mean of the examples' gradients, each clipped to the length `limit`; nested like `parameters`."""

    # Written for one example: the length is one number, and vmap keeps the examples apart. Clipping is not linear, so
    # the mean must come last.
    def clipped_gradient(image, label):
        gradient = jax.grad(loss_one)(parameters, image, label)
        length = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)))
        return jax.tree.map(lambda leaf: leaf / jnp.maximum(length / limit, 1), gradient)

    return jax.tree.map(lambda leaf: leaf.mean(0), jax.vmap(clipped_gradient)(x, labels))


def fixed_shift(key, image):
    """The image `[H, W]`, rolled down and to the right, by two independent numbers from -2 to 2."""
    # The same key gives the same number twice, so every shift was along the diagonal. One key for one draw.
    for_down, for_right = jax.random.split(key)
    down, right = (jax.random.randint(each, (), -2, 3) for each in (for_down, for_right))
    return jnp.roll(image, (down, right), axis=(0, 1))

"""Solutions of lesson 02's exercises."""

import jax
import jax.numpy as jnp


def update_model(loss_sums, model, batch, rate):
    """The new model, and the sums of this batch."""
    # The loss is a sum over the examples, so is its gradient, and the count makes a mean of it. A dictionary
    # comprehension would do for the program's model. `jax.tree.map` also takes lists, tuples, and lesson 03's network.
    gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
    return jax.tree.map(lambda w, g: w - rate * g / sums["count"], model, gradients), sums


def clipped_mean_gradient(loss_one, parameters, x, labels, limit):
    """Mean of the examples' gradients, each clipped to the length `limit`, as a pytree."""

    # This function is for one example, so the length is one number, and vmap does the rest. Clipping isn't linear, so
    # the mean must come last.
    def clipped_gradient(image, label):
        gradient = jax.grad(loss_one)(parameters, image, label)
        length = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)))
        return jax.tree.map(lambda leaf: leaf / jnp.maximum(length / limit, 1), gradient)

    return jax.tree.map(lambda leaf: leaf.mean(0), jax.vmap(clipped_gradient)(x, labels))


def fixed_shift(key, image):
    """The image `[H, W]`, rolled down and to the right, by two independent numbers from -2 to 2."""
    # The same key gives the same number twice, so every shift was along the diagonal. One key for one draw.
    down_key, right_key = jax.random.split(key)
    down = jax.random.randint(down_key, (), -2, 3)
    right = jax.random.randint(right_key, (), -2, 3)
    return jnp.roll(image, (down, right), axis=(0, 1))

"""The convnet in bare jax.numpy: batch norm over exactly the examples given, without weights, padding or axes."""

import jax
import jax.numpy as jnp
from jax import lax

NORM_LAYERS = ("norm1", "norm2", "norm3")


def convolve(x, kernel, stride, padding):
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def dropout_mask(seed, step, index):
    """The mask of one example from seed, update and index, for the first dropout layer of a model (number 0)."""
    key = jax.random.key(seed)
    for number in (step, index, 0):
        key = jax.random.fold_in(key, number)
    return jax.random.bernoulli(key, 0.5, (256,))


def forward(params, images, masks):
    """Logits `[n, 10]` in training, and the moments `{layer: (mean, variance)}` of the batch."""
    moments = {}

    def normalise(name, x):
        moments[name] = (x.mean((0, 1, 2)), x.var((0, 1, 2)))
        mean, variance = moments[name]
        return jnp.maximum((x - mean) / jnp.sqrt(variance + 1e-3) + params[name]["bias"], 0)

    x = images / 255.0
    x = normalise("norm1", convolve(x, params["conv1"]["kernel"], 1, "SAME"))
    x = normalise("norm2", convolve(x, params["conv2"]["kernel"], 2, "VALID"))
    x = normalise("norm3", convolve(x, params["large_k"]["kernel"], 2, "SAME")).mean((1, 2))
    x = jnp.maximum(x @ params["hidden"]["kernel"] + params["hidden"]["bias"], 0)
    x = jnp.where(masks, x / 0.5, 0)
    return x @ params["logits"]["kernel"] + params["logits"]["bias"], moments

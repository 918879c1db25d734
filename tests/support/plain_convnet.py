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


def summed_loss(params, images, labels, masks):
    logits, moments = forward(params, images, masks)
    return -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].sum(), moments


def train(params, model_state, batches, learning_rate, *, seed=0):
    """Parameters and running statistics after one step of gradient descent on each of `batches`.

    Args:
        params: nested dictionaries of arrays.
        model_state: `{layer: {"mean", "var"}}`.
        batches: for each step a list of micro-batches (images, labels, indices); their moments are separate and
            their gradients add up.
        learning_rate: step size on the mean loss of all micro-batches.
        seed: of dropout.
    """
    gradient = jax.jit(jax.value_and_grad(summed_loss, has_aux=True))
    for step, micro_batches in enumerate(batches):
        total, count = jax.tree.map(jnp.zeros_like, params), 0
        for images, labels, indices in micro_batches:
            masks = jnp.stack([dropout_mask(seed, step, index) for index in indices])
            (_, moments), gradients = gradient(params, images, labels, masks)
            total, count = jax.tree.map(jnp.add, total, gradients), count + len(labels)
            model_state = {
                name: {
                    "mean": 0.9 * model_state[name]["mean"] + 0.1 * moments[name][0],
                    "var": 0.9 * model_state[name]["var"] + 0.1 * moments[name][1],
                }
                for name in NORM_LAYERS
            }
        params = jax.tree.map(lambda p, g, count=count: p - learning_rate * g / count, params, total)
    return params, model_state

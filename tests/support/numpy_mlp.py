"""The multi-layer perceptron and its training by gradient descent in NumPy, with the
derivatives by hand.
"""

import numpy as np

LAYERS = ("hidden1", "hidden2", "logits")


def loss_and_gradients(params, images, labels):
    """Mean cross-entropy of `images` `[n, 28, 28, 1]` and its gradient, in float64.

    Args:
        params: `{layer: {"kernel": [in, out], "bias": [out]}}`.
        images: uint8.
        labels: `[n]` classes.
    """
    n = len(images)
    activations = [images.reshape(n, -1) / 255.0]
    for layer in LAYERS:
        x = activations[-1] @ params[layer]["kernel"] + params[layer]["bias"]
        activations.append(x if layer == "logits" else np.maximum(x, 0))
    logits = activations[-1]
    logits = logits - logits.max(1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    loss = -log_probabilities[np.arange(n), labels].mean()

    delta = np.exp(log_probabilities)
    delta[np.arange(n), labels] -= 1
    delta /= n
    gradients = {}
    for depth in (2, 1, 0):
        layer = LAYERS[depth]
        x = activations[depth]
        gradients[layer] = {"kernel": x.T @ delta, "bias": delta.sum(0)}
        if depth:
            delta = (delta @ params[layer]["kernel"].T) * (x > 0)
    return loss, gradients


def train(params, batches, learning_rate):
    """The parameters after one step of gradient descent on each of `batches`, pairs
    (images, labels).
    """
    for images, labels in batches:
        _, gradients = loss_and_gradients(params, images, labels)
        params = {
            layer: {
                name: params[layer][name] - learning_rate * gradients[layer][name]
                for name in params[layer]
            }
            for layer in params
        }
    return params

"""Solutions of lesson 01's exercises."""

import numpy as np


def backward(model, inputs, labels, hidden, probabilities):
    """Gradients of the summed loss, last layer first."""
    # g is always the gradient at the place where the backward pass has just arrived. Without the copy, the caller's
    # probabilities would change.
    g = probabilities.copy()
    g[np.arange(len(labels)), labels] -= 1
    gradients = {"W2": hidden.T @ g, "b2": g.sum(0)}
    g = (g @ model["W2"].T) * (hidden > 0)
    return gradients | {"W1": inputs.T @ g, "b1": g.sum(0)}


def standardize_backward(x, g):
    """Gradient `[B, D]` with respect to x, from `g` `[B, D]`, the gradient with respect to y."""
    # If you shift all of x, or stretch it around its mean, y stays the same. So the gradient has no component along
    # (1, ..., 1), nor along y, and we subtract both.
    y = (x - x.mean(0)) / x.std(0)
    return (g - g.mean(0) - y * (g * y).mean(0)) / x.std(0)


def fixed_update(parameters, x, labels, rate):
    """The parameters after one step of gradient descent."""
    (W1, b1), (W2, b2) = parameters
    hidden = np.maximum(x @ W1 + b1, 0)
    logits = hidden @ W2 + b2
    p = np.exp(logits - logits.max(1, keepdims=True))
    g = (p / p.sum(1, keepdims=True) - np.eye(logits.shape[1])[labels]) / len(labels)
    # The chain rule needs the W2 of the forward pass, so all gradients come first and all updates afterwards. That's
    # why frameworks have `backward` and `step`, and not one function.
    g1 = (g @ W2.T) * (hidden > 0)
    return [
        (W1 - rate * x.T @ g1, b1 - rate * g1.sum(0)),
        (W2 - rate * hidden.T @ g, b2 - rate * g.sum(0)),
    ]

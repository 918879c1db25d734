"""A multi-layer perceptron in NumPy, its backward pass written by hand.

Lesson 01 builds this file step by step, and lesson 02 lets `jax.grad` write the backward pass and compares the two.

Shapes: B examples, D features, H hidden units, C classes. The parameters are a list with one pair a layer: weights
`[inputs, outputs]` and bias `[outputs]`. Between the layers stands a ReLU.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

Parameters = list[tuple[np.ndarray, np.ndarray]]


def initialise(sizes: Sequence[int], *, seed: int = 0, scale: float = 1e-2) -> Parameters:
    """Weights from `scale` x a normal distribution and biases of 0, in float64.

    Args:
        sizes: units of every level from the inputs on, for example `(784, 128, 128, 10)` for three layers.
        seed: determines the weights.
        scale: standard deviation of the weights.
    """
    random = np.random.default_rng(seed)
    return [(scale * random.standard_normal((m, n)), np.zeros(n)) for m, n in itertools.pairwise(sizes)]


def forward(parameters: Parameters, x: np.ndarray) -> list[np.ndarray]:
    """The inputs `[B, D]`, the hidden activations `[B, H]` and last the logits `[B, C]`; backward needs them all."""
    activations = [x]
    for weights, bias in parameters[:-1]:
        activations.append(np.maximum(activations[-1] @ weights + bias, 0))
    weights, bias = parameters[-1]
    return [*activations, activations[-1] @ weights + bias]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms `[B, C]` of the classes' probabilities; the largest logit is subtracted, so that no exp overflows."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean over the examples of minus the log-probability of their class; logits `[B, C]`, labels `[B]`."""
    return -log_softmax(logits)[np.arange(len(labels)), labels].mean()


def backward(parameters: Parameters, activations: list[np.ndarray], labels: np.ndarray) -> Parameters:
    """Gradients of the mean cross-entropy, shaped like the parameters: the chain rule from the last layer to the first.

    Rumelhart, Hinton and Williams, "Learning representations by back-propagating errors", Nature 323, 1986.
    """
    B = len(labels)
    g = np.exp(log_softmax(activations[-1]))  # [B, C], gradient of the loss with respect to the logits
    g[np.arange(B), labels] -= 1
    g /= B
    gradients = []
    for (weights, _), x in zip(reversed(parameters), reversed(activations[:-1]), strict=True):
        gradients.append((x.T @ g, g.sum(axis=0)))
        g = (g @ weights.T) * (x > 0)  # past the ReLU that made x; at the inputs nobody reads it
    return gradients[::-1]


def sgd(parameters: Parameters, gradients: Parameters, learning_rate: float) -> Parameters:
    """One step of gradient descent; returns new parameters."""
    return [
        (weights - learning_rate * weights_gradient, bias - learning_rate * bias_gradient)
        for (weights, bias), (weights_gradient, bias_gradient) in zip(parameters, gradients, strict=True)
    ]


def finite_differences(
    loss: Callable[[Parameters], float], parameters: Parameters, *, step: float = 1e-6
) -> Parameters:
    """Gradients by trying: every parameter is moved by `step` up and down. Slow; meant to check `backward`.

    Central differences: the error shrinks with the square of the step, down to rounding. Entries are moved in
    place and put back.
    """

    def gradient(array: np.ndarray) -> np.ndarray:
        result = np.empty_like(array)
        for index in np.ndindex(array.shape):
            value = array[index]
            array[index] = value + step
            above = loss(parameters)
            array[index] = value - step
            result[index] = (above - loss(parameters)) / (2 * step)
            array[index] = value
        return result

    return [(gradient(weights), gradient(bias)) for weights, bias in parameters]

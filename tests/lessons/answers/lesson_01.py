"""Answers to the exercises of lesson 01; see ../test_exercises.py."""

import numpy as np
from solutions import solutions


def in_place(probabilities, labels):
    probabilities[np.arange(len(labels)), labels] -= 1
    return probabilities / len(labels)


def update_with_the_new_weights(parameters, x, labels, rate):
    (W1, b1), (W2, b2) = parameters
    hidden = np.maximum(x @ W1 + b1, 0)
    p = np.exp(hidden @ W2 + b2)
    g = (p / p.sum(1, keepdims=True) - np.eye(len(b2))[labels]) / len(labels)
    W2, b2 = W2 - rate * hidden.T @ g, b2 - rate * g.sum(0)
    g = (g @ W2.T) * (hidden > 0)
    return [(W1 - rate * x.T @ g, b1 - rate * g.sum(0)), (W2, b2)]


def update_in_place(parameters, x, labels, rate):
    new = solutions("01_train_a_network_in_numpy")["mended_update"](parameters, x, labels, rate)
    for pair, new_pair in zip(parameters, new, strict=True):
        for array, new_array in zip(pair, new_pair, strict=True):
            array[...] = new_array
    return parameters


WRONG = {
    "softmax_gradient": [
        ("the loss is a mean", lambda p, labels: p - np.eye(p.shape[1])[labels]),
        ("the sign is wrong", lambda p, labels: (np.eye(p.shape[1])[labels] - p) / len(p)),
        ("changed in place", in_place),
    ],
    "standardize_backward": [
        ("as constants", lambda x, g: g / x.std(0)),
        ("standard deviation as a constant", lambda x, g: (g - g.mean(0)) / x.std(0)),
        ("must add up to 0", lambda x, g: g),
        ("must be 0", lambda x, g: (g - g.mean(0)) * 2),
        ("the shape of x", lambda x, g: g.sum(0)),
    ],
    "mended_update": [
        ("the W2 of the forward pass", update_with_the_new_weights),
        ("changed in place", update_in_place),
        ("the second layer is wrong", lambda parameters, x, labels, rate: parameters),
    ],
}

RIGHT = {}

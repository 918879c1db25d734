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
    new = solutions("01_train_a_network_in_numpy")["fixed_update"](parameters, x, labels, rate)
    for pair, new_pair in zip(parameters, new, strict=True):
        for array, new_array in zip(pair, new_pair, strict=True):
            array[...] = new_array
    return parameters


def gradient_by_copy(probabilities, labels):
    gradient = probabilities.copy()
    gradient[np.arange(len(labels)), labels] -= 1
    return gradient / len(labels)


def gradient_row_by_row(probabilities, labels):
    rows = [[p - (c == label) for c, p in enumerate(row)] for row, label in zip(probabilities, labels, strict=True)]
    return np.array(rows) / len(rows)


def backward_by_the_jacobian(x, g):
    B = len(x)
    y, deviation = (x - x.mean(0)) / x.std(0), x.std(0)
    columns = []
    for d in range(x.shape[1]):
        jacobian = (np.eye(B) - 1 / B - np.outer(y[:, d], y[:, d]) / B) / deviation[d]
        columns.append(jacobian.T @ g[:, d])
    return np.stack(columns, axis=1)


def backward_by_the_chain_rule(x, g):
    B, centred, deviation = len(x), x - x.mean(0), x.std(0)
    of_deviation = -(g * centred).sum(0) / deviation**2
    of_variance = of_deviation / (2 * deviation)
    of_centred = g / deviation + 2 * centred * of_variance / B
    return of_centred - of_centred.mean(0)


def update_with_lists(parameters, x, labels, rate):
    (W1, b1), (W2, b2) = parameters
    hidden = np.maximum(x @ W1 + b1, 0)
    p = np.exp(hidden @ W2 + b2)
    g = (p / p.sum(1, keepdims=True) - np.eye(len(b2))[labels]) / len(labels)
    g1 = g @ W2.T * (hidden > 0)
    return [[W1 - rate * (x.T @ g1), b1 - rate * g1.sum(0)], [W2 - rate * (hidden.T @ g), b2 - rate * g.sum(0)]]


def update_of_copies(parameters, x, labels, rate):
    (W1, b1), (W2, b2) = [[array.copy() for array in pair] for pair in parameters]
    hidden = np.maximum(x @ W1 + b1, 0)
    p = np.exp(hidden @ W2 + b2)
    g = (p / p.sum(1, keepdims=True) - np.eye(len(b2))[labels]) / len(labels)
    g1 = g @ W2.T * (hidden > 0)
    W2 -= rate * hidden.T @ g
    b2 -= rate * g.sum(0)
    W1 -= rate * x.T @ g1
    b1 -= rate * g1.sum(0)
    return (W1, b1), (W2, b2)


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
    "fixed_update": [
        ("the W2 of the forward pass", update_with_the_new_weights),
        ("changed in place", update_in_place),
        ("the second layer is wrong", lambda parameters, x, labels, rate: parameters),
    ],
}

RIGHT = {
    "softmax_gradient": [gradient_by_copy, gradient_row_by_row],
    "standardize_backward": [backward_by_the_jacobian, backward_by_the_chain_rule],
    "fixed_update": [update_with_lists, update_of_copies],
}

"""The exercises of lesson 01: wrong answers get the message that helps."""

import numpy as np
import pytest
from solutions import solutions

from pmapdp_lessons.checks import check

LESSON = "01_train_a_network_in_numpy"


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
    new = solutions(LESSON)["mended_update"](parameters, x, labels, rate)
    for pair, new_pair in zip(parameters, new, strict=True):
        for array, new_array in zip(pair, new_pair, strict=True):
            array[...] = new_array
    return parameters


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("softmax_gradient", lambda p, labels: p - np.eye(p.shape[1])[labels], "the loss is a mean"),
        ("softmax_gradient", lambda p, labels: (np.eye(p.shape[1])[labels] - p) / len(p), "the sign is wrong"),
        ("softmax_gradient", in_place, "changed in place"),
        ("standardize_backward", lambda x, g: g / x.std(0), "as constants"),
        ("standardize_backward", lambda x, g: (g - g.mean(0)) / x.std(0), "standard deviation as a constant"),
        ("standardize_backward", lambda x, g: g, "must add up to 0"),
        ("standardize_backward", lambda x, g: (g - g.mean(0)) * 2, "must be 0"),
        ("standardize_backward", lambda x, g: g.sum(0), "the shape of x"),
        ("mended_update", update_with_the_new_weights, "the W2 of the forward pass"),
        ("mended_update", update_in_place, "changed in place"),
        ("mended_update", lambda parameters, x, labels, rate: parameters, "the second layer is wrong"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message

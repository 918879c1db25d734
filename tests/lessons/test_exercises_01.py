"""The exercises of lesson 01: wrong answers get the message that helps."""

import numpy as np
import pytest
from checks import check

LESSON = "01_train_a_network_in_numpy"


def in_place(probabilities, labels):
    probabilities[np.arange(len(labels)), labels] -= 1
    return probabilities / len(labels)


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("softmax_slope", lambda p, labels: p - np.eye(p.shape[1])[labels], "the loss is a mean"),
        ("softmax_slope", lambda p, labels: (np.eye(p.shape[1])[labels] - p) / len(p), "the sign is wrong"),
        ("softmax_slope", in_place, "changed in place"),
        ("layer_backward", lambda x, W, s: (s @ W.T, x.T @ s, s), "the slope of b must have the shape"),
        ("layer_backward", lambda x, W, s: (s @ W.T, x.T @ s, s.mean(0)), "the sum over the examples"),
        ("layer_backward", lambda x, W, s: (s @ W.T, x.T @ s / len(x), s.sum(0)), "the slope of W is x"),
        ("batches", lambda o, n: [o[i : i + n] for i in range(0, len(o) - n + 1, n)], "that are left"),
        ("batches", lambda o, n: np.array_split(o, -(-len(o) // n)), "all batches but the last"),
        ("batches", lambda o, n: [np.sort(o)[i : i + n] for i in range(0, len(o), n)], "must be `order`"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message

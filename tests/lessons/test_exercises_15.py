"""The exercises of lesson 15: wrong answers get the message that helps."""

import pytest
from jax import P, lax, nn

from pmapdp_lessons.checks import check

LESSON = "15_split_the_model"
pytestmark = pytest.mark.slow


def gathers(x, W1, W2):
    W1, W2 = lax.all_gather(W1, "model", axis=1, tiled=True), lax.all_gather(W2, "model", tiled=True)
    return nn.relu(x @ W1) @ W2


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("split_in_pairs", lambda: (P(None, "model"), P(None, "model")), "W1's columns and W2's rows"),
        ("split_in_pairs", lambda: (P(), P("model", None)), "a half is wanted"),
        ("split_in_pairs", lambda: (P(None, "modle"), P("modle", None)), "the mesh axis is called 'model'"),
        ("split_in_pairs", lambda: P("model"), "return two PartitionSpecs"),
        ("two_layers", lambda x, W1, W2: nn.relu(x @ W1) @ W2, "the partial sum over its own hidden units"),
        ("two_layers", lambda x, W1, W2: lax.pmean(nn.relu(x @ W1) @ W2, "model"), "this is a quarter of it"),
        ("two_layers", lambda x, W1, W2: lax.psum(x @ W1 @ W2, "model"), "the result is not relu"),
        ("two_layers", gathers, "one all-reduce is enough"),
        ("mended_layer", lambda h, W2, bias: lax.psum(h @ W2 + bias, "model"), "the bias four times"),
        ("mended_layer", lambda h, W2, bias: lax.psum(h @ W2, "model"), "the bias is missing"),
        ("mended_layer", lambda h, W2, bias: h @ W2 + bias, "different results"),
        ("mended_layer", lambda h, W2, bias: lax.pmean(h @ W2 + bias, "model"), "is not h @ W2 + bias"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message

"""The exercises of lesson 11: wrong answers get the message that helps."""

import pytest
from checks import check
from jax import P, lax

LESSON = "11_split_the_model"


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("cut_in_pairs", lambda: (P(None, "model"), P(None, "model")), "W1's columns and W2's rows"),
        ("cut_in_pairs", lambda: (P(), P("model", None)), "a half is wanted"),
        ("cut_in_pairs", lambda: (P(None, "modle"), P("modle", None)), "the mesh axis is called 'model'"),
        ("cut_in_pairs", lambda: P("model"), "return two PartitionSpecs"),
        ("product_of_parts", lambda x, w: x @ w, "only the product of its own features"),
        ("product_of_parts", lambda x, w: lax.pmean(x @ w, "feature"), "this is a quarter of it"),
        ("product_of_parts", lambda x, w: lax.all_gather(x @ w, "feature"), "has the shape (3, 5)"),
        ("part_shape", lambda shape, names, sizes: shape, "cut along ('data', None) has the shape (4, 6)"),
        (
            "part_shape",
            lambda shape, names, sizes: tuple(s / sizes.get(n, 1) for s, n in zip(shape, names, strict=False)),
            "with //",
        ),
        ("part_shape", lambda shape, names, sizes: (4,), "has 2 axes"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message

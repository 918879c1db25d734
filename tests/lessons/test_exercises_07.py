"""The exercises of lesson 07: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import pytest
from checks import check
from jax import lax

LESSON = "07_batch_norm_dropout_and_metrics"


def local_variance(values, weights):
    mean = (weights * values).sum() / weights.sum()
    return (weights * jnp.square(values - mean)).sum() / weights.sum()


def mean_of_variances(values, weights):
    return lax.pmean(local_variance(values, weights), "data")


def ignores_weights(values, weights):
    mean = lax.pmean(values.mean(), "data")
    return lax.pmean(jnp.square(values - mean).mean(), "data")


def one_pass(values, weights):
    count = lax.psum(weights.sum(), "data")
    mean, square = (lax.psum((weights * x).sum(), "data") / count for x in (values, values**2))
    return square - mean**2


def split_by_position(seed, step, indices):
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), step), len(indices))


def ignores_step(seed, step, indices):
    return jax.vmap(lambda index: jax.random.fold_in(jax.random.key(seed), index))(indices)


def ignores_seed(seed, step, indices):
    key = jax.random.fold_in(jax.random.key(0), step)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)


def adds_seed_and_step(seed, step, indices):
    return jax.vmap(lambda index: jax.random.fold_in(jax.random.key(seed + step), index))(indices)


def adds_step_and_index(seed, step, indices):
    return jax.vmap(lambda index: jax.random.fold_in(jax.random.key(seed), step + index))(indices)


def one_key(seed, step, indices):
    return jax.random.fold_in(jax.random.key(seed), step)


def counts_padding(x, weights):
    return lax.psum((weights[:, None] * x).sum(0), "data") / lax.psum(len(x), "data")


def local_count(x, weights):
    return lax.psum((weights[:, None] * x).sum(0), "data") / jnp.maximum(weights.sum(), 1)


def divides_first(x, weights):
    return lax.pmean((weights[:, None] * x).sum(0) / weights.sum(), "data")


@pytest.mark.parametrize(
    ("exercise", "answer", "phrase"),
    [
        ("global_variance", local_variance, "each device's own variance"),
        ("global_variance", mean_of_variances, "how far their means lie apart"),
        ("global_variance", ignores_weights, "padding was counted"),
        ("global_variance", one_pass, "loses its digits"),
        ("row_keys", split_by_position, "place in the batch"),
        ("row_keys", ignores_step, "fold in the step"),
        ("row_keys", ignores_seed, "another seed gives the same keys"),
        ("row_keys", adds_seed_and_step, "numbers were added up"),
        ("row_keys", adds_step_and_index, "numbers were added up"),
        ("row_keys", one_key, "one each"),
        ("mended_mean", counts_padding, "count the weights"),
        ("mended_mean", local_count, "both go through lax.psum"),
        ("mended_mean", divides_first, "divide after the psum"),
    ],
)
def test_a_wrong_answer_gets_the_message_that_helps(exercise, answer, phrase):
    verdict = check(LESSON, exercise, answer)
    assert not verdict.solved
    assert phrase in verdict.message

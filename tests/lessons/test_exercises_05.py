"""The exercises of lesson 05: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pmapdp_lessons.checks import check

LESSON = "05_average_gradients"


def mean_loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2) / 2


def step_by_autodiff(w, x, y):
    return w - 0.1 * lax.pmean(jax.grad(mean_loss)(w, x, y), "data")


def step_that_averages_parameters(w, x, y):
    return lax.pmean(w - 0.1 * jax.grad(mean_loss)(w, x, y), "data")


@pytest.mark.parametrize("answer", [step_by_autodiff, step_that_averages_parameters])
def test_another_right_step_passes(answer):
    verdict = check(LESSON, "step", answer)
    assert verdict.solved, verdict.message


def step_without_all_reduce(w, x, y):
    return w - 0.1 * jax.grad(mean_loss)(w, x, y)


def step_through_the_averaged_loss(w, x, y):
    return w - 0.1 * jax.grad(lambda w: lax.pmean(mean_loss(w, x, y), "data"))(w)


def step_with_psum(w, x, y):
    return w - 0.1 * lax.psum(jax.grad(mean_loss)(w, x, y), "data")


def step_uphill(w, x, y):
    return w + 0.1 * lax.pmean(jax.grad(mean_loss)(w, x, y), "data")


def step_without_learning_rate(w, x, y):
    return w - lax.pmean(jax.grad(mean_loss)(w, x, y), "data")


def step_of_summed_losses(w, x, y):
    return w - 0.1 * lax.pmean(x.T @ (x @ w - y), "data")


def step_without_the_half(w, x, y):
    return w - 0.2 * lax.pmean(jax.grad(mean_loss)(w, x, y), "data")


def gradient_alone(w, x, y):
    return lax.pmean(jax.grad(mean_loss)(w, x, y), "data")


def from_one_copy(array):
    return np.ptp(np.stack([np.asarray(array)] * 8), axis=0).max()


def with_device_0(array):
    first, *others = [np.asarray(shard.data) for shard in array.addressable_shards]
    return max(np.abs(other - first).max() for other in others)


def first_two_shards(array):
    first, second = [np.asarray(shard.data) for shard in array.addressable_shards[:2]]
    return np.abs(second - first).max()


def without_absolute_value(array):
    first, *others = [np.asarray(shard.data) for shard in array.addressable_shards]
    return max((other - first).max() for other in others)


def over_all_elements(array):
    return np.ptp(np.stack([shard.data for shard in array.addressable_shards]))


def one_difference_each(array):
    return np.ptp(np.stack([shard.data for shard in array.addressable_shards]), axis=0)


def local_sum(w, x, y, weights):
    return x.T @ (weights * (x @ w - y))


def mean_of_means(w, x, y, weights):
    return lax.pmean(local_sum(w, x, y, weights) / weights.sum(), "data")


def sum_over_local_count(w, x, y, weights):
    return lax.psum(local_sum(w, x, y, weights), "data") / weights.sum()


def sum_alone(w, x, y, weights):
    return lax.psum(local_sum(w, x, y, weights), "data")


def mean_over_rows(w, x, y, weights):
    return lax.pmean(local_sum(w, x, y, weights) / len(y), "data")


def ignores_weights(w, x, y, weights):
    return lax.pmean(x.T @ (x @ w - y) / len(y), "data")


def share_of_local_mean(w, x, y, weights):
    here = weights.sum()
    return lax.psum(local_sum(w, x, y, weights) / here * (here / lax.psum(here, "data")), "data")


def clip(gradient):
    return gradient / jnp.maximum(jnp.linalg.norm(gradient), 1)


def clipping_each(gradient):
    return lax.pmean(clip(gradient), "data")


def clipping_the_sum(gradient):
    return clip(lax.psum(gradient, "data"))


@pytest.mark.parametrize(
    ("exercise", "answer", "phrase"),
    [
        ("step", step_without_all_reduce, "return different parameters"),
        ("step", step_through_the_averaged_loss, "return different parameters"),
        ("step", step_with_psum, "4 times too long on 4 devices"),
        ("step", step_uphill, "subtract the gradient"),
        ("step", step_without_learning_rate, "learning rate 0.1"),
        ("step", step_of_summed_losses, "take the mean over them"),
        ("step", step_without_the_half, "gradient of the mean loss over all"),
        ("step", gradient_alone, "return the parameters"),
        ("largest_difference", from_one_copy, "reads one copy"),
        ("largest_difference", with_device_0, "device 0 alone"),
        ("largest_difference", first_two_shards, "read all 8 shards"),
        ("largest_difference", without_absolute_value, "largest minus smallest"),
        ("largest_difference", over_all_elements, "compare the copies"),
        ("largest_difference", one_difference_each, "one number is asked for"),
        ("global_gradient", local_sum, "both go through lax.psum"),
        ("global_gradient", mean_of_means, "mean of the devices' means"),
        ("global_gradient", sum_over_local_count, "both go through lax.psum"),
        ("global_gradient", sum_alone, "divide by their number"),
        ("global_gradient", mean_over_rows, "padding included"),
        ("global_gradient", ignores_weights, "padding was counted"),
        ("mended_clipping", clip, "return different gradients"),
        ("mended_clipping", clipping_each, "average first"),
        ("mended_clipping", clipping_the_sum, "use lax.pmean"),
        ("mended_clipping", lambda g: lax.pmean(g, "data"), "the result should be"),
        ("global_gradient", share_of_local_mean, "divides 0 by 0"),
    ],
)
def test_a_wrong_answer_gets_the_message_that_helps(exercise, answer, phrase):
    for _ in range(3):
        verdict = check(LESSON, exercise, answer)
        assert not verdict.solved
        assert phrase in verdict.message

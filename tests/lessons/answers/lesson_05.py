"""Answers to the exercises of lesson 05; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
import optax
from jax import lax


def mean_loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2) / 2


def step_by_autodiff(w, x, y):
    return w - 0.1 * lax.pmean(jax.grad(mean_loss)(w, x, y), "data")


def step_that_averages_parameters(w, x, y):
    return lax.pmean(w - 0.1 * jax.grad(mean_loss)(w, x, y), "data")


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


def gradient_by_autodiff(w, x, y, weights):
    def sums(w):
        return (weights * (x @ w - y) ** 2).sum() / 2

    return lax.psum(jax.grad(sums)(w), "data") / lax.psum(weights.sum(), "data")


def gradient_by_gathering(w, x, y, weights):
    x, y, weights = (lax.all_gather(each, "data", tiled=True) for each in (x, y, weights))
    return x.T @ (weights * (x @ w - y)) / weights.sum()


def clipping_by_minimum(gradient):
    gradient = lax.psum(gradient, "data") / lax.axis_size("data")
    return gradient * jnp.minimum(1, 1 / jnp.sqrt(gradient @ gradient))


def clipping_by_optax(gradient):
    clip_to_one = optax.clip_by_global_norm(1.0)
    return clip_to_one.update(lax.pmean(gradient, "data"), clip_to_one.init(gradient))[0]


def step_by_gathering(w, x, y):
    x, y = lax.all_gather(x, "data", tiled=True), lax.all_gather(y, "data", tiled=True)
    return w - 0.1 * x.T @ (x @ w - y) / len(y)


WRONG = {
    "step": [
        ("return different parameters", step_without_all_reduce),
        ("return different parameters", step_through_the_averaged_loss),
        ("4 times too long on 4 devices", step_with_psum),
        ("subtract the gradient", step_uphill),
        ("learning rate 0.1", step_without_learning_rate),
        ("take the mean over them", step_of_summed_losses),
        ("gradient of the mean loss over all", step_without_the_half),
        ("return the parameters", gradient_alone),
    ],
    "global_gradient": [
        ("both go through lax.psum", local_sum),
        ("mean of the devices' means", mean_of_means),
        ("both go through lax.psum", sum_over_local_count),
        ("divide by their number", sum_alone),
        ("padding included", mean_over_rows),
        ("padding was counted", ignores_weights),
        ("divides 0 by 0", share_of_local_mean),
    ],
    "fixed_clipping": [
        ("return different gradients", clip),
        ("average first", clipping_each),
        ("use lax.pmean", clipping_the_sum),
        ("the result should be", lambda g: lax.pmean(g, "data")),
    ],
}

RIGHT = {
    "step": [step_by_autodiff, step_that_averages_parameters, step_by_gathering],
    "global_gradient": [gradient_by_autodiff, gradient_by_gathering],
    "fixed_clipping": [clipping_by_minimum, clipping_by_optax],
}

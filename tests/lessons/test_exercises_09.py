"""The exercises of lesson 09: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import optax
import pytest
from checks import check
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

LESSON = "09_three_ways_side_by_side"


def varying(w):
    return jax.tree.map(lambda leaf: lax.pcast(leaf, "data", to="varying"), w)


def mean_of_varying_gradients(loss, w, x):
    return lax.pmean(jax.grad(loss)(varying(w), x), "data")


def divided_sum(loss, w, x):
    return jax.tree.map(lambda g: g / lax.axis_size("data"), jax.grad(loss)(w, x))


@pytest.mark.parametrize("answer", [mean_of_varying_gradients, divided_sum])
def test_other_right_ways_to_the_gradient_pass(answer):
    verdict = check(LESSON, "gradient", answer)
    assert verdict.solved, verdict.message


def mean_of_gradient(loss, w, x):
    return lax.pmean(jax.grad(loss)(w, x), "data")


def no_mean_at_all(loss, w, x):
    return jax.grad(loss)(w, x)


def sum_of_gradient(loss, w, x):
    return lax.psum(jax.grad(loss)(w, x), "data")


def own_gradient(loss, w, x):
    return jax.grad(loss)(varying(w), x)


def loss_in_place_of_its_gradient(loss, w, x):
    return lax.pmean(loss(w, x), "data")


def sum_of_the_loss(loss, w, x):
    return jax.grad(lambda w: lax.psum(loss(w, x), "data"))(w)


def put(batch, mesh, *spec):
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(*spec)))


def merged(batch):
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def keeps_the_device_axis(batch, mesh):
    return put(batch, mesh, "data")


def copies_to_all(batch, mesh):
    return put(merged(batch), mesh)


def stays_on_the_host(batch, mesh):
    return merged(batch)


def other_order(batch, mesh):
    return put(merged(jax.tree.map(lambda x: x.swapaxes(0, 1), batch)), mesh, "data")


def only_the_inputs(batch, mesh):
    return put(merged(batch["inputs"]), mesh, "data")


def cosine(gradients, reference):
    return optax.tree.vdot(gradients, reference) / (optax.tree.norm(gradients) * optax.tree.norm(reference))


def upside_down(gradients, reference):
    return optax.tree.norm(reference) / optax.tree.norm(gradients)


def squares(gradients, reference):
    return optax.tree.norm(gradients, squared=True) / optax.tree.norm(reference, squared=True)


def mean_of_ratios(gradients, reference):
    ratios = jax.tree.map(lambda g, r: jnp.linalg.norm(g) / jnp.linalg.norm(r), gradients, reference)
    return jnp.mean(jnp.array(jax.tree.leaves(ratios)))


def array_by_array(gradients, reference):
    return jnp.array(
        jax.tree.leaves(jax.tree.map(lambda g, r: jnp.abs(g).sum() / jnp.abs(r).sum(), gradients, reference))
    )


@pytest.mark.parametrize(
    ("exercise", "answer", "phrase"),
    [
        ("gradient", mean_of_gradient, "this is the trap"),
        ("gradient", no_mean_at_all, "this is the trap"),
        ("gradient", sum_of_the_loss, "take the mean of the loss"),
        ("gradient", sum_of_gradient, "a psum did so again"),
        ("gradient", own_gradient, "different gradients"),
        ("gradient", loss_in_place_of_its_gradient, "a tree like w"),
        ("as_global", keeps_the_device_axis, "become one"),
        ("as_global", copies_to_all, "PartitionSpec() copies"),
        ("as_global", stays_on_the_host, "place it with jax.device_put"),
        ("as_global", other_order, "in another order"),
        ("as_global", only_the_inputs, "a tree like the batch"),
        ("length_ratio", cosine, "does not see the trap"),
        ("length_ratio", upside_down, "below the line"),
        ("length_ratio", squares, "which is the square"),
        ("length_ratio", mean_of_ratios, "one root for each tree"),
        ("length_ratio", array_by_array, "one number"),
    ],
)
def test_a_wrong_answer_gets_the_message_that_helps(exercise, answer, phrase):
    verdict = check(LESSON, exercise, answer)
    assert not verdict.solved
    assert phrase in verdict.message

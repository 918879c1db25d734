"""The exercises of lesson 08: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import check
from jax.sharding import NamedSharding, PartitionSpec

LESSON = "08_let_the_compiler_do_it"


def replicated(batch, mesh):
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec()))


def on_the_first(batch, mesh):
    return jax.device_put(batch, jax.devices()[0])


def on_one_device(x):
    return jnp.asarray(np.asarray(x).mean(0))


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("place", replicated, "PartitionSpec('data') cuts axis 0"),
        ("place", on_the_first, "lies on 1 device"),
        ("place", lambda batch, mesh: batch, "still on the host"),
        ("rows_on", lambda x, device: np.asarray(x), "the whole array"),
        ("rows_on", lambda x, device: np.asarray(x.addressable_shards[0].data), "compare shard.device"),
        ("mean_image", on_one_device, "whole on all devices"),
        ("mean_image", lambda x: np.asarray(x).mean(0), "computed on the devices"),
        ("mean_image", lambda x: x.mean(1), "the shape (5,)"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message

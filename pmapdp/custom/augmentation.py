"""Augmentation on the devices: a function of one example and its random key, `DataSet(..., augment=flip)`.

    def flip(image, key):
        return jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)

The key follows from the seed, the update and the number of the example, as those of dropout do, so an image is changed
in the same way on any number of devices, and after a run is resumed. Evaluation sees the examples as they are.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from pmapdp.data.batches import Batch
from pmapdp.errors import UserError, shown, user_code_errors
from pmapdp.layers import current_context, example_keys
from pmapdp.loss import MetricSums
from pmapdp.state import Task

NUMBER = 2**31 - 1  # folded into an example's key, where the dropout layers of a model fold in theirs, from 0


def augmented(task: Task, augment: Callable[..., Any] | None) -> Task:
    """`task` with the inputs of its training changed by `augment`; as it is with None."""
    return task if augment is None else dataclasses.replace(task, loss=functools.partial(loss_of, task.loss, augment))


def loss_of(
    loss: Callable[..., MetricSums], augment: Callable[..., Any], model: nnx.Module, batch: Batch
) -> MetricSums:
    """What `loss` returns; in training of the augmented inputs."""
    context = current_context()
    if context.train:
        batch = batch._replace(inputs=changed(augment, batch.inputs, context.keys))
    return loss(model, batch)


def changed(augment: Callable[..., Any], inputs: Any, keys: Any) -> Any:
    """`[b, ...]` inputs, each changed by its own of the `[b]` keys."""
    return jax.vmap(augment)(inputs, jax.vmap(lambda key: jax.random.fold_in(key, NUMBER))(keys))


def check_augment(augment: Any, example: Batch) -> None:
    """Refuse what cannot change one example, or draws random numbers that do not follow from its key."""
    if augment is None:
        return
    inputs = jax.tree.map(lambda x: x[0], example.inputs)
    keys = example_keys(0, jax.numpy.int32(0), example.indices)
    shapes = jax.tree.map(np.shape, inputs)
    with user_code_errors(
        f"augment={shown(augment)} does not take the inputs of one example, {shapes}, and a random key",
        "give a function of both that JAX can trace, or None",
    ):
        alike = traced_alike(augment, inputs, keys[0])
        jax.eval_shape(functools.partial(changed, augment), example.inputs, keys)
    if not alike:
        raise UserError(
            f"augment={shown(augment)} draws random numbers that do not follow from its key, so they would be the same "
            "in each update: draw them with jax.random and the key"
        )


def traced_alike(function: Callable[..., Any], *values: Any) -> bool:
    """Whether JAX traces the same program each time: a random number of NumPy or of Python is a constant of it."""
    traced = [jax.make_jaxpr(lambda *values: function(*values))(*values) for _ in range(2)]
    first, second = (re.sub("0x[0-9a-f]+", "", str(each.jaxpr)) for each in traced)  # without addresses of functions
    return first == second and all(map(np.array_equal, *(each.consts for each in traced)))

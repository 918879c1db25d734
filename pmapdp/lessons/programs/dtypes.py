"""Train lesson 20's network on one device, with parameters and products in any dtype."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

B, EPOCHS = 128, 6
LEARNING_RATE = 3e-4  # a tenth of the program's, so small that large weights freeze


def make_clouds(examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points in ten clouds that overlap: inputs `[n, 64]`, labels `[n]`."""
    centres = np.random.default_rng(0).normal(size=(10, 64))
    random = np.random.default_rng(seed)
    labels = random.integers(10, size=examples)
    inputs = centres[labels] + 2.5 * random.normal(size=(examples, 64))
    return inputs.astype(np.float32), labels


def batches(inputs: np.ndarray, labels: np.ndarray, seed: int) -> Iterator[Any]:
    """Yield B examples at a time, shuffled. The rest that fills no batch is left out."""
    order = np.random.default_rng(seed).permutation(len(inputs))
    for start in range(0, len(order) - B + 1, B):
        rows = order[start : start + B]
        yield inputs[rows], labels[rows]


def mean_loss(model: Any, batch: Any) -> jax.Array:
    """Return the mean loss of a batch."""
    inputs, labels = batch
    logits = model(inputs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()


def train(
    Network: Callable[[nnx.Rngs], Any], parameter_dtype: Any, compute_dtype: Any
) -> tuple[list[float], Any, Any]:
    """Return the loss of each update, and the model before and after the training.

    Adam's moments are in float32, whatever the parameters are in. So two runs differ by
    the dtypes of their model alone.
    """
    model = Network(nnx.Rngs(0))
    model.hidden.dtype = compute_dtype
    model.output.dtype = compute_dtype
    first_model = jax.tree.map(lambda w: w.astype(parameter_dtype), model)
    adam = optax.adam(LEARNING_RATE)
    adam_state = adam.init(jax.tree.map(lambda w: w.astype(jnp.float32), model))

    @jax.jit
    def step(model, adam_state, batch):
        loss, gradients = jax.value_and_grad(mean_loss)(model, batch)
        updates, adam_state = adam.update(gradients, adam_state, model)
        return optax.apply_updates(model, updates), adam_state, loss

    model = first_model
    losses = []
    inputs, labels = make_clouds(5_000, seed=1)
    for epoch in range(EPOCHS):
        for batch in batches(inputs, labels, seed=epoch):
            model, adam_state, loss = step(model, adam_state, batch)
            losses.append(float(loss))
    return losses, first_model, model

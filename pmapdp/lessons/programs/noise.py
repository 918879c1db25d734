"""The gradient noise scale from all examples, and runs with many batch sizes: lesson 21
checks its estimate and its prediction with them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

RATES = 0.1 * 2 ** np.arange(0, 4.5, 0.5)  # nine learning rates from 0.1 to 1.6
ADAM_RATES = 0.004 * 2 ** np.arange(0, 4.5, 0.5)  # from 0.004 to 0.064
SEEDS = (3, 4, 5)  # 1 and 2 are the training and the test set of the lessons

Data = tuple[np.ndarray, np.ndarray]  # inputs and labels
LossSums = Callable[..., tuple[jax.Array, dict[str, jax.Array]]]


@partial(jax.jit, static_argnums=0)
def measure_directly(
    loss_sums: LossSums, model: Any, inputs: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Measure S and |G|^2 with the gradients of all n examples.

    Args:
        loss_sums: as in the program of the lessons, `loss_sums(model, batch)`.
        inputs: `[n, D]`.
        labels: `[n]`.

    Returns:
        S, the variance of an example's gradient, added up over the parameters, and the
        squared length of its expectation. The mean of n gradients has a squared length
        that is larger by S / n on average, which is taken off.
    """
    n = len(inputs)
    batches = inputs[:, None], labels[:, None], np.ones((n, 1), np.float32)
    gradient = jax.grad(loss_sums, has_aux=True)
    gradients, _ = jax.vmap(gradient, in_axes=(None, 0))(model, batches)
    S = sum(leaf.var(axis=0, ddof=1).sum() for leaf in jax.tree.leaves(gradients))
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), gradients)
    return S, optax.tree.norm(mean, squared=True) - S / n


@partial(jax.jit, static_argnums=(0, 5))
def train(
    loss_sums: LossSums,
    model: Any,
    data: Data,
    test_data: Data,
    rates: jax.Array,
    make_optimizer: Callable[..., optax.GradientTransformation] = optax.sgd,
    warm_up: int = 1,
) -> jax.Array:
    """Train once for each learning rate and each seed's data.

    Args:
        data: inputs `[seeds, updates, B, D]` and labels `[seeds, updates, B]`.
        rates: `[rates]`.
        make_optimizer: takes a schedule, such as `optax.adam`.
        warm_up: updates over which a rate grows in equal steps to its full size.

    Returns:
        The test loss after each update, `[rates, seeds, updates]`.
    """

    def mean_loss(model, data):
        inputs, labels = data
        weights = np.ones(len(labels), np.float32)
        return loss_sums(model, (inputs, labels, weights))[0] / len(labels)

    def train_once(rate, data):
        def schedule(count):
            return rate * jnp.minimum(1, (count + 1) / warm_up)

        optimizer = make_optimizer(schedule)

        def update(state, batch):
            model, optimizer_state = state
            gradients = jax.grad(mean_loss)(model, batch)
            updates, optimizer_state = optimizer.update(
                gradients, optimizer_state, model
            )
            model = optax.apply_updates(model, updates)
            return (model, optimizer_state), mean_loss(model, test_data)

        return jax.lax.scan(update, (model, optimizer.init(model)), data)[1]

    for_all_seeds = jax.vmap(train_once, in_axes=(None, 0))
    return jax.vmap(for_all_seeds, in_axes=(0, None))(rates, data)


def draw_batches(
    make_examples: Callable[..., Data], batch_size: int, updates: int
) -> Data:
    """Draw fresh examples for each update and seed, so that no batch is too large."""
    all_inputs = []
    all_labels = []
    for seed in SEEDS:
        inputs, labels = make_examples(updates * batch_size, seed=seed)
        all_inputs.append(inputs.reshape(updates, batch_size, -1))
        all_labels.append(labels.reshape(updates, batch_size))
    return np.stack(all_inputs), np.stack(all_labels)


def fewest_updates(
    losses: np.ndarray, rates: np.ndarray, target: float
) -> tuple[float, float]:
    """Find the learning rate that gets below a loss first.

    Args:
        losses: `[rates, seeds, updates]`, as from `train`.
        rates: `[rates]`.

    Returns:
        The number of updates, a mean over the seeds, and the learning rate.
    """
    is_below = losses < target
    first = np.where(is_below.any(-1), is_below.argmax(-1) + 1, np.inf).mean(-1)
    best = int(np.argmin(first))
    return float(first[best]), float(rates[best])

"""Each strategy makes the update that a few lines of NumPy make: gradients that are N
times too large, or not summed over the devices, are found at once.
"""

import entry
import jax
import numpy as np
import optax
import pytest
from small_job import Line, points

from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split
from pmapdp.state import Task, create_state, named_leaves
from pmapdp.steps import STRATEGIES
from pmapdp.steps.placing import fetch

EXAMPLES = 19  # on 8 devices, one of which holds padding alone
LEARNING_RATE = 0.1
TOLERANCE = 1e-6  # the update itself is about 0.03


def update_by_hand(kernel, bias, inputs, labels):
    """One update of SGD for a linear classifier, with the gradient of the mean loss."""
    logits = inputs @ kernel + bias
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    errors = (probabilities - np.eye(3)[labels]) / len(labels)
    return (
        kernel - LEARNING_RATE * inputs.T @ errors,
        bias - LEARNING_RATE * errors.sum(0),
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_update_of_sgd_equals_numpy(strategy):
    devices = jax.devices()[: 1 if strategy == "single" else 8]
    task = Task(entry.built(Line), optax.sgd(LEARNING_RATE))
    steps = STRATEGIES[strategy](task, devices)
    examples = points(EXAMPLES, 0)
    batches = Batches(Split(*examples), EXAMPLES, devices=len(devices))
    state = create_state(task)
    before = named_leaves(jax.device_get(state.params))
    batch = steps.place_batch(next(batches.epoch(0)))
    state, _ = steps.train_step(steps.place_state(state), batch)
    after = named_leaves(fetch(state).params)
    names = ("out.kernel", "out.bias")
    wanted = update_by_hand(
        *(np.asarray(before[name], np.float64) for name in names),
        np.asarray(examples.inputs, np.float64),
        examples.labels,
    )
    for name, expected in zip(names, wanted, strict=True):
        assert np.abs(expected - before[name]).max() > 100 * TOLERANCE
        np.testing.assert_allclose(after[name], expected, rtol=0, atol=TOLERANCE)

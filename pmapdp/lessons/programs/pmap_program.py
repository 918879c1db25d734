"""A training program as they were written from 2020 to 2023: Flax Linen, and `jax.pmap` over a stacked state.

Lesson 12 ports it. It runs as it is: `python -m pmapdp.lessons.programs.pmap_program`.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils, serialization
from flax.training import common_utils, train_state
from jax import lax

BATCH, EPOCHS, DROPOUT = 256, 2, 0.2


class Net(nn.Module):
    """`[b, 784]` pixels to `[b, 10]` logits."""

    dropout: float = DROPOUT
    axis_name: str | None = None  # over which batch norm averages; None: each device uses its own examples

    @nn.compact
    def __call__(self, x, train):
        """Forward pass; `train` turns dropout on and lets batch norm use the batch."""
        x = nn.Dense(64, use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, axis_name=self.axis_name)(x)
        x = nn.Dropout(self.dropout, deterministic=not train)(nn.relu(x))
        return nn.Dense(10)(x)


class TrainState(train_state.TrainState):
    """Parameters, optimizer state and step, and the running statistics of batch norm."""

    batch_stats: Any


def create_state(key, steps, dropout=DROPOUT, axis_name=None):
    """The state of one device."""
    net = Net(dropout, axis_name)
    variables = net.init(key, jnp.zeros((1, 784)), train=False)
    rule = optax.sgd(optax.cosine_decay_schedule(0.1, steps), momentum=0.9)
    params, batch_stats = variables["params"], variables["batch_stats"]
    return TrainState.create(apply_fn=net.apply, params=params, tx=rule, batch_stats=batch_stats)


def loss_and_update(state, batch, key):
    """Loss, gradients, correct answers and new statistics of the examples that it is given."""

    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, new = state.apply_fn(
            variables, batch["image"], train=True, mutable=["batch_stats"], rngs={"dropout": key}
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return losses.mean(), (new["batch_stats"], logits)

    (loss, (batch_stats, logits)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return {"loss": loss, "accuracy": (logits.argmax(-1) == batch["label"]).mean()}, grads, batch_stats


def train_step(state, batch, key):
    """One update on one device: arrays have no device axis here."""
    key = jax.random.fold_in(key, lax.axis_index("batch"))
    metrics, grads, batch_stats = loss_and_update(state, batch, key)
    metrics, grads = lax.pmean((metrics, grads), axis_name="batch")
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), metrics


def eval_step(state, batch):
    """The share of right answers."""
    logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, batch["image"], train=False)
    return lax.pmean((logits.argmax(-1) == batch["label"]).mean(), axis_name="batch")


p_train_step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
p_eval_step = jax.pmap(eval_step, axis_name="batch")
average = jax.pmap(lambda x: lax.pmean(x, "x"), axis_name="x")


def batches(images, labels):
    """Batches of BATCH examples; what is left at the end is dropped."""
    for first in range(0, len(labels) - BATCH + 1, BATCH):
        rows = slice(first, first + BATCH)
        yield {"image": images[rows], "label": labels[rows]}


def train(train_set, test_set, dropout=DROPOUT):
    """Train, print, and return the stacked state: a device axis `[N, ...]` on every array."""
    steps = EPOCHS * (len(train_set[1]) // BATCH)
    state = jax_utils.replicate(create_state(jax.random.PRNGKey(0), steps, dropout))
    key = jax.random.PRNGKey(1)
    for epoch in range(EPOCHS):
        for batch in batches(*train_set):
            key, step_key = jax.random.split(key)
            state, metrics = p_train_step(state, common_utils.shard(batch), jax_utils.replicate(step_key))
        state = state.replace(batch_stats=average(state.batch_stats))  # each device had statistics of its own
        accuracies = [jax_utils.unreplicate(p_eval_step(state, common_utils.shard(b))) for b in batches(*test_set)]
        loss = jax_utils.unreplicate(metrics)["loss"]
        print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {np.mean(accuracies):.4f}")
    return state


def save(state, path):
    """One copy of the state, without the device axis."""
    path.write_bytes(serialization.to_bytes(jax_utils.unreplicate(state)))


if __name__ == "__main__":
    from pmapdp import devices
    from pmapdp.registry import load_data

    devices.simulate(8)
    data = load_data("digits")
    train(*((split.inputs.reshape(-1, 784) / 255.0, split.labels) for split in (data.train, data.test)))

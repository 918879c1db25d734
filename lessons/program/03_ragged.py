"""Train a small network with Flax and Optax: `python 03_ragged.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

B, EPOCHS = 128, 5  # examples per update, passes over the data


def make_clouds(examples, seed):
    """Points in ten clouds that overlap: inputs [n, 64], labels [n]."""
    centres = np.random.default_rng(0).normal(size=(10, 64))
    random = np.random.default_rng(seed)
    labels = random.integers(10, size=examples)
    inputs = centres[labels] + 2.5 * random.normal(size=(examples, 64))
    return inputs.astype(np.float32), labels.astype(np.int32)


def batches(inputs, labels, seed):
    """All examples once, shuffled, B at a time. The last batch has the rest."""
    order = np.random.default_rng(seed).permutation(len(inputs))
    for start in range(0, len(order), B):
        rows = order[start : start + B]
        yield inputs[rows], labels[rows]


class Network(nnx.Module):
    """Inputs [b, 64] to logits [b, 10]."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.output = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, inputs):
        return self.output(nnx.relu(self.hidden(inputs)))


def loss_sums(model, batch):
    """The loss, summed over the batch, and the sums that the metrics are made of."""
    inputs, labels = batch
    logits = model(inputs)
    losses = -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels]
    correct = logits.argmax(-1) == labels
    sums = {"loss": losses.sum(), "correct": correct.sum(), "count": len(labels)}
    return sums["loss"], sums


def init_state():
    model = Network(nnx.Rngs(0))
    return model, optimizer.init(model)


def train_step(state, batch):
    """One update: the new state, and the metric sums of this batch."""
    model, optimizer_state = state
    gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
    count = sums["count"]
    gradients = jax.tree.map(lambda g: g / count, gradients)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return (optax.apply_updates(model, updates), optimizer_state), sums


def eval_step(model, batch):
    """The metric sums of a batch."""
    return loss_sums(model, batch)[1]


train_step = jax.jit(train_step)  # compiled at the first call
eval_step = jax.jit(eval_step)


def report(all_sums):
    """Mean loss and accuracy over the examples of some batches."""
    totals = {name: float(sum(sums[name] for sums in all_sums)) for name in all_sums[0]}
    count = totals["count"]
    return f"loss {totals['loss'] / count:.4f}, accuracy {totals['correct'] / count:.4f}"


train_data, test_data = make_clouds(5_000, seed=1), make_clouds(1_000, seed=2)
optimizer = optax.adam(3e-3)
state = init_state()

for epoch in range(EPOCHS):
    train_sums = []
    for batch in batches(*train_data, seed=epoch):
        state, sums = train_step(state, batch)
        train_sums.append(sums)
    test_sums = [eval_step(state[0], batch) for batch in batches(*test_data, seed=0)]
    print(f"epoch {epoch}: {report(train_sums)} | test: {report(test_sums)}")

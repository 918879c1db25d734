"""Train a small network in JAX, which finds the gradients: `python 02_jax.py`."""

import jax
import jax.numpy as jnp
import numpy as np

B, EPOCHS, RATE = 128, 5, 0.1  # examples per update, passes over the data, learning rate


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


def init_model():
    """Weights of two layers. The roots keep the activations about as large as the inputs."""
    random = np.random.default_rng(0)
    model = {
        "W1": random.normal(size=(64, 32)) / np.sqrt(64),
        "b1": np.zeros(32),
        "W2": random.normal(size=(32, 10)) / np.sqrt(32),
        "b2": np.zeros(10),
    }
    return {name: array.astype(np.float32) for name, array in model.items()}


def forward(model, inputs):
    """Inputs [b, 64] to logits [b, 10]."""
    hidden = jnp.maximum(inputs @ model["W1"] + model["b1"], 0)
    return hidden @ model["W2"] + model["b2"]


def loss_sums(model, batch):
    """The loss, summed over the batch, and the sums that the metrics are made of."""
    inputs, labels = batch
    logits = forward(model, inputs)
    losses = -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels]
    correct = logits.argmax(-1) == labels
    sums = {"loss": losses.sum(), "correct": correct.sum(), "count": len(labels)}
    return sums["loss"], sums


def train_step(model, batch):
    """One update: the new model, and the metric sums of this batch."""
    gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
    count = sums["count"]
    return jax.tree.map(lambda w, g: w - RATE * g / count, model, gradients), sums


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
model = init_model()

for epoch in range(EPOCHS):
    train_sums = []
    for batch in batches(*train_data, seed=epoch):
        model, sums = train_step(model, batch)
        train_sums.append(sums)
    test_sums = [eval_step(model, batch) for batch in batches(*test_data, seed=0)]
    print(f"epoch {epoch}: {report(train_sums)} | test: {report(test_sums)}")

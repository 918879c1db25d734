"""Train a small network in NumPy, with gradients by hand: `python 01_numpy.py`."""

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
    """Inputs [b, 64] to hidden activations [b, 32] and logits [b, 10]."""
    hidden = np.maximum(inputs @ model["W1"] + model["b1"], 0)
    return hidden, hidden @ model["W2"] + model["b2"]


def log_softmax(logits):
    """Logarithms of the classes' probabilities [b, 10]."""
    shifted = logits - logits.max(-1, keepdims=True)  # so that exp never overflows
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def loss_sums(logits, labels):
    """The sums that the metrics are made of."""
    losses = -log_softmax(logits)[np.arange(len(labels)), labels]
    correct = logits.argmax(-1) == labels
    return {"loss": losses.sum(), "correct": correct.sum(), "count": len(labels)}


def backward(model, inputs, labels, hidden, probabilities):
    """Gradients of the summed loss, last layer first."""
    g = probabilities.copy()
    g[np.arange(len(labels)), labels] -= 1  # at the logits
    gradients = {"W2": hidden.T @ g, "b2": g.sum(0)}
    g = (g @ model["W2"].T) * (hidden > 0)  # through the layer, then through the ReLU
    return gradients | {"W1": inputs.T @ g, "b1": g.sum(0)}


def train_step(model, batch):
    """One update: the new model, and the metric sums of this batch."""
    inputs, labels = batch
    hidden, logits = forward(model, inputs)
    gradients = backward(model, inputs, labels, hidden, np.exp(log_softmax(logits)))
    sums = loss_sums(logits, labels)
    return {name: w - RATE * gradients[name] / sums["count"] for name, w in model.items()}, sums


def eval_step(model, batch):
    """The metric sums of a batch."""
    inputs, labels = batch
    return loss_sums(forward(model, inputs)[1], labels)


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

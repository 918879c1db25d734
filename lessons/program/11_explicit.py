"""Train a small network on eight devices with explicit sharding: `python 11_explicit.py`."""

import os

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

B, EPOCHS = 128, 5  # examples per update, passes over the data

os.environ["NPROC"] = "16"  # threads for 8 simulated devices: jax before 0.12 may abort with fewer
jax.config.update("jax_num_cpu_devices", 8)  # simulated, unless there are GPUs or TPUs
mesh = jax.make_mesh((jax.device_count(),), ("data",))  # with an Explicit axis
jax.set_mesh(mesh)
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))


def make_clouds(examples, seed):
    """Points in ten clouds that overlap: inputs [n, 64], labels [n]."""
    centres = np.random.default_rng(0).normal(size=(10, 64))
    random = np.random.default_rng(seed)
    labels = random.integers(10, size=examples)
    inputs = centres[labels] + 2.5 * random.normal(size=(examples, 64))
    return inputs.astype(np.float32), labels.astype(np.int32)


def batches(inputs, labels, seed):
    """All examples once, shuffled, B at a time. The last batch is padded with rows of weight 0."""
    order = np.random.default_rng(seed).permutation(len(inputs))
    for start in range(0, len(order), B):
        rows = order[start : start + B]
        weights = (np.arange(B) < len(rows)).astype(np.float32)
        rows = np.resize(rows, B)  # repeats rows if there are fewer than B
        yield inputs[rows], labels[rows], weights


class Network(nnx.Module):
    """Inputs [b, 64] to logits [b, 10]."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.output = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, inputs):
        return self.output(nnx.relu(self.hidden(inputs)))


def loss_sums(model, batch):
    """The loss, summed over the batch, and the sums that the metrics are made of."""
    inputs, labels, weights = batch
    for x in batch:
        if jax.typeof(x).sharding.spec[0] != "data":
            raise TypeError(f"the batch is not split: {jax.typeof(x)}")
    logits = model(inputs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    correct = logits.argmax(-1) == labels
    losses, correct = weights * losses, weights * correct
    sums = {"loss": losses.sum(), "correct": correct.sum(), "count": weights.sum()}
    return sums["loss"], sums


def init_state():
    model = Network(nnx.Rngs(0))
    return model, optimizer.init(model)


def place_state(state):
    return jax.device_put(state, replicated)


def place_batch(batch):
    return jax.device_put(batch, split)


def train_step(state, batch):
    """One update: the new state, and the metric sums of this batch."""
    model, optimizer_state = state
    gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
    count = sums["count"]
    gradients = jax.tree.map(lambda g: g / count, gradients)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return (optax.apply_updates(model, updates), optimizer_state), sums


def eval_step(state, batch):
    return loss_sums(state[0], batch)[1]


train_step = jax.jit(train_step, donate_argnums=0)
eval_step = jax.jit(eval_step)


def report(all_sums):
    """Mean loss and accuracy over the examples of some batches."""
    totals = jax.tree.map(lambda *sums: float(sum(sums)), *jax.device_get(all_sums))
    count = totals["count"]
    return f"loss {totals['loss'] / count:.4f}, accuracy {totals['correct'] / count:.4f}"


train_data, test_data = make_clouds(5_000, seed=1), make_clouds(1_000, seed=2)
optimizer = optax.adam(3e-3)
state = place_state(init_state())

for epoch in range(EPOCHS):
    train_sums = []
    for batch in batches(*train_data, seed=epoch):
        state, sums = train_step(state, place_batch(batch))
        train_sums.append(sums)
    test_sums = [eval_step(state, place_batch(batch)) for batch in batches(*test_data, seed=0)]
    print(f"epoch {epoch}: {report(train_sums)} | test: {report(test_sums)}")

print("the inputs of a batch:", jax.typeof(place_batch(batch)[0]))

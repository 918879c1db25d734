"""Train a small network, time its step on one device, and predict 64: `python 18_measure.py`."""

import os
import time

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

B, EPOCHS = 128, 5  # examples per update, passes over the data
LATENCY, BANDWIDTH = 2e-5, 1.25e9  # seconds a message, bytes per second: 10 Gbit/s, assumed

os.environ["NPROC"] = "16"  # threads for 8 simulated devices: jax before 0.12 may abort with fewer
jax.config.update("jax_num_cpu_devices", 8)  # simulated, unless there are GPUs or TPUs
mesh = Mesh(jax.devices(), ("data",))
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
    logits = model(inputs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    correct = logits.argmax(-1) == labels
    sums = {"loss": weights @ losses, "correct": weights @ correct, "count": weights.sum()}
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


step_of_one = jax.jit(train_step)  # for one device
options = {"in_shardings": (replicated, split), "out_shardings": replicated}
train_step = jax.jit(train_step, **options, donate_argnums=0)
eval_step = jax.jit(eval_step, **options)


def report(all_sums):
    """Mean loss and accuracy over the examples of some batches."""
    totals = jax.tree.map(lambda *sums: float(sum(sums)), *jax.device_get(all_sums))
    count = totals["count"]
    return f"loss {totals['loss'] / count:.4f}, accuracy {totals['correct'] / count:.4f}"


def measure(step, state, batch):
    """Quartiles of the seconds of a step, with ten in a call: so Python's part hardly counts."""
    ten = jax.jit(lambda state, batch: jax.lax.scan(lambda s, _: step(s, batch), state, length=10))
    program = ten.lower(state, batch).compile()
    seconds = []
    for _ in range(100):
        start = time.perf_counter()
        jax.block_until_ready(program(state, batch))  # or the clock would see only the call
        seconds.append(time.perf_counter() - start)
    return np.quantile(seconds, (0.25, 0.5, 0.75)) / 10


def all_reduce_seconds(n, N):
    """For n bytes over N = 2, 4, 8, ... devices, by the faster of two algorithms."""
    butterfly = np.log2(N) * (LATENCY + n / BANDWIDTH)
    halving = 2 * (np.log2(N) * LATENCY + (N - 1) / N * n / BANDWIDTH)
    return min(butterfly, halving)


def speedup(seconds, all_reduce, N):
    """N devices over one, if each computes for so many seconds: no overlap, full overlap."""
    left_over = max(0, all_reduce - 2 / 3 * seconds)  # a backward pass takes two thirds
    return N * seconds / (seconds + all_reduce), N * seconds / (seconds + left_over)


train_data, test_data = make_clouds(5_000, seed=1), make_clouds(1_000, seed=2)
optimizer = optax.adam(3e-3)
on_one = init_state(), next(batches(*train_data, seed=0))
lower, seconds, upper = measure(step_of_one, *jax.device_put(on_one, jax.devices()[0]))
print(f"one device: {1e3 * seconds:.3f} ms a step, mostly {1e3 * lower:.3f} to {1e3 * upper:.3f}")
n = 4 * (sum(w.size for w in jax.tree.leaves(on_one[0][0])) + 3)  # bytes: gradients, metric sums
for N in (2, 8, 64):
    low, high = speedup(seconds, all_reduce_seconds(n, N), N)
    print(f"{N} devices: {low:.1f} to {high:.1f} times as fast")
state = place_state(init_state())

for epoch in range(EPOCHS):
    train_sums = []
    for batch in batches(*train_data, seed=epoch):
        state, sums = train_step(state, place_batch(batch))
        train_sums.append(sums)
    test_sums = [eval_step(state, place_batch(batch)) for batch in batches(*test_data, seed=0)]
    print(f"epoch {epoch}: {report(train_sums)} | test: {report(test_sums)}")

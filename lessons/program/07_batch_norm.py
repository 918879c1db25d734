"""Train a small network on eight devices with global batch norm: `python 07_batch_norm.py`."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

B, EPOCHS = 128, 5  # examples per update, passes over the data

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


class BatchNorm(nnx.Module):
    """Batch norm of [b, C] over the examples of all devices, without the padding."""

    def __init__(self, features):
        self.scale = nnx.Param(jnp.ones(features))
        self.bias = nnx.Param(jnp.zeros(features))
        self.mean = nnx.BatchStat(jnp.zeros(features))  # running averages, not parameters
        self.variance = nnx.BatchStat(jnp.ones(features))

    def __call__(self, x, weights, train):
        mean, variance = self.mean[...], self.variance[...]  # [...] reads or writes the array
        if train:
            x0 = x - mean  # near 0, so E[x0^2] - E[x0]^2 loses few digits
            rows = weights[:, None]
            sums = rows.sum(), (rows * x0).sum(0), (rows * jnp.square(x0)).sum(0)
            count, first, second = lax.pmean(sums, "data")  # the layer's one all-reduce
            mean = mean + first / count
            variance = jnp.maximum(second / count - jnp.square(first / count), 0)
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * mean
            self.variance[...] = 0.9 * self.variance[...] + 0.1 * variance
        return (x - mean) * lax.rsqrt(variance + 1e-5) * self.scale + self.bias


class Network(nnx.Module):
    """Inputs [b, 64] to logits [b, 10]."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.norm = BatchNorm(32)
        self.output = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, inputs, weights, train):
        hidden = self.norm(self.hidden(inputs), weights, train)
        return self.output(nnx.relu(hidden))


def loss_sums(model, batch, train=True):
    """The loss, summed over the batch, and the sums that the metrics are made of."""
    inputs, labels, weights = batch
    logits = model(inputs, weights, train)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    correct = logits.argmax(-1) == labels
    sums = {"loss": weights @ losses, "correct": weights @ correct, "count": weights.sum()}
    return sums["loss"], sums


def init_state():
    model = Network(nnx.Rngs(0))
    return model, optimizer.init(nnx.state(model, nnx.Param))


def place_state(state):
    return jax.device_put(state, replicated)


def place_batch(batch):
    batch = jax.tree.map(lambda x: x.reshape(mesh.size, -1, *x.shape[1:]), batch)  # [N, b, ...]
    return jax.device_put(batch, split)


def train_step(state, batch):
    """One update: the new state, and the metric sums of this batch."""
    model, optimizer_state = state
    parameters = nnx.state(model, nnx.Param)
    gradients, sums = nnx.grad(loss_sums, has_aux=True)(model, batch)  # of the parameters alone
    gradients, count = lax.pmean((gradients, sums["count"]), "data")  # all-reduce: N cancels below
    gradients = jax.tree.map(lambda g: g / count, gradients)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, parameters)
    nnx.update(model, optax.apply_updates(parameters, updates))
    return (model, optimizer_state), lax.psum(sums, "data")


def eval_step(state, batch):
    return lax.psum(loss_sums(state[0], batch, train=False)[1], "data")


train_step = jax.pmap(train_step, "data", in_axes=(None, 0), out_axes=None, donate_argnums=0)
eval_step = jax.pmap(eval_step, "data", in_axes=(None, 0), out_axes=None)


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

mean = state[0].norm.mean[...]
differing = sum(not np.array_equal(shard.data, mean) for shard in mean.addressable_shards)
print("copies of the running mean that differ:", differing)

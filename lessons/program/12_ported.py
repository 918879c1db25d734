"""The pmap program of 12_old_pmap.py, ported to shard_map: `python 12_ported.py`."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen
from flax.training import train_state
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

B, EPOCHS = 128, 5  # examples per update, passes over the data

os.environ["NPROC"] = "16"  # threads for 8 simulated devices: jax before 0.12 may abort with fewer
jax.config.update("jax_num_cpu_devices", 8)  # simulated, unless there are GPUs or TPUs
mesh = Mesh(jax.devices(), ("batch",))
replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))


def make_clouds(examples, seed):
    """Points in ten clouds that overlap: inputs [n, 64], labels [n]."""
    centres = np.random.default_rng(0).normal(size=(10, 64))
    random = np.random.default_rng(seed)
    labels = random.integers(10, size=examples)
    inputs = centres[labels] + 2.5 * random.normal(size=(examples, 64))
    return inputs.astype(np.float32), labels.astype(np.int32)


def batches(inputs, labels, seed):
    """Shuffled examples, B at a time. The last batch is dropped if it isn't full."""
    order = np.random.default_rng(seed).permutation(len(inputs))
    for start in range(0, len(order) - B + 1, B):
        rows = order[start : start + B]
        yield {"inputs": inputs[rows], "labels": labels[rows]}


class Network(linen.Module):
    """Inputs [b, 64] to logits [b, 10]."""

    dropout: float = 0.2

    @linen.compact
    def __call__(self, x, train):
        x = linen.Dense(32)(x)
        x = linen.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = linen.Dropout(self.dropout, deterministic=not train)(linen.relu(x))
        return linen.Dense(10)(x)


class TrainState(train_state.TrainState):
    """Parameters, optimizer state and step, and the running statistics of batch norm."""

    batch_stats: Any


def init_state(**options):
    network = Network(**options)
    variables = network.init(jax.random.PRNGKey(0), jnp.zeros((1, 64)), train=False)
    return TrainState.create(apply_fn=network.apply, tx=optax.adam(3e-3), **variables)


def compute_gradients(state, batch, key):
    """Gradients, new statistics and metrics of the examples in `batch`."""

    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updates = state.apply_fn(
            variables, batch["inputs"], train=True, mutable=["batch_stats"], rngs={"dropout": key}
        )
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()
        return loss, updates["batch_stats"]

    (loss, batch_stats), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return gradients, batch_stats, {"loss": loss}


def train_step(state, batch, key):
    key = jax.random.fold_in(key, lax.axis_index("batch"))
    local = state.replace(params=lax.pcast(state.params, "batch", to="varying"))
    gradients, batch_stats, metrics = lax.pmean(compute_gradients(local, batch, key), "batch")
    return state.apply_gradients(grads=gradients, batch_stats=batch_stats), metrics


def eval_step(state, batch):
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    correct = state.apply_fn(variables, batch["inputs"], train=False).argmax(-1) == batch["labels"]
    return lax.pmean(correct.mean(), "batch")


p_train_step = jax.shard_map(train_step, mesh=mesh, in_specs=(P(), P("batch"), P()), out_specs=P())
p_train_step = jax.jit(p_train_step, donate_argnums=0)
p_eval_step = jax.shard_map(eval_step, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P())
p_eval_step = jax.jit(p_eval_step)

train_data, test_data = make_clouds(5_000, seed=1), make_clouds(1_000, seed=2)
state = jax.device_put(init_state(), replicated)
key = jax.random.PRNGKey(1)

for epoch in range(EPOCHS):
    for batch in batches(*train_data, seed=epoch):
        key, step_key = jax.random.split(key)
        state, metrics = p_train_step(state, jax.device_put(batch, split), step_key)
    accuracies = [
        p_eval_step(state, jax.device_put(batch, split)) for batch in batches(*test_data, seed=0)
    ]
    print(f"epoch {epoch}: loss {metrics['loss']:.4f} | test: accuracy {np.mean(accuracies):.4f}")

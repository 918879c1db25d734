"""The pmap program of 12_pmap_2022.py, repaired for today: `python 12_old_pmap.py`."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils, linen
from flax.training import common_utils, train_state
from jax import lax

B, EPOCHS = 128, 5  # examples per update, passes over the data

os.environ["NPROC"] = "16"  # threads for 8 simulated devices: jax before 0.12 may abort with fewer
jax.config.update("jax_num_cpu_devices", 8)  # simulated, unless there are GPUs or TPUs


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
    gradients, batch_stats, metrics = compute_gradients(state, batch, key)
    gradients, metrics = lax.pmean((gradients, metrics), "batch")
    return state.apply_gradients(grads=gradients, batch_stats=batch_stats), metrics


def eval_step(state, batch):
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    correct = state.apply_fn(variables, batch["inputs"], train=False).argmax(-1) == batch["labels"]
    return lax.pmean(correct.mean(), "batch")


p_train_step = jax.pmap(train_step, "batch", donate_argnums=0)
p_eval_step = jax.pmap(eval_step, "batch")
p_average = jax.pmap(lambda x: lax.pmean(x, "batch"), "batch")

train_data, test_data = make_clouds(5_000, seed=1), make_clouds(1_000, seed=2)
state = jax_utils.replicate(init_state())
key = jax.random.PRNGKey(1)

for epoch in range(EPOCHS):
    for batch in batches(*train_data, seed=epoch):
        key, step_key = jax.random.split(key)
        state, metrics = p_train_step(
            state, common_utils.shard(batch), jax_utils.replicate(step_key)
        )
    state = state.replace(batch_stats=p_average(state.batch_stats))
    accuracies = [
        p_eval_step(state, common_utils.shard(batch))[0] for batch in batches(*test_data, seed=0)
    ]
    print(
        f"epoch {epoch}: loss {metrics['loss'][0]:.4f} | test: accuracy {np.mean(accuracies):.4f}"
    )

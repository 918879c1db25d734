"""An image trainer in Flax Linen: its class holds the pmapped steps, and the last batch of an evaluation is padded."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.jax_utils import replicate, unreplicate
from flax.training.common_utils import shard, shard_prng_key, stack_forest
from flax.training.train_state import TrainState
from jax.lax import all_gather, pmean, psum


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.Dense(16)(x.reshape(x.shape[0], -1)))
        return nn.Dense(3)(nn.Dropout(0.2, deterministic=not train)(x))


class Trainer:
    """The state and the steps of all devices."""

    def __init__(self, seed=0):
        self.model = MLP()
        params = self.model.init(jax.random.PRNGKey(seed), jnp.zeros((1, 4, 4)), False)["params"]
        state = TrainState.create(apply_fn=self.model.apply, params=params, tx=optax.adam(1e-2))
        self.state, self.key = replicate(state), jax.random.PRNGKey(seed + 1)
        self.train_step = jax.pmap(self.update, axis_name="batch")
        self.eval_step = jax.pmap(self.evaluate, axis_name="batch")

    @staticmethod
    def update(state, batch, dropout_key):
        def loss_fn(params):
            logits = state.apply_fn({"params": params}, batch["image"], True, rngs={"dropout": dropout_key})
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
            return losses.mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        grads = pmean(grads, "batch")
        accuracy = (logits.argmax(-1) == batch["label"]).mean()
        return state.apply_gradients(grads=grads), pmean({"loss": loss, "accuracy": accuracy}, "batch")

    @staticmethod
    def evaluate(state, batch):
        logits = state.apply_fn({"params": state.params}, batch["image"], False)
        right = (logits.argmax(-1) == batch["label"]) * batch["weight"]
        return psum((right.sum(), batch["weight"].sum()), "batch"), all_gather(logits, "batch")

    def fit(self, steps):
        history = []
        for batch in batches(steps, 32):
            self.key, key = jax.random.split(self.key)
            self.state, metrics = self.train_step(self.state, shard(batch), shard_prng_key(key))
            history.append(unreplicate(metrics))
        return stack_forest(history)

    def accuracy(self, rows):
        (batch,) = batches(1, rows)
        padding = -rows % jax.local_device_count()
        batch = {name: np.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)) for name, x in batch.items()}
        batch["weight"] = (np.arange(rows + padding) < rows).astype(np.float32)
        (right, count), logits = self.eval_step(self.state, shard(batch))
        return unreplicate(right) / unreplicate(count), np.concatenate(logits[0])[:rows]


def batches(steps, rows):
    random = np.random.default_rng(0)
    for _ in range(steps):
        label = random.integers(0, 3, rows)
        yield {"image": (random.normal(size=(rows, 4, 4)) + label[:, None, None]).astype(np.float32), "label": label}


def main():
    trainer = Trainer()
    history = trainer.fit(4)
    return jax.device_get(unreplicate(trainer.state)), history, trainer.accuracy(21)


if __name__ == "__main__":
    print(main()[1])

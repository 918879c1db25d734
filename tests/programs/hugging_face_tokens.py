"""A language model in the style of Hugging Face.

Dropout keys in the state, token counts, a padded evaluation.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils, traverse_util
from flax.training import train_state
from flax.training.common_utils import get_metrics, onehot, shard, shard_prng_key
from jax import Array

VOCABULARY = 11


class LanguageModel(nn.Module):
    @nn.compact
    def __call__(self, input_ids, deterministic=True):
        hidden = nn.Embed(VOCABULARY, 16)(input_ids)
        hidden = nn.Dropout(0.1)(
            nn.gelu(nn.Dense(16)(hidden)), deterministic=deterministic
        )
        return nn.Dense(VOCABULARY)(hidden)


class TrainState(train_state.TrainState):
    dropout_rng: Array

    def replicate(self):
        return jax_utils.replicate(self).replace(
            dropout_rng=shard_prng_key(self.dropout_rng)
        )


schedule = optax.linear_schedule(1e-2, 0.0, 100)


def decay_mask(params):
    flat = traverse_util.flatten_dict(params)
    return traverse_util.unflatten_dict({path: path[-1] != "bias" for path in flat})


def create_state(seed=0):
    rng, dropout_rng = jax.random.split(jax.random.PRNGKey(seed))
    params = LanguageModel().init(rng, jnp.zeros((1, 4), jnp.int32))["params"]
    tx = optax.adamw(schedule, weight_decay=0.01, mask=decay_mask)
    return TrainState.create(
        apply_fn=LanguageModel().apply, params=params, tx=tx, dropout_rng=dropout_rng
    )


def loss_fn(logits, labels, mask):
    loss = optax.softmax_cross_entropy(logits, onehot(labels, VOCABULARY)) * mask
    return loss.sum(), mask.sum()


def train_step(state, batch):
    dropout_rng, new_dropout_rng = jax.random.split(state.dropout_rng)

    def compute_loss(params):
        logits = state.apply_fn(
            {"params": params}, batch["input_ids"], False, rngs={"dropout": dropout_rng}
        )
        return loss_fn(logits, batch["labels"], batch["attention_mask"])

    (loss, num_labels), grad = jax.value_and_grad(compute_loss, has_aux=True)(
        state.params
    )
    num_labels = jax.lax.psum(
        num_labels, "batch"
    )  # the devices hold different numbers of tokens
    loss = jax.lax.psum(loss, "batch") / num_labels
    grad = jax.lax.psum(grad, "batch")
    grad = jax.tree_util.tree_map(lambda x: x / num_labels, grad)
    new_state = state.apply_gradients(grads=grad, dropout_rng=new_dropout_rng)
    return new_state, {"loss": loss, "learning_rate": schedule(state.step)}


def eval_step(params, batch):
    logits = LanguageModel().apply({"params": params}, batch["input_ids"])
    return {
        "loss": optax.softmax_cross_entropy(
            logits, onehot(batch["labels"], VOCABULARY)
        ).mean(-1)
    }


def batches(steps, rows):
    random = np.random.default_rng(0)
    for _ in range(steps):
        ids = random.integers(0, VOCABULARY, (rows, 7))
        mask = (np.arange(6) < random.integers(1, 7, rows)[:, None]).astype(np.float32)
        yield {"input_ids": ids[:, :-1], "labels": ids[:, 1:], "attention_mask": mask}


def main():
    state = create_state().replicate()
    p_train_step = jax.pmap(train_step, "batch", donate_argnums=(0,))
    p_eval_step = jax.pmap(eval_step)
    train_metrics = []
    for batch in batches(4, 32):
        state, metric = p_train_step(state, shard(batch))
        train_metrics.append(metric)
    metrics = get_metrics(train_metrics)
    (last,) = batches(1, 13)
    losses = jax_utils.pad_shard_unpad(p_eval_step)(state.params, last)["loss"]
    return jax.device_get(jax_utils.unreplicate(state)), metrics, jax.device_get(losses)


if __name__ == "__main__":
    print(main()[1])

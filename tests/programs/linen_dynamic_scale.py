"""Flax Linen with a stacked TrainState: batch norm on each device, half precision and a dynamic loss scale."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils
from flax.training import common_utils, train_state
from flax.training import dynamic_scale as dynamic_scale_lib
from jax import lax, random


class ConvNet(nn.Module):
    dtype: Any = jnp.float16

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Conv(8, (3, 3), strides=2, use_bias=False, dtype=self.dtype)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, dtype=self.dtype)(x)
        x = nn.relu(x).mean((1, 2))
        return jnp.asarray(nn.Dense(4, dtype=self.dtype)(x), x.dtype).astype(jnp.float32)


class TrainState(train_state.TrainState):
    batch_stats: Any
    dynamic_scale: dynamic_scale_lib.DynamicScale


def create_train_state(rng):
    variables = ConvNet().init(rng, jnp.ones((1, 8, 8, 1)), train=False)
    return TrainState.create(
        apply_fn=ConvNet().apply,
        params=variables["params"],
        tx=optax.sgd(optax.linear_schedule(0.1, 0.0, 100), momentum=0.9, nesterov=True),
        batch_stats=variables["batch_stats"],
        dynamic_scale=dynamic_scale_lib.DynamicScale(growth_interval=2),
    )


def train_step(state, batch):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, new = state.apply_fn(variables, batch["image"], mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        decay = sum((x**2).sum() for x in jax.tree_util.tree_leaves(params) if x.ndim > 1)
        return losses.mean() + 1e-4 * 0.5 * decay, (new, logits)

    grad_fn = state.dynamic_scale.value_and_grad(loss_fn, has_aux=True, axis_name="batch")
    dynamic_scale, is_finite, (loss, (new, logits)), grads = grad_fn(state.params)  # the gradients are averaged
    accuracy = jnp.mean(jnp.argmax(logits, -1) == batch["label"])
    metrics = lax.pmean({"loss": loss, "accuracy": accuracy}, axis_name="batch")
    new_state = state.apply_gradients(grads=grads, batch_stats=new["batch_stats"], dynamic_scale=dynamic_scale)
    choose = functools.partial(jnp.where, is_finite)
    params = jax.tree_util.tree_map(choose, new_state.params, state.params)
    opt_state = jax.tree_util.tree_map(choose, new_state.opt_state, state.opt_state)
    return new_state.replace(params=params, opt_state=opt_state), metrics


cross_replica_mean = jax.pmap(lambda x: lax.pmean(x, "x"), "x")


def batches(steps, rows=32):
    random_numbers = np.random.default_rng(0)
    for _ in range(steps):
        label = random_numbers.integers(0, 4, rows)
        image = random_numbers.normal(size=(rows, 8, 8, 1)) + label[:, None, None, None]
        yield {"image": image.astype(np.float32), "label": label}


def main():
    state = jax_utils.replicate(create_train_state(random.PRNGKey(0)))
    p_train_step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
    train_metrics = []
    for batch in jax_utils.prefetch_to_device(map(common_utils.shard, batches(4)), 2):
        state, metrics = p_train_step(state, batch)
        train_metrics.append(metrics)
    state = state.replace(batch_stats=cross_replica_mean(state.batch_stats))
    summary = jax.tree_util.tree_map(lambda x: x.mean(), common_utils.get_metrics(train_metrics))
    return jax.device_get(jax_utils.unreplicate(state)), summary


if __name__ == "__main__":
    print(main()[1])

"""Haiku with jmp: parameters, network state, optimizer state and loss scale are arguments and results of the step."""

import functools
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from jax import lax

policy = jmp.get_policy("params=float32,compute=bfloat16,output=float32")
optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(1e-2))


class TrainState(NamedTuple):
    params: Any
    state: Any
    opt_state: Any
    loss_scale: jmp.DynamicLossScale


def _forward(inputs, is_training):
    hidden = hk.Linear(16)(inputs)
    hidden = hk.BatchNorm(True, True, 0.9)(hidden.astype(jnp.float32), is_training)
    return hk.Linear(1)(jax.nn.relu(hidden))[:, 0]


forward = hk.transform_with_state(_forward)


def initial_state(rng, inputs):
    params, state = forward.init(rng, inputs, is_training=True)
    loss_scale = jmp.DynamicLossScale(jnp.float32(2**10), counter=jnp.zeros((), jnp.int32), period=2)
    return TrainState(params, state, optimizer.init(params), loss_scale)


def loss_fn(params, state, loss_scale, batch):
    params, inputs = policy.cast_to_compute((params, batch["x"]))
    outputs, state = forward.apply(params, state, None, inputs, is_training=True)
    loss = jnp.square(policy.cast_to_output(outputs) - batch["y"]).mean()
    return loss_scale.scale(loss), (loss, state)


@functools.partial(jax.pmap, axis_name="i", donate_argnums=(0,))
def train_step(train_state, batch):
    params, state, opt_state, loss_scale = train_state
    grads, (loss, new_state) = jax.grad(loss_fn, has_aux=True)(params, state, loss_scale, batch)
    grads = loss_scale.unscale(lax.pmean(grads, axis_name="i"))
    updates, new_opt_state = optimizer.update(grads, opt_state)
    new_params = optax.apply_updates(params, updates)
    finite = jmp.all_finite(grads)
    new_params, new_opt_state = jmp.select_tree(finite, (new_params, new_opt_state), (params, opt_state))
    metrics = lax.pmean({"train_loss": loss, "loss_scale": loss_scale.loss_scale}, axis_name="i")
    return TrainState(new_params, new_state, new_opt_state, loss_scale.adjust(finite)), metrics


def data(steps, rows):
    random = np.random.default_rng(0)
    for _ in range(steps):
        x = random.normal(size=(rows, 6)).astype(np.float32)
        yield {"x": x, "y": np.sin(x.sum(1)).astype(np.float32)}


def main():
    devices = jax.local_device_count()
    sharded = [jax.tree_util.tree_map(lambda x: x.reshape((devices, -1, *x.shape[1:])), batch) for batch in data(4, 32)]
    rng = jnp.broadcast_to(jax.random.PRNGKey(0), (devices, 2))
    train_state = jax.pmap(initial_state)(rng, sharded[0]["x"])
    for batch in sharded:
        train_state, metrics = train_step(train_state, batch)
    first = lambda tree: jax.tree_util.tree_map(lambda x: x[0], tree)  # noqa: E731
    return jax.device_get(first(train_state)), jax.device_get(first(metrics))


if __name__ == "__main__":
    print(main()[1])

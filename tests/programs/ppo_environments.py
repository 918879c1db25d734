"""PPO: every device has environments and keys of its own, and nothing is read from a data set."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

_PMAP_AXIS_NAME = "i"
optimizer = optax.adam(3e-3)


class TrainingState(NamedTuple):
    params: Any
    optimizer_state: Any
    normalizer: Any
    env_steps: Any


def reset(key, environments):
    return jax.random.uniform(key, (environments, 2), minval=-1.0, maxval=1.0)


def env_step(state, action):
    position, speed = state[:, 0], state[:, 1]
    speed = 0.9 * speed + 0.1 * jnp.clip(action, -1.0, 1.0)
    position = position + 0.1 * speed
    return jnp.stack([position, speed], 1), -jnp.square(position)


def init_params(key):
    key1, key2 = jax.random.split(key)
    return {"w": 0.5 * jax.random.normal(key1, (2, 16)), "mean": 0.1 * jax.random.normal(key2, (16,)),
            "value": jnp.zeros(16), "log_std": jnp.zeros(())}  # fmt: skip


def normalize(normalizer, observation):
    mean = normalizer["sum"] / normalizer["count"]
    variance = jnp.maximum(normalizer["squares"] / normalizer["count"] - mean**2, 1e-3)
    return (observation - mean) / jnp.sqrt(variance)


def policy(params, observation):
    hidden = jnp.tanh(observation @ params["w"])
    return hidden @ params["mean"], hidden @ params["value"]


def log_prob(params, mean, action):
    return -0.5 * jnp.square((action - mean) / jnp.exp(params["log_std"])) - params["log_std"]


def loss_fn(params, normalizer, data):
    mean, value = policy(params, normalize(normalizer, data["observation"]))
    advantage = data["reward"] - value
    ratio = jnp.exp(log_prob(params, mean, data["action"]) - data["log_prob"])
    constant = lax.stop_gradient(advantage)
    surrogate = jnp.minimum(ratio * constant, jnp.clip(ratio, 0.8, 1.2) * constant).mean()
    return -surrogate + 0.5 * jnp.square(advantage).mean()


def training_epoch(training_state, env_state, key):
    def act(carry, key):
        state = carry
        mean, _ = policy(training_state.params, normalize(training_state.normalizer, state))
        action = mean + jnp.exp(training_state.params["log_std"]) * jax.random.normal(key, mean.shape)
        new_state, reward = env_step(state, action)
        chosen = log_prob(training_state.params, mean, action)
        return new_state, {"observation": state, "action": action, "reward": reward, "log_prob": chosen}

    def minibatch_step(carry, data):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, normalizer, data)
        grads = lax.pmean(grads, axis_name=_PMAP_AXIS_NAME)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    key, key_generate = jax.random.split(key)
    env_state, data = lax.scan(act, env_state, jax.random.split(key_generate, 4))
    observed = data["observation"].reshape(-1, 2)
    sums = {"sum": observed.sum(0), "squares": jnp.square(observed).sum(0), "count": jnp.float32(len(observed))}
    sums = lax.psum(sums, axis_name=_PMAP_AXIS_NAME)
    normalizer = jax.tree_util.tree_map(jnp.add, training_state.normalizer, sums)
    carry = training_state.params, training_state.optimizer_state
    (params, opt_state), losses = lax.scan(minibatch_step, carry, data)
    metrics = lax.pmean({"loss": losses.mean(), "reward": data["reward"].mean()}, axis_name=_PMAP_AXIS_NAME)
    steps = training_state.env_steps + lax.psum(observed.shape[0], axis_name=_PMAP_AXIS_NAME)
    return TrainingState(params, opt_state, normalizer, steps), env_state, key, metrics


def initial_training_state(key):
    params = init_params(key)
    normalizer = {"sum": jnp.zeros(2), "squares": jnp.ones(2), "count": jnp.ones(())}
    return TrainingState(params, optimizer.init(params), normalizer, jnp.zeros((), jnp.int32))


def _unpmap(tree):
    return jax.tree_util.tree_map(lambda x: x[0], tree)


def main(environments=4):
    devices = jax.local_device_count()
    key, key_env, key_params = jax.random.split(jax.random.PRNGKey(0), 3)
    stack = lambda x: jnp.broadcast_to(x, (devices, *jnp.shape(x)))  # noqa: E731
    training_state = jax.tree_util.tree_map(stack, initial_training_state(key_params))
    env_state = jax.pmap(functools.partial(reset, environments=environments))(jax.random.split(key_env, devices))
    keys = jax.random.split(key, devices)
    epoch = jax.pmap(training_epoch, axis_name=_PMAP_AXIS_NAME)
    for _ in range(3):
        training_state, env_state, keys, metrics = epoch(training_state, env_state, keys)
    return jax.device_get(_unpmap(training_state)), jax.device_get(env_state), jax.device_get(_unpmap(metrics))


if __name__ == "__main__":
    print(main()[2])

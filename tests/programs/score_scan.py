"""A score model: a pmapped scan of updates, noise from a key of each device, and averaged weights."""

import functools

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Score(nn.Module):
    @nn.compact
    def __call__(self, x, t):
        hidden = nn.swish(nn.Dense(32)(jnp.concatenate([x, t[:, None]], -1)))
        return nn.Dense(x.shape[-1])(hidden)


@flax.struct.dataclass
class State:
    step: jax.Array
    params: dict
    ema_params: dict
    opt_state: optax.OptState
    ema_rate: float = 0.9


optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(2e-3))


def init_state(rng):
    params = Score().init(rng, jnp.zeros((1, 2)), jnp.zeros(1))
    return State(step=jnp.zeros((), jnp.int32), params=params, ema_params=params, opt_state=optimizer.init(params))


def loss_fn(params, rng, batch):
    t_rng, noise_rng = jax.random.split(rng)
    t = jax.random.uniform(t_rng, (batch.shape[0],), batch.dtype, 1e-3, 1.0)
    noise = jax.random.normal(noise_rng, batch.shape, batch.dtype)
    score = Score().apply(params, batch + t[:, None] * noise, t)
    return jnp.mean(jnp.square(score * t[:, None] + noise).sum(-1))


def step_fn(carry_state, batch):
    rng, state = carry_state
    rng, step_rng = jax.random.split(rng)
    loss, grad = jax.value_and_grad(loss_fn)(state.params, step_rng, batch)
    grad = jax.lax.pmean(grad, axis_name="batch")
    updates, opt_state = optimizer.update(grad, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    rate = state.ema_rate
    ema_params = jax.tree_util.tree_map(lambda e, p: e * rate + p * (1.0 - rate), state.ema_params, params)
    new_state = state.replace(step=state.step + 1, params=params, ema_params=ema_params, opt_state=opt_state)
    loss = jax.lax.pmean(loss, axis_name="batch")
    return (rng, new_state), loss


def scanned_step(carry_state, batches):
    """Batches [n_jitted_steps, b, 2]."""
    return jax.lax.scan(step_fn, carry_state, batches)


def data(devices, calls, n_jitted_steps, rows):
    random = np.random.default_rng(0)
    for _ in range(calls):
        points = random.normal(size=(devices, n_jitted_steps, rows, 2)) * 0.1
        yield (points + random.integers(0, 2, points.shape)).astype(np.float32)


def main():
    rng = jax.random.fold_in(jax.random.PRNGKey(0), jax.process_index())
    rng, init_rng = jax.random.split(rng)
    pstate = flax.jax_utils.replicate(init_state(init_rng))
    p_train_step = jax.pmap(functools.partial(jax.lax.scan, step_fn), axis_name="batch", donate_argnums=(0,))
    for batch in data(jax.local_device_count(), 3, 2, 4):
        rng, *next_rng = jax.random.split(rng, num=jax.local_device_count() + 1)
        next_rng = jnp.asarray(next_rng)
        (_, pstate), ploss = p_train_step((next_rng, pstate), batch)
        loss = flax.jax_utils.unreplicate(ploss).mean()
    return jax.device_get(flax.jax_utils.unreplicate(pstate)), jax.device_get(loss)


if __name__ == "__main__":
    print(main()[1])

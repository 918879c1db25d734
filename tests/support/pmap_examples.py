"""For each program of tests/programs its step as `verify` takes it: a function of three lines around it, and arguments.

Leaves that belong to a device, which `per_device` names, are `[N, ...]`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pmap_programs import load, stand_ins

N = 8


class Example(NamedTuple):
    """A step of (state, batch, key), and what `verify` takes beside it."""

    step: Callable
    axis_name: str
    given: dict[str, Any]


def linen_dynamic_scale(module):
    state = module.create_train_state(jax.random.PRNGKey(0))
    state = state.replace(batch_stats=jax.tree.map(stack, state.batch_stats))
    given = {"state": state, "batch": next(module.batches(1)), "per_device": ["batch_stats"]}
    return Example(module.train_step, "batch", given)


def haiku_mixed_precision(module):
    (batch,) = module.data(1, 32)
    state = module.initial_state(jax.random.PRNGKey(0), batch["x"])
    state = state._replace(state=jax.tree.map(stack, state.state))
    return Example(module.train_step.__wrapped__, "i", {"state": state, "batch": batch, "per_device": ["state"]})


def hugging_face_tokens(module):
    state = module.create_state()
    state = state.replace(dropout_rng=jax.random.split(state.dropout_rng, N))
    given = {"state": state, "batch": next(module.batches(1, 32)), "per_device": ["dropout_rng"]}
    return Example(module.train_step, "batch", given)


def score_scan(module):
    """The state is (keys, state), and the batch [n_steps, B, 2]."""
    state = (jax.random.split(jax.random.PRNGKey(1), N), module.init_state(jax.random.PRNGKey(0)))
    (batches,) = module.data(1, 1, 2, 32)
    given = {"state": state, "batch": batches[0], "per_device": ["/0"], "batch_axis": 1}
    return Example(module.scanned_step, "batch", given)


def ppo_environments(module):
    """No batch; the environments and the key, which is returned, are parts of the state."""

    def step(state):
        *state, metrics = module.training_epoch(*state)
        return tuple(state), metrics

    environments = jax.vmap(lambda key: module.reset(key, 4))(jax.random.split(jax.random.PRNGKey(1), N))
    keys = jax.random.split(jax.random.PRNGKey(2), N)
    state = (module.initial_training_state(jax.random.PRNGKey(0)), environments, keys)
    return Example(step, "i", {"state": state, "per_device": ["/1", "/2"]})


def graph_equinox(module):
    """The state is the arrays of the module, and each device has a padded graph."""
    eqx, model = module.eqx, module.GraphNet(jax.random.PRNGKey(0))
    arrays, static = eqx.partition(model, eqx.is_array)

    def step(state, batch):
        model, opt_state, loss = module.make_step.__wrapped__(eqx.combine(state[0], static), state[1], *batch)
        return (eqx.filter(model, eqx.is_array), opt_state), loss

    random = np.random.default_rng(0)
    batch = jax.tree.map(lambda *leaves: np.stack(leaves), *[module.device_batch(random, 3) for _ in range(N)])
    state = (arrays, module.optim.init(arrays))
    return Example(step, "device", {"state": state, "batch": batch, "per_device": ["batch"]})


def accumulation(module):
    def step(state, batch):
        *state, loss = module.update_fn(*state, batch)
        return tuple(state), loss

    given = {"state": module.init(jax.random.PRNGKey(0)), "batch": next(module.batches(1, 64))}
    return Example(step, "batch", given)


def mixup(module):
    """The key is returned, so it is a part of the state."""

    def step(state, batch):
        *state, loss, measurements = module.update_fn.__wrapped__(*state, *batch)
        return tuple(state), {"loss": loss, **measurements}

    params = module.init(jax.random.PRNGKey(0))
    state = (params, module.tx.init(params), jax.random.PRNGKey(1))
    return Example(step, "batch", {"state": state, "batch": next(module.batches(1, 32))})


def linen_image(module):
    model = module.MLP()
    params = model.init(jax.random.PRNGKey(0), jnp.zeros((1, 4, 4)), False)["params"]
    state = module.TrainState.create(apply_fn=model.apply, params=params, tx=module.optax.adam(1e-2))
    keys = lambda update: jax.random.split(jax.random.PRNGKey(update), N)  # noqa: E731
    given = {"state": state, "batch": next(module.batches(1, 32)), "key": keys, "per_device": ["key"]}
    return Example(module.Trainer.update, "batch", given)


def nnx_image(module):
    def step(state, batch):
        *state, loss = module.train_step(*state, *batch)
        return tuple(state), loss

    model = module.CNN(module.nnx.Rngs(0))
    return Example(step, "data", {"state": (model, module.tx.init(model)), "batch": next(module.batches(1, 32))})


def stack(x):
    return jnp.stack([x] * N)


def example(name, changes=None) -> Example:
    """The step of a program, as it is or with texts of it replaced."""
    module = load(name, changes)
    with stand_ins():
        return globals()[name](module)

"""For each program of tests/programs: its step, with arguments as for one device.

Leaves that belong to a device, which `per_device` of verify names, are `[N, ...]`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pmap_programs import load, stand_ins

N = 8


class Example(NamedTuple):
    """A step and what it takes."""

    step: Callable  # what the program gives to pmap
    axis_name: str
    arguments: tuple


def linen_dynamic_scale(module):
    state = module.create_train_state(jax.random.PRNGKey(0))
    state = state.replace(batch_stats=jax.tree.map(stack, state.batch_stats))
    (batch,) = module.batches(1)
    return Example(module.train_step, "batch", (state, batch))


def haiku_mixed_precision(module):
    (batch,) = module.data(1, 32)
    state = module.initial_state(jax.random.PRNGKey(0), batch["x"])
    state = state._replace(state=jax.tree.map(stack, state.state))
    return Example(module.train_step.__wrapped__, "i", (state, batch))


def hugging_face_tokens(module):
    state = module.create_state()
    state = state.replace(dropout_rng=jax.random.split(state.dropout_rng, N))
    (batch,) = module.batches(1, 32)
    return Example(module.train_step, "batch", (state, batch))


def score_scan(module):
    state = module.init_state(jax.random.PRNGKey(0))
    keys = jax.random.split(jax.random.PRNGKey(1), N)
    (batches,) = module.data(1, 1, 2, 32)
    carry = (keys, state)
    return Example(module.scanned_step, "batch", (carry, batches[0]))


def ppo_environments(module):
    state = module.initial_training_state(jax.random.PRNGKey(0))
    environments = jax.vmap(lambda key: module.reset(key, 4))(jax.random.split(jax.random.PRNGKey(1), N))
    keys = jax.random.split(jax.random.PRNGKey(2), N)
    return Example(module.training_epoch, "i", (state, environments, keys))


def graph_equinox(module):
    model, random = module.GraphNet(jax.random.PRNGKey(0)), np.random.default_rng(0)
    opt_state = module.optim.init(module.eqx.filter(model, module.eqx.is_array))
    parts = [module.device_batch(random, 3) for _ in range(N)]
    graph, labels = jax.tree.map(lambda *leaves: np.stack(leaves), *parts)
    step = module.make_step.__wrapped__
    return Example(step, "device", (model, opt_state, graph, labels))


def accumulation(module):
    params, opt = module.init(jax.random.PRNGKey(0))
    (batch,) = module.batches(1, 64)
    return Example(module.update_fn, "batch", (params, opt, batch))


def mixup(module):
    params = module.init(jax.random.PRNGKey(0))
    ((images, labels),) = module.batches(1, 32)
    arguments = (params, module.tx.init(params), jax.random.PRNGKey(1), images, labels)
    return Example(module.update_fn.__wrapped__, "batch", arguments)


def linen_image(module):
    trainer = module.Trainer.__new__(module.Trainer)
    model = module.MLP()
    params = model.init(jax.random.PRNGKey(0), jnp.zeros((1, 4, 4)), False)["params"]
    state = module.TrainState.create(apply_fn=model.apply, params=params, tx=module.optax.adam(1e-2))
    (batch,) = module.batches(1, 32)
    keys = jax.random.split(jax.random.PRNGKey(1), N)
    return Example(trainer.update, "batch", (state, batch, keys))


def nnx_image(module):
    model = module.CNN(module.nnx.Rngs(0))
    ((images, labels),) = module.batches(1, 32)
    arguments = (model, module.tx.init(model), images, labels)
    return Example(module.train_step, "data", arguments)


def stack(x):
    return jnp.stack([x] * N)


def example(name, changes=None) -> Example:
    """The step of a program, as it is or with texts of it replaced."""
    module = load(name, changes)
    with stand_ins():
        return globals()[name](module)

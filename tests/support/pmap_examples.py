"""For each program of tests/programs: its step, with arguments as for one device.

How an argument or a result is placed is told by a prefix of its pytree, with one word for each leaf or subtree:

- REPLICATED: every device has the same, and the leaf has no device axis.
- SPLIT: a leaf of the global batch `[B, ...]`, of which each device gets its rows.
- SECOND: the same along the second axis, `[steps, B, ...]`.
- PER_DEVICE: one for each device, `[N, ...]`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pmap_programs import load, stand_ins

REPLICATED, SPLIT, SECOND, PER_DEVICE = "replicated", "split", "second", "per device"
N = 8


class Example(NamedTuple):
    """A step and what it takes and returns."""

    step: Callable  # what the program gives to pmap
    axis_name: str
    arguments: tuple
    placed: tuple  # the arguments
    returned: Any  # how the results are placed
    exact: bool = False  # its result does not depend on the number of devices


def everywhere(tree, word=REPLICATED):
    return jax.tree.map(lambda _: word, tree)


def linen_dynamic_scale(module):
    state = module.create_train_state(jax.random.PRNGKey(0))
    placed = everywhere(state).replace(batch_stats=everywhere(state.batch_stats, PER_DEVICE))
    state = state.replace(batch_stats=jax.tree.map(stack, state.batch_stats))
    (batch,) = module.batches(1)
    return Example(module.train_step, "batch", (state, batch), (placed, SPLIT), (placed, REPLICATED))


def haiku_mixed_precision(module):
    (batch,) = module.data(1, 32)
    state = module.initial_state(jax.random.PRNGKey(0), batch["x"])
    placed = everywhere(state)._replace(state=everywhere(state.state, PER_DEVICE))
    state = state._replace(state=jax.tree.map(stack, state.state))
    return Example(module.train_step.__wrapped__, "i", (state, batch), (placed, SPLIT), (placed, REPLICATED))


def hugging_face_tokens(module):
    state = module.create_state()
    placed = everywhere(state).replace(dropout_rng=PER_DEVICE)
    state = state.replace(dropout_rng=jax.random.split(state.dropout_rng, N))
    (batch,) = module.batches(1, 32)
    return Example(module.train_step, "batch", (state, batch), (placed, SPLIT), (placed, REPLICATED))


def score_scan(module):
    state = module.init_state(jax.random.PRNGKey(0))
    keys = jax.random.split(jax.random.PRNGKey(1), N)
    (batches,) = module.data(1, 1, 2, 32)
    carry, placed = (keys, state), (PER_DEVICE, REPLICATED)
    return Example(module.scanned_step, "batch", (carry, batches[0]), (placed, SECOND), (placed, REPLICATED))


def ppo_environments(module):
    state = module.initial_training_state(jax.random.PRNGKey(0))
    environments = jax.vmap(lambda key: module.reset(key, 4))(jax.random.split(jax.random.PRNGKey(1), N))
    keys = jax.random.split(jax.random.PRNGKey(2), N)
    placed = (REPLICATED, PER_DEVICE, PER_DEVICE)
    return Example(module.training_epoch, "i", (state, environments, keys), placed, (*placed, REPLICATED))


def graph_equinox(module):
    model, random = module.GraphNet(jax.random.PRNGKey(0)), np.random.default_rng(0)
    opt_state = module.optim.init(module.eqx.filter(model, module.eqx.is_array))
    parts = [module.device_batch(random, 3) for _ in range(N)]
    graph, labels = jax.tree.map(lambda *leaves: np.stack(leaves), *parts)
    placed = (REPLICATED, REPLICATED, PER_DEVICE, PER_DEVICE)
    step = module.make_step.__wrapped__
    return Example(step, "device", (model, opt_state, graph, labels), placed, (REPLICATED,) * 3)


def accumulation(module):
    params, opt = module.init(jax.random.PRNGKey(0))
    (batch,) = module.batches(1, 64)
    placed = (REPLICATED, REPLICATED, SPLIT)
    return Example(module.update_fn, "batch", (params, opt, batch), placed, (REPLICATED,) * 3, exact=True)


def mixup(module):
    params = module.init(jax.random.PRNGKey(0))
    ((images, labels),) = module.batches(1, 32)
    arguments = (params, module.tx.init(params), jax.random.PRNGKey(1), images, labels)
    placed = (REPLICATED, REPLICATED, REPLICATED, SPLIT, SPLIT)
    return Example(module.update_fn.__wrapped__, "batch", arguments, placed, (REPLICATED,) * 5)


def linen_image(module):
    trainer = module.Trainer.__new__(module.Trainer)
    model = module.MLP()
    params = model.init(jax.random.PRNGKey(0), jnp.zeros((1, 4, 4)), False)["params"]
    state = module.TrainState.create(apply_fn=model.apply, params=params, tx=module.optax.adam(1e-2))
    (batch,) = module.batches(1, 32)
    keys = jax.random.split(jax.random.PRNGKey(1), N)
    placed = (REPLICATED, SPLIT, PER_DEVICE)
    return Example(trainer.update, "batch", (state, batch, keys), placed, (REPLICATED, REPLICATED))


def nnx_image(module):
    model = module.CNN(module.nnx.Rngs(0))
    ((images, labels),) = module.batches(1, 32)
    placed = (REPLICATED, REPLICATED, SPLIT, SPLIT)
    arguments = (model, module.tx.init(model), images, labels)
    return Example(module.train_step, "data", arguments, placed, (REPLICATED,) * 3, exact=True)


def stack(x):
    return jnp.stack([x] * N)


def example(name, changes=None) -> Example:
    """The step of a program, as it is or with texts of it replaced."""
    module = load(name, changes)
    with stand_ins():
        return globals()[name](module)

"""Several updates in one dispatch: a loop on the devices around the training step of any strategy.

It saves the host a tenth to a quarter of a short step (`python -m benchmarks.dispatch`). Keras: `steps_per_execution`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.job import Dispatch
from pmapdp.state import TrainState
from pmapdp.steps.placing import place
from pmapdp.steps.shared import Steps


def several(steps: Steps, most: int, shards: int) -> Dispatch:
    """The training step, up to `most` times in one program; how often is an argument, so it also serves a shorter
    dispatch. An update has the same bits wherever in a dispatch it stands, and whatever `most` is.

    Args:
        steps: of a strategy; of pmap in one process only: inside another program it knows no devices elsewhere.
        most: S, the most updates of a dispatch.
        shards: the number of shards of a batch; `Batches.several` lays the rows of S batches out shard by shard.
    """
    somewhere = jax.tree.leaves(steps.state_sharding)[0]
    replicated = NamedSharding(somewhere.mesh, PartitionSpec()) if isinstance(somewhere, NamedSharding) else somewhere

    def place_several(batches: Batch, count: int) -> tuple[Batch, jax.Array]:
        return steps.place_batch(batches), place(np.int32(count), replicated)

    def one_of(batches: Batch, i: jax.Array) -> Batch:
        """Batch i: its rows out of those of every shard, pmap's `[N, S * b, ...]`, elsewhere `[N * S * b, ...]`."""
        axes = batches.weights.ndim

        def cut(x: jax.Array) -> jax.Array:
            rows = x.reshape(shards, most, -1, *x.shape[axes:])
            rows = lax.dynamic_index_in_dim(rows, i, axis=1, keepdims=False)
            return rows.reshape(*x.shape[: axes - 1], -1, *x.shape[axes:])

        return jax.tree.map(cut, batches)

    def train_steps(state: TrainState, batches: Batch, count: jax.Array):
        def update(i: jax.Array, carry):
            state, batch, every = carry
            # The batch was cut an update ahead: compiled together with the cut, the step would round as S wants.
            state, sums = lax.optimization_barrier(steps.train_step(state, batch))
            return state, one_of(batches, i + 1), jax.tree.map(lambda rows, row: rows.at[i].set(row), every, sums)

        batch = one_of(batches, jnp.int32(0))
        _, sums = jax.eval_shape(steps.train_step, state, batch)
        every = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), sums)
        state, _, every = lax.fori_loop(0, count, update, (state, batch, every))
        return state, every

    run = jax.jit(train_steps, out_shardings=(steps.state_sharding, replicated), donate_argnums=0)
    return Dispatch(place_several, run)

"""A checkpoint holds the state as it was when `save` was called, though the next update takes over its memory."""

import jax
import jax.numpy as jnp
import numpy as np
from marks import quick

from pmapdp.config import Config
from pmapdp.job import prepare
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.state import create_state


@quick(2, ("strategy", "shard_state"), [("pmap", "none"), ("jit", "parameters"), ("jit", "none"), ("single", "none")])
def test_holds_the_state_of_the_call(strategy, shard_state, tmp_path):
    devices = 1 if strategy == "single" else 4
    job = prepare(Config(model="mlp", strategy=strategy, devices=devices, shard_state=shard_state, dataset="digits"))
    state = create_state(job.task, job.strategy.state_sharding)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    saved = {}
    for step, (batch, _) in enumerate(zip(job.train_batches.epoch(0), range(3), strict=False), start=1):
        state, _ = job.strategy.train_step(state, job.strategy.place_batch(batch))
        saved[step] = jax.tree.map(jnp.copy, state)
        checkpoints.save(step, state, {})
    state, _ = job.strategy.train_step(state, job.strategy.place_batch(batch))
    checkpoints.wait()
    assert checkpoints.steps() == [1, 2, 3]
    for step, expected in saved.items():
        found = checkpoints.read(step, job.task).state
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    checkpoints.close()

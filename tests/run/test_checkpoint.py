"""A checkpoint holds the state as it was when `save` was called, though the next update takes over its memory; and a
run with checkpoints needs nothing that Linux alone has, and is not stopped by what somebody put beside them."""

import dataclasses
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import quick
from run_folders import JOB

from pmapdp.config import Config
from pmapdp.job import prepare
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.state import create_state
from pmapdp.train import train

LINUX_ALONE = ("posix_fallocate", "posix_fadvise", "sched_getaffinity", "memfd_create", "pipe2", "splice", "eventfd")
LINUX_ALONE += ("copy_file_range", "getrandom", "fdatasync", "getresuid", "unshare", "getxattr", "setxattr")


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


def test_a_run_needs_nothing_that_linux_alone_has(tmp_path, monkeypatch):
    for name in LINUX_ALONE:
        monkeypatch.delattr(os, name, raising=False)
    result = train(dataclasses.replace(JOB, epochs=1, workdir=str(tmp_path / "run")))
    assert [each.name for each in (tmp_path / "run" / "checkpoints").iterdir()] == [str(result.epochs[-1]["step"])]


@pytest.mark.parametrize("name", ["18.bak", "18.orbax", "copy", "018"])
def test_what_stands_beside_checkpoints_does_not_stop_a_run(folder, name):
    """Somebody sets the newest checkpoint aside to go on from the one before."""
    checkpoints = folder / "checkpoints"
    (checkpoints / "18").rename(checkpoints / name)
    shutil.copyfile(folder / "log.txt", checkpoints / ".DS_Store")
    train(dataclasses.replace(JOB, workdir=str(folder)))
    assert {each.name for each in checkpoints.iterdir()} >= {"12", "18", name, ".DS_Store"}

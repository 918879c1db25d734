"""--check-replicas: devices whose copies of the state are not equal end the run, and nothing of that state is kept."""

import dataclasses
import importlib
import json

import jax
import numpy as np
import pytest
from flipped_bit import flipping, with_flip
from marks import quick

from pmapdp.config import Config
from pmapdp.errors import ReplicasError, UserError
from pmapdp.job import prepare
from pmapdp.run.replicas import Replicas
from pmapdp.state import create_state
from pmapdp.train import train

JOB = Config(model="mlp", devices=4, epochs=1, global_batch_size=64, progress=False, compile_cache=False)
KERNEL = "params/logits/kernel"


@pytest.mark.parametrize(
    ("strategy", "every", "found"),
    [
        ("pmap", 11, 11),
        pytest.param("jit", 100, 12, marks=pytest.mark.slow),  # where the next checkpoint is due
        pytest.param("shard_map", 11, 11, marks=pytest.mark.slow),
    ],
)
def test_a_flipped_bit_ends_the_run_before_a_checkpoint_has_it(strategy, every, found, tmp_path, monkeypatch):
    """After update 10, with checkpoints after 4, 8, 12, ...: the one of 8 is the last."""
    monkeypatch.setattr(
        importlib.import_module("pmapdp.train"),
        "prepare",
        lambda *values, **own: flipping(prepare(*values, **own), 10, KERNEL, 2),
    )
    config = dataclasses.replace(
        JOB, strategy=strategy, workdir=str(tmp_path), checkpoint_every=4, check_replicas=every
    )
    with pytest.raises(ReplicasError) as caught:
        train(config)
    assert f"the copies of {KERNEL} differ after step {found}: that of device 2 (process 0)" in str(caught.value)
    assert "not that of 3 other" in str(caught.value)
    assert caught.value.status == 5
    assert max(int(each.name) for each in (tmp_path / "checkpoints").iterdir()) == 8
    assert "the copies of 21 of 21 arrays" in (tmp_path / "log.txt").read_text()

    monkeypatch.undo()
    assert len(train(config).epochs) == 1  # from update 8
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["event"] == "end"


@quick(
    2,
    ("settings", "compared"),
    [
        ({"strategy": "pmap"}, 21),
        ({"strategy": "jit", "mesh": "data=2,model=2", "layout": "model"}, 21),
        ({"strategy": "shard_map", "shard_state": "optimizer"}, None),
        ({"strategy": "jit", "shard_state": "parameters"}, None),
    ],
)
def test_right_programs_raise_no_alarm_and_every_copy_counts(settings, compared):
    """For each array with copies: a bit that flips in one of them is found, with the array and one of its devices."""
    job = prepare(dataclasses.replace(JOB, **settings))
    replicas = Replicas(job, 1)
    state = create_state(job.task, job.strategy.state_sharding)
    for step, batch in zip(range(1, 4), job.train_batches.epoch(0), strict=False):
        state, _ = job.strategy.train_step(state, job.strategy.place_batch(batch))
        replicas.require_equal(step, state)
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    copied = [i for i, (_, x) in enumerate(leaves) if len({str(s.index) for s in x.addressable_shards}) < 4]
    assert len(replicas.parts) == len(copied) == (compared or len(copied))
    assert len(copied) >= 2  # the step, and the optimizer's count of it
    for i in copied:
        path, x = leaves[i]
        flipped = structure.unflatten(
            [with_flip(x, job.devices[3]) if i == j else y for j, (_, y) in enumerate(leaves)]
        )
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        with pytest.raises(ReplicasError, match=f"the copies of {name} differ after step {100 + i}: "):
            replicas.require_equal(100 + i, flipped)
        assert np.asarray(x.addressable_shards[0].data).size  # the state itself is still there
    replicas.require_equal(1, state)


def test_a_single_device_has_nothing_to_compare():
    with pytest.raises(UserError, match="--check-replicas 5 compares devices"):
        prepare(dataclasses.replace(JOB, strategy="single", devices=1, check_replicas=5))
    job = prepare(dataclasses.replace(JOB, devices=1, check_replicas=5))
    replicas = Replicas(job, 5)
    replicas.require_equal(0, create_state(job.task, job.strategy.state_sharding))
    assert not replicas.parts

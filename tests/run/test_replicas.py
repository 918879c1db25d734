"""`--check-replicas`: a bit that flips in one device's copy of the state ends the run before a checkpoint has it."""

import dataclasses
import importlib
import json

import jax
import pytest
from flipped_bit import flipping, with_flip
from marks import quick

from pmapdp.config import Config
from pmapdp.errors import ReplicasError
from pmapdp.run.replicas import find_difference
from pmapdp.state import create_state
from pmapdp.train import prepare, train

JOB = Config(model="mlp", devices=4, epochs=1, global_batch_size=64, progress=False, compile_cache=False)
KERNEL = "params/logits/kernel"


@quick(1, ("strategy", "every", "found"), [("pmap", 11, 11), ("jit", 100, 12)])
def test_a_flipped_bit_ends_the_run_before_a_checkpoint_has_it(strategy, every, found, tmp_path, monkeypatch):
    """After update 10, with checkpoints after 4, 8, 12, ...: the one of 8 is the last."""
    program = importlib.import_module("pmapdp.train")
    monkeypatch.setattr(program, "prepare", lambda *values: flipping(prepare(*values), 10, KERNEL, 2))
    workdir = {"workdir": str(tmp_path), "checkpoint_every": 4}
    config = dataclasses.replace(JOB, strategy=strategy, check_replicas=every, **workdir)
    sentence = rf"the copies of {KERNEL} differ after step {found}: that of device 2 \(process 0\) is not that of"
    with pytest.raises(ReplicasError, match=sentence) as caught:
        train(config)
    assert caught.value.status == 5
    assert max(int(each.name) for each in (tmp_path / "checkpoints").iterdir()) == 8
    monkeypatch.undo()
    assert len(train(config).epochs) == 1  # from update 8
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["event"] == "end"


@quick(
    2,
    "settings",
    [
        {"strategy": "pmap"},
        {"strategy": "jit", "mesh": "data=2,model=2", "layout": "model"},
        {"strategy": "shard_map", "shard_state": "optimizer"},
        {"strategy": "jit", "shard_state": "parameters"},
    ],
)
def test_right_programs_raise_no_alarm_and_every_copy_counts(settings):
    """For each array with copies: a bit that flips in one of them is found, with the array and one of its devices."""
    job = prepare(dataclasses.replace(JOB, **settings))
    sharding = job.strategy.state_sharding
    state = create_state(job.task, sharding)
    for _, batch in zip(range(3), job.batches["train"].epoch(0), strict=False):
        state, _ = job.strategy.train_step(state, job.strategy.place_batch(batch))
        assert find_difference(state, sharding) is None
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    copied = [i for i, (_, x) in enumerate(leaves) if len({str(s.index) for s in x.addressable_shards}) < 4]
    assert len(copied) >= 2  # the step, and the optimizer's count of it
    for i in copied:
        flipped = [with_flip(x, job.devices[3]) if i == j else x for j, (_, x) in enumerate(leaves)]
        name, device = find_difference(structure.unflatten(flipped), sharding)
        assert name == jax.tree_util.keystr(leaves[i][0], simple=True, separator="/")
        assert device in job.devices
    assert find_difference(state, sharding) is None


def test_a_single_device_has_nothing_to_compare():
    for strategy in ("single", "pmap"):
        job = prepare(dataclasses.replace(JOB, strategy=strategy, devices=1))
        sharding = job.strategy.state_sharding
        assert find_difference(create_state(job.task, sharding), sharding) is None

"""`--check-replicas`: a bit that flips in one device's copy of the state ends the run before a checkpoint has it."""

import dataclasses
import importlib
import json
import re

import jax
import pytest
from flax import nnx
from flipped_bit import flipping, with_flip
from marks import quick
from points import DATA, Net

from pmapdp.config import Config
from pmapdp.errors import ReplicasError
from pmapdp.models import axes
from pmapdp.run.checkpoints import require_equal_copies
from pmapdp.state import create_state
from pmapdp.train import Custom, prepare, train

JOB = Config(
    devices=4, epochs=2, global_batch_size=20, progress=False, compile_cache=False
)  # five updates an epoch
KERNEL = "params/head/kernel"


class Split(Net):
    """A layout may split its hidden features."""

    def __init__(self, *, rngs):
        self.hidden = nnx.Linear(6, 16, **axes("features", "hidden"), rngs=rngs)
        self.head = nnx.Linear(16, 3, **axes("hidden", "classes"), rngs=rngs)


@quick(1, ("strategy", "every", "found"), [("pmap", 7, 7), ("jit", 100, 8)])
def test_a_flipped_bit_ends_the_run_before_a_checkpoint_has_it(
    strategy, every, found, tmp_path, monkeypatch
):
    """After update 6, with checkpoints after 4, 5 and 8: the one of 5 is the last."""
    program = importlib.import_module("pmapdp.train")
    monkeypatch.setattr(
        program, "prepare", lambda *values: flipping(prepare(*values), 6, KERNEL, 2)
    )
    workdir = {"workdir": str(tmp_path), "checkpoint_every": 4}
    config = dataclasses.replace(
        JOB, strategy=strategy, check_replicas=every, **workdir
    )
    sentence = rf"after step {found} device 2 \(process 0\) has another copy of params.head.kernel than the other devices"
    with pytest.raises(ReplicasError, match=sentence) as caught:
        train(config, model=Net, data=DATA)
    assert caught.value.status == 5
    assert max(int(each.name) for each in (tmp_path / "checkpoints").iterdir()) == 5
    monkeypatch.undo()
    assert len(train(config, model=Net, data=DATA).epochs) == 1  # from update 5
    assert (
        json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["event"]
        == "end"
    )


@quick(
    2,
    "settings",
    [
        {"strategy": "pmap"},
        {"strategy": "jit", "mesh": "data=2,model=2", "layout": "model"},
        {"strategy": "jit", "shard_state": "parameters"},
    ],
)
def test_right_programs_raise_no_alarm_and_every_copy_counts(settings):
    """For each array with copies: a bit that flips in one of them is found, with the array and one of its devices."""
    job = prepare(dataclasses.replace(JOB, **settings), Custom(model=Split, data=DATA))
    sharding = job.strategy.state_sharding
    state = create_state(job.task, sharding)
    for batch in job.batches["train"].epoch(0):
        state, _ = job.strategy.train_step(state, job.strategy.place_batch(batch))
    require_equal_copies(5, state, sharding)
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    copied = [
        i
        for i, (_, x) in enumerate(leaves)
        if len({str(s.index) for s in x.addressable_shards}) < 4
    ]
    assert len(copied) >= 2  # the step, and the optimizer's count of it
    for i in copied:
        flipped = [
            with_flip(x, job.devices[3]) if i == j else x
            for j, (_, x) in enumerate(leaves)
        ]
        with pytest.raises(ReplicasError) as caught:
            require_equal_copies(5, structure.unflatten(flipped), sharding)
        name = jax.tree_util.keystr(leaves[i][0], simple=True, separator=".")
        assert re.match(
            rf"after step 5 device [0-3] \(process 0\) has another copy of {name} than",
            str(caught.value),
        )

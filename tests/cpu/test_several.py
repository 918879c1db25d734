"""Several updates in one dispatch: the same bits as one after the other, from one program that is compiled once."""

import dataclasses
import functools
import json
import re
from collections import Counter

import jax
import numpy as np
import optax
import pytest
from examples import random_split
from marks import quick
from running import run

from pmapdp.config import Config
from pmapdp.cpu import fit, updates_at_once
from pmapdp.cpu.convolution import faster
from pmapdp.cpu.joined import join_collectives
from pmapdp.cpu.loop import several
from pmapdp.data.batches import Batches
from pmapdp.errors import UserError
from pmapdp.job import Job, prepare
from pmapdp.processes.peers import Peers
from pmapdp.registry import MODELS
from pmapdp.run.trained import load_run
from pmapdp.sharding.fit import fit_layout
from pmapdp.sharding.split_step import make_steps
from pmapdp.state import Task, create_state

SPLIT = random_split(83, seed=1)
B = 18  # five batches an epoch, the last of 11: on 8 devices some then hold padding alone

JOBS = [
    # model, strategy, devices, accumulation steps, options of the layout
    ("cnn", "pmap", 4, 2, {}),
    *(
        pytest.param(*job, marks=pytest.mark.slow)
        for job in (
            ("mlp", "jit", 8, 1, {"shard_state": "parameters"}),
            ("convnet", "pmap", 8, 1, {}),
            ("convnet", "jit", 8, 1, {}),
            ("convnet", "shard_map", 3, 1, {}),
            ("convnet", "single", 1, 2, {}),
            ("cnn", "jit", 4, 3, {}),
            ("mlp", "pmap", 8, 1, {"shard_state": "optimizer"}),
            ("mlp", "shard_map", 4, 1, {"shard_state": "optimizer"}),
            ("mlp", "jit", 8, 1, {"mesh": "data=2,feature=2,model=2", "layout": "spatial"}),
        )
    ),
]


def made(model: str, strategy: str, devices: int, accumulate: int = 1, options: dict | None = None, **settings):
    """The strategy's functions, the state to start from, the batches, and the number of their parts."""
    task = Task(MODELS[model], optax.sgd(0.05, momentum=0.9), accumulate=accumulate, transform=faster, **settings)
    group = jax.devices()[:devices]
    layout = None if strategy == "single" else fit_layout(group, task, (28, 28, 1), **(options or {}))
    shards = layout.batch_shards if layout else 1
    steps = make_steps(strategy, task, group, layout)
    if strategy in ("pmap", "shard_map"):
        steps = steps._replace(train_step=jax.jit(join_collectives(steps.train_step), donate_argnums=0))
    batches = Batches(SPLIT, B, devices=shards, accumulate=accumulate, shuffle_seed=3)
    return steps, functools.partial(create_state, task, steps.state_sharding), batches, shards


def two_epochs(made_, cut: list[int], most: int):
    """The final state and the sums `[10, 3]` of two epochs of five updates, cut into dispatches."""
    steps, fresh, batches, shards = made_
    dispatch, state, found = several(steps, most, shards), fresh(), []
    for epoch in range(2):
        for count, batch in zip(cut, batches.several(epoch, 0, cut, most), strict=True):
            state, sums = dispatch.run(state, *dispatch.place(batch, count))
            found.extend(np.array(steps.fetch(sums)).T[:count])
    return steps.fetch(state), np.array(found)


@pytest.mark.parametrize(("model", "strategy", "devices", "accumulate", "options"), JOBS)
def test_same_bits_however_updates_are_cut(model, strategy, devices, accumulate, options):
    """States and sums are equal number by number."""
    job = made(model, strategy, devices, accumulate, options)
    wanted = two_epochs(job, [1] * 5, 1)
    for cut, most in (([3, 2], 3), ([1, 1, 3], 3), ([5], 5)):
        jax.tree.map(np.testing.assert_array_equal, two_epochs(job, cut, most), wanted)


@pytest.mark.parametrize(("model", "strategy", "devices", "accumulate", "options"), JOBS)
def test_equals_the_step_alone(float64, model, strategy, devices, accumulate, options):
    """The step outside of the loop, which the contracts compare with one device: in float64 within 1e-12."""
    job = made(model, strategy, devices, accumulate, options, dtype="float64")
    steps, fresh, batches, _ = job
    state, wanted = fresh(), []
    for epoch in range(2):
        for batch in batches.epoch(epoch):
            state, sums = steps.train_step(state, steps.place_batch(batch))
            wanted.append(np.array(steps.fetch(sums)))
    found_state, found = two_epochs(job, [3, 2], 3)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=0)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-12), found_state, steps.fetch(state))


@pytest.mark.parametrize("strategy", ["pmap", "jit", pytest.param("shard_map", marks=pytest.mark.slow)])
def test_the_loop_adds_no_collective(strategy):
    steps, fresh, batches, shards = made("cnn", strategy, 8)
    dispatch = several(steps, 3, shards)
    (batch,) = batches.several(0, 0, [3], 3)
    program = dispatch.run.lower(fresh(), *dispatch.place(batch, 3)).compile().as_text()
    assert " while(" in program
    names = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast"
    assert Counter(re.findall(rf"\s({names})(?:-start)?\(", program)) == {"all-reduce": 1}


@quick(2, "strategy", ["pmap", "jit", "shard_map", "single"])
def test_one_program_serves_every_dispatch(strategy, compilations):
    """Also a shorter one at the end of an epoch; and nothing moves between host and devices unasked."""
    steps, fresh, batches, shards = made("mlp", strategy, 1 if strategy == "single" else 8)
    dispatch, state, compiled = several(steps, 3, shards), fresh(), []
    for epoch in range(3):
        with jax.transfer_guard("disallow"):
            for count, batch in zip([3, 2], batches.several(epoch, 0, [3, 2], 3), strict=True):
                state, _ = dispatch.run(state, *dispatch.place(batch, count))
        compiled.append(len(compilations))
    assert compiled[0] == compiled[1] == compiled[2]
    assert int(steps.fetch(state).step) == 15


def test_batches_are_laid_out_part_by_part():
    """5 examples in batches of 2 on 2 devices, 4 at once: a device's rows are its share of each, then padding."""
    batches = Batches(random_split(5), 2, devices=2)
    (batch,) = batches.several(0, 0, [3], 4)
    np.testing.assert_array_equal(batch.indices.reshape(2, 4), [[0, 2, 4, 0], [1, 3, 0, 0]])
    np.testing.assert_array_equal(batch.weights.reshape(2, 4), [[1, 1, 1, 0], [1, 1, 0, 0]])
    assert [batches.examples_between(*steps) for steps in ((0, 1), (0, 3), (2, 3), (4, 6), (3, 5))] == [2, 5, 1, 3, 4]


class Two(Peers):
    """As one process of two sees them."""

    def __init__(self):
        super().__init__()
        self.count = 2


@pytest.fixture(scope="module")
def prepared() -> Job:
    """A job of 23 updates an epoch, 20 epochs."""
    return prepare(Config(model="mlp", devices=2, epochs=20))


def test_where_a_dispatch_ends(prepared):
    def counts(ends, step, end):
        return list(dataclasses.replace(prepared, ends=ends, steps_per_dispatch=8).counts(step, end))

    assert counts([], 0, 23) == [8, 8, 7]
    assert counts([5], 23, 46) == [2, 5, 5, 5, 5, 1]
    assert counts([100], 98, 110) == [2, 8, 2]


def test_how_many_updates_a_dispatch_holds(prepared):
    batches = Batches(random_split(640), 2)  # 320 an epoch

    def most(total: int = 1000, of: Batches = batches, ends: tuple[int, ...] = ()) -> int:
        return updates_at_once(dataclasses.replace(prepared, train_batches=of, total_steps=total, ends=list(ends)))

    assert most() == 16
    assert most(total=20) == 5  # at least four dispatches an epoch
    assert most(total=1) == most(of=Batches(random_split(640), 320)) == 1
    assert most(ends=(3,)) == 3
    wide = Batches(random_split(640)._replace(inputs=np.zeros((640, 1 << 20), np.uint8)), 2)
    assert most(of=wide) == 8  # 16 MiB of examples
    assert prepared.steps_per_dispatch == 23 // 4
    assert fit(prepared, "pmap", 400).steps_per_dispatch == 23
    assert fit(prepared, "pmap", 1).steps_per_dispatch == 1


def test_pmap_in_several_processes_stands_alone(prepared):
    """Inside another program pmap knows the devices of a single process only."""
    with_a_peer = dataclasses.replace(prepared, peers=Two())
    assert fit(with_a_peer, "pmap", None).steps_per_dispatch == 1
    assert fit(with_a_peer, "jit", None).steps_per_dispatch > 1
    with pytest.raises(UserError, match=r"--steps-per-dispatch 4 puts pmap into another program.*or --strategy shard_"):
        fit(with_a_peer, "pmap", 4)


JOB = ["--model", "cnn", "--devices", 2, "--epochs", 2, "--global-batch-size", 64, "--strategy", "shard_map"]


def leaves_and_epochs(folder):
    """The final state of a run and the metrics of its epochs, without the timings."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timings = ("examples_per_second", "images_per_second", "step_ms")
    epochs = {
        line["epoch"]: {key: line[key] for key in line if key not in timings} for line in lines if "epoch" in line
    }
    return jax.tree.leaves(load_run(folder)[1]), epochs


@pytest.mark.slow
def test_a_run_ends_the_same(tmp_path):
    """One at a time; as by default; cut by checkpoints, stopped and continued with another number of updates."""
    run(*JOB, "--workdir", tmp_path / "one", "--steps-per-dispatch", 1)
    run(*JOB, "--workdir", tmp_path / "default")
    cut = [*JOB, "--workdir", tmp_path / "cut"]
    run(*cut, "--steps-per-dispatch", 4, "--checkpoint-every", 7, "--steps", 30)
    run(*cut, "--steps-per-dispatch", 16)
    leaves, epochs = leaves_and_epochs(tmp_path / "one")
    for name in ("default", "cut"):
        found, epochs_found = leaves_and_epochs(tmp_path / name)
        for a, b in zip(leaves, found, strict=True):
            np.testing.assert_array_equal(a, b)
        assert epochs_found == epochs


@pytest.mark.slow
def test_divergence_is_noticed_at_its_step():
    job = ["--model", "mlp", "--optimizer", "sgd", "--learning-rate", "1e30", "--devices", 2, "--epochs", 1]
    ends = [run(*job, "--steps-per-dispatch", most, status=3)[1] for most in (1, 8)]
    assert ends[0].splitlines()[-1] == ends[1].splitlines()[-1]
    assert re.search(r"the loss is \w+ at step \d+:", ends[0])


@pytest.mark.slow
def test_the_profile_counts_updates(tmp_path):
    """Two dispatches of 8 updates are the first to hold ten after the first four."""
    out, _ = run("--model", "mlp", "--devices", 2, "--epochs", 2, "--steps-per-dispatch", 8,
                 "--workdir", tmp_path / "run", "--profile")  # fmt: skip
    assert re.search(r"trace of 15 updates: open ", out)

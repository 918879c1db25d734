"""The compiled step holds one all-reduce and no other collective, is compiled once, and nothing moves unasked."""

import re
from collections import Counter

import jax
import optax
import pytest
from examples import random_split
from marks import quick

from pmapdp.data.batches import Batches
from pmapdp.registry import MODELS
from pmapdp.sharding.layout import data_parallel
from pmapdp.state import Task, build, create_state
from pmapdp.train import make_strategy

N = 8
SPLIT = random_split(50)
STRATEGIES = ("pmap", "jit", "shard_map", "single")
COLLECTIVES = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast"


def collectives(steps, task, batches) -> Counter:
    """How often each collective stands in the optimized program of the training step."""
    state, batch = steps.place_state(create_state(task)), steps.place_batch(next(batches.epoch(0)))
    program = steps.train_step.lower(state, batch).compile().as_text()
    return Counter(re.findall(rf"\s({COLLECTIVES})(?:-start)?\(", program))


@quick(1, "model", ["mlp", "cnn"])
@quick(
    3,
    ("strategy", "accumulate"),
    [("pmap", 1), ("jit", 2), ("shard_map", 1), ("jit", 1), ("pmap", 2), ("shard_map", 2)],
)
def test_one_all_reduce_a_step(strategy, model, accumulate):
    task = Task(build(MODELS[model]), optax.adam(1e-3), accumulate=accumulate)
    steps = make_strategy(strategy, task, jax.devices()[:N], data_parallel(jax.devices()[:N]))
    found = collectives(steps, task, Batches(SPLIT, 32, devices=N, accumulate=accumulate))
    assert found == {"all-reduce": 1}


def test_a_single_device_needs_no_collective():
    task = Task(build(MODELS["mlp"]), optax.adam(1e-3))
    assert not collectives(
        make_strategy("single", task, jax.devices(), data_parallel(jax.devices())), task, Batches(SPLIT, 32)
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_later_epochs_compile_nothing_and_move_nothing_implicitly(strategy, compilations):
    """Also the ragged last batch runs the program of the others. Explicit placement is allowed."""
    devices = jax.devices()[: 1 if strategy == "single" else N]
    task = Task(build(MODELS["mlp"]), optax.adam(1e-3))
    steps = make_strategy(strategy, task, devices, data_parallel(devices))
    train_batches = Batches(SPLIT, 20, devices=len(devices), shuffle_seed=0)
    test_batches = Batches(SPLIT, 32, devices=len(devices))
    state = steps.place_state(create_state(task))
    compiled = []
    for epoch in range(3):
        with jax.transfer_guard("disallow"):
            for batch in train_batches.epoch(epoch):
                state, _ = steps.train_step(state, steps.place_batch(batch))
            for batch in test_batches.epoch(0):
                steps.eval_step(state, steps.place_batch(batch))
        compiled.append(len(compilations))
    assert compiled[0] == compiled[1] == compiled[2]
    assert int(steps.fetch(state).step) == 9

    on_the_host = steps.fetch(steps.place_batch(next(test_batches.epoch(0))))
    with jax.transfer_guard("disallow"), pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        steps.eval_step(state, on_the_host)  # the guard of this test: it notices a batch that was not placed

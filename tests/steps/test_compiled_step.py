"""The compiled step holds one all-reduce and no other collective, is compiled once, and
nothing moves unasked.
"""

import re
import typing
from collections import Counter

import entry
import jax
import optax
import pytest
from marks import quick
from small_job import Line, points

from pmapdp.config import Config
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split
from pmapdp.evaluate import Options
from pmapdp.state import Task, create_state
from pmapdp.steps import STRATEGIES
from pmapdp.steps.placing import fetch

N = 8
COLLECTIVES = "all-reduce|all-gather|all-to-all|reduce-scatter"
COLLECTIVES += "|collective-permute|collective-broadcast"


def test_the_flag_takes_the_strategies_of_the_one_list():
    for options in (Config, Options):
        hint = typing.get_type_hints(options)["strategy"]
        names = next(
            (option for option in typing.get_args(hint) if typing.get_args(option)),
            hint,
        )
        assert typing.get_args(names) == tuple(STRATEGIES)


@quick(
    6,
    ("strategy", "model", "accumulate", "count"),
    [
        ("pmap", Line, 1, 1),
        ("jit", Line, 1, 1),
        ("shard_map", Line, 2, 1),
        ("jit", Line, 2, 1),
        ("single", Line, 1, 0),
        # Batch norm exchanges one array in the forward pass and one in the backward
        # pass.
        ("pmap", "text_mlp", 1, 3),
        ("pmap", "convnet", 1, 7),
        ("jit", "convnet", 1, 7),
        ("pmap", "cnn", 1, 1),
        ("pmap", "cnn", 2, 1),
        ("shard_map", "cnn", 1, 1),
        ("shard_map", "cnn", 2, 1),
        ("jit", "cnn", 1, 1),
        ("jit", "cnn", 2, 1),
    ],
)
def test_number_of_all_reduces_in_a_step(strategy, model, accumulate, count):
    devices = jax.devices()[: 1 if strategy == "single" else N]
    task = Task(entry.built(model), optax.adam(1e-3), accumulate=accumulate)
    steps = STRATEGIES[strategy](task, devices)
    split = Split(
        *(points(50, 0) if model is Line else entry.examples_for(model, 50, 0))
    )
    batches = Batches(split, 32, devices=len(devices), accumulate=accumulate)
    state = steps.place_state(create_state(task))
    batch = steps.place_batch(next(batches.epoch(0)))
    program = steps.train_step.lower(state, batch).compile().as_text()
    found = Counter(re.findall(rf"\s({COLLECTIVES})(?:-start)?\(", program))
    assert found == Counter({"all-reduce": count} if count else {})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_later_epochs_compile_nothing_and_move_nothing_implicitly(
    strategy, compilations
):
    """Also the ragged last batch runs the program of the others.

    Explicit placement is allowed.
    """
    devices = jax.devices()[: 1 if strategy == "single" else N]
    split = Split(*points(50, 0))
    task = Task(entry.built(Line), optax.adam(1e-3))
    steps = STRATEGIES[strategy](task, devices)
    train_batches = Batches(split, 20, devices=len(devices), shuffle_seed=0)
    test_batches = Batches(split, 32, devices=len(devices))
    state = steps.place_state(create_state(task))
    compiled = []
    for epoch in range(2):
        with jax.transfer_guard("disallow"):
            for batch in train_batches.epoch(epoch):
                state, _ = steps.train_step(state, steps.place_batch(batch))
            for batch in test_batches.epoch(0):
                steps.eval_step(state, steps.place_batch(batch))
        compiled.append(len(compilations))
    assert compiled[0] == compiled[1]
    assert int(fetch(state).step) == 6

    on_the_host = fetch(steps.place_batch(next(test_batches.epoch(0))))
    with (
        jax.transfer_guard("disallow"),
        pytest.raises(Exception, match="Disallowed host-to-device transfer"),
    ):
        # The guard of this test: it notices a batch that was not placed.
        steps.eval_step(state, on_the_host)

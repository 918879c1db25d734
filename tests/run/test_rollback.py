"""--on-nan rollback: the state of the last checkpoint, and other batches, after a loss that is not finite."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from marks import quick

from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import DivergedError, EvaluationError, UserError
from pmapdp.job import prepare
from pmapdp.state import TrainState, create_state
from pmapdp.train import train

JOB: dict[str, Any] = dict(
    devices=2,
    epochs=2,
    global_batch_size=10,
    checkpoint_every=4,
    on_nan="rollback",
    progress=False,
    compile_cache=False,
)

JOB_WITHOUT = Config(**JOB | {"on_nan": "stop", "checkpoint_every": None})


class Net(nnx.Module):
    """`[b, 6]` to three logits."""

    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        self.out = nnx.Linear(6, 3, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, inputs):
        return self.out(inputs)


def points(n: int, seed: int, *, too_large: int | None = None) -> Split:
    """Points of three classes; that of number `too_large` overflows float32 in the network."""
    x = np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)
    labels = x.reshape(n, 3, 2).sum(2).argmax(1).astype(np.int32)
    if too_large is not None:
        x[too_large] = 3e38
    return Split(x, labels)


BAD = 61  # in steps 8 and 19, some updates after the checkpoints of steps 4 and 16
DATA = DataSet(points(100, 1, too_large=BAD), points(40, 2), ("a", "b", "c"))  # 10 updates an epoch


def run(folder: Path, **changes):
    """Train in a folder; the result."""
    return train(Config(**JOB | {"workdir": str(folder)} | changes), model=Net, data=DATA)


def events(folder: Path, name: str) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def bad_steps(epochs: int) -> list[int]:
    """The steps whose batch holds the example that is too large."""
    batches = prepare(JOB_WITHOUT, model=Net, data=DATA).train_batches
    return [10 * epoch + int(np.flatnonzero(batches.order(epoch) == BAD)[0]) // 10 + 1 for epoch in range(epochs)]


def assert_same_bits(first: TrainState, second: TrainState) -> None:
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rolled back") / "run"
    return folder, run(folder)


def test_the_batches_since_the_checkpoint_are_left_out(rolled_back):
    """The state is that of the same updates made one by one without those batches."""
    folder, result = rolled_back
    starts = [max((step - 1) // 4 * 4, (step - 1) // 10 * 10) for step in bad_steps(2)]
    skipped = [[start + 1, step] for start, step in zip(starts, bad_steps(2), strict=True)]
    assert [event["skipped"] for event in events(folder, "rollback")] == skipped
    log = (folder / "log.txt").read_text()
    for number, (first, last) in enumerate(skipped, start=1):
        assert (
            f"warning: the loss is not finite at step {last}: rollback {number} of 3 to the state of step {first - 1}; "
            f"the batches of steps {first} to {last} are skipped"
        ) in log

    job = prepare(JOB_WITHOUT, model=Net, data=DATA)
    state = create_state(job.task, job.strategy.state_sharding)
    made = 0
    for step in range(1, 21):
        if not any(first <= step <= last for first, last in skipped):
            epoch, before = divmod(step - 1, 10)
            batch = next(job.train_batches.epoch(epoch, before))
            state = dataclasses.replace(state, step=jax.device_put(np.int32(step - 1), state.step.sharding))
            state, _ = job.strategy.train_step(state, job.strategy.place_batch(batch))
            made += 1
    assert_same_bits(result.state, job.strategy.fetch(state))
    assert sum(epoch["train_examples"] for epoch in result.epochs) == 10 * made
    assert np.isfinite([epoch["train_loss"] for epoch in result.epochs]).all()


@pytest.mark.parametrize(
    "stops",
    [(6, 18), *(pytest.param(stops, marks=pytest.mark.slow) for stops in ((1, 5, 7), (8, 9, 17), (12, 13, 19)))],
)
def test_stopped_anywhere_and_resumed_it_ends_the_same(rolled_back, stops, tmp_path):
    for steps in stops:
        run(tmp_path / "run", steps=steps)
    found = run(tmp_path / "run")
    assert_same_bits(found.state, rolled_back[1].state)
    assert found.epochs[-1]["train_loss"] == rolled_back[1].epochs[-1]["train_loss"]


def test_before_the_first_checkpoint_it_goes_back_to_the_initial_state(tmp_path):
    run(tmp_path / "run", checkpoint_every=None, steps=bad_steps(1)[0] + 1)
    (event,) = events(tmp_path / "run", "rollback")
    assert event["restored"] == 0
    assert event["skipped"] == [1, bad_steps(1)[0]]


def test_after_three_it_stops_and_stays_so(tmp_path):
    for _ in range(2):
        with pytest.raises(DivergedError, match=f"at step {bad_steps(4)[3]}: try a lower --learning-rate") as caught:
            run(tmp_path / "run", epochs=4)
        assert caught.value.status == 3
        assert len(events(tmp_path / "run", "rollback")) == 3


def test_a_run_that_stopped_can_go_on_with_it(rolled_back, tmp_path):
    with pytest.raises(DivergedError):
        run(tmp_path / "run", on_nan="stop")
    assert_same_bits(run(tmp_path / "run").state, rolled_back[1].state)


@quick(1, "on_nan", ["rollback", "stop"])
def test_a_test_loss_that_is_not_finite_is_no_reason_to_skip_batches(tmp_path, on_nan):
    """The test set is to blame, and the state is what it would be without it."""
    data = DataSet(points(100, 1), points(290, 2, too_large=150), ("a", "b", "c"))
    with pytest.raises(EvaluationError, match="the test examples from 128 to 255, counted from 0") as caught:
        train(Config(**JOB | {"workdir": str(tmp_path), "on_nan": on_nan}), model=Net, data=data)
    assert caught.value.status == 3
    assert events(tmp_path, "rollback") == []


def test_a_state_that_is_no_longer_finite_at_an_evaluation_is_rolled_back(tmp_path):
    """The loss of the last update of the epoch was finite, but not what the update made of the state."""

    class Bad(Net):
        """Its gradient is infinite where an input is large, and its loss is not."""

        def __call__(self, inputs):
            logits = super().__call__(jnp.minimum(inputs, 10))
            big = (inputs > 1e30).any(axis=1, keepdims=True)
            zero = self.out.kernel[...].sum() - jax.lax.stop_gradient(self.out.kernel[...].sum())
            return logits + jnp.where(big, jnp.sqrt(jnp.where(big, zero, 1)), 0)

    train_split = points(100, 1)
    last = int(prepare(JOB_WITHOUT, model=Net, data=DATA).train_batches.order(0)[-1])
    train_split.inputs[last] = 3e38
    data = DataSet(train_split, points(40, 2), ("a", "b", "c"))
    result = train(Config(**JOB | {"epochs": 1, "workdir": str(tmp_path)}), model=Bad, data=data)
    (event,) = events(tmp_path, "rollback")
    assert event["skipped"] == [9, 10]
    assert np.isfinite(result.state.params["out"]["kernel"]).all()


def test_it_needs_a_workdir():
    with pytest.raises(UserError, match="--on-nan needs a folder for its files: add --workdir"):
        prepare(Config(**JOB | {"checkpoint_every": None}))

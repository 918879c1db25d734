"""Promise 4: a run that is killed at any moment and started again ends bit for bit as
one that nobody disturbed.

On another number of devices or with another strategy it ends within promise 1.
"""

import os
import shutil
import signal
import time

import entry
import forks
import jax
import numpy as np
import pytest
import small_job
from marks import quick
from trees import require_close

UPDATES = 12
# The only results of an epoch that may differ.
TIMES = {
    "examples_per_second",
    "step_ms",
    "seconds",
}


def require_same_bits(found, wanted):
    """States and results of two runs, or the arrays of two checkpoints."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(a, b)


def without_times(epochs):
    return [
        {name: value for name, value in epoch.items() if name not in TIMES}
        for epoch in epochs
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run from start to end, and its folder."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return small_job.train(workdir=str(folder)), folder


def test_a_run_is_the_same_again(undisturbed):
    again = small_job.train()
    require_same_bits(again.state, undisturbed[0].state)
    assert without_times(again.epochs) == without_times(undisturbed[0].epochs)


def test_another_seed_is_another_run(undisturbed):
    other = small_job.train(seed=1)
    assert (
        np.abs(
            other.state.params["hidden"]["kernel"]
            - undisturbed[0].state.params["hidden"]["kernel"]
        ).max()
        > 0.01
    )


@quick(1, "steps", [[4, 6], [1, 2, 11]])
def test_stopped_after_some_updates_it_ends_with_the_same_bits(
    undisturbed, tmp_path, steps
):
    """In the middle of an epoch and at its end, once and several times.

    The figures of its epochs are the same too.
    """
    epochs = {}
    for stop in (*steps, None):
        found = small_job.train(workdir=str(tmp_path / "run"), steps=stop)
        epochs |= {epoch["epoch"]: epoch for epoch in found.epochs}
    require_same_bits(found.state, undisturbed[0].state)
    whole = [epochs[number] for number in (1, 2, 3)]
    assert without_times(whole) == without_times(undisturbed[0].epochs)
    at_rest = entry.arrays_on_disk(tmp_path / "run", UPDATES)
    require_same_bits(at_rest, entry.arrays_on_disk(undisturbed[1], UPDATES))


def kill_when(process, folder, moment):
    """Kill a training at a moment.

    When a checkpoint is being written, is there, or some time after it has begun.
    """
    deadline = time.monotonic() + 300
    while process.is_alive() and time.monotonic() < deadline:
        written = [path.name for path in (folder / "checkpoints").glob("*")]
        if moment == "writing" and any(not name.isdigit() for name in written):
            break
        if moment == "written" and any(name.isdigit() for name in written):
            break
        if isinstance(moment, float) and (folder / "config.json").exists():
            time.sleep(moment)
            break
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)


@quick(1, "moments", [["writing"], ["written", 0.5]])
def test_killed_at_any_moment_it_ends_with_the_same_bits(
    undisturbed, tmp_path, moments
):
    """With SIGKILL, which no program can notice."""
    folder = tmp_path / "run"
    flags = small_job.flags(tmp_path, workdir=folder)
    for moment in moments:
        with forks.start("train", flags, tmp_path / "output") as process:
            kill_when(process, folder, moment)
    with forks.start("train", flags, tmp_path / "output") as process:
        pass
    assert process.exitcode == 0, (tmp_path / "output").read_text()
    require_same_bits(
        entry.arrays_on_disk(folder, UPDATES),
        entry.arrays_on_disk(undisturbed[1], UPDATES),
    )
    epochs = {
        epoch["epoch"]: epoch for epoch in entry.epochs_in(folder / "metrics.jsonl")
    }
    assert without_times(epochs[number] for number in (1, 2, 3)) == without_times(
        entry.epochs_in(undisturbed[1] / "metrics.jsonl")
    )


def test_a_signal_to_stop_leaves_a_checkpoint_and_its_status(undisturbed, tmp_path):
    folder = tmp_path / "run"
    flags = small_job.flags(
        tmp_path, workdir=folder, epochs=2000, checkpoint_every=10**6
    )
    with forks.start("train", flags, tmp_path / "output") as process:
        while (
            not (folder / "checkpoints").exists()
            or len(entry.checkpoint_steps(folder)) == 0
        ):
            assert process.is_alive(), (tmp_path / "output").read_text()
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGTERM)
    assert process.exitcode == 128 + signal.SIGTERM
    last = entry.checkpoint_steps(folder)[-1]
    straight = small_job.train(epochs=2000, steps=last)
    wanted = {
        tuple(leaf.shape): leaf for leaf in jax.tree.leaves(straight.state.params)
    }
    found = {
        tuple(array.shape): array
        for name, array in entry.arrays_on_disk(folder, last).items()
        if "params/" in name
    }
    assert wanted.keys() <= found.keys()
    for shape, array in wanted.items():
        np.testing.assert_array_equal(found[shape], array)


def test_on_other_devices_and_with_another_strategy_it_ends_within_promise_1(tmp_path):
    """float64, so that rounding cannot hide a difference."""
    wanted = small_job.train(dtype="float64")
    small_job.train(dtype="float64", workdir=str(tmp_path / "run"), steps=6)
    found = small_job.train(
        dtype="float64", workdir=str(tmp_path / "run"), strategy="jit", devices=3
    )
    require_close(found.state, wanted.state, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["shard_map", "jit"])  # pmap is above
def test_every_strategy_resumes_with_the_same_bits(tmp_path, strategy):
    """Dropout, the schedule and the order of the examples go on where they were."""
    kind = {"strategy": strategy, "devices": 3}
    small_job.train(**kind, workdir=str(tmp_path / "run"), steps=6)
    shutil.copytree(tmp_path / "run", tmp_path / "moved")
    found = small_job.train(**kind, workdir=str(tmp_path / "moved"))
    require_same_bits(found.state, small_job.train(**kind).state)

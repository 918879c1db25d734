"""Contract 4: a run killed at any moment and started again ends bit for bit as the uninterrupted one."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from launch import TESTS
from marks import quick
from running import run, start

from pmapdp.run.trained import load_run

ROUNDS = int(os.environ.get("PMAPDP_ROUNDS", 1))  # of kill and restart
# A network with batch norm and dropout, so that all kinds of state matter; 23 steps an epoch.
NET = TESTS / "support" / "small_net.py"
JOB = ["--model", f"{NET}:Net", "--devices", 2, "--epochs", 2, "--checkpoint-every", 3, "--global-batch-size", 64]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    run(*JOB, "--workdir", folder)
    return folder


def final_leaves(folder: Path) -> list[np.ndarray]:
    return jax.tree.leaves(load_run(folder)[1])


def assert_same_bits(first: Path, second: Path) -> None:
    for a, b in zip(final_leaves(first), final_leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


def last_epochs(folder: Path) -> list[dict]:
    """The metrics of each epoch, the later line where an epoch was done twice; without the timings."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    epochs = {line["epoch"]: line for line in lines if line["event"] == "epoch"}
    timings = ("examples_per_second", "step_ms")
    return [{key: value for key, value in epochs[e].items() if key not in timings} for e in sorted(epochs)]


def kill_after(process: subprocess.Popen, seconds: float) -> bool:
    """SIGKILL the process unless it ends before; returns whether it was killed."""
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0
    return False


def wait_for(process: subprocess.Popen, found) -> None:
    """Wait until `found()` is true or the process has ended."""
    while process.poll() is None and not found():
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_at_random_moments(uninterrupted, tmp_path):
    kills = 0
    while True:
        process = start(*JOB, "--workdir", tmp_path / "run")
        before = set((tmp_path / "run" / "checkpoints").glob("[0-9]*"))
        # Any new checkpoint shows that training is under way; most moments before it only test the start.
        wait_for(process, lambda before=before: set((tmp_path / "run" / "checkpoints").glob("[0-9]*")) - before)
        if not kill_after(process, random.uniform(0, 0.5)):
            break
        kills += 1
        if kills == ROUNDS:
            run(*JOB, "--workdir", tmp_path / "run")
            break
    assert kills >= 1
    assert_same_bits(uninterrupted, tmp_path / "run")
    assert last_epochs(uninterrupted) == last_epochs(tmp_path / "run")


@pytest.mark.slow
def test_killed_in_the_middle_of_a_save(uninterrupted, tmp_path):
    process = start(*JOB, "--workdir", tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"

    def saving() -> bool:
        return len(list(checkpoints.glob("[0-9]*"))) >= 3 and bool(list(checkpoints.glob("*tmp*")))

    wait_for(process, saving)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    out, _ = run(*JOB, "--workdir", tmp_path / "run")
    assert "restored from the checkpoint of step" in out
    assert not list(checkpoints.glob("*tmp*"))
    assert_same_bits(uninterrupted, tmp_path / "run")


@quick(1, ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_saves_and_says_how_to_go_on(uninterrupted, tmp_path, number, status):
    # No checkpoints but those of epochs and of the signal.
    job = [*JOB, "--workdir", tmp_path / "run"]
    process = start(*job)
    wait_for(process, lambda: list((tmp_path / "run" / "checkpoints").glob("[0-9]*")))
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status
    line = err.strip().splitlines()[-1]
    assert line.startswith(f"stopped by {number.name} after step ")
    assert "the same command resumes from it" in line
    stopped_at = int(line.split("step ")[1].split(":")[0])
    out, _ = run(*job)
    assert f"restored from the checkpoint of step {stopped_at}" in out
    assert_same_bits(uninterrupted, tmp_path / "run")


@pytest.mark.slow
def test_stopped_early_then_continued(uninterrupted, tmp_path):
    """--steps in the middle of an epoch; the epoch's metrics still cover every example after going on."""
    run(*JOB, "--workdir", tmp_path / "run", "--steps", 30)
    run(*JOB, "--workdir", tmp_path / "run")
    assert_same_bits(uninterrupted, tmp_path / "run")
    assert last_epochs(uninterrupted) == last_epochs(tmp_path / "run")


@pytest.mark.slow
def test_another_strategy_and_device_count(uninterrupted, tmp_path):
    """Contract 1 across a restart: the first half with pmap on 2 devices, the rest with jit on 4."""
    job = ["--model", "mlp", "--epochs", 2, "--optimizer", "momentum", "--learning-rate", "0.1", "--dtype", "float64"]
    run(*job, "--devices", 2, "--workdir", tmp_path / "straight")
    run(*job, "--devices", 2, "--workdir", tmp_path / "switched", "--steps", 23)
    run(*job, "--devices", 4, "--strategy", "jit", "--workdir", tmp_path / "switched")
    for a, b in zip(final_leaves(tmp_path / "straight"), final_leaves(tmp_path / "switched"), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


@quick(0, "how", ["altered", "truncated", "missing"], by_day=1)
def test_damaged_checkpoint_is_set_aside(uninterrupted, tmp_path, how):
    shutil.copytree(uninterrupted, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    newest = max(checkpoints.glob("[0-9]*"), key=lambda path: int(path.name))
    data = max((path for path in (newest / "state").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    if how == "truncated":
        data.write_bytes(content[: len(content) // 2])
    elif how == "altered":
        content[len(content) // 2] ^= 0xFF
        data.write_bytes(content)
    else:
        data.unlink()
    out, _ = run(*JOB, "--workdir", tmp_path / "run")
    assert f"warning: the checkpoint of step {newest.name} is damaged" in out
    assert (tmp_path / "run" / "damaged" / newest.name).is_dir()
    assert "restored from the checkpoint of step" in out
    assert_same_bits(uninterrupted, tmp_path / "run")

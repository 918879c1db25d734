"""Promise 9: what is shown is what runs: the trainer calls what the strategy's file
makes, once an update.
"""

import os
import re
import shutil

import entry
import pytest
import small_job
from launch import environment, python

UPDATES = 3
DEVICES = 4
POINTS = small_job.points(23, 1)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", entry.STRATEGIES)
def test_a_line_in_train_step_runs_once_an_update_on_each_device(strategy, tmp_path):
    """In a copy of the package, `train_step` says that it runs. Under jit one program
    serves all devices, and prints once for each call."""
    file = entry.step_files()[strategy]
    package = file.parent.parent
    shutil.copytree(
        package, tmp_path / "pmapdp", ignore=shutil.ignore_patterns("__pycache__")
    )
    line = "        jax.debug.print('train_step at {}', state.step)\n"
    text, count = re.subn(r"(    def train_step\(.*\n)", rf"\1{line}", file.read_text())
    assert count == 1
    (tmp_path / file.relative_to(package.parent)).write_text(text)
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    job = {
        "model": f"{small_job.NET}:Line",
        "strategy": strategy,
        "devices": 1 if strategy == "single" else DEVICES,
    }
    flags = small_job.flags(tmp_path, **job, steps=UPDATES, workdir=tmp_path / "run")
    done = python("-m", "pmapdp.train", *flags, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    printed = sorted(
        int(step) for step in re.findall(r"train_step at (\d+)", done.stdout)
    )
    each = DEVICES if strategy in ("pmap", "shard_map") else 1
    assert printed == sorted([*range(UPDATES)] * each)


@pytest.mark.parametrize("strategy", entry.STRATEGIES)
def test_the_trainer_calls_the_step_that_the_file_makes_once_an_update(
    strategy, monkeypatch
):
    """`train` has no other step.

    The calls of the functions that `make_strategy` of the file returns are counted.
    """
    calls = entry.count_calls(monkeypatch, strategy)
    data = entry.data_set(POINTS, POINTS)
    devices = 1 if strategy == "single" else 8
    entry.train(
        model=small_job.Line,
        data=data,
        strategy=strategy,
        devices=devices,
        global_batch_size=10,
        epochs=2,
    )
    assert calls == {"train_step": 2 * 3, "eval_step": 2 * 1}

"""What is shown is what runs: the trainer calls what the strategy's file in steps/ makes, once an update."""

import os
import re
import shutil
from pathlib import Path

import jax
import pytest
from launch import environment, python
from marks import quick

import pmapdp
from pmapdp import steps
from pmapdp.config import Config
from pmapdp.job import prepare
from pmapdp.state import create_state

PACKAGE = Path(pmapdp.__file__).parent
STRATEGIES = ("pmap", "shard_map", "jit", "single")
UPDATES, DEVICES = 3, 4


@quick(1, "strategy", STRATEGIES)
def test_a_line_in_train_step_runs_once_an_update_on_each_device(strategy, tmp_path):
    """In a copy of the package, `train_step` says that it runs. Under jit one program serves all devices, and prints
    once for each call."""
    shutil.copytree(PACKAGE, tmp_path / "pmapdp", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "pmapdp" / "steps" / f"{strategy}.py"
    line = "        jax.debug.print('train_step at {}', state.step)\n"
    text, count = re.subn(r"(    def train_step\(.*\n)", rf"\1{line}", file.read_text())
    assert count == 1
    file.write_text(text)
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    devices = 1 if strategy == "single" else DEVICES
    flags = ["--strategy", strategy, "--devices", devices, "--steps", UPDATES, "--model", "mlp", "--no-compile-cache"]
    done = python("-m", "pmapdp.train", *flags, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    printed = sorted(int(step) for step in re.findall(r"train_step at (\d+)", done.stdout))
    each = DEVICES if strategy in ("pmap", "shard_map") else 1
    assert printed == sorted([*range(UPDATES)] * each)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("strategy", ["pmap", "shard_map", "jit", "single"])
def test_the_trainer_runs_the_program_that_the_file_makes(strategy, accumulate):
    """The jaxpr of a run's step, beside that of the file's own step for the same task."""
    job = prepare(Config(strategy=strategy, devices=None if strategy == "single" else 8, accumulate=accumulate))
    state, batch = create_state(job.task), next(job.train_batches.epoch(0))
    file = getattr(steps, strategy).make_strategy(job.task, job.devices)

    def program(strategy) -> str:
        placed = strategy.place_state(state), strategy.place_batch(batch)
        text = str(jax.make_jaxpr(strategy.train_step)(*placed))
        return re.sub(r" at 0x[0-9a-f]+", "", text)

    if strategy == "jit" and accumulate > 1:  # `steps/jit.py` names the file that runs then
        assert "split_step.py" in (PACKAGE / "steps" / "jit.py").read_text()
        assert program(job.strategy) != program(file)
    else:
        assert program(job.strategy) == program(file)

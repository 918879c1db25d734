"""The contracts on accelerators, against a CPU.

`PMAPDP_ACCELERATOR=cuda pytest tests/accelerators`.

pytest's own process, and all other tests, stay on the CPU; each test here starts
processes that see both platforms.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import entry
import jax
import numpy as np
import pytest
import small_job
from launch import IN_COMMANDS, TESTS, environment, python

from pmapdp.train import load_run

ACCELERATOR = os.environ.get("PMAPDP_ACCELERATOR", "")
if not ACCELERATOR:
    pytest.skip(
        "ACCELERATORS ARE NOT TESTED: set PMAPDP_ACCELERATOR=cuda, or tpu",
        allow_module_level=True,
    )

# Several processes share the accelerators. For float32, products are not rounded to the
# digits of TF32 or bfloat16.
HERE = {
    "JAX_PLATFORMS": f"{ACCELERATOR},cpu",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_FLAGS": None,
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
}
CPU = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": IN_COMMANDS}


@pytest.fixture(scope="module")
def devices() -> int:
    """Count the accelerators. A test fails if JAX does not find the platform."""
    done = python(
        "-c", "import jax; print(jax.device_count(), jax.default_backend())", env=HERE
    )
    assert done.returncode == 0, done.stderr
    count, platform = done.stdout.split()
    assert platform != "cpu"
    return int(count)


def run(
    *arguments: object, module: str = "pmapdp.train", status: int = 0, env: dict = HERE
) -> tuple[str, str]:
    """stdout and stderr of a command, which must end with `status`."""
    done = python("-m", module, *arguments, env=env)
    assert done.returncode == status, (
        f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout, done.stderr


def leaves(folder: Path) -> list[np.ndarray]:
    return jax.tree.leaves(load_run(folder)[1])


def checkpoints(folder: Path) -> list[Path]:
    """Those that are whole."""
    return [path for path in (folder / "checkpoints").glob("*") if path.name.isdigit()]


HOLD = """
import sys
sys.path.append("promises")
import test_1_one_result as promise
model, devices = sys.argv[1], int(sys.argv[2])
for dtype, optimizer in (("float64", "adam"), ("float32", "sgd")):
    promise.hold("single", 1, model, optimizer, dtype)
    for count in range(1, devices + 1):
        for strategy in promise.PARALLEL:
            promise.hold(strategy, count, model, optimizer, dtype)
"""


@pytest.mark.parametrize("model", entry.CLASSIFIERS)
def test_every_strategy_equals_one_cpu_device_on_the_whole_batch(devices, model):
    """Promise 1 on every number of accelerators."""
    done = python("-c", HOLD, model, devices, env=HERE, timeout=1800)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("strategy", ["single", "pmap", "jit", "shard_map"])
def test_a_killed_run_ends_as_the_uninterrupted_one_bit_for_bit(
    devices, strategy, tmp_path
):
    job = small_job.flags(
        tmp_path,
        epochs=10,
        strategy=strategy,
        devices=1 if strategy == "single" else devices,
    )
    run(*job, "--workdir", tmp_path / "whole")
    command = [
        sys.executable,
        "-m",
        "pmapdp.train",
        *map(str, job),
        "--workdir",
        tmp_path / "killed",
    ]
    process = subprocess.Popen(command, env=environment(HERE), cwd=TESTS)
    while process.poll() is None and not checkpoints(tmp_path / "killed"):
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert (
        "restored from the checkpoint" in run(*job, "--workdir", tmp_path / "killed")[0]
    )
    for a, b in zip(
        leaves(tmp_path / "whole"), leaves(tmp_path / "killed"), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_a_run_goes_from_accelerators_to_cpus_and_back(devices, tmp_path):
    """In float64 within 1e-10 of the run that was on a CPU alone."""
    job = small_job.flags(tmp_path, epochs=10, dtype="float64")
    run(
        *job,
        "--devices",
        1,
        "--strategy",
        "single",
        "--workdir",
        tmp_path / "cpu",
        env=CPU,
    )
    there = [*job, "--workdir", tmp_path / "both"]
    run(*there, "--devices", devices, "--steps", 5)
    run(*there, "--devices", 8, "--strategy", "jit", "--steps", 31, env=CPU)
    run(*there, "--devices", devices, "--strategy", "shard_map")
    for a, b in zip(leaves(tmp_path / "cpu"), leaves(tmp_path / "both"), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def test_the_other_commands_read_a_run_of_accelerators(devices, tmp_path):
    """evaluate gives a CPU's accuracy, and its loss within 1e-5 of itself."""
    run("--epochs", 1, "--devices", devices, "--workdir", tmp_path / "run")
    found = [
        run(tmp_path / "run", "--json", module="pmapdp.evaluate", env=env)[0]
        for env in (HERE, CPU)
    ]
    there, here = (json.loads(text.splitlines()[-1]) for text in found)
    assert there["test"]["accuracy"] == here["test"]["accuracy"]
    assert there["test"]["loss"] == pytest.approx(here["test"]["loss"], rel=1e-5)
    run(tmp_path / "run", tmp_path / "model.zip", module="pmapdp.export")
    run("--steps", 10, module="pmapdp.compare")

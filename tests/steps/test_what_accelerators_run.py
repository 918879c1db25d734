"""What accelerators run holds no craft for CPUs, read in programs lowered for them; no such device is needed."""

import json
import os
import re
import shutil
from pathlib import Path

import jax
import optax
import pytest
from examples import CLASSIFIERS, random_split_for
from launch import python

import pmapdp
from pmapdp.cpu.convolution import faster
from pmapdp.data.batches import Batches
from pmapdp.registry import MODELS
from pmapdp.state import Task, create_state
from pmapdp.steps import make_steps

STRATEGIES = ("pmap", "jit", "shard_map", "single")
# Of the convolutions and their two gradients; the gradient of the first layer's images is not needed.
CONVOLUTIONS = {"cnn": 2, "convnet": 8, "speedrun": 5}
PACKAGE = Path(pmapdp.__file__).parent
SLOW = pytest.mark.slow


def lowered(platform: str, strategy: str, model: str, **settings) -> str:
    """The program of a training step, as JAX hands it to the compiler of `platform`."""
    devices = jax.devices()[: 1 if strategy == "single" else 4]
    task = Task(MODELS[model], optax.adam(1e-3), **settings)
    steps, batches = make_steps(strategy, task, devices), Batches(random_split_for(model, 16), 16, devices=len(devices))
    state, batch = steps.place_state(create_state(task)), steps.place_batch(next(batches.epoch(0)))
    return jax.jit(steps.train_step).trace(state, batch).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(
    "model", ["mlp", "cnn", *(pytest.param(m, marks=SLOW) for m in CLASSIFIERS if m not in ("mlp", "cnn"))]
)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_step_is_the_plain_one(platform, strategy, model):
    program = lowered(platform, strategy, model)
    assert program.count("stablehlo.convolution") == CONVOLUTIONS.get(model, 0)
    pools = model in ("cnn", "speedrun")
    assert ("stablehlo.select_and_scatter" in program) == ("stablehlo.reduce_window" in program) == pools
    assert "optimization_barrier" not in program
    assert ("stablehlo.all_reduce" in program) == (strategy in ("pmap", "shard_map"))  # under jit the compiler's
    assert "custom_call" not in program.replace("custom_call @Sharding", "").replace("custom_call @SPMD", "")


@pytest.mark.parametrize("strategy", ["pmap", "shard_map"])
def test_every_array_has_its_own_all_reduce(strategy):
    program = lowered("cuda", strategy, "mlp")
    assert program.count("stablehlo.all_reduce") == 6 + 1 + 3  # gradients, their number of examples, three sums


def test_the_craft_would_be_noticed():
    program = lowered("cuda", "single", "cnn", transform=faster)
    assert "stablehlo.convolution" not in program
    assert "stablehlo.select_and_scatter" not in program


@pytest.fixture(scope="module")
def without_cpu(tmp_path_factory):
    """The environment of commands for which the package has no `pmapdp/cpu/`, and no line that asks for it."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, folder / "pmapdp", ignore=shutil.ignore_patterns("cpu", "__pycache__"))
    job = folder / "pmapdp" / "job.py"
    text, seams = re.subn(r"    # The one seam.*?(?=    return job\n)", "", job.read_text(), flags=re.DOTALL)
    assert seams == 1
    job.write_text(text)
    left = [str(path) for path in folder.rglob("*.py") if re.search(r"(import|from) pmapdp\.cpu", path.read_text())]
    assert left == []
    return {"PYTHONPATH": os.pathsep.join(map(str, (folder, PACKAGE.parent / "tests" / "support")))}


def test_a_package_without_the_craft_trains(without_cpu, tmp_path):
    file = tmp_path / "metrics.jsonl"
    flags = ("--model", "cnn", "--devices", 2, "--epochs", 2, "--no-progress", "--metrics-file", file)
    done = python("-m", "pmapdp.train", *flags, env=without_cpu)
    assert done.returncode == 0, done.stderr
    epochs = [json.loads(line) for line in file.read_text().splitlines() if '"epoch"' in line]
    assert epochs[-1]["test_accuracy"] > 0.8


@SLOW
def test_a_package_without_the_craft_keeps_the_contracts(without_cpu):
    done = python("support/contract_worker.py", 4, ",".join(CLASSIFIERS), env=without_cpu, timeout=1200)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {faults for case in report.values() for strategy in case.values() for faults in strategy} == set()
    assert len(report) > 5

"""`python -m benchmarks.scaling`: the predictions beside what this machine can show."""

import json

import jax
import numpy as np
import optax
import pytest
from jax import lax
from launch import python

from benchmarks.scaling import checks
from benchmarks.scaling.__main__ import predict_here
from benchmarks.scaling.operations import compile_step, matrix_flops, step_flops
from pmapdp.registry import MODELS
from pmapdp.state import Task
from pmapdp.workers import WorkerError


def test_operations_of_the_mlp_in_closed_form():
    weights = 784 * 512 + 512 * 512 + 512 * 10
    # Forward, gradient of the weights, and gradient of the inputs, which the first layer does not need.
    assert step_flops(Task(MODELS["mlp"], optax.adam(1e-3)), 8) == 8 * 2 * (3 * weights - 784 * 512)


def test_operations_of_a_scan_and_of_a_padded_convolution():
    x = np.zeros((4, 4), np.float32)
    assert matrix_flops(lambda x: lax.scan(lambda c, _: (c @ c, None), x, None, length=5)[0], x) == 5 * 2 * 4**3
    image, kernel = np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 1, 3, 3), np.float32)
    inside = sum(1 for i in range(4) for k in range(3) if 0 <= i + k - 1 < 4) ** 2
    assert matrix_flops(lambda a, b: lax.conv(a, b, (1, 1), "SAME"), image, kernel) == 2 * inside


@pytest.mark.parametrize("model", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_our_count_agrees_with_the_compilers(model):
    """Which adds the operations on single elements: at most a quarter more in these models."""
    task, sizes = Task(MODELS[model], optax.adam(1e-3)), (16, 32)
    compiled = [compile_step("single", task, jax.devices()[:1], size).cost_analysis()["flops"] for size in sizes]
    own = [step_flops(task, size) for size in sizes]
    assert own[1] - own[0] <= compiled[1] - compiled[0] <= 1.25 * (own[1] - own[0])


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("cnn", "pmap"),
        pytest.param("convnet", "shard_map", marks=pytest.mark.slow),
        pytest.param("mlp", "jit", marks=pytest.mark.slow),
        pytest.param("cnn", "jit", marks=pytest.mark.slow),
        pytest.param("text_mlp", "jit", marks=pytest.mark.slow),
    ],
)
def test_collectives_of_a_program_for_512_devices_are_predicted(model, strategy):
    """Exactly; of batch norm XLA drops exchanges that it finds twice, less than a thousandth of the bytes."""
    count, size = checks.check_compiled(model, strategy, counts=(512,)).lines
    assert count.error == 0
    assert count.found == {"convnet": 7, "text_mlp": 3}.get(model, 1)
    assert size.error == 0 or (model == "convnet" and 0 < size.error < 1e-3)


@pytest.mark.slow
def test_simulated_devices_and_two_processes_are_measured_and_predicted():
    """Only that both run and all is compared: a busy machine makes any error large."""
    for check, sizes in ((checks.check_simulated("mlp", (2, 3), repeats=2), 12), (checks.check_gloo("mlp", 2), 6)):
        reduces = [line for line in check.lines if "all-reduce" in line.what]
        steps = [line for line in check.lines if "whole step" in line.what]
        assert len(reduces) == sizes
        assert len(steps) == sizes / 6
        assert all(line.found > 0 and line.predicted > 0 and np.isfinite(line.error) for line in check.lines)
        assert check.constants["seconds_per_byte"] >= 0


def test_simulated_devices_share_the_cores_of_one():
    constants = {"start_seconds": 1e-3, "latency_seconds": 2e-3, "seconds_per_byte": 1e-9}
    constants |= {"step_of_one_device_seconds": 10e-3, "all_reduce_bytes": 1e6, "all_reduces": 5}
    one, four = predict_here(constants, (1, 4))
    assert (one["step"], one["communication"], one["weak_efficiency"]) == (10e-3, 0, 1)
    assert four["step"] == pytest.approx(4 * 10e-3 + 5 * (1e-3 + 4 * 2e-3) + 4 * 1e-3)
    assert four["communication_share"] == pytest.approx(49 / 89)


def test_a_published_run_is_predicted_within_five_percent():
    (line,) = checks.check_published().lines
    assert line.found == 0.9
    assert abs(line.error) < 0.05


def test_a_failing_check_is_one_sentence():
    with pytest.raises(WorkerError, match=r"^4096 devices cannot be simulated"):
        checks.results(["compiled", "mlp", "jit", 4096])


@pytest.mark.slow
def test_the_command(tmp_path):
    done = python("-m", "benchmarks.scaling", "mlp", "--json", tmp_path / "checks.json")
    assert done.returncode == 0, done.stderr
    assert "median error" in done.stdout
    report = json.loads((tmp_path / "checks.json").read_text())
    assert [row["devices"] for row in report["here"]] == [1, 2, 8, 64, 512]
    assert all(line["found"] > 0 for check in report.values() if "lines" in check for line in check["lines"])

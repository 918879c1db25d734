"""`python -m pmapdp.scaling`: the parts of a step, what is counted, the checks on this machine, and the command."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
from jax import lax

from pmapdp.errors import UserError, run_command
from pmapdp.registry import MODELS
from pmapdp.scaling import checks
from pmapdp.scaling.__main__ import main
from pmapdp.scaling.advice import GOAL, accumulation_for_goal, answers, batch_for_goal
from pmapdp.scaling.hardware import HARDWARE
from pmapdp.scaling.here import predict_here
from pmapdp.scaling.predict import Plan, predict, strong_speedup, weak_efficiency
from pmapdp.scaling.processes import results, start
from pmapdp.scaling.programs import OPTIMIZERS, compile_step, matrix_flops, step_flops
from pmapdp.scaling.workloads import PUBLISHED, Workload, from_counts
from pmapdp.state import Task

RESNET, H100 = PUBLISHED["resnet-50"], HARDWARE["h100"]


def test_one_device_waits_for_nobody():
    alone = predict(RESNET, H100, 1, Plan())
    assert alone.communication == alone.exposed == 0
    assert alone.step == alone.compute + alone.update
    assert alone.compute == 64 * RESNET.flops / (0.4 * 494.7e12)
    assert alone.update == pytest.approx(28 * RESNET.parameters / 3.35e12)  # gradient, and 3 numbers read and written
    assert weak_efficiency(RESNET, H100, 1, Plan()) == strong_speedup(RESNET, H100, 1, Plan(), 4096) == 1


def test_what_each_remedy_changes():
    plan, N = Plan(), 64
    plain = predict(RESNET, H100, N, plan)
    split = predict(RESNET, H100, N, replace(plan, split_optimizer=True))
    assert split.update == plain.update / N
    assert plain.state_bytes - split.state_bytes == 8 * RESNET.parameters * (1 - 1 / N)
    half = predict(RESNET, H100, N, replace(plan, reduce_bytes=2, algorithm="ring"))
    whole = predict(RESNET, H100, N, replace(plan, algorithm="ring"))
    assert whole.communication / 2 < half.communication < whole.communication  # latency stays
    many = predict(RESNET, H100, N, replace(plan, accumulate=4))
    assert many.communication == plain.communication
    assert many.examples == 4 * plain.examples
    hidden = predict(RESNET, H100, N, replace(plan, overlap=1.0))
    assert hidden.communication == plain.communication
    assert hidden.exposed == max(0, plain.communication - plain.compute * 2 / 3)


@pytest.mark.parametrize("name", ["h100", "tpu-v5e", "tpu-v5p"])
def test_efficiency_lies_between_0_and_1(name):
    for N in (2, 8, 64, 512, 4096):
        assert 0 < weak_efficiency(RESNET, HARDWARE[name], N, Plan()) < 1
        assert 0 < strong_speedup(RESNET, HARDWARE[name], N, Plan(), 4096) < N


def test_answers_are_what_the_predictions_say():
    small = Workload("small", parameters=350_000, flops=3e6)
    found = {each.remedy: each for each in answers(small, H100, 512, Plan())}
    # Around a ring of 64 nodes a reduce-scatter and an all-gather cost more latency than a tree's all-reduce.
    assert not found["split the optimizer (ZeRO-1)"].pays
    assert found["4 x the batch per device"].pays
    for search, field in ((batch_for_goal, "per_device_batch"), (accumulation_for_goal, "accumulate")):
        least = search(small, H100, 512, Plan())
        assert weak_efficiency(small, H100, 512, replace(Plan(), **{field: least})) >= GOAL
        assert weak_efficiency(small, H100, 512, replace(Plan(), **{field: least // 2})) < GOAL


def test_operations_of_the_mlp_in_closed_form():
    weights = 784 * 512 + 512 * 512 + 512 * 10
    # Forward, gradient of the weights, and gradient of the inputs, which the first layer does not need.
    assert step_flops(Task(MODELS["mlp"], OPTIMIZERS["adam"]), 8) == 8 * 2 * (3 * weights - 784 * 512)


def test_operations_of_a_scan_and_of_a_padded_convolution():
    x = np.zeros((4, 4), np.float32)
    assert matrix_flops(lambda x: lax.scan(lambda c, _: (c @ c, None), x, None, length=5)[0], x) == 5 * 2 * 4**3
    image, kernel = np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 1, 3, 3), np.float32)
    inside = sum(1 for i in range(4) for k in range(3) if 0 <= i + k - 1 < 4) ** 2
    assert matrix_flops(lambda a, b: lax.conv(a, b, (1, 1), "SAME"), image, kernel) == 2 * inside


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_our_count_agrees_with_the_compilers(model):
    """Which adds the operations on single elements: at most a quarter more in these models."""
    task, sizes = Task(MODELS[model], OPTIMIZERS["adam"]), (16, 32)
    compiled = [compile_step("single", task, jax.devices()[:1], size).cost_analysis()["flops"] for size in sizes]
    own = [step_flops(task, size) for size in sizes]
    assert own[1] - own[0] <= compiled[1] - compiled[0] <= 1.25 * (own[1] - own[0])


def test_an_example_is_what_grows_with_the_batch():
    counts = {"batches": [64, 128], "flops": [100 + 64 * 7, 100 + 128 * 7], "bytes": [5000 + 64 * 3, 5000 + 128 * 3]}
    found = from_counts("toy", counts | {"parameters": 10, "update_bytes": 280})
    assert (found.flops, found.bytes, found.fixed_bytes) == (7, 3, 4720)


@pytest.mark.parametrize(("model", "strategy"), [("mlp", "jit"), ("cnn", "pmap"), ("convnet", "shard_map")])
def test_collectives_of_a_program_for_512_devices_are_predicted_exactly(model, strategy):
    check = checks.check_compiled(model, strategy, counts=(512,))
    assert [line.error for line in check.lines] == [0, 0]
    assert check.lines[0].found == (10 if model == "convnet" else 1)


def test_the_compiler_adds_up_a_kernel_before_it_is_put_together():
    """Under `jit` the four parts of the convolution's gradient (on CPU) are summed, each 16 x 32 instead of 9 x 32."""
    check = checks.check_compiled("cnn", "jit", counts=(512,))
    assert [line.found for line in check.lines] == [1, 4 * (347_146 + 3 + (4 * 16 - 9) * 32)]


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
    with pytest.raises(UserError, match=r"a check failed .*KeyError.*try --no-check"):
        results(start("no such task"))
    with pytest.raises(UserError, match=r"a check failed \(4096 devices cannot be simulated"):
        results(start("compiled", "mlp", "jit", 4096))


def test_the_command(tmp_path, capsys):
    arguments = ["--workload", "resnet-50", "--no-check", "--output", str(tmp_path), "--json", str(tmp_path / "r.json")]
    assert run_command(main, arguments) == 0
    out = capsys.readouterr().out
    for words in ("Predictions, not measurements", "h100, predicted", "4,096", "when does it pay?", "leave out"):
        assert words in out
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["kind"] == "prediction"
    for name in ("h100", "tpu-v5e", "tpu-v5p"):
        machine = report["hardware"][name]
        assert machine["sources"]
        assert all(level["latency_source"] for level in machine["levels"])
        assert [row["devices"] for row in machine["curve"]] == [2**power for power in range(13)]
        assert [row["devices"] for row in machine["rows"]] == [1, 8, 64, 512, 4096]
    for file in ("weak.svg", "strong.svg"):
        text = (tmp_path / file).read_text()
        picture = ElementTree.fromstring(text)
        width = float(picture.attrib["viewBox"].split()[2])
        lines = picture.findall("{*}polyline")
        assert len(lines) == 4  # three machines and the ideal
        for x, _ in (point.split(",") for line in lines for point in line.attrib["points"].split()):
            assert 0 <= float(x) <= width
        assert "prefers-color-scheme: dark" in text
        assert "predicted" in text


def test_the_pictures_and_figures_of_the_readme_are_the_commands(tmp_path):
    files = ["--output", str(tmp_path), "--json", str(tmp_path / "r.json")]
    assert run_command(main, ["--workload", "resnet-50", "--no-check", *files]) == 0
    root = Path(__file__).parents[2]
    for name in ("weak.svg", "strong.svg"):
        kept = (root / "benchmarks" / "scaling" / name).read_text()
        assert kept == (tmp_path / name).read_text(), "python -m pmapdp.scaling --workload resnet-50 --output ..."
    readme = (root / "README.md").read_text()
    machines = json.loads((tmp_path / "r.json").read_text())["hardware"].values()
    for N in (8, 512, 4096):
        rows = [row for machine in machines for row in machine["rows"] if row["devices"] == N]
        shares = " | ".join(f"{100 * row['communication_share']:.1f} %" for row in rows)
        assert f"| {N:,} | {shares} |" in readme


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hardware", "h10"], "did you mean 'h100'"),
        (["--workload", "resnet"], "did you mean 'resnet-50'"),
        (["--device-counts", "0"], "not positive"),
        (["--device-counts", "12"], "do not fill whole groups of 8: try 8"),
        (["--overlap", "2"], "try --overlap 0.5"),
        (["--utilization", "0"], "try --utilization 0.4"),
        (["--dtype", "float64"], "try --dtype float32"),
        (["--strong-batch-size", "0"], "at least 1"),
        (["--json", "/nowhere/r.json"], "does not exist"),
        (["--output", "/dev/null/x"], "name a folder"),
        (["digts"], "did you mean 'digits'"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, words, capsys):
    assert run_command(main, [*arguments, "--no-check"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert words in errors

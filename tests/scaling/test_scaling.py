"""`python -m pmapdp.scaling`: the parts of a step, what is counted, the pictures, and the command."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import optax
import pytest

from pmapdp.errors import run_command
from pmapdp.registry import MODELS
from pmapdp.scaling.__main__ import main
from pmapdp.scaling.advice import GOAL, answers, least_for_goal
from pmapdp.scaling.hardware import HARDWARE
from pmapdp.scaling.predict import Plan, predict, strong_speedup, weak_efficiency
from pmapdp.scaling.workloads import EXAMPLES, PUBLISHED, Workload, count_step, slots
from pmapdp.state import Task

PICTURES = Path("benchmarks", "scaling")
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
    assert split.communication == pytest.approx(plain.communication, rel=1e-12)  # as lesson 12 shows by hand
    assert plain.state_bytes - split.state_bytes == 8 * RESNET.parameters * (1 - 1 / N)
    half = predict(RESNET, H100, N, replace(plan, reduce_bytes=2, algorithm="ring"))
    whole = predict(RESNET, H100, N, replace(plan, algorithm="ring"))
    assert whole.communication / 2 < half.communication < whole.communication  # latency stays
    many = predict(RESNET, H100, N, replace(plan, accumulate=4))
    assert many.communication == plain.communication
    assert many.examples_per_second * many.step == pytest.approx(4 * plain.examples_per_second * plain.step)
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
    # Reduce-scatter and all-gather cost what the all-reduce costs, and the update is shared.
    assert found["split the optimizer (ZeRO-1)"].gain > 0
    assert found["4 x the batch per device"].pays
    for field in ("per_device_batch", "accumulate"):
        least = least_for_goal(small, H100, 512, Plan(), field)
        assert least is not None
        assert weak_efficiency(small, H100, 512, replace(Plan(), **{field: least})) >= GOAL
        assert weak_efficiency(small, H100, 512, replace(Plan(), **{field: least // 2})) < GOAL


def test_slots_are_the_numbers_that_an_optimizer_keeps_of_each_parameter():
    rules = optax.sgd(0.1), optax.sgd(0.1, momentum=0.9), optax.adam(0.1), optax.adamw(0.1)
    assert [slots(rule) for rule in rules] == [0, 1, 2, 2]


def test_operations_of_the_mlp_in_closed_form():
    """XLA adds the operations on single elements: at most a hundredth in this model."""
    weights = 784 * 512 + 512 * 512 + 512 * 10
    # Forward, gradient of the weights, and gradient of the inputs, which the first layer does not need.
    products = 2 * (3 * weights - 784 * 512)
    found = count_step("mlp", Task(MODELS["mlp"], optax.adam(0.1)), EXAMPLES["images"])
    assert found.parameters == 669_706
    assert products < found.flops < 1.01 * products
    assert found.bytes > 0


def test_the_command(tmp_path, capsys):
    arguments = ["--workload", "resnet-50", "--output", str(tmp_path), "--json", str(tmp_path / "r.json")]
    assert run_command(main, arguments) == 0
    out = capsys.readouterr().out
    for words in ("Predictions for data parallelism", "h100, predicted", "4,096", "when does it pay?", "leave out"):
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
        words = [element.text for element in ElementTree.fromstring(text).findall(".//{*}text")]
        assert len([word for word in words if any(name in word for name in report["hardware"])]) == 3
        assert any("predicted" in word for word in words)
        assert "prefers-color-scheme: dark" in text


def predicted(tmp_path, *arguments: str) -> dict:
    assert run_command(main, [*arguments, "--hardware", "h100", "--json", str(tmp_path / "r.json")]) == 0
    return json.loads((tmp_path / "r.json").read_text())


@pytest.mark.slow
def test_a_model_of_texts_is_predicted(tmp_path):
    """About six operations for each weight of its layers and each of the 128 tokens; attention adds the rest."""
    found = predicted(tmp_path, "imdb-transformer")["workload"]
    in_layers = 599_682 - 8192 * 64 - 128 * 64  # the embeddings are looked up
    assert found["parameters"] == 599_682
    assert 1 < found["flops"] / (6 * in_layers * 128) < 2


def test_the_weights_of_words_are_predicted(tmp_path):
    found = predicted(tmp_path, "--model", "text_mlp")["workload"]
    assert found["parameters"] == 57_746
    assert found["flops"] > 4 * 1200 * 48


def test_the_pictures_and_figures_of_the_docs_are_the_commands(tmp_path):
    files = ["--output", str(tmp_path), "--json", str(tmp_path / "r.json")]
    assert run_command(main, ["--workload", "resnet-50", *files]) == 0
    root = Path(__file__).parents[2]
    for name in ("weak.svg", "strong.svg"):
        # Their words, with the last value of each line: where lines are drawn is up to the version of matplotlib.
        kept, made = (ElementTree.parse(folder / name).findall(".//{*}text") for folder in (root / PICTURES, tmp_path))
        how = f"python -m pmapdp.scaling --workload resnet-50 --output {PICTURES}"
        words = [word.text for word in kept]
        assert len(words) > 10
        assert words == [word.text for word in made], how
    page = (root / "docs" / "scaling.md").read_text()
    machines = json.loads((tmp_path / "r.json").read_text())["hardware"].values()
    for N in (8, 512, 4096):
        rows = [row for machine in machines for row in machine["rows"] if row["devices"] == N]
        shares = " | ".join(f"{100 * row['communication_share']:.1f} %" for row in rows)
        assert f"| {N:,} | {shares} |" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hardware", "h10"], "did you mean 'h100'"),
        (["--workload", "resnet"], "did you mean 'resnet-50'"),
        (["--devices", "0"], "is not from 1"),
        (["--device-counts", "8"], "did you mean '--devices'"),
        (["--devices", "12"], "do not fill whole groups of 8: try 8"),
        (["--overlap", "2"], "try --overlap 0.5"),
        (["--utilization", "0"], "try --utilization 0.4"),
        (["--utilization", "1e-320"], "try --utilization 0.4"),
        (["--utilization", "nan"], "try --utilization 0.4"),
        (["--per-device-batch-size", "9" * 300], "is out of range"),
        (["--strong-batch-size", "9" * 300], "is out of range"),
        (["--accumulate", "9" * 300], "is out of range"),
        (["--devices", "8" * 300], "is out of range"),
        (["--strong-batch-size", "1" * 18], "is not from 1"),
        (["--devices", "65536"], "more than the 8,192"),
        (["nnx-mesh"], "try the recipe digits"),
        (["--dtype", "float64"], "try --dtype float32"),
        (["--strong-batch-size", "0"], "is not from 1"),
        (["--json", "/nowhere/r.json"], "name a file for --json"),
        (["--output", "/dev/null/x"], "name a folder"),
        (["--json", ""], "--json needs a value"),
        (["digts"], "did you mean 'digits'"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, words, capsys):
    assert run_command(main, arguments) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert words in errors

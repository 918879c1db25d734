"""`python -m pmapdp.scaling`: the parts of a step, what is counted, and the command."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from flax import nnx

from pmapdp import cli
from pmapdp.registry import MODELS
from pmapdp.scaling.__main__ import main
from pmapdp.scaling.hardware import HARDWARE
from pmapdp.scaling.predict import GOAL, Plan, least_batch, predict, remedies, weak_efficiency
from pmapdp.scaling.workloads import PUBLISHED, Workload, count_step

ROOT = Path(__file__).parents[2]
RESNET, H100 = PUBLISHED["resnet-50"], HARDWARE["h100"]


class Net(nnx.Linear):
    """A model of one's own, of six numbers an example."""

    def __init__(self, **how):
        super().__init__(6, 3, **how)

    def __call__(self, inputs, context):
        return super().__call__(inputs)


def test_one_device_waits_for_nobody():
    alone = predict(RESNET, H100, 1, Plan())
    assert alone.communication == alone.exposed == 0
    assert alone.step == alone.compute + alone.update
    assert alone.compute == pytest.approx(64 / 938 * 156e12 / 494.7e12)  # it attains what an A100 attains of its peak
    assert alone.update == pytest.approx(28 * RESNET.parameters / 3.35e12)  # gradient, and 3 numbers read and written
    assert weak_efficiency(RESNET, H100, 1, Plan()) == 1


def test_what_each_remedy_changes():
    plan, N = Plan(), 64
    plain = predict(RESNET, H100, N, plan)
    split = predict(RESNET, H100, N, replace(plan, split_optimizer=True))
    assert split.update == plain.update / N
    assert split.communication == pytest.approx(plain.communication, rel=1e-12)  # as lesson 16 shows by hand
    half = predict(RESNET, H100, N, replace(plan, reduce_bytes=2))
    assert plain.communication / 2 < half.communication < plain.communication  # latency stays
    many = predict(RESNET, H100, N, replace(plan, per_device_batch=4 * plan.per_device_batch))
    assert many.communication == plain.communication
    assert many.examples_per_second * many.step == pytest.approx(4 * plain.examples_per_second * plain.step)
    hidden = predict(RESNET, H100, N, replace(plan, overlap=1.0))
    assert hidden.communication == plain.communication
    assert hidden.exposed == max(0, plain.communication - plain.compute * 2 / 3)


@pytest.mark.parametrize("name", HARDWARE)
def test_efficiency_lies_between_0_and_1(name):
    for N in (2, 8, 64, 512, 4096):
        assert 0 < weak_efficiency(RESNET, HARDWARE[name], N, Plan()) < 1


def test_remedies_help_a_small_model_and_the_least_batch_is_the_least():
    """ZeRO-1 too: reduce-scatter and all-gather cost what the all-reduce costs, and the update is shared."""
    small = Workload("small", parameters=350_000, flops=3e6)
    plain = predict(small, H100, 512, Plan()).examples_per_second
    for name, (plan, _) in remedies(Plan()).items():
        assert predict(small, H100, 512, plan).examples_per_second > plain, name
    least = least_batch(small, H100, 512, Plan())
    assert least is not None
    assert weak_efficiency(small, H100, 512, replace(Plan(), per_device_batch=least)) >= GOAL
    assert weak_efficiency(small, H100, 512, replace(Plan(), per_device_batch=least // 2)) < GOAL


def test_operations_of_the_mlp_in_closed_form():
    """XLA adds the operations on single elements: at most a hundredth in this model."""
    weights = 784 * 512 + 512 * 512 + 512 * 10
    # Forward, gradient of the weights, and gradient of the inputs, which the first layer does not need.
    products = 2 * (3 * weights - 784 * 512)
    found = count_step("mlp", MODELS["mlp"])
    assert found.parameters == 669_706
    assert products < found.flops < 1.01 * products
    assert found.bytes > 0


def test_the_weights_of_words_are_counted():
    found = count_step("text_mlp", MODELS["text_mlp"])
    assert found.parameters == 57_746
    assert found.flops > 4 * 1200 * 48


@pytest.mark.slow
def test_a_transformer_is_counted():
    """About six operations for each weight of its layers and each of the 128 tokens; attention adds the rest."""
    found = count_step("transformer", MODELS["transformer"])
    in_layers = 599_682 - 8192 * 64 - 128 * 64  # the embeddings are looked up
    assert found.parameters == 599_682
    assert 1 < found.flops / (6 * in_layers * 128) < 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_command_prints_the_figures_of_the_docs(dtype, capsys):
    assert cli.run(main, ["--workload", "resnet-50", "--dtype", dtype]) == 0
    out = capsys.readouterr().out
    for words in ("Predictions for data parallelism", "what helps", "least batch per device", "leave out"):
        assert words in out
    page = (ROOT / "docs" / "scaling.md").read_text()
    for N in ("8", "512", "4,096"):
        shares = re.findall(rf"^│ {N} .* │ ([\d.]+ %) *│ [\d.]+ % *│ [\d,]+ *│$", out, re.MULTILINE)
        assert len(shares) == 3
        assert f"| {dtype}, {N} | {' | '.join(shares)} |" in page


def test_what_a_network_attains_is_measured_of_that_network():
    """ResNet-50's share of the peak is a third of a language model's."""
    assert PUBLISHED["resnet-50"].utilization["float32"] == pytest.approx(0.148, abs=0.001)
    assert PUBLISHED["resnet-50"].utilization["bfloat16"] == pytest.approx(0.194, abs=0.001)
    assert PUBLISHED["gpt-2"].utilization["bfloat16"] == pytest.approx(0.554, abs=0.001)
    given = predict(RESNET, H100, 1, Plan(utilization=0.5))
    assert given.compute == 64 * RESNET.flops / (0.5 * H100.peak["float32"])


def test_a_recipe_of_ours_is_predicted(capsys):
    assert cli.run(main, ["digits", "--model", "mlp", "--hardware", "h100", "--devices", "1"]) == 0
    assert capsys.readouterr().out.startswith("mlp: 669,706 parameters")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hardware", "h10"], "did you mean 'h100'"),
        (["--workload", "resnet"], "did you mean 'resnet-50'"),
        (["--workload", "resnet-50", "--model", "cnnn"], "unknown model 'cnnn'"),
        (["--devices", "0"], "0 devices are not among the 1 to 8,192 that can be joined: try --devices 8192"),
        (["--device-counts", "8"], "did you mean '--devices'"),
        (["--devices", "12"], "do not fill whole groups of 8: try --devices 8"),
        (["--devices", "65536"], "not among the 1 to 8,192"),
        (["--devices", "8" * 300], "is not a whole number of 64 bits"),
        (["--utilization", "0"], "try --utilization 0.15"),
        (["--utilization", "1e-320"], "try --utilization 0.15"),
        (["--utilization", "nan"], "try --utilization 0.15"),
        (["--per-device-batch-size", "9" * 300], "is not a whole number of 64 bits"),
        (["--per-device-batch-size", "0"], "must be at least 1"),
        (["nnx-mesh"], "DotReluDot does not take inputs [1, 28, 28, 1] of uint8"),
        (["--model", f"{__file__}:Net"], "Net does not take inputs [1, 28, 28, 1] of uint8"),
        (["--dtype", "float64"], "try --dtype float32"),
        (["digts"], "did you mean 'digits'"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, words, capsys):
    assert cli.run(main, arguments) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert words in errors

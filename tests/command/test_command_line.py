"""Contract 6: a mistake gets one sentence with the value given and one that works, exit status 2 (3 for divergence)."""

import sys
import types

import jax
import pytest
from launch import environment, python, train

from pmapdp.command.ending import run_command
from pmapdp.command.flags import parse
from pmapdp.recipes import RECIPES
from pmapdp.train import main


def error_of(capsys, *arguments: str, status: int = 2) -> str:
    """The one line on stderr with which the command ends."""
    recipe, flags = (arguments[:1], arguments[1:]) if arguments[0][0] != "-" else ((), arguments)
    assert run_command(main, [*recipe, "--no-compile-cache", *flags]) == status
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert "Traceback" not in lines[0]
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        # names, with the nearest one that exists
        (["--strategy", "pmapp"], ["'pmapp'", "did you mean 'pmap'?", "shard_map"]),
        (["--strategy=shardmap"], ["'shardmap'", "did you mean 'shard_map'?"]),
        (["digit"], ["recipe", "'digit'", "did you mean 'digits'?", "keras-guide"]),
        (["--dataset", "mnits"], ["'mnits'", "did you mean 'mnist'?", "fashion-mnist"]),
        (["--model", "convnett"], ["'convnett'", "did you mean 'convnet'?", "mlp"]),
        (["--model", "resnet"], ["'resnet'", "mlp", "cnn", "convnet"]),
        (["--optimizer", "adma"], ["'adma'", "did you mean 'adam'?"]),
        (["--learning-rat", "0.1"], ["'--learning-rat'", "did you mean '--learning-rate'?"]),
        # numbers
        (["--devices", "0"], ["--devices 0", "at least 1", "try --devices 8"]),
        (["--devices", "-1"], ["--devices -1", "at least 1", "try --devices 8"]),
        (["--devices", "1025"], ["1025 devices", "at most --devices 1024"]),
        (["--devices", "two"], ["--devices 'two' is not a whole number", "try --devices 8"]),
        (["--devices"], ["--devices expected one argument", "python -m pmapdp.train digits --devices 8"]),
        (["--global-batch-size", "0"], ["--global-batch-size 0", "at least 1", "try --global-batch-size 64"]),
        (["--per-device-batch-size", "0"], ["--per-device-batch-size 0", "try --per-device-batch-size 8"]),
        (["--epochs", "0"], ["--epochs 0", "at least 1", "try --epochs 10"]),
        (["--steps", "-5"], ["--steps -5", "at least 1", "try --steps 100"]),
        (["--accumulate", "0"], ["--accumulate 0", "at least 1"]),
        (["--learning-rate", "nan"], ["--learning-rate nan is not a finite number", "--learning-rate 0.001"]),
        (["--learning-rate", "inf"], ["--learning-rate inf is not a finite number", "--learning-rate 0.001"]),
        (["--learning-rate", "-0.1"], ["--learning-rate -0.1", "at least 0", "--learning-rate 0.001"]),
        (["--learning-rate", "fast"], ["--learning-rate 'fast' is not a number", "--learning-rate 0.001"]),
        (["--seed", "-1"], ["--seed -1", "at least 0", "--seed 0"]),
        (["--label-smoothing", "1"], ["--label-smoothing 1", "--label-smoothing 0.1"]),
        (["--seed", str(2**63)], [f"--seed '{2**63}' is not a whole number"]),
        (["--seed", "9" * 5000], ["--seed '999", "..."]),
        (["--epochs", str(2**31)], ["--epochs 2147483648", "at most 2147483647", "--epochs 10"]),
        (["--warmup-steps", str(2**31)], ["--warmup-steps 2147483648", "at most"]),
        (["--schedule", "piecewise", "--switch-epochs", "3", str(2**31)], ["3 2147483648", "at most 2147483647"]),
        (["--learning-rate", "1e39"], ["--learning-rate 1e+39", "at most 3.4e+38", "--learning-rate 0.001"]),
        # flags
        (["--progress=perhaps"], ["--progress/--no-progress takes no value, here 'perhaps': try python -m"]),
        (["--no-progress=1"], ["--progress/--no-progress takes no value, here '1': try python -m"]),
        (["--help=3"], ["-h/--help takes no value, here '3'"]),
        (["--workdir", "-x"], ["--workdir expected one argument"]),
        (["--devices="], ["--devices '' is not a whole number of 64 bits: try --devices 8"]),
        (["--devices=--"], ["--devices ", ": try"]),
        (["--switch-epochs"], ["--switch-epochs expected at least one argument: try python -m pmapdp.train"]),
        (["--switch-epochs", "3", "x"], ["--switch-epochs 'x' is not a whole number"]),
        (["--steps", "5", "digits", "mnist"], ["unrecognized arguments: mnist: try python -m pmapdp.train"]),
        # names
        (["--workdir", ""], ["--workdir '' is not a text: try --workdir NAME"]),
        (["--workdir", "gs://bucket/run"], ["--workdir gs://bucket/run is an address", "mount"]),
        (["--metrics-file", "s3://bucket/m.jsonl"], ["--metrics-file s3://bucket/m.jsonl is an address"]),
        # combinations
        (
            ["--global-batch-size", "64", "--per-device-batch-size", "8"],
            ["--global-batch-size 64", "--per-device-batch-size 8", "one of them"],
        ),
        (["--strategy", "single", "--devices", "4"], ["one device, not 4", "--devices 1", "--strategy pmap"]),
        (["--schedule", "piecewise"], ["--switch-epochs 3 7"]),
        (["--switch-epochs", "3"], ["--schedule piecewise --switch-epochs 3 7"]),
        (["--weight-decay", "0.1"], ["--weight-decay 0.1", "adamw"]),
        # the machine and the data
        (["--global-batch-size", "1438"], ["1438", "1437", "at most --global-batch-size 1437"]),
        (["--per-device-batch-size", "180"], ["180", "1440", "1437", "at most --per-device-batch-size 179"]),
        (["--accumulate", "65"], ["--accumulate 65", "at most --accumulate 64"]),
        (["--dataset", "reviews"], ["the model takes images", "use --model text_mlp or --model transformer"]),
        (["--model", "text_mlp"], ["the data set holds images", "--model convnet or --model speedrun"]),
        (["dtensor-data", "--data-dir", "nowhere"], ["is not in ", "/nowhere: ", "aclImdb_v1.tar.gz", "reviews"]),
        (["--metrics-file", "no-such-folder/m.jsonl"], ["no-such-folder/m.jsonl cannot be written", "name a file"]),
        (["--metrics-file", "."], ["--metrics-file . cannot be written", "name a file"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[0][0] == "-" else None,
)
def test_a_mistake_gets_one_sentence(capsys, arguments, fragments):
    line = error_of(capsys, *arguments)
    for fragment in fragments:
        assert fragment in line


def test_the_largest_batch_that_is_offered_works():
    """The advice of the cases above, taken."""
    assert parse(["--global-batch-size", "1437"]).global_batch_size == 1437
    assert parse(["--per-device-batch-size", "179"]).per_device_batch_size == 179


def test_more_devices_than_were_simulated(capsys):
    line = error_of(capsys, "--devices", "9")
    assert "9 devices cannot be simulated any more: JAX has already started with 8" in line


def test_more_devices_than_accelerators(capsys, monkeypatch):
    accelerators = [types.SimpleNamespace(platform="gpu", device_kind="H200")] * 2
    on_cpu = jax.local_devices(backend="cpu")
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: on_cpu if backend == "cpu" else accelerators)
    line = error_of(capsys, "--devices", "4")
    assert "--devices 4 is more than the 2 gpu device(s) here: use at most --devices 2" in line


def test_mnist_without_torchvision(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    line = error_of(capsys, "--dataset", "mnist", "--data-dir", str(tmp_path))
    assert 'pip install "pmapdp[torchvision]"' in line
    assert "--dataset digits" in line


def test_a_loss_that_is_no_number_stops_training_with_status_3(capsys):
    line = error_of(
        *(capsys, "--model", "mlp", "--optimizer", "sgd", "--schedule", "constant", "--learning-rate", "1e30"),
        status=3,
    )
    assert "the loss is" in line
    assert "at step 2" in line
    assert "--learning-rate" in line


def test_a_mistake_as_seen_from_outside():
    done = train("--strategy", "pmapp")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: unknown strategy 'pmapp'")


def test_help_is_grouped_and_names_everything():
    done = train("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    text = done.stdout
    titles = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert len(titles) >= 8
    for flag in ("--strategy", "--devices", "--dataset", "--data-dir", "--model", "--global-batch-size"):
        assert flag in text
    for flag in ("--per-device-batch-size", "--epochs", "--steps", "--optimizer", "--learning-rate", "--seed"):
        assert flag in text
    assert "--metrics-file" in text
    assert "--progress, --no-progress" in text or "--no-progress" in text
    for recipe in RECIPES:
        assert f"{recipe}:" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_gives_its_configuration_and_flags_override_it(recipe):
    assert parse([recipe]) == RECIPES[recipe].config
    assert parse([recipe, "--seed", "7", "--epochs=2"]).seed == 7
    assert parse([recipe, "--seed", "7", "--epochs=2"]).epochs == 2
    assert parse([recipe, "--seed", "7"]).model == RECIPES[recipe].config.model


@pytest.mark.parametrize(
    "arguments",
    [
        ["mirrored", "--data-dir", "x", "--no-progress", "--switch-epochs", "3", "5"],
        ["--data_dir", "x", "mirrored", "--no_progress", "--switch_epochs", "3", "--switch-epochs=5"],
        ["--switch-epochs", "3", "5", "--progress", "--data_dir=x", "--no-progress", "mirrored"],
    ],
)
def test_what_users_type(arguments):
    config = parse(arguments)
    assert (config.recipe, config.data_dir, config.progress, config.switch_epochs) == ("mirrored", "x", False, (3, 5))


def test_digits_is_the_recipe_without_a_name():
    assert parse([]) == RECIPES["digits"].config


def test_a_batch_size_replaces_the_recipes_of_either_kind():
    of_recipe = parse([])
    assert (of_recipe.global_batch_size, of_recipe.per_device_batch_size) == (None, None)  # 64 examples in all
    per_device = parse(["--per-device-batch-size", "16"])
    assert (per_device.global_batch_size, per_device.per_device_batch_size) == (None, 16)
    of_mirrored = parse(["mirrored", "--global-batch-size", "256"])
    assert (of_mirrored.global_batch_size, of_mirrored.per_device_batch_size) == (256, None)


def test_parsing_starts_no_device():
    code = (
        "from pmapdp.command.flags import parse; parse(['--devices', '3']); import pmapdp.train, pmapdp.devices;"
        "pmapdp.devices.simulate(3); import jax; print(len(jax.devices()))"
    )
    done = python("-c", code, env=environment())
    assert done.stdout == "3\n", done.stderr

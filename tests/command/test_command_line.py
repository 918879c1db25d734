"""Command lines: what people type works, and --help and --version say what they need.

Mistakes: test_mistakes.py.
"""

import ast
import dataclasses
import re
import sys
import types
from pathlib import Path

import entry
import jax
import pytest
from launch import python

from pmapdp import cli, recipes
from pmapdp.config import Config
from pmapdp.distributed import ProcessesOptions
from pmapdp.errors import UserError
from pmapdp.flags import parse_with_recipe, read_flags
from pmapdp.recipes import RECIPES, compare_with_reported
from pmapdp.train import COMMAND


def parse(*arguments: str) -> Config:
    return parse_with_recipe(COMMAND, ProcessesOptions, list(arguments))[0]


def test_more_devices_than_accelerators(monkeypatch):
    accelerators = [types.SimpleNamespace(platform="gpu", device_kind="H200")] * 2
    on_cpu = jax.local_devices(backend="cpu")
    monkeypatch.setattr(
        jax,
        "local_devices",
        lambda backend=None: on_cpu if backend == "cpu" else accelerators,
    )
    done = entry.run_command("train", "--no-compile-cache", "--devices", 4)
    assert done.status == 2
    assert (
        "--devices 4 is more than the 2 gpu device(s) here: use at most --devices 2"
        in done.err
    )


# scaling, the last, takes no flags.
@pytest.mark.parametrize("name", [*cli.COMMANDS][:-1])
def test_help_fits_a_terminal_and_shows_examples(name):
    done = entry.run_command(name, "--help")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith(f"usage: python -m pmapdp.{name} ")
    assert max(map(len, lines)) <= 80
    assert (
        sum(line.startswith(("    python -m", "    srun python -m")) for line in lines)
        >= 3
    )
    assert lines.count("options:") == 1
    assert not [
        line for line in lines if "(default: (" in line or "default: True" in line
    ]


def test_help_shows_the_defaults_of_a_commands_own_flags():
    """Also of those that the trainer has with another default."""
    text = " ".join(entry.run_command("compare", "--help").out.split())
    assert "Updates of each run, at least 10. (default: 20)" in text


@pytest.mark.parametrize(
    ("name", "argument"),
    [("train", "[RECIPE]"), ("verify", "FILE.py:FUNCTION"), ("predict", "INPUT")],
)
def test_help_has_the_arguments_before_the_flags(name, argument):
    """As all programs with argparse have them."""
    text = entry.run_command(name, "--help").out
    assert 0 < text.index(f"\n  {argument} ") < text.index("\n  -h, --help ")


def test_compare_s_help_has_both_arguments_and_its_own_flags_first():
    text = entry.run_command("compare", "--help").out
    names = ("[RECIPE]", "FILE.py:PROGRAM", "--html", "--strategies", "--dataset")
    places = [text.index(f"\n  {name} ") for name in names]
    assert places == sorted(places)


def test_help_shows_the_defaults_of_the_recipe():
    text = entry.run_command("train", "mirrored", "--help").out
    assert "(default: piecewise)" in text
    assert "(default: 3 7)" in " ".join(text.split())
    assert all(
        f"    {recipe}: " in text.partition("\nThe recipes:\n\n")[2]
        for recipe in RECIPES
    )


def test_help_takes_the_value_of_a_flag_for_no_recipe():
    """`speedrun` is also a model's name."""
    plain = entry.run_command("train", "--help").out
    assert entry.run_command("train", "--model", "speedrun", "--help").out == plain
    assert entry.run_command("train", "speedrun", "--help").out != plain


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_gives_its_configuration_and_flags_override_it(recipe):
    assert parse(recipe) == RECIPES[recipe].config
    config = parse(recipe, "--seed", "7", "--epochs=2")
    assert (config.seed, config.epochs, config.model) == (
        7,
        2,
        RECIPES[recipe].config.model,
    )


def test_a_recipe_names_all_that_decides_its_result():
    """So a new default doesn't change it. `digits` is the defaults."""
    needed = {"dataset", "model", "strategy", "optimizer", "learning_rate", "schedule"}
    needed |= {"epochs", "label_smoothing"}
    calls = []
    for node in ast.walk(ast.parse(Path(recipes.__file__).read_text())):
        is_config = isinstance(node, ast.Call) and ast.unparse(node.func) == "Config"
        if is_config and len(node.keywords) > 1:
            calls.append({keyword.arg for keyword in node.keywords})
    assert len(calls) >= 6
    assert [needed - names for names in calls if not needed <= names] == []


def test_only_whole_epochs_are_compared_with_the_reported_ones():
    epochs = [
        {"epoch": epoch, "step": step, "train": {"accuracy": 0.5}}
        for epoch, step in ((1, 938), (2, 1000))
    ]
    rows = compare_with_reported(RECIPES["mirrored"].config, epochs, per_epoch=938)[2:]
    assert [row.split()[-2] for row in rows] == ["0.9401"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["mirrored", "--data-dir", "x", "--no-progress", "--switch-epochs", "3", "5"],
        [
            "--switch-epochs",
            "3",
            "--progress",
            "--data-dir=x",
            "--no-progress",
            "mirrored",
            "--switch-epochs=5",
        ],
    ],
)
def test_flags_and_arguments_in_any_order(arguments):
    config = parse(*arguments)
    assert (config.recipe, config.data_dir, config.progress, config.switch_epochs) == (
        "mirrored",
        "x",
        False,
        (3, 5),
    )


def test_a_batch_size_replaces_the_recipes_of_either_kind():
    assert parse() == Config() == RECIPES["digits"].config
    assert parse("--per-device-batch-size", "16").per_device_batch_size == 16
    of_mirrored = parse("mirrored", "--global-batch-size", "256")
    assert (of_mirrored.global_batch_size, of_mirrored.per_device_batch_size) == (
        256,
        None,
    )


def test_a_schedule_replaces_the_recipes_with_its_switches():
    for schedule in ("cosine", "constant"):
        config = parse("mirrored", "--schedule", schedule)
        assert (config.schedule, config.switch_epochs) == (schedule, ())
    assert parse("mirrored", "--schedule", "piecewise").switch_epochs == (3, 7)


def test_a_schedule_of_yours_replaces_the_recipes_with_its_rate():
    for recipe in ("mirrored", "speedrun"):
        config = parse(recipe, "--schedule", "rates.py:rate")
        assert config.schedule == "rates.py:rate"
        assert config.learning_rate == Config.learning_rate
    with pytest.raises(UserError, match="warmup_steps=5 has no effect"):
        parse("speedrun", "--schedule", "rates.py:rate", "--warmup-steps", "5")


STARTED = """
import sys
from pmapdp import cli, devices
from pmapdp.flags import parse_with_recipe
from pmapdp.train import COMMAND, ProcessesOptions

parse_with_recipe(COMMAND, ProcessesOptions, ["--devices", "3"])
devices.simulate(3)
sys.argv = ["pmapdp", "port", "--version"]
cli.main()
"""


def test_the_console_script_and_its_version_and_parsing_starts_no_device():
    done = python(
        "-c", STARTED, env={"XLA_FLAGS": "", "JAX_ENABLE_X64": "1", "NPROC": "6"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    facts = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert {f"jax: {jax.__version__}", "NPROC: 6", "JAX_ENABLE_X64=1"} <= {*facts}
    assert any(fact.startswith("device info: cpu-3") for fact in facts)
    assert not any("PATH" in fact for fact in facts)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_console_script_lists_the_commands(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["pmapdp", *arguments])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    lines = capsys.readouterr().out.splitlines()
    assert [name for name in cli.COMMANDS if f"    {name} " in "\n".join(lines)] == [
        *cli.COMMANDS
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("command", "status"), [("--help", 0), ("prt", 2)])
def test_the_package_runs_as_the_console_script_does(command, status):
    done = python("-m", "pmapdp", command)
    assert done.returncode == status
    if status == 0:
        assert "    train " in done.stdout
    else:
        assert "did you mean 'port'?" in done.stderr


@pytest.mark.parametrize("name", ["train", "compare", "verify", "evaluate"])
def test_help_says_which_values_are_files_and_folders(name):
    text = entry.run_command(name, "--help").out
    assert "FILE" in text or "FOLDER" in text
    flags = ("--workdir", "--data-dir", "--html", "--json", "--metrics-file")
    assert not [flag for flag in flags if f"{flag} TEXT" in text]


def test_a_notebook_shows_the_help_of_each_setting():
    assert "    epochs: Passes over the training set." in Config.__doc__.splitlines()


def test_a_command_that_there_is_not(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pmapdp", "prt"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert "did you mean 'port'?" in capsys.readouterr().err


def test_the_examples_of_the_page_of_flags_are_accepted():
    """Each alone, so settings that need another one are only parsed."""
    page = (Path(__file__).parents[2] / "docs" / "flags.md").read_text()
    trainer = page.partition("## pmapdp.train")[2].partition("\n## ")[0]
    examples = re.findall(r"^\| `(--[^`]*)` \| ", trainer, re.MULTILINE)
    fields = [*dataclasses.fields(Config), *dataclasses.fields(ProcessesOptions)]
    assert len(examples) >= len(fields) - 1  # all but RECIPE
    assert "\n| `--seed 1` | `0` | " in trainer
    assert "\n| `--profile` | off | " in trainer
    for example in examples:
        values = read_flags(COMMAND, fields, example.split())
        assert len(values) == 1, example

"""Command lines: what people type works, and --help and --version say what they need. Mistakes: test_mistakes.py."""

import subprocess
import sys
import types

import jax
import pytest
from launch import environment, python

from pmapdp import cli
from pmapdp.config import Config
from pmapdp.distributed import ProcessesOptions
from pmapdp.recipes import RECIPES
from pmapdp.train import main


def parse(*arguments: str) -> Config:
    return cli.parse_with_recipe(ProcessesOptions, list(arguments), "    python -m pmapdp.train")[0]


def error_of(capsys, *arguments: str) -> str:
    """The one line on stderr with which `pmapdp.train` ends."""
    assert cli.run(main, ["--no-compile-cache", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


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


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_fits_a_terminal_and_shows_examples(name):
    """One process each, because --help must work before JAX starts."""
    done = python("-m", f"pmapdp.{name}", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"usage: python -m pmapdp.{name} ")
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(("    python -m", "    srun python -m")) for line in lines) >= 3
    assert lines.count("options:") == 1
    assert not [line for line in lines if "(default: (" in line or "default: True" in line]


def test_help_shows_the_defaults_of_the_recipe(capsys):
    assert cli.run(main, ["mirrored", "--help"]) == 0
    text = capsys.readouterr().out
    assert "(default: piecewise)" in text
    assert "(default: 3 7)" in " ".join(text.split())
    assert all(f"  {recipe}: " in text for recipe in RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_gives_its_configuration_and_flags_override_it(recipe):
    assert parse(recipe) == RECIPES[recipe].config
    config = parse(recipe, "--seed", "7", "--epochs=2")
    assert (config.seed, config.epochs, config.model) == (7, 2, RECIPES[recipe].config.model)


@pytest.mark.parametrize(
    "arguments",
    [
        ["mirrored", "--data-dir", "x", "--no-progress", "--switch-epochs", "3", "5"],
        ["--data_dir", "x", "mirrored", "--no_progress", "--switch_epochs", "3", "--switch-epochs=5"],
        ["--switch-epochs", "3", "5", "--progress", "--data_dir=x", "--no-progress", "mirrored"],
    ],
)
def test_what_users_type(arguments):
    config = parse(*arguments)
    assert (config.recipe, config.data_dir, config.progress, config.switch_epochs) == ("mirrored", "x", False, (3, 5))


def test_a_batch_size_replaces_the_recipes_of_either_kind():
    assert parse() == Config() == RECIPES["digits"].config
    assert parse("--per-device-batch-size", "16").per_device_batch_size == 16
    of_mirrored = parse("mirrored", "--global-batch-size", "256")
    assert (of_mirrored.global_batch_size, of_mirrored.per_device_batch_size) == (256, None)


def test_version_prints_what_a_report_needs():
    code = "import sys; sys.argv = ['pmapdp', 'train', '--version']; from pmapdp.cli import main; main()"
    done = python("-c", code, env={"JAX_NUM_CPU_DEVICES": "3", "NPROC": "6", "XLA_FLAGS": ""})
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert ["jax", jax.__version__] in lines
    assert ["devices", "3 x cpu (cpu)"] in lines
    assert ["NPROC=6"] in lines
    assert not any(line[0].startswith("PATH") for line in lines)


def test_version_also_if_jax_cannot_start(capsys, monkeypatch):
    def devices():
        raise RuntimeError("no such backend")

    monkeypatch.setattr(jax, "devices", devices)
    assert cli.run(main, ["--version"]) == 0
    assert "devices          none, JAX cannot start: no such backend" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "status", "said"), [("port", 0, "usage: python -m pmapdp.port"), ("prt", 2, "'port'")]
)
def test_the_console_script(name, status, said):
    code = f"import sys; sys.argv = ['pmapdp', '{name}', '--help']; from pmapdp.cli import main; main()"
    done = python("-c", code)
    assert done.returncode == status
    assert said in done.stdout + done.stderr


def test_parsing_starts_no_device():
    code = (
        "import sys, jax, pmapdp.train as t; from pmapdp import cli, devices;"
        "cli.parse_with_recipe(t.ProcessesOptions, ['--devices', '3'], '');"
        "devices.simulate(3); print(len(jax.devices()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False)
    assert done.stdout == "3\n", done.stderr

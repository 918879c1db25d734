"""Every ending of a command: its exit status, and one sentence or a traceback."""

import dataclasses
import re
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path

import entry
import pytest
from launch import environment

from pmapdp import cli
from pmapdp.config import Config, flag
from pmapdp.errors import (
    DivergedError,
    StoppedError,
    UserError,
    YourCodeError,
    explain_errors,
)
from pmapdp.files import load_from_file
from pmapdp.signals import SIGNALS


def raising(error: BaseException):
    def main(arguments: list[str]) -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("do this"), 2, "error: do this\n"),
        (UserError("a\n\x1b[31mb"), 2, "error: a\\n\\x1b[31mb\n"),
        (DivergedError("lower it"), 3, "error: lower it\n"),
        (StoppedError("go on so", 143), 143, "go on so\n"),
        (SystemExit(5), 5, ""),
        (
            MemoryError(),
            2,
            "error: no memory is left (MemoryError): use a smaller batch or model\n",
        ),
    ],
)
def test_an_expected_ending_is_one_line(capsys, error, status, line):
    assert cli.run(raising(error), []) == status
    assert capsys.readouterr().err == line


def test_an_unexpected_error_shows_its_traceback(capsys):
    assert cli.run(raising(ZeroDivisionError("division by zero")), []) == 1
    text = capsys.readouterr().err
    assert text.startswith("Traceback")
    assert text.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    "error", ["ValueError('a\\nb')", "SystemExit(0)", "BrokenPipeError()"]
)
def test_an_error_in_your_file_shows_its_traceback_then_a_message(
    tmp_path, capsys, error
):
    path = tmp_path / "net.py"
    path.write_text(f"def g():\n    raise {error}\n\ng()\n")
    assert cli.run(lambda _: load_from_file(f"{path}:f"), []) == 2
    frames, said = capsys.readouterr().err.split("\nerror: ")
    assert f'File "{path}", line 2, in g' in frames
    assert said.startswith(f"{path} fails ({error.partition('(')[0]}: ")
    assert said.endswith("): correct it where the traceback ends\n")


def test_only_an_error_of_your_code_shows_its_cause(capsys):
    def fail(error_class):
        with explain_errors("it fails", "correct it", error_class):
            raise ValueError("so")

    message = "error: it fails (so): correct it\n"
    assert cli.run(lambda _: fail(UserError), []) == 2
    assert capsys.readouterr().err == message
    assert cli.run(lambda _: fail(YourCodeError), []) == 2
    assert capsys.readouterr().err.endswith(f"\nValueError: so\n{message}")


def test_from_python_messages_name_arguments_and_not_flags(capsys):
    error = UserError(
        "--warmup-steps 5 needs a --schedule: try --warmup-steps 0 or "
        "--best 'a--model b', or --mesh data=4,model=2, --strategy jit and "
        "--shard-state none, or --switch-epochs 3 7 and --workdir runs/first"
    )
    assert cli.run(raising(error), []) == 2
    assert capsys.readouterr().err == f"error: {error.args[0]}\n"
    assert str(error) == (
        "warmup_steps=5 needs a schedule: try warmup_steps=0 or best='a--model b', "
        'or mesh="data=4,model=2", strategy="jit" and shard_state="none", '
        'or switch_epochs=(3, 7) and workdir="runs/first"'
    )


def test_from_python_the_values_of_a_setting_are_in_quotes():
    """A setting with named values that `errors.NAMES` lacks would get none."""
    checked = []
    for field in dataclasses.fields(Config):
        for value in typing.get_args(field.type):
            if isinstance(value, str):
                message = f"use {flag(field.name)} {value}"
                assert str(UserError(message)) == f'use {field.name}="{value}"'
                checked.append(value)
    assert len(checked) >= 12


@pytest.mark.parametrize(
    ("name", "value", "argument"),
    [
        ("workdir", "runs/a", 'workdir="runs/a"'),
        ("workdir", "/home/my runs/[1]", "workdir='/home/my runs/[1]'"),
        ("init_from", "/home/model.zip", 'init_from="/home/model.zip"'),
        ("init_from", "2024/a", 'init_from="2024/a"'),
        ("metrics_file", ".", 'metrics_file="."'),
        ("best", "lowest:loss", 'best="lowest:loss"'),
        ("dataset", "photos/", 'dataset="photos/"'),
        ("coordinator", "127.0.0.1:9876", 'coordinator="127.0.0.1:9876"'),
        ("learning_rate", 1e-05, "learning_rate=1e-05"),
        ("learning_rate", -0.5, "learning_rate=-0.5"),
    ],
)
def test_from_python_a_text_is_in_quotes_and_a_number_isnt(name, value, argument):
    error = UserError(f"{flag(name, value)}: no; {flag(name, value)} and {flag(name)}.")
    assert str(error) == f"{argument}: no; {argument} and {name}."


def test_from_python_a_stopped_run_names_arguments(capsys):
    error = StoppedError("stopped; with --workdir runs/first it resumes", 130)
    assert cli.run(raising(error), []) == 130
    assert capsys.readouterr().err == f"{error.args[0]}\n"
    assert str(error) == 'stopped; with workdir="runs/first" it resumes'


COMMAND = "import sys; from pmapdp import cli; sys.exit(cli.run(lambda _: {body}))"
PRINT = "__import__('rich.console').console.Console().print('x' * 80)"
RICH = f"[{PRINT} for _ in range(9999)]"


@pytest.mark.parametrize("body", ["print('x')", RICH])
def test_a_reader_that_goes_away(body):
    """As `head` does: no traceback, and the status of `cat` and the like."""
    command = [
        "bash",
        "-c",
        '"$0" -c "$1" | true; exit ${PIPESTATUS[0]}',
        sys.executable,
        COMMAND.format(body=body),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_command_in_good_order(capsys, number):
    """Also while files are read or your model is tried, in which any other error
    becomes a sentence.
    """
    closed = []

    def main(arguments: list[str]) -> None:
        try:
            with explain_errors("the model fails", "correct it"):
                signal.raise_signal(number)
        finally:
            closed.append(True)

    before = signal.getsignal(number)
    assert cli.run(main, []) == 128 + number
    assert (capsys.readouterr().err, closed) == (f"stopped by {number.name}\n", [True])
    assert signal.getsignal(number) == before


def test_under_nohup_a_terminal_that_closes_changes_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert cli.run(lambda _: signal.raise_signal(signal.SIGHUP), []) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


PAGE = Path(__file__).parents[2] / "docs" / "statuses.md"
ROW = re.compile(r"^\| (\d+) \|.*\|(.*)\|$", re.MULTILINE)
# It counts its calls in a file, and ends with a status of the list each time.
ENDS = """
import pathlib, sys
calls = pathlib.Path(sys.argv[1])
count = len(calls.read_text()) if calls.exists() else 0
calls.write_text("x" * (count + 1))
sys.exit(([int(status) for status in sys.argv[2:]] * 99)[count])
"""
CATCH = re.compile(r"^try:.*error\.status\)\n", re.MULTILINE | re.DOTALL)


def run_restarting(folder: Path, statuses: list[int]) -> tuple[int, int]:
    """Run the script of docs/statuses.md on a command that ends with these statuses.

    Returns:
        The script's own status, and how often the command ran.
    """
    (script,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert script.count("sleep 1\n") == 1
    (folder / "restart.sh").write_text(script.replace("sleep 1\n", "true\n"))
    calls = folder / "calls"
    command = [sys.executable, "-c", ENDS, calls, *statuses]
    done = subprocess.run(
        ["bash", folder / "restart.sh", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    count = len(calls.read_text())
    assert done.stderr.count("starting again") == count - 1
    return done.returncode, count


def test_the_script_starts_again_after_the_statuses_of_the_table(tmp_path):
    rows = ROW.findall(PAGE.read_text())
    assert len(rows) == 11
    for number, advice in rows:
        status = int(number)
        folder = tmp_path / number
        folder.mkdir()
        ended, count = run_restarting(folder, [status, 0])
        if "**start again**" in advice:
            assert (ended, count) == (0, 2), number
        else:
            assert (ended, count) == (status, 1), number


def test_the_script_gives_up_after_20_restarts(tmp_path):
    assert run_restarting(tmp_path, [4]) == (4, 21)


def write_program(folder: Path, *, catches: bool, settings: str) -> Path:
    """Write the program of docs/statuses.md, or the same without its try."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    call = 'train(Config(workdir="runs/first"))'
    assert program.count(call) == 1
    program = program.replace(call, f"train(Config({settings}))")
    if not catches:
        program = CATCH.sub(f"train(Config({settings}))\n", program)
        assert "except" not in program
    path = folder / "my_train.py"
    path.write_text(program)
    return path


@pytest.mark.parametrize(
    ("catches", "status"),
    [
        pytest.param(True, 143, marks=pytest.mark.slow),
        pytest.param(False, 1, marks=pytest.mark.nightly),
    ],
)
def test_a_program_that_gets_sigterm_ends_as_the_page_says(tmp_path, catches, status):
    """Either way the checkpoint is written first."""
    settings = f"workdir={str(tmp_path / 'run')!r}, epochs=10**6, devices=1"
    program = write_program(tmp_path, catches=catches, settings=settings)
    with subprocess.Popen(
        [sys.executable, program],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        deadline = time.monotonic() + 120
        while not entry.checkpoint_steps(tmp_path / "run"):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        _, errors = process.communicate(timeout=120)
    assert process.returncode == status, errors
    stopped = re.search(r"stopped by SIGTERM after step ([0-9,]+): a check", errors)
    assert stopped, errors
    step = int(stopped[1].replace(",", ""))
    assert entry.checkpoint_steps(tmp_path / "run")[-1] == step


@pytest.mark.slow
@pytest.mark.parametrize(("catches", "status"), [(True, 2), (False, 1)])
def test_a_program_with_a_mistake_ends_as_the_page_says(tmp_path, catches, status):
    program = write_program(tmp_path, catches=catches, settings="epochs=0")
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
        check=False,
    )
    assert done.returncode == status
    assert "epochs=0 must be at least 1" in done.stderr

"""SIGINT, SIGTERM, SIGHUP at any moment, once or twice: one line, its status, a checkpoint where one was promised.

With the marker `slow` there are PMAPDP_ROUNDS random moments; 200 were tried.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from launch import python
from marks import quick
from running import run, start

from pmapdp.command.signals import SIGNALS
from pmapdp.run.trained import load_run

ROUNDS = int(os.environ.get("PMAPDP_ROUNDS", 2))
JOB = ["--model", "mlp", "--optimizer", "sgd", "--no-progress", "--global-batch-size", 256]
LONG = [*JOB, "--epochs", 100_000, "--checkpoint-every", 50]


def has_begun(process: subprocess.Popen) -> bool:
    """Whether the command has its handler of SIGTERM; Python itself takes a while before its first line."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    caught = int(next(line for line in lines if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught & (1 << (signal.SIGTERM - 1)))


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@quick(1, "number", SIGNALS)
@pytest.mark.parametrize("module", ["train", "evaluate", "export", "predict", "compare", "scaling", "verify"])
def test_while_a_command_imports(module, number):
    process = start("--help", module=f"pmapdp.{module}")
    wait_until(lambda: "numpy" in Path(f"/proc/{process.pid}/maps").read_text())
    process.send_signal(number)
    assert process.communicate(timeout=60) == ("", f"stopped at once by {number.name}\n")
    assert process.returncode == 128 + number


def test_under_nohup_a_terminal_that_closes_changes_nothing():
    """The handler that a process had of SIGHUP stays there where that ignores it, and only there."""
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    code += "from pmapdp.run.stop_request import StopRequest\n"
    code += "with StopRequest() as stop: signal.raise_signal(signal.SIGHUP)\n"
    code += "assert not stop and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN\n"
    code += "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    code += "with StopRequest() as stop: signal.raise_signal(signal.SIGHUP)\n"
    code += "assert stop.signal == signal.SIGHUP\n"
    assert python("-c", code).stderr == ""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of one epoch, and its exported model."""
    folder = tmp_path_factory.mktemp("finished")
    run(*JOB, "--strategy", "single", "--epochs", 1, "--workdir", folder / "run")
    run(folder / "run", folder / "model.zip", module="pmapdp.export")
    np.save(folder / "digit.npy", np.zeros((28, 28), np.uint8))
    return folder


@pytest.mark.slow
def test_at_random_moments(finished, tmp_path):
    """Each time another moment and another command; more often than not one that trains, in the same folder."""
    random = np.random.default_rng()
    commands = {
        "predict": [finished / "model.zip", finished / "digit.npy"],
        "evaluate": [finished / "run"],
        "export": [finished / "run", tmp_path / "again.zip"],
        "compare": ["--model", "mlp", "--devices", 2, "--steps", 1_000_000],
        "single": [*LONG, "--strategy", "single", "--workdir", tmp_path / "run"],
        "pmap": [*LONG, "--devices", 2, "--workdir", tmp_path / "run"],
    }
    (tmp_path / "temporary").mkdir()
    for _ in range(ROUNDS):
        name = random.choice(list(commands), p=[0.1, 0.1, 0.1, 0.1, 0.4, 0.2])
        module = name if name not in ("single", "pmap") else "train"
        numbers = [signal.Signals(each) for each in random.choice(SIGNALS, 2)]
        seconds, pause, twice = random.uniform(0, 6), random.choice([0, 0.001, 0.05, 0.3]), random.random() < 0.5
        process = start(*commands[name], module=f"pmapdp.{module}", env={"TMPDIR": str(tmp_path / "temporary")})
        wait_until(lambda: has_begun(process))  # noqa: B023
        time.sleep(seconds)
        process.send_signal(numbers[0])
        if twice:
            time.sleep(pause)
            process.send_signal(numbers[1])
        out, err = process.communicate(timeout=60)
        case = f"{name}, {numbers[0].name} after {seconds:.3f} s, "
        case += f"{numbers[1].name} after {pause} s more: " if twice else ": "
        case += f"{process.returncode}\n{out}\n{err}"
        print(case)
        if process.returncode == 0 and module != "train":  # it was ready before
            assert err == "" or module == "evaluate", case
            continue
        assert process.returncode in {128 + each for each in numbers[: 1 + twice]}, case
        *before, last = err.splitlines()
        assert re.fullmatch(r"stopped (at once )?by SIG(INT|TERM|HUP).*", last), case
        assert all(line.startswith("run ") for line in before), case  # what compare does now
        assert not list((tmp_path / "temporary").iterdir()), case
        if found := re.search(r"after step ([\d,]+): a checkpoint is in", last):
            assert int(load_run(tmp_path / "run")[1].step) == int(found[1].replace(",", "")), case
        if module == "train" and out:
            assert set(out.splitlines()) <= set((tmp_path / "run" / "log.txt").read_text().splitlines()), case

"""Workers end with whoever started them, and what went wrong is said in one sentence."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import environment
from running import start

from pmapdp.workers import WorkerError, run_workers, what_happened


def processes_with(word: str) -> list[int]:
    """Running processes whose command line has `word`. Linux."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word in (folder / "cmdline").read_text() and "State:\tZ" not in (folder / "status").read_text():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def wait_until(condition, seconds: float = 60):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_no_worker_outlives_the_command(tmp_path, number):
    changes = {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "pmapdp.compare", "--model", "mlp", "--devices", "2", "--steps", "1000000"],
        env=environment(changes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: processes_with(str(tmp_path)))
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    wait_until(lambda: not processes_with(str(tmp_path)))
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert errors.splitlines()[-1] == f"stopped by {number.name}"
        assert not list(tmp_path.glob("pmapdp-compare-*"))


def test_a_signal_that_is_ignored_stays_ignored():
    """As under nohup."""
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    code += "from pmapdp.workers import ended_by_signals\n"
    code += "with ended_by_signals(): signal.raise_signal(signal.SIGHUP)\n"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode == 0


def test_workers_run_at_the_same_time_and_return_what_they_print():
    assert run_workers(["platform"], ["platform"]) == [f"{__import__('platform').platform()}\n"] * 2


def test_a_failing_worker_says_why():
    with pytest.raises(WorkerError, match=r"^unknown recipe 'digts': did you mean 'digits'") as caught:
        run_workers(["pmapdp.train", "digts"])
    assert caught.value.status == 2
    with pytest.raises(WorkerError, match=r"took more than 0\.1 seconds"):
        run_workers(["pmapdp.train"], seconds=0.1)


def test_the_line_that_says_what_happened():
    assert what_happened(2, "a warning\nerror: one sentence\na thread's last word\n") == "one sentence"
    assert what_happened(1, "Traceback\nValueError: no\n\n") == "ValueError: no"
    assert what_happened(-9, "") == "ended by SIGKILL: it said nothing"


def test_the_command_ends_by_the_keyboard(tmp_path):
    process = start("--model", "mlp", "--devices", "2", "--steps", "1000000", module="pmapdp.compare")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("run 1")
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "stopped by SIGINT"

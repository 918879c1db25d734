"""Workers end with whoever started them, and what went wrong is said in one sentence."""

import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import environment

from pmapdp.workers import WorkerError, run_worker, what_happened


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
    "number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_no_worker_outlives_the_command(tmp_path, number):
    flags = ["--model", "mlp", "--devices", "2", "--steps", "1000000", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "pmapdp.compare", *flags],
        env=environment({"TMPDIR": str(tmp_path)}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: len(processes_with(str(tmp_path))) > 1)  # its worker has the flag too
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    wait_until(lambda: not processes_with(str(tmp_path)))
    assert list(tmp_path.iterdir()) == []
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert errors.splitlines()[-1] == f"stopped at once by {number.name}"


def test_what_a_worker_prints():
    assert run_worker("platform").decode() == f"{platform.platform()}\n"


def test_a_failing_worker_says_why():
    with pytest.raises(WorkerError, match=r"^unknown recipe 'digts': did you mean 'digits'") as caught:
        run_worker("pmapdp.train", "digts")
    assert caught.value.status == 2
    with pytest.raises(WorkerError, match=r"took more than 0\.1 seconds"):
        run_worker("pmapdp.train", seconds=0.1)


def test_the_line_that_says_what_happened():
    assert what_happened(2, "a warning\nerror: one sentence\na thread's last word\n") == "one sentence"
    assert what_happened(1, "Traceback\nValueError: no\n\n") == "ValueError: no"
    assert what_happened(-9, "") == "ended by SIGKILL: it said nothing"

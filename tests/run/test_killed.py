"""Killed at random moments where memory or the disk runs out, or the disk is slow: nothing is lost but the updates
since the last checkpoint, and the run ends with the same bits. PMAPDP_ROUNDS kills of each; 30 were tried.
"""

import contextlib
import os
import re
import resource
import shutil
import subprocess
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from disks import small_disk
from marks import NIGHT
from running import run, start

from pmapdp.run.trained import load_run

pytestmark = NIGHT
ROUNDS = int(os.environ.get("PMAPDP_ROUNDS", 1))
# 90 updates an epoch. A checkpoint has 2.7 MB.
JOB = ["--model", "mlp", "--strategy", "single", "--optimizer", "sgd", "--no-progress"]
JOB += ["--global-batch-size", 16, "--epochs", 12]
OFTEN = [*JOB, "--checkpoint-every", 20]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The parameters of a run that nobody disturbed, and the largest size of its process in bytes."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    process, most = start(*OFTEN, "--workdir", folder), 0
    while process.poll() is None:
        with contextlib.suppress(OSError, StopIteration):
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            most = max(most, 1024 * int(next(line for line in status if line.startswith("VmPeak")).split()[1]))
        time.sleep(0.05)
    assert process.returncode == 0
    process.communicate()
    return jax.tree.leaves(load_run(folder)[1]), most


def checkpoints(folder: Path) -> set[int]:
    """The complete ones."""
    return {int(each.name) for each in (folder / "checkpoints").glob("*") if each.name.isdigit()}


def lines(folder: Path) -> list[str]:
    """The whole lines of the metrics file."""
    file = folder / "metrics.jsonl"
    return [line for line in file.read_text().splitlines(keepends=True) if line[-1] == "\n"] if file.exists() else []


def kill_and_start_again(
    folder: Path,
    leaves: list[np.ndarray],
    *,
    env: dict[str, str] | None = None,
    disturb=lambda process: None,
    may_fail=lambda status, error: False,
) -> None:
    """Rounds of a kill each, with a look at what was kept.

    Args:
        folder: of the run.
        leaves: parameters at the end of a run that nobody disturbed.
        env: changes to the environment.
        disturb: takes a process that has just been started.
        may_fail: whether the disturbance may end the process with this status and this on standard error.
    """
    random, killed = np.random.default_rng(), 0
    while killed < ROUNDS:
        kept, said = checkpoints(folder), lines(folder)
        process, began = start(*OFTEN, "--workdir", folder, env=env), time.monotonic()
        disturb(process)
        if random.random() < 0.7:  # otherwise also in the first seconds, which tell less
            deadline = time.monotonic() + 60
            while process.poll() is None and checkpoints(folder) <= kept and time.monotonic() < deadline:
                time.sleep(0.01)
        try:
            process.wait(random.uniform(0, 2))
        except subprocess.TimeoutExpired:
            process.kill()
        out, err = process.communicate(timeout=60)
        killed += process.returncode == -9
        seconds = time.monotonic() - began
        print(f"{seconds:.1f} s, status {process.returncode}, {sorted(checkpoints(folder))}, {err}", flush=True)
        assert process.returncode in (0, -9) or may_fail(process.returncode, err), err
        assert max(checkpoints(folder), default=0) >= max(kept, default=0)
        assert not (folder / "damaged").exists(), out
        assert lines(folder)[: len(said)] == said
        if "restored" in out:
            assert int(re.findall("restored from the checkpoint of step ([0-9,]+)", out)[0].replace(",", "")) == max(
                kept
            )
        if process.returncode == 0:
            require_same_end(folder, leaves)
            shutil.rmtree(folder)


def finish(folder: Path, leaves: list[np.ndarray]) -> None:
    """Undisturbed, the run comes to its end."""
    run(*OFTEN, "--workdir", folder)
    assert not (folder / "damaged").exists()
    require_same_end(folder, leaves)


def require_same_end(folder: Path, leaves: list[np.ndarray]) -> None:
    """The finished run has the end of the one that nobody disturbed, in every bit."""
    for a, b in zip(jax.tree.leaves(load_run(folder)[1]), leaves, strict=True):
        np.testing.assert_array_equal(a, b)


def test_with_little_memory(straight, tmp_path):
    """A limit on the size of the process, around what it needs. C++ ends the process in its own way."""
    leaves, largest = straight
    random = np.random.default_rng()

    def limit(process: subprocess.Popen) -> None:
        resource.prlimit(process.pid, resource.RLIMIT_AS, 2 * (int(largest * random.uniform(0.7, 1)),))

    kill_and_start_again(tmp_path / "run", leaves, disturb=limit, may_fail=lambda status, error: True)
    finish(tmp_path / "run", leaves)


@contextlib.contextmanager
def filled_and_freed(disk: Path):
    """Another program takes all that is left on a disk, and lets go of it again, all the time."""
    ended, random = threading.Event(), np.random.default_rng()

    def work() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), open(disk / "other", "wb", buffering=0) as file:
                while not ended.wait(0.001):
                    file.write(bytes(2**20))
            ended.wait(random.uniform(0, 1))
            (disk / "other").unlink()
            ended.wait(random.uniform(0, 4))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_with_a_disk_that_fills_up_and_frees_again(straight, tmp_path):
    def full(status: int, error: str) -> bool:
        return status == 2 and error.count("\n") == 1 and bool(re.search("No space left|it needs up to", error))

    with small_disk(tmp_path / "disk", "size=40m") as disk:
        with filled_and_freed(disk):
            kill_and_start_again(disk / "run", straight[0], may_fail=full)
        finish(disk / "run", straight[0])


SLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>
#define SLOW(type, name, parameters, ...) type name parameters { \
    usleep(MICROSECONDS); return ((type (*) parameters) dlsym(RTLD_NEXT, #name))(__VA_ARGS__); }
SLOW(ssize_t, write, (int file, const void *data, size_t size), file, data, size)
SLOW(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t at), file, data, size, at)
SLOW(int, fsync, (int file), file)
SLOW(int, fdatasync, (int file), file)
SLOW(int, rename, (const char *from, const char *to), from, to)
SLOW(int, mkdir, (const char *path, mode_t mode), path, mode)
"""


def test_with_a_slow_disk(straight, tmp_path):
    """Every call that writes takes 10 ms longer."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler, for a library that makes the disk slow")
    (tmp_path / "slow.c").write_text(SLOW)
    command = [compiler, "-shared", "-fPIC", "-DMICROSECONDS=10000", "-o", "slow.so", "slow.c", "-ldl"]
    subprocess.run(command, cwd=tmp_path, check=True)
    kill_and_start_again(tmp_path / "run", straight[0], env={"LD_PRELOAD": str(tmp_path / "slow.so")})
    finish(tmp_path / "run", straight[0])

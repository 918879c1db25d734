"""A process that dies, hangs, or loses its network ends the others in time; the same command goes on bit for bit."""

import contextlib
import os
import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from disks import small_disk
from marks import quick
from processes import HEARTBEAT, Ended, by_hand, end_of, free_port, running, train_together, wait_for_checkpoint

from pmapdp.run.trained import load_run

JOB = ["--model", "mlp", "--devices", 2, "--checkpoint-every", 5, "--no-progress"]
LONG = [*JOB, "--epochs", 1000]  # never done by itself
ROUNDS = int(os.environ.get("PMAPDP_ROUNDS", "1"))  # of kill and restart


class Network:
    """A network between process 1 and the coordinator, which can break down: nothing more arrives, nothing closes."""

    def __init__(self, coordinator: int):
        self.up = threading.Event()
        self.up.set()
        self.coordinator = coordinator
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            client, _ = self.server.accept()
            while True:
                try:
                    server = socket.create_connection(("127.0.0.1", self.coordinator))
                    break
                except OSError:  # process 0 does not listen yet
                    time.sleep(0.1)
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the other side has closed
            while data := source.recv(1 << 16):
                self.up.wait()
                target.sendall(data)
        source.close()
        target.close()


def fault(workdir: Path, victims: tuple[int, ...], number: signal.Signals | None) -> tuple[list[Ended | None], float]:
    """Send a signal to one or both of two processes in the middle of training, or (None) cut process 1 off from the
    coordinator.

    Returns how each ended (None: a victim, if it does not end by itself), and the seconds until the last had.
    """
    port = free_port()
    network = Network(port)
    hands = []
    for process, address in enumerate(
        (f"127.0.0.1:{port}", network.address if number is None else f"127.0.0.1:{port}")
    ):
        hands.append(["--coordinator", address, "--num-processes", 2, "--process-id", process])
    job = [*LONG, "--workdir", workdir, "--heartbeat-timeout", HEARTBEAT]
    with running(*([*job, *hand] for hand in hands)) as processes:
        wait_for_checkpoint(workdir, processes)
        started = time.monotonic()
        if number is None:
            network.up.clear()
        else:
            for victim in victims:
                processes[victim].send_signal(number)
        stays = number in (signal.SIGKILL, signal.SIGSTOP)
        ended = [None if stays and p in victims else end_of(each) for p, each in enumerate(processes)]
        return ended, time.monotonic() - started


LOST = {
    "killed": ((1,), signal.SIGKILL),
    "coordinator killed": ((0,), signal.SIGKILL),
    "stopped": ((1,), signal.SIGSTOP),
    "coordinator stopped": ((0,), signal.SIGSTOP),
    "network": ((), None),
}
ASKED = {
    "one by SIGTERM": ((1,), signal.SIGTERM),
    "one by SIGINT": ((1,), signal.SIGINT),
    "both by SIGHUP": ((0, 1), signal.SIGHUP),
}
FAULTS = LOST | ASKED


@pytest.fixture(scope="module")
def faults(request, tmp_path_factory):
    """The faults of the tests that are run, two at a time, because most is waiting; each with its workdir."""
    folder = tmp_path_factory.mktemp("faults")
    asked = {
        item.callspec.params["name"] for item in request.session.items if "faults" in getattr(item, "fixturenames", ())
    }
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = {name: pool.submit(fault, folder / name, *FAULTS[name]) for name in FAULTS if name in asked}
        yield {name: (folder / name, future) for name, future in found.items()}


def assert_lost(ended: Ended) -> None:
    """A process ended because of another one: with our sentence where a collective failed, or by JAX or gloo."""
    if ended.status == 4:
        assert ended.err.splitlines()[-1].startswith("error: another process is lost, see its own messages ("), ended
        assert ended.err.endswith("and a run with a workdir resumes from its last checkpoint"), ended
    else:
        assert ended.status == -signal.SIGABRT, ended
        theirs = "Terminating process because the JAX distributed service detected fatal errors", "instance of 'gloo::"
        assert any(words in ended.err for words in theirs), ended


@quick(1, "name", LOST)
def test_the_others_end_in_time(faults, name):
    ended, seconds = faults[name][1].result()
    assert seconds < HEARTBEAT + 2  # two seconds for the test itself, on a machine with much to do
    for process, each in enumerate(ended):
        assert (each is None) == (process in LOST[name][0])
        if each is not None:
            assert_lost(each)


@quick(1, "name", ASKED)
def test_a_signal_saves_and_stops_all(faults, name):
    workdir, future = faults[name]
    ended, _ = future.result()
    number, line = ASKED[name][1], ended[0].err
    assert line.startswith(f"stopped by {number.name} after step ")
    assert [(each.status, each.err) for each in ended] == [(128 + number, line)] * 2, ended
    step = int(line.split("step ")[1].split(":")[0].replace(",", ""))
    assert (workdir / "checkpoints" / str(step)).is_dir()


@pytest.mark.slow
def test_an_error_of_one_process_ends_all(tmp_path):
    """Its disk gets full. The other process sees that it is gone."""
    job = ["--model", "mlp", "--devices", 2, "--epochs", 1000, "--no-progress", "--global-batch-size", 1000]
    with small_disk(tmp_path / "disk", "size=8k") as disk:
        job += ["--metrics-file", disk / "metrics.jsonl"]
        with running(*([*job, *hand] for hand in by_hand(2))) as processes:
            first, second = (end_of(each) for each in processes)
    assert first.status == 2
    assert "metrics.jsonl" in first.err
    assert "No space left on device" in first.err
    assert_lost(second)


def final_leaves(workdir: Path) -> list[np.ndarray]:
    return jax.tree.leaves(load_run(workdir)[1])


@pytest.mark.slow
@pytest.mark.night
def test_killed_at_random_moments_and_started_again(tmp_path):
    """Rounds of SIGKILL to one process and a restart of both; then to the end."""
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    job = [*JOB, "--epochs", 2 * ROUNDS]
    train_together(2, *job, "--workdir", straight)
    kills = 0
    while kills < ROUNDS:
        before = newest(stopped)
        with running(*([*job, "--workdir", stopped, *own] for own in by_hand(2))) as processes:
            # Most moments before a checkpoint only test the start: one round is for them.
            moment = time.monotonic() + (random.uniform(0, 8) if kills == 1 else 120)
            while newest(stopped) == before and time.monotonic() < moment and processes[0].poll() is None:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.3))
            if processes[0].poll() is not None:  # the run was through
                break
            processes[random.randrange(2)].send_signal(signal.SIGKILL)  # `running` ends the other one
            kills += 1
    assert kills >= min(2, ROUNDS)
    first, _ = train_together(2, *job, "--workdir", stopped)
    assert "restored from the checkpoint of step" in first.out
    for a, b in zip(final_leaves(straight), final_leaves(stopped), strict=True):
        np.testing.assert_array_equal(a, b)


def newest(workdir: Path) -> int:
    """The update of the newest checkpoint; 0 where there is none."""
    return max((int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()), default=0)

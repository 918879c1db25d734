"""Whoever connects to a port of a run, and says what does not belong there, changes nothing for the run."""

import contextlib
import itertools
import re
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from processes import by_hand, end_of, free_port, running, train_together, wait_for_checkpoint
from test_lost_processes import assert_lost, final_leaves

from pmapdp.errors import UserError
from pmapdp.processes.join import address_to_listen_on
from pmapdp.processes.options import ProcessesOptions, split_address

JOB = ["--model", "mlp", "--devices", 2, "--epochs", 3, "--no-progress"]
RUBBISH = np.random.default_rng(0).bytes(100_000)
TLS_HELLO = bytes.fromhex("160301002f0100002b0303") + bytes(32) + bytes.fromhex("000004c02fc0300100")
MESSAGES = (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", TLS_HELLO, RUBBISH, b"")


def listening_ports(process: subprocess.Popen) -> set[int]:
    """The TCP ports on which a process listens."""
    sockets = set()
    for handle in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(str(handle.readlink()))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def wait_until(true: Callable[[], bool], process: subprocess.Popen) -> None:
    """Wait for something that a process is about to do."""
    deadline = time.monotonic() + 120
    while not true():
        assert process.poll() is None, end_of(process)
        assert time.monotonic() < deadline
        time.sleep(0.1)


def stranger(port: int, message: bytes) -> None:
    """Connect, say something, listen a while, and go."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(message)
        while connection.recv(1 << 16):
            pass


@pytest.mark.slow
@pytest.mark.night
def test_strangers_at_every_port_change_nothing(tmp_path):
    """A port scanner comes before the processes have met, and again while they train: the run ends as if nobody had
    come, bit for bit. At another address nobody listens."""
    job = [*JOB, "--checkpoint-every", 5, "--workdir"]
    quiet, disturbed = tmp_path / "quiet", tmp_path / "disturbed"
    train_together(2, *job, quiet)
    first, second = by_hand(2)
    port = int(first[1].rpartition(":")[2])
    with running([*job, disturbed, *first]) as (one,):
        wait_until(lambda: port in listening_ports(one), one)
        for message in MESSAGES:
            stranger(port, message)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=2)
        with running([*job, disturbed, *second]) as (two,):
            wait_for_checkpoint(disturbed, [one, two])
            ports = listening_ports(one) | listening_ports(two)
            assert len(ports) >= 3  # the coordinator's, and one of gloo's for each process
            with ThreadPoolExecutor() as pool:
                list(pool.map(stranger, *zip(*itertools.product(ports, MESSAGES), strict=True)))
            ended = [end_of(one), end_of(two)]
    assert [each.status for each in ended] == [0, 0], ended
    for a, b in zip(final_leaves(quiet), final_leaves(disturbed), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_number_given_twice_ends_all_with_a_sentence():
    """JAX ends all processes when one number comes twice."""
    first, second = by_hand(2)
    job = [*JOB, "--epochs", 1000]
    with running([*job, *first], [*job, *second]) as processes:
        wait_until(lambda: len(listening_ports(processes[0])) >= 2, processes[0])  # gloo's is there once both train
        with running([*job, *second, "--join-timeout", 10]) as (third,):
            ended = [end_of(each) for each in (*processes, third)]
    for each in ended[:2]:
        assert_lost(each)
    assert ended[2].status == 2, ended
    assert "(waited 10 s): start each once, with the same --coordinator and its own --process-id" in ended[2].err


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        ("[::1]:9876", ("::1", 9876)),
        ("node-1.cluster:80", ("node-1.cluster", 80)),
    ],
)
def test_addresses(address, found):
    assert split_address(address) == found


@pytest.mark.parametrize(
    "address",
    [
        "::1:9876",
        "fe80::1:9876",
        "here",
        "here:",
        "here:0",
        "here:99999",
        "here:99999999999999999999",
        "[]:80",
        "[here:80",
        "here:80/there",
    ],
)
def test_addresses_that_cannot_be(address):
    with pytest.raises(UserError, match=re.escape(f"--coordinator {address} is not HOST:PORT: try --coordinator ")):
        split_address(address)


@pytest.mark.parametrize(("host", "alone"), [("127.0.0.1", True), ("localhost", True), (socket.gethostname(), False)])
def test_the_coordinator_listens_no_wider_than_it_must(host, alone):
    """On the address alone where that is a number; a name may mean another address elsewhere."""
    first = ProcessesOptions(coordinator=f"{host}:{free_port()}", num_processes=2, process_id=0)
    assert address_to_listen_on(first) == (first.coordinator if alone else None)


@pytest.mark.slow
@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_ipv6():
    port = free_port()
    own = [["--coordinator", f"[::1]:{port}", "--num-processes", 2, "--process-id", process] for process in range(2)]
    with running(*([*JOB, "--epochs", 1, *each] for each in own)) as processes:
        ended = [end_of(process) for process in processes]
    assert [each.status for each in ended] == [0, 0], ended

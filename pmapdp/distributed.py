"""Let several processes train together: they connect, agree, stop together, and end if one of them is lost.

`jax.distributed` does the work, and process 0 runs its coordination service. Messages
travel as arrays do: over gloo between CPUs, over NCCL between GPUs. Lesson 17 teaches
this file.
"""

import contextlib
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils

from pmapdp import devices
from pmapdp.cli import report
from pmapdp.config import Config, flag, setting
from pmapdp.errors import (
    DivergedError,
    StoppedError,
    UserError,
    explain_errors,
    reason,
)
from pmapdp.sharding.layout import number_of_devices

MAY_DIFFER = {
    "data_dir",
    "metrics_file",
    "progress",
    "compile_cache",
}  # settings that may differ by process
ALL_RAISE = (
    DivergedError,
    StoppedError,
)  # errors that all processes raise, after the same update
CONNECTION = re.compile(
    "gloo|nccl|coordination|unavailable|deadline_exceeded|barrier", re.I
)  # words in JAX's errors


@dataclass(frozen=True)
class ProcessesOptions:
    """Flags that connect several processes. --devices counts the devices of one process."""

    distributed: bool = setting(
        "processes",
        False,
        "Join the processes that srun, mpirun, Kubernetes or TPUs started.",
    )
    coordinator: str | None = setting(
        "processes",
        None,
        "Otherwise: HOST:PORT of process 0, open to all who reach it.",
    )
    num_processes: int | None = setting(
        "processes", None, "Otherwise: the number of processes."
    )
    process_id: int | None = setting(
        "processes", None, "Otherwise: this one's number; 0 writes logs and metrics."
    )
    heartbeat_timeout: int = setting(
        "processes", 60, "Seconds without a sign of life after which a process is lost."
    )
    join_timeout: int = setting(
        "processes", 300, "Seconds to wait for all processes at the start."
    )


class LostError(UserError):
    """This process ends because another one is lost. Commands exit with status 4."""

    status = 4


@dataclass(frozen=True)
class Peers:
    """The processes of a run, seen from one of them. All make the same calls in the same order."""

    is_first: bool = True  # this is process 0, which writes logs and metrics
    count: int = 1  # of processes
    launcher: str = "by hand"  # who started them, for the header

    def allgather(self, value: Any) -> list[Any]:
        """Return the values of all processes, each JSON, in the order of their numbers."""
        if self.count == 1:
            return [value]
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = multihost_utils.process_allgather(np.int32(len(text)))
        texts = multihost_utils.process_allgather(
            np.pad(text, (0, lengths.max() - len(text)))
        )
        return [
            json.loads(bytes(row[:length]))
            for row, length in zip(texts, lengths, strict=True)
        ]

    def require_same(self, facts: dict[str, Any]) -> None:
        """Raise a `UserError` on all processes if a fact differs on one. All give the same names."""
        require_same_on_all(self.allgather(facts))

    def wait(self, name: str) -> None:
        """Wait until all processes make this call."""
        if self.count > 1:
            multihost_utils.sync_global_devices(name)

    @contextlib.contextmanager
    def exit_on_error(self) -> Iterator[None]:
        """End this process at once if only it fails. The others miss its connections or heartbeats, and end as well.

        An exception would not do: on its way up, cleaning up waits for the others,
        which wait in their next collective.
        """
        try:
            yield
        except ALL_RAISE:
            raise
        except BaseException as error:
            if self.count == 1:
                raise
            cause: BaseException | None = error
            while cause and not (
                isinstance(cause, JaxRuntimeError) and CONNECTION.search(str(cause))
            ):
                cause = cause.__cause__ or cause.__context__
            advice = "start the same command again, and a run with a workdir resumes from its last checkpoint"
            lost = LostError(
                f"another process is lost, see its own messages ({reason(cause or error)}): {advice}"
            )
            status = report(lost if cause else error)
            farewell = threading.Thread(
                target=jax.distributed.shutdown, daemon=True
            )  # waits for the others
            farewell.start()
            farewell.join(
                5
            )  # seconds in which the others may say the same error, before process 0 takes them down
            os._exit(status)


SINGLE_PROCESS = Peers()


def require_same_on_all(facts: list[dict[str, Any]]) -> None:
    """Raise a `UserError` if a process differs from process 0 in a fact. `facts` has each process's facts, by name."""
    for process, theirs in enumerate(facts):
        for name, value in theirs.items():
            if value != facts[0][name]:
                raise UserError(
                    f"process {process} differs from process 0 in {name} ({value!r} there, {facts[0][name]!r} here): "
                    "start all processes with the same command, the same files and the same kind of machine"
                )


@contextlib.contextmanager
def connect_processes(options: ProcessesOptions, config: Config) -> Iterator[Peers]:
    """Connect with the other processes of the run, if there are any. At the end all leave together.

    Must come before JAX starts its backends, and starts them, with as many devices as
    `config` asks for. A `UserError` says that a process has other settings, other
    devices or another version of JAX, or that nobody is there.
    """
    if not options.distributed and {
        options.coordinator,
        options.num_processes,
        options.process_id,
    } == {None}:
        check_launcher(config)
        yield SINGLE_PROCESS
        return
    connect(options)
    several = Peers(
        count=2
    )  # how many isn't known yet, but with more than one an error ends this process
    try:
        with several.exit_on_error():
            number = number_of_devices(
                config.devices, config.mesh, options.num_processes or 1
            )
            yield agree(
                config, number, "by a launcher" if options.distributed else "by hand"
            )
    finally:  # of a process that has not failed alone
        with several.exit_on_error():
            jax.distributed.shutdown()


def find_peers(config: Config) -> Peers:
    """Return the processes of a program that has called `jax.distributed.initialize` itself, or `SINGLE_PROCESS`."""
    return (
        agree(config, config.devices, "by the program")
        if jax.distributed.is_initialized()
        else SINGLE_PROCESS
    )


def agree(config: Config, number: int | None, launcher: str) -> Peers:
    """Start JAX with `number` devices, and return the connected processes if all do the same run on like devices."""
    if config.strategy == "single" or (
        config.strategy == "pmap" and config.shard_state != "none"
    ):
        given = f"--strategy {config.strategy} with --shard-state {config.shard_state}"
        raise UserError(f"{given} runs in one process only: use --strategy shard_map")
    devices.choose(number)
    peers = Peers(jax.process_index() == 0, jax.process_count(), launcher)
    # Before any collective, because JAX's own between processes don't work with
    # different devices.
    kinds = [
        [d.device_kind for d in jax.devices() if d.process_index == p]
        for p in range(peers.count)
    ]
    require_same_on_all([{"its devices": f"{len(kind)} x {kind[0]}"} for kind in kinds])
    same = {
        flag(name): value
        for name, value in vars(config).items()
        if name not in MAY_DIFFER
    }
    peers.require_same({"the version of jax": jax.__version__} | same)
    return peers


def connect(options: ProcessesOptions) -> None:
    """Let JAX connect the processes. This one ends with a sentence if not all come in time."""
    advice = (
        "start each once, with --distributed under srun (Slurm), mpirun (Open MPI), Cloud TPU or Kubernetes (pip "
        "install jax[k8s]), or with its number from 0 and a free port of process 0's machine, as in --coordinator "
        "127.0.0.1:9876 --num-processes 2 --process-id 0, and --join-timeout 600 if they need time"
    )
    # JAX would abort the process at its own timeout, without a sentence.
    late = UserError(
        f"not all processes have come (waited {options.join_timeout} s): {advice}"
    )
    timer = threading.Timer(options.join_timeout, lambda: os._exit(report(late)))
    timer.daemon = True
    timer.start()
    jax.config.update("jax_enable_preemption_service", True)
    with (
        contextlib.ExitStack() as stack,
        explain_errors("the processes cannot be connected", advice),
    ):
        stack.callback(timer.cancel)
        jax.distributed.initialize(
            options.coordinator,
            options.num_processes,
            options.process_id,
            cluster_detection_method=None if options.distributed else "deactivate",
            initialization_timeout=2 * options.join_timeout,
            heartbeat_timeout_seconds=options.heartbeat_timeout,
            coordinator_bind_address=options.coordinator
            and find_bind_address(options.coordinator, options.process_id),
        )


def find_bind_address(coordinator: str, process_id: int | None) -> str | None:
    """Return the address on which process 0 listens. An OSError or ValueError says that it's in use or no address.

    For an IP address or localhost, it listens only there. A name may stand for another
    address on another machine, so the address is None, which means all.
    """
    host, _, port = coordinator.rpartition(":")
    is_numeric = re.fullmatch(r"localhost|[\d.]+|\[.+\]", host)
    if (
        process_id == 0
    ):  # JAX would crash on a port in use, or share it with the service of another run
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        socket.create_server(
            (host.strip("[]") if is_numeric else "", int(port)), family=family
        ).close()
    return coordinator if is_numeric else None


def check_launcher(config: Config) -> None:
    """Warn a run that a launcher has started several times, or refuse it if they would share a workdir."""
    for name in (
        "SLURM_STEP_NUM_TASKS",
        "OMPI_COMM_WORLD_SIZE",
    ):  # srun and mpirun set them
        if (started := os.environ.get(name, "1")) != "1":
            said = f"{name}={started} processes were started, and each would train the whole run: add --distributed"
            if config.workdir:
                raise UserError(
                    f"{said}, or leave --workdir out, which they would share"
                )
            print(f"warning: {said}", file=sys.stderr)


def make_global(tree: Any, sharding: Any) -> Any:
    """Make global arrays from pmap's per-process results, without copying. Arrays of other strategies are global.

    `tree` has replicated arrays on a process's own devices, or global arrays.
    `sharding` is `Strategy.state_sharding`.
    """

    def global_array(x: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
        if sharding.is_fully_addressable or not x.is_fully_addressable:
            return x
        return jax.make_array_from_single_device_arrays(
            x.shape, sharding, [each.data for each in x.addressable_shards]
        )

    return jax.tree.map(global_array, tree, jax.tree.broadcast(sharding, tree))

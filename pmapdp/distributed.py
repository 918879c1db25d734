"""Let several processes train together.

They connect, agree on the settings, and end if one of them is lost. `jax.distributed`
does the work, and process 0 runs its coordination service. Messages travel as arrays
do: over gloo between CPUs, over NCCL between GPUs. Lesson 17 teaches this file.
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

from pmapdp.cli import print_error
from pmapdp.config import Config, flag, setting
from pmapdp.devices import choose_devices
from pmapdp.errors import (
    DivergedError,
    StoppedError,
    UserError,
    explain_errors,
    first_line,
)
from pmapdp.sharding.flags import number_of_devices

# Settings that may differ between processes.
MAY_DIFFER = {"data_dir", "metrics_file", "progress", "compile_cache"}
# One of these words is in JAX's error message if another process is lost.
LOST = re.compile("gloo|nccl|coordination|unavailable|deadline_exceeded|barrier", re.I)
# Process 0 serves all others. It stays alive this long, so that they can report the
# same error first.
SECONDS_TO_REPORT = 5
# srun and mpirun set these variables to the number of processes.
LAUNCHER_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
CONNECT_ADVICE = (
    "start each once, with --distributed under srun (Slurm), mpirun (Open MPI), Cloud "
    "TPU or Kubernetes (pip install jax[k8s]), or with its number from 0 and a free "
    "port of process 0's machine, as in --coordinator 127.0.0.1:9876 --num-processes 2 "
    "--process-id 0, and --join-timeout 600 if they need time"
)


# What a run does with the other processes


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them.

    All of them make the same calls in the same order.

    Attributes:
        is_process_0: True for process 0, which writes logs and metrics.
        count: The number of processes.
        launcher: Who started them, for the header.
    """

    is_process_0: bool = True
    count: int = 1
    launcher: str = "by hand"

    def allgather(self, value: Any) -> list[Any]:
        """Return the values of all processes in the order of their numbers.

        `value` is anything that JSON can hold.
        """
        if self.count == 1:
            return [value]
        # Arrays travel between processes, all of one shape. So each text is sent as
        # bytes, padded to the longest.
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = multihost_utils.process_allgather(np.int32(len(text)))
        padded = np.pad(text, (0, lengths.max() - len(text)))
        rows = multihost_utils.process_allgather(padded)
        values = []
        for row, length in zip(rows, lengths, strict=True):
            values.append(json.loads(bytes(row[:length])))
        return values

    def require_same(self, facts: dict[str, Any]) -> None:
        """Raise a `UserError` on all processes if a fact differs on one.

        `facts` has the same names on all of them.
        """
        require_same_on_all(self.allgather(facts))

    def reached_preemption(self, step: int) -> bool:
        """Return True if all stop with update `step`, because one got a SIGTERM."""
        if self.count == 1:
            return False
        return multihost_utils.reached_preemption_sync_point(step)

    def wait(self, name: str) -> None:
        """Wait until all processes make this call."""
        if self.count > 1:
            multihost_utils.sync_global_devices(name)


SINGLE_PROCESS = Processes()


def require_same_on_all(facts: list[dict[str, Any]]) -> None:
    """Raise a `UserError` if a process differs from process 0 in a fact.

    `facts` has each process's facts, by name.
    """
    first = facts[0]
    for process, process_facts in enumerate(facts):
        for name, value in process_facts.items():
            if value != first[name]:
                raise UserError(
                    f"process {process} differs from process 0 in {name} ({value!r} "
                    f"there, {first[name]!r} here): start all processes with the same "
                    "command, the same files and the same kind of machine"
                )


def make_global(tree: Any, sharding: Any) -> Any:
    """Make global arrays from pmap's per-process results, without copying.

    The arrays of the other strategies are global already.

    Args:
        tree: Replicated arrays on a process's own devices, or global arrays.
        sharding: `Strategy.state_sharding`.
    """

    def global_array(x: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
        if sharding.is_fully_addressable or not x.is_fully_addressable:
            return x
        shards = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, shards)

    return jax.tree.map(global_array, tree, jax.tree.broadcast(sharding, tree))


# Connecting them


@dataclass(frozen=True)
class ProcessesOptions:
    """Flags that connect several processes.

    --devices counts the devices of one process.
    """

    distributed: bool = setting(
        "processes",
        False,
        "Join the processes that srun, mpirun, Kubernetes or TPUs started.",
    )
    coordinator: str | None = setting(
        "processes",
        None,
        "HOST:PORT of process 0, without a launcher. All who reach it can connect.",
    )
    num_processes: int | None = setting(
        "processes", None, "How many processes you start without a launcher."
    )
    process_id: int | None = setting(
        "processes",
        None,
        "Which of these processes this is, from 0. Process 0 writes the files.",
    )
    heartbeat_timeout: int = setting(
        "processes",
        60,
        "Seconds without a sign of life after which a process counts as lost.",
    )
    join_timeout: int = setting(
        "processes", 300, "Seconds to wait for all processes at the start."
    )


@contextlib.contextmanager
def connect_processes(options: ProcessesOptions, config: Config) -> Iterator[Processes]:
    """Connect with the other processes of the run, if any, and leave with them.

    Call it before JAX is used, because it starts JAX with as many devices as `config`
    asks for.

    Raises:
        UserError: Not all processes have come, or one of them has other settings, other
            devices or another version of JAX.
    """
    by_hand = (options.coordinator, options.num_processes, options.process_id)
    if not options.distributed and by_hand == (None, None, None):
        check_launcher(config)
        yield SINGLE_PROCESS
        return
    initialize_jax(options)
    launcher = "by hand"
    if options.distributed:
        launcher = "by a launcher"
    try:
        with exit_on_error():
            # How many processes a launcher has started isn't known before JAX starts.
            # So with a mesh JAX starts with all devices, and the run takes what it
            # needs.
            number = config.devices
            if options.num_processes:
                number = number_of_devices(config, options.num_processes)
            yield start_devices(config, number, launcher)
    finally:  # unless `exit_on_error` has ended the process
        with exit_on_error():
            jax.distributed.shutdown()


def find_processes(config: Config) -> Processes:
    """Return the processes of a program that has called `jax.distributed.initialize`.

    A program that hasn't has the `SINGLE_PROCESS`.
    """
    if jax.distributed.is_initialized():
        return start_devices(config, config.devices, "by the program")
    return SINGLE_PROCESS


def start_devices(config: Config, number: int | None, launcher: str) -> Processes:
    """Start JAX with `number` devices in each process, and return the processes.

    All must have the same settings and devices, and the same version of JAX.
    """
    if config.strategy == "single":
        raise UserError(
            "--strategy single runs in one process only: use --strategy shard_map"
        )
    choose_devices(number)
    processes = Processes(jax.process_index() == 0, jax.process_count(), launcher)
    # Before any collective, because none works between processes whose devices differ.
    descriptions = []
    for process in range(processes.count):
        local_devices = jax.local_devices(process)
        device_kind = local_devices[0].device_kind
        descriptions.append({"its devices": f"{len(local_devices)} x {device_kind}"})
    require_same_on_all(descriptions)
    facts: dict[str, Any] = {"the version of jax": jax.__version__}
    for name, value in vars(config).items():
        if name not in MAY_DIFFER:
            facts[flag(name)] = value
    processes.require_same(facts)
    return processes


def initialize_jax(options: ProcessesOptions) -> None:
    """Let JAX connect the processes, or end this one if they don't come in time."""
    # JAX then lets all processes agree on the update after which they stop.
    jax.config.update("jax_enable_preemption_service", True)
    bind_address = None
    with (
        exit_if_late(options.join_timeout),
        explain_errors("the processes cannot be connected", CONNECT_ADVICE),
    ):
        if options.coordinator:
            bind_address = find_bind_address(options.coordinator, options.process_id)
        jax.distributed.initialize(
            options.coordinator,
            options.num_processes,
            options.process_id,
            cluster_detection_method=None if options.distributed else "deactivate",
            initialization_timeout=2 * options.join_timeout,
            heartbeat_timeout_seconds=options.heartbeat_timeout,
            coordinator_bind_address=bind_address,
        )


def find_bind_address(coordinator: str, process_id: int | None) -> str | None:
    """Return the address on which process 0 listens. None: on all of its machine.

    For an IP address or localhost, it listens only there. A name may stand for another
    address on another machine, so there it listens on all.

    Raises:
        OSError: The address is in use.
        ValueError: It isn't an address.
    """
    host, _, port = coordinator.rpartition(":")
    is_numeric = re.fullmatch(r"localhost|[\d.]+|\[.+\]", host)
    listen_on = ""
    if is_numeric:
        listen_on = host.strip("[]")
    family = socket.AF_INET
    if host.startswith("["):
        family = socket.AF_INET6
    # JAX would crash on a port in use, or share it with the service of another run.
    if process_id == 0:
        socket.create_server((listen_on, int(port)), family=family).close()
    if is_numeric:
        return coordinator
    return None


def check_launcher(config: Config) -> None:
    """Warn if a launcher has started a run several times, and nobody connects them.

    A `UserError` refuses such runs if they would share a workdir.
    """
    for name in LAUNCHER_COUNTS:
        count = os.environ.get(name, "1")
        if count == "1":
            continue
        warning = (
            f"{name}={count} processes were started, and each would train the whole "
            "run: add --distributed"
        )
        if config.workdir:
            raise UserError(
                f"{warning}, or leave --workdir out, which they would share"
            )
        print(f"warning: {warning}", file=sys.stderr)


# Ending this process if another one is late or lost


class LostError(UserError):
    """This process ends because another one is lost. Commands exit with status 4."""

    status = 4


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """End this process at once if it fails, and print why.

    The other processes miss its connections or heartbeats, and end as well.

    It calls `os._exit`, because an exception or `sys.exit` would clean up first. JAX's
    part of that waits for the other processes, and they wait in their next collective.
    """
    try:
        yield
    except (DivergedError, StoppedError):  # all raise it, after the same update
        raise
    except BaseException as error:
        status = print_error(find_lost_process(error) or error)
        # `shutdown` waits for the others.
        farewell = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        farewell.start()
        farewell.join(SECONDS_TO_REPORT)
        os._exit(status)


def find_lost_process(error: BaseException) -> LostError | None:
    """Return a `LostError` if an error or one of its causes names a lost process."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, JaxRuntimeError) and LOST.search(str(cause)):
            return LostError(
                f"another process is lost, see its own messages ({first_line(cause)}): "
                "start the same command again, and a run with a workdir resumes from "
                "its last checkpoint"
            )
        cause = cause.__cause__ or cause.__context__
    return None


@contextlib.contextmanager
def exit_if_late(seconds: int) -> Iterator[None]:
    """End this process, with a message, if the processes aren't connected in time.

    A timer's thread calls `os._exit`, because the main thread waits inside of JAX,
    where no exception reaches it. JAX has a timeout of its own, which is longer: it
    would abort the process without a message.
    """
    late = UserError(
        f"not all processes have come (waited {seconds} s): {CONNECT_ADVICE}"
    )
    timer = threading.Timer(seconds, lambda: os._exit(print_error(late)))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

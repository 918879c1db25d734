"""Connect this process with the others of its run: `joined` is all that a command needs."""

import contextlib
import dataclasses
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
from jax._src import clusters  # the address must be known before jax.distributed.initialize, which finds it in here

from pmapdp.config import Config, flag
from pmapdp.errors import StoppedError, UserError
from pmapdp.processes.agreement import StopAgreement
from pmapdp.processes.options import ProcessesOptions, check_options
from pmapdp.processes.peers import Joined, Peers
from pmapdp.processes.relay import Relay
from pmapdp.processes.store import Store
from pmapdp.processes.watch import Watch

# What may differ from process to process: where its copy of the data lies, and what is written by process 0 only.
OWN_FIELDS = {"data_dir", "metrics_file", "progress", "compile_cache"}
LONGEST_FAREWELL = 24 * 3600.0  # process 0 may have much to write at the end; a lost process is noticed anyway


class Place(NamedTuple):
    """Where this process stands: the coordinator's host and port, how many processes there are, which this is."""

    host: str
    port: int
    processes: int
    process: int
    local_devices: list[int] | None

    @property
    def loopback(self) -> bool:
        """Whether only processes of this machine can reach the coordinator's address."""
        with contextlib.suppress(OSError):
            return socket.gethostbyname(self.host).startswith("127.")
        return False


@contextlib.contextmanager
def joined(options: ProcessesOptions, config: Config) -> Iterator[Peers]:
    """Connect with the other processes of the run, if there are any; at the end all leave together.

    Must come before JAX starts its backends.

    Raises:
        UserError: nobody is found, somebody does not come in time, or has another configuration or version of JAX.
    """
    check_options(options)
    if not options.several:
        yield Peers()
        return
    if config.strategy == "single":
        raise UserError(
            "--strategy single runs on one device of one process: leave --distributed out, or use --strategy pmap"
        )
    if config.strategy == "pmap" and config.shard_state != "none":
        raise UserError(
            f"--shard-state {config.shard_state} works with --strategy pmap in one process only: "
            "use --strategy shard_map"
        )
    place = find(options)
    if place.process == 0:
        require_free(place)
    else:
        wait_for_coordinator(place, options.join_timeout)
    relay = None if place.process == 0 else Relay((place.host, place.port))
    connect(place, relay, options)
    store = Store(place.process, place.processes, options.join_timeout)
    watch = Watch(store, StopAgreement(store), options.heartbeat_timeout)
    if relay:
        relay.lost = watch.coordinator_lost
    peers = Joined(store, watch)
    if not options.by_hand:
        peers.started = "by a launcher"
    with peers.failing_together():
        peers.require_same("start", facts(config))
        try:
            yield peers
        except StoppedError:  # all stop after the same update
            leave(store, watch)
            raise
    leave(store, watch)


def find(options: ProcessesOptions) -> Place:
    """Who the processes are: from the flags, or from what JAX knows about the launcher.

    Raises:
        UserError: neither says so.
    """
    if options.by_hand:
        address, count, process, local = options.coordinator, options.num_processes, options.process_id, None
    else:
        try:
            address, count, process, local = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                None, None, None, None, None, options.join_timeout
            )
        except Exception as error:  # each launcher fails in its own way
            reason = str(error).strip().split("\n")[0]
            raise UserError(
                f"--distributed could not find the other processes ({reason}): give --coordinator HOST:PORT "
                "--num-processes N --process-id I"
            ) from error
    if address is None or count is None or process is None:
        raise UserError(
            "--distributed finds neither Slurm, Open MPI, Kubernetes (with pip install jax[k8s]) nor Cloud TPU here: "
            "start with srun or mpirun, or give --coordinator 127.0.0.1:9876 --num-processes 2 --process-id 0"
        )
    host, _, port = address.rpartition(":")
    return Place(host.strip("[]"), int(port), count, process, None if local is None else list(local))


def require_free(place: Place) -> None:
    """Look whether process 0 can listen: JAX's service would end the process without a word.

    Raises:
        UserError: the port is in use.
    """
    try:
        socket.create_server((place.host if place.loopback else "", place.port)).close()
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen on port {place.port} ({error.strerror}): choose another, for example "
            f"--coordinator {place.host}:{place.port % 60000 + 1024} for all processes"
        ) from None


def wait_for_coordinator(place: Place, seconds: float) -> None:
    """Wait until process 0 listens.

    Raises:
        UserError: it does not in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((place.host, place.port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"no coordinator answers at {place.host}:{place.port} after {seconds:.0f} s ({error}): start "
                    "process 0 there, or name its address with --coordinator HOST:PORT"
                ) from None
        time.sleep(0.1)


def connect(place: Place, relay: Relay | None, options: ProcessesOptions) -> None:
    """Let JAX connect the processes; ends this one with a sentence where not all come in time."""
    # JAX' own handler of SIGTERM and its heartbeats stay out of the way of ours.
    jax.config.update("jax_enable_preemption_service", False)
    address = f"{place.host}:{place.port}"

    def give_up(reason: str) -> None:
        """End the process from a thread: JAX would abort it without a sentence, or wait on."""
        print(
            f"error: not all {place.processes} processes have come ({reason}): start each once with its own "
            "--process-id, or give them more time with --join-timeout",
            file=sys.stderr,
            flush=True,
        )
        os._exit(UserError.status)

    if relay:
        relay.lost = lambda: give_up("process 0 has ended")
    timer = threading.Timer(options.join_timeout, give_up, [f"waited {options.join_timeout} s"])
    timer.daemon = True
    timer.start()
    jax.distributed.initialize(
        relay.address if relay else address,
        place.processes,
        place.process,
        local_device_ids=place.local_devices,
        cluster_detection_method="deactivate",
        initialization_timeout=2 * options.join_timeout + 60,
        heartbeat_timeout_seconds=2 * options.heartbeat_timeout + 10,
        shutdown_timeout_seconds=options.heartbeat_timeout,
        coordinator_bind_address=address if place.loopback else None,
    )
    timer.cancel()


def facts(config: Config) -> dict[str, object]:
    """What must be the same on all processes, under the names that a user knows."""
    settings = {flag(name): value for name, value in dataclasses.asdict(config).items() if name not in OWN_FIELDS}
    return {"the version of jax": jax.__version__} | settings


def leave(store: Store, watch: Watch) -> None:
    """End together: whoever goes first would look lost to the others."""
    store.barrier("end", LONGEST_FAREWELL)
    watch.close()
    jax.distributed.shutdown()

"""Connect this process with the others of its run: `joined` is all that a command needs."""

import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

import jax
from jax.errors import JaxRuntimeError

from pmapdp import devices
from pmapdp.cli import report
from pmapdp.config import Config, flag
from pmapdp.errors import UserError, reason, require
from pmapdp.processes.options import ProcessesOptions, check_options, check_several, split_address
from pmapdp.processes.peers import ALONE, Peers, failing_together
from pmapdp.sharding.notation import number_of_devices

# What may differ from process to process: where its copy of the data is, and what is written by process 0 only.
OWN_SETTINGS = {"data_dir", "metrics_file", "progress", "compile_cache"}


@contextlib.contextmanager
def joined(options: ProcessesOptions, config: Config) -> Iterator[Peers]:
    """Connect with the other processes of the run, if there are any; at the end all leave together.

    Must come before JAX starts its backends, and starts them, with as many devices as `config` asks for. A `UserError`
    says that a process has other settings, other devices or another version of JAX, or that there is nobody to connect
    with.
    """
    require(ProcessesOptions, "options", options, "pmapdp.processes.options.ProcessesOptions()")
    check_options(options, config)
    if not options.several:
        yield ALONE
        return
    connect(options)
    try:
        with failing_together():
            number = number_of_devices(config.devices, config.mesh, options.num_processes or 1)
            yield met(config, number, "by hand" if options.by_hand else "by a launcher")
    finally:  # of a process that has not failed alone; it waits for the others
        with failing_together():
            jax.distributed.shutdown()


def of_this_program(config: Config, given: Peers | None = None) -> Peers:
    """The processes that are `given`, or those of a program that has called `jax.distributed.initialize` itself, which
    also ends that connection; any other is alone. Errors as of `joined`."""
    if given is not None:
        require(Peers, "peers", given, "none")
        return given
    if not jax.distributed.is_initialized():
        return ALONE
    check_several(config)
    return met(config, config.devices, "by the program")


def met(config: Config, number: int | None, started: str) -> Peers:
    """The connected processes, once all have started JAX with `number` devices and do the same run."""
    devices.choose(number)
    require_same_devices()
    peers = Peers(jax.process_index(), jax.process_count(), started)
    same = {flag(name): value for name, value in vars(config).items() if name not in OWN_SETTINGS}
    peers.require_same({"the version of jax": jax.__version__} | same)
    return peers


def require_same_devices() -> None:
    """Refuse processes with different devices, which JAX's own collectives between processes cannot work with."""
    for what, found in (
        ("the number of its devices", Counter(device.process_index for device in jax.devices())),
        ("the kind of its devices", {device.process_index: device.device_kind for device in jax.devices()}),
    ):
        for process, value in sorted(found.items()):
            if value != found[0]:
                raise UserError(
                    f"process {process} differs from process 0 in {what} ({value} there, {found[0]} here): start all "
                    "processes with the same command on machines of one kind"
                )


def connect(options: ProcessesOptions) -> None:
    """Let JAX connect the processes; ends this one with a sentence where not all come in time."""
    address = address_to_listen_on(options)
    if options.process_id == 0 and options.coordinator is not None:
        require_free(options.coordinator, address)
    ending = threading.Lock()

    def give_up(why: str) -> NoReturn:
        """End the process from any thread: JAX would abort it without a sentence, or wait on."""
        with ending:  # held to the end, so that only one sentence is said
            error = UserError(
                f"not all processes have reached the coordinator ({why}): start each once, with the same "
                "--coordinator and its own --process-id, or give them more time with --join-timeout"
            )
            os._exit(report(error))

    timer = threading.Timer(options.join_timeout, give_up, [f"waited {options.join_timeout} s"])
    timer.daemon = True
    timer.start()
    jax.config.update("jax_enable_preemption_service", True)
    try:
        jax.distributed.initialize(
            options.coordinator,
            options.num_processes,
            options.process_id,
            cluster_detection_method="deactivate" if options.by_hand else None,
            initialization_timeout=2 * options.join_timeout,
            heartbeat_timeout_seconds=options.heartbeat_timeout,
            coordinator_bind_address=address,
        )
    except Exception as error:  # each launcher fails in its own way
        if options.by_hand or isinstance(error, JaxRuntimeError):
            give_up(reason(error))
        raise UserError(
            "--distributed finds neither Slurm, Open MPI, Kubernetes (with pip install jax[k8s]) nor Cloud TPU "
            f"here ({reason(error)}): start with srun or mpirun, or give --coordinator 127.0.0.1:9876 "
            "--num-processes 2 --process-id 0"
        ) from error
    timer.cancel()


def address_to_listen_on(options: ProcessesOptions) -> str | None:
    """Where process 0 listens: on the coordinator's address alone if that is written as a number or as localhost.

    A name may stand for one address here and for another elsewhere: then, and with a launcher, JAX listens on all
    addresses (None).
    """
    if options.coordinator is None:
        return None
    host, _ = split_address(options.coordinator)
    return options.coordinator if host == "localhost" or ":" in host or host.rpartition(".")[2].isdigit() else None


def require_free(coordinator: str, address: str | None) -> None:
    """Refuse an address at which process 0 cannot listen (None: all): there JAX would crash, or share the port with the
    service of another run."""
    host, port = split_address(coordinator)
    host = "0.0.0.0" if address is None else host  # of all addresses some machines lack those of IPv6
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen at {coordinator} ({error.strerror}): give all processes another --coordinator, "
            f"an address of its machine and a port that is free, for example localhost:{port % 60000 + 1024}"
        ) from None

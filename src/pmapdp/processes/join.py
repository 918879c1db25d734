"""Connect this process with the others of its run: `joined` is all that a command needs."""

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn
from unittest import mock

import jax
from jax._src import distributed  # jax.distributed.initialize cannot be told what to do when the connection is lost
from jax._src.lib import utils

from pmapdp.command.ending import TRACEBACK, say
from pmapdp.config import flag
from pmapdp.errors import UserError, reason
from pmapdp.processes import aborts
from pmapdp.processes.agreement import StopAgreement
from pmapdp.processes.options import ProcessesOptions, check_options, split_address
from pmapdp.processes.peers import ALONE, Peers
from pmapdp.processes.store import Store
from pmapdp.processes.watch import Watch

# What may differ from process to process: where its copy of the data lies, and what is written by process 0 only.
OWN_SETTINGS = {"data_dir", "metrics_file", "progress", "compile_cache"}
LONGEST_FAREWELL = 24 * 3600  # seconds; process 0 may have much to write at the end; a lost process is noticed anyway


@contextlib.contextmanager
def joined(options: ProcessesOptions, settings: Mapping[str, object]) -> Iterator[Peers]:
    """Connect with the other processes of the run, if there are any; at the end all leave together.

    Must come before JAX starts its backends. `settings` are those of the run, by field. A `UserError` says that a
    process has other ones or another version of JAX, or that there is nobody to connect with.
    """
    check_options(options, settings)
    if not options.several:
        yield ALONE
        return
    connect(options)
    store = Store(options.join_timeout)
    watch = Watch(store, StopAgreement(store), options.heartbeat_timeout)
    peers = Peers(store, watch, "by hand" if options.by_hand else "by a launcher")
    try:
        with peers.failing_together():
            same = {flag(name): value for name, value in settings.items() if name not in OWN_SETTINGS}
            peers.require_same("start", {"the version of jax": jax.__version__} | same)
            yield peers
    finally:  # of a process that has not failed alone; whoever goes first would look lost to the others
        jax.distributed.shutdown()
        watch.closed.set()


def connect(options: ProcessesOptions) -> None:
    """Let JAX connect the processes; ends this one with a sentence where not all come in time."""
    ending = threading.Lock()
    refused = "process 0 has ended, or one came with a --process-id that is taken or too large"

    def give_up(why: str = refused) -> NoReturn:
        """End the process from any thread: JAX would abort it without a sentence, or wait on."""
        with ending:  # held to the end, so that only one sentence is said
            say(
                f"error: not all processes have reached the coordinator ({why}): start each once, with the same "
                "--coordinator and its own --process-id, or give them more time with --join-timeout",
                UserError.status,
            )
            os._exit(UserError.status)

    if not os.environ.get(TRACEBACK):  # beside our sentence, C++ would log the same in lines of its own
        utils.absl_set_min_log_level(3)
    aborts.hold(lambda by_jax: give_up())
    timer = threading.Timer(options.join_timeout, give_up, [f"waited {options.join_timeout} s"])
    timer.daemon = True
    timer.start()
    # JAX's own handler of SIGTERM, its heartbeats and its timeouts stay out of the way of ours.
    jax.config.update("jax_enable_preemption_service", False)
    make_client = functools.partial(
        distributed._jax.get_distributed_runtime_client,
        missed_heartbeat_callback=aborts.abort,
        shutdown_timeout=LONGEST_FAREWELL,
    )
    make_service = functools.partial(start_service, distributed._jax.get_distributed_runtime_service)
    with mock.patch.multiple(
        distributed._jax, get_distributed_runtime_client=make_client, get_distributed_runtime_service=make_service
    ):
        try:
            jax.distributed.initialize(
                options.coordinator,
                options.num_processes,
                options.process_id,
                cluster_detection_method="deactivate" if options.by_hand else None,
                initialization_timeout=2 * options.join_timeout,
                heartbeat_timeout_seconds=2 * options.heartbeat_timeout + 10,
                shutdown_timeout_seconds=LONGEST_FAREWELL,
                coordinator_bind_address=address_to_listen_on(options),
            )
        except UserError:
            raise
        except Exception as error:  # each launcher fails in its own way
            if distributed.global_state.coordinator_address is None:
                raise UserError(
                    "--distributed finds neither Slurm, Open MPI, Kubernetes (with pip install jax[k8s]) nor Cloud TPU "
                    f"here ({reason(error)}): start with srun or mpirun, or give --coordinator 127.0.0.1:9876 "
                    "--num-processes 2 --process-id 0"
                ) from error
            give_up()
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


def start_service(start: Callable[..., Any], address: str, *arguments: Any, **named: Any) -> Any:
    """Start JAX's coordination service. A `UserError` says that it cannot listen at `address`: there JAX would crash,
    or share the port with the service of another run."""
    host, port = split_address(address)
    host = "0.0.0.0" if host == "::" else host  # of all addresses some machines lack those of IPv6
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen at {address} ({error.strerror}): give all processes another --coordinator, an "
            f"address of its machine and a port that is free, for example localhost:{port % 60000 + 1024}"
        ) from None
    return start(address, *arguments, **named)

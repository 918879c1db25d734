"""Connect this process with the others of its run: `joined` is all that a command needs."""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import NoReturn
from unittest import mock

import jax
from jax._src import distributed  # jax.distributed.initialize cannot be told what to do when the connection is lost

from pmapdp.errors import UserError, say
from pmapdp.processes import aborts
from pmapdp.processes.agreement import StopAgreement
from pmapdp.processes.options import ProcessesOptions, check_options
from pmapdp.processes.peers import ALONE, TOGETHER, Peers
from pmapdp.processes.place import Place, address_to_listen_on, find, wait_for_coordinator
from pmapdp.processes.store import Store
from pmapdp.processes.watch import Watch, start_thread

# What may differ from process to process: where its copy of the data lies, and what is written by process 0 only.
OWN_SETTINGS = {"--data-dir", "--metrics-file", "--progress", "--compile-cache"}
BEAT = 0.5  # seconds between two looks at what is missing
LONGEST_FAREWELL = 24 * 3600.0  # process 0 may have much to write at the end; a lost process is noticed anyway


@contextlib.contextmanager
def joined(options: ProcessesOptions, settings: Mapping[str, object]) -> Iterator[Peers]:
    """Connect with the other processes of the run, if there are any; at the end all leave together.

    Must come before JAX starts its backends. `settings` are what the run does, by the flags that a user knows. A
    `UserError` says that nobody is found, or that somebody does not come in time or has other settings or another
    version of JAX.
    """
    check_options(options, settings)
    if not options.several:
        yield ALONE
        return
    place = find(options)
    connect(place, options)
    store = Store(place.process, place.processes, options.join_timeout)
    watch = Watch(store, StopAgreement(store), options.heartbeat_timeout, place)
    peers = Peers(store, watch, "by hand" if options.by_hand else "by a launcher")
    with peers.failing_together():
        same = {name: value for name, value in settings.items() if name not in OWN_SETTINGS}
        peers.require_same("start", {"the version of jax": jax.__version__} | same)
        try:
            yield peers
        except TOGETHER:
            leave(store, watch)
            raise
    leave(store, watch)


def connect(place: Place, options: ProcessesOptions) -> None:
    """Let JAX connect the processes; ends this one with a sentence where not all come in time."""
    listen_on = address_to_listen_on(place) if place.process == 0 else None
    if place.process:
        wait_for_coordinator(place, options.join_timeout)
    # JAX' own handler of SIGTERM and its heartbeats stay out of the way of ours.
    jax.config.update("jax_enable_preemption_service", False)
    connected, ending = threading.Event(), threading.Lock()

    def give_up(reason: str) -> NoReturn:
        """End the process from any thread: JAX would abort it without a sentence, or wait on."""
        with ending:  # held to the end, so that only one sentence is said
            say(
                f"error: not all {place.processes} processes have come ({reason}): start each once with its own "
                "--process-id, or give them more time with --join-timeout",
                UserError.status,
            )
            if place.process == 0:
                time.sleep(3 * BEAT)  # the others look whether it still listens
            os._exit(UserError.status)

    def refused(by_jax: bool = True) -> NoReturn:
        give_up("process 0 has ended" if place.missing() else "one came with a --process-id that is taken or too large")

    def wait() -> None:
        deadline = time.monotonic() + options.join_timeout
        while not connected.wait(BEAT):
            if place.process and place.missing():
                give_up("process 0 has ended")
            if time.monotonic() > deadline:
                give_up(f"waited {options.join_timeout} s")

    aborts.hold(refused)
    start_thread(wait)
    make_client = functools.partial(
        distributed._jax.get_distributed_runtime_client, missed_heartbeat_callback=aborts.missed_heartbeat
    )
    with mock.patch.object(distributed._jax, "get_distributed_runtime_client", make_client):
        try:
            jax.distributed.initialize(
                place.address,
                place.processes,
                place.process,
                local_device_ids=place.local_devices,
                cluster_detection_method="deactivate",
                initialization_timeout=2 * options.join_timeout + 60,
                heartbeat_timeout_seconds=2 * options.heartbeat_timeout + 10,
                shutdown_timeout_seconds=options.heartbeat_timeout,
                coordinator_bind_address=listen_on,
            )
        except RuntimeError:  # the service has refused this process
            refused()
    connected.set()


def leave(store: Store, watch: Watch) -> None:
    """End together: whoever goes first would look lost to the others."""
    store.barrier("end", LONGEST_FAREWELL)
    watch.close()
    jax.distributed.shutdown()

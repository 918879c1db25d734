"""Who the processes of a run are, and how they reach process 0, which runs JAX's coordination service."""

import errno
import ipaddress
import socket
import time
from typing import NamedTuple

from jax._src import clusters  # the address must be known before jax.distributed.initialize, which finds it in here

from pmapdp.errors import UserError, reason
from pmapdp.processes.options import ProcessesOptions, split_address


class Place(NamedTuple):
    """Where this process stands: the coordinator's host and port, how many processes there are, which this is."""

    host: str
    port: int
    processes: int
    process: int
    local_devices: list[int] | None

    @property
    def address(self) -> str:
        """`HOST:PORT`, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def missing(self) -> OSError | None:
        """The error with which process 0 cannot be reached; None where it listens."""
        try:
            socket.create_connection((self.host, self.port), timeout=5).close()
        except OSError as error:
            return error
        return None


def find(options: ProcessesOptions) -> Place:
    """Who the processes are: from the flags, or from what JAX knows about the launcher, or a `UserError`."""
    if options.by_hand:
        address, count, process, local = options.coordinator, options.num_processes, options.process_id, None
    else:
        try:
            address, count, process, local = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                None, None, None, None, None, options.join_timeout
            )
        except Exception as error:  # each launcher fails in its own way
            raise UserError(
                f"--distributed could not find the other processes ({reason(error)}): give --coordinator HOST:PORT "
                "--num-processes N --process-id I"
            ) from error
    if address is None or count is None or process is None:
        raise UserError(
            "--distributed finds neither Slurm, Open MPI, Kubernetes (with pip install jax[k8s]) nor Cloud TPU here: "
            "start with srun or mpirun, or give --coordinator 127.0.0.1:9876 --num-processes 2 --process-id 0"
        )
    return Place(*split_address(address), count, process, None if local is None else list(local))


def address_to_listen_on(place: Place) -> str:
    """Where process 0 listens: on the coordinator's address alone if that is written as a number or as localhost.

    A name may stand for one address here and for another elsewhere, and a number may be that of a router in front of
    this machine: then it listens on all addresses. A `UserError` says that the port is in use.
    """
    if (place.host == "localhost" or is_number(place.host)) and can_listen(place, place.host):
        return place.address
    host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    can_listen(place, host)
    return place._replace(host=host).address


def is_number(host: str) -> bool:
    """Whether a host is written as an IP address."""
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def can_listen(place: Place, host: str) -> bool:
    """Whether `host` is an address of this machine; a `UserError` says that it is, but that its port is in use. JAX's
    service would end the process without a word."""
    try:
        family = socket.getaddrinfo(host, place.port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, place.port), family=family, dualstack_ipv6=host == "::").close()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return False
        another = place._replace(port=place.port % 60000 + 1024)
        raise UserError(
            f"process 0 cannot listen on port {place.port} ({error.strerror}): choose another, for example "
            f"--coordinator {another.address} for all processes"
        ) from None
    return True


def wait_for_coordinator(place: Place, seconds: float) -> None:
    """Wait until process 0 listens; a `UserError` says that it does not in time."""
    deadline = time.monotonic() + seconds
    while error := place.missing():
        if time.monotonic() > deadline:
            raise UserError(
                f"no coordinator answers at {place.address} after {seconds:.0f} s ({error}): start "
                "process 0 there, or name its address with --coordinator HOST:PORT"
            )
        time.sleep(0.1)

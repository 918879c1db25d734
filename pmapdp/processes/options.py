"""The flags with which a command joins other processes."""

from dataclasses import dataclass

from pmapdp.errors import UserError


@dataclass(frozen=True)
class ProcessesOptions:
    """Several processes, each with its own devices; --devices counts those of one process."""

    distributed: bool = False
    """Join the other processes that srun (Slurm), mpirun (Open MPI), Kubernetes or Cloud TPU started with this one."""
    coordinator: str | None = None
    """Without those: HOST:PORT on which process 0 listens, the same for all processes."""
    num_processes: int | None = None
    """Without those: how many processes there are."""
    process_id: int | None = None
    """Without those: which one this is, from 0; process 0 writes logs and metrics."""
    heartbeat_timeout: int = 60
    """Seconds without a sign of life of one process after which the others have ended."""
    join_timeout: int = 300
    """Seconds to wait for all processes at the start."""

    @property
    def by_hand(self) -> bool:
        """Whether the flags say who the others are."""
        return self.coordinator is not None

    @property
    def several(self) -> bool:
        """Whether there are other processes to join."""
        return self.distributed or self.by_hand


def check_options(options: ProcessesOptions) -> None:
    """Refuse flags that do not go together.

    Raises:
        UserError: with the flag, its value, the reason and one that works.
    """
    given = {
        "--coordinator": options.coordinator,
        "--num-processes": options.num_processes,
        "--process-id": options.process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < 3:
        raise UserError(
            f"{' and '.join(missing)} missing: processes started by hand need all three, for example "
            "--coordinator 127.0.0.1:9876 --num-processes 2 --process-id 0"
        )
    for flag, value, least in (
        ("--heartbeat-timeout", options.heartbeat_timeout, 2),
        ("--join-timeout", options.join_timeout, 1),
        ("--num-processes", 1 if options.num_processes is None else options.num_processes, 1),
    ):
        if value < least:
            raise UserError(f"{flag} {value} is too small: use at least {flag} {least}")
    if options.coordinator is None or options.num_processes is None or options.process_id is None:
        return
    host, _, port = options.coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(
            f"--coordinator {options.coordinator} is not HOST:PORT: try --coordinator {host or 'localhost'}:9876"
        )
    if not 0 <= options.process_id < options.num_processes:
        raise UserError(
            f"--process-id {options.process_id} is out of range: with --num-processes {options.num_processes} "
            f"use 0 to {options.num_processes - 1}"
        )

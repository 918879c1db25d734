"""The flags with which a command joins other processes."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from pmapdp.config import Config, setting
from pmapdp.errors import UserError


@dataclass(frozen=True)
class ProcessesOptions:
    """Several processes, each with its own devices; --devices counts those of one process."""

    distributed: bool = setting(
        "processes",
        False,
        "Join the other processes that srun (Slurm), mpirun (Open MPI), Kubernetes or Cloud TPU started with this one.",
    )
    coordinator: str | None = setting(
        "processes",
        None,
        "Without those: HOST:PORT on which process 0 listens, the same for all. JAX lets in whoever reaches it.",
    )
    num_processes: int | None = setting("processes", None, "Without those: how many processes there are.")
    process_id: int | None = setting(
        "processes", None, "Without those: which one this is, from 0; process 0 writes logs and metrics."
    )
    heartbeat_timeout: int = setting(
        "processes", 60, "Seconds without a sign of life of one process after which the others have ended."
    )
    join_timeout: int = setting("processes", 300, "Seconds to wait for all processes at the start.")

    @property
    def by_hand(self) -> bool:
        """Whether the flags say who the others are."""
        return self.coordinator is not None

    @property
    def several(self) -> bool:
        """Whether there are other processes to join."""
        return self.distributed or self.by_hand


def check_several(config: Config) -> None:
    """Refuse a run that several processes cannot share."""
    if config.strategy == "single":
        raise UserError(
            "--strategy single runs on one device of one process: leave --distributed out, or use --strategy pmap"
        )
    if config.strategy == "pmap" and config.shard_state != "none":
        raise UserError(
            f"--shard-state {config.shard_state} works with --strategy pmap in one process only: "
            "use --strategy shard_map"
        )


def check_options(options: ProcessesOptions, config: Config) -> None:
    """Refuse flags that do not go together; `config` is that of the run."""
    if options.several:
        check_several(config)
    if options.distributed and config.mesh and not config.devices:
        raise UserError(
            f"--mesh {config.mesh} with --distributed needs --devices, the number of devices of each process: "
            "for example --devices 4"
        )
    given = (options.coordinator, options.num_processes, options.process_id)
    flags = ("--coordinator", "--num-processes", "--process-id")
    missing = [flag for flag, value in zip(flags, given, strict=True) if value is None]
    if 0 < len(missing) < 3:
        raise UserError(
            f"{' and '.join(missing)} missing: processes started by hand need all three, for example "
            "--coordinator 127.0.0.1:9876 --num-processes 2 --process-id 0"
        )
    if options.heartbeat_timeout < 2:
        raise UserError(
            f"--heartbeat-timeout {options.heartbeat_timeout} is too short: use at least --heartbeat-timeout 2"
        )
    if options.coordinator is None or options.num_processes is None or options.process_id is None:
        return
    split_address(options.coordinator)
    if not 0 <= options.process_id < options.num_processes:
        raise UserError(
            f"--process-id {options.process_id} does not go with --num-processes {options.num_processes}: the "
            "processes are numbered from 0, for example --num-processes 2 with --process-id 0 and 1"
        )


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 address stands in brackets, as in `[::1]:9876`. A `UserError` says that it
    is not of that form."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.netloc != address:
        raise UserError(
            f"--coordinator {address} is not HOST:PORT: try --coordinator localhost:9876, and write an IPv6 address in "
            "brackets, as in [::1]:9876"
        )
    return host, port

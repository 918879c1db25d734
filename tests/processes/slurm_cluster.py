"""A real Slurm of two nodes on this machine, for the time of a test: munged, slurmctld and two slurmd of our own.

All files, ports and the authentication key are its own, so that a Slurm that is installed here is not touched. The node
names are names of this machine that every machine resolves.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from processes import free_port

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo")
CONFIGURATION = """
ClusterName=pmapdp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0
SelectType=select/linear
ReturnToService=2
MailProg=/bin/true
KillWait=20
JobRequeue=1
SlurmctldParameters=enable_configless
CommunicationParameters=NoInAddrAny
NodeName=127.0.0.1 NodeHostname=first NodeAddr=127.0.0.1 Port={first_port} CPUs=1 State=UNKNOWN
NodeName=127.0.0.2 NodeHostname=second NodeAddr=127.0.0.1 Port={second_port} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=127.0.0.[1-2] Default=YES MaxTime=10 State=UP
"""


def missing() -> str | None:
    """Why a cluster cannot be started here, or None."""
    if os.geteuid() != 0:
        return "not root"
    absent = [program for program in NEEDED if not shutil.which(program)]
    return f"{', '.join(absent)} not installed" if absent else None


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start a cluster; gives the environment for srun and sbatch, and ends all its daemons."""
    host = socket.gethostname().split(".")[0]
    (folder / "state").mkdir(parents=True)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=host, folder=folder, controller_port=free_port(), first_port=free_port(), second_port=free_port()
        )
    )
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    environment = {"SLURM_CONF": str(configuration)}
    daemons = []

    def start(*command: object) -> None:
        log = open(folder / f"{len(daemons)}-{command[0]}.out", "w")  # noqa: SIM115 (the daemon's)
        daemons.append(
            subprocess.Popen(
                list(map(str, command)),
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
        log.close()

    try:
        files = {"socket": "munge.socket", "key-file": key.name, "seed-file": "munge.seed"}
        files |= {"pid-file": "munged.pid", "log-file": "munged.log"}
        start("munged", "-F", "--force", *(f"--{n}={folder / f}" for n, f in files.items()))
        wait_until(lambda: (folder / "munge.socket").exists(), folder)
        start("slurmctld", "-D", "-i")
        for node in ("127.0.0.1", "127.0.0.2"):
            start("slurmd", "-D", "-N", node)
        wait_until(lambda: nodes_idle(environment) == 2, folder)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(daemons):
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait(timeout=10)


def nodes_idle(environment: dict[str, str]) -> int:
    """How many nodes wait for work."""
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%T"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    return done.stdout.split().count("idle")


def wait_until(true, folder: Path, timeout: float = 60) -> None:
    """Wait for something of the cluster; shows its logs where that does not come."""
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            logs = {path.name: path.read_text(errors="replace")[-1500:] for path in folder.glob("*.[lo][ou][gt]")}
            raise AssertionError(f"Slurm did not start: {logs}")
        time.sleep(0.1)

"""Memory of a long run: `python -m benchmarks.memory [flags of pmapdp.train]`; default: mirrored, 20 epochs. Linux.

Prints the resident memory of the process after every epoch, and its peak.
"""

import subprocess
import sys
from pathlib import Path

DEFAULT_JOB = ["mirrored", "--epochs", "20"]


def megabytes(pid: int, field: str) -> float:
    """A field of /proc/PID/status in MB: VmRSS, resident memory, or VmHWM, its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6


def main() -> None:
    """The command."""
    job = sys.argv[1:] or DEFAULT_JOB
    command = [sys.executable, "-u", "-m", "pmapdp.train", *job, "--no-progress"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch "):
                now, peak = megabytes(process.pid, "VmRSS"), megabytes(process.pid, "VmHWM")
                print(f"{line.split('|')[0]}: {now:,.0f} MB, peak {peak:,.0f} MB", flush=True)
    sys.exit(process.returncode)


if __name__ == "__main__":
    main()

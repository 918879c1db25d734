"""What checkpoints cost: `python -m benchmarks.checkpoints [--rounds 3] [flags of pmapdp.train]`.

Runs the same training with a checkpoint every 50 updates and with none, in turn, each in a process of its own, and
prints the ratio of their step times (median over the epochs after the first).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from pmapdp import devices

DEFAULT_JOB = ["--dataset", "mnist", "--per-device-batch-size", "64", "--epochs", "4"]


def step_ms(job: list[str], folder: Path, *extra: str) -> float:
    """Median milliseconds a step of one run of `job`."""
    metrics = folder / "metrics.jsonl"
    command = [sys.executable, "-m", "pmapdp.train", *job, "--no-progress", "--metrics-file", str(metrics), *extra]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return statistics.median(line["step_ms"] for line in lines if line["event"] == "epoch" and line["epoch"] > 1)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind")
    options, job = parser.parse_known_args()
    job = job or DEFAULT_JOB
    ratios = []
    print(f"{' '.join(job)} on {devices.cores()} cores")
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "a").mkdir()
            (folder / "b").mkdir()
            without = step_ms(job, folder / "a")
            every_50 = step_ms(job, folder / "b", "--workdir", str(folder / "run"), "--checkpoint-every", "50")
        ratios.append(every_50 / without)
        print(f"round {number + 1}: none {without:.2f} ms, every 50 {every_50:.2f} ms a step, ratio {ratios[-1]:.3f}")
    print(f"median ratio {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()

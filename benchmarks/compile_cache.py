"""What the compile cache saves: `python -m benchmarks.compile_cache [--rounds 3] [flags of pmapdp.train]`.

Starts the same training twice with a cache folder that is empty at first. Prints how long the first update and first
evaluation took, tracing and compiling included, and how long the whole command took.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def start(job: list[str], cache: Path, metrics: Path) -> tuple[float, float]:
    """Seconds to compile, and seconds of the whole command, of a run of one update."""
    metrics.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pmapdp.train", *job, "--steps", "1", "--metrics-file", str(metrics)]
    clock = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"XDG_CACHE_HOME": str(cache)})
    seconds = time.perf_counter() - clock
    end = json.loads(metrics.read_text().splitlines()[-1])
    return end["compile_seconds"], seconds


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="pairs of starts")
    options, job = parser.parse_known_args()
    ratios = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            cold, cold_command = start(job, Path(name) / "cache", Path(name) / "metrics.jsonl")
            warm, warm_command = start(job, Path(name) / "cache", Path(name) / "metrics.jsonl")
        ratios.append(cold / warm)
        print(
            f"round {number + 1}: compile {cold:.2f} s, then {warm:.2f} s ({ratios[-1]:.1f} times sooner); "
            f"whole command {cold_command:.1f} s, then {warm_command:.1f} s"
        )
    print(f"median: {statistics.median(ratios):.1f} times sooner")


if __name__ == "__main__":
    main()

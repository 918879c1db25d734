"""What the compile cache saves: `python -m benchmarks.compile_cache [--rounds 3] [flags of pmapdp.train]`.

Starts the same job twice with a cache folder that is empty at first. Prints how long it took, once the packages were
imported and the data read, until the initial state was there and the first dispatch of updates done.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import at_least_one
from pmapdp.cli import parse
from pmapdp.errors import run_command
from pmapdp.job import prepare
from pmapdp.run import compile_cache
from pmapdp.state import create_state


def first_update(job: list[str]) -> float:
    """Seconds to make the initial state and the first updates, compiling or reading what was compiled before."""
    compile_cache.enable()
    prepared = prepare(parse(job))
    _, placed = next(prepared.dispatches(0))
    clock = time.perf_counter()
    state = create_state(prepared.task, prepared.steps.state_sharding)
    _, sums = prepared.train_steps(state, *placed)
    sums.loss.block_until_ready()
    return time.perf_counter() - clock


def start(job: list[str], cache: str) -> float:
    """`first_update` in a process of its own, with `cache` as the user's cache folder."""
    command = [sys.executable, "-m", "benchmarks.compile_cache", "--once", *job]
    environment = os.environ | {"XDG_CACHE_HOME": cache}
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def main(arguments: list[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least_one, default=3, help="pairs of starts")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options, job = parser.parse_known_args(arguments)
    if options.once:
        print(first_update(job))
        return
    ratios = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = start(job, cache), start(job, cache)
        ratios.append(cold / warm)
        print(f"round {number + 1}: {cold:.2f} s, then {warm:.2f} s ({ratios[-1]:.1f} times sooner)")
    print(f"median: {statistics.median(ratios):.1f} times sooner")


if __name__ == "__main__":
    sys.exit(run_command(main))

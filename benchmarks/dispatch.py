"""What several updates in one dispatch save: `python -m benchmarks.dispatch [--rounds 5] [flags of pmapdp.train]`.

Trains the same job with 1, 2, 4, ... updates in a dispatch, in turn in one process, with nothing read back and nothing
written. Prints the step times (medians over the rounds) and their ratio to that of one update at a time.
"""

import itertools
import statistics
import sys
import time
from collections import deque
from typing import Any

import jax

from benchmarks import at_least_one, make_parser
from pmapdp import devices
from pmapdp.command.ending import run_command
from pmapdp.command.flags import parse
from pmapdp.job import Job, prepare
from pmapdp.malloc import keep_freed_memory
from pmapdp.metrics import DISPATCHES_BEHIND
from pmapdp.state import create_state

SIZES = (1, 2, 4, 8, 16, 32)
UPDATES = 96  # at most, of a round; all sizes divide it
DEFAULT_JOB = ["--dataset", "mnist", "--model", "convnet", "--schedule", "constant"]


def updates(job: Job, state: Any) -> tuple[Any, float]:
    """The state after at most `UPDATES` updates of the first epoch, and the milliseconds that each took."""
    dispatches = itertools.islice(job.dispatches(0), UPDATES // job.steps_per_dispatch)
    clock, done = time.perf_counter(), 0
    waiting: deque[Any] = deque()
    for count, placed in dispatches:
        state, sums = job.train_steps(state, *placed)
        waiting.append(sums)
        done += count
        if len(waiting) > DISPATCHES_BEHIND:  # the trainer does not run further ahead either
            jax.block_until_ready(waiting.popleft())
    jax.block_until_ready(state)
    return state, 1000 * (time.perf_counter() - clock) / done


def main(arguments: list[str]) -> None:
    """The command."""
    parser = make_parser(__doc__, "python -m benchmarks.dispatch --rounds 5")
    parser.add_argument("--rounds", type=at_least_one, default=5, help="turns of each size")
    options, flags = parser.parse_known_args(arguments)
    flags = flags or DEFAULT_JOB
    keep_freed_memory()
    jobs = {size: prepare(parse([*flags, "--steps-per-dispatch", str(size)])) for size in SIZES}
    states = {size: create_state(job.task, job.steps.state_sharding) for size, job in jobs.items()}
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    print(f"{' '.join(flags)} on {devices.cores()} cores: {devices.describe(jobs[1].devices)}")
    for number in range(options.rounds + 1):
        for size in SIZES:
            states[size], milliseconds = updates(jobs[size], states[size])
            if number:  # the first round compiles
                times[size].append(milliseconds)
    for size in SIZES:
        ratio = statistics.median(several / one for several, one in zip(times[size], times[1], strict=True))
        print(f"{size:3d} updates in a dispatch: {statistics.median(times[size]):7.2f} ms a step, ratio {ratio:.2f}")


if __name__ == "__main__":
    sys.exit(run_command(main))

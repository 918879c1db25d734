"""What --check-replicas costs: `python -m benchmarks.replicas [--rounds 20] [--every 100] [flags of pmapdp.train]`.

Each round makes one update, then compares the copies of the state once, and waits for both. The medians
give the share of the comparison in the time of so many updates.
"""

import dataclasses
import itertools
import statistics
import sys
import time

import jax

from benchmarks import at_least_one, make_parser, parse_config
from pmapdp import cli, devices
from pmapdp.job import prepare
from pmapdp.run.replicas import Replicas
from pmapdp.state import create_state

DEFAULT_JOB = ["--dataset", "mnist", "--per-device-batch-size", "64"]


def main(arguments: list[str]) -> None:
    """The command."""
    parser = make_parser(__doc__, "replicas", "--rounds 20")
    parser.add_argument("--rounds", type=at_least_one, default=20, help="updates to time, of one epoch")
    parser.add_argument("--every", type=at_least_one, default=100, help="updates between comparisons")
    options, flags = parser.parse_known_args(arguments)
    flags = flags or DEFAULT_JOB
    config = parse_config([*flags, "--check-replicas", str(options.every)])  # refuses what has no replicas
    job = prepare(dataclasses.replace(config, check_replicas=None))
    state = create_state(job.task, job.strategy.state_sharding)
    replicas = Replicas(job, options.every)
    updates, comparisons = [], []
    for number, batch in enumerate(
        itertools.islice(map(job.strategy.place_batch, job.train_batches.epoch(0)), options.rounds + 1)
    ):
        jax.block_until_ready((state, batch))
        clock = time.perf_counter()
        state, _ = jax.block_until_ready(job.strategy.train_step(state, batch))
        trained = time.perf_counter()
        replicas.require_equal(number, state)
        if number:  # the first round compiles
            updates.append(1000 * (trained - clock))
            comparisons.append(1000 * (time.perf_counter() - trained))
    update, comparison = statistics.median(updates), statistics.median(comparisons)
    print(f"{' '.join(flags)} on {devices.cores()} cores: {devices.describe(job.devices)}")
    print(replicas.text)
    print(f"{len(updates)} rounds: an update {update:.2f} ms, a comparison {comparison:.2f} ms")
    print(f"every {options.every} updates it takes {100 * comparison / options.every / update:.3f} % of it")


if __name__ == "__main__":
    sys.exit(cli.run(main))

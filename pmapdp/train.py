"""Train a network on several devices, and resume it after a stop.

    python -m pmapdp.train                       # digits on 8 devices with pmap
    python -m pmapdp.train --strategy jit --devices 4
    python -m pmapdp.train --dataset mnist --per-device-batch-size 64 --epochs 1
    python -m pmapdp.train mirrored --workdir runs/mirrored
    srun python -m pmapdp.train --distributed    # several processes, by Slurm

You can stop a run with a workdir at any time: the same command resumes it.
"""

import dataclasses
import sys
import time
from typing import Any

import jax

from pmapdp import cli
from pmapdp.config import Config
from pmapdp.distributed import Peers, ProcessesOptions, connect_processes, find_peers
from pmapdp.errors import DivergedError
from pmapdp.job import prepare
from pmapdp.recipes import compare_with_reported, require_recipe
from pmapdp.run import compile_cache
from pmapdp.run.running import AfterEpoch, running
from pmapdp.run.workdir import with_full_paths
from pmapdp.state import TrainState


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run leaves behind.

    Attributes:
        state: the last `TrainState`, on the host.
        epochs: the metrics of every epoch of this start, as in the metrics file.
    """

    state: TrainState
    epochs: list[dict[str, Any]]


def train(config: Config, peers: Peers | None = None, *, after_epoch: AfterEpoch | None = None, **own: Any) -> Result:
    """Run `config` from start to end, or resume the run in its workdir.

    Args:
        config: what to do.
        peers: the processes that take part; all call this function alike. Default: those that the program has connected
            by `jax.distributed.initialize`.
        after_epoch: called after each epoch with its results, as in the metrics file, and the state on the devices,
            whose memory the next update takes; of several processes on each.
        own: `model`, `data`, `loss`, `metrics`, `optimizer`, `schedule` and `trainable`; see `prepare`.

    Raises:
        UserError: the configuration does not fit the machine, the data or the workdir, training diverged, or a
            file could not be written.
        StoppedError: SIGTERM, SIGINT or SIGHUP asked for it (in a notebook: its stop button); with a
            workdir a checkpoint was written, without one its `state` has the state.
    """
    started = time.perf_counter()
    peers = peers or find_peers(config)
    config = with_full_paths(config, first=peers.first)
    require_recipe(config)
    if config.compile_cache:
        compile_cache.enable()
    # 64 bits for float64 alone, whatever the caller has set: with them JAX draws other random numbers.
    with jax.enable_x64(config.dtype == "float64"):
        job = prepare(config, peers, **own)
        train_step = job.strategy.train_step  # made by the file in steps/ that the strategy names
        with running(job, started, after_epoch) as run:
            state, step = run.state, run.step
            while step < run.end_step:
                try:
                    run.start_epoch(step)
                    with job.rest_of_epoch(step) as batches:
                        for batch in batches:
                            run.before_update(step + 1)
                            state, sums = train_step(state, batch)
                            step += 1
                            run.after_update(step, state, sums)
                    run.end_epoch(step, state, job.evaluate(state))
                except DivergedError as error:
                    state, step = run.roll_back(error)
            run.end(step)
            run.report.lines(compare_with_reported(job.config, run.epochs))
            return Result(job.strategy.fetch(state), run.epochs)


def main(arguments: list[str]) -> None:
    """The command."""
    config, options = cli.parse_with_recipe(ProcessesOptions, arguments, __doc__)
    with connect_processes(options, config) as peers:
        train(config, peers)


if __name__ == "__main__":
    sys.exit(cli.run(main))

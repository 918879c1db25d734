"""Train a network: `python -m pmapdp.train [RECIPE] [flags]`; `--help` lists both.

    python -m pmapdp.train                                    # digits on 8 devices with pmap
    python -m pmapdp.train --strategy jit --devices 4         # the same job, split by the compiler
    python -m pmapdp.train --dataset mnist --per-device-batch-size 64 --epochs 1
    python -m pmapdp.train mirrored --workdir runs/mirrored   # stop it at any time; the same command goes on
    srun python -m pmapdp.train --distributed                 # several processes, started by Slurm

Lesson 10 teaches this file.
"""

import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmapdp.cli import parse_with
from pmapdp.config import Config
from pmapdp.errors import UserError, run_command
from pmapdp.job import Job, prepare
from pmapdp.metrics import Meter, Totals
from pmapdp.processes.join import joined
from pmapdp.processes.options import ProcessesOptions
from pmapdp.processes.peers import ALONE, Peers
from pmapdp.run import compile_cache
from pmapdp.run.finish import check_on_one_device, compare_with_reported, draw_sharding
from pmapdp.run.profile import Profiler
from pmapdp.run.recorder import Recorder
from pmapdp.run.resume import Keeper
from pmapdp.run.stop import listening
from pmapdp.sharding import nnx_guide as nnx_mesh
from pmapdp.state import TrainState


@dataclass(frozen=True)
class Result:
    """What a run leaves behind.

    Attributes:
        state: the last `TrainState`, on the host.
        epochs: the metrics of every epoch of this start, as in the metrics file.
    """

    state: TrainState
    epochs: list[dict[str, Any]]


def train(config: Config, peers: Peers = ALONE) -> Result:
    """Run `config` from start to end, or go on with the run in its workdir.

    Args:
        config: what to do.
        peers: the processes that take part; all call this function alike.

    Raises:
        UserError: the configuration does not fit the machine, the data or the workdir, training diverged, or a
            file could not be written.
        StoppedError: SIGTERM or SIGINT asked for it; with a workdir a checkpoint was written.
    """
    started = time.perf_counter()
    if config.compile_cache:
        compile_cache.enable()
    job = prepare(config, peers)
    steps, dispatch, batches = job.steps, job.dispatch, job.train_batches
    with contextlib.ExitStack() as stack:
        keeper = stack.enter_context(contextlib.closing(Keeper(job)))
        progress = keeper.begin()
        recorder = stack.enter_context(contextlib.closing(Recorder(job, progress.step)))
        recorder.start(progress.state)
        for warning in keeper.messages:
            recorder.report.line(warning)
        stop = stack.enter_context(listening(peers.agreement))
        profiled = config.profile and config.workdir and peers.first
        profiler = Profiler(Path(str(config.workdir)) / "profile" if profiled else None)
        stack.enter_context(peers.failing_together())

        state, step, totals = progress.state, progress.step, progress.totals
        if config.draw_sharding and step == 0 and peers.first:
            draw_sharding(steps.place_batch(next(batches.epoch(0))))
        compile_seconds = 0.0
        history: list[dict[str, Any]] = []
        while step < job.total_steps:
            epoch, done = divmod(step, batches.steps)
            meter = Meter(totals)
            recorder.report.start_epoch(epoch + 1, batches.steps, done)
            upcoming = ((count, dispatch.place(batch, count)) for count, batch in job.dispatches(step))
            following = next(upcoming, None)
            while following is not None:
                count, placed = following
                profiler.before_steps(count, state)
                stop.begin(step + count)
                state, sums = dispatch.run(state, *placed)
                # While the devices compute, the host writes the last checkpoint and makes the next dispatch ready.
                keeper.write()
                following = next(upcoming, None)
                step += count
                meter.add(step, sums, batches.examples_between(step - count, step), count)
                if step == progress.step + count:  # traced and compiled just now: not timed
                    compile_seconds += meter.restart_clock()
                recorder.report.step(step - epoch * batches.steps, meter)
                for line in profiler.after_steps(state):
                    recorder.report.line(line)
                if step == min((epoch + 1) * batches.steps, job.total_steps):
                    break
                if stop or keeper.due(step):
                    keeper.save(step, state, meter.finish())
                if stop:
                    keeper.stop(stop, step)
            totals = meter.finish()
            recorder.report.end_epoch()

            clock = time.perf_counter()
            tested = job.evaluate(state)
            if not history:
                compile_seconds += time.perf_counter() - clock
            results = epoch_results(job, epoch, step, meter, tested)
            history.append(results)
            recorder.epoch(results, state)
            if step == (epoch + 1) * batches.steps:
                totals = Totals()
            keeper.save(step, state, totals, results)
            if stop:
                keeper.stop(stop, step)

        for line in profiler.stop():
            recorder.report.line(line)
        keeper.wait()
        seconds = time.perf_counter() - started
        recorder.write("end", steps=step, compile_seconds=compile_seconds, total_seconds=seconds)
        recorder.report.end(keeper.best, keeper.last, compile_seconds, seconds)
        host = steps.fetch(state)
        if config.check_on_one_device and peers.first:
            recorder.report.line(check_on_one_device(job, host, keeper.last))
        compare_with_reported(recorder.report, config, history)
        return Result(host, history)


def epoch_results(job: Job, epoch: int, step: int, meter: Meter, tested: Totals) -> dict[str, Any]:
    """The metrics of an epoch, as they stand in the metrics file."""
    trained = meter.totals
    return {
        "epoch": epoch + 1,
        "step": step,
        "train_loss": trained.mean_loss,
        "train_accuracy": trained.accuracy,
        "train_examples": trained.count,
        "test_loss": tested.mean_loss,
        "test_accuracy": tested.accuracy,
        "test_examples": tested.count,
        "learning_rate": float(job.schedule(step - 1)),
        "images_per_second": meter.examples_per_second,
        "step_ms": meter.step_ms,
    }


def main(arguments: list[str]) -> None:
    """The command."""
    config, options = parse_with(ProcessesOptions, arguments, program="python -m pmapdp.train")
    if config.recipe == "nnx-mesh":
        if options.several:
            raise UserError("recipe nnx-mesh runs in one process: leave --distributed and --coordinator out")
        nnx_mesh.run(config)
        return
    with joined(options, config) as peers:
        train(config, peers)


if __name__ == "__main__":
    sys.exit(run_command(main))

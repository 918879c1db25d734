"""Train a network: `python -m pmapdp.train [RECIPE] [flags]`; `--help` lists both.

    python -m pmapdp.train                                    # digits on 8 devices with pmap
    python -m pmapdp.train --strategy jit --devices 4         # the same job, split by the compiler
    python -m pmapdp.train --dataset mnist --per-device-batch-size 64 --epochs 1

Lesson 10 teaches this file.
"""

import dataclasses
import sys
import time
from dataclasses import dataclass
from typing import Any

import jax

from pmapdp.command_line import parse
from pmapdp.config import Config
from pmapdp.devices import describe
from pmapdp.errors import run_command
from pmapdp.job import Job, prepare
from pmapdp.metrics import Meter, MetricsFile
from pmapdp.report import Report
from pmapdp.state import TrainState, count_parameters, create_state


@dataclass(frozen=True)
class Result:
    """What a run leaves behind.

    Attributes:
        state: the last `TrainState`, on the host.
        epochs: the metrics of every epoch, as in the metrics file.
    """

    state: TrainState
    epochs: list[dict[str, Any]]


def train(config: Config) -> Result:
    """Run `config` from start to end.

    Raises:
        UserError: the configuration does not fit the machine or the data, or training diverged.
    """
    started = time.perf_counter()
    metrics_file = MetricsFile(config.metrics_file)
    job = prepare(config)
    steps, batches = job.steps, job.train_batches
    state = steps.place_state(create_state(job.task))
    report = Report(progress=config.progress, epochs=config.epochs)
    facts = start_facts(job, state)
    metrics_file.write("start", **facts)
    report.header(header(job, facts))

    step, compile_seconds, history = 0, 0.0, []
    for epoch in range(config.epochs):
        if step == job.total_steps:
            break
        meter = Meter()
        report.start_epoch(epoch + 1, batches.steps)
        for batch in batches.epoch(epoch):
            state, sums = steps.train_step(state, steps.place_batch(batch))
            step += 1
            meter.add(step, sums, batch.examples)
            if step == 1:
                compile_seconds += meter.restart_clock()  # traced and compiled just now: not timed as a step
            report.step(step - epoch * batches.steps, meter)
            if step == job.total_steps:
                break
        trained = meter.finish()
        report.end_epoch()

        clock = time.perf_counter()
        tested = job.evaluate(state)
        if epoch == 0:
            compile_seconds += time.perf_counter() - clock
        history.append(
            {
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
        )
        metrics_file.write("epoch", **history[-1])
        report.results(history[-1])

    seconds = time.perf_counter() - started
    metrics_file.write("end", steps=step, compile_seconds=compile_seconds, total_seconds=seconds)
    report.end(history, compile_seconds, seconds)
    return Result(steps.fetch(state), history)


def start_facts(job: Job, state: TrainState) -> dict[str, Any]:
    """The first line of the metrics file: what was asked for, and what it came to."""
    return dataclasses.asdict(job.config) | {
        "strategy": job.config.strategy,
        "devices": len(job.devices),
        "global_batch_size": job.global_batch_size,
        "per_device_batch_size": job.per_device_batch_size,
        "parameters": count_parameters(state.params),
        "train_examples": len(job.data.train.labels),
        "test_examples": len(job.data.test.labels),
        "jax": jax.__version__,
    }


def header(job: Job, facts: dict[str, Any]) -> dict[str, str]:
    """What is printed before training."""
    config = job.config
    micro_batches = f", {config.accumulate} micro-batches each" if config.accumulate > 1 else ""
    return {
        "recipe": f"{config.recipe}, strategy {config.strategy}, seed {config.seed}, {config.dtype}",
        "devices": describe(job.devices),
        "batch": f"{facts['global_batch_size']:,} over all devices, at most {facts['per_device_batch_size']:,} on one"
        + micro_batches,
        "model": f"{config.model}, {facts['parameters']:,} parameters",
        "data": f"{config.dataset}, {facts['train_examples']:,} to train and {facts['test_examples']:,} to test",
        "updates": f"{job.total_steps:,}, {job.train_batches.steps:,} an epoch",
        "started": f"by hand, 1 process, jax {jax.__version__}, Python {sys.version.split()[0]}",
    }


def main(arguments: list[str]) -> None:
    """The command."""
    train(parse(arguments))


if __name__ == "__main__":
    sys.exit(run_command(main))

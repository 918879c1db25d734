"""Everything a run writes down: the screen, the log, the metrics files, TensorBoard."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax

from pmapdp.devices import describe
from pmapdp.job import Job
from pmapdp.metrics import MetricsFile
from pmapdp.run.screen import Report
from pmapdp.run.tensorboard import TensorBoard
from pmapdp.sharding.layout import bytes_on_a_device, state_line
from pmapdp.state import TrainState, count_parameters


class Recorder:
    """Hands each event of a run to all that want it; on other processes than the first it writes nothing.

    Args:
        job: the run.
        first_step: updates made by earlier starts of it.
    """

    def __init__(self, job: Job, first_step: int = 0):
        config = self.config = job.config
        self.job = job
        writes = job.peers.first
        folder = Path(config.workdir) if config.workdir and writes else None
        self.report = Report(
            progress=config.progress and writes,
            epochs=config.epochs,
            log=folder and folder / "log.txt",
            quiet=not writes,
        )
        self.files = [
            MetricsFile(config.metrics_file if writes else None),
            MetricsFile(folder and folder / "metrics.jsonl"),
        ]
        self.tensorboard = TensorBoard(folder, first_step) if folder else None
        self.first_step = first_step

    def write(self, event: str, **values: Any) -> None:
        """Append an event to the metrics files."""
        for file in self.files:
            file.write(event, **values)

    def start(self, state: TrainState) -> None:
        """The header, and the first line of the metrics files."""
        job, config = self.job, self.config
        facts = {
            "devices": len(job.devices),
            "global_batch_size": job.global_batch_size,
            "per_device_batch_size": job.per_device_batch_size,
            "parameters": count_parameters(state.params),
            "steps_per_dispatch": job.steps_per_dispatch,
            "train_examples": job.train_batches.examples,
            "test_examples": job.test_batches.examples,
            "state_bytes_on_a_device": bytes_on_a_device((state.params, state.optimizer_state)),
            "jax": jax.__version__,
        }
        self.write("start", **(dataclasses.asdict(config) | facts))
        if self.first_step:
            self.write("resume", step=self.first_step)
        processes = "1 process" if job.peers.count == 1 else f"{job.peers.count} processes"
        micro_batches = f", in {config.accumulate} micro-batches" if config.accumulate > 1 else ""
        self.report.header(
            {
                "recipe": f"{config.recipe}, strategy {config.strategy}, seed {config.seed}, {config.dtype}",
                "devices": describe(job.devices)
                + (f", {job.layout.text}" if job.layout and (config.mesh or config.layout != "data") else ""),
                "batch": f"{job.global_batch_size:,} over all devices, at most {job.per_device_batch_size:,} on one"
                + micro_batches,
                "model": f"{config.model}, {facts['parameters']:,} parameters",
                "state": state_line(state),
                "data": f"{config.dataset}, {facts['train_examples']:,} to train, {facts['test_examples']:,} to test",
                "updates": f"{job.total_steps:,}, {job.train_batches.steps:,} an epoch"
                + (f", up to {job.steps_per_dispatch} in a dispatch" if job.steps_per_dispatch > 1 else ""),
                "started": f"{job.peers.started}, {processes}, jax {jax.__version__}, Python {sys.version.split()[0]}",
            }
        )

    def epoch(self, results: dict[str, Any], state: TrainState) -> None:
        """The results of an epoch; `state`, on the devices, for histograms where they were asked for."""
        self.write("epoch", **results)
        self.report.results(results)
        whole = self.job.steps.fetch(state) if self.config.histograms else None  # by all processes
        if self.tensorboard:
            self.tensorboard.scalars(results)
            if whole is not None:
                self.tensorboard.histograms(self.job, whole)

    def close(self) -> None:
        """Write what is left and close all files."""
        self.report.close()
        for file in self.files:
            file.close()
        if self.tensorboard:
            self.tensorboard.close()

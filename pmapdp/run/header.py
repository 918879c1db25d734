"""What a run says as it begins: what it does, on which devices, with what data, and from where."""

import dataclasses
import sys
from typing import Any

import jax

from pmapdp.devices import count_from_environment, describe
from pmapdp.job import Job
from pmapdp.layers import exact_layers
from pmapdp.run.checkpoint import Checkpoint
from pmapdp.run.report import Reporter
from pmapdp.run.start_weights import sentence
from pmapdp.run.workdir import listed
from pmapdp.sharding.layout import bytes_on_a_device, state_line
from pmapdp.state import TrainState, count_parameters


def announce(report: Reporter, job: Job, begin: Checkpoint, warnings: list[str]) -> None:
    """Report the start of a run at what `beginning` found, with its warnings about checkpoints."""
    report.event("start", **dataclasses.asdict(job.config) | facts(job, begin.state))
    report.lines(header(job, begin.state))
    report.lines(warnings)
    if begin.step:
        report.event("resume", step=begin.step)
        report.line(f"restored from the checkpoint of step {begin.step:,}")
    elif taken := begin.progress["taken"]:
        report.event("init_from", **taken)
        report.line(sentence(taken))
    if begin.progress.get("changed") == begin.step and (changes := begin.progress["changes"]):
        report.event("changes", step=begin.step, **changes)
        report.line(f"trained on after its end, with {listed(changes)}")
    if job.config.draw_sharding and begin.step == 0 and job.peers.first:
        labels = job.strategy.place_batch(next(job.train_batches.epoch(0))).labels
        print(f"labels {labels.shape} of the first batch on the devices:")
        jax.debug.visualize_array_sharding(labels)


def facts(job: Job, state: TrainState) -> dict[str, Any]:
    """What follows from the settings of a run, its data and the machine, for the metrics file."""
    return {
        "devices": len(job.devices),
        "global_batch_size": job.global_batch_size,
        "per_device_batch_size": job.per_device_batch_size,
        "parameters": count_parameters(state.params),
        "train_examples": job.train_batches.examples,
        **{f"{name}_examples": part.examples for name, part in job.data.parts.items() if name != "train"},
        "state_bytes_on_a_device": bytes_on_a_device((state.params, state.optimizer_state)),
        "jax": jax.__version__,
    }


def header(job: Job, state: TrainState) -> list[str]:
    """What a run does, on which devices and with what data, in lines for the screen."""
    config, train_batches = job.config, job.train_batches
    layout = f", {job.layout.text}" if config.mesh or config.layout != "data" else ""
    micro_batches = f", in {config.accumulate} micro-batches" if config.accumulate > 1 else ""
    processes = "1 process" if job.peers.count == 1 else f"{job.peers.count} processes"
    uses = {"train": "to train", "test": "to test", "validation": "to validate"}
    sizes = [f"{part.examples:,} {uses[name]}" for name, part in job.data.parts.items()]
    shown = {
        "recipe": f"{config.recipe}, strategy {config.strategy}, seed {config.seed}, {config.dtype}",
        "devices": describe(job.devices) + layout + started_before(job),
        "batch": f"{job.global_batch_size:,} over all devices, at most {job.per_device_batch_size:,} on one"
        + micro_batches,
        "model": f"{config.model}, {count_parameters(state.params):,} parameters",
        "layers": exact_layers(job.task.model),
        "state": state_line(state),
        "data": ", ".join([config.dataset, *sizes, *([f"content {job.content}"] if job.content else [])]),
        "updates": f"{job.total_steps:,}, {train_batches.per_epoch:,} an epoch",
        "started": f"{job.peers.started}, {processes}, jax {jax.__version__}, Python {sys.version.split()[0]}",
    }
    return [*(f"{name:<7}  {value}" for name, value in shown.items() if value), ""]


def started_before(job: Job) -> str:
    """Why a run has a single CPU device though it asked for none: a program used JAX before it called `train`."""
    config, few = job.config, len(job.devices) == 1 and job.devices[0].platform == "cpu"
    if not few or config.devices or config.strategy == "single" or count_from_environment():
        return ""
    return ", with which JAX had started: call pmapdp.devices.simulate(8) before its first use for more"

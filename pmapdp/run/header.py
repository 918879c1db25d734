"""What a run says of itself before it starts, on the screen and in the metrics file."""

import sys
from typing import Any

import jax

from pmapdp.devices import describe
from pmapdp.job import Job
from pmapdp.sharding.layout import bytes_on_a_device, state_line
from pmapdp.state import TrainState, count_parameters


def facts(job: Job, state: TrainState) -> dict[str, Any]:
    """What follows from the settings of a run, its data and the machine, for the metrics file."""
    return {
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


def header(job: Job, state: TrainState, settings: dict[str, Any]) -> list[str]:
    """The same in lines for the screen."""
    layout = job.layout.text if settings["mesh"] or settings["layout"] != "data" else ""
    B, b, S = job.global_batch_size, job.per_device_batch_size, job.steps_per_dispatch
    accumulate, train_batches = settings["accumulate"], job.train_batches
    processes = "1 process" if job.peers.count == 1 else f"{job.peers.count} processes"
    shown = {
        "recipe": "{recipe}, strategy {strategy}, seed {seed}, {dtype}".format(**settings),
        "devices": describe(job.devices) + (f", {layout}" if layout else ""),
        "batch": f"{B:,} over all devices, at most {b:,} on one"
        + (f", in {accumulate} micro-batches" if accumulate > 1 else ""),
        "model": f"{settings['model']}, {count_parameters(state.params):,} parameters",
        "state": state_line(state),
        "data": f"{settings['dataset']}, {train_batches.examples:,} to train, {job.test_batches.examples:,} to test",
        "updates": f"{job.total_steps:,}, {train_batches.steps:,} an epoch"
        + (f", up to {S} in a dispatch" if S > 1 else ""),
        "started": f"{job.peers.started}, {processes}, jax {jax.__version__}, Python {sys.version.split()[0]}",
    }
    return [*(f"{name:<7}  {value}" for name, value in shown.items()), ""]

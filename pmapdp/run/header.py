"""Describe a run before its first update: the header's lines, and facts as JSON."""

import dataclasses
import functools
import math
import platform
from typing import Any

import jax

from pmapdp.config import SCHEDULES, Config
from pmapdp.devices import count_from_environment, describe
from pmapdp.job import Job
from pmapdp.optimizer import peak_learning_rate
from pmapdp.recipes import RECIPES
from pmapdp.sharding.layout import bytes_on_a_device, state_line
from pmapdp.state import TrainState

# The verb for each part of a data set.
VERBS = {"train": "train", "validation": "validate", "test": "test"}
# Settings that lines of their own show.
SHOWN_ELSEWHERE = {
    "dataset",
    "model",
    "dtype",
    "init_from",
    "global_batch_size",
    "accumulate",
    "optimizer",
    "learning_rate",
    "schedule",
    "label_smoothing",
    "trainable",
    "epochs",
    "seed",
}


def run_facts(job: Job, state: TrainState) -> dict[str, Any]:
    """Return the facts about a run for its metrics files."""
    batches = job.batches["train"]
    return {
        "devices": len(job.devices),
        "global_batch_size": batches.batch_size,
        "per_device_batch_size": math.ceil(batches.batch_size / batches.devices),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "examples": {name: part.num_examples for name, part in job.batches.items()},
        "state_bytes_on_a_device": bytes_on_a_device(
            (state.params, state.optimizer_state)
        ),
        "jax": jax.__version__,
    }


def header_lines(job: Job, state: TrainState, facts: dict[str, Any]) -> list[str]:
    """Return the header, one fact a line."""
    config = job.config
    per_epoch = job.batches["train"].per_epoch
    run = f"strategy {config.strategy}, seed {config.seed}, {config.dtype}"
    recipe = RECIPES[config.recipe].config
    if (config.dataset, config.model) == (recipe.dataset, recipe.model):
        run = f"recipe {recipe.recipe}, {run}"
    batch = (
        f"{facts['global_batch_size']:,} over all devices, at most "
        f"{facts['per_device_batch_size']:,} on one"
    )
    if config.accumulate > 1:
        batch += f", in {config.accumulate} micro-batches"
    parameters = f"{facts['parameters']:,} parameters"
    if config.trainable:
        parameters = f"{facts['parameters']:,} trained parameters"
    processes = f"{job.processes.count} processes"
    if job.processes.count == 1:
        processes = "1 process"
    lines = [
        f"run      {run}",
        f"devices  {describe_devices(job)}",
        f"batch    {batch}",
        f"model    {config.model}, {parameters}",
        f"loss     {describe_loss(job)}",
        f"updates  {job.total_steps:,}, {per_epoch:,} an epoch; "
        f"{describe_optimizer(config, facts['global_batch_size'])}",
        f"state    {state_line(state)}",
        f"data     {describe_data(job)}",
        f"started  {job.processes.launcher}, {processes}, jax {jax.__version__}, "
        f"Python {platform.python_version()}",
    ]
    changed = changed_settings(config)
    if changed:
        lines.append(f"settings {', '.join(changed)}")
    return lines


def describe_devices(job: Job) -> str:
    """Describe the devices and the mesh, and say if more could have been simulated."""
    config = job.config
    text = describe(job.devices)
    if config.mesh or config.layout != "data":
        text += f", {job.layout.text}"
    is_one_cpu = len(job.devices) == 1 and job.devices[0].platform == "cpu"
    was_asked = config.devices or count_from_environment()
    if is_one_cpu and config.strategy != "single" and not was_asked:
        text += (
            ", with which JAX had started: call pmapdp.devices.simulate(8) before its "
            "first use for more"
        )
    return text


def describe_data(job: Job) -> str:
    """Describe the data set and its parts."""
    texts = [job.config.dataset]
    for name, part in job.batches.items():
        text = f"{part.num_examples:,} to {VERBS[name]}"
        if part.is_weighted:
            text += " (weighted)"
        texts.append(text)
    if job.data_fingerprint:
        texts.append(f"fingerprint {job.data_fingerprint}")
    return ", ".join(texts)


def describe_optimizer(config: Config, global_batch_size: int) -> str:
    """Name the optimizer, the schedule and the learning rate."""
    text = f"{config.optimizer}, {config.schedule}"
    if config.schedule not in SCHEDULES:  # yours has a rate of its own
        return text
    text += f", learning rate {config.learning_rate:g}"
    if config.scale_learning_rate != "none":
        text += f", scaled to {peak_learning_rate(config, global_batch_size):.4g}"
    return text


def changed_settings(config: Config) -> list[str]:
    """List the other settings that decide the result, if they aren't the defaults."""
    changed = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        decides = field.metadata["fixed_on_resume"]
        is_shown = field.name in SHOWN_ELSEWHERE
        if decides and not is_shown and value != field.default:
            changed.append(f"{field.name}={value}")
    return changed


def describe_loss(job: Job) -> str:
    """Describe the loss, and how training changes its examples."""
    text = name_of_function(job.task.loss)
    if job.task.augment is not None:
        text += f" of examples changed by {name_of_function(job.task.augment)}"
    is_built_in = job.task.classifies and job.custom.loss is None
    if is_built_in and job.config.label_smoothing:
        text += ", smoothed during training only"
    return text


def name_of_function(function: Any) -> str:
    """Name a function with its settings, as in `cross_entropy(label_smoothing=0.1)`."""
    if not isinstance(function, functools.partial):
        return getattr(function, "__qualname__", type(function).__name__)
    settings = []
    for name, value in function.keywords.items():
        if callable(value):
            value = name_of_function(value)
        # An array would fill the header.
        if isinstance(value, int | float | str) and value:
            settings.append(f"{name}={value}")
    return f"{name_of_function(function.func)}({', '.join(settings)})"

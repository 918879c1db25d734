"""The command line of the predictions, and a look at what cannot be."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pmapdp.config import Config, ModelOptions
from pmapdp.errors import UserError
from pmapdp.scaling.costs import spread
from pmapdp.scaling.hardware import HARDWARE
from pmapdp.scaling.predict import UTILIZATION, Plan


@dataclass(frozen=True)
class BatchOptions:
    """The examples of an update on one device."""

    per_device_batch_size: int | None = None
    """Examples per micro-batch on one device; default: the recipe's batch size."""
    accumulate: int = 1
    """Micro-batches per device and update, summed before the one all-reduce."""
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = "adam"
    """sgd, momentum (0.9), adam or adamw: how many numbers an update moves."""


GROUPS = (ModelOptions, BatchOptions)


@dataclass(frozen=True)
class ScalingOptions:
    """What is predicted, and where the result goes."""

    workload: Literal["recipe", "resnet-50", "gpt-2"] = "recipe"
    """The recipe's model, or a published one whose size and operations are known."""
    hardware: tuple[Literal["h100", "tpu-v5e", "tpu-v5p"], ...] = ("h100", "tpu-v5e", "tpu-v5p")
    """Machines to predict for; see pmapdp/scaling/hardware.py for their figures and sources."""
    device_counts: tuple[int, ...] = (1, 8, 64, 512, 4096)
    """Numbers of devices in the tables."""
    strong_batch_size: int = 4096
    """Global batch of strong scaling, which is split over all devices."""
    overlap: float = 0.0
    """Share of the backward pass behind which the all-reduce can hide; 0 is what our steps do."""
    utilization: float = UTILIZATION
    """Share of the peak FLOP/s that the model attains on one device. An assumption: measure yours."""
    algorithm: Literal["best", "ring", "tree"] = "best"
    """How an all-reduce goes around the switched part of a network."""
    check: bool = True
    """Check the model on this machine: compile, measure simulated devices, and two processes (a minute or two)."""
    json: str | None = None
    """Write all results to this file."""
    output: str | None = None
    """Write the pictures weak.svg and strong.svg to this folder, which is made."""


def check_options(config: Config, options: ScalingOptions) -> None:
    """Refuse what no prediction can work with, before anything starts.

    Raises:
        UserError: with the value given and one that works.
    """
    if config.dtype == "float64":
        raise UserError("--dtype float64 has no published peak on this hardware: try --dtype float32")
    if not options.hardware:
        raise UserError(f"--hardware names none: try --hardware {' '.join(ScalingOptions.hardware)}")
    if not options.device_counts:
        raise UserError("--device-counts names none: try --device-counts 1 8 64 512 4096")
    if not 0 <= options.overlap <= 1:
        raise UserError(f"--overlap {options.overlap} is not from 0 to 1: try --overlap 0.5")
    if not 0 < options.utilization <= 1:
        raise UserError(f"--utilization {options.utilization} is not above 0 and up to 1: try --utilization 0.4")
    if options.strong_batch_size < 1:
        raise UserError(f"--strong-batch-size {options.strong_batch_size} must be at least 1: try 4096")
    for N in options.device_counts:
        if N < 1:
            raise UserError(f"--device-counts {N} is not positive: try --device-counts 1 8 64 512 4096")
        for name in options.hardware:
            try:
                spread(N, HARDWARE[name].levels)
            except UserError as error:
                raise UserError(f"--device-counts {N} on {name}: {error}") from None
    if options.output is not None:
        make_folder(Path(options.output))
    if options.json is not None:
        path = Path(options.json)
        if path.is_dir():
            raise UserError(f"--json {path} is a folder: name a file, for example {path / 'scaling.json'}")
        if not path.parent.is_dir():
            raise UserError(f"--json {path} is in a folder that does not exist: try --json {path.name}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UserError(f"--json {path} cannot be written: name a file in a folder of yours")


def make_folder(path: Path) -> None:
    """Make the folder of the pictures.

    Raises:
        UserError: it is a file, or cannot be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--output {path} cannot be made ({error.strerror}): name a folder, for example scaling"
        ) from None
    if not os.access(path, os.W_OK):
        raise UserError(f"--output {path} cannot be written: name a folder of yours")


def make_plan(config: Config, options: ScalingOptions) -> Plan:
    """How the training is spread, from both parts of the command line."""
    return Plan(
        per_device_batch=config.per_device_batch_size or config.global_batch_size or 64,
        accumulate=config.accumulate,
        dtype=config.dtype,
        optimizer=config.optimizer,
        overlap=options.overlap,
        algorithm=options.algorithm,
        utilization=options.utilization,
    )

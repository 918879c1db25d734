"""The command line of the predictions, and a look at what cannot be."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pmapdp.config import Config, ModelOptions
from pmapdp.errors import UserError
from pmapdp.files import FAULTS, refusal, require_writable
from pmapdp.pictures import require_matplotlib
from pmapdp.scaling.costs import spread
from pmapdp.scaling.hardware import HARDWARE
from pmapdp.scaling.predict import UTILIZATION

LARGEST = 10**9  # examples in a batch; larger figures say nothing, and end beyond what floats can hold
LEAST_UTILIZATION = 0.0001


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
    devices: tuple[int, ...] = (1, 8, 64, 512, 4096)
    """Numbers of devices in the tables."""
    strong_batch_size: int = 4096
    """Global batch of strong scaling, which is split over all devices."""
    overlap: float = 0.0
    """Share of the backward pass behind which the all-reduce can hide; 0 is what our steps do."""
    utilization: float = UTILIZATION
    """Share of the peak FLOP/s that the model attains on one device. An assumption: measure yours."""
    algorithm: Literal["best", "ring", "tree"] = "best"
    """How a collective goes around the switched part of a network."""
    json: str | None = None
    """Write all results to this file."""
    output: str | None = None
    """Write the pictures weak.svg and strong.svg to this folder, which is made. Needs pmapdp[plots]."""


def check_options(config: Config, options: ScalingOptions) -> None:
    """Refuse what no prediction can work with, before anything starts.

    Raises:
        UserError: with the value given and one that works.
    """
    if config.recipe == "nnx-mesh":
        raise UserError("nnx-mesh splits the model and trains no data set: try the recipe digits, or --workload gpt-2")
    if config.dtype == "float64":
        raise UserError("--dtype float64 has no published peak on this hardware: try --dtype float32")
    if not options.hardware:
        raise UserError(f"--hardware names none: try --hardware {' '.join(ScalingOptions.hardware)}")
    if not options.devices:
        raise UserError("--devices names none: try --devices 1 8 64 512 4096")
    for flag, value, least, most, works in (
        ("--overlap", options.overlap, 0, 1, 0.5),
        ("--utilization", options.utilization, LEAST_UTILIZATION, 1, UTILIZATION),
        ("--strong-batch-size", options.strong_batch_size, 1, LARGEST, 4096),
        ("--per-device-batch-size", batch_size(config), 1, LARGEST, 64),
        ("--accumulate", config.accumulate, 1, LARGEST, 1),
        *(("--devices", N, 1, LARGEST, 8) for N in options.devices),
    ):
        if not least <= value <= most:
            raise UserError(f"{flag} {value} is not from {least} to {most}: try {flag} {works}")
    for N in options.devices:
        for name in options.hardware:
            try:
                spread(N, HARDWARE[name].levels)
            except UserError as error:
                raise UserError(f"--devices {N} on {name}: {error}") from None
    if options.json is not None:
        require_writable(options.json, advice="name a file for --json in a folder that exists and is yours")
    if options.output is not None:
        require_matplotlib("--output")
        advice = "name a folder of yours for --output, for example scaling"
        try:
            Path(options.output).mkdir(parents=True, exist_ok=True)
        except FAULTS as error:
            raise refusal(options.output, "made", error, advice) from None
        require_writable(Path(options.output, "weak.svg"), advice=advice)


def batch_size(config: Config) -> int:
    """Examples of a micro-batch on one device."""
    return config.per_device_batch_size or config.global_batch_size or 64

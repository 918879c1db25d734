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
LEAST_UTILIZATION = 1e-6
PICTURES = ("weak.svg", "strong.svg")


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
    if not 0 <= options.overlap <= 1:
        raise UserError(f"--overlap {options.overlap} is not from 0 to 1: try --overlap 0.5")
    if not LEAST_UTILIZATION <= options.utilization <= 1:
        raise UserError(
            f"--utilization {options.utilization} is not from {LEAST_UTILIZATION:.6f} to 1: try --utilization 0.4"
        )
    for flag, value in (
        ("--strong-batch-size", options.strong_batch_size),
        ("--per-device-batch-size", batch_size(config)),
        ("--accumulate", config.accumulate),
    ):
        if not 1 <= value <= LARGEST:
            raise UserError(f"{flag} {short(value)} is not from 1 to {LARGEST}: try {flag} 64")
    for N in options.devices:
        if N < 1:
            raise UserError(f"--devices {N} is not positive: try --devices 1 8 64 512 4096")
        for name in options.hardware:
            try:
                spread(N, HARDWARE[name].levels)
            except UserError as error:
                raise UserError(f"--devices {short(N)} on {name}: {error}") from None
    if options.json is not None:
        require_writable(options.json, advice="name a file for --json in a folder that exists and is yours")
    if options.output is not None:
        require_matplotlib("--output")
        make_folder(Path(options.output))


def batch_size(config: Config) -> int:
    """Examples of a micro-batch on one device."""
    return config.per_device_batch_size or config.global_batch_size or 64


def short(value: int) -> str:
    """A number as it was typed, or about how large it is."""
    return str(value) if abs(value) < 10**18 else f"of {len(str(value))} digits"


def make_folder(path: Path) -> None:
    """Make the folder of the pictures, and look whether they can be written to it.

    Raises:
        UserError: it is a file, or cannot be made or written.
    """
    advice = "name a folder of yours for --output, for example scaling"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FAULTS as error:
        raise refusal(path, "made", error, advice) from None
    for name in PICTURES:
        require_writable(path / name, advice=advice)

"""What a run does: one frozen dataclass. The command line is made from it (`cli.py`).

The fields stand in groups, as `--help` shows them; `Config` holds them all side by side.
"""

import math
import typing
from dataclasses import dataclass
from typing import Any, Literal

from pmapdp.errors import UserError, unknown


@dataclass(frozen=True)
class DataOptions:
    """What is learnt from."""

    dataset: str = "digits"
    """digits (1,797 scans, built in), mnist, fashion-mnist (70,000), imdb (50,000 texts), reviews (synthetic texts)."""
    data_dir: str | None = None
    """Folder of downloaded data sets; default: $PMAPDP_DATA, else a cache folder in your home."""


@dataclass(frozen=True)
class ModelOptions:
    """What is trained."""

    model: str = "cnn"
    """For images: mlp (670k parameters), cnn (347k), convnet (49k, batch norm); for texts: text_mlp, transformer."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Type of the computation. With bfloat16 parameters and all-reduce stay in float32; float64 is for proofs."""


@dataclass(frozen=True)
class ParallelOptions:
    """How it is spread over devices."""

    strategy: Literal["pmap", "jit", "shard_map", "single"] = "pmap"
    """Who splits the batch and averages: pmap, jit (the compiler), shard_map, or single (one device)."""
    devices: int | None = None
    """Number of devices; default: all accelerators, or 8 simulated CPU devices where there is none."""
    global_batch_size: int | None = None
    """Examples per update over all devices; any number, it need not divide by the devices."""
    per_device_batch_size: int | None = None
    """Examples per update on one device (instead of the global batch size)."""
    accumulate: int = 1
    """Micro-batches per device and update, summed before the all-reduce; batch norm takes moments over each alone."""
    steps_per_dispatch: int | None = None
    """Updates that the host starts with one call, with the same result; default: up to 16 on CPUs, 1 elsewhere."""
    mesh: str | None = None
    """Axes of the devices and their sizes, for example data=4,model=2 (jit); default: data, over all of them."""
    layout: str = "data"
    """data (splits the batch), model (hidden and heads too), spatial (features too), or rules: hidden=model,..."""
    shard_state: Literal["none", "optimizer", "parameters"] = "none"
    """Split over the data axis: the optimizer state (ZeRO-1), or the parameters too (fully sharded; jit)."""


@dataclass(frozen=True)
class OptimizationOptions:
    """How the parameters are updated."""

    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = "adam"
    """sgd, momentum (0.9), adam or adamw."""
    learning_rate: float = 1e-3
    """Step size (after the warm-up, before the schedule lowers it)."""
    schedule: Literal["constant", "piecewise", "cosine"] = "constant"
    """constant, piecewise (times the switch factor at each switch epoch) or cosine (down to 0 at the end)."""
    switch_epochs: tuple[int, ...] = ()
    """Piecewise schedule: epochs, counted from 0, at whose start the learning rate changes."""
    switch_factor: float = 0.1
    """Piecewise schedule: what the learning rate is multiplied by at each switch."""
    warmup_steps: int = 0
    """Updates over which the learning rate first rises linearly from 0."""
    scale_learning_rate: Literal["none", "linear", "sqrt"] = "none"
    """Multiply the learning rate by k = global / base batch size (linear, Goyal et al. 2017), or by its root (sqrt)."""
    base_batch_size: int = 64
    """Global batch size for which the learning rate is meant, where it is scaled."""
    weight_decay: float = 0.0
    """Decoupled weight decay (adamw only)."""
    clip_norm: float | None = None
    """Scale the gradient down to this global norm where it is longer."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes, from 0 to below 1; in the train loss, not in the test loss."""


@dataclass(frozen=True)
class RunOptions:
    """How long, and from which seed."""

    epochs: int = 20
    """Passes over the training set; each visits every example once."""
    steps: int | None = None
    """Stop after this many updates, even in the middle of an epoch."""
    seed: int = 0
    """Determines the initial parameters, the order of the examples and dropout."""


@dataclass(frozen=True)
class OutputOptions:
    """What is shown and written."""

    metrics_file: str | None = None
    """Write results to this file, one JSON object a line (appended if the file exists)."""
    progress: bool = True
    """Show a progress bar (on a terminal) or a line now and then (elsewhere) during each epoch."""
    draw_sharding: bool = False
    """Draw how the first batch lies on the devices."""


@dataclass(frozen=True)
class WorkdirOptions:
    """What is kept, so that a run can go on after it was stopped."""

    workdir: str | None = None
    """Folder of the run: checkpoints, metrics, TensorBoard files, log. The same command again resumes there."""
    checkpoint_every: int | None = None
    """Write a checkpoint after this many updates, beside the one after each epoch."""
    keep_checkpoints: int = 3
    """Number of newest checkpoints to keep."""
    check_replicas: int | None = None
    """Compare the devices' copies of the state after this many updates; where they differ, stop (exit status 5)."""
    on_nan: Literal["stop", "rollback"] = "stop"
    """A loss that is not finite: stop (exit status 3), or go back to the last checkpoint and skip the batches since."""
    profile: bool = False
    """Record a trace of a few updates for Perfetto and TensorBoard, and print the ten longest operations."""
    compile_cache: bool = True
    """Keep compiled programs in a cache folder, so that the next start is faster."""


@dataclass(frozen=True)
class Config(
    DataOptions,
    ModelOptions,
    ParallelOptions,
    OptimizationOptions,
    RunOptions,
    OutputOptions,
    WorkdirOptions,
):
    """All settings of a run."""

    recipe: str = "digits"
    """Name of the recipe that the other fields started from."""


GROUPS: tuple[type, ...] = Config.__bases__


def flag(field: str) -> str:
    """The command-line flag of a field."""
    return "--" + field.replace("_", "-")


MOST = 2**31 - 1  # what JAX counts with
FLOAT32 = 3.4e38
# The least and the most that a setting may be, and a value that works.
LIMITS: dict[str, tuple[float, float, str]] = {
    "devices": (1, MOST, "8"),
    "global_batch_size": (1, MOST, "64"),
    "per_device_batch_size": (1, MOST, "8"),
    "base_batch_size": (1, MOST, "64"),
    "accumulate": (1, MOST, "2"),
    "steps_per_dispatch": (1, MOST, "8"),
    "epochs": (1, MOST, "10"),
    "steps": (1, MOST, "100"),
    "checkpoint_every": (1, MOST, "100"),
    "keep_checkpoints": (1, MOST, "3"),
    "check_replicas": (1, MOST, "100"),
    "seed": (0, 2**63 - 1, "0"),
    "warmup_steps": (0, MOST, "0"),
    "learning_rate": (0, FLOAT32, "0.001"),
    "weight_decay": (0, FLOAT32, "0.01"),
    "clip_norm": (1e-30, FLOAT32, "1.0"),
    "switch_factor": (1e-30, FLOAT32, "0.1"),
    "label_smoothing": (0, 0.999, "0.1"),
}


def is_a(kind: Any, value: Any) -> bool:
    """Whether a value is of the type of a field, as `isinstance`; a whole number is a number too."""
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(isinstance(each, int) for each in value)
    return isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind))


def check(config: Config) -> None:
    """Refuse values that no run can work with, whatever the data and the machine.

    Raises:
        UserError: with the field, the value, the reason and a value that works.
    """
    types = typing.get_type_hints(Config)
    for name, value in vars(config).items():
        if typing.get_origin(types[name]) is Literal:
            if value not in (choices := typing.get_args(types[name])):
                raise unknown(name.replace("_", " "), str(value), choices)
        elif not is_a(types[name], value):
            kind = getattr(types[name], "__name__", types[name])
            raise UserError(f"{name}={value!r} is not of type {kind}: try {name}={getattr(Config, name)!r}")
        least, most, example = LIMITS.get(name, (0, 0, ""))
        if example and value is not None and not least <= value <= most:
            why = f"must be at most {most}" if value > most else f"must be at least {least}"
            if not math.isfinite(value):
                why = "is not a finite number"
            raise UserError(f"{flag(name)} {value} {why}: try {flag(name)} {example}")
    for name in ("workdir", "data_dir", "metrics_file"):
        if "://" in (getattr(config, name) or ""):
            raise UserError(
                f"{flag(name)} {getattr(config, name)} is an address, which this program cannot open: mount the "
                "bucket, for example with gcsfuse, and name its folder"
            )
    for name in ("checkpoint_every", "profile", "on_nan"):
        if getattr(config, name) not in (None, False, "stop") and not config.workdir:
            raise UserError(f"{flag(name)} needs a folder for its files: add --workdir runs/first")
    if config.global_batch_size and config.per_device_batch_size:
        raise UserError(
            f"--global-batch-size {config.global_batch_size} and --per-device-batch-size "
            f"{config.per_device_batch_size} exclude each other: give one of them"
        )
    if config.strategy == "single" and (config.devices or 1) > 1:
        raise UserError(
            f"--strategy single runs on one device, not {config.devices}: use --devices 1 or --strategy pmap"
        )
    if config.strategy == "single" and config.check_replicas:
        raise UserError(
            f"--check-replicas {config.check_replicas} compares devices, and --strategy single runs on one: use "
            "--strategy pmap"
        )
    if config.weight_decay and config.optimizer != "adamw":
        raise UserError(f"--weight-decay {config.weight_decay} has an effect only with adamw: use --optimizer adamw")
    epochs = config.switch_epochs
    if (config.schedule == "piecewise") != bool(epochs):
        raise UserError(
            "--schedule piecewise and --switch-epochs need each other: try --schedule piecewise --switch-epochs 3 7"
        )
    if list(epochs) != sorted(set(epochs)) or not all(1 <= epoch <= MOST for epoch in epochs):
        given = " ".join(map(str, epochs))
        raise UserError(f"--switch-epochs {given} must rise from 1 or more to at most {MOST}: try --switch-epochs 3 7")

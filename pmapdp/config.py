"""What a run does: one frozen dataclass. Type, default, limits and help of a setting stand together.

Lesson 14 teaches this file. `cli.py` makes the command line from it; `Config()` is the recipe digits.
A `Config` is valid once it exists: it checks itself when it is made, also by `dataclasses.replace`.
"""

import dataclasses
import math
import re
import typing
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from pmapdp.errors import UserError, shown, unknown

MOST = 2**31 - 1  # what JAX counts with
FLOAT32 = 3.4e38
RULES = {"optimizer": ("sgd", "momentum", "adam", "adamw"), "schedule": ("constant", "piecewise", "cosine")}
PYTHON_VALUE = " (a Python value)"  # at the end of the name of an optimizer or schedule that no file holds


def setting(
    section: str, default: Any, about: str, limits: tuple[float, float, str] | None = None, place: str | None = None
) -> Any:
    """A field of a dataclass that the command line sets.

    Args:
        section: where `--help` lists it.
        default: the value where none is given; `dataclasses.MISSING` where one must be given.
        about: its help.
        limits: the least and the most that it may be, and a value that works.
        place: how `--help` shows an argument that is given without a flag.
    """
    metadata = {"section": section, "about": about, "limits": limits, "place": place}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """All settings of a run. A `UserError` names a value that no run can work with."""

    recipe: str = setting("arguments", "digits", "One of those below (default: digits).", place="[RECIPE]")

    dataset: str = setting(
        "data",
        "digits",
        "digits (1,797 scans, built in), mnist, fashion-mnist (70,000), imdb (50,000 texts), reviews (made-up texts); "
        "of your own: my_data.npz, a folder of images with a subfolder for each class, or my_data.py:make.",
    )
    data_dir: str | None = setting(
        "data", None, "Folder of downloaded data sets; default: $PMAPDP_DATA, else a cache folder in your home."
    )

    model: str = setting(
        "model",
        "cnn",
        "For images: mlp (670k parameters), cnn (347k), convnet (49k, batch norm); for texts: text_mlp, transformer.",
    )
    dtype: Literal["float32", "bfloat16", "float64"] = setting(
        "model",
        "float32",
        "Type of the computation. With bfloat16 parameters and all-reduce stay in float32; float64 is for proofs.",
    )

    init_from: str | None = setting(
        "model", None, "Start from the weights in this folder of a run, or file of python -m pmapdp.export."
    )

    strategy: Literal["pmap", "jit", "shard_map", "single"] = setting(
        "parallel",
        "pmap",
        "Who splits the batch and averages: pmap, jit (the compiler), shard_map, or single (one device).",
    )
    devices: int | None = setting(
        "parallel",
        None,
        "Number of devices; default: all accelerators, or 8 simulated CPU devices where there is none.",
        (1, MOST, "8"),
    )
    global_batch_size: int | None = setting(
        "parallel",
        None,
        "Examples per update over all devices, any number: it need not divide by them; default: 64, or all.",
        (1, MOST, "64"),
    )
    per_device_batch_size: int | None = setting(
        "parallel", None, "Examples per update on one device (instead of the global batch size).", (1, MOST, "8")
    )
    accumulate: int = setting(
        "parallel",
        1,
        "Micro-batches per device and update, summed before the all-reduce; batch norm takes moments over each alone.",
        (1, MOST, "2"),
    )
    mesh: str | None = setting(
        "parallel",
        None,
        "Axes of the devices and their sizes, for example data=4,model=2 (jit); default: data, over all of them.",
    )
    layout: str = setting(
        "parallel",
        "data",
        "data (splits the batch), model (hidden and heads too), spatial (features too), or rules: hidden=model,...",
    )
    shard_state: Literal["none", "optimizer", "parameters"] = setting(
        "parallel",
        "none",
        "Split over the data axis: the optimizer state (ZeRO-1), or the parameters too (fully sharded; jit).",
    )

    optimizer: str = setting("optimization", "adam", "sgd, momentum (0.9), adam, adamw, or my_file.py:make (your own).")
    learning_rate: float = setting(
        "optimization",
        5e-3,
        "Step size (after the warm-up, before the schedule lowers it).",
        (0, FLOAT32, "0.001"),
    )
    schedule: str = setting(
        "optimization",
        "cosine",
        "constant, piecewise (times the switch factor at each switch epoch), cosine (to 0), or my_file.py:rate.",
    )
    switch_epochs: tuple[int, ...] = setting(
        "optimization",
        (),
        "Piecewise schedule: epochs, counted from 0, at whose start the learning rate changes.",
    )
    switch_factor: float = setting(
        "optimization",
        0.1,
        "Piecewise schedule: what the learning rate is multiplied by at each switch.",
        (1e-30, FLOAT32, "0.1"),
    )
    warmup_steps: int = setting(
        "optimization", 0, "Updates over which the learning rate first rises linearly from 0.", (0, MOST, "0")
    )
    scale_learning_rate: Literal["none", "linear", "sqrt"] = setting(
        "optimization",
        "none",
        "Multiply the learning rate by k = global / base batch size (linear, Goyal et al. 2017), or its root (sqrt).",
    )
    base_batch_size: int = setting(
        "optimization",
        64,
        "Global batch size for which the learning rate is meant, where it is scaled.",
        (1, MOST, "64"),
    )
    weight_decay: float = setting("optimization", 0.0, "Decoupled weight decay (adamw only).", (0, FLOAT32, "0.01"))
    clip_norm: float | None = setting(
        "optimization",
        None,
        "Scale the gradient down to this global norm where it is longer.",
        (1e-30, FLOAT32, "1.0"),
    )
    label_smoothing: float = setting(
        "optimization",
        0.1,
        "Share of the target spread over all classes, from 0 to below 1; in the train loss, not in the test loss.",
        (0, 0.999, "0.1"),
    )

    trainable: tuple[str, ...] = setting(
        "optimization", (), "Parts of the model that are trained, by name, for example head; default: all parameters."
    )

    epochs: int = setting("run", 20, "Passes over the training set; each visits every example once.", (1, MOST, "10"))
    steps: int | None = setting(
        "run", None, "Stop after this many updates, even in the middle of an epoch.", (1, MOST, "100")
    )
    best: str | None = setting(
        "run", None, "Metric whose best epoch is kept, for example highest:accuracy (the default), or lowest:loss."
    )
    patience: int | None = setting(
        "run", None, "Stop after this many epochs in a row that were no better than the best.", (1, MOST, "3")
    )
    seed: int = setting(
        "run", 0, "Determines the initial parameters, the order of the examples and dropout.", (0, 2**63 - 1, "0")
    )

    metrics_file: str | None = setting(
        "output", None, "Write results to this file, one JSON object a line (appended if the file exists)."
    )
    progress: bool = setting(
        "output", True, "Show a progress bar (on a terminal) or a line now and then (elsewhere) during each epoch."
    )
    draw_sharding: bool = setting("output", False, "Draw how the first batch is placed on the devices.")

    workdir: str | None = setting(
        "workdir",
        None,
        "Folder of the run: checkpoints, metrics, TensorBoard files, log. The same command again resumes there.",
    )
    checkpoint_every: int | None = setting(
        "workdir",
        None,
        "Write a checkpoint after this many updates, beside the one after each epoch.",
        (1, MOST, "100"),
    )
    keep_checkpoints: int = setting(
        "workdir", 3, "Number of newest checkpoints to keep, beside that of the best epoch.", (1, MOST, "3")
    )
    check_replicas: int | None = setting(
        "workdir",
        None,
        "Compare the devices' copies of the state after this many updates; where they differ, stop (exit status 5).",
        (1, MOST, "100"),
    )
    on_nan: Literal["stop", "rollback"] = setting(
        "workdir",
        "stop",
        "A loss that is not finite: stop (exit status 3), or roll back to the last checkpoint and skip the batches.",
    )
    profile: bool = setting(
        "workdir",
        False,
        "Record a trace of a few updates for Perfetto and TensorBoard, and print the ten longest operations.",
    )
    compile_cache: bool = setting(
        "workdir", True, "Keep compiled programs in a cache folder, so that the next start is faster."
    )

    def __post_init__(self) -> None:
        check_values(self)
        check_together(self)


def flag(field: str) -> str:
    """The command-line flag of a field."""
    return "--" + field.replace("_", "-")


def plain(value: Any) -> Any:
    """A value without what a subclass adds to texts and numbers, for example an enum, or a number of NumPy; of a list,
    which is all that JSON has, the tuple."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    if isinstance(value, tuple | list):
        return tuple(map(plain, value[:]))  # the slice of a subclass is plain
    return value


def is_a(kind: Any, value: Any) -> bool:
    """Whether a value is of the type of a field, as `isinstance`; a whole number is a number too."""
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(is_a(typing.get_args(kind)[0], each) for each in value)
    if isinstance(value, bool) and kind is not bool:
        return False
    return isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind))


def check_values(config: Config) -> None:
    """Refuse a value that is of another type or beyond its limits; the `UserError` names one that works. Those of a
    subclass, and whole numbers in the place of real ones, become what the type says."""
    types = typing.get_type_hints(Config)
    for field in dataclasses.fields(config):
        name, value, kind = field.name, plain(getattr(config, field.name)), types[field.name]
        if typing.get_origin(kind) is Literal:
            if not isinstance(value, str) or value not in typing.get_args(kind):
                given = value if isinstance(value, str) else shown(value)
                raise unknown(name.replace("_", " "), given, typing.get_args(kind))
        elif not is_a(kind, value):
            kind = getattr(kind, "__name__", kind)
            works = str(value) if isinstance(value, PurePath) else field.default
            raise UserError(f"{name}={shown(value)} is not of type {kind}: try {name}={works!r}")
        limits = field.metadata.get("limits")
        if limits and value is not None and not limits[0] <= value <= limits[1]:
            least, most, example = limits
            why = f"must be at most {most}" if value > most else f"must be at least {least}"
            if isinstance(value, float) and not math.isfinite(value):
                why = "is not a finite number"
            raise UserError(f"{flag(name)} {shown(value)} {why}: try {flag(name)} {example}")
        if value == "":
            raise UserError(f"{flag(name)} '' is empty: leave it out")
        number = isinstance(value, int) and isinstance(0.0, kind)
        object.__setattr__(config, name, float(value) if number else value)  # the way of a frozen dataclass


def check_together(config: Config) -> None:
    """Refuse settings that do not go together."""
    for name in ("workdir", "data_dir", "metrics_file", "init_from"):
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
            f"{config.per_device_batch_size} exclude each other: give one of them, and None for the other"
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
    for kind, ours in RULES.items():
        if (name := getattr(config, kind)) not in ours and ".py:" not in name and not name.endswith(PYTHON_VALUE):
            raise unknown(kind, name, [*ours, f"my_file.py:make (your own; from Python {kind}=...)"])
    if config.best is not None and not re.fullmatch("(highest|lowest):.+", config.best):
        raise UserError(
            f"--best {config.best!r:.100} does not say which is better: try highest:accuracy or lowest:loss"
        )
    epochs = config.switch_epochs
    if (config.schedule == "piecewise") != bool(epochs):
        raise UserError(
            "--schedule piecewise and --switch-epochs need each other: try --schedule piecewise --switch-epochs 3 7"
        )
    if list(epochs) != sorted(set(epochs)) or not all(1 <= epoch <= MOST for epoch in epochs):
        given = " ".join(map(str, epochs))
        raise UserError(f"--switch-epochs {given} must rise from 1 or more to at most {MOST}: try --switch-epochs 3 7")

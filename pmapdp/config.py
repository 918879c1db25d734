"""What a run does: one frozen dataclass. Type, default, limits and help of a setting stand together.

Lesson 14 teaches this file. `cli.py` makes the command line from it; `Config()` is the recipe digits. A `Config` checks
itself when it is made, also by `dataclasses.replace`.
"""

import dataclasses
import functools
import math
import re
import types
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
    section: str,
    default: Any,
    about: str,
    limits: tuple[float, float, str] | None = None,
    *,
    fixed: bool = False,
    place: str | None = None,
) -> Any:
    """Declare a field of a dataclass that the command line sets.

    Args:
        section: where `--help` lists it.
        default: the value if none is given; `dataclasses.MISSING` if one must be given.
        about: its help.
        limits: the least and the most that a number may be, and a value that works.
        fixed: the results of a run depend on it, so a resumed run can't change it.
        place: how `--help` shows an argument that is given without a flag.
    """
    metadata = {"section": section, "about": about, "limits": limits, "fixed": fixed, "place": place}
    return dataclasses.field(default=default, metadata=metadata)


fixed = functools.partial(setting, fixed=True)


@dataclass(frozen=True)
class Config:
    """All settings of a run. A `UserError` names a value that no run can work with."""

    recipe: str = setting("arguments", "digits", "One of those below (default: digits).", place="[RECIPE]")

    dataset: str = fixed(
        "data",
        "digits",
        "digits (1,797 scans, built in), mnist, fashion-mnist (70,000), imdb (50,000 texts), reviews (made-up texts); "
        "or yours: my_data.npz, a folder of images with a subfolder for each class, or my_data.py:make.",
    )
    data_dir: str | None = setting(
        "data", None, "Folder of downloaded data sets; default: $PMAPDP_DATA, else in your home."
    )

    model: str = fixed(
        "model",
        "cnn",
        "For images: mlp (670k parameters), cnn (347k), convnet (49k, batch norm); for texts: text_mlp, transformer; "
        "or yours: my_file.py:Net.",
    )
    dtype: Literal["float32", "bfloat16", "float64"] = fixed(
        "model", "float32", "Type of the computation; with bfloat16 the parameters stay in float32."
    )
    init_from: str | None = fixed("model", None, "Start from the weights of this run's folder, or exported file.")

    # The keys of steps.STRATEGIES, written out so that a type checker knows them and a flag doesn't import JAX.
    strategy: Literal["pmap", "jit", "shard_map", "single"] = setting(
        "parallel", "pmap", "How the batch is split and averaged; single runs on one device."
    )
    devices: int | None = setting(
        "parallel", None, "Default: all accelerators, or else 8 simulated CPU devices.", (1, MOST, "8")
    )
    global_batch_size: int | None = setting(
        "parallel", None, "Examples per update over all devices, any number; default: 64, or all.", (1, MOST, "64")
    )
    per_device_batch_size: int | None = setting(
        "parallel", None, "Examples per update on one device, instead.", (1, MOST, "8")
    )
    accumulate: int = fixed(
        "parallel", 1, "Micro-batches per update; batch norm takes moments over each alone.", (1, MOST, "2")
    )
    mesh: str | None = setting(
        "parallel", None, "Axes of the devices and their sizes, for example data=4,model=2 (jit)."
    )
    layout: str = setting(
        "parallel",
        "data",
        "data, model (splits hidden and heads too), spatial (features too), or rules: hidden=model,...",
    )
    shard_state: Literal["none", "optimizer", "parameters"] = setting(
        "parallel",
        "none",
        "Split over the data axis: the optimizer state (ZeRO-1), or parameters too (fully sharded; jit).",
    )

    optimizer: str = fixed("optimization", "adam", "sgd, momentum (0.9), adam, adamw, or yours: my_file.py:make.")
    learning_rate: float = fixed(
        "optimization", 5e-3, "Rate after the warm-up, which the schedule lowers.", (0, FLOAT32, "0.001")
    )
    schedule: str = fixed("optimization", "cosine", "constant, piecewise, cosine (to 0), or yours: my_file.py:rate.")
    switch_epochs: tuple[int, ...] = fixed(
        "optimization", (), "Piecewise schedule: epochs, from 0, at whose start the rate changes."
    )
    switch_factor: float = fixed(
        "optimization", 0.1, "Piecewise schedule: factor of the rate at each switch.", (1e-30, FLOAT32, "0.1")
    )
    warmup_steps: int = fixed("optimization", 0, "Updates over which the rate first rises from 0.", (0, MOST, "0"))
    scale_learning_rate: Literal["none", "linear", "sqrt"] = fixed(
        "optimization", "none", "Multiply the rate by k = global / base batch size (linear), or its root (sqrt)."
    )
    base_batch_size: int = fixed(
        "optimization", 64, "Global batch size for which a learning rate that is scaled is meant.", (1, MOST, "64")
    )
    weight_decay: float = fixed("optimization", 0.0, "Decoupled weight decay (adamw only).", (0, FLOAT32, "0.01"))
    clip_norm: float | None = fixed(
        "optimization", None, "Scale a longer gradient down to this global norm.", (1e-30, FLOAT32, "1.0")
    )
    label_smoothing: float = fixed(
        "optimization", 0.1, "Share of the target spread over all classes, in the train loss alone.", (0, 0.999, "0.1")
    )
    trainable: tuple[str, ...] = fixed(
        "optimization", (), "Parts of the model to train, for example head; default: all."
    )

    epochs: int = fixed("run", 20, "Passes over the training set.", (1, MOST, "10"))
    steps: int | None = setting("run", None, "Stop after this many updates.", (1, MOST, "100"))
    best: str | None = fixed(
        "run", None, "Metric whose best epoch is kept: highest:accuracy (the default), or lowest:loss, ..."
    )
    patience: int | None = fixed("run", None, "Stop after this many epochs without a better one.", (1, MOST, "3"))
    seed: int = fixed("run", 0, "Determines initial parameters, order of examples and dropout.", (0, 2**63 - 1, "0"))

    metrics_file: str | None = setting("output", None, "Append results to this file, one JSON object a line.")
    progress: bool = setting("output", True, "Show a progress bar on a terminal, elsewhere a line now and then.")
    draw_sharding: bool = setting("output", False, "Draw how the first batch is placed on the devices.")

    workdir: str | None = setting(
        "workdir", None, "Folder of the run: checkpoints, metrics, log. The same command again resumes there."
    )
    checkpoint_every: int | None = setting(
        "workdir", None, "Write a checkpoint after this many updates, and after each epoch.", (1, MOST, "100")
    )
    keep_checkpoints: int = setting("workdir", 3, "Newest checkpoints to keep, and the best epoch's.", (1, MOST, "3"))
    check_replicas: int | None = setting(
        "workdir",
        None,
        "Compare the devices' copies of the state after this many updates; stop if they differ.",
        (1, MOST, "100"),
    )
    profile: bool = setting("workdir", False, "Trace a few updates, and print the ten longest operations.")
    compile_cache: bool = setting("workdir", True, "Keep compiled programs, so that the next start is faster.")

    def __post_init__(self) -> None:
        check_values(self)
        check_together(self)


def flag(field: str) -> str:
    """Return the command-line flag of a field."""
    return "--" + field.replace("_", "-")


def check_values(config: Config) -> None:
    """Refuse a value of another type or beyond its limits. The `UserError` names one that works."""
    hints = typing.get_type_hints(Config)
    for field in dataclasses.fields(config):
        name, hint = field.name, hints[field.name]
        value: Any = getattr(config, name)
        if typing.get_origin(hint) is Literal:
            if value not in typing.get_args(hint):
                raise unknown(name.replace("_", " "), str(value), typing.get_args(hint))
            continue
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (typing.get_origin(hint) or hint,)
        if not isinstance(value, (*kinds, int) if float in kinds else kinds):
            kind = getattr(hint, "__name__", hint)
            works = str(value) if isinstance(value, PurePath) else field.default
            raise UserError(f"{name}={shown(value)} is not of type {kind}: try {name}={works!r}")
        if value == "":
            raise UserError(f"{flag(name)} '' is empty: leave it out")
        if field.metadata["limits"] and value is not None:
            least, most, example = field.metadata["limits"]
            if not least <= value <= most:  # true of a NaN, too
                why = f"must be at least {least}" if value < least else f"must be at most {most}"
                if isinstance(value, float) and not math.isfinite(value):
                    why = "is not a finite number"
                raise UserError(f"{flag(name)} {value} {why}: try {flag(name)} {example}")


def check_together(config: Config) -> None:
    """Refuse settings that do not go together."""
    for name in ("checkpoint_every", "profile"):
        if getattr(config, name) and not config.workdir:
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
            raise unknown(kind, name, [*ours, f"my_file.py:make (yours; from Python {kind}=...)"])
    if config.best is not None and not re.fullmatch("(highest|lowest):.+", config.best):
        raise UserError(f"--best {config.best!r} doesn't say which is better: try highest:accuracy or lowest:loss")
    epochs = config.switch_epochs
    if (config.schedule == "piecewise") != bool(epochs):
        raise UserError(
            "--schedule piecewise and --switch-epochs need each other: try --schedule piecewise --switch-epochs 3 7"
        )
    if list(epochs) != sorted(set(epochs)) or not all(1 <= epoch <= MOST for epoch in epochs):
        given = " ".join(map(str, epochs))
        raise UserError(f"--switch-epochs {given} must rise from 1 or more to at most {MOST}: try --switch-epochs 3 7")

"""The settings of a run, in one frozen dataclass, each with its type, default, limits and help.

`cli.py` makes the command line from it, and `Config()` is the recipe digits. A `Config`
checks itself when it's made, even by `dataclasses.replace`.
"""

import dataclasses
import functools
import json
import math
import re
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

from pmapdp.errors import UserError, unknown

MAX_INT = 2**31 - 1  # JAX counts in int32
MAX_FLOAT = 3.4e38


def setting(
    section: str,  # of --help
    default: Any,  # `dataclasses.MISSING`: it must be given
    about: str,  # its help
    limits: tuple[float, float, str]
    | None = None,  # the least and the most, and a value that works
    *,
    fixed: bool = False,  # the results of a run depend on it, so a resumed run can't change it
    place: str | None = None,  # how --help shows an argument that has no flag
) -> Any:
    """Declare a field of a dataclass that the command line sets."""
    metadata = {
        "section": section,
        "about": about,
        "limits": limits,
        "fixed": fixed,
        "place": place,
    }
    return dataclasses.field(default=default, metadata=metadata)


fixed = functools.partial(setting, fixed=True)


@dataclass(frozen=True)
class Config:
    """All settings of a run. A `UserError` names a value that no run can work with."""

    recipe: str = setting(
        "arguments", "digits", "One of the recipes (default: digits).", place="[RECIPE]"
    )

    dataset: str = fixed(
        "data",
        "digits",
        "digits (1,797 scans, built in), mnist, fashion-mnist (70,000), imdb (50,000 texts), reviews (made-up texts); "
        "or yours: my_data.npz, a folder of images with a subfolder for each class, or my_data.py:make.",
    )
    data_dir: str | None = setting(
        "data", None, "Folder of downloaded data; default: $PMAPDP_DATA, else at home."
    )

    model: str = fixed(
        "model",
        "cnn",
        "For images: mlp (670k parameters), cnn (347k), convnet (49k, batch norm); for texts: text_mlp, transformer; "
        "or yours: my_file.py:Net.",
    )
    dtype: Literal["float32", "bfloat16", "float64"] = fixed(
        "model",
        "float32",
        "Type of the computation; with bfloat16 the parameters stay in float32.",
    )
    init_from: str | None = fixed(
        "model", None, "Start from the weights of this run's folder, or exported file."
    )

    # The keys of steps.STRATEGIES, written out so that a type checker knows them and a
    # flag doesn't import JAX.
    strategy: Literal["pmap", "shard_map", "jit", "single"] = setting(
        "parallel",
        "pmap",
        "How the batch is split and averaged; single runs on one device.",
    )
    devices: int | None = setting(
        "parallel",
        None,
        "Number of devices; default: all accelerators, or 8 simulated CPU devices.",
        (1, MAX_INT, "8"),
    )
    global_batch_size: int | None = fixed(
        "parallel",
        None,
        "Examples per update over all devices; default: 64, or all if fewer.",
        (1, MAX_INT, "64"),
    )
    per_device_batch_size: int | None = setting(
        "parallel",
        None,
        "Examples per update on one device; give this or the global size.",
        (1, MAX_INT, "8"),
    )
    accumulate: int = fixed(
        "parallel",
        1,
        "Micro-batches per update; batch norm takes moments over each alone.",
        (1, MAX_INT, "2"),
    )
    mesh: str | None = setting(
        "parallel",
        None,
        "Axes of the devices and their sizes, as data=4,model=2 (jit).",
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

    optimizer: str = fixed(
        "optimization",
        "adam",
        "sgd, momentum (0.9), adam, adamw, or yours: my_file.py:make.",
    )
    learning_rate: float = fixed(
        "optimization",
        5e-3,
        "Peak learning rate, reached at the end of any warm-up.",
        (0, MAX_FLOAT, "0.001"),
    )
    schedule: str = fixed(
        "optimization",
        "cosine",
        "constant, piecewise, cosine (to 0), or yours: my_file.py:rate.",
    )
    switch_epochs: tuple[int, ...] = fixed(
        "optimization",
        (),
        "Piecewise schedule: the rate changes at the start of these epochs (from 0).",
    )
    switch_factor: float = fixed(
        "optimization",
        0.1,
        "Piecewise schedule: factor of the rate at each switch.",
        (1e-30, MAX_FLOAT, "0.1"),
    )
    warmup_steps: int = fixed(
        "optimization",
        0,
        "Updates over which the rate first rises from 0.",
        (0, MAX_INT, "0"),
    )
    scale_learning_rate: Literal["none", "linear", "sqrt"] = fixed(
        "optimization",
        "none",
        "Multiply the rate by k = global / base batch size (linear), or its root (sqrt).",
    )
    base_batch_size: int = fixed(
        "optimization",
        64,
        "Global batch size for which you chose the rate; scaling starts there.",
        (1, MAX_INT, "64"),
    )
    weight_decay: float = fixed(
        "optimization",
        0.0,
        "Decoupled weight decay (adamw only).",
        (0, MAX_FLOAT, "0.01"),
    )
    clip_norm: float | None = fixed(
        "optimization",
        None,
        "Scale the gradient down to this global norm if it is longer.",
        (1e-30, MAX_FLOAT, "1.0"),
    )
    label_smoothing: float = fixed(
        "optimization",
        0.1,
        "Share of the target spread over all classes, in the train loss alone.",
        (0, 0.999, "0.1"),
    )
    trainable: tuple[str, ...] = fixed(
        "optimization", (), "Parts of the model to train, as head; default: all."
    )

    epochs: int = fixed("run", 20, "Passes over the training set.", (1, MAX_INT, "10"))
    steps: int | None = setting(
        "run", None, "Stop after this many updates.", (1, MAX_INT, "100")
    )
    best: str | None = fixed(
        "run",
        None,
        "Metric whose best epoch is kept, as lowest:loss; default: highest accuracy or weighted_accuracy.",
    )
    patience: int | None = fixed(
        "run",
        None,
        "Stop after this many epochs without a better one.",
        (1, MAX_INT, "3"),
    )
    seed: int = fixed(
        "run",
        0,
        "Determines initial parameters, order of examples and dropout.",
        (0, 2**63 - 1, "0"),
    )

    metrics_file: str | None = setting(
        "output", None, "Append results to this file, one JSON object a line."
    )
    progress: bool = setting(
        "output",
        True,
        "Show a progress bar on a terminal, elsewhere a line now and then.",
    )
    draw_sharding: bool = setting(
        "output", False, "Draw how the first batch is placed on the devices."
    )

    workdir: str | None = setting(
        "workdir",
        None,
        "Folder of checkpoints and log. The same command again resumes.",
    )
    checkpoint_every: int | None = setting(
        "workdir",
        None,
        "Write a checkpoint every so many updates, and after each epoch.",
        (1, MAX_INT, "100"),
    )
    keep_checkpoints: int = setting(
        "workdir",
        3,
        "Newest checkpoints to keep, and the best epoch's.",
        (1, MAX_INT, "3"),
    )
    check_replicas: int | None = setting(
        "workdir",
        None,
        "Every so many updates, stop if the devices' copies of the state differ.",
        (1, MAX_INT, "100"),
    )
    profile: bool = setting(
        "workdir", False, "Trace a few updates, and print the ten longest operations."
    )
    compile_cache: bool = setting(
        "workdir", True, "Keep compiled programs, so that the next start is faster."
    )

    def __post_init__(self) -> None:
        check_values(self)
        check_together(self)


def config_from_json(settings: dict[str, Any]) -> Config:
    """Make a `Config` from settings that were written as JSON, and check their types."""
    hints = typing.get_type_hints(Config)
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in hints:
            raise unknown("setting", name, hints)
        values[name] = tuple(value) if isinstance(value, list) else value
        if not is_of_type(values[name], hints[name]):
            right_type = str(getattr(hints[name], "__name__", hints[name]))
            raise UserError(
                f"{name} is {json.dumps(value):.100} there, which is no {right_type}"
            )
    return Config(**values)


def is_of_type(value: Any, hint: Any) -> bool:
    """Return if a value from JSON fits the type of a setting."""
    parts = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is Literal:
        return True  # `check_values` looks if it's one of them
    if origin is tuple:
        return isinstance(value, tuple) and all(
            is_of_type(item, parts[0]) for item in value
        )
    if origin is types.UnionType:
        return any(is_of_type(value, part) for part in parts)
    if hint is float:
        return type(value) in (float, int)
    return type(value) is hint


def flag(field: str) -> str:
    """Return the command-line flag of a field."""
    return "--" + field.replace("_", "-")


def check_values(config: Any) -> None:
    """Refuse a value beyond its limits. The `UserError` names one that works."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name, value, limits = (
            field.name,
            getattr(config, field.name),
            field.metadata["limits"],
        )
        if typing.get_origin(hints[name]) is Literal and value not in typing.get_args(
            hints[name]
        ):
            raise unknown(
                name.replace("_", " "), str(value), typing.get_args(hints[name])
            )
        if value == "":
            raise UserError(f"{flag(name)} '' is empty: leave it out")
        if limits and value is not None:
            least, most, example = limits
            if not least <= value <= most:  # also true of a NaN
                why = (
                    f"must be at least {least}"
                    if value < least
                    else f"must be at most {most}"
                )
                if isinstance(value, float) and not math.isfinite(value):
                    why = "is not a finite number"
                raise UserError(
                    f"{flag(name)} {value} {why}: try {flag(name)} {example}"
                )


def check_together(config: Config) -> None:
    """Refuse settings that don't go together."""
    for name in ("checkpoint_every", "profile"):
        if getattr(config, name) and not config.workdir:
            raise UserError(
                f"{flag(name)} needs a folder for its files: add --workdir runs/first"
            )
    if config.global_batch_size and config.per_device_batch_size:
        raise UserError(
            f"--global-batch-size {config.global_batch_size} and --per-device-batch-size "
            f"{config.per_device_batch_size} exclude each other: give one of them, and None for the other"
        )
    if config.strategy == "single" and (config.devices or 1) > 1:
        raise UserError(
            f"--strategy single runs on one device, not {config.devices}: use --devices 1 or --strategy pmap"
        )
    if config.weight_decay and config.optimizer != "adamw":
        raise UserError(
            f"--weight-decay {config.weight_decay} has an effect only with adamw: use --optimizer adamw"
        )
    if config.best is not None and not re.fullmatch("(highest|lowest):.+", config.best):
        raise UserError(
            f"--best {config.best!r} doesn't say which is better: try highest:accuracy or lowest:loss"
        )
    if (config.schedule == "piecewise") != bool(config.switch_epochs):
        raise UserError(
            "--schedule piecewise and --switch-epochs need each other: try --schedule piecewise --switch-epochs 3 7"
        )

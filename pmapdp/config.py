"""The settings of a run, each with its type, default, bounds and help.

The defaults are the recipe `digits`. `flags.py` makes the command line from this file.
Every new `Config` checks its values, also one that `dataclasses.replace` makes.
"""

import dataclasses
import inspect
import math
import os
import re
import shlex
import typing
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from pmapdp.errors import UserError, unknown_name

# `steps/` has a file for each. This file doesn't import them, so it needs no JAX.
StrategyName = Literal["pmap", "shard_map", "jit", "single"]

T = TypeVar("T")

SCHEDULES = ("constant", "piecewise", "cosine")  # in `optimizer.py`

MAX_INT = 2**31 - 1  # JAX counts in int32
MAX_FLOAT = 3.4e38
# Settings of 0.3, and what to do instead. A config.json of 0.3 has them, too.
REMOVED_SETTINGS = {"check_replicas": "leave it out, because nothing replaces it"}


def setting(
    section: str,
    default: Any,
    help: str,
    *,
    bounds: tuple[float, float] | None = None,
    example: str | None = None,
    fixed_on_resume: bool = False,
    metavar: str | None = None,
    positional: str | None = None,
) -> Any:
    """Declare a field of a dataclass that the command line sets.

    Args:
        section: The heading in `--help`.
        default: Its value if it isn't given. `dataclasses.MISSING`: it must be given.
        help: What `--help` says about it.
        bounds: The least and the greatest value.
        example: A value that works, for error messages. A setting with bounds has one.
        fixed_on_resume: The results of a run depend on it, so a resumed run can't
            change it.
        metavar: How `--help` shows its value, as FILE. The default follows from the
            type.
        positional: How `--help` shows it, if it's an argument without a flag.
    """
    metadata = {
        "section": section,
        "help": help,
        "bounds": bounds,
        "example": example,
        "fixed_on_resume": fixed_on_resume,
        "metavar": metavar,
        "positional": positional,
    }
    return dataclasses.field(default=default, metadata=metadata)


def list_settings(config: type[T]) -> type[T]:
    """Add the help of each field to a docstring, where `help(Config)` shows it."""
    settings = fields(config)  # type: ignore[arg-type] # it's a dataclass
    lines = [f"    {field.name}: {field.metadata['help']}" for field in settings]
    documentation = inspect.cleandoc(config.__doc__ or "")
    text, heading, example = documentation.partition("\n\nExample:")
    attributes = "\n".join([f"{text}\n\nAttributes:", *lines])
    config.__doc__ = f"{attributes}{heading}{example}"
    return config


@list_settings
@dataclass(frozen=True)
class Config:
    """The settings of a run. Raises `UserError` if a setting is invalid.

    Each field is a flag of `python -m pmapdp.train`, with underscores for hyphens. You
    need these first: `model`, `dataset`, `strategy`, `devices`, `global_batch_size`,
    `epochs`, `learning_rate`, `dtype`, `workdir` and `best`. `help(Config)` says what
    each field does, and so does docs/flags.md in pmapdp's repository.
    `dataclasses.replace` makes a changed copy.

    Example:
        from dataclasses import replace

        first = Config(strategy="jit", epochs=5)  # --strategy jit --epochs 5
        longer = replace(first, epochs=10)
    """

    recipe: str = setting(
        "arguments",
        "digits",
        "Name of a recipe, whose settings the other flags change. From Python, begin "
        "with pmapdp.recipes.RECIPES[name].config. Default: digits.",
        positional="[RECIPE]",
    )

    dataset: str = setting(
        "data",
        "digits",
        "A built-in data set: digits (1,797 scans), mnist, fashion-mnist (70,000 "
        "images), imdb (50,000 texts), reviews (made-up texts). Or yours: "
        "my_data.npz, a folder of images with a subfolder for each class, or "
        "my_data.py:make.",
        fixed_on_resume=True,
    )
    data_dir: str | None = setting(
        "data",
        None,
        "Folder of downloaded data. Default: $PMAPDP_DATA, or ~/.cache/pmapdp/data.",
        metavar="FOLDER",
    )

    model: str = setting(
        "model",
        "cnn",
        "A built-in network: for images mlp (670k parameters), cnn (347k) or convnet "
        "(49k, batch norm), for texts text_mlp or transformer. Or yours: "
        "my_file.py:Net.",
        fixed_on_resume=True,
    )
    dtype: Literal["float32", "bfloat16", "float64"] = setting(
        "model",
        "float32",
        "Type of the computation. With bfloat16 the parameters stay in float32.",
        fixed_on_resume=True,
    )
    init_from: str | None = setting(
        "model",
        None,
        "Exported file, or folder of a run, whose weights training starts from. "
        "Default: random weights.",
        fixed_on_resume=True,
        metavar="FILE",
    )

    strategy: StrategyName = setting(
        "parallel",
        "pmap",
        "How to split the batch over the devices, or single for one device. The result "
        "is the same.",
    )
    devices: int | None = setting(
        "parallel",
        None,
        "How many devices to train on. Default: all accelerators, or 8 simulated CPU "
        "devices.",
        bounds=(1, MAX_INT),
        example="8",
    )
    # You give at most one of the next two. The global size decides the result, so a
    # resumed run can't change it. The size per device may change with the devices.
    global_batch_size: int | None = setting(
        "parallel",
        None,
        "Examples per update, over all devices. Default: 64, or all if fewer.",
        bounds=(1, MAX_INT),
        example="64",
        fixed_on_resume=True,
    )
    per_device_batch_size: int | None = setting(
        "parallel",
        None,
        "Examples per update on each device, instead of a global batch size.",
        bounds=(1, MAX_INT),
        example="8",
    )
    accumulate: int = setting(
        "parallel",
        1,
        "Micro-batches per update, computed one after the other to save memory. Each "
        "has batch-norm moments of its own.",
        bounds=(1, MAX_INT),
        example="2",
        fixed_on_resume=True,
    )
    # The next three say where arrays lie, which changes no result. So a resumed run may
    # change them.
    mesh: str | None = setting(
        "parallel",
        None,
        "Names and sizes of the device axes, such as data=4,model=2. Needs jit. "
        "Default: one axis, data.",
    )
    layout: str = setting(
        "parallel",
        "data",
        "Axes of the model to split over the mesh: data (none), model (hidden units "
        "and heads), spatial (also input features), or rules such as hidden=model.",
    )
    shard_state: Literal["none", "optimizer", "parameters"] = setting(
        "parallel",
        "none",
        "State to split over the devices: the optimizer's (ZeRO-1), or also the "
        "parameters (fully sharded). Needs jit.",
    )

    optimizer: str = setting(
        "optimization",
        "adam",
        "sgd, momentum (0.9), adam or adamw. Or yours: my_file.py:make.",
        fixed_on_resume=True,
    )
    learning_rate: float = setting(
        "optimization",
        5e-3,
        "Peak learning rate, reached at the end of any warm-up.",
        bounds=(0, MAX_FLOAT),
        example="0.001",
        fixed_on_resume=True,
    )
    schedule: str = setting(
        "optimization",
        "cosine",
        "How the learning rate changes: constant, piecewise or cosine (to 0). Or "
        "yours: my_file.py:rate.",
        fixed_on_resume=True,
    )
    switch_epochs: tuple[int, ...] = setting(
        "optimization",
        (),
        "Epochs, counted from 0, at whose start a piecewise schedule changes the rate.",
        fixed_on_resume=True,
    )
    # The least factor is above 0, because after a switch to 0 nothing would be learned.
    switch_factor: float = setting(
        "optimization",
        0.1,
        "Factor by which a piecewise schedule multiplies the rate at each switch.",
        bounds=(1e-30, MAX_FLOAT),
        example="0.1",
        fixed_on_resume=True,
    )
    warmup_steps: int = setting(
        "optimization",
        0,
        "Updates over which the rate first rises from 0 to its peak.",
        bounds=(0, MAX_INT),
        example="0",
        fixed_on_resume=True,
    )
    scale_learning_rate: Literal["none", "linear", "sqrt"] = setting(
        "optimization",
        "none",
        "Multiply the rate by k = global / base batch size (linear), or by the root of "
        "k (sqrt).",
        fixed_on_resume=True,
    )
    base_batch_size: int = setting(
        "optimization",
        64,
        "Global batch size for which you chose the rate, if the rate is scaled.",
        bounds=(1, MAX_INT),
        example="64",
        fixed_on_resume=True,
    )
    weight_decay: float = setting(
        "optimization",
        0.0,
        "Decoupled weight decay: each update also shrinks every weight, by the "
        "learning rate times this. Needs adamw.",
        bounds=(0, MAX_FLOAT),
        example="0.01",
        fixed_on_resume=True,
    )
    clip_norm: float | None = setting(
        "optimization",
        None,
        "Largest norm of the gradient of all parameters. A larger gradient is scaled "
        "down to it. Default: no limit.",
        bounds=(1e-30, MAX_FLOAT),
        example="1.0",
        fixed_on_resume=True,
    )
    # 0.1 is from Szegedy et al., "Rethinking the Inception architecture", CVPR 2016. On
    # digits it lifts the test accuracy from 97 to 98 %, and doubles the test loss,
    # because the network is less sure of itself. The bound is below 1, where the target
    # would no longer depend on the class.
    label_smoothing: float = setting(
        "optimization",
        0.1,
        "Share of the target that training spreads over all classes.",
        bounds=(0, 0.999),
        example="0.1",
        fixed_on_resume=True,
    )
    trainable: tuple[str, ...] = setting(
        "optimization",
        (),
        "Names of the parts of the model to train, such as head. Default: all.",
        fixed_on_resume=True,
    )

    epochs: int = setting(
        "run",
        20,
        "Passes over the training set.",
        bounds=(1, MAX_INT),
        example="10",
        fixed_on_resume=True,
    )
    # It ends the run early and leaves the schedule as it is. So it isn't fixed: a run
    # that ended after 100 updates may go on to 200.
    steps: int | None = setting(
        "run",
        None,
        "Stop after this many updates. The schedule stays as it is. Default: all that "
        "the epochs have.",
        bounds=(1, MAX_INT),
        example="100",
    )
    best: str | None = setting(
        "run",
        None,
        "Metric by which the best epoch is chosen and kept, such as lowest:loss. "
        "Default: the highest accuracy, or the lowest loss if there are no classes.",
        fixed_on_resume=True,
    )
    patience: int | None = setting(
        "run",
        None,
        "Stop after this many epochs without a better one. Default: never.",
        bounds=(1, MAX_INT),
        example="3",
        fixed_on_resume=True,
    )
    seed: int = setting(
        "run",
        0,
        "Seed of the initial parameters, the order of examples and dropout.",
        bounds=(0, 2**63 - 1),  # an int64's
        example="0",
        fixed_on_resume=True,
    )

    metrics_file: str | None = setting(
        "output",
        None,
        "File to which results are appended, one JSON object per line. Default: none.",
        metavar="FILE",
    )
    log_every: int | None = setting(
        "output",
        None,
        "Updates between two losses in the metrics files and TensorBoard. Default: one "
        "loss per epoch, and in TensorBoard also one every 10 updates.",
        bounds=(1, MAX_INT),
        example="10",
    )
    progress: bool = setting(
        "output",
        True,
        "Show a progress bar on a terminal, and elsewhere a line now and then.",
    )
    draw_sharding: bool = setting(
        "output", False, "Draw how the first batch is placed on the devices."
    )

    workdir: str | None = setting(
        "workdir",
        None,
        "Folder of checkpoints and logs. The same command again resumes. Default: "
        "nothing is kept.",
        metavar="FOLDER",
    )
    checkpoint_every: int | None = setting(
        "workdir",
        None,
        "Updates between two checkpoints. Each epoch ends with one anyway.",
        bounds=(1, MAX_INT),
        example="100",
    )
    keep_checkpoints: int = setting(
        "workdir",
        3,
        "Number of newest checkpoints to keep, besides the best epoch's.",
        bounds=(1, MAX_INT),
        example="3",
    )
    accept_changed_functions: bool = setting(
        "workdir",
        False,
        "Resume a run although the code of one of your functions has changed.",
    )
    profile: bool = setting(
        "workdir", False, "Trace ten updates into the workdir, for ui.perfetto.dev."
    )
    compile_cache: bool = setting(
        "workdir", True, "Keep compiled programs, so that the next start is faster."
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            # Settings are frozen, and written as JSON.
            if isinstance(value, list):
                value = tuple(value)
            elif isinstance(value, os.PathLike):
                value = os.fspath(value)
            object.__setattr__(self, field.name, value)
            check_value(field, value)
        check_together(self)
        check_effects(self, find_unused(self))


def config_from_json(settings: dict[str, Any]) -> Config:
    """Make a `Config` from settings in JSON."""
    names = [field.name for field in fields(Config)]
    values = {}
    for name, value in settings.items():
        if name in REMOVED_SETTINGS:
            continue  # it changed no result
        if name not in names:
            raise unknown_name("setting", name, names)
        values[name] = value
    return Config(**values)


def flag(field: str, value: Any = None) -> str:
    """Return the command-line flag of a field, with a value if one is given."""
    name = "--" + field.replace("_", "-")
    if value is None:
        return name
    return f"{name} {shlex.quote(str(value))}"


def check_value(field: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a value that its setting can't have. The error names one that works."""
    hint: Any = field.type
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise unknown_name(field.name.replace("_", " "), str(value), choices)
    elif not has_type(value, hint):
        type_name = hint.__name__ if isinstance(hint, type) else str(hint)
        advice = f"{field.default!r}, the default"
        if hint == tuple[str, ...] and isinstance(value, str):
            advice = f"({value!r},)"
        raise UserError(
            f"{field.name} must be {type_name}, not {value!r:.100}: try {advice}"
        )
    if value == "":  # an empty variable of a shell script, for example
        raise UserError(f"{flag(field.name)} '' is empty: leave it out")
    if field.metadata["bounds"] and value is not None:
        check_bounds(field, value)


def has_type(value: Any, hint: Any) -> bool:
    """Return True if a value fits the annotation of its setting."""
    if isinstance(value, bool):  # which Python counts among the whole numbers
        return hint is bool
    if typing.get_origin(hint) is tuple:
        element = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(isinstance(x, element) for x in value)
    if isinstance(value, int) and isinstance(0.0, hint):
        return True  # a whole number is a real number, too
    return isinstance(value, hint)


def check_bounds(field: dataclasses.Field[Any], value: float) -> None:
    """Refuse a number that isn't within the bounds of its setting."""
    least, most = field.metadata["bounds"]
    # NaN is neither below nor above a bound.
    if isinstance(value, float) and not math.isfinite(value):
        fault = "is not a finite number"
    elif value < least:
        fault = f"must be at least {least}"
    elif value > most:
        fault = f"must be at most {most}"
    else:
        return
    name = flag(field.name)
    example = field.metadata["example"]
    raise UserError(f"{name} {value} {fault}: try {name} {example}")


def check_together(config: Config) -> None:
    """Refuse settings that don't go together."""
    for name in ("checkpoint_every", "profile"):
        if getattr(config, name) and not config.workdir:
            raise UserError(
                f"{flag(name)} needs a folder for its files: add --workdir runs/first"
            )
    if config.global_batch_size and config.per_device_batch_size:
        raise UserError(
            f"--global-batch-size {config.global_batch_size} and "
            f"--per-device-batch-size {config.per_device_batch_size} exclude each "
            "other: give one of them, and None for the other"
        )
    if config.strategy == "single" and (config.devices or 1) > 1:
        raise UserError(
            f"--strategy single runs on one device, not {config.devices}: "
            "use --devices 1 or --strategy pmap"
        )
    if config.best is not None and not re.fullmatch("(highest|lowest):.+", config.best):
        raise UserError(
            f"--best {config.best!r} doesn't say which is better: "
            "try highest:accuracy or lowest:loss"
        )
    # A schedule of yours replaces the name, so it can't be piecewise.
    if (config.schedule == "piecewise") != bool(config.switch_epochs):
        raise UserError(
            "the built-in --schedule piecewise and --switch-epochs need each other: "
            "try --schedule piecewise --switch-epochs 3 7, or leave both out"
        )


def check_effects(config: Config, unused: dict[str, str]) -> None:
    """Refuse settings that change nothing.

    You'd believe that they did, and compare the results.

    Args:
        config: The settings.
        unused: {setting without effect: what would give it one}.
    """
    for name, needed in unused.items():
        value = getattr(config, name)
        default = getattr(Config, name)
        if value != default:
            raise UserError(
                f"{flag(name, value)} has no effect without {needed}: add that, or "
                f"use {flag(name, default)}"
            )


def find_unused(config: Config) -> dict[str, str]:
    """Return {setting without effect: what would give it one}."""
    unused = {}
    if config.schedule not in SCHEDULES:  # yours has to do these itself
        built_in = "a built-in --schedule, such as cosine"
        unused["learning_rate"] = built_in
        unused["warmup_steps"] = built_in
        unused["scale_learning_rate"] = built_in
    if config.schedule != "piecewise":
        unused["switch_factor"] = "--schedule piecewise"
    if config.scale_learning_rate == "none":
        unused["base_batch_size"] = "--scale-learning-rate linear"
    if config.optimizer != "adamw":
        unused["weight_decay"] = "the built-in --optimizer adamw"
    return unused

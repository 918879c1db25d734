"""Make a command's parser from dataclasses of settings, and read a command line.

A field `data_dir`, which `config.setting` made, is the flag `--data-dir`. A field with
a `positional` is an argument without a flag.
"""

import argparse
import dataclasses
import functools
import textwrap
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from pmapdp.config import (
    REMOVED_SETTINGS,
    SCHEDULES,
    Config,
    StrategyName,
    flag,
)
from pmapdp.errors import UserError, unknown_name
from pmapdp.recipes import RECIPES

WIDTH = 80  # columns of --help
METAVARS = {int: "INT", float: "NUMBER", str: "TEXT"}
NUMBERS = {int: "a whole number", float: "a number"}  # in error messages
# What other programs call our flags, if ours isn't the nearest name.
SYNONYMS = {
    "--lr": "--learning-rate",
    "--wd": "--weight-decay",
    "--bs": "--global-batch-size",
    "--batch-size": "--global-batch-size",
    "--train-batch-size": "--global-batch-size",
    "--gpus": "--devices",
    "--num-gpus": "--devices",
    "--precision": "--dtype",
    "--grad-clip": "--clip-norm",
    "--output-dir": "--workdir",
    "--checkpoint-dir": "--workdir",
    "--resume": "--workdir",
}

Fields = Sequence[dataclasses.Field[Any]]
Options = TypeVar("Options")


class Command(NamedTuple):
    """The texts of a command.

    Attributes:
        usage: The first line of `--help`.
        example: A command line that works. Error messages end with it.
        description: The text of `--help`, with paragraphs and indented examples.
        removed: Flags that are gone, and what to do instead.
    """

    usage: str
    example: str
    description: str | None  # `__doc__`, which is None under `python -OO`
    removed: Mapping[str, str] = {}


# Reading a command line


def parse(command: Command, options: type[Options], arguments: list[str]) -> Options:
    """Parse a command line into `options`, a dataclass."""
    fields = dataclasses.fields(options)  # type: ignore[arg-type]
    return options(**read_flags(command, fields, arguments))


def parse_with_recipe(
    command: Command,
    options: type[Options],
    arguments: list[str],
    sections: Collection[str] = (),
) -> tuple[Config, Options]:
    """Parse a command line with a recipe into its configuration and `options`.

    All fields of `options` have defaults. Settings outside of `sections` (default: all)
    keep the recipe's values.
    """
    option_fields = dataclasses.fields(options)  # type: ignore[arg-type]
    config_fields = [
        field
        for field in dataclasses.fields(Config)
        if not sections or field.metadata["section"] in ("arguments", *sections)
    ]
    fields = [*config_fields, *option_fields]
    if sections:  # a command that borrows settings has its own first
        recipe_field, *borrowed = config_fields
        fields = [recipe_field, *option_fields, *borrowed]
    lines = [f"    {name}: {recipe.summary}" for name, recipe in RECIPES.items()]
    texts = [
        (command.description or "").strip(),
        "The recipes:",
        "\n".join(lines),
        "docs/flags.md in pmapdp's repository has an example of every flag.",
    ]
    command = command._replace(description="\n\n".join(texts))
    config = recipe_for_help(arguments)
    # A command's own flag may have the name of a setting, and another default.
    defaults = {field.name: getattr(config, field.name) for field in config_fields}
    values = read_flags(command, fields, arguments, defaults)
    recipe = find_recipe(values.pop("recipe", "digits"))
    names = values.keys() & {field.name for field in option_fields}
    option_values = {name: values.pop(name) for name in names}
    return change_recipe(recipe, values), options(**option_values)


def change_recipe(recipe: Config, values: dict[str, Any]) -> Config:
    """Return the settings of a recipe, with these values of a command line."""
    # A batch size replaces the recipe's, even if that's of the other kind.
    sizes = {"global_batch_size", "per_device_batch_size"}
    if len(sizes & values.keys()) == 1:
        values = values | dict.fromkeys(sizes - values.keys())
    # The switches of a recipe's schedule don't go with another schedule, and its rate
    # doesn't go with a schedule of yours.
    schedule = values.get("schedule", recipe.schedule)
    unused = []
    if schedule != recipe.schedule:
        unused = ["switch_epochs"]
    if schedule not in SCHEDULES:
        unused += ["learning_rate", "warmup_steps", "scale_learning_rate"]
    values = {name: getattr(Config, name) for name in unused} | values
    return dataclasses.replace(recipe, **values)


def recipe_for_help(arguments: list[str]) -> Config:
    """Return the settings that --help shows, of the recipe before or after all flags.

    Between the flags, "speedrun" may also be the value of --model.
    """
    for text in (*arguments[:1], *arguments[-1:]):
        if text in RECIPES:
            return RECIPES[text].config
    return Config()


def find_recipe(name: str) -> Config:
    """Return the settings of a recipe."""
    if name in RECIPES:
        return RECIPES[name].config
    if name in typing.get_args(StrategyName):
        raise UserError(f"{name} is no recipe: did you mean --strategy {name}?")
    raise unknown_name("recipe", name, RECIPES)


def read_flags(
    command: Command,
    fields: Fields,
    arguments: list[str],
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the values that a command line gives, by the names of their fields."""
    parser = make_parser(command, fields, defaults or {})
    # Intermixed, because people write `train --devices 4 mirrored`, too.
    namespace, unread = parser.parse_known_intermixed_args(arguments)
    if unread:
        # The value of an unknown flag is unread, too.
        flags_first = sorted(unread, key=lambda text: not text.startswith("-"))
        names = [
            flag(field.name) for field in fields if not field.metadata["positional"]
        ]
        raise unknown_flag(command, flags_first[0].partition("=")[0], names)
    values = vars(namespace)
    values.pop("version", None)  # `cli.run` answers it
    for name, value in values.items():
        if isinstance(value, list):  # settings are frozen
            values[name] = tuple(value)
    return values


def unknown_flag(command: Command, name: str, flags: list[str]) -> UserError:
    """Make the error for a flag that a command doesn't have."""
    removed = {flag(name): advice for name, advice in REMOVED_SETTINGS.items()}
    removed |= command.removed
    if name in removed:
        return UserError(f"{name} is gone: {removed[name]}")
    if SYNONYMS.get(name) in flags:
        return UserError(f"unknown argument {name!r}: did you mean {SYNONYMS[name]!r}?")
    return unknown_name("argument", name, flags)


# Making the parser


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are a `UserError` that ends with `example`."""

    example = ""

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        raise UserError(f"{message.removeprefix('argument ')}: try {self.example}")


def make_parser(
    command: Command, fields: Fields, defaults: Mapping[str, Any]
) -> Parser:
    """Make a command's parser, whose `--help` shows `defaults` or the fields' own."""
    paragraphs = []
    for paragraph in (command.description or "").strip().split("\n\n"):
        if not paragraph.startswith("    "):  # an example keeps its lines
            paragraph = textwrap.fill(paragraph, WIDTH)
        paragraphs.append(paragraph)
    parser = Parser(
        usage=command.usage,
        description="\n\n".join(paragraphs),
        formatter_class=functools.partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=30, width=WIDTH
        ),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.example = command.example
    parser.add_argument(
        "--version",
        action="store_true",
        help="show versions, devices and variables and exit",  # as `cli.run` does
    )
    # argparse has a heading for arguments, which comes first, and one for options.
    groups: dict[str, Any] = {"arguments": parser, "options": parser}
    for field in fields:
        section = field.metadata["section"]
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        default = defaults.get(field.name, field.default)
        if field.metadata["positional"]:
            add_argument(groups[section], field)
        elif field.type is bool:
            add_switch(groups[section], field, default)
        else:
            add_flag(groups[section], field, default)
    return parser


def add_argument(group: Any, field: dataclasses.Field[Any]) -> None:
    """Add an argument without a flag below a heading of the help."""
    options: dict[str, Any] = {}
    if typing.get_origin(field.type) is tuple:
        options["nargs"] = "*"
    elif field.default is not dataclasses.MISSING:
        options["nargs"] = "?"
    metavar = field.metadata["positional"]
    group.add_argument(field.name, metavar=metavar, help=help_text(field), **options)


def add_switch(group: Any, field: dataclasses.Field[Any], default: bool) -> None:
    """Add a flag that takes no value. If it's on by default, --no- turns it off."""
    options: dict[str, Any] = {"action": "store_true", "help": help_text(field)}
    if default:
        options["action"] = argparse.BooleanOptionalAction
        options["help"] = help_text(field, "yes")
    group.add_argument(flag(field.name), **options)


def add_flag(group: Any, field: dataclasses.Field[Any], default: Any) -> None:
    """Add a flag with a value, or with several if its type is a tuple."""
    # The type of one value: `int | None` and `tuple[int, ...]` take an int.
    value_type: Any = field.type
    if typing.get_origin(value_type) not in (None, Literal):
        value_type = typing.get_args(value_type)[0]
    options: dict[str, Any] = {}
    if typing.get_origin(field.type) is tuple:
        options = {"action": "extend", "nargs": "+"}
    # `Config` looks if a text is one of several choices, and suggests another.
    choices = typing.get_args(value_type)
    if choices:
        options["metavar"] = f"{{{','.join(choices)}}}"
    else:
        options["metavar"] = field.metadata["metavar"] or METAVARS[value_type]
    if value_type in (int, float):
        options["type"] = functools.partial(convert_number, field, value_type)
    group.add_argument(flag(field.name), help=help_text(field, default), **options)


def help_text(field: dataclasses.Field[Any], default: Any = None) -> str:
    """Return what `--help` says about a field, and its default if there's one."""
    text = field.metadata["help"].replace("%", "%%")  # argparse formats it
    if isinstance(default, tuple):
        default = " ".join(map(str, default))
    if default in (None, ""):
        return text
    return f"{text} (default: {default})"


def convert_number(
    field: dataclasses.Field[Any], number_type: type[float], text: str
) -> float:
    """Return the number in a text. A `UserError` names one that works."""
    try:
        return number_type(text)
    except ValueError:
        name = flag(field.name)
        example = field.metadata["example"] or "8"
        raise UserError(
            f"{name} {text!r:.100} is not {NUMBERS[number_type]}: try {name} {example}"
        ) from None

"""Parse a command line into a dataclass, and end a command with an exit status.

docs/statuses.md explains the statuses.
"""

import argparse
import dataclasses
import functools
import os
import runpy
import signal
import sys
import textwrap
import traceback
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from pmapdp import __version__
from pmapdp.config import REMOVED_SETTINGS, Config, StrategyName, flag
from pmapdp.errors import StoppedError, UserError, first_line, unknown_name
from pmapdp.recipes import RECIPES
from pmapdp.signals import catch_signals, stop

COMMANDS = {
    "train": "train a model; the same command again resumes it",
    "evaluate": "print the exact loss and metrics on the test set",
    "export": "write a trained model to one file",
    "predict": "print the class of one image or text",
    "compare": "one device, pmap, shard_map and jit side by side",
    "verify": "check your own training step against one device",
    "port": "list what a pmap program needs to run today",
    "scaling": "predict the efficiency on up to 4,096 devices",
}
WIDTH = 80  # columns of --help
METAVARS = {int: "INT", float: "NUMBER", str: "TEXT"}
# What other programs call our flags.
SYNONYMS = {
    "--lr": "--learning-rate",
    "--wd": "--weight-decay",
    "--bs": "--global-batch-size",
    "--batch-size": "--global-batch-size",
    "--num-epochs": "--epochs",
    "--max-steps": "--steps",
    "--gpus": "--devices",
    "--num-gpus": "--devices",
    "--precision": "--dtype",
    "--grad-clip": "--clip-norm",
    "--gradient-accumulation-steps": "--accumulate",
    "--output-dir": "--workdir",
    "--resume": "--workdir",
}

Options = TypeVar("Options")


class Command(NamedTuple):
    """The texts of a command.

    Attributes:
        usage: The first line of `--help`.
        example: A command line that works. Error messages end with it.
        description: The text of `--help`, with paragraphs and indented examples.
        removed: Flags that there are no more, and what to do instead.
    """

    usage: str
    example: str
    description: str | None
    removed: Mapping[str, str] = MappingProxyType({})


def run(main: Callable[[list[str]], None], arguments: list[str] | None = None) -> int:
    """Call `main` with the arguments, and return the exit status."""
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        with catch_signals(stop):
            if "--version" in arguments:
                print(describe_installation())
            else:
                main(arguments)
            sys.stdout.flush()
        return 0
    except BaseException as error:
        return report(error)


def report(error: BaseException) -> int:
    """Print an error, and return the exit status.

    It's a message if you can correct it, and otherwise a traceback.
    """
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        error = UserError(
            f"no memory is left ({first_line(error)}): use a smaller batch or model"
        )
    if isinstance(error, UserError):
        if error.shows_cause and error.__cause__:
            traceback.print_exception(error.__cause__)
        print(f"error: {error.message}", file=sys.stderr)
        return error.status
    if isinstance(error, StoppedError):
        print(error, file=sys.stderr)
        return error.status
    # The reader of the output has gone, as `head` does. rich raises SystemExit then.
    if isinstance(error, BrokenPipeError) or isinstance(
        error.__context__, BrokenPipeError
    ):
        # Python flushes standard output at its end, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    if isinstance(error, SystemExit):  # argparse's, after --help
        return int(error.code or 0)
    traceback.print_exception(error)
    return 1


def main() -> None:
    """Run the console script: `pmapdp train` is `python -m pmapdp.train`."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        runpy.run_module(f"pmapdp.{name}", run_name="__main__", alter_sys=True)
    else:
        sys.exit(run(list_commands, [name]))


def list_commands(arguments: list[str]) -> None:
    """Print what `pmapdp --help` prints."""
    if arguments[0] not in ("--help", "-h"):
        raise unknown_name("command", arguments[0], COMMANDS)
    print("usage: pmapdp COMMAND ... (pmapdp train is python -m pmapdp.train)\n")
    for name, summary in COMMANDS.items():
        print(f"    {name:10}{summary}")
    print("\npmapdp COMMAND --help shows arguments and flags")


def describe_installation() -> str:
    """List versions, devices and JAX's variables, for the report of a bug."""
    import jax  # it takes a second, which --help doesn't need

    packages = ("flax", "optax", "orbax-checkpoint")
    lines = [
        f"pmapdp: {__version__}",
        *(f"{package}: {version(package)}" for package in packages),
        f"cores: {os.cpu_count()}",
        f"NPROC: {os.environ.get('NPROC', 'not set')}",
        str(jax.print_environment_info(return_string=True)),
    ]
    return "\n".join(lines)


def parse(command: Command, options: type[Options], arguments: list[str]) -> Options:
    """Parse a command line into `options`, a dataclass whose fields `setting` made.

    A field `data_dir` is the flag `--data-dir`. A field with a `place` is an argument
    without a flag.
    """
    fields = dataclasses.fields(options)  # type: ignore[arg-type]
    return options(**read_flags(command, fields, arguments, {}))


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
    config_fields = [
        field
        for field in dataclasses.fields(Config)
        if not sections or field.metadata["section"] in ("arguments", *sections)
    ]
    option_fields = dataclasses.fields(options)  # type: ignore[arg-type]
    # --help shows the defaults of the recipe that is named.
    named = [text for text in arguments if text in RECIPES] or ["digits"]
    defaults = dataclasses.asdict(RECIPES[named[0]].config)
    summaries = [f"    {name}: {recipe.summary}" for name, recipe in RECIPES.items()]
    paragraphs = [(command.description or "").strip(), "The recipes:"]
    paragraphs.append("\n".join(summaries))
    fields = [*config_fields, *option_fields]
    if sections:  # a command that isn't about recipes
        paragraphs[1:] = [f"The recipes: {', '.join(RECIPES)}."]
        # Its own flags come first, and files that it writes last.
        own = [
            field for field in option_fields if field.metadata["section"] != "output"
        ]
        fields = [*own, *(field for field in fields if field not in own)]
    text = "\n\n".join(paragraphs)
    values = read_flags(
        command._replace(description=text),
        fields,
        arguments,
        defaults,
    )
    name = values.pop("recipe", "digits")
    if name not in RECIPES:
        if name in typing.get_args(StrategyName):
            raise UserError(f"{name} is no recipe: did you mean --strategy {name}?")
        raise unknown_name("recipe", name, RECIPES)
    option_values = {}
    for field in option_fields:
        if field.name in values:
            option_values[field.name] = values.pop(field.name)
    # A batch size on the command line replaces the recipe's, even if the recipe has the
    # other kind.
    sizes = {"global_batch_size", "per_device_batch_size"}
    if len(sizes & values.keys()) == 1:
        values |= dict.fromkeys(sizes - values.keys())
    config = dataclasses.replace(RECIPES[name].config, **values)
    return config, options(**option_values)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are a `UserError` that ends with `example`."""

    example = ""

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        raise UserError(f"{message.removeprefix('argument ')}: try {self.example}")


def make_parser(
    command: Command,
    fields: Sequence[dataclasses.Field[Any]],
    defaults: dict[str, Any],
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
        help="show versions, devices and variables and exit",
    )
    groups: dict[str, Any] = {"options": parser}  # argparse's own heading
    for field in fields:
        section = field.metadata["section"]
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        add_flag(groups[section], field, defaults.get(field.name, field.default))
    return parser


def read_flags(
    command: Command,
    fields: Sequence[dataclasses.Field[Any]],
    arguments: list[str],
    defaults: dict[str, Any],
) -> dict[str, Any]:
    """Return the values that a command line gives, by name."""
    parser = make_parser(command, fields, defaults)
    # Intermixed, because people write `train --devices 4 mirrored`, too.
    namespace, unread = parser.parse_known_intermixed_args(arguments)
    if unread:
        # The value of an unknown flag is unread, too.
        flags_first = sorted(unread, key=lambda text: not text.startswith("-"))
        names = [flag(field.name) for field in fields if not field.metadata["place"]]
        raise unknown_flag(command, flags_first[0].partition("=")[0], names)
    values: dict[str, Any] = {}
    for name, value in vars(namespace).items():
        if isinstance(value, list):  # settings are frozen
            value = tuple(value)
        values[name] = value
    values.pop("version", None)  # `run` answers it
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


def add_flag(group: Any, field: dataclasses.Field[Any], default: Any) -> None:
    """Add the flag, or the argument, of a field below a heading of the help."""
    hint: Any = field.type
    is_several = typing.get_origin(hint) is tuple
    # The type of one value: `int | None` and `tuple[int, ...]` take an int.
    value_type = hint
    if typing.get_origin(hint) not in (None, Literal):
        value_type = typing.get_args(hint)[0]
    help_text = field.metadata["help"].replace("%", "%%")  # argparse formats it
    place = field.metadata["place"]
    options: dict[str, Any] = {}
    if place:
        if is_several:
            options["nargs"] = "*"
        elif default is not dataclasses.MISSING:
            options["nargs"] = "?"
        group.add_argument(field.name, metavar=place, help=help_text, **options)
        return
    help_text += describe_default(default)
    if hint is bool:
        # A flag that is on by default has a form with --no- that turns it off.
        options["action"] = "store_true"
        if default:
            options["action"] = argparse.BooleanOptionalAction
        group.add_argument(flag(field.name), help=help_text, **options)
        return
    if is_several:
        options = {"action": "extend", "nargs": "+"}
    # `Config` looks if a text is one of several choices, and suggests another.
    choices = typing.get_args(value_type)
    if choices:
        options["metavar"] = f"{{{','.join(choices)}}}"
    else:
        options["metavar"] = field.metadata["metavar"] or METAVARS[value_type]
    if value_type in (int, float):
        options["type"] = functools.partial(convert_number, field, value_type)
    group.add_argument(flag(field.name), help=help_text, **options)


def describe_default(default: Any) -> str:
    """Return what `--help` says about a default, if there's one to speak of."""
    if default in (None, (), False):
        return ""
    if default is True:
        return " (default: yes)"
    if isinstance(default, tuple):
        default = " ".join(map(str, default))
    return f" (default: {default})"


def convert_number(
    field: dataclasses.Field[Any], number_type: type[float], text: str
) -> float:
    """Return the number in a text. A `UserError` names one that works."""
    try:
        return number_type(text)
    except ValueError:
        name = flag(field.name)
        number = "a whole number" if number_type is int else "a number"
        limits = field.metadata["limits"] or ["8"]
        raise UserError(
            f"{name} {text!r:.100} is not {number}: try {name} {limits[-1]}"
        ) from None

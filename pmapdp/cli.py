"""Parse a command line into a dataclass, and end a command with an exit status (docs/statuses.md explains them)."""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import os
import re
import runpy
import signal
import sys
import textwrap
import traceback
import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.metadata import version
from types import FrameType
from typing import Any, Literal, NoReturn, TypeVar

from pmapdp import __version__
from pmapdp.config import Config, flag
from pmapdp.errors import StoppedError, UserError, reason, unknown
from pmapdp.recipes import RECIPES

COMMANDS = (
    "train",
    "evaluate",
    "export",
    "predict",
    "compare",
    "verify",
    "port",
    "scaling",
)
WIDTH = 80  # columns of --help
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
METAVARS = {int: "INT", float: "NUMBER", str: "TEXT"}

Options = TypeVar("Options")


def run(main: Callable[[list[str]], None], arguments: list[str] | None = None) -> int:
    """Call `main` with the arguments of the command line, and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
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
    """Print an error and return the exit status: a message for what you can correct, otherwise a traceback."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        error = UserError(
            f"no memory is left ({reason(error)}): use a smaller batch or model"
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
    if isinstance(error, SystemExit):
        return int(error.code or 0)
    traceback.print_exception(error)
    return 1


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """End the command in good order: files are closed, and processes that it started end too."""
    raise StoppedError(f"stopped by {signal.Signals(number).name}", 128 + number)


@contextlib.contextmanager
def catch_signals(
    handler: Callable[..., None], numbers: Collection[signal.Signals] = SIGNALS
) -> Iterator[None]:
    """Let `handler` take these signals. Under nohup SIGHUP is ignored, and stays so."""
    with contextlib.ExitStack() as stack:
        for each in numbers:
            if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN:
                stack.callback(signal.signal, each, signal.signal(each, handler))
        yield


def main() -> None:
    """Run the console script: `pmapdp train` is `python -m pmapdp.train`."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else "--help"
    if name not in COMMANDS:
        sys.exit(report(unknown("command", name, COMMANDS)))
    runpy.run_module(f"pmapdp.{name}", run_name="__main__", alter_sys=True)


def describe_installation() -> str:
    """List versions, devices and JAX's variables, one fact per line, for the report of a bug."""
    import jax  # it takes a second, which --help doesn't need

    ours = {
        "pmapdp": __version__,
        **{name: version(name) for name in ("flax", "optax", "orbax-checkpoint")},
    }
    ours |= {"cores": str(os.cpu_count()), "NPROC": os.environ.get("NPROC", "not set")}
    return "\n".join(
        [
            *map(": ".join, ours.items()),
            str(jax.print_environment_info(return_string=True)),
        ]
    )


def parse(options: type[Options], arguments: list[str], doc: str | None) -> Options:
    """Parse a command line into `options`, a dataclass whose fields `config.setting` made.

    A field `data_dir` is the flag `--data-dir`. A field with a `place` is an argument
    without a flag. `doc` is the docstring of the command's module: `--help` begins with
    it, and a mistake ends with its first example.
    """
    return options(**read_flags(dataclasses.fields(options), arguments, doc))  # type: ignore[arg-type]


def parse_with_recipe(
    options: type[Options],
    arguments: list[str],
    doc: str | None,
    sections: Collection[str] = (),
) -> tuple[Config, Options]:
    """Parse a command line with a recipe into its configuration and `options`, whose fields all have defaults.

    Settings outside of `sections` (default: all) keep the recipe's values.
    """
    ours, own = dataclasses.fields(Config), dataclasses.fields(options)  # type: ignore[arg-type]
    ours = tuple(
        each
        for each in ours
        if not sections or each.metadata["section"] in ("arguments", *sections)
    )
    named = RECIPES[
        next((each for each in arguments if each in RECIPES), "digits")
    ].config
    recipes = "\n".join(f"    {name}: {each.summary}" for name, each in RECIPES.items())
    defaults = {each.name: getattr(named, each.name) for each in ours}  # for --help
    values = read_flags(
        [*ours, *own], arguments, f"{doc}\nThe recipes:\n\n{recipes}", defaults
    )
    if (recipe := values.pop("recipe", "digits")) not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    chosen = options(
        **{each.name: values.pop(each.name) for each in own if each.name in values}
    )
    # A batch size on the command line replaces the recipe's, even if the recipe has the
    # other kind.
    sizes = {"global_batch_size", "per_device_batch_size"}
    if len(sizes & values.keys()) == 1:
        values |= dict.fromkeys(sizes - values.keys())
    return dataclasses.replace(RECIPES[recipe].config, **values), chosen


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are a `UserError` that ends with `prog`, a command line that works."""

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        raise UserError(f"{message.removeprefix('argument ')}: try {self.prog}")


def read_flags(
    fields: Sequence[Any], arguments: list[str], doc: str | None, defaults: Any = None
) -> dict[str, Any]:
    """Return the values that a command line gives, by name. `--help` shows `defaults`, or else the fields' own."""
    paragraphs = [
        x if x.startswith("    ") else textwrap.fill(x, WIDTH)
        for x in (doc or "").strip().split("\n\n")
    ]
    example = re.search(
        r"^ *((python -m [\w.]+).*?)(?=  |$)", doc or "", re.MULTILINE
    ) or ("", "", "")
    places = [each.metadata["place"] for each in fields if each.metadata["place"]]
    flags = [flag(each.name) for each in fields if not each.metadata["place"]]
    parser = Parser(
        prog=example[1],
        usage=" ".join([example[2], *places, "[flags]"]),
        description="\n\n".join(paragraphs),
        formatter_class=functools.partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=30, width=WIDTH
        ),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version",
        action="store_true",
        help="show versions, devices and variables and exit",
    )
    for section, group in itertools.groupby(
        fields, lambda each: each.metadata["section"]
    ):
        heading = parser if section == "options" else parser.add_argument_group(section)
        for field in group:
            add_flag(heading, field, (defaults or {}).get(field.name, field.default))
    found, left = parser.parse_known_intermixed_args(arguments)
    if left:
        wrong = min(
            left, key=lambda text: text[:1] != "-"
        )  # the value of an unknown flag is left, too
        raise unknown("argument", wrong.partition("=")[0], flags)
    values = {name: value for name, value in vars(found).items() if name != "version"}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
    }


def add_flag(heading: Any, field: dataclasses.Field[Any], default: Any) -> None:
    """Add the flag, or the argument, of a field below a heading of the help."""
    hint: Any = field.type
    kind = (
        typing.get_args(hint)[0]
        if typing.get_origin(hint) not in (None, Literal)
        else hint
    )
    name, place, choices = (
        flag(field.name),
        field.metadata["place"],
        typing.get_args(kind),
    )

    def convert(text: str) -> Any:
        if choices and text not in choices:
            raise unknown(field.name.replace("_", " "), text, choices)
        try:
            return text if choices else kind(text)
        except ValueError:
            example, words = (
                (field.metadata["limits"] or "8")[-1],
                "a whole number" if kind is int else "a number",
            )
            raise UserError(
                f"{name} {text!r:.100} is not {words}: try {name} {example}"
            ) from None

    several, about = (
        typing.get_origin(hint) is tuple,
        field.metadata["about"].replace("%", "%%"),
    )
    if default not in (None, (), False) and not place:
        about += f" (default: {name if default is True else ' '.join(map(str, default)) if several else default})"
    if place:
        number = None if default is dataclasses.MISSING else "*" if several else "?"
        heading.add_argument(field.name, nargs=number, metavar=place, help=about)
    elif hint is bool:
        heading.add_argument(
            name,
            action=argparse.BooleanOptionalAction if default else "store_true",
            help=about,
        )
    else:
        how: dict[str, Any] = {"action": "extend", "nargs": "+"} if several else {}
        metavar = f"{{{','.join(choices)}}}" if choices else METAVARS[kind]
        heading.add_argument(name, type=convert, metavar=metavar, help=about, **how)

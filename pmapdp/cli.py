"""Parse a command line into a dataclass, and end a command with an exit status that says what happened.

0  done                                         3      the loss is not a finite number
1  a check failed, or a bug with its traceback  5      the devices' copies of the state differ
2  a mistake in what was asked for              128+n  a signal ended it: 130 is Ctrl-C, 141 `| head`
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import re
import reprlib
import runpy
import signal
import sys
import textwrap
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.metadata import version
from types import FrameType
from typing import Any, NoReturn, TypeVar

from pmapdp import __version__
from pmapdp.config import Config, flag
from pmapdp.errors import StoppedError, UserError, in_one_line, reason, unknown
from pmapdp.files import from_first_user_frame
from pmapdp.recipes import RECIPES

COMMANDS = ("train", "evaluate", "export", "predict", "compare", "verify", "port", "scaling")
WIDTH = 80  # columns of --help
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KINDS = {int: ("INT", "a whole number", "8"), float: ("NUMBER", "a number", "0.001"), str: ("TEXT", "a text", "x")}

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
    """Print an error as its one sentence, or with its traceback if nobody expected it, and return the exit status."""
    expected = isinstance(error, UserError | StoppedError | KeyboardInterrupt)
    cause = error.__cause__ if expected else error
    if cause is not None and (frames := from_first_user_frame(cause)):
        traceback.print_exception(type(cause), cause, frames)
        if not expected:
            first, *others = traceback.extract_tb(frames)
            last = next((each for each in reversed(others) if each.filename == first.filename), first)
            where = f"{last.filename} fails at line {last.lineno}"
            error = UserError(f"{where} ({type(error).__name__}: {reason(error)}): fix that line")
    elif isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        error = UserError(f"no memory is left ({reason(error)}): use a smaller batch or model")
    match error:
        case UserError() | StoppedError():
            prefix = "error: " if isinstance(error, UserError) else ""
            print(prefix + in_one_line(str(error)), file=sys.stderr)
            return error.status
        case KeyboardInterrupt():
            return 128 + signal.SIGINT
        case BrokenPipeError() | SystemExit(__context__=BrokenPipeError()):  # rich raises SystemExit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at its end
            return 128 + signal.SIGPIPE
        case SystemExit():
            return int(error.code or 0)
    traceback.print_exception(error)
    return 1


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """End the command in good order: files are closed, and processes that it started end too."""
    raise StoppedError(f"stopped by {signal.Signals(number).name}", 128 + number)


@contextlib.contextmanager
def catch_signals(
    handler: Callable[[int, FrameType | None], None], numbers: Collection[signal.Signals] = SIGNALS
) -> Iterator[None]:
    """Let `handler` take these signals. Under nohup SIGHUP is ignored, and stays so."""
    before = {each: signal.getsignal(each) for each in numbers}
    if before.get(signal.SIGHUP) == signal.SIG_IGN:
        del before[signal.SIGHUP]
    for each in before:
        signal.signal(each, handler)
    try:
        yield
    finally:
        for each, old in before.items():
            signal.signal(each, old)


def main() -> None:
    """Run the console script: `pmapdp train` is `python -m pmapdp.train`."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else "--help"
    if name not in COMMANDS:
        print(f"error: {unknown('command', name, COMMANDS)}", file=sys.stderr)
        sys.exit(UserError.status)
    runpy.run_module(f"pmapdp.{name}", run_name="__main__", alter_sys=True)


def describe_installation() -> str:
    """List versions, devices and JAX's variables, one fact per line, for the report of a bug."""
    import jax  # it takes a second, which --help doesn't need

    ours = {"pmapdp": __version__, **{name: version(name) for name in ("flax", "optax", "orbax-checkpoint")}}
    ours |= {"cores": str(os.cpu_count()), "NPROC": os.environ.get("NPROC", "not set")}
    return "\n".join([*map(": ".join, ours.items()), str(jax.print_environment_info(return_string=True))])


def parse(options: type[Options], arguments: list[str], doc: str | None) -> Options:
    """Parse a command line into `options`, a dataclass whose fields `config.setting` made.

    A field `data_dir` is the flag `--data-dir`. A field with a `place` is an argument without a flag. `doc` is the
    docstring of the command's module: `--help` begins with it, and a mistake ends with its first example.
    """
    return options(**read_flags([options], arguments, doc))


def parse_with_recipe(
    options: type[Options], arguments: list[str], doc: str | None, sections: Collection[str] | None = None
) -> tuple[Config, Options]:
    """Parse a command line with a recipe into its configuration and `options`, whose fields all have defaults.

    Settings outside of `sections` (default: all) keep the recipe's values.
    """
    named = next((each for each in arguments if each in RECIPES), "digits")
    lines = [f"{name}: {recipe.summary}" for name, recipe in RECIPES.items()]
    indented = [textwrap.fill(each, WIDTH, initial_indent="  ", subsequent_indent="    ") for each in lines]
    epilog, defaults = "\n".join(["recipes:", *indented]), vars(RECIPES[named].config)
    values = read_flags([Config, options], arguments, doc, epilog=epilog, defaults=defaults, sections=sections)
    if (recipe := values.pop("recipe", "digits")) not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    names = {field.name for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    chosen = options(**{name: values.pop(name) for name in names & values.keys()})
    # A batch size on the command line replaces the recipe's, even if the recipe has the other kind.
    sizes = {"global_batch_size", "per_device_batch_size"}
    if len(sizes & values.keys()) == 1:
        values |= dict.fromkeys(sizes - values.keys())
    return dataclasses.replace(RECIPES[recipe].config, **values), chosen


class Parser(argparse.ArgumentParser):
    """Says a mistake as a `UserError`, with a command line that works."""

    example = "--help"

    def error(self, message: str) -> NoReturn:
        """Raise it."""
        raise UserError(f"{message.removeprefix('argument ')}: try {self.example}")


def read_flags(
    groups: list[type],
    arguments: list[str],
    doc: str | None,
    *,
    epilog: str = "",
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
    sections: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the values that a command line gives, by field of the dataclasses `groups`.

    A field of the last group replaces one of the same name. The help shows `defaults` instead of the defaults of the
    other groups' fields. Settings outside of `sections` are no flags.
    """
    paragraphs = (doc or "").strip().split("\n\n")
    parser = Parser(
        description="\n\n".join(each if each.startswith("    ") else textwrap.fill(each, WIDTH) for each in paragraphs),
        epilog=epilog,
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=30, width=WIDTH),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show versions, devices and variables and exit")
    hints = {name: hint for group in groups for name, hint in typing.get_type_hints(group).items()}
    fields = {field.name: field for group in groups for field in dataclasses.fields(group)}
    last = {field.name for field in dataclasses.fields(groups[-1])}
    headings: dict[str, Any] = {"options": parser}
    for name, field in fields.items():
        section = field.metadata["section"]
        if name in last or sections is None or section in {"arguments", *sections}:
            if section not in headings:
                headings[section] = parser.add_argument_group(section)
            add_flag(headings[section], field, hints[name], field.default if name in last else defaults[name])
    places = [field.metadata["place"] for field in fields.values() if field.metadata["place"]]
    if example := re.search(r"^ *(python -m [\w.]+).*?(?=  |$)", doc or "", re.MULTILINE):
        parser.example, parser.usage = example[0].strip(), " ".join([example[1], *places, "[flags]"])
    found, left = parser.parse_known_intermixed_args(arguments)
    for each in left:
        if each.startswith("-"):
            flags = [flag(name) for name, field in fields.items() if not field.metadata["place"]]
            raise unknown("argument", each.partition("=")[0], flags)
    if left:
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    values = {name: value for name, value in vars(found).items() if name in fields}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def add_flag(heading: Any, field: dataclasses.Field[Any], hint: Any, default: Any) -> None:
    """Add the flag, or the argument, of a field below a heading of the help."""
    name, about = flag(field.name), field.metadata["about"].replace("%", "%%")
    several = typing.get_origin(hint) is tuple
    if place := field.metadata["place"]:
        nargs = None if default is dataclasses.MISSING else "*" if several else "?"
        heading.add_argument(field.name, metavar=place, nargs=nargs, default=argparse.SUPPRESS, help=about)
        return
    if default not in (None, (), False):
        typed = name if default is True else " ".join(map(str, default)) if several else default
        about += f" (default: {typed})"
    if hint is bool:
        heading.add_argument(name, action=argparse.BooleanOptionalAction if default else "store_true", help=about)
        return
    kind = typing.get_args(hint)[0] if typing.get_origin(hint) in (tuple, types.UnionType, typing.Union) else hint
    heading.add_argument(
        name,
        **{"action": "extend", "nargs": "+"} if several else {},
        type=functools.partial(convert, field, kind),
        metavar=KINDS[kind][0] if kind in KINDS else f"{{{','.join(typing.get_args(kind))}}}",
        help=about,
    )


def convert(field: dataclasses.Field[Any], kind: Any, text: str) -> Any:
    """Return the value of the type `kind` that a text on the command line means."""
    if kind not in KINDS and text not in typing.get_args(kind):
        raise unknown(field.name.replace("_", " "), text, typing.get_args(kind))
    try:
        return kind(text) if kind in KINDS else text
    except ValueError:
        (_, words, example), (*_, works) = KINDS[kind], field.metadata["limits"] or [None]
        name = flag(field.name)
        raise UserError(f"{name} {reprlib.repr(text)} is not {words}: try {name} {works or example}") from None

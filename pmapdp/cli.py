"""Parse a command line into a dataclass, and end a command with an exit status that says what happened.

0  done                                         3  the loss or the state is not finite      128+n  a signal ended it:
1  a check failed, or a bug with its traceback  4  another process is lost                         130 is Ctrl-C,
2  a mistake in what was asked for              5  the devices' copies of the state differ         141 is `| head`
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
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.metadata import version
from types import FrameType
from typing import Any, Literal, NoReturn, TypeVar

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
Flag = tuple[dataclasses.Field[Any], Any, Any]  # a field of a dataclass, its type, and the default that --help shows


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
    expected = isinstance(error, UserError | StoppedError)
    cause = error.__cause__ if expected else error
    if cause is not None and (frames := from_first_user_frame(cause)):
        traceback.print_exception(type(cause), cause, frames)
        if not expected:
            file = frames.tb_frame.f_code.co_filename
            last = [each for each in traceback.extract_tb(frames) if each.filename == file][-1]
            what = f"{type(error).__name__}: {reason(error)}"
            error = UserError(f"{file} fails at line {last.lineno} ({what}): fix that line")
    elif isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        error = UserError(f"no memory is left ({reason(error)}): use a smaller batch or model")
    match error:
        case UserError() | StoppedError():
            prefix = "error: " if isinstance(error, UserError) else ""
            print(prefix + in_one_line(str(error)), file=sys.stderr)
            return error.status
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
    ignored = {each for each in numbers if each == signal.SIGHUP and signal.getsignal(each) == signal.SIG_IGN}
    before = {each: signal.signal(each, handler) for each in numbers if each not in ignored}
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
    return options(**read_flags(flags_of(options), arguments, doc))


def parse_with_recipe(
    options: type[Options], arguments: list[str], doc: str | None, sections: Collection[str] | None = None
) -> tuple[Config, Options]:
    """Parse a command line with a recipe into its configuration and `options`, whose fields all have defaults.

    Settings outside of `sections` (default: all) keep the recipe's values.
    """
    named = next((each for each in arguments if each in RECIPES), "digits")  # for the defaults that --help shows
    ours, own = flags_of(Config, vars(RECIPES[named].config)), flags_of(options)
    if sections is not None:
        ours = {name: each for name, each in ours.items() if each[0].metadata["section"] in {"arguments", *sections}}
    lines = [f"{name}: {recipe.summary}" for name, recipe in RECIPES.items()]
    indented = [textwrap.fill(each, WIDTH, initial_indent="  ", subsequent_indent="    ") for each in lines]
    values = read_flags(ours | own, arguments, doc, epilog="\n".join(["recipes:", *indented]))
    if (recipe := values.pop("recipe", "digits")) not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    chosen = options(**{name: values.pop(name) for name in own.keys() & values.keys()})
    # A batch size on the command line replaces the recipe's, even if the recipe has the other kind.
    sizes = {"global_batch_size", "per_device_batch_size"}
    if len(sizes & values.keys()) == 1:
        values |= dict.fromkeys(sizes - values.keys())
    return dataclasses.replace(RECIPES[recipe].config, **values), chosen


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are a `UserError` with a command line that works."""

    example = "--help"

    def error(self, message: str) -> NoReturn:
        """Raise a `UserError` that ends with the example."""
        raise UserError(f"{message.removeprefix('argument ')}: try {self.example}")


def flags_of(group: type, defaults: Mapping[str, Any] | None = None) -> dict[str, Flag]:
    """List the fields of a dataclass by name, with other `defaults` if you give them."""
    hints, fields = typing.get_type_hints(group), dataclasses.fields(group)
    return {each.name: (each, hints[each.name], (defaults or {}).get(each.name, each.default)) for each in fields}


def read_flags(flags: Mapping[str, Flag], arguments: list[str], doc: str | None, *, epilog: str = "") -> dict[str, Any]:
    """Return the values that a command line gives, by the fields' names."""
    paragraphs = (doc or "").strip().split("\n\n")
    parser = Parser(
        description="\n\n".join(each if each.startswith("    ") else textwrap.fill(each, WIDTH) for each in paragraphs),
        epilog=epilog,
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=30, width=WIDTH),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show versions, devices and variables and exit")
    headings: dict[str, Any] = {"options": parser}
    for field, hint, default in flags.values():
        section = field.metadata["section"]
        if section not in headings:
            headings[section] = parser.add_argument_group(section)
        add_flag(headings[section], field, hint, default)
    places = {name: field.metadata["place"] for name, (field, _, _) in flags.items() if field.metadata["place"]}
    if example := re.search(r"^ *(python -m [\w.]+).*?(?=  |$)", doc or "", re.MULTILINE):
        parser.example, parser.usage = example[0].strip(), " ".join([example[1], *places.values(), "[flags]"])
    found, left = parser.parse_known_intermixed_args(arguments)
    for text in left:
        if text.startswith("-"):
            raise unknown("argument", text.partition("=")[0], [flag(name) for name in flags if name not in places])
    if left:
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    values = {name: value for name, value in vars(found).items() if name in flags}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def add_flag(heading: Any, field: dataclasses.Field[Any], hint: Any, default: Any) -> None:
    """Add the flag, or the argument, of a field below a heading of the help."""
    name, several, place = flag(field.name), typing.get_origin(hint) is tuple, field.metadata["place"]
    kind = typing.get_args(hint)[0] if typing.get_origin(hint) not in (None, Literal) else hint
    how: dict[str, Any] = {"help": field.metadata["about"].replace("%", "%%")}
    if not place and default not in (None, (), False):
        shown = name if default is True else " ".join(map(str, default)) if several else default
        how["help"] += f" (default: {shown})"
    if place:
        name, how["nargs"] = field.name, None if default is dataclasses.MISSING else "*" if several else "?"
        how["metavar"] = place
    elif hint is bool:
        how["action"] = argparse.BooleanOptionalAction if default else "store_true"
    else:
        how["type"] = functools.partial(convert, field, kind)
        how["metavar"] = KINDS[kind][0] if kind in KINDS else f"{{{','.join(typing.get_args(kind))}}}"
        how |= {"action": "extend", "nargs": "+"} if several else {}
    heading.add_argument(name, **how)


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

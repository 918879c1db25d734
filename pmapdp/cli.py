"""Parse a command line into a dataclass, and end a command with an exit status that says what happened.

0  done                                         3      the loss is not a finite number
1  a check failed, or a bug with its traceback  5      the devices' copies of the state differ
2  a mistake in what was asked for              128+n  a signal ended it: 130 is Ctrl-C, 141 `| head`
"""

import argparse
import contextlib
import dataclasses
import errno
import functools
import io
import os
import platform
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
KINDS = {int: ("INT", "a whole number", "8"), float: ("NUMBER", "a number", "0.001"), str: ("TEXT", "a text", "NAME")}
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
VARIABLES = ("JAX_", "XLA_", "NPROC", "PMAPDP_", "CUDA_VISIBLE_DEVICES")

Options = TypeVar("Options")


def run(main: Callable[[list[str]], None], arguments: list[str] | None = None) -> int:
    """Call `main` with the arguments of the command line, and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of another encoding shows "?"
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
            last = traceback.extract_tb(frames)[-1]
            where = f"{last.filename} fails at line {last.lineno}"
            error = UserError(f"{where} ({type(error).__name__}: {reason(error)}): fix that line")
    match error:
        case StoppedError():
            print(in_one_line(str(error)), file=sys.stderr)
            return error.status
        case UserError():
            print(f"error: {error}", file=sys.stderr)
            return error.status
        case KeyboardInterrupt():
            return 128 + signal.SIGINT
        case BrokenPipeError() | SystemExit(__context__=BrokenPipeError()):  # rich raises SystemExit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at its end
            return 128 + signal.SIGPIPE
        case SystemExit():
            return int(error.code or 0)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            print(f"error: the disk is full ({reason(error)}): free some space", file=sys.stderr)
            return UserError.status
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        print(f"error: no memory is left ({reason(error)}): use a smaller batch or model", file=sys.stderr)
        return UserError.status
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
    before = {each: old for each, old in before.items() if (each, old) != (signal.SIGHUP, signal.SIG_IGN)}
    for each in before:
        signal.signal(each, handler)
    try:
        yield
    finally:
        for each, old in before.items():
            signal.signal(each, old)


def main() -> NoReturn:
    """Run the console script: `pmapdp train` is `python -m pmapdp.train`."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        runpy.run_module(f"pmapdp.{name}", run_name="__main__", alter_sys=True)

    def describe(arguments: list[str]) -> None:
        if name not in ("--help", "-h"):
            raise unknown("command", name, COMMANDS)
        print(f"usage: pmapdp {{{','.join(COMMANDS)}}} ...\n\npmapdp COMMAND --help describes a command.")

    sys.exit(run(describe, [name]))


def describe_installation() -> str:
    """Return versions, the devices that JAX shows and the variables that it reads, a fact a line, for a report."""
    import jax  # it takes a second, which --help doesn't need

    facts = {"pmapdp": __version__, **{package: version(package) for package in PACKAGES}}
    facts |= {"Python": platform.python_version(), "system": platform.platform(), "cores": str(os.cpu_count())}
    try:
        found = jax.devices()
        facts["devices"] = f"{len(found)} x {found[0].device_kind} ({found[0].platform})"
    except Exception as error:  # a report is wanted then too
        facts["devices"] = f"none, JAX cannot start: {reason(error)}"
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)]
    return "\n".join([*(f"{name:<16} {value}" for name, value in facts.items()), *variables])


def parse(options: type[Options], arguments: list[str], doc: str | None) -> Options:
    """Return the `options`, a dataclass, that a command line asks for. `doc` is the docstring of the command's module:
    `--help` begins with it, and a mistake ends with its first example."""
    return options(**Parser(doc).read([options], arguments))


def parse_with_recipe(
    options: type[Options], arguments: list[str], doc: str | None, sections: Collection[str] | None = None
) -> tuple[Config, Options]:
    """Return the configuration and the `options` that a command line with a recipe asks for.

    Every field of `options` has a default. Settings outside of `sections` (default: all) keep the recipe's values.
    """
    named = next((each for each in arguments if each in RECIPES), "digits")
    lines = [f"{name}: {recipe.summary}" for name, recipe in RECIPES.items()]
    indented = [textwrap.fill(each, WIDTH, initial_indent="  ", subsequent_indent="    ") for each in lines]
    parser = Parser(doc, "\n".join(["recipes:", *indented]))
    values = parser.read([Config, options], arguments, vars(RECIPES[named].config), sections)
    if (recipe := values.pop("recipe", "digits")) not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    names = {field.name for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    chosen = options(**{name: values.pop(name) for name in names & values.keys()})
    # A batch size on the command line replaces the recipe's, also if that is of the other kind.
    sizes = {"global_batch_size", "per_device_batch_size"}
    if len(sizes & values.keys()) == 1:
        values |= dict.fromkeys(sizes - values.keys())
    return dataclasses.replace(RECIPES[recipe].config, **values), chosen


class Parser(argparse.ArgumentParser):
    """Makes flags from the fields of dataclasses; every mistake is a `UserError`.

    A field made by `config.setting` is a flag: `data_dir` is `--data-dir`, or `--data_dir`. One with a `place` is an
    argument without a flag. Flags and arguments come in any order.
    """

    def __init__(self, doc: str | None, epilog: str = ""):
        example = re.search(r"^ *(python -m [\w.]+).*?(?=  |$)", doc or "", re.MULTILINE)
        self.program, self.example = (example[1], example[0].strip()) if example else ("python -m", "--help")
        paragraphs = (doc or "").strip().split("\n\n")
        filled = [each if each.startswith("    ") else textwrap.fill(each, WIDTH) for each in paragraphs]
        super().__init__(
            description="\n\n".join(filled),
            epilog=epilog,
            formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=30, width=WIDTH),
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            add_help=False,
        )

    def read(
        self,
        groups: list[type],
        arguments: list[str],
        defaults: Mapping[str, Any] = types.MappingProxyType({}),
        sections: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Return the values that a command line gives, by field of the dataclasses `groups`.

        A field of the last group replaces one of the same name. The help, which `--help` prints, shows `defaults`
        instead of the defaults of the other fields. Settings outside of `sections` are no flags.
        """
        hints = {name: hint for group in groups for name, hint in typing.get_type_hints(group).items()}
        fields = {field.name: field for group in groups for field in dataclasses.fields(group)}
        own = {field.name for field in dataclasses.fields(groups[-1])}
        titles: dict[str, Any] = {}
        for name, field in fields.items():
            title = field.metadata["section"]
            if name in own or title == "arguments" or sections is None or title in sections:
                section = titles.get(title) or titles.setdefault(title, self.add_argument_group(title))
                add_flag(section, field, hints[name], field.default if name in own else defaults[name])
        section = titles.get("options") or self.add_argument_group("options")
        section.add_argument("--help", "-h", action="help", help="Show this help.")
        section.add_argument("--version", action="store_true", help="Show versions, devices and variables of JAX.")
        places = [field.metadata["place"] for field in fields.values() if field.metadata["place"]]
        self.usage = " ".join([self.program, *places, "[flags]"])
        hyphens = [re.sub(r"^--[\w-]+(?==|$)", lambda name: name[0].replace("_", "-"), each) for each in arguments]
        found, left = self.parse_known_intermixed_args(hyphens)
        for each in left:
            if each.startswith("-"):
                flags = [flag(name) for name, field in fields.items() if not field.metadata["place"]]
                raise unknown("argument", each.partition("=")[0], flags)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        values = {name: value for name, value in vars(found).items() if name in fields}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}

    def error(self, message: str) -> NoReturn:
        """Say what argparse doesn't take, and a command line that works."""
        raise UserError(f"{message.removeprefix('argument ')}: try {self.example}")


def add_flag(section: Any, field: dataclasses.Field[Any], hint: Any, default: Any) -> None:
    """Add the flag, or the argument, of a field to a section of the help."""
    name, about = flag(field.name), field.metadata["about"].replace("%", "%%")
    several = typing.get_origin(hint) is tuple
    if place := field.metadata["place"]:
        nargs = None if default is dataclasses.MISSING else "*" if several else "?"
        section.add_argument(field.name, metavar=place, nargs=nargs, default=argparse.SUPPRESS, help=about)
        return
    if default not in (None, (), False):
        about += f" (default: {name if default is True else typed(default)})"
    if hint is bool:
        section.add_argument(name, action=argparse.BooleanOptionalAction if default else "store_true", help=about)
        return
    kind = typing.get_args(hint)[0] if several or typing.get_origin(hint) in (types.UnionType, typing.Union) else hint
    section.add_argument(
        name,
        **{"action": "extend", "nargs": "+"} if several else {},
        type=functools.partial(convert, field, kind),
        metavar=KINDS[kind][0] if kind in KINDS else f"{{{','.join(typing.get_args(kind))}}}",
        help=about,
    )


def typed(value: Any) -> str:
    """Return a value as one types it on a command line."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def convert(field: dataclasses.Field[Any], kind: Any, text: str) -> Any:
    """Return the value that `text` stands for on the command line, of the type `kind`."""
    if kind not in KINDS:
        if text not in typing.get_args(kind):
            raise unknown(field.name.replace("_", " "), text, typing.get_args(kind))
        return text
    try:
        return kind(text)
    except ValueError:
        _, words, example = KINDS[kind]
        example = field.metadata["limits"][2] if field.metadata["limits"] else example
        name = flag(field.name)
        raise UserError(f"{name} {reprlib.repr(text)} is not {words}: try {name} {example}") from None

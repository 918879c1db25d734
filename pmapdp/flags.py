"""argparse from dataclasses, the same for all commands. Every mistake is one sentence.

A field is a flag: `data_dir` is `--data-dir` (or `--data_dir`), and the string below the field is its help. A field of
type `Annotated[str, "MODEL"]` is an argument without a flag, shown by that name; the last of them may be a tuple. Flags
and arguments may come in any order; behind `--` there are arguments alone.
"""

import argparse
import ast
import dataclasses
import functools
import inspect
import itertools
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pmapdp.config import flag
from pmapdp.errors import UserError, unknown

FLAG = re.compile(r"-[^\d.\s][^\s=]*(=.*)?", re.DOTALL)  # -x and --data-dir=a b, but neither - nor -0.5 nor "-a text"
TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read_flags(
    groups: Sequence[type],
    arguments: list[str],
    *,
    program: str,
    example: str,
    about: str | None = None,
    defaults: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The values that a command line gives, by field; with `--help` this prints the help and exits.

    Args:
        groups: dataclasses, each a group of the help; their fields are the flags.
        arguments: the command line.
        program: how the command was started.
        example: arguments that work.
        about: what the help says first, if it is not the docstring of the first group.
        defaults: for the help, where they are not those of the fields.
    """
    hints = {name: hint for group in groups for name, hint in typing.get_type_hints(group, include_extras=True).items()}
    places = {name: hint for name, hint in hints.items() if typing.get_origin(hint) is Annotated}
    flags = {flag(name): without_none(hint) for name, hint in hints.items() if name not in places}
    parser = argparse.ArgumentParser(
        usage=" ".join([program, *(hint.__metadata__[0] for hint in places.values()), "[flags]"]),
        description=about or inspect.getdoc(groups[0]),
        formatter_class=Wide,
        allow_abbrev=False,
        exit_on_error=False,
    )
    for group in groups:
        add_group(parser, group, hints, defaults or {})
    if "--progress" not in flags:  # every command takes it
        parser.add_argument("--progress", action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        found, rest = parser.parse_known_args(list(normalise(arguments[:end], flags | {"--progress": bool})))
    except argparse.ArgumentError as error:  # the only mistake that is left
        name = str(error.argument_name)
        raise UserError(f"{name} needs a value, for example {name} {example_of(flags[name])}") from None
    values = {name: value for name, value in vars(found).items() if value is not None}
    values = {name: sum(value, ()) if isinstance(value, list) else value for name, value in values.items()}
    return values | place(groups, places, rest + arguments[end + 1 :], f"try {program} {example}")


def place(groups: Sequence[type], places: dict[str, Any], given: list[str], advice: str) -> dict[str, Any]:
    """The values of the fields without a flag."""
    values: dict[str, Any] = {}
    for name, hint in places.items():
        if typing.get_origin(without_none(typing.get_args(hint)[0])) is tuple:
            values[name], given = tuple(given), []
        elif given:
            values[name], *given = given
    if given:
        raise UserError(f"one argument too many, {given[0]!r}: {advice}")
    fields = itertools.chain(*map(dataclasses.fields, groups))
    needed = {field.name for field in fields if field.default is dataclasses.MISSING} - values.keys()
    if missing := [hint.__metadata__[0] for name, hint in places.items() if name in needed]:
        raise UserError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: {advice}")
    return values


def normalise(arguments: list[str], flags: dict[str, Any]) -> Iterator[str]:
    """The arguments as argparse takes them: `--data-dir` for `--data_dir`, `--no-progress` for `--progress=false`."""
    off = {f"--no-{name[2:]}": name for name, hint in flags.items() if hint is bool}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        if not FLAG.fullmatch(argument):
            yield argument
        elif name not in {"-h", "--help"} | flags.keys() | off.keys():
            raise unknown("argument", name, flags)
        elif equals and flags.get(name) is bool and value.lower() in TRUTHS:
            yield name if TRUTHS[value.lower()] else f"--no-{name[2:]}"
        elif equals and flags.get(name, bool) is bool:
            raise UserError(f"{argument} makes no sense: try {name}{'=false' if name in flags else ''}")
        else:
            yield name + equals + value


@functools.cache
def help_texts(group: type) -> dict[str, str]:
    """The strings below the fields of a dataclass, by field."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(group))).body
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
        for field, text in itertools.pairwise(typing.cast(ast.ClassDef, tree).body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def add_group(parser: argparse.ArgumentParser, group: type, hints: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Add the flags of a dataclass; the strings below its fields become their help."""
    about, title = inspect.getdoc(group), group.__name__.removesuffix("Options").lower() or "arguments"
    section = parser.add_argument_group(title, about if about != parser.description else "")
    texts = help_texts(group)
    for field in dataclasses.fields(group):
        name, hint, settings = flag(field.name), without_none(hints[field.name]), dict[str, Any]()
        if typing.get_origin(hint) is Annotated:
            section.description = f"{section.description}\n{hint.__metadata__[0]}  {texts[field.name]}".strip()
            continue
        shown, default = texts.get(field.name, ""), defaults.get(field.name, field.default)
        if not (default in (None, ()) or default is False):
            shown += f" (default: {default})"
        if hint is bool:
            settings["action"] = argparse.BooleanOptionalAction
        else:
            settings = {"type": functools.partial(convert, name, hint), "metavar": metavar(hint)}
        if typing.get_origin(hint) is tuple:
            settings |= {"action": "extend", "nargs": "+"}
        section.add_argument(name, help=shown.replace("%", "%%"), **settings)


def without_none(hint: Any) -> Any:
    """`int` of `int | None`; other types as they are."""
    choices = typing.get_args(hint)
    return next(each for each in choices if each is not types.NoneType) if types.NoneType in choices else hint


def element(hint: Any) -> Any:
    """`int` of `tuple[int, ...]`; other types as they are."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint


def example_of(hint: Any) -> str:
    """A text that a flag of this type takes."""
    return {int: "8", float: "0.001", str: "NAME"}.get(element(hint)) or typing.get_args(element(hint))[0]


def metavar(hint: Any) -> str:
    """How the help shows the values of a flag."""
    names = {int: "INT", float: "NUMBER", str: "TEXT"}
    return names.get(element(hint)) or f"{{{','.join(typing.get_args(element(hint)))}}}"


def convert(name: str, hint: Any, text: str) -> Any:
    """The value of a flag of type `hint`; of a tuple those of texts with commas between them."""
    if element(hint) is not hint:
        return tuple(convert(name, element(hint), each) for each in text.split(","))
    if not text:
        raise UserError(f"{name} needs a value, for example {name} {example_of(hint)}")
    if typing.get_origin(hint) is Literal:
        if text not in typing.get_args(hint):
            raise unknown(name.removeprefix("--").replace("-", " "), text, typing.get_args(hint))
        return text
    shown = text if len(text) < 40 else text[:36] + "..."
    try:
        value = hint(text)
    except ValueError:
        kind = "a whole number" if hint is int else "a number"
        raise UserError(f"{name} {shown} is not {kind}: try {name} {example_of(hint)}") from None
    if hint is int and abs(value) >= 2**63:
        raise UserError(f"{name} {shown} is out of range: try {name} {example_of(hint)}")
    return value


class Wide(argparse.RawDescriptionHelpFormatter):
    """Help in lines of at most 100 letters, with descriptions as they were written."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=32, width=min(100, shutil.get_terminal_size().columns))

"""argparse from dataclasses, the same for all commands. Every mistake is one sentence.

A field is a flag: `data_dir` is `--data-dir` (or `--data_dir`), and the string below the field is its help. A field of
type `Annotated[str, "MODEL"]` is an argument without a flag, shown by that name; the last of them may be a tuple. Flags
and arguments may come in any order.
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
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NoReturn

from pmapdp.config import flag
from pmapdp.errors import UserError, unknown

FLAG = re.compile(r"--?[a-zA-Z][^\s=]*(=.*)?", re.DOTALL)  # -x and --data-dir=a b, but neither -0.5 nor "-a text"


class Parser(argparse.ArgumentParser):
    """One whose errors are sentences; `example` is a command line that works."""

    example = ""

    def error(self, message: str) -> NoReturn:
        """Called by argparse about what it does not take."""
        said = re.sub("^argument (.*?):", r"\1", message)
        raise UserError(f"{said}: try {self.example}")


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
    places = {name: hint.__metadata__[0] for name, hint in hints.items() if typing.get_origin(hint) is Annotated}
    flags = {flag(name): hint for name, hint in hints.items() if name not in places} | {"--progress": bool}
    parser = Parser(
        usage=" ".join([program, *places.values(), "[flags]"]),
        description=about or inspect.getdoc(groups[0]),
        formatter_class=functools.partial(
            argparse.RawDescriptionHelpFormatter,
            max_help_position=32,
            width=min(100, shutil.get_terminal_size().columns),
        ),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.example = f"{program} {example}"
    for group in groups:
        add_group(parser, group, hints, defaults or {})
    if "progress" not in hints:  # every command takes it
        parser.add_argument("--progress", action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
    found = vars(parser.parse_intermixed_args([known(argument, flags) for argument in arguments]))
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items() if name in hints}


def known(argument: str, flags: dict[str, Any]) -> str:
    """`--data-dir` of `--data_dir`; what is no flag as it is. A `UserError` says that a flag is not among `flags`."""
    if not FLAG.fullmatch(argument):
        return argument
    name, equals, value = argument.partition("=")
    name = name.replace("_", "-")
    switch = name.replace("--no-", "--")
    if flags.get(switch) is not bool and name not in {"-h", "--help", *flags}:
        raise unknown("argument", name, flags)
    if equals and flags.get(switch) is bool:
        raise UserError(f"{name} takes no value, here {value!r}: use {switch} or --no-{switch[2:]}")
    return name + equals + value


@functools.cache
def help_texts(group: type) -> dict[str, str]:
    """The strings below the fields of a dataclass, by field."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(group))).body
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
        for field, text in itertools.pairwise(typing.cast(ast.ClassDef, tree).body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def add_group(parser: Parser, group: type, hints: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Add the flags of a dataclass; the strings below its fields become their help."""
    about, title = inspect.getdoc(group), group.__name__.removesuffix("Options").lower() or "arguments"
    section = parser.add_argument_group(title, about if about != parser.description else "")
    for field in dataclasses.fields(group):
        hint, default = hints[field.name], defaults.get(field.name, field.default)
        text = help_texts(group).get(field.name, "").replace("%", "%%")
        if typing.get_origin(hint) is Annotated:
            kind, name = typing.get_args(hint)
            several = "*" if typing.get_origin(kind) is tuple else "?"
            nargs = None if default is dataclasses.MISSING else several
            section.add_argument(field.name, metavar=name, nargs=nargs, default=argparse.SUPPRESS, help=text)
            continue
        if not (default in (None, ()) or default is False):
            text += f" (default: {default})"
        if hint is bool:
            section.add_argument(flag(field.name), action=argparse.BooleanOptionalAction, help=text)
            continue
        kind = element(hint)
        many: dict[str, Any] = {"action": "extend", "nargs": "+"} if typing.get_origin(hint) is tuple else {}
        convert_one = functools.partial(convert, flag(field.name), kind)
        section.add_argument(flag(field.name), type=convert_one, metavar=metavar(kind), help=text, **many)


def element(hint: Any) -> Any:
    """`int` of `int | None` and of `tuple[int, ...]`; other types as they are."""
    inside = typing.get_args(hint)
    return inside[0] if typing.get_origin(hint) in (tuple, types.UnionType, typing.Union) else hint


def metavar(kind: Any) -> str:
    """How the help shows the values of a flag."""
    return {int: "INT", float: "NUMBER", str: "TEXT"}.get(kind) or f"{{{','.join(typing.get_args(kind))}}}"


def convert(name: str, kind: Any, text: str) -> Any:
    """The value of the flag `name`, of type `kind`."""
    example = {int: "8", float: "0.001", str: "NAME"}.get(kind) or typing.get_args(kind)[0]
    if not text:
        raise UserError(f"{name} needs a value, for example {name} {example}")
    if typing.get_origin(kind) is Literal:
        if text not in typing.get_args(kind):
            raise unknown(name.removeprefix("--").replace("-", " "), text, typing.get_args(kind))
        return text
    shown = text if len(text) < 40 else text[:36] + "..."
    try:
        value = kind(text)
    except ValueError:
        number = "a whole number" if kind is int else "a number"
        raise UserError(f"{name} {shown} is not {number}: try {name} {example}") from None
    if kind is int and abs(value) >= 2**63:
        raise UserError(f"{name} {shown} is out of range: try {name} {example}")
    return value

"""The command line of a command that takes files: tyro makes values and `--help` from a dataclass.

tyro reports mistakes in boxes of several lines; `parse_arguments` looks first, to answer in one sentence.
"""

import dataclasses
import types
import typing
from typing import TypeVar

import tyro

from pmapdp.command_line import check_arguments
from pmapdp.errors import UserError

Options = TypeVar("Options")


def parse_arguments(options: type[Options], arguments: list[str], *, program: str, example: str) -> Options:
    """The values that the command line asks for.

    Args:
        options: a dataclass with the docstring of the command; fields of `tyro.conf.Positional` type are positional,
            in their order, and the last of them may be a tuple; the others are flags.
        arguments: positional arguments and flags in any order.
        program: how the command was started, for `--help`.
        example: arguments that work, for the sentence about missing ones.

    Raises:
        UserError: an unknown flag, a value of the wrong type, a missing or superfluous argument.
    """
    hints = typing.get_type_hints(options, include_extras=True)
    positional = [name for name, hint in hints.items() if tyro.conf.Positional in getattr(hint, "__metadata__", ())]
    plain = typing.get_type_hints(options)
    flag_types = {name: without_none(hint) for name, hint in plain.items() if name not in positional}
    given, flags = split_arguments(arguments, flag_types)
    check_arguments(flags, (dataclasses.make_dataclass("Flags", list(flag_types.items())),))

    if not {"-h", "--help"} & set(flags):
        required = [
            field.name
            for field in dataclasses.fields(options)  # type: ignore[arg-type]
            if field.name in positional and field.default is dataclasses.MISSING
        ]
        if missing := [name.upper() for name in required[len(given) :]]:
            verb = "is" if len(missing) == 1 else "are"
            raise UserError(f"{' and '.join(missing)} {verb} missing: try {program} {example}")
        takes_many = any(typing.get_origin(plain[name]) is tuple for name in positional)
        if len(given) > len(positional) and not takes_many:
            raise UserError(f"one argument too many, {given[len(positional)]!r}: try {program} {example}")
    return tyro.cli(
        options,
        prog=program,
        args=[*given, *flags],
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone),
    )


def without_none(hint: typing.Any) -> typing.Any:
    """`T` of `T | None`; other types as they are."""
    choices = typing.get_args(hint)
    if types.NoneType not in choices:
        return hint
    return next(choice for choice in choices if choice is not types.NoneType)


def split_arguments(arguments: list[str], flag_types: dict[str, typing.Any]) -> tuple[list[str], list[str]]:
    """Positional arguments, and flags with their values, each in their order."""
    given: list[str] = []
    flags: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            given.append(argument)
            continue
        flags.append(argument)
        hint = flag_types.get(argument.removeprefix("--").replace("-", "_"))
        if hint not in (None, bool) and rest and not rest[0].startswith("--"):
            flags.append(rest.pop(0))
    return given, flags

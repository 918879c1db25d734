"""argparse from the fields of dataclasses. Every mistake is one sentence.

A field made by `setting` is a flag: `data_dir` is `--data-dir` (or `--data_dir`). One with a `place` has no flag; the
last of them may be a tuple. Flags and arguments may come in any order. (tyro, which does this too, prints its errors as
boxes of several lines, and offers no hook for them.)
"""

import argparse
import dataclasses
import functools
import re
import reprlib
import shutil
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from pmapdp.config import flag
from pmapdp.errors import UserError, unknown

NAME = re.compile(r"^--[\w-]+(?==|$)")  # of a flag
VALUES = {
    int: ("INT", "a whole number of 64 bits", "8"),
    float: ("NUMBER", "a number", "0.001"),
    str: ("TEXT", "a text", "NAME"),
}


class Parser(argparse.ArgumentParser):
    """One whose errors are sentences that end with a command line that works."""

    def __init__(self, program: str, example: str, about: str | None):
        width = min(100, shutil.get_terminal_size().columns)
        shape = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32, width=width)
        super().__init__(
            description=about, formatter_class=shape, argument_default=argparse.SUPPRESS, allow_abbrev=False
        )
        self.program, self.works = program, f"{program} {example}"

    def read(
        self,
        groups: list[type],
        arguments: list[str],
        defaults: Mapping[str, Any] = types.MappingProxyType({}),
        sections: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """The values that a command line gives, by field of the dataclasses `groups`; with `--help` this prints the
        help, which shows `defaults` where they are not those of the fields, and exits. A field of a later group
        replaces one of the same name."""
        hints = {name: hint for group in groups for name, hint in typing.get_type_hints(group).items()}
        fields = {field.name: field for group in groups for field in dataclasses.fields(group)}
        own = {field.name for field in dataclasses.fields(groups[-1])}
        titles: dict[str, Any] = {}
        for name, field in fields.items():
            title = field.metadata["section"]
            if name in own or title == "arguments" or sections is None or title in sections:
                section = titles.get(title) or titles.setdefault(title, self.add_argument_group(title))
                add(section, field, hints[name], field.default if name in own else defaults.get(name, field.default))
        places = [field.metadata["place"] for field in fields.values() if field.metadata["place"]]
        self.usage = " ".join([self.program, *places, "[flags]"])
        if "progress" not in fields:  # every command takes it
            self.add_argument("--progress", action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
        with_hyphens = [NAME.sub(lambda name: name[0].replace("_", "-"), each) for each in arguments]
        found, left = self.parse_known_intermixed_args(with_hyphens)
        for each in left:
            if each.startswith("-"):
                known = [flag(name) for name, field in fields.items() if not field.metadata["place"]]
                raise unknown("argument", each.partition("=")[0], known)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        values = {name: value for name, value in vars(found).items() if name in fields}
        for name, value in values.items():
            if isinstance(value, list):
                if typing.get_origin(hints[name]) is not tuple:  # argparse makes an empty list of `--flag=--`
                    self.error(f"argument {flag(name)}: expected one argument")
                values[name] = tuple(value)
        return values

    def print_help(self, file: Any = None) -> None:
        """Called for --help; argparse's own passes over an output that takes nothing."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """Called by argparse about what it does not take."""
        said = re.sub("^argument (.*?):", r"\1", message).replace("ignored explicit argument", "takes no value, here")
        raise UserError(f"{said}: try {self.works}")


def add(section: Any, field: dataclasses.Field[Any], hint: Any, default: Any) -> None:
    """Add the flag or argument of a field to a section of the help."""
    text, several = field.metadata["about"].replace("%", "%%"), typing.get_origin(hint) is tuple
    if place := field.metadata["place"]:
        nargs = None if default is dataclasses.MISSING else "*" if several else "?"
        section.add_argument(field.name, metavar=place, nargs=nargs, default=argparse.SUPPRESS, help=text)
        return
    text += "" if default in (None, ()) or default is False else f" (default: {default})"
    if hint is bool:
        section.add_argument(flag(field.name), action=argparse.BooleanOptionalAction, help=text)
        return
    kind = typing.get_args(hint)[0] if several or typing.get_origin(hint) in (types.UnionType, typing.Union) else hint
    section.add_argument(
        flag(field.name),
        **{"action": "extend", "nargs": "+"} if several else {},
        type=functools.partial(convert, flag(field.name), kind),
        choices=typing.get_args(kind) or None,
        metavar=VALUES[kind][0] if kind in VALUES else None,
        help=text,
    )


def convert(name: str, kind: Any, text: str) -> Any:
    """The value of the flag `name`, of type `kind`."""
    if kind not in VALUES:
        if text not in typing.get_args(kind):
            raise unknown(name.removeprefix("--").replace("-", " "), text, typing.get_args(kind))
        return text
    _, words, example = VALUES[kind]
    try:
        value = kind(text)
        if text and not (kind is int and abs(value) >= 2**63):
            return value
    except ValueError:
        pass
    raise UserError(f"{name} {reprlib.repr(text)} is not {words}: try {name} {example}")

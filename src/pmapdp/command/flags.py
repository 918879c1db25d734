"""The command lines of all commands: argparse from dataclasses. Every mistake is one sentence.

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
import reprlib
import shutil
import textwrap
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, TypeVar

from pmapdp.config import GROUPS, Config, check, flag
from pmapdp.errors import UserError, unknown
from pmapdp.processes.options import ProcessesOptions
from pmapdp.recipes import RECIPES

Options = TypeVar("Options")
NAME = re.compile(r"^--[\w-]+(?==|$)")  # of a flag
VALUES = {
    int: ("INT", "a whole number of 64 bits", "8"),
    float: ("NUMBER", "a number", "0.001"),
    str: ("TEXT", "a text", "NAME"),
}


@dataclasses.dataclass(frozen=True)
class RecipeOptions:
    """What the flags change."""

    recipe: Annotated[str, "[RECIPE]"] = "digits"
    """One of those above; digits where none is named."""


def parse_options(options: type[Options], arguments: list[str], *, program: str, example: str) -> Options:
    """The values of a command without a recipe; `options` is a dataclass whose docstring describes the command, the
    other arguments are as for `read_flags`."""
    return options(**read_flags([options], arguments, program=program, example=example))


def parse(arguments: list[str]) -> Config:
    """The configuration that the command line of `python -m pmapdp.train` asks for; see `parse_with`."""
    return parse_with(ProcessesOptions, arguments, program="python -m pmapdp.train")[0]


def parse_with(
    own: type[Options], arguments: list[str], *, program: str, groups: Sequence[type] = GROUPS
) -> tuple[Config, Options]:
    """The configuration that a command line with a recipe asks for, and the command's own options: a dataclass with a
    default for every field. Fields of the configuration outside of `groups` keep the recipe's value."""
    named = next((argument for argument in arguments if argument in RECIPES), "digits")
    values = read_flags(
        [RecipeOptions, *groups, own],
        arguments,
        program=program,
        example="digits --devices 8",
        about="\n".join(["Recipes:", *(f"  {name}: {recipe.summary}" for name, recipe in RECIPES.items())]),
        defaults=vars(RECIPES[named].config),
    )
    recipe = values.get("recipe", "digits")
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    mine = {name: values.pop(name) for name in inspect.signature(own).parameters if name in values}
    # A batch size on the command line replaces the recipe's, also when that is of the other kind.
    sizes = {"global_batch_size", "per_device_batch_size"}
    if len(sizes & values.keys()) == 1:
        values |= dict.fromkeys(sizes - values.keys())
    config = dataclasses.replace(RECIPES[recipe].config, **values)
    check(config)
    return config, own(**mine)


class Parser(argparse.ArgumentParser):
    """One whose errors are sentences; `example` is a command line that works."""

    example = ""

    def print_help(self, file: Any = None) -> None:
        """Called for --help; argparse's own passes over an output that takes nothing."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """Called by argparse about what it does not take."""
        said = re.sub("^argument (.*?):", r"\1", message).replace("ignored explicit argument", "takes no value, here")
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

    The fields of the dataclasses `groups` are the flags, and each class is a group of the help. `program` and `example`
    are a command line that works. The help begins with `about` (default: the docstring of the first group), and shows
    `defaults` where they are not those of the fields.
    """
    hints = {name: hint for group in groups for name, hint in typing.get_type_hints(group, include_extras=True).items()}
    places = {name: hint.__metadata__[0] for name, hint in hints.items() if typing.get_origin(hint) is Annotated}
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
    with_hyphens = [NAME.sub(lambda name: name[0].replace("_", "-"), argument) for argument in arguments]
    found, left = parser.parse_known_intermixed_args(with_hyphens)
    for argument in left:
        if argument.startswith("-"):
            raise unknown("argument", argument.partition("=")[0], [flag(name) for name in hints if name not in places])
    if left:
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    values = {name: value for name, value in vars(found).items() if name in hints}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


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
            nargs = None if default is dataclasses.MISSING else "*" if typing.get_origin(kind) is tuple else "?"
            section.add_argument(field.name, metavar=name, nargs=nargs, default=argparse.SUPPRESS, help=text)
            continue
        if not (default in (None, ()) or default is False):
            text += f" (default: {default})"
        if hint is bool:
            section.add_argument(flag(field.name), action=argparse.BooleanOptionalAction, help=text)
            continue
        several, optional = (typing.get_origin(hint) in kinds for kinds in ([tuple], [types.UnionType, typing.Union]))
        kind = typing.get_args(hint)[0] if several or optional else hint
        section.add_argument(
            flag(field.name),
            action="extend" if several else "store",
            nargs="+" if several else None,
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

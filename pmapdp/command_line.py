"""From `[RECIPE] [flags]` to a `Config`. tyro makes the flags and `--help` from the groups of the configuration.

tyro reports mistakes in boxes of several lines; `check_arguments` looks first, to answer in one sentence.
"""

import dataclasses
import types
import typing
from typing import Literal, TypeVar

import tyro

from pmapdp.config import GROUPS, Config, check, flag
from pmapdp.errors import UserError, unknown
from pmapdp.recipes import RECIPES

Own = TypeVar("Own")


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The own options of a command that has none."""


def parse(arguments: list[str], *, program: str = "python -m pmapdp.train", groups=GROUPS) -> Config:
    """The configuration that the command line asks for; see `parse_with`."""
    return parse_with(NoOptions, arguments, program=program, groups=groups)[0]


def parse_with(own: type[Own], arguments: list[str], *, program: str, groups=GROUPS) -> tuple[Config, Own]:
    """The configuration that the command line asks for, and the values of the command's own options.

    Args:
        own: a dataclass with a default for every field; its fields are no part of the configuration.
        arguments: an optional recipe, then flags.
        program: how the command was started, for `--help`.
        groups: the option groups that this command has; fields outside them keep the recipe's value.

    Raises:
        UserError: an unknown recipe or flag, or a value that cannot be.
    """
    arguments = list(arguments)
    has_recipe = bool(arguments) and not arguments[0].startswith("-")
    recipe = arguments.pop(0) if has_recipe else "digits"
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    given = check_arguments(arguments, (*groups, own))

    start = RECIPES[recipe].config
    # A batch size on the command line replaces the recipe's, also when that is of the other kind.
    if "global_batch_size" in given and "per_device_batch_size" not in given:
        start = dataclasses.replace(start, per_device_batch_size=None)
    if "per_device_batch_size" in given and "global_batch_size" not in given:
        start = dataclasses.replace(start, global_batch_size=None)

    flags = dataclasses.make_dataclass("Flags", [(title(group), group) for group in (*groups, own)])
    names = {group: [field.name for field in dataclasses.fields(group)] for group in groups}
    parsed = tyro.cli(
        flags,
        prog=program if not has_recipe else f"{program} {recipe}",
        description="\n".join(["Recipes:", *(f"  {name}: {each.summary}" for name, each in RECIPES.items())]),
        default=flags(*(group(**{name: getattr(start, name) for name in names[group]}) for group in groups), own()),
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone),
    )
    values = {name: getattr(getattr(parsed, title(group)), name) for group in groups for name in names[group]}
    config = dataclasses.replace(start, **values, recipe=recipe)
    check(config)
    return config, getattr(parsed, title(own))


def title(group: type) -> str:
    """The heading of an option group in `--help`: "data" for `DataOptions`."""
    return group.__name__.removesuffix("Options").lower()


def check_arguments(arguments: list[str], groups=GROUPS) -> set[str]:
    """Look for mistakes in the flags; returns the names of the fields that are set.

    Raises:
        UserError: an unknown flag (with the nearest one), a missing value or one of the wrong type.
    """
    hints: dict[str, typing.Any] = {}
    for group in groups:
        hints |= typing.get_type_hints(group)
    switches = {"--no-" + name.replace("_", "-"): name for name, hint in hints.items() if hint is bool}
    given: set[str] = set()
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in ("-h", "--help"):
            continue
        field = switches.get(name) or name.removeprefix("--").replace("-", "_")
        if not name.startswith("--") or field not in hints:
            raise unknown("argument", name, [flag(hint) for hint in hints])
        given.add(field)
        hint = hints[field]
        if hint is bool:
            continue
        if typing.get_origin(hint) is tuple:
            if equals:
                raise UserError(f"{name} takes values separated by spaces: try {name} {value.replace(',', ' ')}")
            while rest and not rest[0].startswith("--"):
                check_value(name, rest.pop(0), typing.get_args(hint)[0])
            continue
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"{name} needs a value, for example {name} {example(hint)}")
            value = rest.pop(0)
        check_value(name, value, hint)
    return given


def plain_type(hint):
    """`int` of `int | None`; other hints as they are."""
    if isinstance(hint, types.UnionType):
        return next(each for each in typing.get_args(hint) if each is not type(None))
    return hint


def example(hint) -> str:
    """A value that a flag of this type takes."""
    hint = plain_type(hint)
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)[0]
    return {int: "8", float: "0.001", str: "NAME"}[hint]


def check_value(name: str, value: str, hint) -> None:
    """Refuse a value that is not of the flag's type.

    Raises:
        UserError: with the value and one that works.
    """
    hint = plain_type(hint)
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            raise unknown(name.removeprefix("--").replace("-", " "), value, typing.get_args(hint))
        return
    try:
        hint(value)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}[hint]
        raise UserError(f"{name} {value} is not {kind}: try {name} {example(hint)}") from None

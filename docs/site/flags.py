"""Make docs/flags.md from the settings of the command lines.

`python docs/site/flags.py > docs/flags.md`.
"""

import dataclasses
import importlib
import importlib.util
import types
import typing
from collections.abc import Iterator
from typing import Any

from pmapdp.cli import COMMANDS
from pmapdp.config import Config, flag
from pmapdp.recipes import RECIPES

TOP = """# Flags

This page is made by `python docs/site/flags.py` from the settings in
[config.py](../pmapdp/config.py) and in the commands, whose `--help` says the same. Give
flags and arguments in any order. A flag that is on by default is turned off by its form
with `--no-`. From Python, a flag of the trainer is a field of `pmapdp.config.Config`,
with underscores.
"""
SHARED = {
    "compare": "It takes the recipes and the flags of the trainer's sections data, "
    "model and optimization, too.",
    "scaling": "It takes no flags.",
}
KINDS = {int: "whole number", float: "number", str: "text", bool: "yes or no"}


def options(command: str) -> list[type]:
    """Return the dataclasses of a command's settings."""
    package = importlib.util.find_spec(f"pmapdp.{command}").submodule_search_locations
    module = importlib.import_module(
        f"pmapdp.{command}.__main__" if package else f"pmapdp.{command}"
    )
    found = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and each.__name__.endswith("Options")
    ]
    return [*([Config] if command == "train" else []), *found]


def values(hint: Any, limits: tuple[float, float, str] | None) -> str:
    """Say in words which values a flag takes."""
    several = typing.get_origin(hint) is tuple
    if several or typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is typing.Literal:
        text = ", ".join(f"`{each}`" for each in typing.get_args(hint))
    else:
        text = KINDS[hint]
    if limits and limits[0] > 1e-30:
        text += f", at least {limits[0]:g}"
    return f"{text}; several" if several else text


def rows(of: list[type]) -> Iterator[tuple[str, str]]:
    """Yield the section of each setting, and its row of a table."""
    for group in of:
        hints = typing.get_type_hints(group)
        for field in dataclasses.fields(group):
            place = field.metadata["place"]
            default = (
                ""
                if field.default in (None, (), dataclasses.MISSING)
                else f"`{shown(field.default)}`"
            )
            taken = values(hints[field.name], field.metadata["limits"])
            name = place.strip("[]") if place else flag(field.name)
            yield (
                field.metadata["section"],
                f"| `{name}` | {taken} | {default} | {field.metadata['help']} |",
            )


def shown(value: Any) -> str:
    """Return a value as one types it on a command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def table(of: list[type]) -> str:
    """Return a table of settings for each section of the help."""
    sections: dict[str, dict[str, None]] = {}
    for section, row in rows(of):
        sections.setdefault(section, {})[row] = (
            None  # two groups of a command may share a row
        )
    head = "| flag | takes | default | what it does |\n| --- | --- | --- | --- |\n"
    title = "\n### {}\n\n" if len(sections) > 1 else "\n"
    return "".join(
        title.format(name.capitalize()) + head + "\n".join(lines) + "\n"
        for name, lines in sections.items()
    )


def recipes() -> str:
    """Return a table of the recipes, with the settings in which each differs from the
    first.
    """
    lines = []
    for name, recipe in RECIPES.items():
        set_here = {
            field.name: getattr(recipe.config, field.name)
            for field in dataclasses.fields(Config)
            if field.name != "recipe"
            and getattr(recipe.config, field.name) != field.default
        }
        flags = " ".join(
            f"{flag(key)} {shown(value)}" for key, value in set_here.items()
        )
        settings = f"`{flags}`" if flags else "the defaults"
        lines.append(f"| `{name}` | {recipe.summary} | {settings} |\n")
    return "| recipe | what it is | its settings |\n| --- | --- | --- |\n" + "".join(
        lines
    )


def page() -> str:
    """Return the text of docs/flags.md."""
    text = f"{TOP}\n## Recipes\n\n`python -m pmapdp.train RECIPE` runs one. "
    text += f"Flags replace its settings.\n\n{recipes()}"
    for command in COMMANDS:
        said = f"\n{SHARED[command]}\n" if command in SHARED else ""
        text += f"\n## pmapdp.{command}\n{said}{table(options(command))}"
    return text


if __name__ == "__main__":
    print(page(), end="")

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
NOTES = {
    "compare": "It takes the recipes and the flags of the trainer's sections data, "
    "model and optimization, too.",
    "scaling": "It takes no flags.",
}
SMALLEST = 1e-30  # a limit that only says "more than 0"
KINDS = {int: "whole number", float: "number", str: "text", bool: "yes or no"}


def find_options(command: str) -> list[type]:
    """Return the dataclasses of a command's settings."""
    name = f"pmapdp.{command}"
    if importlib.util.find_spec(name).submodule_search_locations:  # it's a package
        name += ".__main__"
    values = vars(importlib.import_module(name)).values()
    classes = [value for value in values if isinstance(value, type)]
    options = [value for value in classes if value.__name__.endswith("Options")]
    if command == "train":
        return [Config, *options]
    return options


def describe_values(hint: Any, limits: tuple[float, float, str] | None) -> str:
    """Say in words which values a flag takes."""
    several = typing.get_origin(hint) is tuple
    if several or typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is typing.Literal:
        text = ", ".join(f"`{choice}`" for choice in typing.get_args(hint))
    else:
        text = KINDS[hint]
    if limits and limits[0] > SMALLEST:
        text += f", at least {limits[0]:g}"
    if several:
        text += "; several"
    return text


def make_rows(options: type) -> Iterator[tuple[str, str]]:
    """Yield the section of each setting, and its row of a table."""
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        name = flag(field.name)
        if field.metadata["place"]:
            name = field.metadata["place"].strip("[]")
        default = ""
        if field.default not in (None, (), dataclasses.MISSING):
            default = f"`{as_typed(field.default)}`"
        values = describe_values(hints[field.name], field.metadata["limits"])
        row = f"| `{name}` | {values} | {default} | {field.metadata['help']} |"
        yield field.metadata["section"], row


def as_typed(value: Any) -> str:
    """Return a value as one types it on a command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(str(part) for part in value)
    return str(value)


def make_tables(command: str) -> str:
    """Return a table of a command's settings for each section of its help."""
    sections: dict[str, list[str]] = {}
    for options in find_options(command):
        for section, row in make_rows(options):
            rows = sections.setdefault(section, [])
            if row not in rows:  # two groups of a command may share one
                rows.append(row)
    text = ""
    for section, rows in sections.items():
        if len(sections) > 1:
            text += f"\n### {section.capitalize()}\n"
        text += (
            "\n| flag | takes | default | what it does |\n| --- | --- | --- | --- |\n"
        )
        text += "\n".join(rows) + "\n"
    return text


def make_recipes() -> str:
    """Return a table of the recipes, with the settings that aren't the defaults."""
    text = "| recipe | what it is | its settings |\n| --- | --- | --- |\n"
    for name, recipe in RECIPES.items():
        flags = []
        for field in dataclasses.fields(Config):
            value = getattr(recipe.config, field.name)
            if field.name != "recipe" and value != field.default:
                flags.append(f"{flag(field.name)} {as_typed(value)}")
        settings = "the defaults"
        if flags:
            settings = f"`{' '.join(flags)}`"
        text += f"| `{name}` | {recipe.summary} | {settings} |\n"
    return text


def page() -> str:
    """Return the text of docs/flags.md."""
    text = f"{TOP}\n## Recipes\n\n`python -m pmapdp.train RECIPE` runs one. "
    text += f"Flags replace its settings.\n\n{make_recipes()}"
    for command in COMMANDS:
        text += f"\n## pmapdp.{command}\n"
        if command in NOTES:
            text += f"\n{NOTES[command]}\n"
        text += make_tables(command)
    return text


if __name__ == "__main__":
    print(page(), end="")

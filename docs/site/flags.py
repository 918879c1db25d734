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
with underscores. `pmapdp train` is the same as `python -m pmapdp.train`.
"""
# The flags that most people want, in the order in which they need them.
MOST_WANTED = ("devices", "strategy", "epochs", "learning_rate", "workdir")
# The headings of the trainer's flags, in the order in which a user needs them.
ORDER = (
    "arguments",
    "run",
    "workdir",
    "data",
    "model",
    "parallel",
    "optimization",
    "output",
    "processes",
)
# The examples that don't follow from a setting's type and limits.
EXAMPLES = {
    "best": "lowest:loss",
    "coordinator": "127.0.0.1:9876",
    "data_dir": "data",
    "devices": "8",
    "global_batch_size": "64",
    "dataset": "my_data.npz",
    "html": "page.html",
    "init_from": "runs/first",
    "json": "results.json",
    "layout": "model",
    "mesh": "data=4,model=2",
    "metrics_file": "results.jsonl",
    "model": "my_file.py:Net",
    "num_processes": "2",
    "optimizer": "sgd",
    "process_id": "0",
    "schedule": "constant",
    "strategies": "pmap jit",
    "switch_epochs": "3 7",
    "trainable": "head",
    "workdir": "runs/first",
}
NOTES = {
    "compare": "It takes the recipes and the flags of the trainer's sections data, "
    "model and optimization, too.",
    "scaling": "It takes no flags.",
}
HEAD = (
    "| flag | takes | default | example | what it does |\n"
    "| --- | --- | --- | --- | --- |\n"
)
KINDS = {int: "whole number", float: "number", str: "text", bool: "yes or no"}
SMALLEST = 1e-30  # a limit that only says "more than 0"


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


def make_example(field: Any, hint: Any) -> str:
    """Return a flag with a value as one types it, or nothing if its type says all."""
    name = flag(field.name)
    if hint is bool:
        if field.default:
            name = f"--no-{name.removeprefix('--')}"
        return f"`{name}`"
    if typing.get_origin(hint) is typing.Literal:
        choices = [text for text in typing.get_args(hint) if text != field.default]
        return f"`{name} {choices[0]}`"
    limits = field.metadata["limits"]
    if field.name in EXAMPLES:
        return f"`{name} {EXAMPLES[field.name]}`"
    if limits:
        return f"`{name} {limits[-1]}`"
    if isinstance(field.default, int | float):
        return f"`{name} {as_typed(field.default)}`"
    return ""


def make_rows(options: type) -> Iterator[tuple[str, str, list[str]]]:
    """Yield section and name of each setting, and the other cells of its row."""
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        hint = hints[field.name]
        name = flag(field.name)
        example = make_example(field, hint)
        if field.metadata["place"]:
            name = field.metadata["place"].strip("[]")
            example = ""
        default = ""
        if field.default not in (None, (), dataclasses.MISSING):
            default = f"`{as_typed(field.default)}`"
        values = describe_values(hint, field.metadata["limits"])
        cells = [values, default, example, field.metadata["help"]]
        yield field.metadata["section"], name, cells


def as_typed(value: Any) -> str:
    """Return a value as one types it on a command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(str(part) for part in value)
    return str(value)


def as_argument(name: str, value: Any) -> str:
    """Return a setting as one types it on a command line."""
    if value is True:
        return flag(name)
    if value is False:
        return f"--no-{flag(name).removeprefix('--')}"
    return f"{flag(name)} {as_typed(value)}"


def join_row(name: str, cells: list[str]) -> str:
    """Return a row of a table."""
    return f"| `{name}` | {' | '.join(cells)} |\n"


def make_tables(command: str) -> str:
    """Return a table of a command's settings for each section of its help."""
    sections: dict[str, dict[str, list[str]]] = {}
    for options in find_options(command):
        for section, name, cells in make_rows(options):
            earlier = sections.setdefault(section, {}).setdefault(name, cells)
            # Two groups of a command may share a flag, each with a help of its own.
            if cells[-1] not in earlier[-1]:
                earlier[-1] += f" {cells[-1]}"
    names = list(sections)
    if command == "train":
        names.sort(key=ORDER.index)
    text = ""
    for section in names:
        if len(names) > 1:
            text += f"\n### {section.capitalize()}\n"
        text += f"\n{HEAD}"
        for name, cells in sections[section].items():
            text += join_row(name, cells)
    return text


def make_most_wanted() -> str:
    """Return a table of the flags that most people want."""
    cells_of = {name: cells for _, name, cells in make_rows(Config)}
    text = HEAD
    for name in MOST_WANTED:
        text += join_row(flag(name), cells_of[flag(name)])
    return text


def make_recipes() -> str:
    """Return a table of the recipes, with the settings that aren't the defaults."""
    text = "| recipe | what it is | its settings |\n| --- | --- | --- |\n"
    for name, recipe in RECIPES.items():
        flags = []
        for field in dataclasses.fields(Config):
            value = getattr(recipe.config, field.name)
            if field.name != "recipe" and value != field.default:
                flags.append(as_argument(field.name, value))
        settings = "the defaults"
        if flags:
            settings = f"`{' '.join(flags)}`"
        text += f"| `{name}` | {recipe.summary} | {settings} |\n"
    return text


def page() -> str:
    """Return the text of docs/flags.md."""
    text = f"{TOP}\n## The flags most people want\n\n{make_most_wanted()}"
    text += "\n## Recipes\n\n`python -m pmapdp.train RECIPE` runs one. "
    text += f"Flags replace its settings.\n\n{make_recipes()}"
    for command in COMMANDS:
        text += f"\n## pmapdp.{command}\n"
        if command in NOTES:
            text += f"\n{NOTES[command]}\n"
        text += make_tables(command)
    return text


if __name__ == "__main__":
    print(page(), end="")

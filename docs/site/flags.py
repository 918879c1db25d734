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
[config.py](../pmapdp/config.py) and in the commands, whose `--help` says the same. Each
line begins with an example to type, and ends with the values that the flag takes. Give
flags and arguments in any order. From Python, a flag of the trainer is a field of
`pmapdp.config.Config`, with underscores: `Config(learning_rate=0.001)`. `pmapdp train`
is the same as `python -m pmapdp.train`.

Do you know the flags of PyTorch Lightning or Accelerate? [A
table](pytorch_loop.md#if-you-use-lightning-or-accelerate) has ours beside them.
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
    "keep_checkpoints": "5",
    "json": "results.json",
    "layout": "model",
    "mesh": "data=4,model=2",
    "metrics_file": "results.jsonl",
    "model": "my_file.py:Net",
    "num_processes": "2",
    "optimizer": "sgd",
    "process_id": "0",
    "schedule": "constant",
    "seed": "1",
    "strategies": "pmap jit",
    "strategy": "jit",
    "switch_epochs": "3 7",
    "trainable": "head",
    "warmup_steps": "500",
    "workdir": "runs/first",
}
NOTES = {
    "compare": "It takes the recipes and the flags of the trainer's sections data, "
    "model and optimization, too.",
    "scaling": "It takes no flags.",
}
KINDS = {int: "whole number", float: "number", str: ""}
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
    """Say in words which values a flag takes, or nothing for a text."""
    several = typing.get_origin(hint) is tuple
    if several or typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is typing.Literal:
        text = ", ".join(f"`{choice}`" for choice in typing.get_args(hint))
    else:
        text = KINDS[hint]
    if limits and limits[0] > SMALLEST:
        text += f", at least {limits[0]:g}"
    if several and text:
        text += ", one or more"
    return text


def make_example(field: Any, hint: Any) -> str:
    """Return a flag with a value as one types it, or an argument's name."""
    name = flag(field.name)
    if field.metadata["place"]:
        return field.metadata["place"].strip("[]")
    if hint is bool:
        return name
    if field.name in EXAMPLES:
        return f"{name} {EXAMPLES[field.name]}"
    if typing.get_origin(hint) is typing.Literal:
        choices = [text for text in typing.get_args(hint) if text != field.default]
        return f"{name} {choices[0]}"
    if field.metadata["limits"]:
        return f"{name} {field.metadata['limits'][-1]}"
    return f"{name} {as_typed(field.default)}"


def describe_setting(field: Any, hint: Any) -> str:
    """Return what follows the example: the help, then the values and the default."""
    if hint is bool:
        if field.default:
            off = f"--no-{flag(field.name).removeprefix('--')}"
            return f"{field.metadata['help']} *On; `{off}` turns it off.*"
        return field.metadata["help"]
    values = describe_values(hint, field.metadata["limits"])
    notes = [values] if values else []
    has_default = field.default not in (None, (), dataclasses.MISSING)
    if has_default and "default:" not in field.metadata["help"]:
        notes.append(f"default `{as_typed(field.default)}`")
    if not notes:
        return field.metadata["help"]
    text = "; ".join(notes)
    return f"{field.metadata['help']} *{text[0].upper()}{text[1:]}.*"


def make_items(options: type) -> Iterator[tuple[str, str, str]]:
    """Yield section, example and description of each setting."""
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        hint = hints[field.name]
        description = describe_setting(field, hint)
        yield field.metadata["section"], make_example(field, hint), description


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


def make_lists(command: str) -> str:
    """Return a list of a command's settings for each section of its help."""
    sections: dict[str, dict[str, str]] = {}
    for options in find_options(command):
        for section, example, description in make_items(options):
            items = sections.setdefault(section, {})
            # Two groups of a command may share a flag, each with a help of its own.
            earlier = items.get(example, "")
            if description not in earlier:
                items[example] = f"{earlier} {description}".strip()
    names = list(sections)
    if command == "train":
        names.sort(key=ORDER.index)
    text = ""
    for section in names:
        if len(names) > 1:
            text += f"\n### {section.capitalize()}\n"
        text += "\n"
        for example, description in sections[section].items():
            text += f"- `{example}`: {description}\n"
    return text


def make_most_wanted() -> str:
    """Return a list of the flags that most people want."""
    items = {}
    for _, example, description in make_items(Config):
        name = example.split()[0]
        items[name] = f"- `{example}`: {description}\n"
    return "".join(items[flag(name)] for name in MOST_WANTED)


def make_recipes() -> str:
    """Return a list of the recipes, with the settings that aren't the defaults."""
    text = ""
    for name, recipe in RECIPES.items():
        flags = []
        for field in dataclasses.fields(Config):
            value = getattr(recipe.config, field.name)
            if field.name != "recipe" and value != field.default:
                flags.append(as_argument(field.name, value))
        text += f"- `{name}`: {recipe.summary}.\n"
        if flags:
            text += f"  `{' '.join(flags)}`\n"
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
        text += make_lists(command)
    return text


if __name__ == "__main__":
    print(page(), end="")

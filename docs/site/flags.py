"""Make docs/flags.md from the settings of the command lines.

`python docs/site/flags.py > docs/flags.md`.
"""

import dataclasses
import importlib
import importlib.util
import typing
from typing import Any

from pmapdp.cli import COMMANDS
from pmapdp.config import Config, flag
from pmapdp.recipes import RECIPES

TOP = """# Flags

Look up a flag with your browser's search, or with `--help`, which has the same texts.
You need none to begin: `pmapdp train`, short for `python -m pmapdp.train`, trains a
small network on scans of digits, on all your devices.

| you want to | flags |
| --- | --- |
| train your own model on your data | `--model`, `--dataset` |
| save a run, and resume it | `--workdir`, `--checkpoint-every` |
| keep eight GPUs busy | `--per-device-batch-size`, `--dtype bfloat16` |
| train on several machines | `--distributed` |
| use less memory | `--accumulate`, `--shard-state`, `--mesh` with `--layout` |
| fit the learning rate to a larger batch | `--scale-learning-rate`, `--warmup-steps` |
| fine-tune a trained model | `--init-from`, `--trainable` |
| stop early | `--patience`, `--steps` |
| log losses for plots | `--metrics-file`, `--log-every` |
| find out why it's slow | `--profile` |

Every example has a value that works. *Fixed* marks what you can't change when a run
resumes, because its result depends on it. Only a finished run may get more `--epochs`.

From Python, the trainer's flags are the fields of [`Config`](api.md#config), with
underscores: `Config(learning_rate=0.001)`. Do you know the flags of PyTorch Lightning
or Accelerate? [This table](pytorch_loop.md#if-you-use-lightning-or-accelerate) has ours
beside them.
"""
# The flags that most people want, in the order in which they need them.
FIRST = (
    "model",
    "dataset",
    "strategy",
    "devices",
    "global_batch_size",
    "epochs",
    "learning_rate",
    "dtype",
    "workdir",
    "best",
)
# The headings for the trainer's other flags, each with its sections of `--help`.
TRAINER_SECTIONS = {
    "Length and seed": ("run",),
    "Checkpoints and logs": ("workdir", "output"),
    "Data and model": ("data", "model"),
    "Devices and batch": ("parallel",),
    "Optimizer, learning rate and loss": ("optimization",),
    "Several processes": ("processes",),
}
# Where to read more about the flags below a heading.
GUIDES = {
    "Length and seed": "With `--steps` you can [evaluate every N "
    "updates](custom_training.md#evaluate-every-n-updates).",
    "Checkpoints and logs": "[Exit statuses](statuses.md) says when to start a run "
    "again, and [Logging](custom_training.md#logging) what it writes.",
    "Data and model": "[Your model, your data](custom.md) begins with two files.",
    "Devices and batch": "[From one GPU to eight](gpus.md) chooses a batch, and "
    "[Meshes](meshes.md) explains the last three.",
    "Optimizer, learning rate and loss": "Your own [optimizer and "
    "schedule](custom_training.md), and your own [loss](custom_reference.md#the-loss).",
    "Several processes": "[Many processes](processes.md) has a job script. These flags "
    "have no field of `Config`, because in Python [your program connects the "
    "processes](processes.md#your-own-model).",
}
# The examples that don't follow from a setting's choices, example or default.
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
    "train": "Without a recipe it trains on digits.",
    "compare": "It also takes the recipes, and the trainer's flags for data, model and "
    "optimization.",
    "scaling": "It takes no flags. For your own model, call "
    "[`predict`](speed.md#predict-more-devices) from Python.",
}


RECIPES_HEAD = """A recipe sets several flags at once, and the flags that you add
replace its own: `pmapdp train mirrored --epochs 3`. The settings of each are in
[recipes.py](../pmapdp/recipes.py)."""
# The settings of a table: {example: (default, help)}.
Rows = dict[str, tuple[str, str]]


def command_module(command: str) -> Any:
    """Return the module that runs a command."""
    name = f"pmapdp.{command}"
    if importlib.util.find_spec(name).submodule_search_locations:  # it's a package
        name += ".__main__"
    return importlib.import_module(name)


def find_options(command: str) -> list[type]:
    """Return the dataclasses of a command's settings."""
    values = vars(command_module(command)).values()
    classes = [value for value in values if isinstance(value, type)]
    options = [value for value in classes if value.__name__.endswith("Options")]
    if command == "train":
        return [Config, *options]
    return options


def choices_of(hint: Any) -> tuple[str, ...]:
    """Return the values of a setting that takes one of a few texts."""
    for part in (hint, *typing.get_args(hint)):  # `Literal[...] | None` has two
        if typing.get_origin(part) is typing.Literal:
            return typing.get_args(part)
    return ()


def as_typed(value: Any) -> str:
    """Return a value as one types it on a command line."""
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


def make_example(field: Any, hint: Any) -> str:
    """Return a flag with a value as one types it, or an argument's name."""
    if field.metadata["positional"]:
        return field.metadata["positional"].strip("[]")
    if hint is bool:
        return flag(field.name)
    if field.name in EXAMPLES:
        value = EXAMPLES[field.name]
    elif choices_of(hint):
        value = next(text for text in choices_of(hint) if text != field.default)
    elif field.metadata["example"]:
        value = field.metadata["example"]
    else:
        value = field.default
    return as_argument(field.name, value)


def describe_setting(field: Any, hint: Any) -> tuple[str, str]:
    """Return a setting's default and its help, with the choices."""
    text, _, default = field.metadata["help"].partition(" Default: ")
    if hint is bool:
        default = "off"
        if field.default:
            default = f"on; `{as_argument(field.name, False)}` turns it off"
    elif not default and field.default not in (None, (), dataclasses.MISSING):
        default = f"`{as_typed(field.default)}`"
    elif not default and not field.metadata["positional"]:
        default = "none"
    if choices_of(hint):
        text += f" One of {', '.join(f'`{choice}`' for choice in choices_of(hint))}."
    if field.metadata["fixed_on_resume"]:
        text += " *Fixed.*"
    return default.removesuffix("."), text


def describe_sections(command: str) -> dict[str, Rows]:
    """Return the settings of a command by their section."""
    sections: dict[str, Rows] = {}
    for options in find_options(command):
        hints = typing.get_type_hints(options)
        for field in dataclasses.fields(options):
            section = field.metadata["section"]
            if options is Config and field.name in FIRST:
                section = "first"
            rows = sections.setdefault(section, {})
            example = make_example(field, hints[field.name])
            default, text = describe_setting(field, hints[field.name])
            # Two groups of a command may share a flag, each with a help of its own.
            if example in rows and rows[example] != (default, text):
                text = f"{rows[example][1]} {text}"
            rows[example] = (default, text)
    return sections


def make_table(rows: Rows) -> str:
    """Return settings as a table."""
    lines = ["| example | default | what it does |", "| --- | --- | --- |"]
    for example, (default, text) in rows.items():
        lines.append(f"| `{example}` | {default} | {text} |")
    return "\n".join(lines) + "\n"


def make_trainer() -> str:
    """Return the trainer's flags: the most wanted ones, then the others by section."""
    sections = describe_sections("train")
    most_wanted = sections["first"]
    order = [flag(name) for name in FIRST]
    examples = sorted(most_wanted, key=lambda example: order.index(example.split()[0]))
    text = "\n### The ten flags you need first\n\n"
    text += make_table({example: most_wanted[example] for example in examples})
    for title, names in TRAINER_SECTIONS.items():
        rows: Rows = {}
        for name in names:
            rows |= sections[name]
        text += f"\n### {title}\n\n{GUIDES[title]}\n\n{make_table(rows)}"
    return text


def make_command(command: str) -> str:
    """Return the part of the page about one command."""
    example = f"python -m pmapdp.{command}"
    if hasattr(command_module(command), "COMMAND"):  # scaling has none
        example = command_module(command).COMMAND.example
    summary = COMMANDS[command]
    text = f"\n## pmapdp.{command}\n\n{summary[0].upper()}{summary[1:]}.\n"
    if command in NOTES:
        text += f"{NOTES[command]}\n"
    text += f"\n    {example}\n"
    if command == "train":
        return text + make_trainer()
    sections = describe_sections(command)
    rows = sections.pop("arguments", {})
    for section in sections.values():
        rows |= section
    return f"{text}\n{make_table(rows)}" if rows else text


def make_recipes() -> str:
    """Return a table of the recipes."""
    text = "| recipe | what it trains |\n| --- | --- |\n"
    for name, recipe in RECIPES.items():
        text += f"| `{name}` | {recipe.summary} |\n"
    return text


def page() -> str:
    """Return the text of docs/flags.md."""
    text = TOP
    for command in COMMANDS:
        text += make_command(command)
        if command == "train":
            text += f"\n## Recipes\n\n{RECIPES_HEAD}\n\n{make_recipes()}"
    return text


if __name__ == "__main__":
    print(page(), end="")

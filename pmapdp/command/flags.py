"""The command lines of all commands: which settings a command line gives, with a recipe or without one."""

import dataclasses
from collections.abc import Collection
from typing import TypeVar

from pmapdp.command.parser import Parser
from pmapdp.config import Config
from pmapdp.errors import unknown
from pmapdp.recipes import RECIPES

Options = TypeVar("Options")


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """A command with a recipe and no options of its own."""


def parse_options(options: type[Options], arguments: list[str], *, program: str, example: str) -> Options:
    """The values of a command without a recipe: `options` is a dataclass, whose docstring describes the command;
    `program` and `example` are a command line that works."""
    return options(**Parser(program, example, options.__doc__).read([options], arguments))


def parse_with(
    own: type[Options], arguments: list[str], *, program: str, sections: Collection[str] | None = None
) -> tuple[Config, Options]:
    """The configuration that a command line with a recipe asks for, and the command's own options: a dataclass with a
    default for every field. Settings outside of `sections` keep the recipe's value."""
    named = next((each for each in arguments if each in RECIPES), "digits")
    about = "\n".join(["Recipes:", *(f"  {name}: {each.summary}" for name, each in RECIPES.items())])
    parser = Parser(program, "digits --devices 8", about)
    values = parser.read([Config, own], arguments, vars(RECIPES[named].config), sections)
    if (recipe := values.pop("recipe", "digits")) not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    names = {field.name for field in dataclasses.fields(own)}  # type: ignore[arg-type]
    options = own(**{name: values.pop(name) for name in names & values.keys()})
    # A batch size on the command line replaces the recipe's, also when that is of the other kind.
    sizes = {"global_batch_size", "per_device_batch_size"}
    if len(sizes & values.keys()) == 1:
        values |= dict.fromkeys(sizes - values.keys())
    return dataclasses.replace(RECIPES[recipe].config, **values), options


def parse(arguments: list[str]) -> Config:
    """The configuration that the flags of `python -m pmapdp.train` ask for, those of several processes apart."""
    return parse_with(NoOptions, arguments, program="python -m pmapdp.train")[0]

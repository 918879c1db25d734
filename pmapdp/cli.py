"""The command lines of all commands: `[RECIPE] [flags]` to a `Config`, and the options of commands without a recipe."""

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Annotated, TypeVar

from pmapdp.config import GROUPS, Config, check
from pmapdp.errors import unknown
from pmapdp.flags import read_flags
from pmapdp.processes.options import ProcessesOptions
from pmapdp.recipes import RECIPES

Options = TypeVar("Options")


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

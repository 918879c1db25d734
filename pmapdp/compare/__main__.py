"""Train with the four strategies, or run your own steps, and compare the results.

    python -m pmapdp.compare                        # digits, on 8 devices and 1
    python -m pmapdp.compare --html page.html --dtype float64
    python -m pmapdp.compare old.py:program new.py:program --html page.html

A program of yours is a function without arguments that returns the arguments of
`pmapdp.verify.verify` in a dictionary. The first run that fails ends the comparison.

The exit status is 0 if all results are equal, 1 if not or if a program fails, and 2 if
the command is wrong.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from pmapdp import cli, flags
from pmapdp.compare import words
from pmapdp.compare.page import load_data, make_page
from pmapdp.compare.programs import compare_programs
from pmapdp.compare.results import Comparison, Measurement
from pmapdp.compare.sources import read_programs, read_strategies
from pmapdp.compare.strategies import compare_strategies
from pmapdp.compare.wrong_strategies import WRONG_STRATEGIES
from pmapdp.config import Config, setting
from pmapdp.errors import FailedError, UserError, unknown_name
from pmapdp.files import PAGE_SIGNATURES, REPORT_SIGNATURES, check_output, write_file
from pmapdp.steps import STRATEGIES

# The columns of a table: a head, and a function that fills it in for a run.
Columns = dict[str, Callable[[Measurement], Any]]
PARALLEL = tuple(name for name in STRATEGIES if name != "single")


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Settings of both comparisons."""

    programs: tuple[str, ...] = setting(
        "arguments",
        (),
        "Two or more of your own steps, in place of a recipe: functions that return "
        "verify's arguments by name.",
        positional="FILE.py:PROGRAM",
    )
    json: str | None = setting(
        "output", None, "Write all results to this file.", metavar="FILE"
    )
    html: str | None = setting(
        "output",
        None,
        "Write a page with pictures, code and numbers. It opens without a network.",
        metavar="FILE",
    )


@dataclass(frozen=True)
class CompareOptions(SharedOptions):
    """Settings of a comparison of the strategies.

    A single device always takes part, because the others must equal it.
    """

    strategies: tuple[str, ...] = setting(
        "comparison",
        PARALLEL,
        f"Which of {', '.join(PARALLEL)} to compare with a single device.",
    )
    devices: tuple[int, ...] = setting(
        "comparison",
        (),
        "How many devices to compare with one, as one number or several. Default: all "
        "accelerators, or 8 simulated CPU devices.",
    )
    steps: int = setting("comparison", 20, "Updates of each run, at least 10.")
    global_batch_size: int | None = setting(
        "comparison",
        None,
        "Examples per update, over all devices. Default: the recipe's.",
    )


@dataclass(frozen=True)
class ProgramsOptions(SharedOptions):
    """Settings of a comparison of your own steps."""

    devices: int | None = setting(
        "comparison",
        None,
        "When you compare your own steps, give one number. Default: all accelerators, "
        "or 8 simulated CPU devices.",
    )


COMMAND = flags.Command(
    usage="python -m pmapdp.compare [RECIPE or FILE.py:PROGRAM...] [flags]",
    example="python -m pmapdp.compare",
    description=__doc__,
)


def main(arguments: list[str]) -> None:
    """Run the command."""
    options: Any
    if names_programs(arguments):
        options = flags.parse(COMMAND, ProgramsOptions, arguments)
        programs = list(dict.fromkeys(options.programs))
        make_comparison = partial(make_program_comparison, programs, options.devices)
    else:
        sections = ("data", "model", "optimization")
        config, options = flags.parse_with_recipe(
            COMMAND, CompareOptions, arguments, sections
        )
        make_comparison = partial(make_strategy_comparison, config, options)
    json_file = check_output("--json", options.json, REPORT_SIGNATURES)
    html_file = check_output("--html", options.html, PAGE_SIGNATURES)
    if json_file and json_file == html_file:
        raise UserError(f"--json and --html are both {json_file}: name two files")
    comparison = make_comparison()
    if json_file:  # before anything is printed, whose reader may go away
        write_file(json_file, json.dumps(asdict(comparison), indent=2) + "\n")
    if html_file:
        write_file(html_file, make_page(comparison))
    print_comparison(comparison)
    if html_file:
        print(f"Open {html_file.resolve()} in a browser.")
    else:
        print("Add --html page.html for a page with the code and pictures.")
    unequal = words.find_unequal(comparison.runs)
    if unequal:
        raise FailedError(f"not proven equal: {', '.join(unequal)}")


def names_programs(arguments: Sequence[str]) -> bool:
    """Return True if an argument is a program, and not the value of a flag."""
    for before, argument in pairwise(["", *arguments]):
        is_value = before.startswith("--") or argument.startswith("--")
        if not is_value and ".py" in argument:
            return True
    return False


def make_strategy_comparison(config: Config, options: CompareOptions) -> Comparison:
    """Compare the strategies in one job."""
    if options.programs:
        raise UserError(
            f"{options.programs[0]} is no FILE.py:PROGRAM: try "
            "python -m pmapdp.compare old.py:program new.py:program"
        )
    for name in options.strategies:
        if name not in PARALLEL:
            raise unknown_name("strategy", name, PARALLEL)
    config = replace(config, steps=options.steps, mesh=None, layout="data")
    size = options.global_batch_size
    if size is not None:
        config = replace(config, global_batch_size=size, per_device_batch_size=None)
    counts: Sequence[int | None] = sorted(set(options.devices), reverse=True) or [None]
    columns = ["single", *options.strategies]
    names = columns[1:]
    if options.html or options.json:  # the terminal shows no wrong strategy
        names += WRONG_STRATEGIES
    runs = compare_strategies(config, names, counts)
    return Comparison(
        config=config,
        columns=columns,
        runs=[run for run in runs if run.strategy not in WRONG_STRATEGIES],
        wrong=[run for run in runs if run.strategy in WRONG_STRATEGIES],
        code=read_strategies(columns, load_data("to_copy.toml")),
    )


def make_program_comparison(programs: list[str], devices: int | None) -> Comparison:
    """Compare your own programs."""
    if len(programs) < 2:
        raise UserError(
            f"{' '.join(programs)} alone has nothing to be compared with: try "
            "python -m pmapdp.compare old.py:program new.py:program"
        )
    return Comparison(
        config=None,
        columns=programs,
        runs=compare_programs(programs, devices),
        wrong=[],
        code=read_programs(programs),
    )


def print_comparison(comparison: Comparison) -> None:
    """Print what differs between the runs, their results, and the conclusion."""
    console = Console(highlight=False, markup=False)
    console.print(words.summary(comparison))
    if comparison.config:
        what_differs: Columns = {
            "run": attrgetter("name"),
            "you pass": words.describe_batch,
            "your function sees": attrgetter("sees"),
            "who adds up": words.who_adds_up,
        }
        results: Columns = {
            "run": attrgetter("name"),
            "loss": words.describe_loss,
            "difference": words.describe_difference,
            "ms an update": words.describe_time,
        }
        print_table(console, comparison.runs, what_differs)
    else:
        results = {
            "run": attrgetter("label"),  # all are on the same devices
            "verify": attrgetter("verdict"),
            "difference": words.describe_difference,
            "ms an update": words.describe_time,
            "who adds up": words.who_adds_up,
        }
    print_table(console, comparison.runs, results)
    for run in comparison.runs:
        if run.report and run.verdict != "equal":
            console.print(f"\n{run.name}:\n{run.report}", soft_wrap=True)
    console.print()
    console.print(words.conclude(comparison))
    console.print("An update's time is a median, with the middle half in brackets.")
    if any(run.simulated for run in comparison.runs):
        console.print(
            "Simulated devices share cores: their times don't predict an accelerator's."
        )


def print_table(
    console: Console, runs: Sequence[Measurement], columns: Columns
) -> None:
    """Print a row for each run, below an empty line."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))
    for head in columns:
        table.add_column(head, overflow="fold")
    for run in runs:
        table.add_row(*[str(describe(run)) for describe in columns.values()])
    console.print("", table, sep="\n")


if __name__ == "__main__":
    sys.exit(cli.run(main))

"""Train in four ways side by side, or run steps of your own, and show where they agree and differ.

    python -m pmapdp.compare                        # digits, on 8 devices and 1
    python -m pmapdp.compare --devices 2 4 8 --html page.html
    python -m pmapdp.compare --dtype float64        # rounding alone differs
    python -m pmapdp.compare old.py:program new.py:program --html page.html

A program of your own is a function without arguments that returns those of `pmapdp.verify.verify` in a dictionary. The
first run that fails ends the comparison with its error.
"""

import json
import sys
import textwrap
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from rich.console import Console

from pmapdp import cli
from pmapdp.compare.page import page
from pmapdp.compare.reports import Report, report_of_programs, report_of_ways
from pmapdp.compare.table import WIDTH, summary, tables, verified
from pmapdp.config import setting
from pmapdp.custom.data import custom_files
from pmapdp.errors import UserError
from pmapdp.files import HTML, JSON, check_output, write_file

PAGE = "Write a page to this file, with the sources row by row; it opens without a network."


@dataclass(frozen=True)
class CompareOptions:
    """What is compared, and where the result goes. A single device always takes part: the others must equal it."""

    recipe: str = setting(
        "arguments",
        "digits",
        "One of those below; or two or more FILE.py:PROGRAM, steps of your own as pmapdp.verify takes them.",
        place="[RECIPE]",
    )
    strategies: tuple[Literal["pmap", "shard_map", "jit"], ...] = setting(
        "comparison", ("pmap", "shard_map", "jit"), "Strategies to compare with a single device."
    )
    devices: tuple[int, ...] = setting(
        "comparison",
        (),
        "Numbers of devices, each a run of its own; default: all accelerators, or 8 simulated CPU devices.",
    )
    steps: int = setting(
        "comparison",
        100,
        "Updates of each run, at least 2. The default is enough to see equal losses and a steady speed.",
    )
    global_batch_size: int | None = setting(
        "comparison",
        None,
        "Examples per update over all devices; default: as the recipe has it on the largest number of devices.",
    )
    json: str | None = setting("comparison", None, "Write all results to this file.")
    html: str | None = setting("comparison", None, PAGE)


@dataclass(frozen=True)
class OwnOptions:
    """Compare steps of your own with one another: sources, results, what devices hold and exchange, memory and time."""

    programs: tuple[str, ...] = setting(
        "arguments",
        (),
        "Functions without arguments that return those of pmapdp.verify.verify in a dictionary, two or more.",
        place="FILE.py:PROGRAM",
    )
    devices: int | None = setting(
        "options", None, "Number of devices; default: all accelerators, or 8 simulated CPU devices where there is none."
    )
    json: str | None = setting("options", None, "Write all results to this file.")
    html: str | None = setting("options", None, PAGE)


def main(arguments: list[str]) -> None:
    """The command."""
    pairs = pairwise(["", *arguments])
    given = [each for before, each in pairs if not before.startswith("--") and not each.startswith("--")]
    own = any(".py" in each for each in given)  # and not the value of a flag, as in --model my_file.py:Net
    report, json_file, html_file = (own_programs if own else four_ways)(arguments)
    if json_file:  # before anything is printed, whose reader may go away
        write_file(json_file, json.dumps(report, indent=2) + "\n")
    if html_file:
        write_file(html_file, page(report))
    print(textwrap.fill(summary(report), WIDTH))
    console = Console(highlight=False, width=min(WIDTH, Console().width) if sys.stdout.isatty() else WIDTH)
    for each in tables(report):
        console.print(each, markup=False)
    print(f"\n{verified(report['runs'])}")
    if any(run["simulated"] for run in report["runs"]):
        print("Simulated devices share the cores: they show equal results, not a speed-up.")
    if html_file:
        print(f"Open {html_file.name} in a browser: a page with the sources row by row.")
    else:
        print("Add --html page.html for a page with the sources row by row.")


def say(line: str) -> None:
    """Tell how far it is."""
    print(line, file=sys.stderr, flush=True)


def four_ways(arguments: list[str]) -> tuple[Report, Path | None, Path | None]:
    """The report of a recipe, and the files that were asked for."""
    sections = ("data", "model", "optimization")
    config, options = cli.parse_with_recipe(CompareOptions, arguments, __doc__, sections)
    config = replace(config, steps=options.steps, mesh=None, layout="data")
    if options.global_batch_size is not None:
        config = replace(config, global_batch_size=options.global_batch_size, per_device_batch_size=None)
    json_file, html_file = outputs(options, custom_files(config))
    return report_of_ways(config, options.strategies, options.devices, say), json_file, html_file


def own_programs(arguments: list[str]) -> tuple[Report, Path | None, Path | None]:
    """The report of steps of the reader's own, and the files that were asked for."""
    options = cli.parse(OwnOptions, arguments, __doc__)
    programs = list(dict.fromkeys(options.programs))
    if len(programs) < 2:
        raise UserError(
            f"{' '.join(programs)} alone has nothing to be compared with: try python -m pmapdp.compare old.py:program "
            "new.py:program"
        )
    json_file, html_file = outputs(options, [each.rpartition(":")[0] for each in programs])
    return report_of_programs(programs, options.devices, say), json_file, html_file


def outputs(options: CompareOptions | OwnOptions, inputs: list[str]) -> tuple[Path | None, Path | None]:
    """The files to write, which are not those that are read."""
    json_file = check_output("--json", options.json, JSON, inputs)
    return json_file, check_output("--html", options.html, HTML, [*inputs, options.json])


if __name__ == "__main__":
    sys.exit(cli.run(main))

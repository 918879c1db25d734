"""Train with the four strategies side by side, or run steps of your own, and show what's equal and what differs.

    python -m pmapdp.compare                        # digits, on 8 devices and 1
    python -m pmapdp.compare --html page.html --dtype float64
    python -m pmapdp.compare old.py:program new.py:program --html page.html

A program of yours is a function that returns the arguments of `pmapdp.verify.verify` in
a dictionary. The first run that fails ends the comparison with its error.
"""

import json
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from pmapdp import cli
from pmapdp.compare import words
from pmapdp.compare.page import make_page
from pmapdp.compare.pitfalls import run_pitfalls
from pmapdp.compare.programs import compare_programs, program_sections
from pmapdp.compare.sources import read_sections
from pmapdp.compare.stacked import STACKED
from pmapdp.compare.strategies import MAKERS, compare_strategies, in_new_process
from pmapdp.config import Config, setting
from pmapdp.errors import UserError, unknown
from pmapdp.files import HTML, JSON, check_output, write_file
from pmapdp.steps import STRATEGIES

WIDTH = 100  # columns
OTHERS = tuple(name for name in STRATEGIES if name != "single")


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Settings of what is written."""

    json: str | None = setting("output", None, "Write all results to this file.")
    html: str | None = setting(
        "output",
        None,
        "Write a page with the answer, the code and the figures; it opens without a network.",
    )


@dataclass(frozen=True)
class CompareOptions(Outputs):
    """Settings of a comparison of the strategies. A single device always takes part: the others must equal it."""

    strategies: tuple[str, ...] = setting(
        "comparison", OTHERS, "Strategies to compare with a single device."
    )
    devices: tuple[int, ...] = setting(
        "comparison",
        (),
        "Numbers of devices; default: all accelerators, or 8 simulated CPU devices.",
    )
    steps: int = setting("comparison", 20, "Updates of each run, at least 10.")
    global_batch_size: int | None = setting(
        "comparison",
        None,
        "Examples per update over all devices; default: the recipe's, on the most devices.",
    )


@dataclass(frozen=True)
class ProgramsOptions(Outputs):
    """Settings of a comparison of steps of your own."""

    programs: tuple[str, ...] = setting(
        "arguments",
        (),
        "Two or more functions that return verify's arguments by name.",
        place="FILE.py:PROGRAM",
    )
    devices: int | None = setting(
        "comparison",
        None,
        "Of steps of your own: one number of devices; default: the same.",
    )


def main(arguments: list[str]) -> None:
    """Run the command."""
    given = [
        each
        for before, each in pairwise(["", *arguments])
        if before[:2] != "--" and each[:2] != "--"
    ]
    options: Any
    if any(
        ".py" in each for each in given
    ):  # and not after a flag, as in --model my_file.py:Net
        options = cli.parse(ProgramsOptions, arguments, __doc__)
        make_report = partial(
            report_programs, list(dict.fromkeys(options.programs)), options.devices
        )
    else:
        config, options = cli.parse_with_recipe(
            CompareOptions, arguments, __doc__, ("data", "model", "optimization")
        )
        make_report = partial(report_strategies, config, options)
    json_file = check_output("--json", options.json, JSON)
    html_file = check_output("--html", options.html, HTML)
    if json_file and json_file == html_file:
        raise UserError(f"--json and --html are both {json_file}: name two files")
    report = make_report()
    if json_file:  # before anything is printed, whose reader may go away
        write_file(json_file, json.dumps(report, indent=2) + "\n")
    if html_file:
        write_file(html_file, make_page(report))
    print_report(report)
    where = (
        f"Open {html_file.resolve()} in a browser"
        if html_file
        else "Add --html page.html for a page"
    )
    print(f"{where}: who adds up, and the code line by line.")


def report_strategies(config: Config, options: CompareOptions) -> dict[str, Any]:
    """Compare the strategies in one job."""
    for name in options.strategies:
        if name not in OTHERS:
            raise unknown("strategy", name, OTHERS)
    config = replace(config, steps=options.steps, mesh=None, layout="data")
    if options.global_batch_size is not None:
        config = replace(
            config,
            global_batch_size=options.global_batch_size,
            per_device_batch_size=None,
        )
    names = list(options.strategies)
    if "pmap" in names:  # also as old programs use it
        names.insert(names.index("pmap") + 1, STACKED)
    return {
        "config": asdict(config),
        "columns": ["single", *options.strategies],
        "runs": compare_strategies(
            config, names, sorted(set(options.devices), reverse=True) or [None]
        ),
        **read_sections({name: MAKERS[name] for name in ("single", *names)}),
        "pitfalls": in_new_process(run_pitfalls),
    }


def report_programs(programs: list[str], devices: int | None) -> dict[str, Any]:
    """Compare programs of yours."""
    if len(programs) < 2:
        alone = f"{' '.join(programs)} alone has nothing to be compared with"
        raise UserError(
            f"{alone}: try python -m pmapdp.compare old.py:program new.py:program"
        )
    runs, code = compare_programs(programs, devices), program_sections(programs)
    return {
        "config": None,
        "columns": programs,
        "runs": runs,
        "code": code,
        "shared": [],
        "pitfalls": [],
    }


def print_report(report: dict[str, Any]) -> None:
    """Print the runs, as README shows them, the mistakes, and the conclusion."""
    console = Console(
        highlight=False,
        width=min(WIDTH, Console().width) if sys.stdout.isatty() else WIDTH,
    )
    console.print(words.summary(report), markup=False)
    facts = ("result", "difference", "time", "rate", "who")
    heads = (
        "run",
        "loss" if report["config"] else "verify",
        "difference",
        "update",
        "examples/s",
        "who adds up",
    )
    described = [(run["name"], words.describe(run)) for run in report["runs"]]
    print_table(
        console,
        heads,
        [[name, *(found[fact] for fact in facts)] for name, found in described],
    )
    if report["pitfalls"]:
        mapped, rows = ("pmap", "shard_map"), []
        for case in report["pitfalls"]:
            wrong = case["results"]["wrong"]
            rows.append(
                [
                    case["name"],
                    *(
                        words.verdict(wrong[name]) if name in wrong else ""
                        for name in mapped
                    ),
                ]
            )
        print_table(console, ("a mistake that raises no error", *mapped), rows)
    for run in report["runs"]:
        for finding in run.get("findings", ()):
            console.print(f"{run['name']}, {finding}", markup=False)
    console.print(words.conclude(report), markup=False)
    if any(run["simulated"] for run in report["runs"]):
        console.print(
            "Simulated devices share the cores: they show equal results, not a speed-up."
        )


def print_table(
    console: Console, heads: tuple[str, ...], rows: list[list[str]]
) -> None:
    """Print a table."""
    table = Table(
        *heads, box=box.SIMPLE_HEAD, width=console.width, pad_edge=False, padding=(0, 1)
    )
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False)


if __name__ == "__main__":
    sys.exit(cli.run(main))

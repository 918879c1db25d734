"""Train with the four strategies side by side, or run steps of your own, and show where they agree and differ.

    python -m pmapdp.compare                        # digits, on 8 devices and 1
    python -m pmapdp.compare --html page.html --dtype float64
    python -m pmapdp.compare old.py:program new.py:program --html page.html

A program of yours is a function without arguments that returns those of `pmapdp.verify.verify` in a dictionary. The
first run that fails ends the comparison with its error.
"""

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from pmapdp import cli
from pmapdp.compare import words
from pmapdp.compare.page import make_page
from pmapdp.compare.pitfalls import run_pitfalls, verdict
from pmapdp.compare.programs import compare_programs, program_sections
from pmapdp.compare.sources import code_sections, shared_sections
from pmapdp.compare.strategies import MAKERS, STACKED, compare_strategies, in_new_process
from pmapdp.config import setting
from pmapdp.errors import UserError
from pmapdp.files import HTML, JSON, check_output, write_file

WIDTH = 100  # columns
PAGE = "Write a page to this file, with the answer, the code and the figures; it opens without a network."
VERBOSE = "Also print what each run holds and exchanges."
RESULTS = "Write all results to this file."
Prepared = tuple[Any, list[str], Callable[[], dict[str, Any]]]  # options, files that are read, and the comparison


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
        "comparison", (), "Numbers of devices; default: all accelerators, or 8 simulated CPU devices."
    )
    steps: int = setting("comparison", 20, "Updates of each run, at least 10.")
    global_batch_size: int | None = setting(
        "comparison", None, "Examples per update over all devices; default: the recipe's, on the most devices."
    )
    verbose: bool = setting("comparison", False, VERBOSE)
    json: str | None = setting("comparison", None, RESULTS)
    html: str | None = setting("comparison", None, PAGE)


@dataclass(frozen=True)
class ProgramsOptions:
    """Compare steps of your own with one another: sources, results, what devices hold and exchange, memory and time."""

    programs: tuple[str, ...] = setting(
        "arguments",
        (),
        "Functions without arguments that return those of pmapdp.verify.verify in a dictionary, two or more.",
        place="FILE.py:PROGRAM",
    )
    devices: int | None = setting(
        "options", None, "Number of devices; default: all accelerators, or 8 simulated CPU devices if there is none."
    )
    verbose: bool = setting("options", False, VERBOSE)
    json: str | None = setting("options", None, RESULTS)
    html: str | None = setting("options", None, PAGE)


def main(arguments: list[str]) -> None:
    """Run the command."""
    given = [each for before, each in pairwise(["", *arguments]) if before[:2] != "--" and each[:2] != "--"]
    are_yours = any(".py" in each for each in given)  # and not the value of a flag, as in --model my_file.py:Net
    options, inputs, compare = (prepare_programs if are_yours else prepare_strategies)(arguments)
    json_file = check_output("--json", options.json, JSON, inputs)
    html_file = check_output("--html", options.html, HTML, [*inputs, options.json])
    report = compare()
    if json_file:  # before anything is printed, whose reader may go away
        write_file(json_file, json.dumps(report, indent=2) + "\n")
    if html_file:
        write_file(html_file, make_page(report))
    console = Console(highlight=False, width=min(WIDTH, Console().width) if sys.stdout.isatty() else WIDTH)
    for part in text_of(report, options.verbose):
        console.print(part, markup=False)
    where = f"Open {html_file.resolve()} in a browser" if html_file else "Add --html page.html for a page"
    mistakes = ", seven mistakes that raise no error" * bool(report["pitfalls"])
    print(f"{where}: who adds up, the code line by line{mistakes}.")


def prepare_strategies(arguments: list[str]) -> Prepared:
    """Read the command line for a comparison of the strategies in one job."""
    config, options = cli.parse_with_recipe(CompareOptions, arguments, __doc__, ("data", "model", "optimization"))
    config = replace(config, steps=options.steps, mesh=None, layout="data")
    if options.global_batch_size is not None:
        config = replace(config, global_batch_size=options.global_batch_size, per_device_batch_size=None)
    forms = {"pmap": ("pmap", STACKED)}  # as in steps/pmap.py, and as in old programs
    names = [name for strategy in options.strategies for name in forms.get(strategy, (strategy,))]
    counts: list[int | None] = [*sorted(set(options.devices), reverse=True)] or [None]

    def compare() -> dict[str, Any]:
        return {
            "config": asdict(config),
            "columns": ["single", *(name for name in names if name != STACKED)],
            "runs": compare_strategies(config, names, counts, say),
            "code": code_sections({name: MAKERS[name] for name in ("single", *names)}),
            "shared": shared_sections(),
            "pitfalls": in_new_process(run_pitfalls),
        }

    return options, [], compare


def prepare_programs(arguments: list[str]) -> Prepared:
    """Read the command line for a comparison of programs of the reader's."""
    options = cli.parse(ProgramsOptions, arguments, __doc__)
    programs = list(dict.fromkeys(options.programs))
    if len(programs) < 2:
        alone = f"{' '.join(programs)} alone has nothing to be compared with"
        raise UserError(f"{alone}: try python -m pmapdp.compare old.py:program new.py:program")

    def compare() -> dict[str, Any]:
        runs = compare_programs(programs, options.devices, say)
        code = program_sections(programs)
        return {"config": None, "columns": programs, "runs": runs, "code": code, "shared": [], "pitfalls": []}

    return options, [each.rpartition(":")[0] for each in programs], compare


def say(line: str) -> None:
    """Tell how far it is, at once, also into a file."""
    print(line, file=sys.stderr, flush=True)


def text_of(report: dict[str, Any], verbose: bool) -> Iterator[Any]:
    """Yield what is printed: the runs first and last, and the mistakes; if `verbose` also what the runs hold."""
    runs = report["runs"]
    yield textwrap.fill(words.summary(report), WIDTH)
    yield table_of_runs(runs)
    if verbose:
        rows = [[run["name"], words.exchanged(run["collectives"]), words.memory(run)] for run in runs]
        yield table(["run", "exchanged in an update", "memory on a device"], rows)
        rows = [[run["name"], *(words.holding(run["holds"].get(part)) for part in ("state", "batch"))] for run in runs]
        yield table(["run", "largest array of the state", "largest array of the batch"], rows)
    if report["pitfalls"]:
        cases = [(case["name"], case["results"]["wrong"]) for case in report["pitfalls"]]
        rows = [
            [name, *(verdict(off[way]) if way in off else "" for way in ("pmap", "shard_map"))] for name, off in cases
        ]
        yield table(["a mistake that raises no error", "pmap", "shard_map"], rows)
    if verbose:
        yield table_of_runs(runs)
    for run in runs:
        yield from (textwrap.fill(f"{run['name']}, {each}", WIDTH) for each in run.get("findings", ()))
    yield textwrap.fill(words.conclude(report), WIDTH)
    if any(run["simulated"] for run in runs):
        yield "Simulated devices share the cores: they show equal results, not a speed-up."


def table_of_runs(runs: list[dict[str, Any]]) -> Table:
    """Make the table of README: what came out, how fast, and who adds up."""
    result = "loss" if "losses" in runs[0] else "verify"
    rows = [
        [
            run["name"],
            words.result(run),
            words.difference(run),
            words.time(run),
            words.rate(run),
            words.who_adds_up(run),
        ]
        for run in runs
    ]
    return table(["run", result, "difference", "update", "examples/s", "who adds up"], rows)


def table(columns: list[str], rows: list[list[str]]) -> Table:
    """Make a table."""
    found = Table(*columns, box=box.SIMPLE_HEAD, width=WIDTH, pad_edge=False, padding=(0, 1))
    for row in rows:
        found.add_row(*row)
    return found


if __name__ == "__main__":
    sys.exit(cli.run(main))

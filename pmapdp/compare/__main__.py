"""Every strategy on the same job and seed: `python -m pmapdp.compare [RECIPE] [flags]`.

    python -m pmapdp.compare                                       # digits, 100 updates each, 8 devices and 1
    python -m pmapdp.compare --devices 2 4 8 --html page.html
    python -m pmapdp.compare --dtype float64                       # differences that are rounding alone

Each run is a process of its own. A step's time includes taking its batch on the host and placing it, as in training;
the host waits for the devices only at the end of a group of updates, so that their work overlaps as in training too.
"""

import json
import sys
from typing import Any

from rich.console import Console

from pmapdp.cli import parse_with
from pmapdp.compare.options import GROUPS, CompareOptions, check_options
from pmapdp.compare.page import page
from pmapdp.compare.runs import compare
from pmapdp.compare.table import print_table, run_name
from pmapdp.errors import run_command
from pmapdp.files import write_file
from pmapdp.workers import WorkerError, ended_by_signals

WIDE = 400  # columns where the output is no terminal: a file has no width, and wrapped cells are hard to read


def summary(report: dict[str, Any]) -> str:
    """One line on what was compared."""
    config, job = report["config"], report["job"]
    return (
        f"{config['recipe']}: {config['model']} on {config['dataset']}, {job['steps']:,} updates of "
        f"{job['global_batch_size']:,} examples, {config['dtype']}, seed {config['seed']}; "
        f"{job['machine']['devices']}, jax {job['machine']['jax']}"
    )


def main(arguments: list[str]) -> None:
    """The command."""
    config, options = parse_with(CompareOptions, arguments, program="python -m pmapdp.compare", groups=GROUPS)
    check_options(config, options)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    with ended_by_signals():
        report = compare(config, options, say=lambda line: print(line, file=sys.stderr, flush=True))
    console.print(summary(report), markup=False, soft_wrap=True)
    print_table(report["runs"], console)
    if report["job"]["machine"]["simulated"]:
        print("Simulated devices share the cores: they show equal results, not a speed-up.")
    if options.json is not None:
        write_file(options.json, json.dumps(report, indent=2) + "\n")
    if options.html is not None:
        write_file(options.html, page(report))
    if all(run["error"] for run in report["runs"]):
        first = report["runs"][0]
        raise WorkerError(f"every run failed; {run_name(first)}: {first['error']}", first["status"])
    if options.html:
        print(f"Open {options.html} in a browser: curves, bars, and the sources side by side.")
    else:
        print("Add --html page.html for a page with curves, bars and the sources side by side.")


if __name__ == "__main__":
    sys.exit(run_command(main))

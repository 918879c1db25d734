"""Every strategy on the same job and seed: `python -m pmapdp.compare [RECIPE] [flags]`.

    python -m pmapdp.compare                                       # digits, 100 updates each, 8 devices and 1
    python -m pmapdp.compare --devices 2 4 8 --html page.html
    python -m pmapdp.compare --dtype float64                       # differences that are rounding alone

Each run is a process of its own. A step's time includes taking its batch on the host and placing it, as in training;
the host waits for the devices only at the end of a group of updates, so that their work overlaps as in training too.
"""

import json
import sys

from pmapdp.cli import parse_with
from pmapdp.compare.options import GROUPS, CompareOptions, check_options
from pmapdp.compare.page import page
from pmapdp.compare.runs import compare
from pmapdp.compare.table import failures, run_name, summary, table
from pmapdp.errors import run_command
from pmapdp.files import write_file
from pmapdp.terminal import console
from pmapdp.workers import WorkerError


def main(arguments: list[str]) -> None:
    """The command."""
    config, options = parse_with(CompareOptions, arguments, program="python -m pmapdp.compare", groups=GROUPS)
    check_options(config, options)
    report = compare(config, options, say=lambda line: print(line, file=sys.stderr, flush=True))
    runs = report["runs"]
    print(summary(report))
    console().print(table(runs))
    for line in failures(runs):
        print(line)
    if report["job"]["simulated"]:
        print("Simulated devices share the cores: they show equal results, not a speed-up.")
    if options.json is not None:
        write_file(options.json, json.dumps(report, indent=2) + "\n")
    if all(run["error"] for run in runs):
        raise WorkerError(f"every run failed; {run_name(runs[0])}: {runs[0]['error']}", runs[0]["status"])
    if options.html is not None:
        write_file(options.html, page(report))
        print(f"Open {options.html} in a browser: a page with the loss curves and the sources side by side.")
    else:
        print("Add --html page.html for a page with the loss curves and the sources side by side.")


if __name__ == "__main__":
    sys.exit(run_command(main))

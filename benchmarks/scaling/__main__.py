"""The predictions of `pmapdp.scaling` beside what can be found here: `python -m benchmarks.scaling [MODEL]`.

    python -m benchmarks.scaling                # cnn
    python -m benchmarks.scaling transformer --json checks.json

Compiled programs, simulated devices, two processes, and a published run; a minute or two. Each prediction stands beside
what was found, with its error. Run it from the repository's root and leave the machine alone meanwhile.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.scaling.checks import (
    Check,
    Line,
    check_compiled,
    check_count,
    check_gloo,
    check_published,
    check_simulated,
)
from benchmarks.scaling.fit import shared_memory_terms, typical
from pmapdp.errors import run_command
from pmapdp.registry import MODELS
from pmapdp.scaling.table import percent, seconds
from pmapdp.terminal import console
from pmapdp.workers import ended_by_signals

HERE = (1, 2, 8, 64, 512)  # simulated devices of this machine


def predict_here(constants: dict[str, float], counts: Sequence[int]) -> list[dict[str, float]]:
    """Steps of N simulated devices of this machine, from the constants that `check_simulated` has measured."""
    rows = []
    alone, reduces = constants["step_of_one_device_seconds"], constants["all_reduces"]
    unknowns = [constants[name] for name in ("start_seconds", "latency_seconds", "seconds_per_byte")]
    for N in counts:
        terms = shared_memory_terms(N, constants["all_reduce_bytes"] / reduces)
        reduce = reduces * sum(u * t for u, t in zip(unknowns, terms, strict=True)) if N > 1 else 0.0
        step = N * alone + reduce
        rows.append(
            {
                "devices": N,
                "step": step,
                "compute": N * alone,
                "communication": reduce,
                "communication_share": reduce / step,
                "weak_efficiency": alone / step,
            }
        )
    return rows


def print_here(rows: list[dict[str, float]], console: Console) -> None:
    """A table for the simulated devices of this machine."""
    heads = "devices", "step", "compute", "all-reduce", "waiting", "weak efficiency"
    title = "simulated devices of this machine, which share its cores; predicted from constants measured above"
    table = Table(*heads, title=title, title_justify="left")
    for row in rows:
        table.add_row(
            f"{row['devices']:,}",
            *(seconds(row[key]) for key in ("step", "compute", "communication")),
            *(percent(row[key]) for key in ("communication_share", "weak_efficiency")),
        )
    console.print(table)


def quantity(value: float, unit: str) -> str:
    """A value of a check."""
    if unit == "s":
        return seconds(value)
    return f"{value:,.0f} {unit}".strip() if value == int(value) else f"{value:.3f} {unit}".strip()


def print_check(check: Check, console: Console) -> None:
    """Every prediction beside what was found, and the typical error."""
    table = Table("check", "predicted", "found", "error", title=check.title, title_justify="left")
    for line in check.lines:
        cells = quantity(line.predicted, line.unit), quantity(line.found, line.unit), f"{100 * line.error:+.1f} %"
        table.add_row(line.what, *cells)
    console.print(table)
    console.print(f"median error {percent(median_error(check.lines))}", *constants(check), sep="; ", soft_wrap=True)


def median_error(lines: list[Line]) -> float:
    """Median size of the errors."""
    return typical([line.error for line in lines])


def constants(check: Check) -> list[str]:
    """The fitted constants in readable units."""
    found = []
    for name, value in check.constants.items():
        label = name.removesuffix("_seconds").replace("_", " ")
        if name == "seconds_per_byte":
            found.append(f"{1e-9 / value:.2f} GB/s" if value else "bandwidth too high to see")
        elif name.endswith("_seconds"):
            found.append(f"{label} {seconds(value)}")
    return found


def main(arguments: list[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", choices=MODELS, default="cnn")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    options = parser.parse_args(arguments)
    screen, report = console(), dict[str, Any]()
    with ended_by_signals():
        for check in (check_published, check_count, check_compiled, check_simulated, check_gloo):
            found = check() if check is check_published else check(options.model)
            report[check.__name__] = found.as_json()
            print_check(found, screen)
    rows = predict_here(report["check_simulated"]["constants"], HERE)
    print_here(rows, screen)
    if options.json:
        options.json.write_text(json.dumps(report | {"here": rows}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(run_command(main))

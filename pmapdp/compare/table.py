"""The table of a comparison: one column a run, one row a quantity. Printed with rich, and part of the page."""

from collections.abc import Callable
from typing import Any

from rich.table import Table

DASH = "\u2013"
Runs = list[dict[str, Any]]


def summary(report: dict[str, Any]) -> str:
    """One line on what was compared."""
    config, job = report["config"], report["job"]
    return (
        f"{config['recipe']}: {config['model']} on {config['dataset']} ({job['training_examples']:,} examples), "
        f"{job['steps']:,} updates of {job['global_batch_size']:,} examples by {config['optimizer']} at "
        f"{config['learning_rate']:g}, {config['dtype']}, seed {config['seed']}; {job['machine']}"
    )


def run_name(run: dict[str, Any]) -> str:
    """For example `pmap x 8`; the multiplication sign reads as "on 8 devices"."""
    return run["strategy"] if run["strategy"] == "single" else f"{run['strategy']} \u00d7 {run['devices']}"


def failures(runs: Runs) -> list[str]:
    """A sentence about each run that failed."""
    return [f"{run_name(run)} failed: {run['error']}" for run in runs if run["error"]]


def size(count: int) -> str:
    """Bytes in decimal units."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} B"


def milliseconds(step_ms: dict[str, float]) -> str:
    """Median and quartiles."""
    return f"{step_ms['median']:.3g} ms ({step_ms['low']:.3g} to {step_ms['high']:.3g})"


def exchanged(run: dict[str, Any]) -> str:
    """For example `1 all-reduce, 1.39 MB`."""
    return "; ".join(f"{each['count']} {each['kind']}, {size(each['bytes'])}" for each in run["collectives"]) or "none"


def difference(run: dict[str, Any]) -> str:
    """The largest difference to the single device."""
    if run["strategy"] == "single":
        return "the reference"
    return DASH if run["largest_difference"] is None else f"{run['largest_difference']:.1e}"


def table_rows(runs: Runs) -> list[tuple[str, str, list[str]]]:
    """Every quantity: its name, what exactly it is, and its value in every run; a dash where a run has failed."""

    def share(run: dict[str, Any]) -> str:
        if runs[0]["error"]:
            return DASH
        mine, whole = (each["parameter_bytes"] + each["optimizer_bytes"] for each in (run, runs[0]))
        return f"{mine / whole:.3f}"

    columns: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...] = (
        ("loss", "of the last update, mean over its global batch", lambda run: f"{run['final_loss']:.4f}"),
        ("difference", "largest of any parameter to one device, after the last update", difference),
        ("compile", "trace and compile the training step", lambda run: f"{run['compile_seconds']:.2f} s"),
        ("step", "median over groups of updates (and the middle half)", lambda run: milliseconds(run["step_ms"])),
        ("examples/s", "median over the same groups", lambda run: f"{run['examples_per_second']:,.0f}"),
        ("parameters", "bytes on one device", lambda run: size(run["parameter_bytes"])),
        ("optimizer state", "bytes on one device", lambda run: size(run["optimizer_bytes"])),
        ("share", "of the bytes of parameters and optimizer state, on one device", share),
        ("collectives", "in the compiled step, and bytes of their results on one device", exchanged),
    )
    return [(name, meaning, [DASH if run["error"] else cell(run) for run in runs]) for name, meaning, cell in columns]


def table(runs: Runs) -> Table:
    """The table, to print."""
    table = Table("", *map(run_name, runs))
    for name, _, cells in table_rows(runs):
        table.add_row(name, *cells)
    return table

"""The table of a comparison: one column a run, one row a quantity. Printed with rich, and part of the page."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

DASH = "\u2013"


def summary(report: dict[str, Any]) -> str:
    """One line on what was compared."""
    config, job, machine = report["config"], report["job"], report["job"]["machine"]
    return (
        f"{config['recipe']}: {config['model']} on {config['dataset']} ({job['training_examples']:,} examples), "
        f"{job['steps']:,} updates of {job['global_batch_size']:,} examples by {config['optimizer']} at "
        f"{config['learning_rate']:g}, {config['dtype']}, seed {config['seed']}; {machine['devices']}, "
        f"{machine['system']}, Python {machine['python']}, jax {machine['jax']}"
    )


def run_name(run: dict[str, Any]) -> str:
    """For example `pmap x 8`; the multiplication sign reads as "on 8 devices"."""
    return run["strategy"] if run["strategy"] == "single" else f"{run['strategy']} \u00d7 {run['devices']}"


def size(count: int) -> str:
    """Bytes in decimal units."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} B"


def milliseconds(step_ms: dict[str, float] | None) -> str:
    """Median and quartiles."""
    if step_ms is None:
        return DASH
    digits = 1 if step_ms["median"] >= 10 else 2
    return f"{step_ms['median']:.{digits}f} ms ({step_ms['low']:.{digits}f} to {step_ms['high']:.{digits}f})"


def exchanged(run: dict[str, Any]) -> str:
    """For example `1 all-reduce, 1.39 MB`."""
    return "; ".join(f"{each['count']} {each['kind']}, {size(each['bytes'])}" for each in run["collectives"]) or "none"


def difference(run: dict[str, Any]) -> str:
    """The largest difference to the single device."""
    if run["strategy"] == "single":
        return "the reference"
    return DASH if run["largest_difference"] is None else f"{run['largest_difference']:.1e}"


def table_rows(runs: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Every quantity: its name, what exactly it is, and its value in every run; a dash where a run has failed."""

    def state_bytes(run: dict[str, Any]) -> int:
        return run["parameter_bytes"] + run["optimizer_bytes"]

    def share(run: dict[str, Any]) -> str:
        return DASH if runs[0]["error"] else f"{state_bytes(run) / state_bytes(runs[0]):.3f}"

    def rate(run: dict[str, Any]) -> str:
        return DASH if run["examples_per_second"] is None else f"{run['examples_per_second']:,.0f}"

    first = "from the start of the run (data, parameters, compile) to the end of update 1"
    columns: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...] = (
        ("loss", "of the last update, mean over its global batch", lambda run: f"{run['final_loss']:.4f}"),
        ("difference", "largest of any parameter to one device, after the last update", difference),
        ("compile", "trace and compile the training step", lambda run: f"{run['compile_seconds']:.2f} s"),
        ("first step", first, lambda run: f"{run['first_step_seconds']:.2f} s"),
        ("step", "median over groups of updates (and the middle half)", lambda run: milliseconds(run["step_ms"])),
        ("examples/s", "median over the same groups", rate),
        ("parameters", "bytes on one device", lambda run: size(run["parameter_bytes"])),
        ("optimizer state", "bytes on one device", lambda run: size(run["optimizer_bytes"])),
        ("share", "of the bytes of parameters and optimizer state, on one device", share),
        ("batch", "bytes on one device", lambda run: size(run["batch_bytes"])),
        ("collectives", "in the compiled step, and bytes of their results on one device", exchanged),
    )
    return [(name, meaning, [DASH if run["error"] else cell(run) for run in runs]) for name, meaning, cell in columns]


def print_table(runs: list[dict[str, Any]], console: Console) -> None:
    """Print the table, then the message of each run that failed."""
    table = Table("", *(run_name(run) for run in runs), title_justify="left")
    for name, _, cells in table_rows(runs):
        table.add_row(name, *cells)
    console.print(table)
    for run in runs:
        if run["error"]:
            console.print(f"{run_name(run)} failed: {run['error']}", markup=False, soft_wrap=True)

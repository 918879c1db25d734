"""The table of a comparison: one row a run. Printed with rich, and part of the page."""

from typing import Any

from rich.filesize import decimal
from rich.table import Table

Runs = list[dict[str, Any]]


def summary(report: dict[str, Any]) -> str:
    """One line on what was compared."""
    config, first = report["config"], report["runs"][0]
    return (
        f"{config['recipe']}: {config['model']} on {config['dataset']}, {len(first['losses']):,} updates of "
        f"{first['global_batch_size']:,} examples by {config['optimizer']} at {config['learning_rate']:g}, "
        f"{config['dtype']}, seed {config['seed']}; {first['machine']}"
    )


def verified(runs: Runs) -> str:
    """One line on what `pmapdp.verify` finds."""
    wrong = [f"{run_name(run)}: {', '.join(run['causes'])}" for run in runs if run["causes"]]
    return "pmapdp.verify finds " + ("; ".join(wrong) or "that each step equals that of a single device") + "."


def run_name(run: dict[str, Any]) -> str:
    """For example `pmap x 8`; the multiplication sign reads as "on 8 devices"."""
    return run["strategy"] if run["strategy"] == "single" else f"{run['strategy']} \u00d7 {run['devices']}"


def rows(runs: Runs) -> list[list[str]]:
    """A row for each run; `page.html` says what exactly each column is."""
    return [
        [
            run_name(run),
            f"{run['losses'][-1]:.4f}",
            f"{run['largest_difference']:.1e}",
            "{median:.3g} ms ({low:.3g} to {high:.3g})".format(**run["step_ms"]),
            f"{run['examples_per_second']:,.0f}",
            "; ".join(map(exchanged, run["collectives"])) or "none",
        ]
        for run in runs
    ]


def exchanged(collective: dict[str, Any]) -> str:
    """For example `1 all-reduce, 1.4 MB`."""
    return f"{collective['count']} {collective['kind']}, {decimal(collective['bytes'])}"


def table(runs: Runs) -> Table:
    """The table, to print."""
    table = Table("run", "loss", "difference", "step", "examples/s", "collectives")
    for row in rows(runs):
        table.add_row(*row)
    return table

"""The comparison in text of at most 100 columns: the same rows, figures and cases as in the page."""

import textwrap
from typing import Any

from rich import box
from rich.table import Table

from pmapdp.compare import text

WIDTH = 100


def summary(report: dict[str, Any]) -> str:
    """One line on what was compared."""
    config, first = report["config"], report["runs"][0]
    machine = report["runs"][1]["machine"]  # of the most devices
    if config is None:
        return f"{len(report['runs'])} programs, {first['global_batch_size']:,} examples an update; {machine}"
    return (
        f"{config['recipe']}: {config['model']} on {config['dataset']}, {len(first['losses']):,} updates of "
        f"{first['global_batch_size']:,} examples by {config['optimizer']} at {config['learning_rate']:g}, "
        f"{config['dtype']}, seed {config['seed']}; {machine}"
    )


def verified(runs: list[dict[str, Any]]) -> str:
    """One line on what `pmapdp.verify` finds."""
    wrong = [
        f"{run['name']}: {text.verified(run)}" for run in runs if text.verified(run) not in ("equal", "the reference")
    ]
    found = "pmapdp.verify finds " + ("; ".join(wrong) or "that each step equals that of a single device") + "."
    if max(run["devices"] for run in runs) > 1:
        return found
    return f"{found} On one device nothing was split: try --devices 8 (beside a single GPU with JAX_PLATFORMS=cpu)."


def plain(columns: list[str], rows: list[list[str]]) -> Table:
    """A table that fits."""
    table = Table(*columns, box=box.SIMPLE_HEAD, width=WIDTH, pad_edge=False, padding=(0, 1))
    for row in rows:
        table.add_row(*row)
    return table


def tables(report: dict[str, Any]) -> list[Table | str]:
    """What is printed: figures, then what each run holds and exchanges row by row, then where the ways part."""
    runs = report["runs"]
    first = ["loss", "difference", "step", "examples/s", "verify"]
    names = [name for name in first if name in text.figures(runs[0])]
    found: list[Table | str] = [
        plain(["run", *names], [[run["name"], *(text.figures(run)[name] for name in names)] for run in runs])
    ]
    for run in runs:
        found += [textwrap.fill(f"{run['name']}, {each}", WIDTH) for each in run.get("findings", ())]
    for row in report["rows"]:
        if row["below"]:
            found.append("\n" + textwrap.fill(f"{text.heading(row['role'])}. {row['why']}", WIDTH))
            found.append(plain(["run", "what ran"], [[run["name"], ran(row["below"], run)] for run in runs]))
    if report["parting"]:
        found.append("\nWhere the ways part: loss and gradient beside one device, in float64.")
        found.append(plain(["case", "lines", "pmap", "shard_map", "jit"], list(map(list, parted(report["parting"])))))
    return found


def ran(what: str, run: dict[str, Any]) -> str:
    """What the arrays or the compiled program of a run say to a row."""
    return "\n".join(f"{fact.head}; {fact.detail} {fact.line}".rstrip() for fact in text.ran(what, run))


def parted(cases: list[dict[str, Any]]) -> Any:
    """A row for each program: case, lines, and what each way gives."""
    for case in cases:
        for program in case["programs"]:
            pmap = program["results"].get("pmap")
            yield (
                case["name"],
                program["name"],
                text.verdict(pmap) if pmap else "",
                text.verdict(program["results"]["shard_map"]),
                text.verdict(case["results"]["jit"]),
            )

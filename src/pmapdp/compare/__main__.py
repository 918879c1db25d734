"""Every strategy on the same job and seed: `python -m pmapdp.compare [RECIPE] [flags]`.

    python -m pmapdp.compare                                       # digits, 100 updates each, 8 devices and 1
    python -m pmapdp.compare --devices 2 4 8 --html page.html
    python -m pmapdp.compare --dtype float64                       # differences that are rounding alone

The first run that fails ends the comparison with its error.
"""

if __name__ == "__main__":  # before the imports, which take a second: a signal or an error in it ends in one line too
    from pmapdp.command.program import run

    run("pmapdp.compare.__main__")

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import jax

from pmapdp.command.flags import parse_with
from pmapdp.command.terminal import console
from pmapdp.compare.page import page
from pmapdp.compare.pictures import require_matplotlib
from pmapdp.compare.runs import compare
from pmapdp.compare.table import summary, table, verified
from pmapdp.config import setting
from pmapdp.files.outputs import HTML, JSON, Output, check_outputs
from pmapdp.files.writing import write_file
from pmapdp.own.data_file import own_files


@dataclass(frozen=True)
class CompareOptions:
    """What is compared, and where the result goes. A single device always takes part: the others must equal it."""

    strategies: tuple[Literal["pmap", "jit", "shard_map"], ...] = setting(
        "comparison", ("pmap", "jit", "shard_map"), "Strategies to compare with a single device."
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
    html: str | None = setting(
        "comparison", None, "Write a page with pictures to this file; it opens without a network. Needs pmapdp[plots]."
    )


def main(arguments: list[str]) -> None:
    """The command."""
    config, options = parse_with(
        CompareOptions, arguments, program="python -m pmapdp.compare", sections=("data", "model", "optimization")
    )
    config = replace(config, steps=options.steps, mesh=None, layout="data")
    counts: Sequence[int | None] = sorted(set(options.devices), reverse=True) or [None]
    plan = [replace(config, strategy=strategy, devices=N) for N in counts for strategy in options.strategies]
    plan.append(replace(config, strategy="single", devices=1))
    outputs = Output("--json", options.json, JSON), Output("--html", options.html, HTML)
    json_file, html_file = check_outputs(*outputs, inputs=own_files(config))
    if options.html:
        require_matplotlib("--html")

    with jax.enable_x64(config.dtype == "float64"):
        runs = compare(plan, say=lambda line: print(line, file=sys.stderr, flush=True))
    report = {"config": asdict(plan[0]), "runs": runs}
    print(summary(report))
    console().print(table(runs))
    print(verified(runs))
    if runs[0]["simulated"]:
        print("Simulated devices share the cores: they show equal results, not a speed-up.")
    if json_file:
        write_file(json_file, json.dumps(report, indent=2) + "\n")
    if html_file:
        write_file(html_file, page(report))
        print(f"Open {options.html} in a browser: a page with the loss curves and the sources side by side.")
    else:
        print("Add --html page.html for a page with the loss curves and the sources side by side.")

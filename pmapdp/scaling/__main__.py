"""Step time, waiting and efficiency from 1 to 4,096 devices, predicted: `python -m pmapdp.scaling [RECIPE] [flags]`.

    python -m pmapdp.scaling                                        # the default recipe's CNN, on three machines
    python -m pmapdp.scaling --workload resnet-50 --output pictures # a published model, with pictures
    python -m pmapdp.scaling mirrored --no-check --hardware h100    # predictions alone

All figures are predictions from published data of the hardware. What can be checked here is checked, and its error
printed: compiled programs, simulated devices, two processes, and a published run.
"""

import json
import sys
from pathlib import Path

from rich.console import Console

from pmapdp.command_line import parse_with
from pmapdp.config import Config
from pmapdp.errors import run_command
from pmapdp.files import write_file
from pmapdp.scaling.charts import strong_picture, weak_picture
from pmapdp.scaling.checks import (
    Check,
    check_compiled,
    check_count,
    check_gloo,
    check_published,
    check_simulated,
    count_step,
)
from pmapdp.scaling.here import predict_here
from pmapdp.scaling.options import GROUPS, ScalingOptions, check_options, make_plan
from pmapdp.scaling.report import make_report
from pmapdp.scaling.table import print_answers, print_checks, print_here, print_predictions
from pmapdp.scaling.workloads import PUBLISHED, Workload, from_counts

HERE = (1, 2, 8, 64, 512)  # simulated devices of this machine
WIDE = 400  # columns where the output is no terminal: a file has no width, and wrapped cells are hard to read


def say(line: str) -> None:
    """Progress, which is no result."""
    print(line, file=sys.stderr, flush=True)


def run_checks(config: Config, counts: dict | None) -> dict[str, Check]:
    """All checks, by name. The recipe's model is compiled and run, also where the workload is a published one."""
    checks = {"published": check_published()}
    if counts:
        checks["count"] = check_count(config.model, counts)
    say("check: compiling for up to 512 simulated devices")
    checks["compiled"] = check_compiled(config.model, "shard_map")
    say("check: measuring on up to 8 simulated devices")
    checks["simulated"] = check_simulated(config.model)
    say("check: measuring two processes over gloo")
    checks["gloo"] = check_gloo(config.model)
    return checks


def main(arguments: list[str]) -> None:
    """The command."""
    config, options = parse_with(ScalingOptions, arguments, program="python -m pmapdp.scaling", groups=GROUPS)
    check_options(config, options)
    plan, counts = make_plan(config, options), None
    if options.workload == "recipe":
        say(f"counting the operations of {config.model}")
        counts = count_step(config.model, config.dtype, config.optimizer)
        workload: Workload = from_counts(config.model, counts)
    else:
        workload = PUBLISHED[options.workload]
    report = make_report(workload, plan, options.hardware, options.device_counts, options.strong_batch_size)
    checks = run_checks(config, counts) if options.check else {}
    report["checks"] = {name: check.as_json() for name, check in checks.items()}
    if "simulated" in checks:
        report["here"] = predict_here(checks["simulated"].constants, HERE)
    if options.json:
        write_file(options.json, json.dumps(report, indent=2) + "\n")
    if options.output:
        write_file(Path(options.output) / "weak.svg", weak_picture(report) + "\n")
        write_file(Path(options.output) / "strong.svg", strong_picture(report) + "\n")

    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    console.print(
        f"{workload.name}: {workload.parameters:,} parameters, {workload.flops / 1e6:,.1f} MFLOP an example; "
        f"{plan.per_device_batch:g} examples x {plan.accumulate} per device and update, "
        f"{plan.dtype}, {plan.optimizer}; "
        f"{plan.utilization:.0%} of the peak assumed. Predictions, not measurements.",
        markup=False,
        soft_wrap=True,
    )
    print_predictions(report, console)
    print_answers(report, console)
    print_checks(list(checks.values()), console)
    if "here" in report:
        print_here(report["here"], console)
    console.print("The predictions leave out: " + "; ".join(report["left_out"]) + ".", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run_command(main))

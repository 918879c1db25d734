"""Step time, waiting and efficiency from 1 to 4,096 devices, predicted: `python -m pmapdp.scaling [RECIPE] [flags]`.

    python -m pmapdp.scaling                                        # the default recipe's CNN, on three machines
    python -m pmapdp.scaling --workload resnet-50 --output pictures # a published model, with pictures
    python -m pmapdp.scaling imdb-transformer --hardware h100

All figures are predictions from published data of the hardware, for training that splits the batch. What of the model
can be checked on this machine, `python -m benchmarks.scaling` checks.
"""

import json
import sys
from pathlib import Path

import jax

from pmapdp.cli import parse_with
from pmapdp.errors import run_command
from pmapdp.files import write_file
from pmapdp.job import make_task
from pmapdp.registry import find_model, view_of
from pmapdp.scaling.options import GROUPS, ScalingOptions, batch_size, check_options
from pmapdp.scaling.pictures import pictures
from pmapdp.scaling.predict import Plan
from pmapdp.scaling.report import make_report
from pmapdp.scaling.table import print_answers, print_predictions
from pmapdp.scaling.workloads import EXAMPLES, PUBLISHED, count_step, slots
from pmapdp.terminal import console


def main(arguments: list[str]) -> None:
    """The command."""
    config, options = parse_with(ScalingOptions, arguments, program="python -m pmapdp.scaling", groups=GROUPS)
    check_options(config, options)
    jax.config.update("jax_platforms", "cpu")  # operations are counted there, so that every machine predicts the same
    task = make_task(config)
    plan = Plan(
        per_device_batch=batch_size(config),
        accumulate=config.accumulate,
        dtype=config.dtype,
        slots=slots(task.optimizer),
        overlap=options.overlap,
        algorithm=options.algorithm,
        utilization=options.utilization,
    )
    if options.workload == "recipe":
        print(f"counting the operations of {config.model}", file=sys.stderr, flush=True)
        workload = count_step(config.model, task, EXAMPLES[view_of(find_model(config.model))])
    else:
        workload = PUBLISHED[options.workload]
    report = make_report(workload, plan, options.hardware, options.devices, options.strong_batch_size)
    report["plan"]["optimizer"] = config.optimizer
    if options.json is not None:
        write_file(options.json, json.dumps(report, indent=2) + "\n")
    if options.output is not None:
        for name, picture in pictures(report).items():
            write_file(Path(options.output) / name, picture)

    print(
        f"{workload.name}: {workload.parameters:,} parameters, {workload.flops / 1e6:,.1f} MFLOP an example; "
        f"{plan.per_device_batch:,} examples x {plan.accumulate} per device and update, {plan.dtype}, "
        f"{config.optimizer}; {plan.utilization:.3g} of the peak assumed. "
        "Predictions for data parallelism, not measurements."
    )
    print_predictions(report, console())
    print_answers(report, console())
    print("The predictions leave out: " + "; ".join(report["left_out"]) + ".")


if __name__ == "__main__":
    sys.exit(run_command(main))

"""Predict step time, waiting and efficiency from 1 to 4,096 devices.

    python -m pmapdp.scaling                         # the default recipe's CNN
    python -m pmapdp.scaling --workload resnet-50 --devices 8 512
    python -m pmapdp.scaling imdb-transformer --hardware h100

All figures are predictions from published data of the hardware, for training that splits the batch.
"""

import sys
from dataclasses import dataclass
from typing import Literal

import jax
from rich.console import Console

from pmapdp import cli
from pmapdp.config import setting
from pmapdp.errors import UserError
from pmapdp.registry import find_model
from pmapdp.scaling.costs import spread
from pmapdp.scaling.hardware import HARDWARE
from pmapdp.scaling.predict import LEFT_OUT, Plan
from pmapdp.scaling.table import gains, predictions
from pmapdp.scaling.workloads import ASSUMED, PUBLISHED, count_step


@dataclass(frozen=True)
class ScalingOptions:
    """What is predicted. The optimizer is Adam."""

    workload: Literal["recipe", "resnet-50", "gpt-2"] = setting(
        "prediction", "recipe", "The recipe's model, or a published one whose size and operations are known."
    )
    hardware: tuple[Literal["a100", "h100", "tpu-v5e", "tpu-v5p"], ...] = setting(
        "prediction",
        ("h100", "tpu-v5e", "tpu-v5p"),
        "Machines to predict for; see pmapdp/scaling/hardware.py for their figures and sources.",
    )
    devices: tuple[int, ...] = setting("prediction", (1, 8, 64, 512, 4096), "Numbers of devices in the tables.")
    per_device_batch_size: int | None = setting(
        "prediction", None, "Examples per update on one device; default: the recipe's batch size."
    )
    utilization: float | None = setting(
        "prediction",
        None,
        f"Share of the peak FLOP/s that the model attains on one device: measure yours. Default: what is published of "
        f"it, or {ASSUMED}.",
    )


def main(arguments: list[str]) -> None:
    """The command."""
    config, options = cli.parse_with_recipe(ScalingOptions, arguments, __doc__, ("model",))
    if config.dtype == "float64":
        raise UserError("--dtype float64 has no published peak on this hardware: try --dtype float32")
    if options.utilization is not None and not 0.0001 <= options.utilization <= 1:
        raise UserError(f"--utilization {options.utilization} is not from 0.0001 to 1: try --utilization {ASSUMED}")
    size = options.per_device_batch_size
    if size is not None and size < 1:
        raise UserError(f"--per-device-batch-size {size} must be at least 1: try --per-device-batch-size 64")
    machines = [HARDWARE[name] for name in options.hardware]
    counts = sorted(set(options.devices))
    for N in counts:
        for machine in machines:
            spread(N, machine.levels)  # which raises an error before anything starts

    jax.config.update("jax_platforms", "cpu")  # operations are counted there, so that every machine predicts the same
    b = size or config.per_device_batch_size or config.global_batch_size or 64
    plan = Plan(per_device_batch=b, dtype=config.dtype, utilization=options.utilization)
    model = find_model(config.model)
    workload = PUBLISHED.get(options.workload) or count_step(config.model, model, config.dtype)
    share = plan.utilization or workload.utilization[plan.dtype]
    origin = "as given" if plan.utilization else "measured on A100s" if workload.name in PUBLISHED else "assumed"
    print(
        f"{workload.name}: {workload.parameters:,} parameters, {workload.flops / 1e6:,.1f} MFLOP an example; "
        f"{b:,} examples per device and update, {plan.dtype}, Adam; {share:.3g} of the peak, {origin}. "
        "Predictions for data parallelism, not measurements."
    )
    # A file has no width, and wrapped cells are hard to read.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 400)
    for table in (predictions, gains):
        for machine in machines:
            console.print(table(machine, counts, workload, plan))
    print("The predictions leave out: " + "; ".join(LEFT_OUT) + ".")


if __name__ == "__main__":
    sys.exit(cli.run(main))

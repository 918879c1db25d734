"""Step time, waiting and efficiency from 1 to 4,096 devices, predicted: `python -m pmapdp.scaling [RECIPE] [flags]`.

    python -m pmapdp.scaling                                          # the default recipe's CNN, on three machines
    python -m pmapdp.scaling --workload resnet-50 --svg resnet.svg    # a published model, with a picture
    python -m pmapdp.scaling imdb-transformer --hardware h100

All figures are predictions from published data of the hardware, for training that splits the batch. What of the model
can be checked on this machine, `python -m benchmarks.scaling` checks.
"""

import sys
from dataclasses import dataclass, replace
from typing import Literal

import jax

from pmapdp.cli import parse_with
from pmapdp.config import Config, ModelOptions, check
from pmapdp.errors import UserError, run_command
from pmapdp.files import require_writable, write_file
from pmapdp.pictures import require_matplotlib
from pmapdp.registry import find_model
from pmapdp.scaling.costs import spread
from pmapdp.scaling.hardware import HARDWARE
from pmapdp.scaling.picture import picture
from pmapdp.scaling.predict import LEFT_OUT, UTILIZATION, Plan
from pmapdp.scaling.table import predictions, remedies
from pmapdp.scaling.workloads import PUBLISHED, count_step
from pmapdp.terminal import console


@dataclass(frozen=True)
class BatchOptions:
    """The examples of an update on one device."""

    per_device_batch_size: int | None = None
    """Examples per micro-batch on one device; default: the recipe's batch size."""
    accumulate: int = 1
    """Micro-batches per device and update, summed before the one all-reduce."""


@dataclass(frozen=True)
class ScalingOptions:
    """What is predicted. The optimizer is Adam."""

    workload: Literal["recipe", "resnet-50", "gpt-2"] = "recipe"
    """The recipe's model, or a published one whose size and operations are known."""
    hardware: tuple[Literal["h100", "tpu-v5e", "tpu-v5p"], ...] = ("h100", "tpu-v5e", "tpu-v5p")
    """Machines to predict for; see pmapdp/scaling/hardware.py for their figures and sources."""
    devices: tuple[int, ...] = (1, 8, 64, 512, 4096)
    """Numbers of devices in the tables."""
    utilization: float = UTILIZATION
    """Share of the peak FLOP/s that the model attains on one device. An assumption: measure yours."""
    svg: str | None = None
    """Write a picture of the efficiency to this file. Needs pmapdp[plots]."""


def check_options(config: Config, options: ScalingOptions) -> None:
    """Refuse what no prediction can work with, before anything starts.

    Raises:
        UserError: with the value given and one that works.
    """
    if config.recipe == "nnx-mesh":
        raise UserError("nnx-mesh splits the model and trains no data set: try the recipe digits, or --workload gpt-2")
    if config.dtype == "float64":
        raise UserError("--dtype float64 has no published peak on this hardware: try --dtype float32")
    if not 0.0001 <= options.utilization <= 1:
        raise UserError(f"--utilization {options.utilization} is not from 0.0001 to 1: try --utilization {UTILIZATION}")
    for N in options.devices:
        check(replace(config, strategy="jit", devices=N))
        for name in options.hardware:
            try:
                spread(N, HARDWARE[name].levels)
            except UserError as error:
                raise UserError(f"--devices {N} on {name}: {error}") from None
    if options.svg is not None:
        require_matplotlib("--svg")
        require_writable(options.svg)


def main(arguments: list[str]) -> None:
    """The command."""
    groups = ModelOptions, BatchOptions
    config, options = parse_with(ScalingOptions, arguments, program="python -m pmapdp.scaling", groups=groups)
    check_options(config, options)
    jax.config.update("jax_platforms", "cpu")  # operations are counted there, so that every machine predicts the same
    plan = Plan(
        per_device_batch=config.per_device_batch_size or config.global_batch_size or 64,
        accumulate=config.accumulate,
        dtype=config.dtype,
        utilization=options.utilization,
    )
    if options.workload == "recipe":
        print(f"counting the operations of {config.model}", file=sys.stderr, flush=True)
        workload = count_step(config.model, find_model(config.model), config.dtype)
    else:
        workload = PUBLISHED[options.workload]
    if options.svg is not None:
        write_file(options.svg, picture(workload, options.hardware, plan))
    print(
        f"{workload.name}: {workload.parameters:,} parameters, {workload.flops / 1e6:,.1f} MFLOP an example; "
        f"{plan.per_device_batch:,} examples x {plan.accumulate} per device and update, {plan.dtype}, Adam; "
        f"{plan.utilization:.3g} of the peak assumed. Predictions for data parallelism, not measurements."
    )
    counts, screen = sorted(set(options.devices)), console()
    for name in options.hardware:
        screen.print(predictions(name, counts, workload, plan))
    if several := [N for N in counts if N > 1]:
        for name in options.hardware:
            screen.print(remedies(name, several, workload, plan))
    print("The predictions leave out: " + "; ".join(LEFT_OUT) + ".")


if __name__ == "__main__":
    sys.exit(run_command(main))

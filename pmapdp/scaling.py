"""Predict step time and efficiency of data parallelism on up to 4,096 devices.

    python -m pmapdp.scaling    # a table for ResNet-50 on A100s

A step is a forward and a backward pass, an all-reduce of the gradients and the
update by Adam, one after the other. Lesson 18 explains this model, and
docs/speed.md shows how wrong it is. The command takes no flags. For your own
model and machine call `predict` from Python.
"""

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

from pmapdp import cli
from pmapdp.errors import UserError


class Level(NamedTuple):
    """A level is a network of equal links, within a node or between the nodes.

    Attributes:
        devices: The fan-out of the level: the most devices that it connects, or the
            most groups of the level inside.
        latency: The seconds that a message takes besides its bytes.
        bandwidth: The bytes per second that a device sends while it receives as many.
        trees: True if the library sends along trees, too, and not only around rings.
    """

    devices: int
    latency: float
    bandwidth: float
    trees: bool = True


class Hardware(NamedTuple):
    """Hardware has the speeds of a device, and of the networks between devices.

    Attributes:
        peak: The operations per second of dense matrix products, by dtype.
        memory_bandwidth: The bytes per second between the device and its own memory.
        levels: Its networks, from the inside out.

    Example:
        node, network = A100.levels
        ethernet = network._replace(bandwidth=1.25e9)  # 10 Gbit/s
        slower = A100._replace(levels=(node, ethernet))
    """

    peak: dict[str, float]
    memory_bandwidth: float
    levels: tuple[Level, ...]


# NVIDIA's datasheets of the A100 80GB SXM and of the DGX A100: NVLink gives 300 GB/s
# each way, and every GPU has a network card of 200 Gbit/s. JAX multiplies float32 in
# TF32. Latencies: NCCL's own cost model, NVIDIA/nccl src/graph/tuning.cc, hwLat, ring
# with protocol LL128, which carries 120 bytes of data in each 128.
A100 = Hardware(
    peak={"bfloat16": 312e12, "float32": 156e12},
    memory_bandwidth=2.039e12,
    levels=(Level(8, 1.9e-6, 300e9 * 120 / 128), Level(1024, 4.0e-6, 25e9 * 120 / 128)),
)
# Parameters and 4.09e9 multiply-adds at 224 x 224 as torchvision documents them. A
# multiply-add is two operations, and the backward pass takes twice the forward's.
RESNET_PARAMETERS = 25_557_032
RESNET_FLOPS = 3 * 2 * 4.09e9
# NVIDIA's DeepLearningExamples, PyTorch ResNet50 v1.5, trains 938 and 2,470 images/s on
# one A100.
RESNET_SHARES = {
    "float32": 938 * RESNET_FLOPS / A100.peak["float32"],
    "bfloat16": 2470 * RESNET_FLOPS / A100.peak["bfloat16"],
}


def reduce_scatter_at(n: float, N: int, level: Level) -> float:
    """Return the seconds of a reduce-scatter of n bytes between N members.

    An all-gather takes as long. A message of n bytes takes L + n / W seconds (Hockney).
    A device sends (N - 1) / N n bytes, in N - 1 messages around a ring (Patarasuk and
    Yuan, 2009) or in log2 N along trees (Bruck et al., 1997; NCCL calls it PAT).
    """
    messages = math.ceil(math.log2(N)) if level.trees else N - 1
    return messages * level.latency + (N - 1) / N * n / level.bandwidth


def reduce_scatter(n: float, N: int, levels: Sequence[Level]) -> float:
    """Return the seconds of a reduce-scatter of n bytes over N devices.

    They fill the levels from the inside, and each level has 1 / members of the bytes of
    the one inside.
    """
    seconds = 0.0
    devices_so_far = 1
    for level in levels:
        members = min(N // devices_so_far, level.devices)
        seconds += reduce_scatter_at(n / devices_so_far, members, level)
        devices_so_far *= members
    if devices_so_far != N:
        raise UserError(f"{N} devices don't fill these levels: try {devices_so_far}")
    return seconds


class Prediction(NamedTuple):
    """A prediction has the seconds of a step, and of the three parts of it.

    Attributes:
        step: The whole step.
        compute: The forward and the backward pass.
        update: The optimizer's update.
        all_reduce: The all-reduce of the gradients.
    """

    step: float
    compute: float
    update: float
    all_reduce: float


def predict(
    hardware: Hardware,
    N: int,
    b: int,
    parameters: int,
    flops: float,
    utilization: float,
    dtype: str = "float32",
) -> Prediction:
    """Predict a step of a model on N devices with b examples each.

    Args:
        hardware: The device and its networks, such as `A100`.
        N: The number of devices.
        b: The number of examples on each.
        parameters: The number of parameters. They, their gradients and the moments are
            float32.
        flops: The operations for one example, forward and backward together.
        utilization: The share of its peak that a device reaches.
        dtype: The type of the computation.

    Returns:
        The seconds of the step and of its parts.

    Example:
        from pmapdp.scaling import A100

        step = predict(A100, 8, 64, 25_557_032, 2.5e10, utilization=0.4)
        print(f"{step.all_reduce / step.step:.1%} of a step is waiting")
    """
    compute = b * flops / (utilization * hardware.peak[dtype])
    # The gradient is read. The parameter and its two moments are read and written.
    update = 4 * parameters * (1 + 2 + 4) / hardware.memory_bandwidth
    # An all-reduce is a reduce-scatter and an all-gather.
    all_reduce = 2 * reduce_scatter(4 * parameters, N, hardware.levels)
    return Prediction(compute + update + all_reduce, compute, update, all_reduce)


def main(arguments: list[str]) -> None:
    """Run the command."""
    if arguments in (["--help"], ["-h"]):
        print(f"usage: python -m pmapdp.scaling\n\n{__doc__}")
        return
    if arguments:
        raise UserError(
            f"{arguments[0]} is too much, because this command prints one table: "
            "for other numbers call pmapdp.scaling.predict from Python"
        )
    print("Predicted for ResNet-50 on A100s: 64 images on each, Adam, no overlap.")
    print("type      devices  step, ms  all-reduce, ms  waiting  efficiency")
    for dtype, utilization in RESNET_SHARES.items():
        model = (64, RESNET_PARAMETERS, RESNET_FLOPS, utilization, dtype)
        one_device = predict(A100, 1, *model)
        for N in (1, 8, 64, 512, 4096):
            many = predict(A100, N, *model)
            waiting = many.all_reduce / many.step
            efficiency = one_device.step / many.step
            print(
                f"{dtype:8}{N:9,}{1e3 * many.step:10.2f}{1e3 * many.all_reduce:16.2f}"
                f"{waiting:9.1%}{efficiency:12.1%}"
            )
    print("Left out: launching kernels, input, the slowest device, other traffic.")


if __name__ == "__main__":
    sys.exit(cli.run(main))

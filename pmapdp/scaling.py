"""Predict step time, waiting and efficiency from 1 to 4,096 devices.

    python -m pmapdp.scaling                         # ResNet-50, 64 images each
    python -m pmapdp.scaling --devices 8 512 --hardware h100 --dtype bfloat16
    python -m pmapdp.scaling --parameters 124000000 --flops 8e11    # your model

All figures are predictions from published data of the hardware, for training that
splits the batch. A step is forward and backward pass, one all-reduce of the gradients,
and the update by Adam. Lesson 18 explains this model.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from pmapdp import cli
from pmapdp.config import check_values, setting
from pmapdp.errors import UserError


@dataclass(frozen=True)
class Level:
    """A network whose members are all joined alike: the devices of a node, or the nodes of a cluster."""

    devices: int  # the most members; a member is a device, or a whole group of the level inside
    latency: float  # seconds that a message takes besides its bytes
    bandwidth: float  # bytes/s that one device sends over all its links of this level while it receives as many
    axes: int = 1  # of a torus, along each of which is a ring; 1 is a single ring
    wraps_from: int = 1  # members along an axis from which on its ends are joined; a shorter one has half the bandwidth
    trees: bool = (
        True  # the library also runs trees, as it can if a switch joins any two members
    )


@dataclass(frozen=True)
class Hardware:
    """A device and its networks."""

    title: str
    peak: dict[
        str, float
    ]  # FLOP/s of dense matrix products by the dtype, with JAX's default precision
    memory_bandwidth: float  # bytes/s between the device and its own memory
    levels: tuple[Level, ...]  # from the inside out


# Bandwidths are the vendors' peak figures.
HARDWARE = {
    # NVIDIA's datasheets of the A100 80GB SXM and of the DGX A100: NVLink gives 300
    # GB/s each way, and every GPU has a network card of 200 Gbit/s. JAX multiplies
    # float32 in TF32. Latencies: NCCL's own cost model, NVIDIA/nccl
    # src/graph/tuning.cc, hwLat, ring with protocol LL128, which carries 120 bytes of
    # data in each 128.
    "a100": Hardware(
        "NVIDIA A100 80GB SXM, nodes of 8 joined by NVLink, one InfiniBand HDR card of 200 Gbit/s per GPU",
        peak={"bfloat16": 312e12, "float32": 156e12},
        memory_bandwidth=2.039e12,
        levels=(
            Level(8, 1.9e-6, 300e9 * 120 / 128),
            Level(1024, 4.0e-6, 25e9 * 120 / 128),
        ),
    ),
    # NVIDIA's datasheets of the H100 SXM and of the DGX H100: 450 GB/s each way, a
    # network card of 400 Gbit/s per GPU.
    "h100": Hardware(
        "NVIDIA H100 SXM, nodes of 8 joined by NVLink, one InfiniBand NDR card of 400 Gbit/s per GPU",
        peak={"bfloat16": 989.4e12, "float32": 494.7e12},
        memory_bandwidth=3.35e12,
        levels=(
            Level(8, 1.9e-6, 450e9 * 120 / 128),
            Level(1024, 4.0e-6, 50e9 * 120 / 128),
        ),
    ),
    # Google Cloud's documentation of TPU v5e and v5p, whose bandwidth per chip, 400 and
    # 1,200 GB/s, is for both directions together. Latencies in a pod: Austin et al.,
    # "How to Scale Your Model", 2025, jax-ml.github.io/scaling-book. JAX multiplies
    # float32 on a TPU in bfloat16 by default, so both have one peak.
    "tpu-v5e": Hardware(
        "Google TPU v5e, pods of 16 x 16 chips in a 2D torus, joined by the data centre's network",
        peak={"bfloat16": 197e12, "float32": 197e12},
        memory_bandwidth=819e9,
        levels=(
            Level(256, 1e-6, 200e9, axes=2, wraps_from=16, trees=False),
            # 6.4 Tbit/s per pod of 256 chips; the latency, through two hosts and the
            # network, is assumed.
            Level(64, 50e-6, 6.4e12 / 8 / 256),
        ),
    ),
    "tpu-v5p": Hardware(
        "Google TPU v5p, up to 6,144 chips of a pod in a 3D torus",
        peak={"bfloat16": 459e12, "float32": 459e12},
        memory_bandwidth=2765e9,
        levels=(Level(6144, 1e-6, 600e9, axes=3, wraps_from=4, trees=False),),
    ),
}


def sides(N: int, axes: int) -> list[int]:
    """Return N as a product of `axes` factors that differ as little as possible, the largest last: 8 = 2 x 4."""
    if axes == 1:
        return [N]
    root = round(N ** (1 / axes))
    first = next(factor for factor in range(max(1, root), 0, -1) if N % factor == 0)
    return sorted([first, *sides(N // first, axes - 1)])


def reduce_scatter_at(n: float, N: int, level: Level) -> float:
    """Return the seconds of a reduce-scatter of n bytes between N members, or of an all-gather, which takes as long.

    A message of n bytes takes L + n / W seconds: latency L, bandwidth W (Hockney's
    model). Every device sends (N - 1) / N n bytes, in one of two ways:

    - rings: N - 1 messages (P. Patarasuk and X. Yuan, 2009), on a torus around all axes
      at once (N. Jain and Y. Sabharwal, 2010)
    - trees: log2 N messages (J. Bruck et al., 1997); NCCL calls it PAT, and gives its
      all-reduce the same cost twice
    """
    if N == 1:
        return 0.0
    lengths = [
        side for side in sides(N, level.axes) if side > 1
    ]  # an axis of one member has no links in use
    messages = (
        math.ceil(math.log2(N)) if level.trees else sum(side - 1 for side in lengths)
    )
    rings = sum(1.0 if side >= level.wraps_from else 0.5 for side in lengths)
    return messages * level.latency + (N - 1) / N * n / (
        level.bandwidth * rings / level.axes
    )


def spread(N: int, levels: Sequence[Level]) -> list[int]:
    """Return the members of each level if N devices fill them from the inside. A `UserError` says that they can't."""
    most, joined, rest = math.prod(level.devices for level in levels), [], N
    if not 1 <= N <= most:
        raise UserError(
            f"{N} devices are not among the 1 to {most:,} that can be joined: try --devices {most}"
        )
    for level in levels:
        joined.append(min(rest, level.devices))
        if rest % joined[-1]:
            whole = N // level.devices * level.devices
            raise UserError(
                f"{N} devices do not fill whole groups of {level.devices}: try --devices {whole}"
            )
        rest //= joined[-1]
    return joined


def reduce_scatter(n: float, N: int, levels: Sequence[Level]) -> float:
    """Return the seconds of a reduce-scatter over all levels. Each has 1 / members of the bytes of the one inside."""
    seconds = 0.0
    for members, level in zip(spread(N, levels), levels, strict=True):
        seconds += reduce_scatter_at(n, members, level)
        n /= members
    return seconds


# He et al., arXiv:1512.03385, 2015; parameters and 4.09e9 multiply-adds at 224 x 224 as
# torchvision documents them. A multiply-add counts as two operations, and the backward
# pass takes twice the forward's. What it attains is taken from one kind of device for
# all: NVIDIA's DeepLearningExamples, PyTorch ResNet50 v1.5, DGX A100, where one A100
# trains 938 images/s in TF32 and 2,470 in mixed precision.
RESNET_PARAMETERS, RESNET_FLOPS = 25_557_032, 3 * 2 * 4.09e9
RESNET_SHARES = {
    dtype: speed * RESNET_FLOPS / HARDWARE["a100"].peak[dtype]
    for dtype, speed in (("float32", 938), ("bfloat16", 2470))
}


class Prediction(NamedTuple):
    """A predicted step; times in seconds."""

    step: float
    compute: float  # forward and backward passes
    update: float
    all_reduce: float  # of the gradients, which hides behind no computation
    examples_per_second: float  # over all devices


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

    One example takes `flops`, forward and backward, in `dtype`, and the two passes
    attain the share `utilization` of a device's peak. Parameters, gradients and Adam's
    moments are float32.
    """
    compute = b * flops / (utilization * hardware.peak[dtype])
    # The gradient is read; the parameter and its two moments are read and written.
    update = 4 * parameters * (1 + 2 + 4) / hardware.memory_bandwidth
    all_reduce = 2 * reduce_scatter(
        4 * parameters, N, hardware.levels
    )  # and an all-gather
    step = compute + update + all_reduce
    return Prediction(step, compute, update, all_reduce, N * b / step)


def make_table(hardware: Hardware, counts: Sequence[int], **plan: Any) -> Table:
    """Make a table with a row for each number of devices. `plan` is what `predict` takes besides."""
    heads = (
        "devices",
        "step",
        "compute",
        "update",
        "all-reduce",
        "waiting",
        "efficiency",
        "examples/s",
    )
    table = Table(
        *heads, title=f"predicted, in ms: {hardware.title}", title_justify="left"
    )
    alone = predict(hardware, 1, **plan)
    for N in counts:
        found = predict(hardware, N, **plan)
        times = (
            f"{1000 * each:.3g}"
            for each in (found.step, found.compute, found.update, found.all_reduce)
        )
        shares = (
            f"{share:.1%}"
            for share in (found.all_reduce / found.step, alone.step / found.step)
        )
        table.add_row(f"{N:,}", *times, *shares, f"{found.examples_per_second:,.0f}")
    return table


@dataclass(frozen=True)
class Options:
    """The model, and the machines to predict for."""

    parameters: int = setting(
        "model", RESNET_PARAMETERS, "Number of parameters.", (1, math.inf, "124000000")
    )
    flops: float = setting(
        "model",
        RESNET_FLOPS,
        "Operations of one example, both passes.",
        (1, math.inf, "8e11"),
    )
    utilization: float | None = setting(
        "model",
        None,
        "Share of a device's peak FLOP/s that it attains; default: ResNet-50's.",
        (1e-6, 1, "0.15"),
    )
    dtype: Literal["float32", "bfloat16"] = setting(
        "model", "float32", "Type of the computation."
    )
    per_device_batch_size: int = setting(
        "model", 64, "Examples per update on one device.", (1, math.inf, "64")
    )
    hardware: tuple[Literal["a100", "h100", "tpu-v5e", "tpu-v5p"], ...] = setting(
        "machine",
        ("h100", "tpu-v5e", "tpu-v5p"),
        "Machines to predict for; their sources are in pmapdp/scaling.py.",
    )
    devices: tuple[int, ...] = setting(
        "machine", (1, 8, 64, 512, 4096), "Numbers of devices in the tables."
    )


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = cli.parse(Options, arguments, __doc__)
    check_values(options)
    share = (
        RESNET_SHARES[options.dtype]
        if options.utilization is None
        else options.utilization
    )
    plan = {name: getattr(options, name) for name in ("parameters", "flops", "dtype")}
    plan |= {"b": options.per_device_batch_size, "utilization": share}
    tables = [
        make_table(HARDWARE[name], sorted(set(options.devices)), **plan)
        for name in options.hardware
    ]
    model = f"{options.parameters:,} parameters, {options.flops / 1e6:,.1f} MFLOP an example"
    print(
        f"{model}, {options.per_device_batch_size:,} examples per device, {options.dtype}, {share:.3g} of the peak."
    )
    print("Predictions for data parallelism with Adam, not measurements.")
    # A file has no width, and wrapped cells are hard to read.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 400)
    for table in tables:
        console.print(table)
    print(
        "The predictions leave out: the time to launch kernels, which rules small models on fast devices; input, "
        "evaluation, checkpoints, and the slowest device; other traffic on the network; and how many updates a larger "
        "batch needs to reach the same loss."
    )


if __name__ == "__main__":
    sys.exit(cli.run(main))

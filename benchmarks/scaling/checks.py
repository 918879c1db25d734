"""The model against what can be known here: compiled programs, simulated devices, two processes, a published run."""

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.scaling.fit import Comparison, Terms, fit, leave_out, predicted_seconds, ring_terms, shared_memory_terms
from pmapdp.scaling.costs import all_reduce
from pmapdp.scaling.hardware import NCCL, Hardware, Level
from pmapdp.scaling.workloads import PUBLISHED
from pmapdp.workers import run_workers

COMPILED_FOR = (2, 8, 64, 512)
SIMULATED = (2, 4, 8)
REPEATS = 15  # turns; the fastest run of all counts


SECONDS_ALLOWED = 300

# The machine of a published run, to compare with (`check_published`): Goyal et al., "Accurate, large minibatch
# SGD", arXiv:1706.02677, 2017, section 4: servers of 8 GPUs that share one network card of 50 Gbit/s. NVLink of the
# P100: 80 GB/s each way (NVIDIA Tesla P100 datasheet).
P100 = Hardware(
    "NVIDIA Tesla P100, servers of 8 joined by NVLink, one Ethernet card of 50 Gbit/s per server",
    peak={"float32": 10.6e12},
    memory_bandwidth=732e9,
    memory=16e9,
    levels=(
        Level(8, 1.9e-6, 80e9, latency_source=NCCL),
        Level(64, 20e-6, 50e9 / 8 / 8, latency_source="assumed: TCP over Ethernet"),
    ),
    sources=("NVIDIA Tesla P100 datasheet", "Goyal et al., arXiv:1706.02677, 2017"),
)


def results(*tasks: list) -> list[dict[str, Any]]:
    """What workers on these tasks, at the same time, have found. They see the CPU alone.

    Raises:
        WorkerError: one failed or took too long.
    """
    workers = [["benchmarks.scaling.worker", *task] for task in tasks]
    return [
        json.loads(out.splitlines()[-1])
        for out in run_workers(*workers, changes={"JAX_PLATFORMS": "cpu"}, seconds=SECONDS_ALLOWED)
    ]


@dataclass(frozen=True)
class Line:
    """One prediction beside what was found; seconds, bytes or numbers, as `unit` says."""

    what: str
    predicted: float
    found: float
    unit: str

    @property
    def error(self) -> float:
        """As a share of what was found: 0.1 is a tenth too much."""
        return self.predicted / self.found - 1


@dataclass(frozen=True)
class Check:
    """Predictions of one kind.

    Attributes:
        title: what was compared.
        lines: prediction and finding.
        constants: the fitted ones, with their units in the names.
    """

    title: str
    lines: list[Line]
    constants: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """With the errors."""
        return {**asdict(self), "lines": [{**asdict(line), "error": line.error} for line in self.lines]}


def predicted_exchange(parameters: int, statistics: Sequence[int]) -> tuple[int, int]:
    """All-reduces that a data-parallel step makes, and their bytes.

    One for the gradients and the three sums of the metrics; batch norm adds two to a layer: forward the number of
    examples, the sum of the values and that of their squares, backward two sums of gradients; each sum has one number a
    channel. Its running statistics are two arrays a layer. XLA drops an exchange whose operand it finds twice.
    """
    layers, channels = len(statistics) // 2, sum(statistics) // 2
    return 1 + 2 * layers, 4 * (parameters + 3 + layers + 4 * channels)


def check_compiled(model: str, strategy: str = "shard_map", counts: Sequence[int] = COMPILED_FOR) -> Check:
    """Number and bytes of collectives in the step compiled for up to 512 devices, without running it."""
    lines = []
    for N in counts:
        (found,) = results(["compiled", model, strategy, N])
        count, size = predicted_exchange(found["parameters"], found["statistics"])
        collectives = found["collectives"]
        lines += [
            Line(f"{N} devices: collectives", count, sum(each["count"] for each in collectives), ""),
            Line(f"{N} devices: bytes", size, sum(each["bytes"] for each in collectives), "B"),
        ]
    return Check(f"collectives in the {strategy} step of {model}, compiled and not run", lines)


def check_simulated(model: str, counts: Sequence[int] = SIMULATED, repeats: int = REPEATS) -> Check:
    """All-reduces on simulated devices, each number of devices predicted from the others, and whole steps."""
    (found,) = results(["simulated", model, repeats, *counts])
    rows = found["all_reduces"]
    lines = as_lines(leave_out(rows, shared_memory_terms, lambda row: row["devices"]))
    begin, latency, byte_time = unknowns = fit(rows, shared_memory_terms).tolist()
    reduce_time = {N: exchange_seconds(found, unknowns, shared_memory_terms, N) for N in counts}
    lines += step_lines(found["steps"], reduce_time)
    count, size = predicted_exchange(found["parameters"], found["statistics"])
    constants = {
        "start_seconds": begin,
        "latency_seconds": latency,
        "seconds_per_byte": byte_time,
        "step_of_one_device_seconds": step_alone(found["steps"]),
        "all_reduces": count,
        "all_reduce_bytes": size,
    }
    return Check(
        "simulated devices of this machine; all-reduces from a fit to the other numbers of devices", lines, constants
    )


def check_gloo(model: str, repeats: int = REPEATS) -> Check:
    """Two processes over gloo on this machine: each size of all-reduce predicted from the others; a whole step."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    found = results(*[["gloo", model, repeats, address, rank] for rank in (0, 1)])[0]
    rows = found["all_reduces"]
    lines = as_lines(leave_out(rows, ring_terms, lambda row: row["bytes"]))
    unknowns = fit(rows, ring_terms).tolist()
    reduce_time = {2: exchange_seconds(found, unknowns, ring_terms, 2)}
    lines += step_lines(found["steps"], reduce_time)
    constants = {"latency_seconds": unknowns[0], "seconds_per_byte": unknowns[1]}
    return Check("two processes over gloo; all-reduces from a fit to the other sizes", lines, constants)


def exchange_seconds(found: dict[str, Any], unknowns: Sequence[float], terms: Terms, N: int) -> float:
    """What the fitted unknowns predict for all all-reduces of a step; each has its own latency."""
    count, size = predicted_exchange(found["parameters"], found["statistics"])
    return count * predicted_seconds(unknowns, terms(N, size / count))


def as_lines(comparisons: Sequence[Comparison]) -> list[Line]:
    """All-reduces of the same unit, named."""
    return [
        Line(f"{each.devices} devices: all-reduce of {each.bytes / 1000:,.0f} kB", each.predicted, each.measured, "s")
        for each in comparisons
    ]


def step_lines(steps: Sequence[dict[str, Any]], reduce_time: dict[int, float]) -> list[Line]:
    """Whole steps: N devices share the cores that one device had, so they take N times its step, and the all-reduce."""
    alone = step_alone(steps)
    return [
        Line(f"{N} devices: whole step", N * alone + reduce_time[N], step["seconds"], "s")
        for step in steps
        if (N := step["devices"]) > 1
    ]


def step_alone(steps: Sequence[dict[str, Any]]) -> float:
    """Seconds of a step on one device."""
    return next(step["seconds"] for step in steps if step["devices"] == 1)


def check_published() -> Check:
    """ResNet-50 of Goyal et al. (2017): from 8 to 256 GPUs, with an efficiency of about 90 % as they report.

    The time on 8 is theirs: 29 hours (NVIDIA's developer blog on the paper, June 2017). The all-reduce over 32 servers
    is predicted, and added in full, though theirs overlapped with the backward pass.
    """
    images, epochs, global_batch = 1_281_167, 90, 256
    on_8 = 29 * 3600 / epochs / (images / global_batch)
    size = 4 * PUBLISHED["resnet-50"].parameters
    on_256 = on_8 - all_reduce(size, 8, P100.levels) + all_reduce(size, 256, P100.levels, "ring")
    return Check(
        "a published run: ResNet-50 from 8 to 256 P100 (Goyal et al., 2017)",
        [Line("efficiency of 256 devices over 8", on_8 / on_256, 0.9, "")],
    )


def check_count(model: str) -> Check:
    """Our own count of multiply-adds beside the compiler's, which adds the operations on single elements."""
    (found,) = results(["count", model])
    return Check(
        f"operations of {model}: our count of matrix products and convolutions beside the compiler's of everything",
        [Line("FLOP an example", found["own"], found["compiled"], "")],
    )

"""The model against what can be known here: a published run, compiled programs, simulated devices."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.scaling.fit import fit, leave_out, shared_memory_terms
from benchmarks.workers import WorkerError, what_happened
from pmapdp.scaling.costs import all_reduce
from pmapdp.scaling.hardware import A100, Level
from pmapdp.scaling.workloads import PUBLISHED

COMPILED_FOR = (2, 8, 64, 512)
SIMULATED = (2, 4, 8)
REPEATS = 15  # turns; the fastest run of all counts
SECONDS_ALLOWED = 300

# The machine of the published run: Goyal et al., "Accurate, large minibatch SGD", arXiv:1706.02677, 2017, section 4:
# servers of 8 GPUs P100 that share one network card of 50 Gbit/s. NVLink of the P100: 80 GB/s each way (NVIDIA Tesla
# P100 datasheet). The latency of TCP over Ethernet is assumed. The libraries of that time had rings alone.
P100 = Level(8, 1.9e-6, 80e9, trees=False), Level(64, 20e-6, 50e9 / 8 / 8, trees=False)


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


def result(*task: Any) -> dict[str, Any]:
    """What a worker on this task has found. It sees the CPU alone. A `WorkerError` says that it failed."""
    command = [sys.executable, "-m", "benchmarks.scaling.worker", *map(str, task)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS_ALLOWED, check=False
    )
    if done.returncode:
        raise WorkerError(what_happened(done.returncode, done.stderr), done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


# NVIDIA's DeepLearningExamples, PyTorch ResNet50 v1.5, "Training performance: NVIDIA DGX A100": images/s of 1 and of 8
# A100, with 256 images on each.
ON_A100 = {"TF32": (938, 7248), "mixed precision": (2470, 16621)}


def check_published() -> list[Line]:
    """Efficiencies of ResNet-50 that were published; the all-reduce is predicted, and added in full, though theirs
    overlapped with the backward pass.

    Goyal et al. (2017) report about 90 % from 8 to 256 GPUs. Their time on 8 is 29 hours (NVIDIA's developer blog on
    the paper, June 2017).
    """
    images, epochs, global_batch = 1_281_167, 90, 256
    on_8 = 29 * 3600 / epochs / (images / global_batch)
    size = 4 * PUBLISHED["resnet-50"].parameters
    on_256 = on_8 - all_reduce(size, 8, P100) + all_reduce(size, 256, P100)
    lines = [Line("256 P100 over 8, Goyal et al.", on_8 / on_256, 0.9, "")]
    for how, (one, eight) in ON_A100.items():
        step = 256 / one
        predicted = step / (step + all_reduce(size, 8, A100.levels))
        lines.append(Line(f"8 A100 over 1, NVIDIA, {how}", predicted, eight / (8 * one), ""))
    return lines


def predicted_exchange(parameters: int, statistics: Sequence[int]) -> tuple[int, int]:
    """All-reduces that a data-parallel step makes, and their bytes.

    One for the gradients and the three sums of the metrics; batch norm adds two to a layer: forward the number of
    examples, the sum of the values and that of their squares, backward their three gradients; each has one number a
    channel. Its running statistics are two arrays a layer. XLA drops an exchange whose operand it finds twice.
    """
    layers, channels = len(statistics) // 2, sum(statistics) // 2
    return 1 + 2 * layers, 4 * (parameters + 3 + 6 * channels)


def check_compiled(model: str, strategy: str = "shard_map", counts: Sequence[int] = COMPILED_FOR) -> list[Line]:
    """Number and bytes of collectives in the step compiled for up to 512 devices, without running it."""
    lines = []
    for N in counts:
        found = result("compiled", model, strategy, N)
        count, size = predicted_exchange(found["parameters"], found["statistics"])
        collectives = found["collectives"]
        lines += [
            Line(f"{N} devices: collectives", count, sum(each["count"] for each in collectives), ""),
            Line(f"{N} devices: bytes", size, sum(each["bytes"] for each in collectives), "B"),
        ]
    return lines


def check_simulated(model: str, counts: Sequence[int] = SIMULATED, repeats: int = REPEATS) -> list[Line]:
    """All-reduces on simulated devices, each number of devices predicted from a fit to the others, and whole steps: N
    devices share the cores that one device had, so they take N times its step, and the all-reduces."""
    found = result("simulated", model, repeats, *counts)
    rows, (alone, *steps) = found["all_reduces"], found["steps"]
    lines = [
        Line(f"{row['devices']} devices: all-reduce of {row['bytes'] / 1000:,.0f} kB", seconds, row["seconds"], "s")
        for row, seconds in zip(rows, leave_out(rows), strict=True)
    ]
    count, size = predicted_exchange(found["parameters"], found["statistics"])
    for step in steps:
        N = step["devices"]
        reduces = count * float(np.dot(fit(rows), shared_memory_terms(N, size / count)))
        lines.append(Line(f"{N} devices: whole step", N * alone["seconds"] + reduces, step["seconds"], "s"))
    return lines

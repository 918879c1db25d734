"""When does it pay? Each remedy for communication against the plain plan, in predicted numbers."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from pmapdp.scaling.hardware import Hardware
from pmapdp.scaling.predict import Plan, predict, weak_efficiency
from pmapdp.scaling.workloads import Workload

GOAL = 0.9  # of the throughput per device that one device alone has
MOST = 2**20  # largest batch that is tried

REMEDIES: dict[str, tuple[str, Callable[[Plan], Plan]]] = {
    "split the optimizer (ZeRO-1)": ("", lambda plan: replace(plan, split_optimizer=True)),
    "bfloat16 all-reduce": ("gradients are rounded", lambda plan: replace(plan, reduce_bytes=2)),
    "accumulate 4 micro-batches": ("global batch x 4", lambda plan: replace(plan, accumulate=4 * plan.accumulate)),
    "4 x the batch per device": (
        "global batch x 4, more activations",
        lambda plan: replace(plan, per_device_batch=4 * plan.per_device_batch),
    ),
    "overlap with the backward pass": ("several smaller all-reduces", lambda plan: replace(plan, overlap=1.0)),
}


class Answer(NamedTuple):
    """What one remedy brings."""

    remedy: str
    gain: float  # examples/s over those of the plain plan, less 1; 0.1 is a tenth more
    state_bytes_saved: float  # on each device
    price: str  # what it costs beside time; empty where nothing


def answers(workload: Workload, hardware: Hardware, N: int, plan: Plan) -> list[Answer]:
    """Every remedy, alone, on N devices."""
    plain = predict(workload, hardware, N, plan)
    found = []
    for name, (price, change) in REMEDIES.items():
        other = predict(workload, hardware, N, change(plan))
        gain = other.examples_per_second / plain.examples_per_second - 1
        found.append(Answer(name, gain, plain.state_bytes - other.state_bytes, price))
    return found


def least_batch(workload: Workload, hardware: Hardware, N: int, plan: Plan) -> int | None:
    """Least batch per device, a power of two up to `MOST`, with which N devices reach `GOAL` of one device's throughput
    each; None where there is none. One device is given as much as each of N, so that only communication counts."""
    for size in (2**power for power in range(MOST.bit_length())):
        if weak_efficiency(workload, hardware, N, replace(plan, per_device_batch=size)) >= GOAL:
            return size
    return None

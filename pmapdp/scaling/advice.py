"""When does it pay? Remedies for communication, and the batch with which none is needed."""

from dataclasses import replace

from pmapdp.scaling.hardware import Hardware
from pmapdp.scaling.predict import Plan, weak_efficiency
from pmapdp.scaling.workloads import Workload

GOAL = 0.9  # of the throughput per device that one device alone has
MOST = 2**20  # largest batch that is tried


def remedies(plan: Plan) -> dict[str, tuple[Plan, str]]:
    """What can be changed about a plan: the other plan, and what it costs beside time."""
    more_examples = replace(plan, per_device_batch=4 * plan.per_device_batch)
    return {
        "split the optimizer (ZeRO-1)": (replace(plan, split_optimizer=True), "none; frees up to 8 bytes a parameter"),
        "bfloat16 all-reduce": (replace(plan, reduce_bytes=2), "gradients are rounded"),
        "4 x the examples per device": (more_examples, "global batch x 4; accumulate them if they do not fit"),
        "overlap with the backward pass": (replace(plan, overlap=1.0), "several smaller all-reduces"),
    }


def least_batch(workload: Workload, hardware: Hardware, N: int, plan: Plan) -> int | None:
    """Least batch per device, a power of two up to `MOST`, with which N devices reach `GOAL` of one device's throughput
    each; None where there is none. One device is given as much as each of N, so that only communication counts."""
    for size in (2**power for power in range(MOST.bit_length())):
        if weak_efficiency(workload, hardware, N, replace(plan, per_device_batch=size)) >= GOAL:
            return size
    return None

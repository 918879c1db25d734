"""From a workload, a hardware and a plan to the seconds of a step. Predictions, not measurements.

A step of data parallelism is: forward and backward pass, one all-reduce of the gradients, the update. The passes take
as long as the slower of arithmetic and memory (S. Williams, A. Waterman, D. Patterson, "Roofline", 2009); the backward
pass is two thirds of them. What the model leaves out is `LEFT_OUT`.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from pmapdp.scaling.costs import reduce_scatter
from pmapdp.scaling.hardware import Hardware
from pmapdp.scaling.workloads import Workload

BACKWARD = 2 / 3
GOAL = 0.9  # of the throughput per device that one device alone has
MOST = 2**20  # largest batch that is tried

LEFT_OUT = (
    "the time to launch kernels and programs, which rules small models on fast devices",
    "input, evaluation, checkpoints, and waiting for the slowest device",
    "other traffic on the network, switches with less bandwidth than their ports, reduction inside switches",
    "that NCCL has trees for reduce-scatter and all-gather (ZeRO-1) only with one device a node",
    "memory of activations, and whether a smaller batch per device uses the device as well as a larger one",
    "how many updates a larger global batch needs to reach the same loss",
)


@dataclass(frozen=True)
class Plan:
    """How the training is spread."""

    per_device_batch: int = 64  # b, examples of an update on one device
    dtype: str = "float32"  # of the computation
    reduce_bytes: int = 4  # of one gradient in the all-reduce: 4 is float32, 2 bfloat16
    # Each device keeps and updates 1 / N of the optimizer's state (ZeRO-1: S. Rajbhandari et al., "ZeRO: memory
    # optimizations toward training trillion parameter models", 2020): reduce-scatter, update, all-gather.
    split_optimizer: bool = False
    # Share of the backward pass behind which communication can hide, from 0 to 1. Our steps have 0: one all-reduce
    # after all gradients. DistributedDataParallel sends buckets during the pass (S. Li et al., "PyTorch Distributed",
    # 2020); the last bucket, which nothing can hide, is not counted.
    overlap: float = 0.0
    utilization: float | None = None  # share of the peak FLOP/s that the passes attain; None: the workload's own


class Prediction(NamedTuple):
    """A predicted step; times in seconds."""

    step: float
    compute: float  # forward and backward passes
    update: float  # of the optimizer
    communication: float  # the collectives
    exposed: float  # those of them that hide behind no computation, so that devices wait for each other's numbers
    examples_per_second: float  # over all devices


def predict(workload: Workload, hardware: Hardware, N: int, plan: Plan) -> Prediction:
    """A step of `plan` on N devices. Raises `UserError` where so many cannot be joined."""
    utilization = plan.utilization or workload.utilization[plan.dtype]
    arithmetic = plan.per_device_batch * workload.flops / (utilization * hardware.peak[plan.dtype])
    memory = (plan.per_device_batch * workload.bytes + workload.fixed_bytes) / hardware.memory_bandwidth
    compute = max(arithmetic, memory)
    update = workload.update_bytes / (N if plan.split_optimizer else 1) / hardware.memory_bandwidth
    gradients = plan.reduce_bytes * workload.parameters
    # A reduce-scatter of the gradients, and an all-gather of them or, if each device has updated a share of the
    # parameters, of these.
    gathered = 4 * workload.parameters if plan.split_optimizer else gradients
    communication = sum(reduce_scatter(size, N, hardware.levels) for size in (gradients, gathered))
    exposed = max(0.0, communication - plan.overlap * BACKWARD * compute)
    step = compute + update + exposed
    return Prediction(step, compute, update, communication, exposed, N * plan.per_device_batch / step)


def weak_efficiency(workload: Workload, hardware: Hardware, N: int, plan: Plan) -> float:
    """Time of a step on one device over that on N, each with the same batch per device."""
    return predict(workload, hardware, 1, plan).step / predict(workload, hardware, N, plan).step


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

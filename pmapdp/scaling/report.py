"""All predictions of a run as one dictionary, which is written as JSON, drawn and printed."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pmapdp.scaling.advice import GOAL, answers, least_for_goal
from pmapdp.scaling.hardware import HARDWARE, Hardware
from pmapdp.scaling.predict import LEFT_OUT, Plan, powers_of_two, predict, strong_speedup, weak_efficiency
from pmapdp.scaling.workloads import Workload


def make_report(
    workload: Workload, plan: Plan, hardware: Sequence[str], counts: Sequence[int], strong_batch: int
) -> dict[str, Any]:
    """Everything that is predicted for the names in `hardware`: tables for `counts` devices, and curves for powers of
    two up to 4,096. Strong scaling splits `strong_batch` examples."""

    def row(machine: Hardware, N: int) -> dict[str, Any]:
        # The speed-up is None where there are fewer examples than devices.
        speedup = strong_speedup(workload, machine, N, plan, strong_batch) if strong_batch >= N else None
        efficiency = weak_efficiency(workload, machine, N, plan)
        found = predict(workload, machine, N, plan)._asdict()
        return found | {"weak_efficiency": efficiency, "strong_speedup": speedup}

    def goal(machine: Hardware, N: int) -> dict[str, Any]:
        least = {
            field: least_for_goal(workload, machine, N, plan, field) for field in ("per_device_batch", "accumulate")
        }
        return {"devices": N, "efficiency": GOAL, **least}

    every = sorted(set(counts))
    machines = {
        name: {
            **asdict(HARDWARE[name]),
            "rows": [row(HARDWARE[name], N) for N in every],
            "curve": [row(HARDWARE[name], N) for N in powers_of_two(HARDWARE[name])],
            "answers": [a._asdict() for N in every if N > 1 for a in answers(workload, HARDWARE[name], N, plan)],
            "goals": [goal(HARDWARE[name], N) for N in every if N > 1],
        }
        for name in hardware
    }
    return {
        "kind": "prediction",
        "workload": asdict(workload),
        "plan": asdict(plan),
        "strong_batch": strong_batch,
        "hardware": machines,
        "left_out": list(LEFT_OUT),
    }

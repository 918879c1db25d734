"""All predictions of a run as one dictionary, which is written as JSON, drawn and printed."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pmapdp.scaling.advice import GOAL, accumulation_for_goal, answers, batch_for_goal
from pmapdp.scaling.hardware import HARDWARE, Hardware
from pmapdp.scaling.predict import LEFT_OUT, Plan, device_counts, predict, strong_speedup, weak_efficiency
from pmapdp.scaling.workloads import Workload


def row(workload: Workload, hardware: Hardware, N: int, plan: Plan, strong_batch: int) -> dict[str, Any]:
    """The predictions for N devices; `strong_speedup` is None where there are fewer examples than devices."""
    found = predict(workload, hardware, N, plan)
    strong = strong_speedup(workload, hardware, N, plan, strong_batch) if strong_batch >= N else None
    return {
        **asdict(found),
        "step": found.step,
        "communication_share": found.communication_share,
        "examples_per_second": found.examples_per_second,
        "weak_efficiency": weak_efficiency(workload, hardware, N, plan),
        "strong_speedup": strong,
    }


def make_report(
    workload: Workload, plan: Plan, hardware: Sequence[str], counts: Sequence[int], strong_batch: int
) -> dict[str, Any]:
    """Everything that is predicted.

    Args:
        workload: what is trained.
        plan: how.
        hardware: names from `HARDWARE`.
        counts: numbers of devices for the tables; the curves have all powers of two up to 4,096.
        strong_batch: global batch of strong scaling.
    """
    machines = {}
    for name in dict.fromkeys(hardware):
        machine = HARDWARE[name]
        many = [N for N in sorted(set(counts)) if N > 1]
        machines[name] = {
            **asdict(machine),
            "rows": [row(workload, machine, N, plan, strong_batch) for N in sorted(set(counts))],
            "curve": [row(workload, machine, N, plan, strong_batch) for N in device_counts(machine)],
            "answers": [
                asdict(each) | {"pays": each.pays} for N in many for each in answers(workload, machine, N, plan)
            ],
            "goals": [
                {
                    "devices": N,
                    "efficiency": GOAL,
                    "per_device_batch": batch_for_goal(workload, machine, N, plan),
                    "accumulate": accumulation_for_goal(workload, machine, N, plan),
                }
                for N in many
            ],
        }
    return {
        "kind": "prediction",
        "workload": asdict(workload),
        "plan": asdict(plan),
        "strong_batch": strong_batch,
        "hardware": machines,
        "left_out": list(LEFT_OUT),
        "checks": {},
    }

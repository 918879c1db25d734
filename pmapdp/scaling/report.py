"""All predictions of a run as one dictionary, which is written as JSON, drawn and printed."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pmapdp.scaling.advice import GOAL, accumulation_for_goal, answers, batch_for_goal
from pmapdp.scaling.hardware import HARDWARE, Hardware
from pmapdp.scaling.predict import LEFT_OUT, Plan, powers_of_two, predict, strong_speedup, weak_efficiency
from pmapdp.scaling.workloads import Workload


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

    def row(machine: Hardware, N: int) -> dict[str, Any]:
        found = predict(workload, machine, N, plan)
        return {
            **asdict(found),
            "step": found.step,
            "communication_share": found.communication_share,
            "examples_per_second": found.examples_per_second,
            "weak_efficiency": weak_efficiency(workload, machine, N, plan),
            # None where there are fewer examples than devices
            "strong_speedup": strong_speedup(workload, machine, N, plan, strong_batch) if strong_batch >= N else None,
        }

    machines, each_count = {}, sorted(set(counts))
    many = [N for N in each_count if N > 1]
    for name in dict.fromkeys(hardware):
        machine = HARDWARE[name]
        found = [answer for N in many for answer in answers(workload, machine, N, plan)]
        machines[name] = {
            **asdict(machine),
            "rows": [row(machine, N) for N in each_count],
            "curve": [row(machine, N) for N in powers_of_two(machine)],
            "answers": [asdict(each) | {"pays": each.pays} for each in found],
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
    }

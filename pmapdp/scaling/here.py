"""Predictions for the simulated devices of this machine, from constants that a check has measured."""

from collections.abc import Sequence

from pmapdp.scaling.costs import shared_memory_all_reduce


def predict_here(constants: dict[str, float], counts: Sequence[int]) -> list[dict[str, float]]:
    """Steps of N simulated devices of this machine, from the constants that `check_simulated` has measured."""
    rows = []
    for N in counts:
        compute = N * constants["step_of_one_device_seconds"]
        reduce = 0.0
        if N > 1:
            count = constants["all_reduces"]
            reduce = count * shared_memory_all_reduce(
                constants["all_reduce_bytes"] / count,
                N,
                start=constants["start_seconds"],
                latency=constants["latency_seconds"],
                byte_seconds=constants["seconds_per_byte"],
            )
        step = compute + reduce
        rows.append(
            {
                "devices": N,
                "step": step,
                "compute": compute,
                "communication": reduce,
                "communication_share": reduce / step,
                "weak_efficiency": constants["step_of_one_device_seconds"] / step,
            }
        )
    return rows

"""What a recipe shows beside its training: the sharding of a batch, a check on one device, its source's figures."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from pmapdp.data.batches import Batch
from pmapdp.job import Job
from pmapdp.recipes import Reported
from pmapdp.state import TrainState
from pmapdp.steps import make_steps


def draw_sharding(batch: Batch) -> None:
    """Draw on the terminal which rows of a placed batch lie on which device."""
    print(f"labels {batch.labels.shape} of the first batch on the devices:")
    jax.debug.visualize_array_sharding(batch.labels)


def check_on_one_device(job: Job, state: TrainState, results: dict[str, Any]) -> str:
    """Evaluate a state on a single device and say how the figures compare with `results` of the same state."""
    alone = dataclasses.replace(
        job,
        devices=job.devices[:1],
        test_batches=job.test_batches.for_one_device(),
        steps=make_steps("single", job.task, job.devices[:1]),
    )
    totals = alone.evaluate(alone.steps.place_state(state))
    difference = abs(totals.mean_loss - results["test_loss"])
    return (
        f"evaluated on one device: loss {totals.mean_loss:.4f}, accuracy {totals.accuracy:.4f}; "
        f"on {len(job.devices)}: loss {results['test_loss']:.4f}, accuracy {results['test_accuracy']:.4f} "
        f"(losses differ by {difference:.1e})"
    )


def compare_with_reported(reported: Sequence[Reported], epochs: list[dict[str, Any]]) -> list[str]:
    """Lines of the figures that a recipe's source reports beside those of a run, as far as it got."""
    rows = [
        (figure.name, figure.value, epochs[figure.epoch - 1 if figure.epoch > 0 else -1][figure.key])
        for figure in reported
        if epochs and epochs[0]["epoch"] == 1 and figure.epoch <= len(epochs)
    ]
    if not rows:
        return []
    width = max(len(name) for name, _, _ in rows)
    table = [f"{name:<{width}}  {reported:9.4f}  {here:9.4f}" for name, reported, here in rows]
    return ["", f"{'':<{width}}  {'reported':>9}  {'here':>9}", *table]

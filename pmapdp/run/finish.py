"""What a recipe shows beside its training: the sharding of a batch, and the figures of its source."""

from collections.abc import Sequence
from typing import Any

import jax

from pmapdp.data.batches import Batch
from pmapdp.recipes import Reported


def draw_sharding(batch: Batch) -> None:
    """Draw on the terminal which rows of a placed batch lie on which device."""
    print(f"labels {batch.labels.shape} of the first batch on the devices:")
    jax.debug.visualize_array_sharding(batch.labels)


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

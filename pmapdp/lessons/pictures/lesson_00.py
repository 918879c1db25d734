"""Pictures of lesson 00, and what lists its messages."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


def messages(step: Any, world: jax.Array, *, sender: int) -> list[tuple[str, int]]:
    """List what a device sends in a compiled step: the type and shape, and the receiver."""
    program = step.lower(world).compile().as_text()
    sends = re.findall(
        r"= (\S+)\{\S* collective-permute\(.*source_target_pairs=\{(\S+)\}", program
    )
    found = []
    for shape, pairs in sends:
        for source, target in re.findall(r"\{(\d+),(\d+)\}", pairs):
            if int(source) == sender:
                found.append((shape, int(target)))
    return found


@drawing.picture
def gliders(flight: Sequence[np.ndarray], title: str) -> None:
    """Eight gliders, snapshots of one, on a world of eight strips. Each living cell has the colour of the device that holds it.

    `flight` has the worlds, each `[40, 40]`.
    """
    axes = drawing.canvas(48, 43, inches=4.2)
    axes.text(28, 0.5, title, ha="center")
    for device, colour in enumerate(drawing.DEVICE_COLOURS):
        top = 2 + 5 * device
        axes.fill_between([8, 48], top, top + 5, color=colour, alpha=0.15, linewidth=0)
        axes.text(-0.8, top + 2.5, f"device {device}", va="center", fontsize=9)
    for world in flight:
        for row, column in np.argwhere(world):
            axes.add_patch(
                plt.Rectangle(
                    (8 + column, 2 + row),
                    0.9,
                    0.9,
                    color=drawing.DEVICE_COLOURS[row // 5],
                    linewidth=0,
                )
            )

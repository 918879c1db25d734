"""Pictures of lesson 14."""

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def timeline() -> None:
    """Checkpoints are written while the next epoch trains. A kill in epoch 3 leaves checkpoint 1, because 2 isn't complete; the run resumes with epoch 2."""
    axes = drawing.canvas(24, 6.6)
    for y, name in ((0.9, "devices"), (2.3, "disk"), (5.3, "second start")):
        axes.text(0, y, name, va="center")
    for epoch in range(3):
        drawing.box(axes, 5 + 4.2 * epoch, 0.5, f"epoch {epoch}", device=0, width=4.0)
        drawing.box(
            axes,
            9.2 + 4.2 * epoch,
            1.9,
            f"write {epoch}" + " ..." * (epoch == 2),
            width=3.5,
        )
        drawing.arrow(axes, (9.0 + 4.2 * epoch, 1.3), (9.6 + 4.2 * epoch, 1.9))
    drawing.box(axes, 17.6, 0.5, "epoch 3 ...", device=0, width=3.6)
    axes.plot([21.3, 21.3], [0.2, 3.0], color=drawing.INK, linestyle=":")
    axes.text(21.5, 1.6, "killed", va="center", weight="bold")
    drawing.box(axes, 5, 4.9, "restore 1", width=4.0)
    drawing.arrow(axes, (15, 2.7), (7, 4.9))
    for epoch in range(2, 5):
        drawing.box(
            axes, 5 + 4.2 * (epoch - 1), 4.9, f"epoch {epoch}", device=0, width=4.0
        )


@drawing.picture
def learning_rates_and_losses(
    schedule: Callable[[int], Any],
    never_killed: Sequence[float],
    resumed: Sequence[float],
    forgetful: Sequence[float],
    *,
    killed_at: int,
) -> None:
    """Above, the learning rate of the forgetful run starts again at 0 and ends high, and the others end at 0. Below, its loss ends above the loss of the run that was never killed, and the resumed run lies on that one."""
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(7, 4.2), height_ratios=(1, 2)
    )
    updates = np.arange(len(never_killed))
    start = len(never_killed) - len(resumed)
    later = updates[start:]
    smooth_width = 10  # updates, because the losses of single batches jump

    def smooth(losses: Sequence[float]) -> Any:
        return np.convolve(losses, np.ones(smooth_width) / smooth_width, "valid")

    blue = drawing.DEVICE_COLOURS[4]
    orange = drawing.DEVICE_COLOURS[5]
    rates = np.array([schedule(count) for count in updates])
    above.plot(updates, rates, color=blue, linewidth=6)
    above.plot(later, rates[: len(later)], "--", color=orange, linewidth=2)
    above.set(ylabel="learning rate", yticks=(0, 0.03), yticklabels=("0", "0.03"))
    cut = smooth_width - 1
    below.plot(
        updates[cut:],
        smooth(never_killed),
        color=blue,
        linewidth=6,
        label="never killed",
    )
    below.plot(
        later[cut:],
        smooth(forgetful),
        "--",
        color=orange,
        linewidth=2,
        label="forgetful",
    )
    below.plot(
        later[cut::8],
        smooth(resumed)[::8],
        "o",
        color=drawing.INK,
        markersize=4,
        label="resumed (every 8th)",
    )
    below.set(xlabel="update", ylabel="loss (mean of 10 updates)", ylim=(0, 1))
    for axes in (above, below):
        axes.axvspan(start, killed_at, color=drawing.INK, alpha=0.2, linewidth=0)
    below.text(start - 2, 0.85, "checkpoint", ha="right")
    below.text(killed_at + 2, 0.85, "killed")
    drawing.legend_beside(below)
    figure.align_ylabels()

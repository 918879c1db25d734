"""Pictures of lesson 14."""

from collections.abc import Sequence

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
def loss_curves(
    never_killed: Sequence[float],
    resumed: Sequence[float],
    forgetful: Sequence[float],
    *,
    killed_at: int,
) -> None:
    """Dots of the resumed run's loss lie on the loss of the run that was never killed; the forgetful run's loss is a little different."""
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(7, 3.8), height_ratios=(2, 1)
    )
    start = len(never_killed) - len(resumed)
    updates, later = np.arange(len(never_killed)), np.arange(start, len(never_killed))
    above.plot(
        updates,
        never_killed,
        color=drawing.DEVICE_COLOURS[4],
        linewidth=6,
        label="never killed",
    )
    above.plot(
        later,
        forgetful,
        "--",
        color=drawing.DEVICE_COLOURS[5],
        linewidth=1.5,
        label="forgetful",
    )
    above.plot(
        later[::4],
        resumed[::4],
        "o",
        color=drawing.INK,
        markersize=4,
        label="resumed (every 4th)",
    )
    above.axvspan(start, killed_at, color=drawing.INK, alpha=0.2, linewidth=0)
    above.text(start - 2, 2.5, "checkpoint", ha="right")
    above.text(killed_at + 2, 2.5, "killed")
    above.set(
        ylabel="loss",
        yscale="log",
        yticks=(0.1, 0.3, 1, 3),
        yticklabels=("0.1", "0.3", "1", "3"),
    )
    above.minorticks_off()
    drawing.legend_beside(above)
    for losses, style, colour in (
        (resumed, "-", drawing.INK),
        (forgetful, "--", drawing.DEVICE_COLOURS[5]),
    ):
        below.plot(
            later, np.subtract(losses, never_killed[start:]), style, color=colour
        )
    below.set(xlabel="update", ylabel="difference to\nnever killed")
    figure.align_ylabels()

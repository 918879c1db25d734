"""Pictures of lesson 19, and what they read from the printed lines."""

import re
from collections.abc import Iterable

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing

DEVICES = 8
FIRST_DEVICE = 4.6  # where the column of device 0 begins
STEP = 2.1  # from one device to the next


def losses(lines: Iterable[str]) -> np.ndarray:
    """The training and the test loss of each epoch, `[epochs, 2]`, from the program's lines."""
    found = [re.findall(r"loss ([\d.]+)", line) for line in lines]
    return np.array([numbers for numbers in found if numbers], float)


@drawing.picture
def where_the_arrays_are() -> None:
    """Eight devices of two processes: rows and state are an eighth on each; in an update each has all parameters and two micro-batches; then an all-reduce; one folder has the checkpoint."""
    axes = drawing.canvas(21.6, 9.6, inches=8.4)
    rows = {
        1.5: "batch",
        2.6: "state, at rest",
        3.9: "in an update:\nparameters",
        5.2: "micro-batches",
        6.5: "gradients",
    }
    for y, name in rows.items():
        axes.text(0, y, name, va="center")
    for device in range(DEVICES):
        left = FIRST_DEVICE + STEP * device
        look = {"device": device, "size": 8}
        axes.text(left + 0.9, 0.55, f"{device}", ha="center", va="center")
        rows_of_device = f"{2 * device}, {2 * device + 1}"
        drawing.box(axes, left, 1.1, rows_of_device, **look)
        drawing.box(axes, left, 2.2, "1/8", **look)
        drawing.box(axes, left, 3.5, "all", **look)
        for half in range(2):
            text = f"{2 * device + half}"
            drawing.box(
                axes, left + 0.95 * half, 4.8, text, width=0.85, device=device, size=8
            )
        drawing.box(axes, left, 6.1, "sums", **look)
        drawing.arrow(axes, (left + 0.9, 6.9), (left + 0.9, 7.5), device=device)
    width = STEP * DEVICES - 0.3
    drawing.box(
        axes,
        FIRST_DEVICE,
        7.5,
        "one all-reduce, then each device updates its 1/8",
        width=width,
    )
    half_width = width / 2 - 0.15
    for process in range(2):
        left = FIRST_DEVICE + STEP * 4 * process
        axes.text(
            left + half_width / 2, 0, f"process {process}", ha="center", va="center"
        )
    axes.text(0, 9.2, "checkpoint", va="center")
    drawing.box(
        axes,
        FIRST_DEVICE,
        8.8,
        "one folder, to which each process writes its shards",
        width=width,
    )


@drawing.picture
def two_runs(
    uninterrupted: np.ndarray, interrupted: np.ndarray, pair_loss: float
) -> None:
    """Above, training and test loss fall over three epochs, below the test loss that counting pairs of bytes reaches, and the dots of the interrupted run lie on the curves. Below, its devices: eight in two processes until a kill soon after the first epoch, then one for the other two epochs."""
    count = len(uninterrupted)
    epochs = np.arange(1, count + 1)  # an epoch's losses are known at its end
    _, (curves, lanes) = plt.subplots(
        2, 1, figsize=(7, 4.4), sharex=True, height_ratios=(3, 2)
    )
    for column, name in enumerate(("training, in the epoch", "test, after it")):
        curves.plot(
            epochs,
            uninterrupted[:, column],
            drawing.DASHES[column],
            color=drawing.DEVICE_COLOURS[4],
            linewidth=4,
            label=name,
        )
        label = "the run that was killed" if column == 1 else None
        curves.plot(epochs, interrupted[:, column], "o", color=drawing.INK, label=label)
    curves.axhline(pair_loss, color=drawing.INK, linestyle=":", linewidth=1)
    curves.text(0.02, pair_loss + 0.03, "test, counting pairs of bytes", size=9)
    curves.set(ylabel="loss")
    drawing.legend_beside(curves)

    killed = 1.12  # in epochs: soon after the first checkpoint
    runs = {  # how many devices, and when the run starts and ends
        "never killed: one process": (DEVICES, 0, count),
        "killed: two processes": (DEVICES, 0, killed),
        "resumed: one device": (1, 1, count),
    }
    for lane, (devices, start, end) in enumerate(runs.values()):
        for device in range(devices):
            y = lane + 0.1 * (device - (devices - 1) / 2)
            colour = drawing.DEVICE_COLOURS[device]
            lanes.barh(y, end - start, 0.08, start, color=colour)
    lanes.plot(killed + 0.06, 1, "x", color=drawing.ACCENT, markersize=9)
    lanes.set_yticks(range(len(runs)), list(runs))
    lanes.set(xlabel="epochs done", ylim=(2.6, -0.6), xticks=range(count + 1))

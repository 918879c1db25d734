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
    epochs = [line for line in lines if line.startswith("epoch")]
    return np.array([re.findall(r"loss ([\d.]+)", line) for line in epochs], float)


def status_lines(lines: Iterable[str]) -> list[str]:
    """The lines about devices, epochs and resuming, without the text at the end."""
    return [line for line in lines if line.startswith(("process", "resumes", "epoch"))]


@drawing.picture
def one_update() -> None:
    """From top to bottom, joined by arrows: Python's library, cut into examples of 65 bytes; 16 of them, shuffled, are the global batch; each of eight devices of two processes takes two rows; its two micro-batches follow each other; their sums stay on the device; one all-reduce adds up all devices; each device updates its eighth of the state; each process writes its shards into one checkpoint. A dashed arrow takes all parameters from the eighths back to the micro-batches."""
    axes = drawing.canvas(24.4, 13.6, inches=8.6)
    width = STEP * DEVICES - 0.3
    middle = FIRST_DEVICE + width / 2
    names = {
        0.4: "text",
        1.9: "examples",
        3.4: "global batch",
        5.6: "rows of a device",
        7.1: "micro-batches",
        8.6: "gradient sums",
        11.6: "state",
        13.1: "checkpoint",
    }
    for y, name in names.items():
        axes.text(0, y, name, va="center")

    whole_rows = {
        0.0: "70,000 bytes of Python's own library",
        3.0: "16 examples, shuffled",
        9.7: "one all-reduce adds up the sums of all devices",
        12.7: "one folder, to which each process writes its shards",
    }
    for top, text in whole_rows.items():
        drawing.box(axes, FIRST_DEVICE, top, text, width=width)
    for process in range(2):
        center = FIRST_DEVICE + width * (1 + 2 * process) / 4
        axes.text(center, 4.75, f"process {process}", ha="center", va="center", size=9)

    for device in range(DEVICES):
        left = FIRST_DEVICE + STEP * device
        center = left + 0.9
        look = {"device": device, "size": 8}
        text = "65 bytes" if device < DEVICES - 1 else "..."
        drawing.box(axes, left, 1.5, text, size=7)
        first_row = 2 * device
        drawing.box(axes, left, 5.2, f"{first_row}, {first_row + 1}", **look)
        for half in range(2):
            half_left = left + 0.95 * half
            text = f"{first_row + half}"
            drawing.box(axes, half_left, 6.7, text, width=0.85, **look)
        drawing.box(axes, left, 8.2, f"{first_row} + {first_row + 1}", **look)
        drawing.box(axes, left, 11.2, "its 1/8", **look)
        for top in (6.0, 7.5, 9.0, 10.5, 12.0):
            drawing.arrow(axes, (center, top), (center, top + 0.7), device=device)
    for top in (0.8, 2.3):
        drawing.arrow(axes, (middle, top), (middle, top + 0.7))
    for process in range(2):
        center = FIRST_DEVICE + width * (1 + 2 * process) / 4
        drawing.arrow(axes, (center - 1.6, 3.8), (center - 1.6, 5.1))

    right = FIRST_DEVICE + width
    axes.plot([right + 0.2, right + 0.9], [11.6, 11.6], "--", color=drawing.INK, lw=1.4)
    axes.plot([right + 0.9, right + 0.9], [11.6, 7.1], "--", color=drawing.INK, lw=1.4)
    drawing.arrow(axes, (right + 0.9, 7.1), (right + 0.1, 7.1), dashed=True)
    text = "all\nparameters,\ngathered"
    axes.text(right + 1.1, 9.3, text, va="center", size=8)


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

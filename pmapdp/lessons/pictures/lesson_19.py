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
def learning_curves(
    uninterrupted: np.ndarray,
    counted: dict[str, float],
    interrupted: np.ndarray | None = None,
) -> None:
    """Training and test loss fall over the epochs, and end below both losses that counting reaches. If there's a second run, its dots lie on the first."""
    plt.figure(figsize=(7, 2.9))
    axes = plt.gca()
    epochs = np.arange(len(uninterrupted))
    for column, name in enumerate(("training", "test")):
        axes.plot(
            epochs,
            uninterrupted[:, column],
            drawing.DASHES[column],
            color=drawing.DEVICE_COLOURS[4],
            linewidth=4,
            label=name if interrupted is None else f"{name}, never killed",
        )
    for name, loss in counted.items():
        axes.axhline(loss, color=drawing.INK, linestyle=":", linewidth=1)
        axes.text(epochs[-1], loss + 0.03, name, ha="right", size=9)
    if interrupted is not None:
        for column in range(2):
            axes.plot(
                epochs,
                interrupted[:, column],
                "o",
                color=drawing.INK,
                label="killed after epoch 0" if column == 0 else None,
            )
        axes.axvline(0.5, color=drawing.ACCENT, linewidth=1)
        bottom = axes.get_ylim()[0]
        look = {"color": drawing.ACCENT, "va": "bottom", "size": 9}
        axes.text(0.48, bottom, "two processes,\neight devices", ha="right", **look)
        axes.text(0.52, bottom, "one process,\none device", ha="left", **look)
    axes.set(xlabel="epoch", ylabel="loss", xticks=epochs)
    drawing.legend_beside(axes)

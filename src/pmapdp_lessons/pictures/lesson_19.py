"""The pictures of lesson 19: measured all-reduces with the fitted formula, and predicted efficiencies."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np

from pmapdp_lessons import drawing


def fitted(rows: list[dict], constants: np.ndarray, terms: Callable) -> None:
    """The measurements as points, and the formula with its constants as lines; a colour for each number of devices."""
    _, axes = plt.subplots()
    for number, count in enumerate(sorted({row["devices"] for row in rows})):
        mine = [row for row in rows if row["devices"] == count]
        sizes, colour = [row["bytes"] for row in mine], drawing.DEVICE_COLOURS[number]
        axes.loglog(sizes, [1e3 * row["seconds"] for row in mine], "o", color=colour)
        times = [1e3 * constants @ terms(count, size) for size in sizes]
        axes.loglog(sizes, times, color=colour, label=f"{count} devices")
    axes.set(xlabel="bytes on each device", ylabel="ms")
    axes.legend()
    plt.show()


def efficiencies(curves: dict[tuple[str, str], tuple[list[int], list[float]]]) -> None:
    """`curves` is {(network, hardware): (numbers of devices, efficiencies)}: a colour for each kind of hardware."""
    _, axes = plt.subplots()
    networks, kinds = (list(dict.fromkeys(names)) for names in zip(*curves, strict=True))
    for (network, hardware), (counts, shares) in curves.items():
        style, colour = ("--", "-")[networks.index(network)], drawing.DEVICE_COLOURS[2 * kinds.index(hardware)]
        axes.semilogx(counts, shares, style, base=2, color=colour, label=f"{network}, {hardware}")
    axes.set(xlabel="devices", ylabel="efficiency, predicted", ylim=(0, 1.05))
    axes.legend(fontsize=8)
    plt.show()

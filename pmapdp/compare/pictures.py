"""Compute colours and curves for `pictures.html`, which draws them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pmapdp.compare.results import Measurement
from pmapdp.compare.wrong_strategies import WRONG_STRATEGIES

# The Okabe-Ito palette, which colour-blind readers can tell apart (Okabe and Ito,
# "Color universal design", 2008), and a grey. More devices than colours start again
# from the first.
DEVICE_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#B8A800",
    "#8C8C8C",
)


def colour_of(device: int) -> str:
    """Return a device's colour."""
    return DEVICE_COLOURS[device % len(DEVICE_COLOURS)]


class Curves(NamedTuple):
    """Curves of runs over the updates, with heights from 0 to 1.

    Attributes:
        axis: The height of each label.
        lines: A kind and the heights, for each run.
    """

    axis: dict[str, float]
    lines: list[tuple[str, list[float]]]


def loss_curves(runs: Sequence[Measurement]) -> Curves:
    """Return the losses of runs by update, from 0 to the largest one."""
    losses = np.array([run.losses for run in runs])  # [runs, updates]
    top = losses[np.isfinite(losses)].max()
    axis = {f"{top * part:.2g}": part for part in (0, 0.5, 1)}
    return make_curves(runs, axis, losses / top)


def difference_curves(runs: Sequence[Measurement]) -> Curves:
    """Return how far losses are from the first run's, by update, on a log scale."""
    losses = np.array([run.losses for run in runs])
    differences = np.abs(losses[1:] - losses[0]) / np.abs(losses[0])
    texts = ("0", "1e-12", "1e-8", "1e-4", "1")
    axis = {text: log_height(float(text)) for text in texts}
    heights = np.vectorize(log_height)(differences)
    return make_curves(runs[1:], axis, heights)


def log_height(difference: float) -> float:
    """Return the height on a log scale from 1e-17, at the bottom, to 10, at the top.

    Numbers of 53 bits that differ at all differ by more than 1e-17, so the bottom is
    free for a difference of 0.
    """
    if difference == 0:
        return 0.0
    return (math.log10(difference) + 17) / 18


def make_curves(
    runs: Sequence[Measurement],
    axis: dict[str, float],
    heights: np.ndarray,
) -> Curves:
    """Make a curve of each run's heights, of which the largest are cut at 1."""
    lines = []
    for run, row in zip(runs, heights, strict=True):
        kind = ""
        if run.strategy == "single":
            kind = "reference"
        elif run.strategy in WRONG_STRATEGIES:
            kind = "off-curve"
        lines.append((kind, np.minimum(row, 1).tolist()))
    return Curves(axis, lines)

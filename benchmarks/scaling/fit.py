"""Latency and bandwidth from measured all-reduces, and what they predict for those that were left out."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

Measured = dict[str, Any]  # devices, bytes, seconds
Terms = Callable[[int, float], tuple[float, ...]]  # (N, n) to what each unknown is multiplied by


def shared_memory_terms(N: int, n: float) -> tuple[float, ...]:
    """Unknowns: start, latency, seconds per byte. An all-reduce takes start + N (latency + n byte_seconds): however the
    devices divide the sum among them, N arrays are read and N results written by the same cores.
    """
    return 1, N, N * n


def ring_terms(N: int, n: float) -> tuple[float, ...]:
    """Unknowns: latency, seconds per byte; see `pmapdp.scaling.costs.ring`, twice."""
    return 2 * (N - 1), 2 * (N - 1) / N * n


class Comparison(NamedTuple):
    """A predicted and a measured time."""

    devices: int
    bytes: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of the measurement: 0.1 is a tenth too long."""
        return self.predicted / self.measured - 1


def fit(rows: Sequence[Measured], terms: Terms) -> np.ndarray:
    """The unknowns, none negative, with the least sum of squared relative errors."""
    seconds = np.array([row["seconds"] for row in rows])
    design = np.array([terms(row["devices"], row["bytes"]) for row in rows], float)
    scale = np.abs(design).max(axis=0)  # latencies and seconds per byte differ by many orders
    return nnls(design / scale / seconds[:, None], np.ones(len(rows)))[0] / scale


def predicted_seconds(unknowns: Sequence[float], terms: Sequence[float]) -> float:
    """The time of one all-reduce from the fitted unknowns and its terms."""
    return float(np.dot(unknowns, terms))


def compare(unknowns: Sequence[float], rows: Sequence[Measured], terms: Terms) -> list[Comparison]:
    """What the unknowns predict for `rows`."""
    return [
        Comparison(
            row["devices"],
            row["bytes"],
            predicted_seconds(unknowns, terms(row["devices"], row["bytes"])),
            row["seconds"],
        )
        for row in rows
    ]


def leave_out(rows: Sequence[Measured], terms: Terms, group: Callable[[Measured], Any]) -> list[Comparison]:
    """Each group of rows predicted from a fit to all other groups."""
    found = []
    for name in dict.fromkeys(group(row) for row in rows):
        others = [row for row in rows if group(row) != name]
        found += compare(fit(others, terms).tolist(), [row for row in rows if group(row) == name], terms)
    return found


def typical(errors: Sequence[float]) -> float:
    """Median size of errors."""
    return statistics.median(abs(error) for error in errors)

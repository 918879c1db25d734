"""Latency and bandwidth from measured all-reduces, and what they predict for those that were left out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

Measured = dict[str, Any]  # devices, bytes, seconds


def shared_memory_terms(N: int, n: float) -> tuple[float, ...]:
    """What the unknowns start, latency and seconds per byte are multiplied by.

    An all-reduce takes start + N (latency + n byte_seconds): however the devices divide the sum among them, N arrays
    are read and N results written by the same cores.
    """
    return 1, N, N * n


def fit(rows: Sequence[Measured]) -> np.ndarray:
    """The unknowns, none negative, with the least sum of squared relative errors."""
    seconds = np.array([row["seconds"] for row in rows])
    design = np.array([shared_memory_terms(row["devices"], row["bytes"]) for row in rows], float)
    scale = np.abs(design).max(axis=0)  # latencies and seconds per byte differ by many orders
    return nnls(design / scale / seconds[:, None], np.ones(len(rows)))[0] / scale


def leave_out(rows: Sequence[Measured]) -> list[float]:
    """The seconds of each row, predicted from a fit to the rows of the other numbers of devices."""
    return [
        float(
            np.dot(
                fit([other for other in rows if other["devices"] != row["devices"]]),
                shared_memory_terms(row["devices"], row["bytes"]),
            )
        )
        for row in rows
    ]

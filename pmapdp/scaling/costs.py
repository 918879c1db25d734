"""Seconds that a collective takes: pure formulas of latency and bandwidth (Hockney's model). Lesson 18 teaches them.

A message of n bytes takes L + n / W seconds: latency L, bandwidth W. A device sends one message and receives one at the
same time. R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", 2005,
describes the model and the algorithms in use.

Letters: n bytes of the full array on one device, N devices.
"""

import math
from collections.abc import Sequence

from pmapdp.errors import UserError
from pmapdp.scaling.hardware import Level


def sides(N: int, axes: int) -> list[int]:
    """N as a product of `axes` factors that differ as little as can be, for example 8 = 2 x 4; largest last."""
    if axes == 1:
        return [N]
    root = round(N ** (1 / axes))
    first = next(factor for factor in range(max(1, root), 0, -1) if N % factor == 0)
    return sorted([first, *sides(N // first, axes - 1)])


def ring(n: float, N: int, level: Level) -> float:
    """A reduce-scatter to, or an all-gather of, N equal parts of an array of n bytes, around rings.

    Around a ring of N: N - 1 messages of n / N bytes (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", 2009). On a torus the array is cut into as many parts as there are axes,
    which go around the axes in different order, so that all links are busy (N. Jain and Y. Sabharwal, "Optimal bucket
    algorithms for large MPI collectives on torus interconnects", 2010).
    """
    if N == 1:
        return 0.0
    lengths = [side for side in sides(N, level.axes) if side > 1]  # an axis of one member has no links in use
    rings = sum(1.0 if side >= level.wraps_from else 0.5 for side in lengths)
    messages = sum(side - 1 for side in lengths)
    return messages * level.latency + (N - 1) / N * n / (level.bandwidth * rings / level.axes)


def tree(n: float, N: int, level: Level) -> float:
    """The same in ceil(log2 N) messages, each with all parts for one side of a binary tree; every device is the root of
    a tree of its own, so that all send as many bytes as around a ring.

    An all-gather is J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing
    systems", 1997, and a reduce-scatter the same backwards. NCCL runs them as PAT (S. Jeaugey, "PAT: a new algorithm
    for all-gather and reduce-scatter operations at scale", 2025), and gives its trees for all-reduce, which are others,
    the same cost twice (src/graph/tuning.cc).
    """
    return math.ceil(math.log2(N)) * level.latency + (N - 1) / N * n / level.bandwidth


def spread(N: int, levels: Sequence[Level]) -> list[int]:
    """How many members each level joins when N devices fill them from the inside.

    Raises `UserError` where N fills no whole number of groups, or is not from 1 to what can be joined.
    """
    most = math.prod(level.devices for level in levels)
    if not 1 <= N <= most:
        raise UserError(f"{N} devices are not among the 1 to {most:,} that can be joined: try --devices {most}")
    joined, rest = [], N
    for level in levels:
        members = min(rest, level.devices)
        if rest % members:
            whole = N // level.devices * level.devices
            raise UserError(f"{N} devices do not fill whole groups of {level.devices}: try --devices {whole}")
        joined.append(members)
        rest //= members
    return joined


def reduce_scatter(n: float, N: int, levels: Sequence[Level]) -> float:
    """A reduce-scatter of n bytes over the levels, from the inside out, or an all-gather, which takes as long.

    Each level has 1 / members of the bytes of the level inside it. Where a level has trees, the better algorithm of the
    two is taken.
    """
    seconds = 0.0
    for members, level in zip(spread(N, levels), levels, strict=True):
        around = ring(n, members, level)
        seconds += min(around, tree(n, members, level)) if level.trees else around
        n /= members
    return seconds


def all_reduce(n: float, N: int, levels: Sequence[Level]) -> float:
    """A reduce-scatter, then an all-gather.

    So a step that updates between the two (ZeRO-1) communicates as long as one that updates after both.
    """
    return 2 * reduce_scatter(n, N, levels)

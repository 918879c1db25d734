"""Seconds that a collective takes: pure formulas of latency and bandwidth (Hockney's model).

A message of n bytes takes a + n / B seconds: latency a, bandwidth B. A device sends one message and receives one at the
same time. R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", 2005,
describes the model and the algorithms in use.

Letters: n bytes of the whole array on one device, N devices.
"""

import math
from collections.abc import Sequence

from pmapdp.errors import UserError
from pmapdp.scaling.hardware import Level

ALGORITHMS = ("best", "ring", "tree")


def sides(N: int, axes: int) -> list[int]:
    """N as a product of `axes` factors that differ as little as can be, for example 8 = 2 x 4; largest last."""
    if axes == 1:
        return [N]
    root = round(N ** (1 / axes))
    first = next(factor for factor in range(max(1, root), 0, -1) if N % factor == 0)
    return sorted([first, *sides(N // first, axes - 1)])


def bandwidth(level: Level, N: int) -> float:
    """Bytes/s that one of N devices sends: axes of one member have no links in use, and short axes no ring."""
    used = [side for side in sides(N, level.axes) if side > 1]
    rings = sum(1.0 if side >= level.wraps_from else 0.5 for side in used)
    return level.bandwidth * (rings / level.axes if used else 1.0)


def scatter_or_gather(n: float, N: int, level: Level) -> float:
    """A reduce-scatter to, or an all-gather of, N equal parts of an array of n bytes, around rings.

    Around a ring of N: N - 1 messages of n / N bytes (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", 2009). On a torus the array is cut into as many parts as there are axes,
    which go around the axes in different order, so that all links are busy (N. Jain and Y. Sabharwal, "Optimal bucket
    algorithms for large MPI collectives on torus interconnects", 2010).
    """
    if N == 1:
        return 0.0
    messages = sum(side - 1 for side in sides(N, level.axes))
    return messages * level.latency + (N - 1) / N * n / bandwidth(level, N)


def ring_all_reduce(n: float, N: int, level: Level) -> float:
    """A reduce-scatter, then an all-gather: 2 (N - 1) messages of n / N bytes around one ring."""
    return 2 * scatter_or_gather(n, N, level)


def tree_all_reduce(n: float, N: int, level: Level) -> float:
    """A reduction to the roots of two binary trees, then a broadcast from them.

    Each tree carries half of the array in k pieces, and every device is a leaf of one tree and an inner node of the
    other; each of the two phases takes 2 ceil(log2 N) + 2 k messages of n / (2 k) bytes, and k is chosen best
    (P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).
    """
    if N == 1:
        return 0.0
    height, byte_time = math.ceil(math.log2(N)), 1 / level.bandwidth
    best = math.sqrt(height * n * byte_time / (2 * level.latency)) if level.latency else math.inf
    if math.isinf(best):
        return 2 * n * byte_time
    pieces = {max(1, math.floor(best)), max(1, math.ceil(best))}
    return 2 * min((2 * height + 2 * k) * (level.latency + n * byte_time / (2 * k)) for k in pieces)


def spread(N: int, levels: Sequence[Level]) -> list[int]:
    """How many members each level joins when N devices fill them from the inside.

    Raises:
        UserError: N fills no whole number of groups, or is more than there can be.
    """
    joined, rest = [], N
    for level in levels:
        members = min(rest, level.devices)
        if rest % members:
            raise UserError(
                f"{N} devices do not fill whole groups of {level.devices}: try {N // level.devices * level.devices}"
            )
        joined.append(members)
        rest //= members
    if rest > 1:
        raise UserError(f"{N} devices are more than the {math.prod(x.devices for x in levels):,} that can be joined")
    return joined


def all_reduce(n: float, N: int, levels: Sequence[Level], algorithm: str = "best") -> float:
    """An all-reduce over all levels: reduce-scatter inside each group, the rest outside, all-gather inside.

    Args:
        n: bytes.
        N: devices.
        levels: from the inside out.
        algorithm: ring, tree, or the better of the two for this size.
    """
    members, outer = spread(N, levels)[0], N // spread(N, levels)[0]
    inner = levels[0]
    if outer > 1:
        return 2 * scatter_or_gather(n, members, inner) + all_reduce(n / members, outer, levels[1:], algorithm)
    ring, tree = ring_all_reduce(n, members, inner), tree_all_reduce(n, members, inner)
    if not inner.trees:
        return ring
    return {"ring": ring, "tree": tree, "best": min(ring, tree)}[algorithm]


def reduce_scatter(n: float, N: int, levels: Sequence[Level]) -> float:
    """A reduce-scatter over all levels, around rings; an all-gather takes as long.

    Each level has 1 / members of the bytes of the level inside it.
    """
    seconds = 0.0
    for members, level in zip(spread(N, levels), levels, strict=True):
        seconds += scatter_or_gather(n, members, level)
        n /= members
    return seconds


def shared_memory_all_reduce(n: float, N: int, *, start: float, latency: float, byte_seconds: float) -> float:
    """An all-reduce of N simulated devices, which share one memory and its cores: start + N (latency + n byte_seconds).

    However the devices divide the sum among them, N arrays are read and N results written by the same cores.
    """
    return start + N * (latency + n * byte_seconds)

"""Pictures of lesson 11."""

from collections.abc import Iterable
from typing import Any

import jax

from pmapdp.lessons import drawing


@drawing.picture
def shardings(
    arrays: dict[str, Any], *, arrows: Iterable[tuple[int, int]] = ()
) -> None:
    """Six arrays in the colours of their devices: stripes of rows or of columns, or a stack of eight cards, because all devices hold all of it.

    `arrows` are pairs of the arrays' numbers.
    """
    axes = drawing.canvas(27.4, 13.6, inches=8)
    corners = [
        (9.8 * (number % 3), 1.5 + 7 * (number // 3)) for number in range(len(arrays))
    ]
    for (name, array), (left, top) in zip(arrays.items(), corners, strict=True):
        axes.text(left, top - 1.1, name, va="center", fontsize=9)
        axes.text(left, top - 0.4, jax.typeof(array), va="center", fontsize=9)
        drawing.shards(axes, (left, top, 6.6, 4.6), array.shape, array.sharding)
    for start, end in arrows:
        (left, top), (right, height) = corners[start], corners[end]
        drawing.arrow(
            axes,
            (left + 6.9, top + 2.3),
            (right - 0.2, height + (2.3 if height == top else 3.6)),
        )

"""Pictures of lesson 11."""

from collections.abc import Iterable
from typing import Any

import jax

from pmapdp.lessons import drawing


@drawing.picture
def shardings(
    arrays: dict[str, Any], *, arrows: Iterable[tuple[int, int]] = ()
) -> None:
    """Six arrays in the colours of their devices: stripes of rows, or a stack of eight cards, because all devices hold all of it.

    `arrows` are pairs of the arrays' numbers. One that points down stands for the loss
    and the backward pass, with its all-reduce.
    """
    axes = drawing.canvas(27.4, 14.6, inches=8)
    corners = [
        (9.8 * (number % 3), 1.5 + 8.2 * (number // 3)) for number in range(len(arrays))
    ]
    for (name, array), (left, top) in zip(arrays.items(), corners, strict=True):
        axes.text(left, top - 1.1, name, va="center", fontsize=9)
        axes.text(left, top - 0.4, jax.typeof(array), va="center", fontsize=9)
        drawing.shards(axes, (left, top, 6.6, 4.6), array.shape, array.sharding)
    for start, end in arrows:
        (left, top), (right, height) = corners[start], corners[end]
        if left == right:
            head = (left + 3.3, height - 1.6)
            drawing.arrow(axes, (left + 3.3, top + 4.7), head, dashed=True)
            axes.text(left + 3.8, top + 5.15, "loss, backward,", va="center", size=9)
            axes.text(left + 3.8, top + 5.9, "all-reduce", va="center", weight="bold")
            continue
        drawing.arrow(
            axes,
            (left + 6.9, top + 2.3),
            (right - 0.2, height + (2.3 if height == top else 3.6)),
        )


@drawing.picture
def values_by_device(*rows: tuple[str, Any]) -> None:
    """A row of eight boxes for each array: the number that each device holds. In the last row the numbers differ, because their sum isn't finished.

    `rows` are names and arrays that hold one number on each device.
    """
    axes = drawing.canvas(31, 0.7 + 2 * len(rows), inches=7.6)
    axes.text(13.2, 0.1, "device", ha="right", fontsize=8)
    for d in range(8):
        axes.text(14.9 + 2.1 * d, 0.1, str(d), ha="center", fontsize=8)
    for number, (name, array) in enumerate(rows):
        top = 0.7 + 2 * number
        axes.text(0, top + 0.8, name, va="center", fontsize=9)
        axes.text(7, top + 0.8, jax.typeof(array), va="center", fontsize=9)
        numbers = [f"{shard.data.item():g}" for shard in array.addressable_shards]
        drawing.device_row(axes, 14, top, numbers, step=2.1, width=1.8, height=1.6)


@drawing.picture
def all_reduces_in_order() -> None:
    """Four gradients, one after the other. With replicated parameters each is followed by an all-reduce, with reduced parameters one all-reduce follows the last."""
    axes = drawing.canvas(31, 5.2, inches=7.6)
    rounds = ["gradient", "all-reduce"] * 4
    rows = {"replicated": rounds, "reduced": ["gradient"] * 4 + ["all-reduce"]}
    for row, (name, stages) in enumerate(rows.items()):
        left = 4.6
        top = 0.2 + 2.2 * row
        axes.text(0, top + 0.8, name, weight="bold", va="center")
        for stage in stages:
            device = 0 if stage == "gradient" else 1
            size = {"width": 3.1, "height": 1.6, "size": 8}
            text = stage.replace("-", "-\n")
            drawing.box(axes, left, top, text, device=device, **size)
            left += 3.2
    axes.text(4.6, 4.8, "order \u2192   blue: compute, orange: communicate", size=9)

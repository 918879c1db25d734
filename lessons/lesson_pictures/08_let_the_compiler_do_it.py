"""The pictures of lesson 08. They read the shardings that they show from JAX."""

import drawing
from jax.sharding import PartitionSpec


def shards(arrays) -> None:
    """Which rows and columns of each array every device holds.

    Args:
        arrays: placed arrays `[16, 4]`, drawn beside each other under their PartitionSpec.
    """
    axes = drawing.canvas(18, 5.4)
    for column, array in enumerate(arrays):
        spec, left = array.sharding.spec, 6.4 * column
        axes.text(left + 2.2, 0.3, str(spec).replace("PartitionSpec", "P"), ha="center")
        split = spec != PartitionSpec()
        for shard in array.addressable_shards if split else array.addressable_shards[:1]:
            rows, columns = shard.index
            height, width = shard.data.shape
            drawing.box(
                axes,
                left + 1.1 * (columns.start or 0),
                0.7 + 0.28 * (rows.start or 0),
                f"device {shard.device.id}" if split else "a copy\non each device",
                device=shard.device.id if split else None,
                width=1.1 * width - 0.08,
                height=0.28 * height - 0.06,
            )


def training_step() -> None:
    """What is placed, what each device computes, and what the compiler adds; four of the devices."""
    axes = drawing.canvas(22, 5.4)
    for x, heading in ((0.9, "W, replicated"), (5.4, "batch, split"), (10, "gradient of its rows"), (15.2, "compiler")):
        axes.text(x, 0.3, heading, ha="center")
    axes.text(20.4, 0.3, "W, replicated", ha="center")
    for d in range(4):
        y = 0.8 + 1.1 * d
        drawing.box(axes, 0, y, "[784, 10]", device=d, width=2.2)
        drawing.box(axes, 4.2, y, "[64, 784]", device=d, width=2.4)
        drawing.box(axes, 8.8, y, "[784, 10]", device=d, width=2.4)
        drawing.box(axes, 19.3, y, "[784, 10]", device=d, width=2.2)
        drawing.arrow(axes, (2.2, y + 0.4), (4.2, y + 0.4), device=d)
        drawing.arrow(axes, (6.6, y + 0.4), (8.8, y + 0.4), device=d)
        drawing.arrow(axes, (11.2, y + 0.4), (13.6, 2.8), device=d)
        drawing.arrow(axes, (16.8, 2.8), (19.3, y + 0.4), device=d)
    drawing.box(axes, 13.6, 2.3, "all-reduce", width=3.2, height=1.0)

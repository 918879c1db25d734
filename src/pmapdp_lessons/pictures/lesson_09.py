"""The pictures of lesson 09. They read the shardings that they show from JAX."""

from jax.sharding import PartitionSpec

from pmapdp_lessons import drawing


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
    axes = drawing.canvas(20.2, 5.4)
    columns = {0: "W, replicated", 4.4: "batch, split", 8.8: "gradient of its rows", 17: "W, replicated"}
    for x, heading in columns.items():
        axes.text(x + 1.5, 0.3, heading, ha="center")
    for d in range(4):
        y = 0.8 + 1.1 * d
        for x in columns:
            drawing.box(axes, x, y, "[64, 784]" if x == 4.4 else "[784, 10]", device=d, width=3)
        for start, end in (((3, y + 0.4), (4.4, y + 0.4)), ((7.4, y + 0.4), (8.8, y + 0.4))):
            drawing.arrow(axes, start, end, device=d)
        drawing.arrow(axes, (11.8, y + 0.4), (12.8, 2.8), device=d)
        drawing.arrow(axes, (16, 2.8), (17, y + 0.4), device=d)
    drawing.box(axes, 12.8, 2.3, "all-reduce", width=3.2, height=1.0)

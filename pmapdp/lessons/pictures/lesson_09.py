"""The pictures of lesson 09. They read the shardings that they show from JAX."""

from jax.sharding import PartitionSpec

from pmapdp.lessons import drawing


@drawing.picture
def shards(arrays) -> None:
    """Three arrays of 16 rows and 4 columns: split by rows over 8 devices, replicated, and split by rows and columns.

    Args:
        arrays: placed arrays `[16, 4]`, drawn beside each other under their PartitionSpec.
    """
    axes = drawing.canvas(19.4, 7.4)
    axes.text(0.1, 3.6, "16 rows", va="center", rotation=90)
    for column, array in enumerate(arrays):
        spec, left = array.sharding.spec, 0.8 + 6.6 * column
        axes.text(left + 2.2, 7.0, "4 columns", ha="center")
        axes.text(left + 2.2, 0.3, str(spec).replace("PartitionSpec", "P"), ha="center")
        split = spec != PartitionSpec()
        for shard in array.addressable_shards if split else array.addressable_shards[:1]:
            rows, columns = shard.index
            height, width = shard.data.shape
            name = f"device {shard.device.id}" if width > 2 else f"{shard.device.id}"
            drawing.box(
                axes,
                left + 1.1 * (columns.start or 0),
                0.7 + 0.36 * (rows.start or 0),
                name if split else "a copy\non each device",
                device=shard.device.id if split else None,
                width=1.1 * width - 0.08,
                height=0.36 * height - 0.06,
            )


@drawing.picture
def training_step() -> None:
    """Each device has W and a slice of the batch, and computes its gradient; the compiler's all-reduce gives each the new W."""
    axes = drawing.canvas(25.7, 6.2, inches=7.8)
    columns = {3.2: "W, replicated", 7.9: "batch, split", 12.6: "its gradient", 22.2: "new W, replicated"}
    for x, heading in columns.items():
        axes.text(x + 1.7, 0.3, heading, ha="center")
    for d in range(4):
        y = 0.8 + 1.1 * d
        axes.text(0.1, y + 0.4, f"device {d}", va="center")
        for x in columns:
            drawing.box(axes, x, y, "[64, 784]" if x == 7.9 else "[784, 10]", device=d, width=3.4)
        for start, end in (((6.6, y + 0.4), (7.9, y + 0.4)), ((11.3, y + 0.4), (12.6, y + 0.4))):
            drawing.arrow(axes, start, end, device=d)
        drawing.arrow(axes, (16.0, y + 0.4), (17.1, 2.8), device=d)
        drawing.arrow(axes, (21.1, 2.8), (22.2, y + 0.4), device=d)
    drawing.box(axes, 17.1, 2.3, "all-reduce", width=4.0, height=1.0)
    axes.text(0.1, 5.7, "devices 4 to 7 do the same", va="center")

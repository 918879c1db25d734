"""The pictures of lesson 15. They read the shardings that they show from JAX."""

from pmapdp.lessons import drawing

HEIGHT = 3.5  # of an array, so that the number of a device fits into an eighth of it


@drawing.picture
def layouts(names, shapes, sharding_of) -> None:
    """The arrays x, W1, h, W2 and y in three layouts: data splits the rows, model also hidden units, two axes also features.

    Args:
        names: of the layouts, from the top down.
        shapes: name of an array to its shape `[rows, columns]`, from left to right.
        sharding_of: (layout, array) to its `NamedSharding`.
    """
    axes = drawing.canvas(22.6, 13.6, inches=9)
    for row, layout in enumerate(names):
        top = 0.7 + 4.5 * row
        axes.text(0, top + HEIGHT / 2, layout, weight="bold", va="center")
        for column, (name, shape) in enumerate(shapes.items()):
            array(axes, 3.7 + 3.9 * column, top, name, shape, sharding_of(layout, name))


def array(axes, left, top, name, shape, sharding) -> None:
    """One array; a shard that several devices hold has the number and the colour of the first."""
    axes.text(left + 1.5, top - 0.15, f"{name} {list(sharding.shard_shape(shape))}", ha="center", fontsize=9)
    (n, m), drawn = shape, set()
    for device, (rows, columns) in sharding.devices_indices_map(shape).items():
        (r0, r1, _), (c0, c1, _) = rows.indices(n), columns.indices(m)
        if (r0, c0) not in drawn:
            drawing.box(
                axes,
                left + 3 * c0 / m,
                top + HEIGHT * r0 / n,
                str(device.id),
                device=device.id,
                width=3 * (c1 - c0) / m - 0.05,
                height=HEIGHT * (r1 - r0) / n - 0.05,
                size=10 if r1 - r0 > n // 8 else 8,
            )
        drawn.add((r0, c0))

"""Pictures of lesson 11."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.lessons import drawing

# name: (left, top, shape, the mesh axes that split it)
ARRAYS = {
    "x": (0.3, 1.6, (512, 784), ("data", None)),
    "W1": (0.3, 6.6, (784, 64), (None, "model")),
    "hidden = relu(x @ W1)": (9.8, 1.6, (512, 64), ("data", "model")),
    "W2": (9.8, 6.6, (64, 10), ("model", None)),
    "logits: JAX asks": (20.6, 1.6, (512, 10), ("data", None)),
}


@drawing.picture
def types() -> None:
    """On 2 x 2 devices, x [512@data, 784] and W1 [784, 64@model] give hidden [512@data, 64@model]; with W2 [64@model, 10] it gives logits [512@data, 10]. Colours show which devices hold which shard."""
    axes = drawing.canvas(27.2, 10.6, inches=8)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    for name, (left, top, shape, names) in ARRAYS.items():
        types = [str(n) if axis is None else f"{n}@{axis}" for n, axis in zip(shape, names, strict=True)]
        axes.text(left, top - 1.0, name, weight="bold", va="center", fontsize=9)
        axes.text(left, top - 0.4, f"[{', '.join(types)}]", va="center", fontsize=9)
        drawing.shards(axes, (left, top, 5.6, 3.2), shape, NamedSharding(mesh, PartitionSpec(*names)))
    for start, end in ((6.0, 9.7), (15.5, 20.5)):
        for row in (3.2, 8.2):
            drawing.arrow(axes, (start, row), (end, 3.0 if row < 4 else 3.6))


@drawing.picture
def shardings(arrays: dict[str, Any]) -> None:
    """Six matrices in the colours of their devices: stripes of rows or of columns, and a stack of eight cards, because all devices hold all of it."""
    axes = drawing.canvas(27.4, 13.6, inches=8)
    for number, (name, array) in enumerate(arrays.items()):
        left, top = 9.8 * (number % 3), 1.5 + 7 * (number // 3)
        axes.text(left, top - 1.1, name, va="center", fontsize=9)
        axes.text(left, top - 0.4, jax.typeof(array), va="center", fontsize=9)
        drawing.shards(axes, (left, top, 6.6, 4.6), array.shape, array.sharding)

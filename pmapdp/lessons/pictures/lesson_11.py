"""Pictures of lesson 11."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgb

from pmapdp.lessons import drawing

# name: (left, top, type as JAX writes it)
ARRAYS = {
    "x": (0.2, 1.4, "[512@data,784]"),
    "W1": (0.2, 5.2, "[784,64@model]"),
    "hidden = relu(x @ W1)": (12.8, 3.3, "[512@data,64@model]"),
    "W2": (12.8, 7.1, "[64@model,10]"),
    "logits: JAX asks you": (25.4, 5.2, "[512@data,10]"),
}
WAYS = (
    ("x", "hidden = relu(x @ W1)"),
    ("W1", "hidden = relu(x @ W1)"),
    ("hidden = relu(x @ W1)", "logits: JAX asks you"),
    ("W2", "logits: JAX asks you"),
)


@drawing.picture
def types() -> None:
    """x [512@data, 784] and W1 [784, 64@model] give hidden [512@data, 64@model]; with W2 [64@model, 10] logits [512@data, 10]."""
    axes = drawing.canvas(36.4, 9, inches=7.6)
    for name, (left, top, text) in ARRAYS.items():
        axes.text(left + 5.4, top - 0.4, name, ha="center", weight="bold")
        drawing.box(axes, left, top, text, width=10.8, height=1.7)
    for start, end in WAYS:
        (x0, y0, _), (x1, y1, _) = ARRAYS[start], ARRAYS[end]
        drawing.arrow(axes, (x0 + 10.9, y0 + 0.85), (x1 - 0.1, y1 + 0.85))


@drawing.picture
def shardings(arrays: dict[str, Any]) -> None:
    """Six matrices in the colours of their devices: stripes of rows or of columns, and one in grey that all devices hold."""
    _, grid = plt.subplots(2, 3, figsize=(7, 4), layout="constrained")
    for axes, (name, array) in zip(grid.flat, arrays.items(), strict=True):
        pixels = np.zeros((*array.shape, 3))
        for device, part in array.sharding.devices_indices_map(array.shape).items():
            replicated = array.sharding.is_fully_replicated
            pixels[part] = to_rgb(drawing.INK if replicated else drawing.DEVICE_COLOURS[device.id])
            if replicated and device.id == 0:
                axes.text(8, 8, "all of it\non each device", color="white", ha="center", va="center")
        axes.imshow(pixels, extent=(0, array.shape[1], array.shape[0], 0))
        axes.set(xticks=[], yticks=[], xlim=(0, 16), ylim=(16, 0))
        axes.set_title(name, fontsize=8)
        axes.spines[:].set_visible(False)

"""The picture of lesson 11: shapes with shardings through a network."""

from pmapdp_lessons import drawing

# name: (left, top, type as JAX writes it)
ARRAYS = {
    "x": (0.2, 0.8, "[512@data,784]"),
    "W1": (0.2, 3.6, "[784,64@model]"),
    "hidden = relu(x @ W1)": (12.8, 2.2, "[512@data,64@model]"),
    "W2": (12.8, 4.8, "[64@model,10]"),
    "logits = hidden @ W2": (25.4, 3.5, "[512@data,10]"),
}
WAYS = (
    ("x", "hidden = relu(x @ W1)"),
    ("W1", "hidden = relu(x @ W1)"),
    ("hidden = relu(x @ W1)", "logits = hidden @ W2"),
    ("W2", "logits = hidden @ W2"),
)


@drawing.picture
def types() -> None:
    """x [512@data, 784] and W1 [784, 64@model] give hidden [512@data, 64@model]; with W2 [64@model, 10] logits [512@data, 10]."""
    axes = drawing.canvas(36, 6.4, inches=7.6)
    for name, (left, top, text) in ARRAYS.items():
        axes.text(left + 5.1, top - 0.2, name, ha="center", weight="bold")
        drawing.box(axes, left, top, text, width=10.2, height=1.1)
    for start, end in WAYS:
        (x0, y0, _), (x1, y1, _) = ARRAYS[start], ARRAYS[end]
        drawing.arrow(axes, (x0 + 10.2, y0 + 0.55), (x1, y1 + 0.55))

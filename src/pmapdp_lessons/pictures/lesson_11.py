"""The picture of lesson 11: shapes with shardings through a network."""

from pmapdp_lessons import drawing

STAGES = (
    ("x", "[512@data,784]"),
    ("W1", "[784,64@model]"),
    ("relu(x @ W1)", "[512@data,64@model]"),
    ("W2", "[64@model,10]"),
    ("logits", "[512@data,10]"),
)


def types() -> None:
    """The types of a network's arrays, as JAX writes them; colours of the two mesh axes."""
    axes = drawing.canvas(30, 6)
    places = {"x": (0, 0.6), "W1": (0, 3.4), "relu(x @ W1)": (10.3, 2), "W2": (10.3, 4.6), "logits": (20.6, 3.3)}
    for name, text in STAGES:
        left, top = places[name]
        axes.text(left + 4.7, top - 0.2, name, ha="center", weight="bold")
        drawing.box(axes, left, top, text, device=2 if "model" in text else 0, width=9.4, height=1.1)
    for start, end in ((("x"), "relu(x @ W1)"), ("W1", "relu(x @ W1)"), ("relu(x @ W1)", "logits"), ("W2", "logits")):
        (x0, y0), (x1, y1) = places[start], places[end]
        drawing.arrow(axes, (x0 + 9.4, y0 + 0.45), (x1, y1 + 0.45))

"""Pictures of lesson 02."""

from pmapdp.lessons import drawing


@drawing.picture
def trace() -> None:
    """First call: a Python function is traced to a jaxpr and compiled. Later calls go from the arrays straight to the program."""
    axes = drawing.canvas(19, 3.9)
    stations = ((0, "Python function"), (6.9, "jaxpr: a list\nof operations"), (13.8, "compiled program"))
    for left, text in stations:
        drawing.box(axes, left, 0.6, text, width=5.0, height=1.5)
    drawing.arrow(axes, (5.0, 1.3), (6.9, 1.3))
    drawing.arrow(axes, (11.9, 1.3), (13.8, 1.3))
    axes.text(5.95, 0.4, "trace", ha="center")
    axes.text(12.85, 0.4, "compile", ha="center")
    axes.text(0, 0.25, "first call", va="center", weight="bold")
    drawing.box(axes, 0, 2.8, "arrays", device=0, width=5.0, height=0.9)
    drawing.arrow(axes, (5.0, 3.25), (16.3, 3.25), device=0)
    drawing.arrow(axes, (16.3, 3.25), (16.3, 2.15), device=0)
    axes.text(5.4, 2.9, "every later call with these shapes", va="center", weight="bold")


@drawing.picture
def vectorized() -> None:
    """One image goes through predict_one and gives one row of logits; three images go through its vmap; all on one device."""
    axes = drawing.canvas(15, 4.6)
    drawing.box(axes, 0, 0.2, "image [D]", device=0, width=2.8)
    drawing.arrow(axes, (2.8, 0.6), (4.2, 0.6), device=0)
    drawing.box(axes, 4.2, 0.2, "predict_one", width=5.6)
    drawing.arrow(axes, (9.8, 0.6), (11.2, 0.6), device=0)
    drawing.box(axes, 11.2, 0.2, "logits [C]", device=0, width=2.8)
    for row in range(3):
        drawing.box(axes, 0, 1.6 + row, f"image {row}", device=0, width=2.8)
        drawing.arrow(axes, (2.8, 2.0 + row), (4.2, 3.0), device=0)
        drawing.arrow(axes, (9.8, 3.0), (11.2, 2.0 + row), device=0)
        drawing.box(axes, 11.2, 1.6 + row, f"logits {row}", device=0, width=2.8)
    drawing.box(axes, 4.2, 2.4, "vmap(predict_one,\n in_axes=(None, 0))", width=5.6, height=1.2)

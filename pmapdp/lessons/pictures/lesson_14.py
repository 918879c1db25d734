"""The picture of lesson 14: two starts of one run."""

from pmapdp.lessons import drawing


@drawing.picture
def two_starts() -> None:
    """The first start saves a checkpoint at update 20 and is stopped at 25. The second start restores it and goes to update 40."""
    axes = drawing.canvas(15, 4.4)
    for y, name, steps in (
        (0.2, "first start", ("update 0", "update 20", "stopped at 25")),
        (3.4, "second start", (None, "update 20", "update 40")),
    ):
        axes.text(0.1, y + 0.4, name, va="center")
        for number, text in enumerate(steps):
            if text:
                drawing.box(axes, 3 + 4 * number, y, text, width=3)
            if text and number < 2:
                drawing.arrow(axes, (6 + 4 * number, y + 0.4), (7 + 4 * number, y + 0.4))
    drawing.box(axes, 5.6, 1.7, "checkpoint of update 20:\none copy, no device axis", width=5.8, height=1)
    drawing.arrow(axes, (8.5, 1), (8.5, 1.7))
    drawing.arrow(axes, (8.5, 2.7), (8.5, 3.4))
    axes.text(8.7, 1.35, "save", va="center")
    axes.text(8.7, 3.05, "restore", va="center")

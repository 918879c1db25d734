"""The picture of lesson 15: where state and batch are, before and after the port."""

import drawing

ROWS = (
    ("pmap, stacked", "[8, 784, 64]", "[8, 32, 784]"),
    ("shard_map", "[784, 64]", "[256, 784]"),
    ("jit", "[784, 64]", "[256, 784]"),
)


def before_and_after() -> None:
    """State and batch as arrays, and the all-reduce; four of the devices."""
    axes = drawing.canvas(24, 8.4)
    for x, text in ((4.2, "state (a kernel)"), (11, "batch (images)"), (17.6, "inside the step")):
        axes.text(x, 0.5, text, weight="bold")
    for row, (name, kernel, images) in enumerate(ROWS):
        y = 2 + 2.4 * row
        axes.text(0, y + 0.4, name, weight="bold", va="center", fontsize=9)
        axes.text(4.2, y - 0.25, f"{kernel}" + (", split" if row == 0 else ", replicated"))
        axes.text(11, y - 0.25, f"{images}, split")
        for d in range(4):
            drawing.box(axes, 4.2 + 1.4 * d, y, "copy", device=d, width=1.3)
            drawing.box(axes, 11 + 1.4 * d, y, "rows", device=d, width=1.3)
        if row == 2:
            drawing.box(axes, 17.6, y, "one program, whole arrays", width=6)
        else:
            for d in range(4):
                drawing.box(axes, 17.6 + 1.5 * d, y, "pmean", device=d, width=1.4)

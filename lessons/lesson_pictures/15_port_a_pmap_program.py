"""The picture of lesson 15: where state and batch are, before and after the port."""

import drawing

ROWS = (
    ("pmap", "[8, 784, 64]", "[8, 32, 784]"),
    ("shard_map", "[784, 64]", "[256, 784]"),
    ("jit", "[784, 64]", "[256, 784]"),
)


def before_and_after() -> None:
    """State and batch as arrays, and the all-reduce; four of the devices."""
    axes = drawing.canvas(28, 8.6)
    for x, text in ((3.6, "state (a kernel)"), (11.4, "batch (images)"), (19, "inside the step")):
        axes.text(x, 0.5, text, weight="bold")
    for row, (name, kernel, images) in enumerate(ROWS):
        y = 2 + 2.4 * row
        axes.text(0, y + 0.4, name, weight="bold", va="center", fontsize=9)
        axes.text(3.6, y - 0.25, f"{kernel}" + (", split" if row == 0 else ", replicated"))
        axes.text(11.4, y - 0.25, f"{images}, split")
        for d in range(4):
            drawing.box(axes, 3.6 + 1.7 * d, y, "w", device=d, width=1.6)
            drawing.box(axes, 11.4 + 1.7 * d, y, "x", device=d, width=1.6)
        if row == 2:
            drawing.box(axes, 19, y, "the program of one device", width=8.9)
        else:
            axes.text(19, y - 0.25, "pmean of gradients")
            for d in range(4):
                drawing.box(axes, 19 + 2.25 * d, y, "step", device=d, width=2.1)

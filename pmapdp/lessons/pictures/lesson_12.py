"""The picture of lesson 12: where state and batch are, before and after the port."""

from pmapdp.lessons import drawing

ROWS = (
    ("pmap", "[8, 784, 64]", "[8, 32, 784]"),
    ("shard_map", "[784, 64]", "[256, 784]"),
    ("jit", "[784, 64]", "[256, 784]"),
)


@drawing.picture
def before_and_after() -> None:
    """A kernel is [8, 784, 64] under pmap, [784, 64] and replicated under shard_map and jit; images lose their device axis, too."""
    axes = drawing.canvas(35.6, 8.6, inches=10)
    for x, text in ((6.6, "state (a kernel)"), (16.4, "batch (images)"), (25, "inside the step")):
        axes.text(x, 0.5, text, weight="bold")
    for row, (name, kernel, images) in enumerate(ROWS):
        y = 2 + 2.4 * row
        axes.text(0, y + 0.4, name, weight="bold", va="center", fontsize=9)
        axes.text(6.6, y - 0.3, f"{kernel}" + (", split" if row == 0 else ", replicated"))
        axes.text(16.4, y - 0.3, f"{images}, split")
        for d in range(4):
            drawing.box(axes, 6.6 + 1.7 * d, y, "w", device=d, width=1.6)
            drawing.box(axes, 16.4 + 1.7 * d, y, "x", device=d, width=1.6)
        if row == 2:
            drawing.box(axes, 25, y, "the plain step", width=9.2)
        else:
            axes.text(25, y - 0.3, "pmean of gradients")
            for d in range(4):
                drawing.box(axes, 25 + 2.35 * d, y, "step", device=d, width=2.25)

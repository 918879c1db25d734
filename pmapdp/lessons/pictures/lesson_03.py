"""Pictures of lesson 03."""

from pmapdp.lessons import drawing


@drawing.picture
def step() -> None:
    """Model, optimizer state and batch go into train_step: gradients, optimizer update, apply. Out come the new ones, and sums."""
    axes = drawing.canvas(19, 4.4)
    rows = ("model", "optimizer state", "batch: x, y, weights")
    for top, name in zip((0.0, 1.7, 3.4), rows, strict=True):
        drawing.box(axes, 0, top, name, device=0, width=5.0, height=0.95)
        drawing.arrow(axes, (5.0, top + 0.48), (6.3, top + 0.48), device=0)
    drawing.box(
        axes, 6.4, 0, "train_step\n\n1. value_and_grad\n2. optimizer.update\n3. apply_updates", width=5.4, height=4.35
    )
    for top, name in zip((0.0, 1.7, 3.4), ("new model", "new optimizer state", "sums"), strict=True):
        drawing.arrow(axes, (11.9, top + 0.48), (13.2, top + 0.48), device=0)
        drawing.box(axes, 13.3, top, name, device=0, width=5.6, height=0.95)

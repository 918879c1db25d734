"""Pictures of lesson 09."""

from pmapdp.lessons import drawing

work_by_device = drawing.work_by_device


@drawing.picture
def training_step() -> None:
    """Each device has the model and a slice of the batch, and computes its gradient; an all-reduce adds up, and each gets the new model."""
    axes = drawing.canvas(25.7, 6.2, inches=7.8)
    columns = {3.2: "model, replicated", 7.9: "batch, split", 12.6: "its gradient", 22.2: "new model"}
    for x, heading in columns.items():
        axes.text(x + 1.7, 0.3, heading, ha="center")
    for d in range(4):
        y = 0.8 + 1.1 * d
        axes.text(0.1, y + 0.4, f"device {d}", va="center")
        for x in columns:
            drawing.box(
                axes, x, y, f"rows {16 * d}-{16 * d + 15}" if x == 7.9 else "[64, 32], ...", device=d, width=3.4
            )
        for start, end in (((6.6, y + 0.4), (7.9, y + 0.4)), ((11.3, y + 0.4), (12.6, y + 0.4))):
            drawing.arrow(axes, start, end, device=d)
        drawing.arrow(axes, (16.0, y + 0.4), (17.1, 2.8), device=d)
        drawing.arrow(axes, (21.1, 2.8), (22.2, y + 0.4), device=d)
    drawing.box(axes, 17.1, 2.3, "all-reduce", width=4.0, height=1.0)
    axes.text(0.1, 5.7, "devices 4 to 7 do the same", va="center")

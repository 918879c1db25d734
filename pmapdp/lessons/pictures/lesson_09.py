"""Pictures of lesson 09."""

from pmapdp.lessons import drawing

work_by_device = drawing.work_by_device


@drawing.picture
def training_step() -> None:
    """Each of eight devices has the model and its rows of the batch, and computes a gradient; an all-reduce adds them up, and each device updates its model."""
    axes = drawing.canvas(28.7, 9.4, inches=7.8)
    columns = {
        3.2: "model, replicated",
        8.4: "batch, split",
        13.6: "gradient",
        24.8: "Adam: new model",
    }
    for x, heading in columns.items():
        axes.text(x + 1.95, 0.3, heading, ha="center", fontsize=9)
    drawing.box(
        axes, 18.8, 0.8, "all-reduce:\nthe sum of\nall eight", width=4.7, height=8.5
    )
    for d in range(8):
        y = 0.8 + 1.1 * d
        axes.text(0.1, y + 0.4, f"device {d}", va="center", fontsize=9)
        for x, text in zip(
            columns,
            ("model", f"rows {16 * d}-{16 * d + 15}", f"g{d}", "model"),
            strict=True,
        ):
            drawing.box(axes, x, y, text, device=d, width=3.9, size=8)
        for x in (7.1, 12.3, 17.5, 23.5):
            drawing.arrow(axes, (x, y + 0.4), (x + 1.3, y + 0.4), device=d)

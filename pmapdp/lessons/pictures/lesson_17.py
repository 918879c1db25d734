"""The picture of lesson 17."""

from pmapdp.lessons import drawing


@drawing.picture
def one_array() -> None:
    """A global array of 16 rows: process 0 gives rows 0 to 7 to devices 0 and 1, process 1 rows 8 to 15 to devices 2 and 3."""
    axes = drawing.canvas(14, 3.2)
    for device in range(4):
        drawing.box(axes, 1 + 3.2 * device, 0.4, f"rows {4 * device}-{4 * device + 3}", device=device, width=2.4)
        axes.text(2.2 + 3.2 * device, 0.2, f"device {device}", ha="center", va="center", color=drawing.INK)
    for process in range(2):
        text = f"process {process} gives rows {8 * process} to {8 * process + 7}"
        drawing.box(axes, 0.7 + 6.4 * process, 1.8, text, width=6, height=1)
        for device in (2 * process, 2 * process + 1):
            drawing.arrow(axes, (2.2 + 3.2 * device, 1.8), (2.2 + 3.2 * device, 1.2), device=device)

"""The pictures of lesson 13: an accumulation over time, and two ways to cut a batch into micro-batches."""

from pmapdp.lessons import drawing

N, K, ROWS = 8, 4, 32


@drawing.picture
def accumulation() -> None:
    """Each device computes four micro-batches one after the other; then one all-reduce, and the update on every device."""
    axes = drawing.canvas(22, 6.2)
    axes.text(3.1, 0.5, "micro-batch (forward, backward, add)", va="center")
    axes.text(3.1, 4.2, "devices 2 to 6 likewise", va="center")
    for y, d in ((1.1, 0), (2.5, 1), (4.9, 7)):
        axes.text(0.1, y + 0.5, f"device {d}", va="center")
        for k in range(K):
            drawing.box(axes, 3.1 + 1.7 * k, y, str(k), device=d, width=1.6, height=1)
        drawing.arrow(axes, (9.9, y + 0.5), (11.8, 3.4), device=d)
        drawing.arrow(axes, (16.4, 3.4), (18.3, y + 0.5), device=d)
        drawing.box(axes, 18.4, y, "update", device=d, width=2.8, height=1)
    drawing.box(axes, 11.9, 2.8, "one all-reduce", width=4.4, height=1.2)


@drawing.picture
def cuts() -> None:
    """32 rows, four on each device, in four micro-batches: reshape(K, -1) puts each on two devices, the swap on all eight."""
    axes = drawing.canvas(31, 7.4)
    titles = {"reshape(K, -1)": lambda k, i: 8 * k + i, "reshape(-1, K), swapped": lambda k, i: 4 * i + k}
    notes = "each on two devices", "each on all eight devices"
    for column, ((title, row_of), note) in enumerate(zip(titles.items(), notes, strict=True)):
        left = 6.6 + 12.6 * column
        axes.text(left + 5.2, 0.5, title, ha="center", family="monospace")
        axes.text(left + 5.2, 6.7, note, ha="center")
        for k in range(K):
            y = 1 + 1.25 * k
            if column == 0:
                axes.text(left - 0.4, y + 0.5, f"micro-batch {k}", ha="right", va="center")
            for i in range(ROWS // K):
                row = row_of(k, i)
                drawing.box(axes, left + 1.3 * i, y, str(row), device=row * N // ROWS, width=1.2, height=1)

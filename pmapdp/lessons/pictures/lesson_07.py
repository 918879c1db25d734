"""Pictures of lesson 07."""

from pmapdp.lessons import drawing


@drawing.picture
def sums_and_counts() -> None:
    """Device 0 has 1, 2, 3: sum 6, count 3. Device 1 has 7 and padding: sum 7, count 1. After psum both have 13 / 4."""
    axes = drawing.canvas(14, 5)
    rows = [["1", "2", "3"], ["7", "pad", "pad"]]
    for d, top in enumerate([0.9, 3.1]):
        axes.text(0, top - 0.3, f"device {d}: values [b] = [3]", color=drawing.INK)
        for column, text in enumerate(rows[d]):
            drawing.box(axes, 1.1 * column, top, text, device=None if text == "pad" else d, width=1)
        drawing.arrow(axes, (3.4, top + 0.4), (4.3, top + 0.4), device=d)
        drawing.box(axes, 4.4, top, ["sum 6, count 3", "sum 7, count 1"][d], device=d, width=3.0)
        drawing.arrow(axes, (7.5, top + 0.4), (8.4, [2.1, 2.7][d]), device=d)
        drawing.arrow(axes, (11.2, [2.1, 2.7][d]), (12.0, top + 0.4), device=d)
        drawing.box(axes, 12.1, top, "13 / 4", device=d, width=1.7)
    drawing.box(axes, 8.5, 1.9, "psum:\n13 and 4", width=2.6, height=1.0)

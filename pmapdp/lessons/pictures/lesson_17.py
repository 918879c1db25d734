"""Pictures of lesson 17."""

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


@drawing.picture
def who_holds_what() -> None:
    """Eight places of a mesh: process 0 owns the two at each end. By process number they hold 0 1 4 5 6 7 2 3, by the sharding 0 to 7."""
    axes = drawing.canvas(21, 4.8)
    owners = (0, 0, 1, 1, 1, 1, 0, 0)
    contents = {"by process\nnumber": (0, 1, 4, 5, 6, 7, 2, 3), "by the\nsharding": range(8)}
    axes.text(0, 0.4, "place in the mesh", va="center")
    for row, (name, numbers) in enumerate(contents.items()):
        axes.text(0, 1.6 + 1.5 * row, name, va="center")
        for place, number in enumerate(numbers):
            drawing.box(axes, 5.2 + 1.95 * place, 1.1 + 1.5 * row, f"{number}", device=4 * owners[place], height=1)
    for place, owner in enumerate(owners):
        axes.text(6.1 + 1.95 * place, 0.4, f"{place}", ha="center", va="center")
        axes.text(6.1 + 1.95 * place, 4.4, f"process {owner}", ha="center", va="center", fontsize=7)
    axes.text(0, 4.4, "belongs to", va="center")

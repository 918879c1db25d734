"""Pictures of lesson 17."""

from pmapdp.lessons import drawing

ORDER = (
    0,
    1,
    4,
    5,
    6,
    7,
    2,
    3,
)  # the devices of two processes in the mesh, four devices each


@drawing.picture
def who_holds_what() -> None:
    """Eight rows of an array: process 0 holds the first two and the last two, process 1 the four between. By process number, the rows 2 to 7 hold 4 5 6 7 2 3, which is wrong. By callback they hold 2 to 7."""
    axes = drawing.canvas(21, 6.1, inches=8)
    left = 5.2
    step = 1.95
    axes.text(0, 0.3, "row", va="center")
    for place in range(8):
        middle = left + step * place + 0.9
        axes.text(middle, 0.3, f"{place}", ha="center", va="center")
    axes.text(0, 1.3, "held by", va="center")
    for first, count, process in ((0, 2, 0), (2, 4, 1), (6, 2, 0)):
        width = step * count - 0.15
        text = f"process {process}"
        drawing.box(axes, left + step * first, 0.9, text, width=width)
    numbers_of = {"by process\nnumber": ORDER, "by callback": range(8)}
    for y, (name, numbers) in zip((2.7, 4.9), numbers_of.items(), strict=True):
        axes.text(0, y, name, va="center")
        for place, (device, number) in enumerate(zip(ORDER, numbers, strict=True)):
            look = {"device": device, "height": 1, "size": 12}
            drawing.box(axes, left + step * place, y - 0.5, f"{number}", **look)
    end = left + 8 * step - 0.15
    axes.plot((left + 2 * step, end), (3.5, 3.5), color=drawing.ACCENT, linewidth=2)
    middle = (left + 2 * step + end) / 2
    axes.text(middle, 3.85, "in the wrong rows", ha="center", va="center")


@drawing.picture
def a_process_is_lost() -> None:
    """Two processes train epoch 0 and save it. Process 1 is killed, and process 0 waits until it's aborted. Then a single process restores epoch 0 and trains epochs 1 to 4."""
    axes = drawing.canvas(27, 5.2, inches=8)
    epoch_0 = {"epoch 0": 2.6, "save": 1.8}
    rows = {
        "process 0": (3.4, 0, epoch_0 | {"waits, is aborted": 5.2}),
        "process 1": (3.4, 1, epoch_0 | {"is killed": 2.8}),
        "the next start": (13.4, 0, {"restore": 2.4}),
    }
    rows["the next start"][2].update({f"epoch {number}": 2.6 for number in range(1, 5)})
    for row, (name, (left, device, pieces)) in enumerate(rows.items()):
        top = 0.2 + 1.7 * row
        axes.text(0, top + 0.6, name, va="center")
        for text, width in pieces.items():
            owner = None if " is " in f" {text}" else device
            size = {"width": width, "height": 1.2, "size": 9}
            drawing.box(axes, left, top, text, device=owner, **size)
            left += width + 0.1

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
def one_array() -> None:
    """A global array of eight numbers on eight devices: process 0 holds 0 to 3, and process 1 holds 4 to 7."""
    axes = drawing.canvas(19, 3.6)
    axes.text(0, 0.8, "x, shape [8]", va="center")
    axes.text(0, 2.2, "held by", va="center")
    for device in range(8):
        left = 3.2 + 1.9 * device + 0.5 * (device // 4)
        drawing.box(axes, left, 0.3, f"{device}", device=device, width=1.7, height=1)
    for process in range(2):
        left = 3.2 + 8.1 * process
        text = f"process {process}: its four devices"
        drawing.box(axes, left, 1.7, text, width=7.4, height=1)


@drawing.picture
def who_holds_what() -> None:
    """Eight places of a mesh: process 0 owns the two at each end. By process number they hold 0 1 4 5 6 7 2 3, by the sharding 0 to 7."""
    axes = drawing.canvas(21, 5.4, inches=8)
    rows = {
        "place in the mesh": None,
        "its process": None,
        "by process\nnumber": ORDER,
        "by the\nsharding": range(8),
    }
    for y, (name, numbers) in zip((0.3, 1.35, 2.7, 4.2), rows.items(), strict=True):
        axes.text(0, y, name, va="center")
        for place, device in enumerate(ORDER):
            if numbers:
                drawing.box(
                    axes,
                    5.2 + 1.95 * place,
                    y - 0.5,
                    f"{numbers[place]}",
                    device=device,
                    height=1,
                    size=12,
                )
            else:
                text = f"{device // 4}" if y > 1 else f"{place}"
                axes.text(6.1 + 1.95 * place, y, text, ha="center", va="center")


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

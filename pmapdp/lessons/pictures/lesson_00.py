"""Pictures of lesson 00."""

import matplotlib.pyplot as plt

from pmapdp.lessons import drawing


@drawing.picture
def one_row_each() -> None:
    """The host's array x [8, 1] is cut into eight rows. Row d goes to device d. The devices share the cores of one machine."""
    axes = drawing.canvas(17.6, 5.0)
    drawing.box(axes, 6.3, 0.1, "host: x [8, 1]", width=5, height=0.9)
    for d in range(8):
        left = 0.2 + 2.2 * d
        drawing.arrow(axes, (8.8, 1.0), (left + 0.9, 2.2), device=d)
        drawing.box(axes, left, 2.2, f"row {d}\n[1]", device=d, height=1.2)
        drawing.arrow(axes, (left + 0.9, 3.4), (left + 0.9, 4.1), device=d)
    drawing.box(axes, 0.2, 4.1, "the cores and the memory of one machine", width=17.2)


@drawing.picture
def one_array(
    arrays: dict[str, list[list[int]]],
) -> None:  # the numbers on each device, by the array's name
    """Split, an array of 16 numbers has two of them on each device; replicated, it has all 16 on each."""
    axes = drawing.canvas(19.9, 1.5 * len(arrays) - 0.3)
    for row, (name, parts) in enumerate(arrays.items()):
        axes.text(0, 0.55 + 1.5 * row, name, va="center")
        texts = [
            " ".join(map(str, part)) if len(part) == 2 else f"{part[0]} ... {part[-1]}"
            for part in parts
        ]
        drawing.device_row(
            axes, 4.3, 1.5 * row, texts, step=1.95, width=1.8, height=1.1, size=9
        )


@drawing.picture
def same_work_each(seconds: dict[int, float]) -> None:
    """Four bars for 1, 2, 4 and 8 simulated devices with the same work each: more devices take longer, because they share the cores."""
    bars = plt.bar(
        [str(N) for N in seconds],
        [1000 * total for total in seconds.values()],
        color=drawing.INK,
        width=0.6,
    )
    plt.bar_label(
        bars,
        [
            f"{total / seconds[1]:.1f} times" if N > 1 else ""
            for N, total in seconds.items()
        ],
    )
    plt.axhline(
        1000 * seconds[1],
        color=drawing.ACCENT,
        linestyle="--",
        label="eight GPUs would take as long as one",
    )
    plt.legend(loc="upper left")
    plt.gca().set(
        xlabel="simulated devices, each with the same work", ylabel="milliseconds"
    )

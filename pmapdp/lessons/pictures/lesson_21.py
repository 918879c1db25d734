"""Pictures of lesson 21."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def gradient_arrows(arrows: dict[str, np.ndarray]) -> None:
    """Two fans of eight arrows, the devices' gradients. Before the first update they point about 60 degrees away from the gradient of all examples, and their average is close to it. After the last update they are nearly at right angles to it, and it's much shorter than they are.

    `arrows`: by title, lengths and cosines `[10, 2]` of eight devices' gradients, of
    their average, and of the gradient of all examples. The longest arrow of a panel
    has length 1. Whether an arrow points up or
    down is for the eye alone.
    """
    _, panels = plt.subplots(1, len(arrows), figsize=(7, 4))
    for axes, (title, rows) in zip(panels, arrows.items(), strict=True):
        lengths, cosines = np.asarray(rows, float).T
        lengths = lengths / lengths.max()
        angles = np.arccos(np.clip(cosines, -1, 1))
        signs = np.where(np.arange(len(lengths)) % 2 == 0, 1, -1)
        ends = np.stack(
            [lengths * np.cos(angles), signs * lengths * np.sin(angles)], axis=1
        )
        for device, end in enumerate(ends[:8]):
            draw_arrow(axes, end, drawing.DEVICE_COLOURS[device], width=1.6)
        draw_arrow(axes, ends[8], drawing.INK, width=3)
        draw_arrow(axes, ends[9], drawing.ACCENT, width=3)
        axes.text(ends[9][0] + 0.06, 0, "G", color=drawing.ACCENT, va="center")
        axes.set(xlim=(-0.3, 0.8), ylim=(-1.05, 1.05), title=title, aspect="equal")
        axes.set_axis_off()
    names = {
        "a device's gradient": drawing.DEVICE_COLOURS[0],
        "the average of eight": drawing.INK,
        "G, of all examples": drawing.ACCENT,
    }
    for name, colour in names.items():
        panels[0].plot([], [], color=colour, linewidth=3, label=name)
    plt.gcf().legend(loc="lower center", ncols=3)


def draw_arrow(axes: plt.Axes, end: np.ndarray, colour: str, width: float) -> None:
    """Draw an arrow from the origin, with a head that is never longer than the arrow."""
    head = min(10, 120 * np.hypot(*end))
    look = {
        "arrowstyle": "-|>",
        "color": colour,
        "lw": width,
        "mutation_scale": head,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate("", end, (0, 0), arrowprops=look)


@drawing.picture
def noise_scale(smoothed: list[float], direct: dict[int, float], so_far: float) -> None:
    """The gradient noise scale over two epochs, on a logarithmic axis: a curve from the devices' gradients rises from about 100 to 1,150, through the middle one of three dots from all examples one by one. A dashed line is at 193.

    `smoothed`: over 20 updates, so the first value belongs to update 10. `direct`: by
    the number of updates made before.
    """
    updates = np.arange(len(smoothed)) + 10
    colour = drawing.DEVICE_COLOURS[0]
    plt.plot(updates, smoothed, color=colour, label="from the devices' gradients")
    plt.plot(
        list(direct),
        list(direct.values()),
        "o",
        color=drawing.DEVICE_COLOURS[5],
        label="from all examples, one by one",
    )
    plt.axhline(
        so_far,
        color=drawing.INK,
        linestyle="--",
        label=f"from all updates: {so_far:.0f}",
    )
    plt.gca().set(xlabel="update", ylabel="noise scale, examples", yscale="log")
    plt.yticks((100, 1000), ("100", "1,000"))
    plt.minorticks_off()
    drawing.legend_beside(plt.gca())


@drawing.picture
def updates_by_batch_size(measured: dict[int, float], noise_scale: float) -> None:
    """Updates over batch size, both on logarithmic axes: five dots fall from 77 at B = 16 to 8 at B = 1,024, and lie near a curve that flattens. A dotted line falls in a straight line, down to 1.2."""
    sizes = np.geomspace(16, 1024, 100)
    first = measured[16]
    minimum = first / (1 + noise_scale / 16)
    plt.plot(
        sizes,
        minimum * (1 + noise_scale / sizes),
        color=drawing.DEVICE_COLOURS[0],
        label="formula, from the first dot",
    )
    plt.plot(
        list(measured),
        list(measured.values()),
        "o",
        color=drawing.DEVICE_COLOURS[5],
        label="trained",
    )
    plt.plot(sizes, first * 16 / sizes, ":", color=drawing.INK, label="64 times fewer")
    plt.axvline(noise_scale, color=drawing.ACCENT, linewidth=1)
    plt.text(1.05 * noise_scale, 60, "noise scale", color=drawing.ACCENT)
    plt.gca().set(xlabel="B", ylabel="updates", xscale="log", yscale="log")
    plt.xticks(list(measured), [f"{size:,}" for size in measured])
    plt.yticks((1, 10, 100), ("1", "10", "100"))
    plt.minorticks_off()
    drawing.legend_beside(plt.gca())


@drawing.picture
def learning_rates(curves: dict[str, np.ndarray]) -> None:
    """Test loss over 50 updates with B = 1,024 for four learning rates. With the old rate it falls slowly; 8 and 11 times are fast; 64 times leaves the picture within three updates."""
    colours = (
        drawing.INK,
        drawing.DEVICE_COLOURS[0],
        drawing.DEVICE_COLOURS[2],
        drawing.ACCENT,
    )
    for index, (name, curve) in enumerate(curves.items()):
        updates = np.arange(1, len(curve) + 1)
        plt.plot(
            updates,
            curve,
            drawing.DASHES[index],
            color=colours[index],
            linewidth=2,
            label=name,
        )
    plt.axhline(0.5, color=drawing.INK, linewidth=1, linestyle=":")
    plt.gca().set(xlabel="update", ylabel="test loss", yscale="log", ylim=(0.2, 1000))
    plt.yticks((0.5, 10, 1000), ("0.5", "10", "1,000"))
    plt.minorticks_off()
    drawing.legend_beside(plt.gca(), title="learning rate")

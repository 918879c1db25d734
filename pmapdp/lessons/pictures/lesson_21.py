"""Pictures of lesson 21."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def noise_scale(
    smoothed: list[float], direct: dict[int, float], both_epochs: float
) -> None:
    """The gradient noise scale over two epochs, on a logarithmic axis: a curve from the devices' gradients rises from about 100 to 1,150, through the middle one of three dots from all examples one by one. A dashed line is at 193.

    `smoothed`: over 20 updates, so the first value belongs to update 10. `direct`: by
    the number of updates made before.
    """
    updates = np.arange(len(smoothed)) + 10
    colour = drawing.DEVICE_COLOURS[0]
    plt.plot(updates, smoothed, color=colour, label="from devices, 20 updates")
    plt.plot(
        list(direct),
        list(direct.values()),
        "o",
        color=drawing.DEVICE_COLOURS[5],
        label="from all examples, one by one",
    )
    plt.axhline(
        both_epochs,
        color=drawing.INK,
        linestyle="--",
        label=f"from both epochs: {both_epochs:.0f}",
    )
    plt.gca().set(xlabel="update", ylabel="noise scale, examples", yscale="log")
    plt.yticks((100, 1000), ("100", "1,000"))
    plt.minorticks_off()
    drawing.legend_beside(plt.gca())


@drawing.picture
def updates_and_examples(measured: dict[int, float], noise_scale: float) -> None:
    """Updates and examples over batch size, as multiples of their minimum, all on logarithmic axes. The curve of the updates falls from 13 to 1.2, the curve of the examples rises from 1.1 to 6.3, and they cross at the noise scale, where both are 2. The dots of the trained runs lie near both curves."""
    sizes = np.geomspace(16, 1024, 100)
    runs = np.array(list(measured))
    minimum = measured[16] / (1 + noise_scale / 16)
    updates = np.array(list(measured.values())) / minimum
    curves = {
        "updates: time": (1 + noise_scale / sizes, updates, 0),
        "examples: money": (1 + sizes / noise_scale, updates * runs / noise_scale, 1),
    }
    for index, (name, (curve, dots, colour)) in enumerate(curves.items()):
        colour = drawing.DEVICE_COLOURS[colour]
        dashes = drawing.DASHES[index]
        plt.plot(sizes, curve, dashes, color=colour, linewidth=2, label=name)
        plt.plot(runs, dots, "o", color=colour)
    plt.plot([], [], "o", color=drawing.INK, label="trained")
    plt.axvline(noise_scale, color=drawing.ACCENT, linewidth=1)
    plt.text(1.05 * noise_scale, 9, "noise scale", color=drawing.ACCENT)
    axes = plt.gca()
    axes.set(xlabel="B", ylabel="times the minimum", xscale="log", yscale="log")
    plt.xticks(list(measured), [f"{size:,}" for size in measured])
    plt.yticks((1, 2, 5, 10), ("1", "2", "5", "10"))
    plt.minorticks_off()
    drawing.legend_beside(axes)


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
    plt.yticks((0.5, 5, 50, 500), ("0.5", "5", "50", "500"))
    plt.minorticks_off()
    drawing.legend_beside(plt.gca(), title="learning rate")

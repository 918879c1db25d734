"""Pictures of lesson 12."""

import matplotlib.pyplot as plt

from pmapdp.lessons import drawing


@drawing.picture
def before_and_after() -> None:
    """A kernel is [8, 64, 32] under pmap, [64, 32] and replicated under shard_map and jit; inputs lose their device axis, too."""
    axes = drawing.canvas(35.6, 8.6, inches=8)
    for x, text in ((5.4, "state (a kernel)"), (15.4, "batch (inputs)"), (25.4, "the step")):
        axes.text(x, 0.5, text, weight="bold")
    for row, name in enumerate(("pmap", "shard_map", "jit")):
        y, kernel, inputs = 2 + 2.4 * row, "[64, 32]", "[128, 64]"
        if row == 0:
            kernel, inputs = "[8, 64, 32]", "[8, 16, 64]"
        axes.text(0, y + 0.4, name, weight="bold", va="center", fontsize=9)
        axes.text(5.4, y - 0.3, f"{kernel}" + (", split" if row == 0 else ", replicated"))
        axes.text(15.4, y - 0.3, f"{inputs}, split")
        axes.text(25.4, y - 0.3, "one device's, no pmean" if row == 2 else "one of eight devices', pmean", size=9)
        for x, text in ((5.4, "w"), (15.4, "x"), (25.4, "f"))[: 3 if row < 2 else 2]:
            drawing.device_row(axes, x, y, text * 8, step=1.1, width=1.0)
        if row == 2:
            drawing.box(axes, 25.4, y, "f", width=8.7)


@drawing.picture
def loss_curves(losses: dict[str, list[float]]) -> None:
    """Loss over an epoch: the curve of shard_map lies on the old pmap program's, and the curve of jit is near them."""
    looks = ((drawing.DEVICE_COLOURS[4], 6, "-"), (drawing.INK, 1.5, "-"), (drawing.DEVICE_COLOURS[5], 1.5, "--"))
    for (name, curve), (colour, width, dashes) in zip(losses.items(), looks, strict=True):
        plt.plot(range(1, len(curve) + 1), curve, dashes, color=colour, linewidth=width, label=name)
    plt.gca().set(xlabel="update", ylabel="loss", ylim=(0, None))
    plt.legend()

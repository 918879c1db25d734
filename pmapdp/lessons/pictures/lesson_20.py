"""Pictures of lesson 20."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def memory_of_gpt2(gigabytes: dict[str, float], *, inputs: float) -> None:
    """Bars of planned memory for the activations of one sequence: over 2.5 GB if everything is kept, and under 0.3 if only the blocks' inputs are, little of it the inputs themselves."""
    plt.figure(figsize=(7, 1.5))
    axes = plt.gca()
    axes.barh(list(gigabytes), gigabytes.values(), 0.6, color=drawing.DEVICE_COLOURS[0])
    axes.barh(["keep inputs"], [inputs], 0.6, color=drawing.DEVICE_COLOURS[1])
    for row, value in enumerate(gigabytes.values()):
        note = f", {inputs:.2f} of it the inputs" if row else ""
        axes.text(value + 0.03, row, f"{value:.2f} GB{note}", va="center")
    state = 2.0  # 124 million parameters of 16 bytes
    axes.axvline(state, color=drawing.ACCENT, linestyle=":")
    text = "parameters, gradients and moments"
    axes.text(state, -0.6, text, ha="center", fontsize=9)
    axes.invert_yaxis()
    axes.set(xlabel="GB for the activations of one sequence", xlim=(0, 3.1))


@drawing.picture
def in_the_backward_pass() -> None:
    """Six blocks while the backward pass is at block 4. If everything is kept, blocks 1 to 4 hold their inputs and all their other arrays. If inputs are kept, blocks 1 to 4 hold their inputs, and only block 4 holds its other arrays, which it has computed again."""
    axes = drawing.canvas(27, 7)
    for panel, name in enumerate(("keep everything", "keep inputs")):
        left = 14 * panel
        axes.text(left + 6.4, 0.3, name, ha="center", va="center", weight="bold")
        for block in range(1, 7):
            x = left + 2.2 * (block - 1)
            axes.text(x + 0.95, 6.3, f"block {block}", ha="center", size=7)
            if block > 4:  # the backward pass has freed its arrays
                continue
            look = {"width": 1.9, "size": 8}
            drawing.box(axes, x, 4.6, "input", device=1, **look)
            if name == "keep everything":
                drawing.box(axes, x, 1.2, "all\nothers", device=0, height=3.2, **look)
            elif block == 4:
                drawing.box(axes, x, 1.2, "others\nagain", device=0, height=3.2, **look)
        drawing.arrow(axes, (left + 12.9, 3.4), (left + 8.8, 3.4))
        axes.text(left + 10.9, 2.1, "backward\npass", ha="center", va="center", size=9)


@drawing.picture
def number_formats() -> None:
    """The bits of three formats: float32 has 1 sign, 8 exponent and 23 fraction bits, bfloat16 1, 8 and 7, float16 1, 5 and 10."""
    axes = drawing.canvas(39, 5.6)
    formats = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
    for row, (name, (exponent, fraction)) in enumerate(formats.items()):
        top = 0.3 + 1.8 * row
        axes.text(0, top + 0.6, name, va="center", family="monospace")
        left = 6.4
        pieces = (
            (1, "", None),
            (exponent, f"{exponent} exponent", 1),
            (fraction, f"{fraction} fraction", 0),
        )
        for bits, text, colour in pieces:
            width = bits - 0.1
            drawing.box(
                axes,
                left,
                top,
                text,
                device=colour,
                width=width,
                height=1.2,
                size=7,
            )
            left += bits


@drawing.picture
def loss_by_dtype(curves: dict[str, Sequence[float]]) -> None:
    """The loss falls in the same way in float32 and computed in bfloat16; with parameters in bfloat16 it falls more slowly."""
    for colour, (name, losses) in zip((4, 0, 1), curves.items(), strict=True):
        smooth = np.convolve(losses, np.ones(15) / 15, "valid")
        width = 5 if colour == 4 else 1.5
        plt.plot(
            smooth, color=drawing.DEVICE_COLOURS[colour], linewidth=width, label=name
        )
    plt.gca().set(xlabel="update", ylabel="loss (mean of 15 updates)", ylim=(0, None))
    plt.legend()

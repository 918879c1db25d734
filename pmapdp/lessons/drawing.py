"""The lessons' drawings: transparent, so that light and dark pages show them; a colour means a device.

What is on no device (a layer, a curve) is grey, curves differ in their dashes, and what
to look at first is violet.
"""

import base64
import functools
import html
import inspect
import io
from collections.abc import Callable, Iterable
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from pmapdp.compare.pictures import DEVICE_COLOURS

INK = "#767676"  # the grey that has a contrast of 4.5 : 1 to white and to black
ACCENT = "#8E5BC7"  # violet, which no device has, on light and dark pages
DASHES = ("-", "--", ":", "-.")  # of the curves of one picture

STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.transparent": True,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "font.size": 10,
    "figure.figsize": (7, 2.6),
    "figure.dpi": 90,
}


def picture(draw: Callable[..., None]) -> Callable[..., None]:
    """`draw` as a function that shows what it draws. The first paragraph of its docstring is the alternative text.

    The output is an HTML element, because JupyterLab gives the picture of an output no
    alternative text. The picture is a PNG of double resolution, because JupyterLab
    shows no SVG of a notebook that its reader does not trust yet.
    """
    description = " ".join((inspect.getdoc(draw) or "").partition("\n\n")[0].split())

    @functools.wraps(draw)
    def shown(*arguments: Any, **options: Any) -> None:
        from IPython.display import display

        with matplotlib.rc_context(STYLE):
            draw(*arguments, **options)
            small, width = png(plt.gcf())
            plt.close()
        source = f"data:image/png;base64,{base64.b64encode(small).decode()}"
        element = (
            f'<img alt="{html.escape(description)}" width="{width}" src="{source}">'
        )
        display({"text/html": element, "text/plain": description}, raw=True)

    return shown


def png(figure: Any) -> tuple[bytes, int]:
    """A figure as a PNG of double resolution in 256 colours, a third of the bytes; and its width on the page."""
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, dpi=2 * figure.dpi, bbox_inches="tight")
    image = Image.open(drawn)
    image.quantize(256, Image.Quantize.FASTOCTREE).save(small, "PNG", optimize=True)
    return small.getvalue(), image.width // 2


def canvas(width: float, height: float, *, inches: float = 7) -> Axes:
    """An empty picture, `width` x `height` units and `inches` wide; y grows downwards."""
    _, axes = plt.subplots(figsize=(inches, inches * height / width))
    axes.set_xlim(
        -0.1, width + 0.1
    )  # so that the borders of boxes at the edge are drawn whole
    axes.set_ylim(height + 0.1, -0.1)
    axes.set_axis_off()
    return axes


def box(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    device: int | None = None,
    width=1.8,
    height=0.8,
    size: float = 10,
) -> None:
    """A rounded box with its corner at (x, y), in the colour of `device` (None: grey outline), with text of `size` points."""
    colour = INK if device is None else DEVICE_COLOURS[device % len(DEVICE_COLOURS)]
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor="none" if device is None else colour,
            edgecolor=colour,
        )
    )
    words = (
        INK
        if device is None
        else "white"
        if device % len(DEVICE_COLOURS) == 0
        else "black"
    )  # by contrast
    # Lower, because Matplotlib centres the text with room for descenders.
    lowered = {"xytext": (0, -0.05 * size), "textcoords": "offset points"}
    place, font = (
        (x + width / 2, y + height / 2),
        {"fontsize": size, "color": words, "linespacing": 1.05},
    )
    axes.annotate(text, place, ha="center", va="center", **lowered, **font)


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    device: int | None = None,
    dashed=False,
) -> None:
    """An arrow from `start` to `end`, in the colour of `device`; `dashed` for what goes back."""
    colour = INK if device is None else DEVICE_COLOURS[device % len(DEVICE_COLOURS)]
    line = "--" if dashed else "-"
    axes.annotate(
        "",
        end,
        start,
        arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.4, "ls": line},
    )


def device_row(
    axes: Axes,
    left: float,
    top: float,
    texts: Iterable[str],
    *,
    step: float,
    **look: Any,
) -> None:
    """Boxes in a row, `step` units apart, in the colours of devices 0, 1, ..."""
    for d, text in enumerate(texts):
        box(axes, left + step * d, top, text, device=d, **look)


def shards(
    axes: Axes,
    array: tuple[float, float, float, float],
    shape: tuple[int, int],
    sharding: Any,
    *,
    card: float = 0.12,
) -> None:
    """The shards of an array that is drawn at (left, top, width, height): each a stack with a card for each device.

    The top card has the numbers of all devices that hold the shard.
    """
    left, top, width, height = array
    holders: dict[tuple[int, int, int, int], list[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        (r0, r1, _), (c0, c1, _) = (
            part.indices(n) for part, n in zip(index, shape, strict=True)
        )
        holders.setdefault((r0, r1, c0, c1), []).append(device.id)
    for (r0, r1, c0, c1), ids in holders.items():
        x, y = left + width * c0 / shape[1], top + height * r0 / shape[0]
        edges = card * (len(ids) - 1) + 0.06  # what sticks out of the stack, and a gap
        size = {
            "width": width * (c1 - c0) / shape[1] - edges,
            "height": height * (r1 - r0) / shape[0] - edges,
        }
        lines = [
            ", ".join(map(str, ids[start : start + 2]))
            for start in range(0, len(ids), 2)
        ]
        text = "all eight" if len(ids) == 8 else ",\n".join(lines)
        for depth, device in reversed(list(enumerate(ids))):
            shift = card * depth
            box(
                axes,
                x + shift,
                y + shift,
                "" if depth else text,
                device=device,
                size=8,
                **size,
            )


def legend_beside(axes: Axes, **look: Any) -> None:
    """The legend, to the right of the curves."""
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), **look)


def curves_by_device(
    curves: np.ndarray, reference: Any, name: str, ylabel: str
) -> None:
    """Curves `[updates, N]`, one for each device, and a dashed one, `name`, to compare them with."""
    updates = range(1, len(curves) + 1)
    for d, curve in enumerate(curves.T):
        colour = DEVICE_COLOURS[d]
        plt.plot(updates, curve, color=colour, linewidth=1, label=f"device {d}")
    plt.plot(updates, reference, color=ACCENT, linestyle="--", linewidth=3, label=name)
    plt.gca().set(xlabel="update", ylabel=ylabel, xlim=(0, None))
    legend_beside(plt.gca())


@picture
def work_by_device(work: dict[str, float]) -> None:
    """Eight thin bars side by side for each case, the operations of each device: several times as long if devices repeat the work of others."""
    plt.figure(figsize=(7, 0.6 + 0.65 * len(work)))
    unit, name = (1e9, "billion") if max(work.values()) > 1e9 else (1e6, "million")
    operations = np.array(list(work.values())) / unit
    rows = np.arange(len(work))
    for d in range(8):
        plt.barh(rows + 0.09 * (d - 3.5), operations, 0.07, color=DEVICE_COLOURS[d])
    for row, number in enumerate(operations):
        plt.text(number, row, f"  {number:.2g} {name}", va="center")
    plt.yticks(rows, list(work))
    plt.gca().spines["bottom"].set_bounds(0, operations.max())
    plt.gca().invert_yaxis()
    plt.gca().set(xlabel=f"{name} operations of each device, a colour for each")


@picture
def rounds_of_sums(*, on_all: bool) -> None:
    """Three rounds that add up eight arrays: partners are 1, then 2, then 4 devices apart; each round joins twice as many.

    The sum ends on all devices (`on_all`, by a butterfly), or on device 0 (by a tree).
    """
    axes = canvas(18, 6.2)
    for done in range(4):
        axes.text(
            0, 0.5 + 1.7 * done, f"round {done}" if done else "start", va="center"
        )
        for d in range(0, 8, 1 if on_all else 2**done):
            left, first = 2.4 + 1.95 * d, d - d % 2**done
            box(
                axes,
                left,
                0.1 + 1.7 * done,
                f"{first}..{first + 2**done - 1}" if done else f"{d}",
                device=d,
            )
            receivers = (d, d ^ 2**done) if on_all else (d - d % 2 ** (done + 1),)
            for receiver in receivers if done < 3 else ():
                arrow(
                    axes,
                    (left + 0.9, 0.9 + 1.7 * done),
                    (3.3 + 1.95 * receiver, 1.8 + 1.7 * done),
                    device=d,
                )


@picture
def overlap(after: str, during: str) -> None:
    """Above, one all-reduce of all gradients follows the backward pass. Below, each layer's gradient is sent while the next layer computes, and the update starts earlier."""
    axes = canvas(26, 8.2)
    one_sum, three_sums = (
        {15.8: ("sum 3, 2, 1", 5.6)},
        {10 + 2.9 * n: (f"sum {3 - n}", 2.4) for n in range(3)},
    )
    for top, sums, update, title in (
        (0.9, one_sum, 21.5, after),
        (5.2, three_sums, 18.3, during),
    ):
        axes.text(3.6, top - 0.6, title, va="center", weight="bold")
        work = {3.6: ("forward", 3.4), update: ("update", 3)}
        work |= {7.1 + 2.9 * n: (f"back {3 - n}", 2.8) for n in range(3)}
        for device, (name, pieces) in enumerate(
            {"computes": work, "sends": sums}.items()
        ):
            axes.text(0, top + 1.5 * device + 0.5, name, va="center")
            for left, (text, width) in pieces.items():
                box(
                    axes,
                    left,
                    top + 1.5 * device,
                    text,
                    device=device,
                    width=width,
                    height=1,
                )

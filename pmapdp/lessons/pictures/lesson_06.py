"""Pictures of lesson 06."""

import time
from collections.abc import Callable

import jax
import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


def shortest_time(function: Callable, x: jax.Array) -> float:
    """Return the seconds of the fastest of 50 calls, after 10 to warm up."""
    for _ in range(10):
        jax.block_until_ready(function(x))
    times = []
    for _ in range(50):
        start = time.perf_counter()
        jax.block_until_ready(function(x))
        times.append(time.perf_counter() - start)
    return min(times)


@drawing.picture
def ring(states: list[np.ndarray], sums: np.ndarray) -> None:
    """The ring all-reduce in seven tables of 4 devices by 4 chunks: after three steps each has one sum, after six all four.

    `states` `[N, N, 1]` are the chunks on the devices before and after each step;
    `sums` `[N]`, the result, are drawn bold.
    """
    N = len(sums)
    _, places = plt.subplots(2, 4, figsize=(9, 4.9), layout="constrained")
    places.flat[-1].set_axis_off()
    for step, axes in enumerate(places.flat[: len(states)]):
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        title = (
            "start"
            if step == 0
            else f"step {step}: add"
            if step < N
            else f"step {step}: copy"
        )
        axes.set_title(title, fontsize=11, color=drawing.INK, weight="bold")
        axes.set_xlim(-0.55, N - 0.45)
        axes.set_ylim(N - 0.45, -0.55)
        named = step % 4 == 0  # the first table of a row
        axes.set_xticks(
            range(N),
            [f"chunk\n{chunk}" if named else "" for chunk in range(N)],
            fontsize=9,
        )
        axes.set_yticks(
            range(N), [f"device {d}" if named else "" for d in range(N)], fontsize=9
        )
        for d in range(N):
            for chunk in range(N):
                arrived = step > 0 and chunk == (d - step) % N
                sender = (d - 1) % N
                colour = drawing.DEVICE_COLOURS[sender] if arrived else "none"
                box = plt.Rectangle(
                    (chunk - 0.46, d - 0.43),
                    0.92,
                    0.86,
                    facecolor=colour,
                    edgecolor=drawing.INK,
                )
                axes.add_patch(box)
                number = states[step][d, chunk].item()
                ink = ("white" if sender == 0 else "black") if arrived else drawing.INK
                weight = "bold" if number == sums[chunk] else "normal"
                axes.text(
                    chunk,
                    d,
                    number,
                    ha="center",
                    va="center",
                    weight=weight,
                    color=ink,
                    fontsize=10,
                )


@drawing.picture
def collectives() -> None:
    """Three devices before and after psum, pmean, psum_scatter, all_gather, ppermute and all_to_all; the first three pass an addition."""
    axes = drawing.canvas(27.5, 10.2, inches=9.5)
    panels = {
        "psum": ("abc", "a+b+c", ("sum",) * 3),
        "pmean": ("abc", "(a+b+c)/3", ("mean",) * 3),
        "psum_scatter": (
            ("a0 a1 a2", "b0 b1 b2", "c0 c1 c2"),
            "add",
            ("sum 0", "sum 1", "sum 2"),
        ),
        "all_gather": ("abc", "", ("a b c",) * 3),
        "ppermute": ("abc", "", ("c", "a", "b")),
        "all_to_all": (
            ("a0 a1 a2", "b0 b1 b2", "c0 c1 c2"),
            "",
            ("a0 b0 c0", "a1 b1 c1", "a2 b2 c2"),
        ),
    }
    for number, (name, (before, adds, after)) in enumerate(panels.items()):
        left, top = 9.3 * (number % 3), 5.4 * (number // 3)
        first, between = (
            (0.9, 3.2) if before == "abc" else (2.7, 1.4)
        )  # widths of the boxes
        middle, right, centre = left + first + 0.9, left + 6.1, top + 2.5
        axes.text(left + 4, top + 0.3, name, ha="center", weight="bold")
        if adds:
            drawing.box(axes, middle, centre - 0.5, adds, width=between, height=1.0)
        for d in range(3):
            row = top + 0.9 + 1.2 * d
            drawing.box(axes, left, row, before[d], device=d, width=first)
            drawing.box(
                axes,
                right,
                row,
                after[d],
                device=d,
                width=2.0 if before == "abc" or adds else 2.7,
            )
            if adds:
                drawing.arrow(
                    axes, (left + first, row + 0.4), (middle, centre), device=d
                )
                drawing.arrow(axes, (middle + between, centre), (right, row + 0.4))
                continue
            for source in [(d - 1) % 3] if name == "ppermute" else range(3):
                drawing.arrow(
                    axes,
                    (left + first, top + 1.3 + 1.2 * source),
                    (right, row + 0.4),
                    device=source,
                )


@drawing.picture
def seconds_by_size(
    ring_seconds: Callable[..., tuple], links: dict, networks: dict, dots: dict
) -> None:
    """Time of an all-reduce on eight devices against its size, predicted for three links: flat, then rising; dots are measured, or come from measured rates."""
    _, axes = plt.subplots(figsize=(6, 3.2))
    sizes = np.logspace(3, 11, 100)
    for number, (name, (latency, bandwidth)) in enumerate(links.items()):
        seconds = [
            1000 * sum(ring_seconds(size, 8, latency, bandwidth)) for size in sizes
        ]
        colour = (
            drawing.INK if number else drawing.ACCENT
        )  # NVLink, which connects the H100s
        axes.loglog(
            sizes, seconds, color=colour, linestyle=drawing.DASHES[number], label=name
        )
    for name, marker, colour in zip(
        dots, "os", (drawing.INK, drawing.ACCENT), strict=True
    ):
        milliseconds = [1000 * seconds for seconds in dots[name].values()]
        axes.plot(list(dots[name]), milliseconds, marker, color=colour, label=name)
    for name, size in networks.items():
        axes.axvline(size, color=drawing.INK, linewidth=0.8, linestyle=":")
        axes.text(size, 1.6e5, name, ha="center", fontsize=9)
    axes.set(xlabel="bytes of the gradient", ylabel="milliseconds", ylim=(1e-2, 1e5))
    drawing.legend_beside(axes, fontsize=9)

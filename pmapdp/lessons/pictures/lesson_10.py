"""Pictures of lesson 10."""

from pmapdp.lessons import drawing


@drawing.picture
def three_ways() -> None:
    """pmap: you pass [N, b, D], the step sees [b, D], you sum. jit: [B, D], seen whole, the compiler sums. shard_map: [B, D] in, [b, D] seen, and who sums is the question."""
    axes = drawing.canvas(21, 8)
    for x, text in (
        (3.6, "you pass"),
        (9.4, "your function sees"),
        (16, "who sums"),
    ):
        axes.text(x, 0.5, text, weight="bold")
    adders = {
        "pmap": "you: lax.pmean",
        "jit": "the compiler",
        "shard_map": "?",
    }
    for row, (name, adder) in enumerate(adders.items()):
        top, programs, width = (
            (2 + 2.3 * row, 1, 5.7) if name == "jit" else (2 + 2.3 * row, 4, 1.35)
        )
        axes.text(0, top + 0.4, name, weight="bold", va="center", fontsize=9)
        axes.text(
            3.6, top - 0.25, "[N, b, D]" if name == "pmap" else "[B, D], B is split"
        )
        axes.text(
            9.4,
            top - 0.25,
            "[B, D], once" if name == "jit" else "[b, D], on each device",
        )
        drawing.device_row(axes, 3.6, top, "bbbb", step=1.22, width=1.1)
        for d in range(programs):
            drawing.box(
                axes,
                9.4 + 1.45 * d,
                top,
                "step",
                device=d if programs > 1 else None,
                width=width,
            )
        drawing.box(axes, 16, top, adder, width=4.8)
        for x in (8.5, 15.15):
            drawing.arrow(axes, (x, top + 0.4), (x + 0.85, top + 0.4))


@drawing.picture
def trap() -> None:
    """One w, eight arrows out to the devices, and eight gradients from 0.5 to 14.5 summed back: 60, which a pmean leaves as it is."""
    axes = drawing.canvas(19, 7.6)
    drawing.box(axes, 7.4, 0, "w: one weight", width=4.2)
    for d in range(8):
        left = 2.4 * d
        drawing.box(
            axes,
            left,
            2.4,
            f"x: {2 * d}, {2 * d + 1}\ngrad {2 * d + 0.5}",
            device=d,
            width=2.1,
            height=1.4,
            size=8,
        )
        drawing.arrow(axes, (9.5, 0.8), (left + 1.05, 2.4), device=d)
        drawing.arrow(axes, (left + 1.05, 3.8), (9.5, 5.2), device=d, dashed=True)
    drawing.box(axes, 3.7, 5.2, "jax.grad sums them: 60 on every device", width=11.6)
    drawing.arrow(axes, (9.5, 6.0), (9.5, 6.7))
    drawing.box(axes, 3.7, 6.7, "pmean of eight times 60: still 60", width=11.6)

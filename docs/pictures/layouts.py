"""Draw what each device holds.

`python docs/pictures/layouts.py > docs/pictures/layouts.svg`.

For each way to split and each of eight devices there are three bars: the batch, the
parameters and the optimizer's state. What the device holds has its colour.
"""

from collections.abc import Iterator

from pmapdp.compare.pictures import colour_of

N = 8
BARS = ("batch", "parameters", "optimizer")
# By row: into how many parts an array is split, and which part device i holds.
WHOLE = (1, lambda device: 0)
EIGHTHS = (8, lambda device: device)
QUARTERS = (4, lambda device: device // 2)
HALVES = (2, lambda device: device % 2)
ROWS = [
    (
        "pmap, shard_map, jit: each device has a part of the batch, and the whole "
        "model",
        (EIGHTHS, WHOLE, WHOLE),
    ),
    ("jit, --shard-state optimizer (ZeRO-1)", (EIGHTHS, WHOLE, EIGHTHS)),
    ("jit, --shard-state parameters (ZeRO-3)", (EIGHTHS, EIGHTHS, EIGHTHS)),
    (
        "jit, --mesh data=4,model=2 --layout model: two devices share a quarter of the "
        "batch",
        (QUARTERS, HALVES, HALVES),
    ),
]
LEFT, TOP, ROW, COLUMN = 96, 34, 112, 78
BAR_WIDTH, BAR_HEIGHT = 66, 14


def text(x: float, y: float, words: str, weight: str = "normal") -> str:
    """Return a line of text."""
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{words}</text>'


def bar(x: float, y: float, parts: int, part: int, colour: str) -> Iterator[str]:
    """Yield an array as a pale bar, and the part of it that a device holds."""
    width = BAR_WIDTH / parts
    size = f'height="{BAR_HEIGHT}"'
    left = x + part * width
    yield f'<rect x="{x}" y="{y}" width="{BAR_WIDTH}" {size} fill="#e4e7eb"/>'
    yield f'<rect x="{left:g}" y="{y}" width="{width:g}" {size} fill="{colour}"/>'


def picture() -> str:
    """Return the picture as SVG."""
    width = LEFT + N * COLUMN
    height = TOP + len(ROWS) * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    lines += [
        text(LEFT + device * COLUMN, 20, f"device {device}") for device in range(N)
    ]
    for number, (title, splits) in enumerate(ROWS):
        top = TOP + number * ROW
        lines.append(text(8, top + 18, title, "bold"))
        y = top + 30
        for name, (parts, part_of) in zip(BARS, splits, strict=True):
            lines.append(text(8, y + 12, name))
            for device in range(N):
                x = LEFT + device * COLUMN
                lines += bar(x, y, parts, part_of(device), colour_of(device))
            y += 22
    return "\n".join([*lines, "</svg>"])


if __name__ == "__main__":
    print(picture())

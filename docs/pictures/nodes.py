"""Draw 4 nodes with 8 GPUs each, and which rows of a global batch each process reads.

`python docs/pictures/nodes.py > docs/pictures/nodes.svg`.
"""

from pmapdp.compare.pictures import colour_of

NODES = 4
DEVICES = 8  # on a node, and one process has all of them
ROWS = 64  # of the batch, on a device
WIDTH = 832  # pixels
NODE_WIDTH = WIDTH // NODES
TILE = 44


def text(x: float, y: float, words: str, style: str = "") -> str:
    """Return a line of text, centred at x."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle"{style}>{words}</text>'


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    """Return a rectangle."""
    size = f'width="{width:g}" height="{height:g}"'
    return f'<rect x="{x:g}" y="{y:g}" {size} rx="3" {style}/>'


def draw_node(node: int) -> list[str]:
    """Draw a node below its rows of the batch."""
    left = node * NODE_WIDTH
    middle = left + NODE_WIDTH / 2
    rows = DEVICES * ROWS
    parts = [
        text(middle, 66, f"rows {node * rows} to {(node + 1) * rows - 1}"),
        text(middle, 84, "↓"),
        box(left + 6, 92, NODE_WIDTH - 12, 138, 'fill="none" stroke="#767676"'),
        text(middle, 112, f"node {node}: process {node}", ' font-weight="bold"'),
    ]
    for place in range(DEVICES):
        device = node * DEVICES + place
        fill = f'fill="{colour_of(place)}"'
        part_width = (NODE_WIDTH - 12) / DEVICES
        parts.append(box(left + 6 + place * part_width, 28, part_width - 2, 20, fill))
        x = left + 14 + place % 4 * (TILE + 2)
        y = 124 + place // 4 * (TILE + 8)
        parts.append(box(x, y, TILE - 2, TILE, fill))
        parts.append(text(x + TILE / 2 - 1, y + 27, str(device)))
    return parts


def picture() -> str:
    """Return the picture as SVG."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 312" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="{WIDTH}" height="312" fill="white"/>',
    ]
    batch = NODES * DEVICES * ROWS
    title = f"the global batch of {batch:,} examples, {ROWS} for each device"
    lines.append(text(WIDTH / 2, 18, title))
    for node in range(NODES):
        lines += draw_node(node)
        lines.append(text((node + 0.5) * NODE_WIDTH, 256, "↓"))
    lines.append(
        box(6, 264, WIDTH - 12, 24, 'fill="#ffe27a" stroke="#c79a00"'),
    )
    words = "one all-reduce over all 32 devices: all of them get the same sums"
    lines.append(text(WIDTH / 2, 281, words))
    lines.append(text(WIDTH / 2, 306, "32 equal copies of the new weights"))
    return "\n".join([*lines, "</svg>"])


if __name__ == "__main__":
    print(picture())

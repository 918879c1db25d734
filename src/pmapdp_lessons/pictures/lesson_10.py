"""The pictures of lesson 10: the three ways, and the sources of a step in columns."""

import difflib
import html
import inspect

from IPython.display import HTML, IFrame

from pmapdp_lessons import drawing


@drawing.picture
def three_ways() -> None:
    """pmap: you pass [N, b, D], the step sees [b, D], you add up. jit: [B, D], seen whole, the compiler adds up. shard_map: [B, D] in, [b, D] seen, you add up."""
    axes = drawing.canvas(21, 8)
    for x, text in ((3.6, "you pass"), (9.4, "your function sees"), (16, "who adds up")):
        axes.text(x, 0.5, text, weight="bold")
    for row, name in enumerate(["pmap", "jit", "shard_map"]):
        top, programs, width = (2 + 2.3 * row, 1, 5.7) if name == "jit" else (2 + 2.3 * row, 4, 1.35)
        axes.text(0, top + 0.4, name, weight="bold", va="center", fontsize=9)
        axes.text(3.6, top - 0.25, "[N, b, D]" if name == "pmap" else "[B, D], split along B")
        axes.text(9.4, top - 0.25, "[B, D], once" if name == "jit" else "[b, D], on each device")
        for d in range(4):
            drawing.box(axes, 3.6 + (1.22 if name == "pmap" else 1.1) * d, top, "b", device=d, width=1.1)
        for d in range(programs):
            drawing.box(axes, 9.4 + 1.45 * d, top, "step", device=d if programs > 1 else None, width=width)
        drawing.box(axes, 16, top, "the compiler" if name == "jit" else "you: lax.pmean", width=4.6)
        for x in (8.5, 15.15):
            drawing.arrow(axes, (x, top + 0.4), (x + 0.85, top + 0.4))


def changed(old, new) -> set[int]:
    """The numbers of the lines of the function `new` that are not in `old`."""
    lines = [inspect.getsource(function).splitlines()[1:] for function in (old, new)]
    blocks = difflib.SequenceMatcher(None, *lines, autojunk=False).get_matching_blocks()
    same = {row for block in blocks for row in range(block.b, block.b + block.size)}
    return {row + 1 for row in range(len(lines[1])) if row not in same}


def columns(single, *others) -> HTML:
    """The sources beside each other; the lines that differ from `single` are marked."""
    cells = ""
    for function in (single, *others):
        marked = changed(single, function) if function is not single else set()
        rows = ""
        for row, line in enumerate(inspect.getsource(function).splitlines()):
            colour = "background:#d9770633;" if row in marked else ""
            rows += f'<div style="{colour}white-space:pre-wrap;min-height:1.3em">{html.escape(line)}</div>'
        cells += f"<div>{rows}</div>"
    frame = "display:grid;grid-template-columns:1fr 1fr;gap:1em;font:10px/1.3 monospace;text-align:left"
    return HTML(f'<div style="{frame}">{cells}</div>')


def page(path) -> IFrame:
    """An HTML page that needs nothing beside itself, in a frame of its own, so that it travels with the notebook."""
    return IFrame("about:blank", "100%", 500, extras=[f'srcdoc="{html.escape(path.read_text())}"'])

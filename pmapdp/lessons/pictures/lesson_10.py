"""The pictures of lesson 10: the three ways, and the sources of a step in columns."""

import ast
import difflib
import html
import inspect

from IPython.display import HTML

from pmapdp.compare.code import align, kind_of, plain_lines
from pmapdp.lessons import drawing


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


def columns(**ways) -> HTML:
    """The sources beside each other, as in the page of `pmapdp.compare`: the step, the placing, the wrapper.

    Lines that all have stand once. The all-reduce is marked.
    """
    parts = {name: by_role(way) for name, way in ways.items()}
    rows = ""
    for role in next(iter(parts.values())):
        rows += f'<div style="margin:0.8em 0 0.2em;border-top:1px solid #76767666"><b>{role}</b></div>'
        for same, cells in align({name: found[role] for name, found in parts.items()}):
            shown = {"": next(iter(cells.values()))} if same else cells
            grid = "display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:0 1.2em;text-align:left"
            heads = '<b style="color:#767676;font-size:0.9em">{}</b>'
            inner = "".join(
                f"<div>{heads.format(html.escape(name)) * bool(name)}{lines(cell)}</div>"
                for name, cell in shown.items()
            )
            rows += f'<div style="{grid}">{inner}</div>'
    return HTML(f"<div>{rows}</div>")


def by_role(way) -> dict[str, list[str]]:
    """The lines of a function that returns a step and how to place a batch."""
    source = inspect.getsource(way)
    body = ast.parse(source).body[0].body
    step, place = (each for each in body if isinstance(each, ast.FunctionDef))
    rest = [each for each in body if each not in (step, place)]
    parts = {"The step": [step], "Place a batch": [place], "The wrapper": rest}
    return {role: plain_lines(*nodes) for role, nodes in parts.items()}


def lines(found) -> str:
    """Lines; one that is too long is wrapped below its own beginning, and the all-reduce is marked."""
    shown = ""
    for line in found:
        text = line.lstrip()
        mark = ";background:#d9770640" if kind_of(line) == "reduce" else ""
        style = f"padding-left:{len(line) - len(text) + 2}ch;text-indent:-2ch;white-space:pre-wrap{mark}"
        shown += f'<div style="{style}">{html.escape(text)}</div>'
    return f'<div style="font:10px/1.4 monospace">{shown}</div>'

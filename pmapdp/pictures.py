"""Pictures: one fixed colour per device and one per strategy, and SVG files that read on light and on dark pages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import Any

from pmapdp.errors import UserError

# The Okabe-Ito palette, which colour-blind readers can tell apart (Okabe and Ito, "Color universal design", 2008),
# and a grey. More devices than colours start again from the first.
DEVICE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#8C8C8C")

# On a light and on a dark page; each has a contrast of at least 4.5 : 1 to it. A picture is drawn in the light ones,
# and `svg` puts a variable in their place.
COLOURS = {
    "ink": ("#1d232b", "#e6e9ed"),
    "soft": ("#565f6b", "#a4adb8"),
    "rule": ("#d9dde3", "#343c46"),
    "single": ("#5f6875", "#a9b0bb"),
    "pmap": ("#0069a6", "#56b4e9"),
    "jit": ("#b54c00", "#f59a4a"),
    "shard_map": ("#007a57", "#35c698"),
}
STRATEGY_COLOURS = {name: COLOURS[name][0] for name in ("single", "pmap", "jit", "shard_map")}
INK, SOFT, RULE = (COLOURS[name][0] for name in ("ink", "soft", "rule"))


def rules(scheme: int) -> str:
    """The CSS variables of the colours on a light (0) or dark (1) page."""
    return " ".join(f"--{name}: {pair[scheme]};" for name, pair in COLOURS.items())


def require_matplotlib(flag: str) -> None:
    """Refuse `flag`, which asks for a picture, where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError(f"{flag} needs matplotlib, which is not here: pip install 'pmapdp[plots]'") from None


@contextmanager
def drawing(width: float, height: float) -> Iterator[tuple[Any, Any]]:
    """A matplotlib figure of `width` x `height` inches with one pair of axes, in the style of the project.

    No window and no global state of matplotlib is used; `svg` takes the figure inside the same block.
    """
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none",  # text stays text, for readers and for search
        "svg.hashsalt": "pmapdp",  # equal pictures are equal files
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": SOFT,
        "axes.edgecolor": RULE,
        "axes.titlecolor": INK,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": RULE,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def svg(figure: Any, title: str, *, alone: bool = False) -> str:
    """A figure, drawn in light colours, as an `<svg>` element that is as wide as its place; screen readers say `title`.
    Where it stands `alone` it carries the colours of both schemes; a page has them in its style."""
    file = StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue()[file.getvalue().index("<svg") :]
    for name, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{name})")
    text = re.sub(r'<g id="[\w.]+">', "<g>", text)  # several pictures on a page would have them twice
    own = f"<title>{escape(title)}</title>"
    if alone:
        dark = f"@media (prefers-color-scheme: dark) {{ svg {{ {rules(1)} }} }}"
        own += f"<style>svg {{ {rules(0)} }} {dark}</style>"
    head, rest = text.split(">", 1)
    head = re.sub(r' (width|height)="[\d.]+pt"', "", head) if not alone else head
    return f'{head} role="img">{own}{rest}'

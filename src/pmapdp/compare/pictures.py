"""Pictures: one fixed colour per device and one per strategy, and SVG files that read on light and on dark pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

from pmapdp.errors import UserError

# The Okabe-Ito palette, which colour-blind readers can tell apart (Okabe and Ito, "Color universal design", 2008),
# and a grey. More devices than colours start again from the first.
DEVICE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#8C8C8C")

# Each has a contrast of at least 4.5 : 1 to white and to black: the grey, and three hues of that palette.
INK = "#767676"
STRATEGY_COLOURS = {"single": INK, "pmap": "#007bc0", "jit": "#c15500", "shard_map": "#008661"}


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

    colours: Any = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    style = {
        "svg.fonttype": "none",  # text stays text, for search
        "svg.hashsalt": "pmapdp",  # equal pictures are equal files
        "font.family": "sans-serif",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": INK,
        "grid.alpha": 0.3,
        "legend.frameon": False,
    }
    with matplotlib.rc_context(colours | style):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def svg(figure: Any, title: str) -> str:
    """A figure as an SVG file without a ground of its own; screen readers say `title`."""
    file = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata={"Title": title, **nothing})
    return file.getvalue()

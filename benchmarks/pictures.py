"""Pictures of results with matplotlib: SVG files that read on light and on dark pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

from pmapdp.compare.pictures import INK


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

"""How commands print tables."""

import sys

from rich.console import Console

WIDE = 400  # columns where the output is no terminal: a file has no width, and wrapped cells are hard to read


def console() -> Console:
    """Prints to stdout as it is, without colours for numbers."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)

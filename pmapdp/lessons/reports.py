"""Print a report in a notebook: lines that are wider than the page are broken between words."""

import textwrap

WIDTH, INDENT = 110, 13  # characters of a line of a notebook; of the labels of `pmapdp.verify`


def show(report: str) -> None:
    """Print `report`, of any number of lines, none wider than `WIDTH` characters."""
    for line in report.splitlines():
        print(line if len(line) <= WIDTH else textwrap.fill(line, WIDTH, subsequent_indent=INDENT * " "))

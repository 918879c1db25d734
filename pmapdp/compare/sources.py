"""Read the files of the strategies, region by region, as they are.

A comment such as `# The step: ...` begins a region of a file in `steps/`.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any

from pmapdp.compare.results import Code, Line, Section

REGIONS = {
    "The step": "Under pmap and shard_map the step sees one device's examples, so you "
    "average the sums. Under jit it sees the global batch: it's the step of a single "
    "device. The functions that compute gradient sums and update the state are the "
    "same in all four, and you find them in pmapdp/steps/shared.py.",
    "The wrapper": "pmap takes the mapped axis of each argument, shard_map a "
    "PartitionSpec. jit needs neither, because arrays bring their shardings along. "
    "out_shardings only says where the result lies: the all-reduce comes from the sum "
    "over the split axis, with or without it.",
    "Placing": "All start from the same arrays on every device. pmap splits a batch "
    "along an axis of its own, [N, b, ...]. shard_map and jit take the global batch, "
    "[B, ...], whose sharding splits it.",
    "Evaluation": "A device knows the sums over its own examples, so pmap and "
    "shard_map add them up.",
}
MARK = re.compile(rf" *# ({'|'.join(REGIONS)})\b")


def read_body(maker: Callable[..., Any]) -> list[Line]:
    """Read the function that makes a strategy, from its docstring to its `return`."""
    lines, first = inspect.getsourcelines(maker)
    start = 2 + str(maker.__doc__).count("\n")  # after the first line and the docstring
    body = []
    for number, line in enumerate(lines[start:], first + start):
        if line.startswith("    return "):
            break
        body.append(Line(number, line.rstrip().removeprefix("    ")))
    return body


def read_regions(body: list[Line]) -> dict[str, list[str]]:
    """Return the lines of each region."""
    regions: dict[str, list[str]] = {name: [] for name in REGIONS}
    region = None
    for line in body:
        mark = MARK.match(line.text)
        if mark:
            region = mark[1]
        if region:
            regions[region].append(line.text)
    for lines in regions.values():
        while lines and not lines[-1]:
            lines.pop()
    return regions


def read_sections(makers: dict[str, Callable[..., Any]]) -> Code:
    """Read the code of all strategies."""
    sources = {name: read_body(maker) for name, maker in makers.items()}
    regions = {name: read_regions(body) for name, body in sources.items()}
    sections = []
    for title, why in REGIONS.items():
        columns = {name: regions[name][title] for name in makers}
        sections.append(Section(title, why, columns))
    return Code(sections, sources)

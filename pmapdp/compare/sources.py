"""Read the files of the strategies, region by region, as they are.

A comment such as `# The step: ...` begins a region of a file in `steps/`.
"""

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from pmapdp.steps import placing, shared

REGIONS = {
    "The step": "Under pmap and shard_map the step sees one device's examples, so you "
    "average the sums. Under jit it sees the global batch: it's the step of a single "
    "device.",
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
SHARED: dict[str, tuple[Callable[..., Any], ...]] = {
    "Gradients and update, the same in all four (steps/shared.py)": (
        shared.gradient_sums,
        shared.update,
    ),
    "Placing and fetching, the same in all four (steps/placing.py)": (
        placing.place,
        placing.fetch,
    ),
}


def read_regions(maker: Callable[..., Any]) -> dict[str, list[str]]:
    """Read the regions of the function that makes a strategy, without its `return`."""
    source = inspect.getsource(maker)
    regions: dict[str, list[str]] = {name: [] for name in REGIONS}
    region = None
    for line in textwrap.dedent(source).splitlines():
        mark = MARK.match(line)
        if mark:
            region = mark[1]
        elif line.startswith("    return "):
            region = None
        if region:
            regions[region].append(line.removeprefix("    "))
    for lines in regions.values():
        while lines and not lines[-1]:
            lines.pop()
    return regions


def read_sections(makers: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """Read the regions of all strategies, their functions, and what they share."""
    regions = {name: read_regions(maker) for name, maker in makers.items()}
    code = []
    for title, why in REGIONS.items():
        columns = {name: regions[name][title] for name in makers}
        code.append({"title": title, "why": why, "lines": columns})
    functions = {}
    for name, maker in makers.items():
        lines, first = inspect.getsourcelines(maker)
        text = "".join(lines)
        functions[name] = {"lines": text.splitlines(), "first": first}
    common = []
    for title, shared_functions in SHARED.items():
        sources = [inspect.getsource(function) for function in shared_functions]
        common.append({"title": title, "lines": "\n\n".join(sources).splitlines()})
    return {"code": code, "shared": common, "sources": functions}
